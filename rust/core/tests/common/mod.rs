//! Test data and helpers shared by the test files.
#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing"
)]

use perdure_core::{Reads, State, error::Refusal, project};
use serde_json::Value;
use std::path::Path;

pub const MAX: usize = 1_048_576;

/// The rows of a file under `tests/data`.
pub fn rows(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    if name.ends_with(".jsonl") {
        return text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    }
    serde_json::from_str::<Vec<Value>>(&text).unwrap()
}

pub fn text<'v>(row: &'v Value, key: &str) -> &'v str {
    row[key].as_str().unwrap_or_else(|| panic!("{key} in {row}"))
}

pub fn lines(row: &Value) -> Vec<&str> {
    row["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect()
}

pub fn fold(run_id: &str, lines: &[&str]) -> Result<State, Box<Refusal>> {
    let history: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    project::project(run_id, history.as_bytes(), MAX)
}

pub fn snapshot(state: &State) -> String {
    Reads::new(state, None).snapshot()
}

/// The word that the recorded rows use for a refusal.
pub fn word(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Serialization { .. } | Refusal::UnsupportedVersion { .. } => "decode",
        Refusal::InvalidWorkflow { .. } => "InvalidWorkflow",
        Refusal::InvalidTransition(_) => "InvalidTransition",
        Refusal::NonDeterministic(_) => "NonDeterministic",
        Refusal::RunNotFound => "RunNotFound",
        _ => "other",
    }
}

/// A snapshot as the reference's are compared: without our two keys, default errors and wall-clock instants.
pub fn comparable(snapshot: &str) -> String {
    let mut value: Value = serde_json::from_str(snapshot).unwrap();
    let map = value.as_object_mut().unwrap();
    map.retain(|key, value| {
        let later = !OURS_T0.contains(&key.as_str());
        !(later && value.as_object().is_some_and(|map| map.is_empty())) && key != "resolutions" && key != "failures"
    });
    let outcome = &map["terminal_outcome"];
    let by_default = matches!(outcome["type"].as_str(), Some("timed_out" | "host_shutdown"));
    if by_default && outcome["reason"].is_null() {
        map.remove("error");
    }
    value.to_string()
}

const OURS_T0: [&str; 3] = ["steps", "waits", "hooks"];

/// A history of one run, each event stamped a second after the one before.
pub fn history(run_id: &str, events: &[&str]) -> String {
    let line = |(event, sequence): (&&str, i128)| {
        let stamp = perdure_core::time::format(T0 + sequence * SECOND);
        format!(
            "{{\"run_id\":\"{run_id}\",\"sequence\":{sequence},\"event_id\":\"6f0c1c3e-1111-4222-8333-{sequence:012}\",\"timestamp\":\"{stamp}\",\"event\":{event}}}\n"
        )
    };
    events.iter().zip(1..).map(line).collect()
}

pub const SPEC: &str =
    r#"{"name":"demo","version":"1","runtime":{"kind":"rust_embedded","entrypoint":"demo","export_name":"main"}}"#;

pub fn created() -> String {
    format!("{{\"type\":\"run_created\",\"spec\":{SPEC},\"input\":1}}")
}

/// A started run named `r` with these further events.
pub fn run_with(events: &[&str]) -> State {
    let created = created();
    let mut all = vec![created.as_str(), r#"{"type":"run_started"}"#];
    all.extend(events);
    project::project("r", history("r", &all).as_bytes(), MAX).unwrap()
}

/// 2026-01-01T00:00:00Z.
pub const T0: i128 = 1_767_225_600_000_000_000;
pub const SECOND: i128 = 1_000_000_000;
