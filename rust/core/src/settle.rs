//! Attempts: which steps to run, what an outcome becomes, and what a final failure still owes (R19, R25, R26, R58).

use crate::command::Outcome;
use crate::draft::{self, Draft};
use crate::error::{Refusal, Result};
use crate::reads::Reads;
use crate::retry::deadline;
use crate::state::{Step, StepStatus};
use crate::time::{self, Ns};
use std::collections::HashSet;

/// An attempt to run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start<'a> {
    pub step_id: &'a str,
    pub attempt: u32,
    /// Whether its `step_started` has to be written first.
    pub needs_event: bool,
}

impl<'a> Reads<'a> {
    /// Running steps without a live attempt, then pending ones that are due, each in the order of creation, up to the limit.
    ///
    /// A live attempt takes a slot while its step is running at that attempt.
    pub fn starts(self, horizon: Ns, live: &[(String, u64)], limit: usize) -> Vec<Start<'a>> {
        if !self.is_live() {
            return Vec::new();
        }
        let runs = |(id, attempt): &&(String, u64)| {
            let step = self.step(id);
            step.is_some_and(|step| step.status == StepStatus::Running && u64::from(step.attempt) == *attempt)
        };
        let held: HashSet<&str> = live.iter().filter(runs).map(|(id, _)| id.as_str()).collect();
        let start = |step: &Step, attempt, needs_event| Start { step_id: self.text(step.id), attempt, needs_event };
        let running = self.open_steps().filter(|(_, step)| step.status == StepStatus::Running);
        let running = running.map(|(_, step)| start(step, step.attempt, false));
        let running = running.filter(|start| !held.contains(start.step_id));
        let due = |step: &Step| step.status == StepStatus::Pending && step.retry_after.is_none_or(|due| due <= horizon);
        let pending = self.open_steps().filter(|(_, step)| due(step));
        let pending = pending.map(|(_, step)| start(step, step.attempt.saturating_add(1), true));
        running.chain(pending).take(limit.saturating_sub(held.len())).collect()
    }

    /// The events that end a run whose step failed for good under `fail_run`, or none (R19).
    pub fn closing(self) -> Vec<String> {
        let Some(cause) = self.head().final_failure.and_then(|at| self.step_row(at)).filter(|_| self.is_live()) else {
            return Vec::new();
        };
        let (cause_id, error) = (self.text(cause.id), self.texts(cause.error).unwrap_or_default());
        let reason = format!("run failed by step {cause_id}; outcome unknown");
        let open = self.by_id(self.open_steps()).into_iter().filter_map(|at| self.step_row(at));
        let mut drafts: Vec<_> = open
            .map(|step| {
                let draft = Draft::of("step_cancelled").string("step_id", self.text(step.id));
                draft.number("attempt", step.attempt).string("reason", &reason).end()
            })
            .collect();
        drafts.push(match cause.non_retryable {
            true => Draft::of("run_failed").string("error", error).end(),
            false => {
                let draft = Draft::of("run_retry_exhausted").string("step_id", cause_id);
                draft.number("attempt", cause.attempt).string("error", error).end()
            }
        });
        draft::texts(drafts)
    }

    /// The events of one attempt's outcome; none if the step no longer runs that attempt (R10). `anchor` is the later of clock and
    /// horizon; with `restart` an immediate retry starts at once.
    pub fn settle(self, step_id: &str, attempt: u64, outcome: &str, anchor: Ns, restart: bool) -> Result<Vec<String>> {
        let outcome = draft::part(outcome)?;
        let outcome = Outcome::read(&outcome)?;
        let runs = |step: &&Step| step.status == StepStatus::Running && u64::from(step.attempt) == attempt;
        let Some(step) = self.step(step_id).filter(runs).filter(|_| self.is_live()) else {
            return Ok(Vec::new());
        };
        Ok(draft::texts(match outcome {
            Outcome::Completed { output } => vec![self.completed(step_id, step, output)],
            Outcome::NonRetryable { error, failure } => {
                vec![final_failure("step_non_retryable", step_id, step, &error, failure.as_deref())]
            }
            Outcome::Failed { error, failure, .. } if step.attempt >= step.retry.budget() => {
                vec![final_failure("step_failed", step_id, step, &error, failure.as_deref())]
            }
            Outcome::Failed { error, failure, suggested_ms } => {
                let due = self.retry_at(step_id, step, suggested_ms, anchor);
                let draft = Draft::of("step_retrying").string("step_id", step_id).number("attempt", step.attempt);
                let draft = draft.string("error", &error).instant("retry_after", due);
                let suggested = suggested_ms.map(|delay| delay.to_string());
                let draft = draft.raw("suggested_delay_ms", suggested.as_deref()).raw("failure", failure.as_deref());
                let mut drafts = vec![draft.end()];
                if restart && due.is_none() {
                    drafts.push(Draft::step_started(step_id, step.attempt.saturating_add(1)));
                }
                drafts
            }
        }))
    }

    /// An output too large for one event ends the step like one that cannot be stored at all (R15).
    fn completed(self, step_id: &str, step: &Step, output: &str) -> Draft {
        let draft = Draft::of("step_completed").string("step_id", step_id).raw("output", Some(output)).end();
        match draft.check_size(self.state.max_event_bytes).map_err(|refusal| *refusal) {
            Err(Refusal::PayloadTooLarge { event_key, bytes, max_bytes }) => {
                let error =
                    format!("serialization error: {event_key} would take {bytes} bytes and {max_bytes} are allowed");
                final_failure("step_non_retryable", step_id, step, &error, None)
            }
            _ => draft,
        }
    }

    /// When the next attempt is due: null for at once, clamped to the last instant (R5).
    fn retry_at(self, step_id: &str, step: &Step, suggested_ms: Option<u64>, anchor: Ns) -> Option<Ns> {
        let delay = step.retry.delay_after(self.run_id(), step_id, step.attempt).max(suggested_ms.unwrap_or(0));
        (delay > 0).then(|| deadline(anchor, delay).unwrap_or(time::MAX))
    }
}

fn final_failure(kind: &'static str, step_id: &str, step: &Step, error: &str, failure: Option<&str>) -> Draft {
    let draft = Draft::of(kind).string("step_id", step_id).number("attempt", step.attempt);
    draft.string("error", error).raw("failure", failure).end()
}
