//! Commands: what is drafted, what is refused, and which refusal comes first (R16).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod common;

use common::*;
use perdure_core::error::Refusal;
use perdure_core::{Reads, State};

fn decide(state: &State, command: &str) -> Result<Vec<String>, String> {
    match Reads::new(state, None).decide(command, T0) {
        Ok(decision) => Ok(decision.drafts),
        Err(refusal) => Err(code(&refusal)),
    }
}

fn code(refusal: &Refusal) -> String {
    match refusal {
        Refusal::InvalidTransition(transition) => transition.rule.code().to_owned(),
        Refusal::NonDeterministic(drift) => format!("drift {}", drift.part),
        Refusal::HookTokenConflict { hook_id, .. } => format!("token of {hook_id}"),
        Refusal::PayloadTooLarge { event_key, .. } => format!("too large {event_key}"),
        Refusal::Serialization { fault, .. } => fault.code().to_owned(),
        other => format!("{other:?}"),
    }
}

const STEP: &str = r#"{"type":"step","step_id":"a","step_name":"n","input":{"k":1}}"#;
const OTHER_STEP: &str = r#"{"type":"step","step_id":"a","step_name":"n","input":{"k":2}}"#;
const HOOK: &str = r#"{"type":"hook","hook_id":"g","token":"t"}"#;
const BAD_POLICY: &str = r#"{"type":"step","step_id":"p","step_name":"n","input":1,"retry":{"max_attempts":1,"delay_ms":0,"max_delay_ms":1}}"#;
const BLANK: &str = r#"{"type":"step","step_id":" ","step_name":"n","input":1}"#;

/// A run with step `a` pending and hook `h` active under token `t`.
fn begun() -> State {
    run_with(&[
        r#"{"type":"step_created","step_id":"a","step_name":"n","input":{"k":1},"retry":{"max_attempts":3,"delay_ms":0}}"#,
        r#"{"type":"hook_created","hook_id":"h","token":"t","metadata":null}"#,
    ])
}

fn all(members: &[&str]) -> String {
    format!(r#"{{"type":"schedule_all","members":[{}]}}"#, members.join(","))
}

#[test]
fn refusals_come_in_the_order_of_the_ruling() {
    let run = begun();
    let expect = |members: &[&str], wanted: &str| assert_eq!(decide(&run, &all(members)), Err(wanted.to_owned()));
    expect(&[BAD_POLICY, HOOK, OTHER_STEP, STEP, BLANK, "5"], "shape");
    expect(&[], "empty_list");
    expect(&[BAD_POLICY, HOOK, OTHER_STEP, STEP, BLANK], "blank_id");
    expect(&[BAD_POLICY, HOOK, OTHER_STEP, STEP], "named_twice");
    expect(&[BAD_POLICY, HOOK, OTHER_STEP], "drift input");
    expect(&[BAD_POLICY, HOOK], "token of h");
    expect(&[BAD_POLICY], "policy_invalid");
    assert_eq!(decide(&run, "{\"type\":"), Err("malformed".to_owned()));
}

#[test]
fn a_disposed_hook_frees_its_token_in_the_same_list() {
    let run = begun();
    let dispose = r#"{"type":"dispose_hook","hook_id":"h"}"#;
    let drafts = decide(&run, &all(&[dispose, HOOK])).unwrap();
    assert_eq!(drafts[0], r#"{"type":"hook_disposed","hook_id":"h"}"#);
    assert_eq!(drafts[1], r#"{"type":"hook_created","hook_id":"g","token":"t","metadata":null}"#);
    assert_eq!(decide(&run, &all(&[HOOK, dispose])), Err("token of h".to_owned()));
    assert_eq!(decide(&run, &all(&[r#"{"type":"dispose_hook","hook_id":"x"}"#])), Err("cannot_dispose".to_owned()));
}

#[test]
fn payloads_are_kept_and_the_rest_is_written_anew() {
    let run = run_with(&[]);
    let command =
        r#" { "input" : {"b": 1.50, "a":"\u00e9"} , "step_name":"\u0061" , "step_id":"s" , "type":"schedule_step" } "#;
    let wanted = r#"{"type":"step_created","step_id":"s","step_name":"a","input":{"b": 1.50, "a":"\u00e9"},"retry":{"max_attempts":3,"delay_ms":0}}"#;
    assert_eq!(decide(&run, command), Ok(vec![wanted.to_owned()]));
}

#[test]
fn a_line_end_inside_a_payload_becomes_a_space() {
    let drafts = decide(&run_with(&[]), "{\"type\":\"complete\",\"output\":[1,\n2]}").unwrap();
    assert_eq!(drafts, [r#"{"type":"run_completed","output":[1, 2]}"#]);
}

#[test]
fn what_is_resolved_makes_no_progress() {
    let run = run_with(&[
        r#"{"type":"step_created","step_id":"a","step_name":"n","input":{"k":1},"retry":{"max_attempts":3,"delay_ms":0}}"#,
        r#"{"type":"step_started","step_id":"a","attempt":1}"#,
        r#"{"type":"step_completed","step_id":"a","output":null}"#,
    ]);
    assert_eq!(decide(&run, &all(&[STEP])), Err("nothing_new".to_owned()));
    let reordered = r#"{"type":"step","step_id":"b","step_name":"n","input":1}"#;
    assert_eq!(decide(&run, &all(&[STEP, reordered])).unwrap().len(), 1);
}

#[test]
fn relative_waits_start_at_the_later_of_clock_and_horizon() {
    let drafts = decide(&run_with(&[]), r#"{"type":"wait_for","wait_id":"w","delay_ms":1500}"#).unwrap();
    assert_eq!(drafts, [r#"{"type":"wait_created","wait_id":"w","resume_at":"2026-01-01T00:00:01.500Z"}"#]);
    let too_long = r#"{"type":"wait_for","wait_id":"w","delay_ms":18446744073709551615}"#;
    assert_eq!(decide(&run_with(&[]), too_long), Err("delay_out_of_range".to_owned()));
}

#[test]
fn ends_are_judged_by_the_request() {
    let open = run_with(&[]);
    let cancelling = run_with(&[r#"{"type":"run_cancellation_requested","request":{"reason":"stop"}}"#]);
    assert_eq!(decide(&open, r#"{"type":"cancel"}"#), Err("cancel_without_request".to_owned()));
    let complete = r#"{"type":"complete","output":1}"#;
    assert_eq!(decide(&cancelling, complete), Err("complete_while_cancelling".to_owned()));
    let cancelled = decide(&cancelling, r#"{"type":"cancel"}"#).unwrap();
    assert_eq!(cancelled, [r#"{"type":"run_cancelled","reason":"stop"}"#]);
}

#[test]
fn counting_and_limits() {
    let run = run_with(&[]);
    let progress = r#"{"type":"record_progress","progress":{"progress_id":"p","completed":1,"details":null}}"#;
    let decision = Reads::new(&run, None).decide(progress, T0).unwrap();
    assert!(decision.counts && !decision.ends);
    let limited = r#"{"type":"schedule_steps","steps":[{"step_id":"s","step_name":"n","input":1}],"concurrency":4}"#;
    let decision = Reads::new(&run, None).decide(limited, T0).unwrap();
    assert_eq!((decision.counts, decision.concurrency), (false, Some(4)));

    let small = perdure_core::project::project("r", history("r", &[&created()]).as_bytes(), 60).unwrap();
    let large = r#"{"type":"complete","output":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#;
    assert_eq!(decide(&small, large), Err("too large flow.run.completed".to_owned()));
}
