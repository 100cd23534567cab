//! Views: staging in layers, appending, accepting, and that all of it equals projecting the lines.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::string_slice, clippy::panic, reason = "tests")]

mod common;

use common::*;
use perdure_core::append::{accept, append, event_id};
use perdure_core::error::{Refusal, Rule};
use perdure_core::{Layer, Reads, State, project};

fn stage(state: &State, under: Option<&Layer>, drafts: &[&str]) -> Result<Layer, Box<Refusal>> {
    project::stage(Reads::new(state, under), drafts, T0)
}

fn rule(refusal: &Refusal) -> Rule {
    match refusal {
        Refusal::InvalidTransition(transition) => transition.rule,
        other => panic!("{other:?}"),
    }
}

#[test]
fn event_ids() {
    for row in rows("ours/event_ids.jsonl") {
        let hex = text(&row, "entropy");
        let entropy = std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap());
        assert_eq!(event_id(&entropy), text(&row, "event_id"));
    }
}

/// Every recorded history, cut anywhere: the rest staged in one or two layers, appended and accepted, is the whole projected.
#[test]
fn accepting_equals_projecting() {
    for row in rows("ours/cases.jsonl") {
        for (run_id, run) in row["recorded"]["runs"].as_object().unwrap() {
            let lines = lines(run);
            let wanted = snapshot(&fold(run_id, &lines).unwrap());
            let events: Vec<_> = lines.iter().map(|line| event_of(line)).collect();
            for cut in [1, lines.len() / 2, lines.len()] {
                let cut = cut.clamp(1, lines.len());
                let mut state = fold(run_id, &lines[..cut]).unwrap();
                let before = snapshot(&state);
                let middle = cut + (lines.len() - cut) / 2;
                let stamp = |at: usize| stamp_of(lines[at.min(lines.len() - 1)]);
                // One clock stamps a stage, so each event is a stage of its own here.
                let mut layer = project::stage(Reads::new(&state, None), &[], stamp(cut)).unwrap();
                for (at, event) in events.iter().enumerate().skip(cut) {
                    layer = project::stage(Reads::new(&state, Some(&layer)), &[event], stamp(at)).unwrap();
                    if at == middle {
                        assert_eq!(snapshot(&state), before, "a stage changes nothing");
                    }
                }
                let view = Reads::view(&state, &layer).unwrap();
                assert_eq!(view.snapshot(), wanted);
                let batch = append(view, &vec![7; 16 * (lines.len() - cut)]).unwrap();
                let head: String = lines[..cut].iter().flat_map(|line| [line, "\n"]).collect();
                let again = project::project(run_id, (head + &batch.lines).as_bytes(), MAX).unwrap();
                assert_eq!(snapshot(&again), wanted);
                accept(&mut state, &layer).unwrap();
                assert_eq!(snapshot(&state), wanted);
            }
        }
    }
}

fn event_of(line: &str) -> String {
    let at = line.find("\"event\":").unwrap() + 8;
    line[at..line.len() - 1].to_owned()
}

fn stamp_of(line: &str) -> i128 {
    let at = line.find("\"timestamp\":\"").unwrap() + 13;
    perdure_core::time::parse(line[at..].split('"').next().unwrap()).unwrap()
}

