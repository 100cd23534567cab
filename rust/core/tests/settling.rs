//! Steps: what an outcome becomes, which attempts start, and what a final failure owes (R5, R10, R15, R19, R25, R26).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod common;

use common::*;
use perdure_core::{Reads, State};

fn step(id: &str, retry: &str) -> String {
    format!(r#"{{"type":"step_created","step_id":"{id}","step_name":"n","input":1,"retry":{retry}}}"#)
}

fn started(id: &str, attempt: u32) -> String {
    format!(r#"{{"type":"step_started","step_id":"{id}","attempt":{attempt}}}"#)
}

fn running(retry: &str) -> State {
    run_with(&[&step("a", retry), &started("a", 1)])
}

fn settle(state: &State, outcome: &str, restart: bool) -> Vec<String> {
    Reads::new(state, None).settle("a", 1, outcome, T0, restart).unwrap()
}

const AT_ONCE: &str = r#"{"max_attempts":2,"delay_ms":0}"#;
const LAST: &str = r#"{"max_attempts":1,"delay_ms":0}"#;
const FAILED: &str = r#"{"type":"failed","error":"runtime error: e"}"#;

#[test]
fn an_immediate_retry_starts_at_once_if_it_may() {
    let run = running(AT_ONCE);
    let retrying =
        r#"{"type":"step_retrying","step_id":"a","attempt":1,"error":"runtime error: e","retry_after":null}"#;
    assert_eq!(settle(&run, FAILED, false), [retrying]);
    assert_eq!(settle(&run, FAILED, true), [retrying, r#"{"type":"step_started","step_id":"a","attempt":2}"#]);
}

#[test]
fn a_suggested_delay_is_written_and_an_odd_one_ignored() {
    let run = running(AT_ONCE);
    let with = |delay: &str| format!(r#"{{"type":"failed","error":"e","retry_after_ms":{delay}}}"#);
    let wanted = r#"{"type":"step_retrying","step_id":"a","attempt":1,"error":"e","retry_after":"2026-01-01T00:00:02Z","suggested_delay_ms":2000}"#;
    assert_eq!(settle(&run, &with("2000"), true), [wanted]);
    for odd in ["0", "-5", "18446744073709551616"] {
        assert!(settle(&run, &with(odd), false)[0].ends_with("\"retry_after\":null}"), "{odd}");
    }
    let for_ever = settle(&run, &with("18446744073709551615"), true);
    assert!(for_ever[0].contains("\"retry_after\":\"9999-12-31T23:59:59.999999999Z\""), "{for_ever:?}");
}

#[test]
fn the_last_attempt_fails_for_good() {
    let run = running(LAST);
    assert_eq!(
        settle(&run, FAILED, true),
        [r#"{"type":"step_failed","step_id":"a","attempt":1,"error":"runtime error: e"}"#]
    );
    let non_retryable = r#"{"type":"non_retryable","error":"x","failure":{"type":"T","message":"m"}}"#;
    let wanted =
        r#"{"type":"step_non_retryable","step_id":"a","attempt":1,"error":"x","failure":{"type":"T","message":"m"}}"#;
    assert_eq!(settle(&running(AT_ONCE), non_retryable, true), [wanted]);
}

#[test]
fn an_outcome_that_no_longer_counts_is_dropped() {
    let run = running(AT_ONCE);
    let reads = Reads::new(&run, None);
    assert!(reads.settle("a", 2, FAILED, T0, true).unwrap().is_empty());
    assert!(reads.settle("b", 1, FAILED, T0, true).unwrap().is_empty());
    let ended = run_with(&[&step("a", LAST), &started("a", 1), r#"{"type":"run_failed","error":"e"}"#]);
    assert!(settle(&ended, FAILED, true).is_empty());
}

#[test]
fn texts_are_cut_between_characters() {
    let long = "é".repeat(40_000);
    let outcome = format!(r#"{{"type":"non_retryable","error":"{long}","failure":{{"message":"{long}","x":1}}}}"#);
    let draft = &settle(&running(LAST), &outcome, true)[0];
    let value: serde_json::Value = serde_json::from_str(draft).unwrap();
    assert_eq!(value["error"].as_str().unwrap().len(), 65_536);
    assert_eq!(value["failure"]["message"].as_str().unwrap().len(), 65_536);
    assert!(draft.ends_with(",\"x\":1}}"));
}

#[test]
fn an_oversized_output_is_a_failure() {
    let lines = history("r", &[&created(), r#"{"type":"run_started"}"#, &step("a", LAST), &started("a", 1)]);
    let run = perdure_core::project::project("r", lines.as_bytes(), 60).unwrap();
    let output = format!(r#"{{"type":"completed","output":"{}"}}"#, "x".repeat(60));
    let draft = &settle(&run, &output, true)[0];
    let wanted = "serialization error: flow.step.completed would take 111 bytes and 60 are allowed";
    assert!(draft.starts_with("{\"type\":\"step_non_retryable\"") && draft.contains(wanted), "{draft}");
}

#[test]
fn running_steps_start_before_pending_ones_within_the_limit() {
    let later = r#"{"max_attempts":3,"delay_ms":1000}"#;
    let run = run_with(&[
        &step("d", AT_ONCE),
        &step("c", AT_ONCE),
        &step("b", later),
        &step("a", later),
        &started("c", 1),
        &started("b", 1),
        r#"{"type":"step_retrying","step_id":"b","attempt":1,"error":"e","retry_after":"2026-01-01T00:01:00Z"}"#,
        &started("a", 1),
    ]);
    let reads = Reads::new(&run, None);
    let starts = |horizon, live: &[(&str, u64)], limit| -> Vec<String> {
        let live: Vec<_> = live.iter().map(|(id, attempt)| ((*id).to_owned(), *attempt)).collect();
        let starts = reads.starts(horizon, &live, limit).into_iter();
        starts
            .map(|start| format!("{}{}{}", start.step_id, start.attempt, if start.needs_event { "!" } else { "" }))
            .collect()
    };
    assert_eq!(starts(T0, &[], 9), ["c1", "a1", "d1!"]);
    assert_eq!(starts(T0, &[("c", 1)], 9), ["a1", "d1!"]);
    assert_eq!(starts(T0, &[("c", 1)], 2), ["a1"]);
    assert_eq!(starts(T0, &[("c", 7)], 1), ["c1"], "a stale attempt takes no slot");
    assert_eq!(starts(T0 + 60 * SECOND, &[], 9), ["c1", "a1", "d1!", "b2!"]);
    assert!(starts(T0, &[], 0).is_empty());
}

#[test]
fn closing_cancels_what_is_open_and_ends_the_run() {
    let run = run_with(&[
        &step("z", AT_ONCE),
        &step("b", LAST),
        &step("m", AT_ONCE),
        &started("b", 1),
        &started("z", 1),
        r#"{"type":"step_failed","step_id":"b","attempt":1,"error":"e"}"#,
    ]);
    let cancelled = |id: &str, attempt: u32| {
        format!(
            r#"{{"type":"step_cancelled","step_id":"{id}","attempt":{attempt},"reason":"run failed by step b; outcome unknown"}}"#
        )
    };
    let exhausted = r#"{"type":"run_retry_exhausted","step_id":"b","attempt":1,"error":"e"}"#.to_owned();
    let closing = Reads::new(&run, None).closing();
    assert_eq!(closing, [cancelled("m", 0), cancelled("z", 1), exhausted]);
    let drafts: Vec<_> = closing.iter().map(String::as_str).collect();
    let layer = perdure_core::project::stage(Reads::new(&run, None), &drafts, T0).unwrap();
    let view = Reads::view(&run, &layer).unwrap();
    assert!(view.is_terminal() && view.closing().is_empty());
}
