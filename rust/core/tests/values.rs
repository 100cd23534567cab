//! Golden values: retry delays, JSON equality, instants.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::*;
use perdure_core::{equal, retry::Policy, time};

#[test]
fn retry_delays() {
    for row in rows("retry_jitter.json") {
        let number = |key: &str| row[key].to_string().parse::<u64>().unwrap();
        let policy = Policy {
            exponential: true,
            delay_ms: number("delay_ms"),
            max_delay_ms: number("max_delay_ms"),
            ..Policy::default()
        };
        let attempt = u32::try_from(number("failed_attempt")).unwrap();
        let delay = policy.delay_after(text(&row, "run_id"), text(&row, "step_id"), attempt);
        assert_eq!(delay, number("delay_ms_chosen"), "{row}");
    }
}

#[test]
fn equality() {
    for row in rows("ours/equality.jsonl") {
        let (left, right) = (text(&row, "a"), text(&row, "b"));
        let wanted = row["equal"].as_bool().unwrap();
        assert_eq!(equal::json_equal(left, right).unwrap(), wanted, "{left} and {right}");
        assert_eq!(equal::json_equal(right, left).unwrap(), wanted, "{right} and {left}");
    }
}

#[test]
fn instants_read_back_what_they_write() {
    for ns in [time::MIN, -1, 0, 1, 120_000_000, T0, T0 + 1_000, T0 + 1_500_000_000, time::MAX] {
        assert_eq!(time::parse(&time::format(ns)).unwrap(), ns);
        assert_eq!(time::parse(&time::due_key(ns)).unwrap(), ns);
        assert_eq!(time::due_key(ns).len(), 30);
    }
    assert_eq!(time::format(T0 + 120_000_000), "2026-01-01T00:00:00.120Z");
    assert_eq!(time::format(1_000), "1970-01-01T00:00:00.000001Z");
    assert_eq!(time::format(100), "1970-01-01T00:00:00.000000100Z");
}

#[test]
fn policies_are_compared_as_written() {
    let flags = [false, true];
    for (max_attempts, delay_ms, max_delay_ms) in [(3, 0, 0), (0, 1, u64::MAX), (u32::MAX, 10, 9)] {
        for (exponential, continues) in flags.into_iter().flat_map(|one| flags.map(|other| (one, other))) {
            let policy = Policy { max_attempts, delay_ms, exponential, max_delay_ms, continues };
            let written = policy.json();
            assert_eq!(Policy::read(&written).ok().unwrap(), policy);
            assert!(policy.is_written(&written));
            assert!(!policy.is_written(written.trim_end_matches('}')) && !policy.is_written(&format!("{written} ")));
            let other = Policy { max_attempts: 7, ..policy };
            assert!(!other.is_written(&written) && !policy.is_written(&other.json()));
        }
    }
}
