//! The reading of our own layout agrees with the reading of any layout: a blank at the end of a line forces the second.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod common;

use common::*;
use perdure_core::{canonical::Reader, error::Refusal, project};

const ID: &str = "6f0c1c3e-1111-4222-8333-000000000001";

type Outcome = Result<String, Box<Refusal>>;

fn outcome(run_id: &str, history: &[u8]) -> Outcome {
    project::project(run_id, history, MAX).map(|state| snapshot(&state))
}

/// The same lines, each with a blank at its end.
fn respelt(history: &[u8]) -> Vec<u8> {
    history.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [line.trim_ascii_end(), b" \n"].concat()).collect()
}

fn agree(run_id: &str, history: &[u8]) -> Outcome {
    let (ours, any) = (outcome(run_id, history), outcome(run_id, &respelt(history)));
    assert_eq!(ours, any, "{}", String::from_utf8_lossy(history));
    ours
}

fn is_ours(line: &str) -> bool {
    Reader::new("r").read(line, |_| ()).is_some()
}

fn line(sequence: &str, event_id: &str, timestamp: &str, event: &str) -> String {
    format!(
        "{{\"run_id\":\"r\",\"sequence\":{sequence},\"event_id\":\"{event_id}\",\"timestamp\":\"{timestamp}\",\"event\":{event}}}"
    )
}

/// One run with every kind of event that does not end it, and its ends in `ENDS`.
const EVENTS: &[&str] = &[
    r#"{"type":"run_started"}"#,
    r#"{"type":"step_created","step_id":"s","step_name":"n","input":{"a":[1,-2.5e+3,true,null,{}],"é\n":[]},"retry":{"max_attempts":2,"delay_ms":5,"backoff":"exponential","max_delay_ms":9,"on_exhausted":"continue_workflow"}}"#,
    r#"{"type":"step_started","step_id":"s","attempt":1}"#,
    r#"{"type":"step_retrying","step_id":"s","attempt":1,"error":"a \"b\" \u00e9\ud83d\ude00","retry_after":"2026-01-01T00:01:00.5Z","suggested_delay_ms":7,"failure":{"message":"m","n":[0.1]}}"#,
    r#"{"type":"step_started","step_id":"s","attempt":2}"#,
    r#"{"type":"step_failed","step_id":"s","attempt":2,"error":"no"}"#,
    r#"{"type":"step_created","step_id":"t","step_name":"n","input":"","retry":{"max_attempts":2,"delay_ms":5,"backoff":"exponential","max_delay_ms":9,"on_exhausted":"continue_workflow"}}"#,
    r#"{"type":"step_started","step_id":"t","attempt":1}"#,
    r#"{"type":"step_completed","step_id":"t","output":[[],[{}],{"k":0}]}"#,
    r#"{"type":"step_created","step_id":"u","step_name":"n","input":0,"retry":{"max_attempts":1,"delay_ms":0}}"#,
    r#"{"type":"step_started","step_id":"u","attempt":1}"#,
    r#"{"type":"step_non_retryable","step_id":"u","attempt":1,"error":"e","failure":{}}"#,
    r#"{"type":"step_created","step_id":"v","step_name":"n","input":-0,"retry":{"max_attempts":1,"delay_ms":0}}"#,
    r#"{"type":"step_cancelled","step_id":"v","attempt":0,"reason":"why"}"#,
    r#"{"type":"wait_created","wait_id":"w","resume_at":"2026-01-02T00:00:00+01:00"}"#,
    r#"{"type":"wait_completed","wait_id":"w"}"#,
    r#"{"type":"hook_created","hook_id":"h","token":"t1","metadata":{"kind":"x"}}"#,
    r#"{"type":"hook_received","hook_id":"h","payload":"p"}"#,
    r#"{"type":"hook_created","hook_id":"i","token":"t2","metadata":null}"#,
    r#"{"type":"hook_disposed","hook_id":"i"}"#,
    r#"{"type":"run_progress_recorded","progress":{"progress_id":"p","completed":1,"message":"half"}}"#,
    r#"{"type":"child_operation_linked","child":{"reference_id":"c","kind":"k","operation_id":"o","metadata":{"a":1}}}"#,
    r#"{"type":"run_cancellation_requested","request":{"reason":"stop"}}"#,
];

const ENDS: &[&str] = &[
    r#"{"type":"run_completed","output":{"ok":1}}"#,
    r#"{"type":"run_failed","error":"e"}"#,
    r#"{"type":"run_cancelled","reason":null}"#,
    r#"{"type":"run_timed_out","deadline":"2026-01-02T00:00:00Z","reason":"late"}"#,
    r#"{"type":"run_host_shutdown"}"#,
    r#"{"type":"run_retry_exhausted","step_id":"s","attempt":2,"error":"no"}"#,
];

fn story(end: &str) -> String {
    let created = created();
    let mut events = vec![created.as_str()];
    events.extend(EVENTS);
    events.push(end);
    history("r", &events)
}

#[test]
fn every_kind_of_event_is_read_in_our_layout() {
    for end in ENDS {
        let story = story(end);
        assert!(story.lines().all(is_ours), "{story}");
        let read = agree("r", story.as_bytes());
        assert!(read.is_ok() || end.contains("completed") || end.contains("exhausted"), "{end}: {read:?}");
    }
}

#[test]
fn recorded_lines_agree() {
    for file in ["reference/projection.jsonl", "reference/decode.jsonl", "ours/projection.jsonl"] {
        for row in rows(file) {
            let history: String = lines(&row).iter().flat_map(|line| [line, "\n"]).collect();
            let _ = agree(text(&row, "run_id"), history.as_bytes());
        }
    }
}

