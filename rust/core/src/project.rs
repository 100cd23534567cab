//! The fold: one event on top of what is there, or the rule that forbids it (spec 02).

use crate::draft::{self, shape};
use crate::error::{Fault, Kind, Refusal, Result, Rule};
use crate::event::{self, Event, Failed};
use crate::line::{Envelope, Lines};
use crate::parts::{Spec, raw_member, string_member};
use crate::reads::Reads;
use crate::retry::Policy;
use crate::state::{
    Draft, Fact, Hook, HookStatus, Layer, Mark, Request, Resolution, RunStatus, State, Step, StepStatus, Wait,
    WaitStatus, What,
};
use crate::table::{Ink, Row, Span};
use crate::time::{self, Ns};

/// Folds a whole history (R61). `RunNotFound` if it is empty; bytes without any event are no history.
pub fn project(run_id: &str, history: &[u8], max_event_bytes: usize) -> Result<State> {
    if history.is_empty() {
        return Err(Box::new(Refusal::RunNotFound));
    }
    let mut state = State::new(run_id, max_event_bytes);
    extend(&mut state, history)?;
    if state.head.last_sequence == 0 {
        return Err(Refusal::unreadable(Fault::Malformed, "no line holds an event").in_line(1));
    }
    Ok(state)
}

/// Folds the lines that come next. A refused tail changes nothing.
pub fn extend(state: &mut State, tail: &[u8]) -> Result<()> {
    let run_id = state.run_id.clone();
    let mut layer = Layer::over(state);
    layer.reserve(tail.len());
    let mut lines = Lines::new(&run_id, tail);
    while let Some(applied) = lines.next(|envelope| apply(state, &mut layer, envelope)) {
        if let Err(refusal) = applied? {
            // A line further on that cannot be read comes before any rule.
            return Err(lines.flaw().unwrap_or(refusal));
        }
    }
    state.adopt(layer);
    Ok(())
}

/// What `drafts` make of the run, on top of what is staged already, stamped `clock`. All are read before any is judged.
pub fn stage(under: Reads<'_>, drafts: &[&str], clock: Ns) -> Result<Layer> {
    let state = under.state;
    let mut layer = under.layer.map_or_else(|| Layer::over(state), Layer::clone);
    let drafts: Vec<_> = drafts.iter().map(|draft| draft::part(draft)).collect();
    let mut events = Vec::with_capacity(drafts.len());
    for draft in &drafts {
        let draft = draft.as_ref().map_err(Clone::clone)?;
        events.push(shape(event::read_whole(draft))?);
    }
    for event in &events {
        let sequence = layer.head.last_sequence + 1;
        apply(state, &mut layer, Envelope { sequence, timestamp: clock, event })?;
    }
    layer.drafts.extend(drafts.into_iter().flatten().map(|json| Draft { json: json.into_owned(), clock }));
    Ok(layer)
}

/// One event, with the checks of spec 02 §2.1 in their order.
#[inline]
fn apply(state: &State, layer: &mut Layer, envelope: Envelope<'_, '_>) -> Result<()> {
    let due = layer.head.last_sequence + 1;
    if due == 1 {
        match envelope.event {
            Event::RunCreated { spec, .. } => spec.validate()?,
            _ => return Err(Refusal::rule(Rule::FirstNotCreated).at(envelope.sequence)),
        }
    }
    let latest = layer.head.latest;
    layer.head.latest = if due == 1 { envelope.timestamp } else { latest.max(envelope.timestamp) };
    let mut fold = Fold { state, layer, sequence: envelope.sequence, timestamp: envelope.timestamp };
    let judged = if envelope.sequence != due {
        Err(Refusal::about(Rule::SequenceGap, None, None, None, Some(due.to_string())))
    } else if fold.layer.head.status.is_terminal() {
        Err(Refusal::rule(Rule::RunEnded))
    } else {
        fold.event(envelope.event)
    };
    judged.map_err(|refusal| refusal.at(envelope.sequence))?;
    layer.head.last_sequence = envelope.sequence;
    layer.head.updated_at = envelope.timestamp;
    if is_visible(envelope.event) {
        layer.head.last_visible = envelope.sequence;
    }
    Ok(())
}

