//! The event catalogue: 21 kinds of the reference and our two, as values (spec 01 §1.3).

use crate::json::{self, Cursor, Flaw, MAX_DEPTH, Read};
use crate::parts::{Child, Progress, Spec};
use crate::retry::Policy;
use crate::time::{self, Ns};
use crate::{names, object};
use std::borrow::Cow;

pub type Text<'a> = Cow<'a, str>;

/// One event. Payloads are the raw JSON spans of the line.
#[derive(Debug)]
pub enum Event<'a> {
    RunCreated { spec: Box<Spec<'a>>, input: &'a str },
    RunStarted,
    RunCompleted { output: &'a str },
    RunFailed { error: Text<'a> },
    CancellationRequested { reason: Option<Text<'a>> },
    RunCancelled { reason: Option<Text<'a>> },
    RunTimedOut { deadline: Ns, reason: Option<Text<'a>> },
    RetryExhausted { step_id: Text<'a>, attempt: u32, error: Text<'a> },
    HostShutdown { reason: Option<Text<'a>> },
    ProgressRecorded(Progress<'a>),
    ChildLinked(Child<'a>),
    StepCreated { step_id: Text<'a>, step_name: Text<'a>, input: &'a str, retry: Policy },
    StepStarted { step_id: Text<'a>, attempt: u32 },
    StepCompleted { step_id: Text<'a>, output: &'a str },
    StepRetrying { failed: Failed<'a>, retry_after: Option<Ns>, suggested: bool },
    StepFailed(Failed<'a>),
    StepNonRetryable(Failed<'a>),
    StepCancelled { step_id: Text<'a>, attempt: u32, reason: Text<'a> },
    WaitCreated { wait_id: Text<'a>, resume_at: Ns },
    WaitCompleted { wait_id: Text<'a> },
    HookCreated { hook_id: Text<'a>, token: Text<'a>, metadata: &'a str },
    HookReceived { hook_id: Text<'a>, payload: &'a str },
    HookDisposed { hook_id: Text<'a> },
}

/// What the three failure events have in common.
#[derive(Debug)]
pub struct Failed<'a> {
    pub step_id: Text<'a>,
    pub attempt: u32,
    pub error: Text<'a>,
    pub failure: Option<&'a str>,
}

/// The dot name of an event type (spec 01 §1.3), for texts.
pub fn key(kind: &str) -> &'static str {
    match kind {
        "run_created" => "flow.run.created",
        "run_started" => "flow.run.started",
        "run_completed" => "flow.run.completed",
        "run_failed" => "flow.run.failed",
        "run_cancellation_requested" => "flow.run.cancellation.requested",
        "run_cancelled" => "flow.run.cancelled",
        "run_timed_out" => "flow.run.timed_out",
        "run_retry_exhausted" => "flow.run.retry_exhausted",
        "run_host_shutdown" => "flow.run.host_shutdown",
        "run_progress_recorded" => "flow.run.progress.recorded",
        "child_operation_linked" => "flow.child.operation.linked",
        "step_created" => "flow.step.created",
        "step_started" => "flow.step.started",
        "step_completed" => "flow.step.completed",
        "step_retrying" => "flow.step.retrying",
        "step_failed" => "flow.step.failed",
        "step_non_retryable" => "flow.step.non_retryable",
        "step_cancelled" => "flow.step.cancelled",
        "wait_created" => "flow.wait.created",
        "wait_completed" => "flow.wait.completed",
        "hook_created" => "flow.hook.created",
        "hook_received" => "flow.hook.received",
        _ => "flow.hook.disposed",
    }
}

/// Reads an event object at the cursor whose members are those that we and the reference write, in their order.
#[inline]
pub fn read_in_order<'a>(cursor: &mut Cursor<'a>, room: u32, last: &mut LastPolicy<'a>) -> Read<Event<'a>> {
    if !cursor.literal("{\"type\":") {
        return Err(NOT_OURS);
    }
    let name = cursor.string()?;
    let mut fields = Fields { cursor: *cursor, room, in_order: true, last };
    let event = by_type(name, &mut fields);
    *cursor = fields.cursor;
    event
}

const NOT_OURS: Flaw = Flaw("a member that is not ours, or another order");

/// Reads an event object at the cursor, its members in any order: `type` is looked up before the fields are read. `room` is
/// how deep it may nest.
pub fn read<'a>(cursor: &mut Cursor<'a>, room: u32) -> Read<Event<'a>> {
    let mut ahead = *cursor;
    let [kind] = ahead.members(&names!["type"], room)?;
    let kind = json::text(kind.ok_or(Flaw("type is missing"))?)?;
    let mut fields = Fields { cursor: *cursor, room, in_order: false, last: &mut LastPolicy::default() };
    let event = by_type(&kind, &mut fields)?;
    *cursor = fields.cursor;
    Ok(event)
}

/// The members of an event object still to be read: from its brace, or in their order from the comma after `type`.
struct Fields<'a, 'l> {
    cursor: Cursor<'a>,
    room: u32,
    in_order: bool,
    last: &'l mut LastPolicy<'a>,
}

/// The retry policy that was read last: the steps of a run mostly share one, and comparing costs less than reading.
#[derive(Debug, Default)]
pub struct LastPolicy<'a> {
    /// A whole object, so that where it stands nothing else can be read; empty at first.
    text: &'a str,
    policy: Policy,
}

const RETRY: &str = ",\"retry\":";

impl<'a> Fields<'a, '_> {
    /// The next member's value, if it has this name.
    #[inline(always)]
    fn member(&mut self, name: &'static str) -> Read<Option<&'a str>> {
        let last = self.last.text;
        if name != RETRY || last.is_empty() {
            return self.cursor.member(name, self.room.saturating_sub(1));
        }
        let mut ahead = self.cursor;
        if ahead.literal(RETRY) && ahead.literal(last) {
            self.cursor = ahead;
            return Ok(Some(last));
        }
        self.cursor.member(name, self.room.saturating_sub(1))
    }

    #[inline]
    fn policy(&mut self, span: &'a str) -> Read<Policy> {
        if span != self.last.text {
            *self.last = LastPolicy { text: span, policy: Policy::read(span)? };
        }
        Ok(self.last.policy)
    }
}

/// The members with these names, and `type`, which nobody needs here but which has to be known.
macro_rules! fields {
    ($fields:expr, $($name:literal),*) => {
        if $fields.in_order {
            let found = [$($fields.member(concat!(",\"", $name, "\":"))?,)* None];
            if !$fields.cursor.literal("}") {
                return Err(NOT_OURS);
            }
            found
        } else {
            $fields.cursor.members(&names![$($name,)* "type"], $fields.room)?
        }
    };
}

#[inline]
fn by_type<'a>(kind: &str, fields: &mut Fields<'a, '_>) -> Read<Event<'a>> {
    match kind.as_bytes() {
        [b's', b't', b'e', b'p', ..] => step_event(kind, fields),
        [b'r', b'u', b'n', ..] => run_event(kind, fields),
        _ => other_event(kind, fields),
    }
}

#[inline]
fn step_event<'a>(kind: &str, fields: &mut Fields<'a, '_>) -> Read<Event<'a>> {
    Ok(match kind {
        "step_started" => {
            let [step_id, attempt, _] = fields!(fields, "step_id", "attempt");
            Event::StepStarted { step_id: text(step_id)?, attempt: number(attempt)? }
        }
        "step_completed" => {
            let [step_id, output, _] = fields!(fields, "step_id", "output");
            Event::StepCompleted { step_id: text(step_id)?, output: needed(output)? }
        }
        "step_created" => {
            let [step_id, step_name, input, retry, _] = fields!(fields, "step_id", "step_name", "input", "retry");
            let retry = retry.map(|span| fields.policy(span)).transpose()?.unwrap_or_default();
            Event::StepCreated { step_id: text(step_id)?, step_name: text(step_name)?, input: needed(input)?, retry }
        }
        "step_retrying" => {
            let [step_id, attempt, error, retry_after, suggested, failure, _] =
                fields!(fields, "step_id", "attempt", "error", "retry_after", "suggested_delay_ms", "failure");
            Event::StepRetrying {
                failed: failed(step_id, attempt, error, failure)?,
                retry_after: given(retry_after).map(instant).transpose()?,
                suggested: given(suggested).map(json::unsigned).transpose()?.is_some(),
            }
        }
        "step_failed" | "step_non_retryable" => {
            let [step_id, attempt, error, failure, _] = fields!(fields, "step_id", "attempt", "error", "failure");
            let failed = failed(step_id, attempt, error, failure)?;
            if kind == "step_failed" { Event::StepFailed(failed) } else { Event::StepNonRetryable(failed) }
        }
        "step_cancelled" => {
            let [step_id, attempt, reason, _] = fields!(fields, "step_id", "attempt", "reason");
            Event::StepCancelled { step_id: text(step_id)?, attempt: number(attempt)?, reason: text(reason)? }
        }
        _ => return Err(UNKNOWN),
    })
}

const UNKNOWN: Flaw = Flaw("an unknown event type");

fn run_event<'a>(kind: &str, fields: &mut Fields<'a, '_>) -> Read<Event<'a>> {
    Ok(match kind {
        "run_created" => {
            let [spec, input, _] = fields!(fields, "spec", "input");
            Event::RunCreated { spec: Box::new(Spec::read(needed(spec)?)?), input: needed(input)? }
        }
        "run_started" => {
            let [_] = fields!(fields,);
            Event::RunStarted
        }
        "run_completed" => {
            let [output, _] = fields!(fields, "output");
            Event::RunCompleted { output: needed(output)? }
        }
        "run_failed" => {
            let [error, _] = fields!(fields, "error");
            Event::RunFailed { error: text(error)? }
        }
        "run_cancellation_requested" => {
            let [request, _] = fields!(fields, "request");
            let [reason] = object!(needed(request)?, "reason")?;
            Event::CancellationRequested { reason: optional_text(reason)? }
        }
        "run_cancelled" => {
            let [reason, _] = fields!(fields, "reason");
            Event::RunCancelled { reason: optional_text(reason)? }
        }
        "run_timed_out" => {
            let [deadline, reason, _] = fields!(fields, "deadline", "reason");
            Event::RunTimedOut { deadline: instant(needed(deadline)?)?, reason: optional_text(reason)? }
        }
        "run_retry_exhausted" => {
            let [step_id, attempt, error, _] = fields!(fields, "step_id", "attempt", "error");
            Event::RetryExhausted { step_id: text(step_id)?, attempt: number(attempt)?, error: text(error)? }
        }
        "run_host_shutdown" => {
            let [reason, _] = fields!(fields, "reason");
            Event::HostShutdown { reason: optional_text(reason)? }
        }
        "run_progress_recorded" => {
            let [progress, _] = fields!(fields, "progress");
            Event::ProgressRecorded(Progress::read(needed(progress)?)?)
        }
        _ => return Err(UNKNOWN),
    })
}

fn other_event<'a>(kind: &str, fields: &mut Fields<'a, '_>) -> Read<Event<'a>> {
    Ok(match kind {
        "wait_created" => {
            let [wait_id, resume_at, _] = fields!(fields, "wait_id", "resume_at");
            Event::WaitCreated { wait_id: text(wait_id)?, resume_at: instant(needed(resume_at)?)? }
        }
        "wait_completed" => {
            let [wait_id, _] = fields!(fields, "wait_id");
            Event::WaitCompleted { wait_id: text(wait_id)? }
        }
        "hook_created" => {
            let [hook_id, token, metadata, _] = fields!(fields, "hook_id", "token", "metadata");
            Event::HookCreated { hook_id: text(hook_id)?, token: text(token)?, metadata: needed(metadata)? }
        }
        "hook_received" => {
            let [hook_id, payload, _] = fields!(fields, "hook_id", "payload");
            Event::HookReceived { hook_id: text(hook_id)?, payload: needed(payload)? }
        }
        "hook_disposed" => {
            let [hook_id, _] = fields!(fields, "hook_id");
            Event::HookDisposed { hook_id: text(hook_id)? }
        }
        "child_operation_linked" => {
            let [child, _] = fields!(fields, "child");
            Event::ChildLinked(Child::read(needed(child)?)?)
        }
        _ => return Err(UNKNOWN),
    })
}

fn failed<'a>(
    step_id: Option<&'a str>,
    attempt: Option<&'a str>,
    error: Option<&'a str>,
    failure: Option<&'a str>,
) -> Read<Failed<'a>> {
    let failure = given(failure).map(failure_object).transpose()?;
    Ok(Failed { step_id: text(step_id)?, attempt: number(attempt)?, error: text(error)?, failure })
}

/// A `failure` is any object, kept raw; only its own keys are looked at (R53).
pub fn failure_object(span: &str) -> Read<&str> {
    json::object(span, &[] as &[&str; 0]).map(|_| span)
}

/// A required value.
#[inline]
pub fn needed(value: Option<&str>) -> Read<&str> {
    value.ok_or(Flaw("a field is missing"))
}

/// An optional value: null counts as absent.
#[inline]
pub fn given(value: Option<&str>) -> Option<&str> {
    value.filter(|span| *span != "null")
}

/// A required string.
#[inline]
pub fn text(value: Option<&str>) -> Read<Text<'_>> {
    json::text(needed(value)?)
}

pub fn optional_text(value: Option<&str>) -> Read<Option<Text<'_>>> {
    given(value).map(json::text).transpose()
}

#[inline]
pub fn number(value: Option<&str>) -> Read<u32> {
    json::unsigned32(needed(value)?)
}

pub fn instant(span: &str) -> Read<Ns> {
    time::parse(&json::text(span)?)
}

/// Reads an event object that is a whole text: a draft.
pub fn read_whole(draft: &str) -> Read<Event<'_>> {
    match read_in_order(&mut Cursor::new(draft), MAX_DEPTH, &mut LastPolicy::default()) {
        Ok(event) => Ok(event),
        Err(_) => read(&mut Cursor::new(draft), MAX_DEPTH),
    }
}