#[test]
fn a_refused_tail_changes_nothing() {
    let mut state = run_with(&[]);
    let before = snapshot(&state);
    let created = created();
    let tail = history("r", &[&created, r#"{"type":"run_started"}"#, r#"{"type":"run_failed","error":"e"}"#, &created]);
    let tail: String = tail.lines().skip(2).flat_map(|line| [line, "\n"]).collect();
    assert_eq!(rule(&project::extend(&mut state, tail.as_bytes()).unwrap_err()), Rule::RunEnded);
    assert_eq!(snapshot(&state), before);
}

#[test]
fn a_line_that_cannot_be_read_comes_before_any_rule() {
    let lines = history("r", &[r#"{"type":"run_started"}"#, r#"{"type":"zzz"}"#]);
    let refusal = project::project("r", lines.as_bytes(), MAX).unwrap_err();
    assert!(matches!(*refusal, Refusal::Serialization { line: Some(2), .. }), "{refusal:?}");
}

#[test]
fn a_view_is_stale_once_the_run_moved_on() {
    let mut state = run_with(&[]);
    let wait = r#"{"type":"wait_created","wait_id":"w","resume_at":"2026-02-01T00:00:00Z"}"#;
    let first = stage(&state, None, &[wait]).unwrap();
    let second = stage(&state, None, &[wait]).unwrap();
    accept(&mut state, &first).unwrap();
    assert_eq!(rule(&Reads::view(&state, &second).map(drop).unwrap_err()), Rule::StaleView);
    assert_eq!(rule(&accept(&mut state, &second).unwrap_err()), Rule::StaleView);
    assert_eq!(Reads::new(&state, None).head().last_sequence, 3);
}

#[test]
fn entropy_is_counted() {
    let state = run_with(&[]);
    let layer = stage(&state, None, &[r#"{"type":"run_failed","error":"e"}"#]).unwrap();
    let refusal = append(Reads::view(&state, &layer).unwrap(), &[0; 15]).unwrap_err();
    assert_eq!(rule(&refusal), Rule::EntropyLength);
}

#[test]
fn index_changes_are_net() {
    let state = run_with(&[
        r#"{"type":"hook_created","hook_id":"h","token":"t","metadata":null}"#,
        r#"{"type":"wait_created","wait_id":"w","resume_at":"2026-02-01T00:00:00Z"}"#,
    ]);
    let drafts = [
        r#"{"type":"hook_disposed","hook_id":"h"}"#,
        r#"{"type":"hook_created","hook_id":"g","token":"t","metadata":null}"#,
        r#"{"type":"hook_created","hook_id":"k","token":"u","metadata":null}"#,
        r#"{"type":"hook_received","hook_id":"k","payload":1}"#,
        r#"{"type":"wait_completed","wait_id":"w"}"#,
        r#"{"type":"wait_created","wait_id":"v","resume_at":"2026-02-02T00:00:00Z"}"#,
        r#"{"type":"child_operation_linked","child":{"reference_id":"c","kind":"k","operation_id":"o","flow_run_id":"x"}}"#,
        r#"{"type":"child_operation_linked","child":{"reference_id":"d","kind":"k","operation_id":"o","flow_run_id":"x"}}"#,
    ];
    let layer = stage(&state, None, &drafts).unwrap();
    let batch = append(Reads::view(&state, &layer).unwrap(), &[1; 16 * 8]).unwrap();
    let ids =
        |rows: &[perdure_core::append::HookInsert]| rows.iter().map(|row| row.hook_id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&batch.insert_hooks), ["g"]);
    assert_eq!(batch.delete_hooks[0].hook_id, "h");
    assert_eq!(batch.delete_hooks.len(), 1);
    assert_eq!(batch.delete_wakeups[0].subject_id, "w");
    assert_eq!(batch.upsert_wakeups[0].subject_id, "v");
    assert_eq!(batch.links, ["x"]);
    assert!(!batch.clears);
    assert!(!format!("{:?}", batch.insert_hooks).contains("\"t\""), "tokens stay hidden");

    let layer = stage(&state, Some(&layer), &[r#"{"type":"run_failed","error":"e"}"#]).unwrap();
    let batch = append(Reads::view(&state, &layer).unwrap(), &[1; 16 * 9]).unwrap();
    assert!(batch.clears && batch.insert_hooks.is_empty() && batch.upsert_wakeups.is_empty());
    assert_eq!((batch.row.status, batch.row.open_waits), ("failed", 0));
}

/// What a stage costs must not depend on what the run holds: its layer holds only what was staged.
#[test]
fn a_layer_holds_only_what_was_staged() {
    let steps: Vec<_> = (0..2_000)
        .map(|at| {
            format!(r#"{{"type":"step_created","step_id":"s{at}","step_name":"n","input":"{}"}}"#, "x".repeat(50))
        })
        .collect();
    let state = run_with(&steps.iter().map(String::as_str).collect::<Vec<_>>());
    let layer = stage(&state, None, &[r#"{"type":"step_started","step_id":"s7","attempt":1}"#]).unwrap();
    assert!(format!("{layer:?}").len() < 4_000, "the layer is small");
}