/// Bytes that mean something to JSON or to a timestamp, put in place of others.
const BYTES: &[u8] = b"{}[]\",:\\/ \t\n\r0159-+.eEzZTuatfn\x00\x1f\x7f\xc3\xff";

#[test]
fn mutated_lines_agree() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % below
    };
    let mut refused = 0;
    for round in 0..2_000 {
        let mut bytes = story(ENDS[round % ENDS.len()]).into_bytes();
        for _ in 0..=draw(2) {
            let (at, byte) = (draw(bytes.len()), BYTES[draw(BYTES.len())]);
            match draw(5) {
                0 => drop(bytes.remove(at)),
                1 => bytes.insert(at, byte),
                2 => bytes.insert(at, bytes[at]),
                3 => bytes[at] ^= 1 << draw(8),
                _ => bytes[at] = byte,
            }
        }
        refused += usize::from(agree("r", &bytes).is_err());
    }
    assert!((1_000..2_000).contains(&refused), "{refused} refused");
}

#[test]
fn what_is_spelt_otherwise_is_not_ours() {
    let (at, started) = ("2026-01-01T00:00:01Z", EVENTS[0]);
    assert!(is_ours(&line("2", ID, at, started)));
    assert!(is_ours(&line("9999999999999999999", ID, "0001-01-01T00:00:00.1234567891Z", started)));
    for sequence in ["0", "02", "-1", "1.0", "1e0", "", "99999999999999999999", "\"1\""] {
        assert!(!is_ours(&line(sequence, ID, at, started)), "{sequence}");
    }
    for event_id in [
        ID.trim_start_matches('6'),
        &ID.replace('-', "0"),
        &ID.replace('f', "g"),
        &ID.replace('f', "`"),
        &ID.replace('1', "é"),
    ] {
        assert!(!is_ours(&line("2", event_id, at, started)), "{event_id}");
    }
    assert!(is_ours(&line("2", &ID.to_uppercase(), at, started)));
    let stamps = [
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:1Z",
        "2026-01-01T00:00:01.Z",
        "2026-01-01T00:00:01z",
        "2026-01-01T00:00:01+00:00",
        "2026-02-29T00:00:01Z",
        "0000-12-31T23:59:59Z",
    ];
    for stamp in stamps {
        assert!(!is_ours(&line("2", ID, stamp, started)), "{stamp}");
    }
    let events = [
        r#" {"type":"run_started"}"#,
        r#"{"type":"run_started" }"#,
        r#"{"type":"run_started","type":"run_started"}"#,
        r#"{"type":"run_started","more":1}"#,
        r#"{"type":"run_startedx"}"#,
        r#"{"type":"wait_completed","wait_id": "w"}"#,
        r#"{"wait_id":"w","type":"wait_completed"}"#,
        r#"{"type":"wait_completed","wait_id":"w","wait_id":"w"}"#,
        r#"{"type":"step_started","attempt":1,"step_id":"s"}"#,
    ];
    for event in events {
        assert!(!is_ours(&line("2", ID, at, event)), "{event}");
        let history = format!("{}\n{}\n", line("1", ID, at, &created()), line("2", ID, at, event));
        let _ = agree("r", history.as_bytes());
    }
}

#[test]
fn a_minute_is_remembered_only_with_its_own_seconds() {
    let stamps = [
        ("2026-01-01T00:00:59.999999999Z", Some(T0 + 60 * SECOND - 1)),
        ("2026-01-01T00:00:00Z", Some(T0)),
        ("2026-01-01T00:00:60Z", None),
        ("2026-01-01T00:01:01Z", Some(T0 + 61 * SECOND)),
        ("2026-01-01T00:61:01Z", None),
        ("2026-01-01T00:01:02.5Z", Some(T0 + 62 * SECOND + SECOND / 2)),
    ];
    let lines = stamps.map(|(at, _)| line("2", ID, at, EVENTS[0]));
    let mut reader = Reader::new("r");
    let read = lines.each_ref().map(|line| reader.read(line, |envelope| envelope.timestamp));
    assert_eq!(read, stamps.map(|(_, wanted)| wanted));
}

#[test]
fn nesting_has_the_same_limit_in_both_layouts() {
    for depth in [124, 125, 126, 127] {
        let input = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let event = format!(r#"{{"type":"step_created","step_id":"s","step_name":"n","input":{input}}}"#);
        let history = history("r", &[&created(), EVENTS[0], &event]);
        assert_eq!(agree("r", history.as_bytes()).is_ok(), depth <= 125, "{depth}");
    }
}

#[test]
fn a_policy_is_remembered_only_where_all_of_it_stands() {
    let step = |id: &str, retry: &str| {
        format!(r#"{{"type":"step_created","step_id":"{id}","step_name":"n","input":0,"retry":{retry}}}"#)
    };
    let policy = r#"{"max_attempts":2,"delay_ms":7}"#;
    let others = [
        r#"{"max_attempts":2,"delay_ms":70}"#,
        r#"{"max_attempts":2,"delay_ms":7}}"#,
        r#"{"max_attempts":2,"delay_ms":7},"more":1"#,
        r#"{"max_attempts":2,"delay_ms":7},"retry":{"max_attempts":2,"delay_ms":7}"#,
        r#"{"max_attempts":2,"delay_ms":7} "#,
        r#"{"max_attempts":2}"#,
        r#"{"max_attempts":2,"delay_ms":7}x"#,
    ];
    for other in others {
        let events = [created(), step("a", policy), step("b", policy), step("c", other), step("d", policy)];
        let events: Vec<_> = events.iter().map(String::as_str).collect();
        let _ = agree("r", history("r", &events).as_bytes());
    }
}
