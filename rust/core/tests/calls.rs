//! Host calls by the tables of spec 06, and what an open run waits for.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod common;

use common::*;
use perdure_core::error::Refusal;
use perdure_core::{Reads, State};

type Answer = Result<(Vec<String>, bool, bool), Refusal>;

fn call(state: &State, call: &str) -> Answer {
    let control = Reads::new(state, None).control(call, T0).map_err(|refusal| *refusal)?;
    Ok((control.drafts, control.drive, control.admit))
}

fn rule(answer: Answer) -> &'static str {
    match answer {
        Err(Refusal::InvalidTransition(transition)) => transition.rule.code(),
        other => panic!("{other:?}"),
    }
}

fn with_hook_and_waits() -> State {
    run_with(&[
        r#"{"type":"hook_created","hook_id":"h","token":"t","metadata":null}"#,
        r#"{"type":"wait_created","wait_id":"later","resume_at":"2026-03-01T00:00:00Z"}"#,
        r#"{"type":"wait_created","wait_id":"due","resume_at":"2025-03-01T00:00:00Z"}"#,
    ])
}

#[test]
fn start_creates_compares_and_repairs() {
    let start =
        |spec: &str, input: &str, more: &str| format!(r#"{{"op":"start","spec":{spec},"input":{input}{more}}}"#);
    let empty = State::new("r", MAX);
    let (drafts, drive, admit) = call(&empty, &start(SPEC, "1", "")).unwrap();
    assert_eq!(drafts, [created(), r#"{"type":"run_started"}"#.to_owned()]);
    assert!(drive && admit);
    assert_eq!(call(&empty, &start(SPEC, "1", ",\"drive\":false")).unwrap().0, [created()]);

    let run = run_with(&[]);
    assert_eq!(call(&run, &start(SPEC, "1", "")), Ok((vec![], true, true)));
    assert_eq!(call(&run, &start(SPEC, "1.0", "")), Err(Refusal::RunConflict { reason: "input" }));
    let other = SPEC.replace("\"version\":\"1\"", "\"version\":\"2\"");
    assert_eq!(call(&run, &start(&other, "2", "")), Err(Refusal::RunConflict { reason: "spec" }));
    let blank = SPEC.replace("\"version\":\"1\"", "\"version\":\" \"");
    assert_eq!(call(&run, &start(&blank, "1", "")), Err(Refusal::InvalidWorkflow { field: "version" }));
    let long = State::new(&"x".repeat(201), MAX);
    assert_eq!(call(&long, &start(SPEC, "1", "")), Err(Refusal::InvalidRunId { reason: "length" }));
    assert_eq!(call(&empty, r#"{"op":"drive"}"#), Err(Refusal::RunNotFound));
}

#[test]
fn waits() {
    let run = with_hook_and_waits();
    let resume = |id: &str, more: &str| format!(r#"{{"op":"resume_wait","wait_id":"{id}"{more}}}"#);
    assert_eq!(call(&run, &resume("due", "")).unwrap().0, [r#"{"type":"wait_completed","wait_id":"due"}"#]);
    assert_eq!(rule(call(&run, &resume("later", ""))), "wait_not_due");
    assert_eq!(call(&run, &resume("later", ",\"early\":true")).unwrap().0.len(), 1);
    assert_eq!(rule(call(&run, &resume("x", ""))), "id_unknown");
    assert_eq!(rule(call(&run, &resume(" ", ""))), "blank_id");
    let scheduled = call(&run, r#"{"op":"resume_scheduled_run","now":"2026-03-01T00:00:00Z"}"#).unwrap();
    let due = |id: &str| format!(r#"{{"type":"wait_completed","wait_id":"{id}"}}"#);
    assert_eq!(scheduled, (vec![due("due"), due("later")], true, true));
}

#[test]
fn hooks() {
    let run = with_hook_and_waits();
    let resume = |payload: &str| format!(r#"{{"op":"resume_hook","hook_id":"h","payload":{payload}}}"#);
    let received = r#"{"type":"hook_received","hook_id":"h","payload":[1, 2]}"#;
    assert_eq!(call(&run, &resume("[1, 2]")).unwrap(), (vec![received.to_owned()], true, true));
    let done = run_with(&[
        r#"{"type":"hook_created","hook_id":"h","token":"t","metadata":null}"#,
        r#"{"type":"hook_received","hook_id":"h","payload":1}"#,
    ]);
    assert_eq!(call(&done, &resume("1")), Ok((vec![], true, true)));
    let conflict = |reason| Err(Refusal::HookConflict { hook_id: "h".to_owned(), reason });
    assert_eq!(call(&done, &resume("2")), conflict("payload"));
    assert_eq!(call(&done, r#"{"op":"dispose_hook","hook_id":"h"}"#), conflict("received"));
}

#[test]
fn ends_and_facts_from_outside() {
    let run = run_with(&[]);
    let ended = run_with(&[r#"{"type":"run_failed","error":"e"}"#]);
    let cancel = r#"{"op":"force_cancel"}"#;
    let cancelled = r#"{"type":"run_cancelled","reason":null}"#.to_owned();
    assert_eq!(call(&run, cancel), Ok((vec![cancelled], false, false)));
    assert_eq!(call(&ended, cancel), Ok((vec![], false, false)));
    let progress = r#"{"op":"record_progress","progress":{"progress_id":"p","completed":1}}"#;
    assert_eq!(call(&run, progress).unwrap().0.len(), 1);
    assert_eq!(call(&ended, progress), Err(Refusal::RunTerminal));
    let request = r#"{"op":"request_cancellation","reason":"stop"}"#;
    let asked = r#"{"type":"run_cancellation_requested","request":{"reason":"stop"}}"#;
    assert_eq!(call(&run, request), Ok((vec![asked.to_owned()], true, true)));
    let asked = run_with(&[asked]);
    assert_eq!(call(&asked, request), Ok((vec![], true, true)));
    let other = r#"{"op":"request_cancellation"}"#;
    assert_eq!(call(&asked, other), Err(Refusal::RunConflict { reason: "request" }));
}

#[test]
fn what_an_open_run_waits_for() {
    let run = with_hook_and_waits();
    let reads = Reads::new(&run, None);
    let kinds: Vec<_> = reads.suspensions().iter().map(|suspension| (suspension.kind, suspension.id)).collect();
    assert_eq!(kinds, [("wait", "due"), ("wait", "later"), ("hook", "h")]);
    assert_eq!(reads.due_waits(T0), ["due"]);
    let march = perdure_core::time::parse("2026-03-01T00:00:00Z").unwrap();
    assert_eq!(reads.next_wakeup(T0, T0), Some(march));
    assert_eq!(reads.next_wakeup(march, T0), None);
    assert_eq!(reads.head().shown_status(), "suspended");
}

#[test]
fn what_was_resolved_first() {
    let run = run_with(&[
        r#"{"type":"hook_created","hook_id":"h","token":"t","metadata":null}"#,
        r#"{"type":"wait_created","wait_id":"w","resume_at":"2026-03-01T00:00:00Z"}"#,
        r#"{"type":"wait_created","wait_id":"v","resume_at":"2026-03-01T00:00:00Z"}"#,
        r#"{"type":"hook_received","hook_id":"h","payload":1}"#,
        r#"{"type":"run_cancellation_requested","request":{}}"#,
    ]);
    let first = |refs: &[(&str, &str)]| {
        let refs: Vec<_> = refs.iter().map(|(kind, id)| ((*kind).to_owned(), (*id).to_owned())).collect();
        Reads::new(&run, None).first_resolved(&refs)
    };
    assert_eq!(first(&[("wait", "w"), ("hook", "h")]), Some((1, 6)));
    assert_eq!(first(&[("wait", "w"), ("wait", "v")]), Some((1, 7)), "one request cancels both: the ids decide");
    assert_eq!(first(&[("step", "x"), ("what", "h")]), None);
}
