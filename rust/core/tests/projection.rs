//! Every recorded history gives the recorded snapshot or refusal.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod common;

use common::*;
use perdure_core::equal;

fn check_rows(file: &str, exact: bool) {
    for row in rows(file) {
        let name = text(&row, "name");
        let folded = fold(text(&row, "run_id"), &lines(&row));
        let wanted = match row["ours"].as_str() {
            Some("decode") => Some("decode"),
            Some(_) => None,
            None => row["refused"].as_str(),
        };
        match (folded, wanted) {
            (Err(refusal), Some(kind)) => assert_eq!(word(&refusal), kind, "{name}: {refusal:?}"),
            (Err(refusal), None) => panic!("{name} was refused: {refusal:?}"),
            (Ok(_), Some(kind)) => panic!("{name} was accepted, not refused as {kind}"),
            (Ok(_), None) if !row["ours"].is_null() => {}
            (Ok(state), None) if exact => assert_eq!(snapshot(&state), text(&row, "snapshot"), "{name}"),
            (Ok(state), None) => same(&snapshot(&state), text(&row, "snapshot"), name),
        }
    }
}

fn same(ours: &str, theirs: &str, name: &str) {
    let (ours, theirs) = (comparable(ours), comparable(theirs));
    assert!(equal::same(&ours, &theirs), "{name}\n  ours:   {ours}\n  theirs: {theirs}");
}

#[test]
fn mutated_histories_of_the_reference() {
    check_rows("reference/projection.jsonl", false);
}

#[test]
fn odd_lines_of_the_reference() {
    check_rows("reference/decode.jsonl", false);
}

#[test]
fn our_own_rows() {
    check_rows("ours/projection.jsonl", true);
}

fn check_prefixes(file: &str, recordings: &[&str], exact: bool) {
    let mut checked = 0;
    for row in rows(file) {
        for recording in recordings {
            let Some(runs) = row[recording]["runs"].as_object() else { continue };
            for (run_id, run) in runs {
                let lines = lines(run);
                for (at, wanted) in run["snapshots"].as_array().unwrap().iter().enumerate() {
                    let name = format!("{} {run_id} prefix {}", text(&row, "name"), at + 1);
                    let state = fold(run_id, &lines[..=at]).unwrap_or_else(|refusal| panic!("{name}: {refusal:?}"));
                    match exact {
                        true => assert_eq!(snapshot(&state), wanted.as_str().unwrap(), "{name}"),
                        false => same(&snapshot(&state), wanted.as_str().unwrap(), &name),
                    }
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 100, "only {checked} prefixes in {file}");
}

#[test]
fn every_prefix_recorded_of_the_reference() {
    check_prefixes("reference/cases.jsonl", &["recorded", "recorded_older"], false);
}

#[test]
fn every_prefix_of_our_own_cases() {
    check_prefixes("ours/cases.jsonl", &["recorded"], true);
}

#[test]
fn invalid_utf8_is_refused_in_its_line() {
    let mut bytes = history("r", &[&created(), r#"{"type":"run_started"}"#]).into_bytes();
    let place = bytes.len() - 3;
    bytes[place] = 0xff;
    let refusal = perdure_core::project::project("r", &bytes, MAX).unwrap_err();
    let wanted = perdure_core::Refusal::Serialization {
        fault: perdure_core::error::Fault::Malformed,
        line: Some(2),
        detail: "not UTF-8",
    };
    assert_eq!(*refusal, wanted);
}