/// Whether the workflow is asked again because of this event (R8).
const fn is_visible(event: &Event<'_>) -> bool {
    !matches!(
        event,
        Event::StepCreated { .. }
            | Event::StepStarted { .. }
            | Event::StepRetrying { .. }
            | Event::WaitCreated { .. }
            | Event::HookCreated { .. }
            | Event::RunStarted
    )
}

struct Fold<'s> {
    state: &'s State,
    layer: &'s mut Layer,
    sequence: u64,
    timestamp: Ns,
}

impl Fold<'_> {
    #[inline]
    fn event(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::StepCreated { step_id, step_name, input, retry } => {
                self.step_created(step_id, step_name, input, *retry)
            }
            Event::StepStarted { step_id, attempt } => self.step_started(step_id, *attempt),
            Event::StepCompleted { step_id, output } => self.step_completed(step_id, output),
            Event::StepRetrying { failed, retry_after, suggested } => {
                self.step_retrying(failed, *retry_after, *suggested)
            }
            Event::StepFailed(failed) => self.step_failed(failed, false),
            Event::StepNonRetryable(failed) => self.step_failed(failed, true),
            Event::StepCancelled { step_id, attempt, reason } => self.step_cancelled(step_id, *attempt, reason),
            Event::WaitCreated { wait_id, resume_at } => self.wait_created(wait_id, *resume_at),
            Event::WaitCompleted { wait_id } => self.wait_completed(wait_id),
            Event::HookCreated { hook_id, token, metadata } => self.hook_created(hook_id, token, metadata),
            Event::HookReceived { hook_id, payload } => self.hook_resolved(hook_id, Some(payload)),
            Event::HookDisposed { hook_id } => self.hook_resolved(hook_id, None),
            other => self.run_event(other),
        }
    }

    fn run_event(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::RunCreated { spec, input } => self.run_created(spec, input),
            Event::RunStarted => self.run_started(),
            Event::RunCompleted { output } => self.run_completed(output),
            Event::RunFailed { error } => {
                self.end(RunStatus::Failed, Some(error), &outcome("failed", |out| string_member(out, "error", error)));
                Ok(())
            }
            Event::CancellationRequested { reason } => self.cancellation_requested(reason.as_deref()),
            Event::RunCancelled { reason } => {
                let outcome = outcome("cancelled", |out| reason_member(out, reason.as_deref()));
                self.end(RunStatus::Cancelled, reason.as_deref(), &outcome);
                Ok(())
            }
            Event::RunTimedOut { deadline, reason } => {
                self.timed_out(*deadline, reason.as_deref());
                Ok(())
            }
            Event::HostShutdown { reason } => {
                let outcome = outcome("host_shutdown", |out| reason_member(out, reason.as_deref()));
                self.end(RunStatus::Failed, Some(reason.as_deref().unwrap_or("host shut down")), &outcome);
                Ok(())
            }
            Event::RetryExhausted { step_id, attempt, error } => self.retry_exhausted(step_id, *attempt, error),
            Event::ProgressRecorded(progress) => {
                progress.validate()?;
                self.fact(Kind::Progress, &progress.progress_id, &progress.json(), None)
            }
            Event::ChildLinked(child) => {
                child.validate()?;
                self.fact(Kind::Child, &child.reference_id, &child.json(), child.flow_run_id.as_deref())
            }
            _ => Ok(()),
        }
    }

    // --- the run ---------------------------------------------------------------------------------------------

    fn run_created(&mut self, spec: &Spec<'_>, input: &str) -> Result<()> {
        if self.sequence != 1 {
            return Err(Refusal::rule(Rule::CreatedAgain));
        }
        let layer = &mut *self.layer;
        layer.head.spec = layer.keep(&spec.json());
        layer.head.name = layer.keep(&spec.name);
        layer.head.version = layer.keep(&spec.version);
        layer.head.build = spec.build.as_deref().map(|build| layer.keep(build));
        layer.head.input = layer.keep(input);
        layer.head.created_at = self.timestamp;
        Ok(())
    }

    fn run_started(&mut self) -> Result<()> {
        let status = self.layer.head.status;
        if status != RunStatus::Pending {
            return Err(Refusal::about(Rule::RunNotPending, None, None, None, Some(status.word().to_owned())));
        }
        self.layer.head.status = RunStatus::Running;
        self.mark(What::RunStarted, 0);
        Ok(())
    }

    fn run_completed(&mut self, output: &str) -> Result<()> {
        if self.layer.head.status == RunStatus::Cancelling {
            return Err(Refusal::rule(Rule::CompleteWhileCancelling));
        }
        self.layer.head.output = Some(self.layer.keep(output));
        self.end(RunStatus::Completed, None, &outcome("completed", |out| raw_member(out, "output", Some(output))));
        Ok(())
    }

    fn timed_out(&mut self, deadline: Ns, reason: Option<&str>) {
        let deadline = time::format(deadline);
        let outcome = outcome("timed_out", |out| {
            string_member(out, "deadline", &deadline);
            reason_member(out, reason);
        });
        let error = reason.map_or_else(|| format!("run timed out at {deadline}"), str::to_owned);
        self.end(RunStatus::Failed, Some(&error), &outcome);
    }

    fn retry_exhausted(&mut self, step_id: &str, attempt: u32, error: &str) -> Result<()> {
        let at = self.step_at(step_id)?;
        let ink = self.layer.ink(self.state);
        let differs = self.layer.steps.row(&self.state.steps, at).and_then(|step| {
            if step.status != StepStatus::Failed {
                Some("status")
            } else if step.attempt != attempt {
                Some("attempt")
            } else if step.error.map(|span| ink.text(span)) != Some(error) {
                Some("error")
            } else {
                step.retry.continues.then_some("policy")
            }
        });
        if let Some(part) = differs {
            return Err(Refusal::with(Rule::ExhaustedMismatch, Kind::Step, step_id, part));
        }
        let outcome = outcome("retry_exhausted", |out| {
            string_member(out, "step_id", step_id);
            raw_member(out, "attempt", Some(&attempt.to_string()));
            string_member(out, "error", error);
        });
        self.end(RunStatus::Failed, Some(error), &outcome);
        Ok(())
    }

    fn end(&mut self, status: RunStatus, error: Option<&str>, outcome: &str) {
        let layer = &mut *self.layer;
        layer.head.status = status;
        layer.head.error = error.map(|error| layer.keep(error));
        layer.head.outcome = Some(layer.keep(outcome));
    }

    /// Records the request and cancels all that is open, in the order of R28.
    fn cancellation_requested(&mut self, reason: Option<&str>) -> Result<()> {
        if self.layer.head.request.is_some() {
            return Err(Refusal::rule(Rule::RequestTwice));
        }
        let reason = reason.map(|reason| self.layer.keep(reason));
        self.layer.head.request = Some(Request { reason, at: self.timestamp, sequence: self.sequence });
        self.layer.head.status = RunStatus::Cancelling;
        self.mark(What::CancellationRequested, 0);
        self.cancel_open();
        let head = &mut self.layer.head;
        (head.open_waits, head.active_hooks, head.pending_retries) = (0, 0, 0);
        Ok(())
    }

    fn cancel_open(&mut self) {
        let reads = Reads::new(self.state, Some(self.layer));
        let steps = reads.by_id(reads.open_steps());
        let waits = reads.by_id(reads.open_waits());
        let hooks = reads.by_id(reads.open_hooks());
        let (state, layer, sequence) = (self.state, &mut *self.layer, self.sequence);
        for at in steps {
            if let Some(step) = layer.steps.edit(&state.steps, at) {
                (step.status, step.retry_after, step.resolved) = (StepStatus::Cancelled, None, sequence);
            }
            layer.resolutions.push(Resolution { kind: Kind::Step, at, sequence });
        }
        for at in waits {
            if let Some(wait) = layer.waits.edit(&state.waits, at) {
                (wait.status, wait.resolved) = (WaitStatus::Cancelled, sequence);
            }
            layer.resolutions.push(Resolution { kind: Kind::Wait, at, sequence });
        }
        for at in hooks {
            if let Some(hook) = layer.hooks.edit(&state.hooks, at) {
                (hook.status, hook.resolved) = (HookStatus::Cancelled, sequence);
            }
            layer.resolutions.push(Resolution { kind: Kind::Hook, at, sequence });
        }
    }

    fn fact(&mut self, kind: Kind, id: &str, object: &str, link: Option<&str>) -> Result<()> {
        let (state, layer) = (self.state, &mut *self.layer);
        let (sheet, table) = match kind {
            Kind::Progress => (&layer.progress, &state.progress),
            _ => (&layer.children, &state.children),
        };
        if sheet.find(table, layer.ink(state), id).is_some() {
            return Err(Refusal::of(Rule::IdUsed, kind, id));
        }
        let (id, object) = (layer.keep(id), layer.keep(object));
        let link = link.map(|link| layer.keep(link));
        let fact = Fact { id, object, link, created: self.sequence };
        let ink = Ink { below: &state.ink, above: &layer.ink };
        match kind {
            Kind::Progress => layer.progress.add(ink, fact),
            _ => layer.children.add(ink, fact),
        };
        Ok(())
    }

    // --- steps -----------------------------------------------------------------------------------------------

    #[inline]
    fn step_at(&self, step_id: &str) -> Result<u32> {
        let found = self.layer.steps.find(&self.state.steps, self.layer.ink(self.state), step_id);
        found.ok_or_else(|| Refusal::of(Rule::IdUnknown, Kind::Step, step_id))
    }

    #[inline]
    fn step_mut(&mut self, step_id: &str) -> Result<(u32, &mut Step)> {
        let at = self.step_at(step_id)?;
        let step = self.layer.steps.edit(&self.state.steps, at);
        step.map(|step| (at, step)).ok_or_else(|| Refusal::of(Rule::IdUnknown, Kind::Step, step_id))
    }

    #[inline]
    fn mark(&mut self, what: What, at: u32) {
        let latest = self.layer.head.latest;
        self.layer.marks.push(Mark { what, at, sequence: self.sequence, latest });
    }

    #[inline]
    fn resolved(&mut self, kind: Kind, what: What, at: u32) {
        self.layer.resolutions.push(Resolution { kind, at, sequence: self.sequence });
        self.mark(what, at);
    }

    fn step_created(&mut self, step_id: &str, step_name: &str, input: &str, retry: Policy) -> Result<()> {
        let (state, layer) = (self.state, &mut *self.layer);
        if layer.steps.find(&state.steps, layer.ink(state), step_id).is_some() {
            return Err(Refusal::of(Rule::IdUsed, Kind::Step, step_id));
        }
        retry.judge(step_id, self.timestamp)?;
        let step = Step {
            id: layer.keep(step_id),
            name: layer.keep(step_name),
            input: layer.keep(input),
            retry,
            status: StepStatus::Pending,
            non_retryable: false,
            attempt: 0,
            output: None,
            error: None,
            failure: None,
            retry_after: None,
            created: self.sequence,
            resolved: 0,
        };
        let at = layer.steps.add(Ink { below: &state.ink, above: &layer.ink }, step);
        self.mark(What::StepCreated, at);
        Ok(())
    }

    fn step_started(&mut self, step_id: &str, attempt: u32) -> Result<()> {
        let (_, step) = self.step_mut(step_id)?;
        if step.status != StepStatus::Pending {
            return Err(Refusal::with(Rule::StepNotPending, Kind::Step, step_id, step.status.word()));
        }
        let due = u64::from(step.attempt) + 1;
        if u64::from(attempt) != due {
            return Err(Refusal::with(Rule::AttemptMismatch, Kind::Step, step_id, due));
        }
        let delayed = step.retry_after.take().is_some();
        (step.status, step.attempt) = (StepStatus::Running, attempt);
        self.layer.head.pending_retries -= u32::from(delayed);
        Ok(())
    }

    fn step_completed(&mut self, step_id: &str, output: &str) -> Result<()> {
        let output = self.layer.keep(output);
        let sequence = self.sequence;
        let (at, step) = self.step_mut(step_id)?;
        running(step, step_id)?;
        (step.status, step.output, step.resolved) = (StepStatus::Completed, Some(output), sequence);
        (step.error, step.failure) = (None, None);
        self.resolved(Kind::Step, What::StepCompleted, at);
        Ok(())
    }

    fn step_retrying(&mut self, failed: &Failed<'_>, retry_after: Option<Ns>, suggested: bool) -> Result<()> {
        let (error, failure) = self.keep_failure(failed);
        let step_id = &*failed.step_id;
        let (_, step) = self.step_mut(step_id)?;
        running(step, step_id)?;
        same_attempt(step, step_id, failed.attempt)?;
        if failed.attempt >= step.retry.budget() {
            return Err(Refusal::with(Rule::RetryBeyondBudget, Kind::Step, step_id, step.retry.budget()));
        }
        match (step.retry.delay_ms, retry_after) {
            (0, Some(_)) if !suggested => return Err(Refusal::of(Rule::RetryAfterUnexpected, Kind::Step, step_id)),
            (1.., None) => return Err(Refusal::of(Rule::RetryAfterMissing, Kind::Step, step_id)),
            _ => {}
        }
        (step.status, step.retry_after, step.error) = (StepStatus::Pending, retry_after, Some(error));
        step.failure = failure.or(step.failure);
        self.layer.head.pending_retries += u32::from(retry_after.is_some());
        Ok(())
    }

    /// `step_failed` needs the budget used up, `step_non_retryable` does not.
    fn step_failed(&mut self, failed: &Failed<'_>, non_retryable: bool) -> Result<()> {
        let (error, failure) = self.keep_failure(failed);
        let (step_id, sequence) = (&*failed.step_id, self.sequence);
        let (at, step) = self.step_mut(step_id)?;
        running(step, step_id)?;
        same_attempt(step, step_id, failed.attempt)?;
        if !non_retryable && failed.attempt < step.retry.budget() {
            return Err(Refusal::with(Rule::AttemptsLeft, Kind::Step, step_id, step.retry.budget()));
        }
        (step.status, step.error, step.resolved) = (StepStatus::Failed, Some(error), sequence);
        step.failure = failure.or(step.failure);
        step.non_retryable = non_retryable;
        if !step.retry.continues {
            self.layer.head.final_failure.get_or_insert(at);
        }
        let what = if non_retryable { What::StepNonRetryable } else { What::StepFailed };
        self.resolved(Kind::Step, what, at);
        Ok(())
    }

    fn keep_failure(&mut self, failed: &Failed<'_>) -> (Span, Option<Span>) {
        let error = self.layer.keep(&failed.error);
        (error, failed.failure.map(|failure| self.layer.keep(failure)))
    }

    fn step_cancelled(&mut self, step_id: &str, attempt: u32, reason: &str) -> Result<()> {
        let reason = self.layer.keep(reason);
        let sequence = self.sequence;
        let (at, step) = self.step_mut(step_id)?;
        if !step.is_open() {
            return Err(Refusal::with(Rule::StepNotOpen, Kind::Step, step_id, step.status.word()));
        }
        same_attempt(step, step_id, attempt)?;
        let delayed = step.retry_after.take().is_some();
        (step.status, step.error, step.resolved) = (StepStatus::Cancelled, Some(reason), sequence);
        self.layer.head.pending_retries -= u32::from(delayed);
        self.resolved(Kind::Step, What::StepCancelled, at);
        Ok(())
    }

    // --- waits and hooks ---------------------------------------------------------------------------------------

    fn wait_created(&mut self, wait_id: &str, resume_at: Ns) -> Result<()> {
        let (state, layer) = (self.state, &mut *self.layer);
        if layer.waits.find(&state.waits, layer.ink(state), wait_id).is_some() {
            return Err(Refusal::of(Rule::IdUsed, Kind::Wait, wait_id));
        }
        let id = layer.keep(wait_id);
        let wait = Wait { id, status: WaitStatus::Waiting, resume_at, created: self.sequence, resolved: 0 };
        let at = layer.waits.add(Ink { below: &state.ink, above: &layer.ink }, wait);
        layer.head.open_waits += 1;
        self.mark(What::WaitCreated, at);
        Ok(())
    }

    fn wait_completed(&mut self, wait_id: &str) -> Result<()> {
        let (state, layer) = (self.state, &mut *self.layer);
        let unknown = || Refusal::of(Rule::IdUnknown, Kind::Wait, wait_id);
        let at = layer.waits.find(&state.waits, layer.ink(state), wait_id).ok_or_else(unknown)?;
        let wait = layer.waits.edit(&state.waits, at).ok_or_else(unknown)?;
        if wait.status != WaitStatus::Waiting {
            return Err(Refusal::with(Rule::WaitNotWaiting, Kind::Wait, wait_id, wait.status.word()));
        }
        (wait.status, wait.resolved) = (WaitStatus::Completed, self.sequence);
        layer.head.open_waits -= 1;
        self.resolved(Kind::Wait, What::WaitCompleted, at);
        Ok(())
    }

    fn hook_created(&mut self, hook_id: &str, token: &str, metadata: &str) -> Result<()> {
        let (state, layer) = (self.state, &mut *self.layer);
        if layer.hooks.find(&state.hooks, layer.ink(state), hook_id).is_some() {
            return Err(Refusal::of(Rule::IdUsed, Kind::Hook, hook_id));
        }
        let hook = Hook {
            id: layer.keep(hook_id),
            token: layer.keep(token),
            metadata: layer.keep(metadata),
            payload: None,
            status: HookStatus::Active,
            created: self.sequence,
            resolved: 0,
        };
        let at = layer.hooks.add(Ink { below: &state.ink, above: &layer.ink }, hook);
        layer.head.active_hooks += 1;
        self.mark(What::HookCreated, at);
        Ok(())
    }

    fn hook_resolved(&mut self, hook_id: &str, payload: Option<&str>) -> Result<()> {
        let (state, layer) = (self.state, &mut *self.layer);
        let payload = payload.map(|payload| layer.keep(payload));
        let unknown = || Refusal::of(Rule::IdUnknown, Kind::Hook, hook_id);
        let at = layer.hooks.find(&state.hooks, layer.ink(state), hook_id).ok_or_else(unknown)?;
        let hook = layer.hooks.edit(&state.hooks, at).ok_or_else(unknown)?;
        if hook.status != HookStatus::Active {
            return Err(Refusal::with(Rule::HookNotActive, Kind::Hook, hook_id, hook.status.word()));
        }
        hook.status = if payload.is_some() { HookStatus::Received } else { HookStatus::Disposed };
        (hook.payload, hook.resolved) = (payload, self.sequence);
        layer.head.active_hooks -= 1;
        let what = if payload.is_some() { What::HookReceived } else { What::HookDisposed };
        self.resolved(Kind::Hook, what, at);
        Ok(())
    }
}

#[inline]
fn running(step: &Step, step_id: &str) -> Result<()> {
    match step.status {
        StepStatus::Running => Ok(()),
        status => Err(Refusal::with(Rule::StepNotRunning, Kind::Step, step_id, status.word())),
    }
}

#[inline]
fn same_attempt(step: &Step, step_id: &str, attempt: u32) -> Result<()> {
    if step.attempt == attempt {
        return Ok(());
    }
    Err(Refusal::with(Rule::AttemptMismatch, Kind::Step, step_id, step.attempt))
}

/// A terminal outcome object (spec 06 §6.8).
fn outcome(kind: &str, rest: impl FnOnce(&mut String)) -> String {
    let mut out = String::from("{");
    string_member(&mut out, "type", kind);
    rest(&mut out);
    out.push('}');
    out
}

fn reason_member(out: &mut String, reason: Option<&str>) {
    if let Some(reason) = reason {
        string_member(out, "reason", reason);
    }
}
