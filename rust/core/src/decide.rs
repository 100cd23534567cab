//! Judging a command: its refusals in the order of R16, then the drafts of what is new.

use crate::command::{Command, Member, Until};
use crate::draft::{self, Draft};
use crate::equal::same;
use crate::error::{Drift, Kind, Refusal, Result, Rule};
use crate::json::write_string;
use crate::parts::{Child, Progress};
use crate::reads::Reads;
use crate::retry::deadline;
use crate::state::{HookStatus, StepStatus, WaitStatus};
use crate::text::{MAX_ID_BYTES, has_control, is_blank};
use crate::time::{self, Ns};
use std::collections::{HashMap, HashSet};

/// An accepted command.
#[derive(Debug)]
pub struct Decision {
    pub drafts: Vec<String>,
    pub ends: bool,
    pub counts: bool,
    pub concurrency: Option<u64>,
}

/// What the run knows of a member before the command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    New,
    Open,
    Resolved,
}

impl Reads<'_> {
    /// Judges one command; `anchor` is the later of clock and horizon.
    pub fn decide(self, command: &str, anchor: Ns) -> Result<Decision> {
        let command = draft::part(command)?;
        let command = Command::read(&command)?;
        if self.is_empty() {
            return Err(Refusal::rule(Rule::NoEvents));
        }
        if self.is_terminal() {
            return Err(Refusal::rule(Rule::RunEnded));
        }
        let (drafts, concurrency) = match &command {
            Command::Schedule { members, concurrency } => (self.schedule(members, anchor)?, *concurrency),
            end => (vec![self.end(end)?], None),
        };
        for draft in &drafts {
            draft.check_size(self.state.max_event_bytes)?;
        }
        let ends = !matches!(command, Command::Schedule { .. });
        let counts = !drafts.is_empty() && drafts.iter().all(answers_itself);
        Ok(Decision { drafts: draft::texts(drafts), ends, counts, concurrency })
    }

    fn end(self, command: &Command<'_>) -> Result<Draft> {
        Ok(match command {
            Command::Complete { .. } if self.is_cancelling() => {
                return Err(Refusal::rule(Rule::CompleteWhileCancelling));
            }
            Command::Complete { output } => Draft::of("run_completed").raw("output", Some(output)),
            Command::Fail { error } => Draft::of("run_failed").string("error", error),
            Command::Timeout { deadline, reason } => {
                Draft::of("run_timed_out").instant("deadline", Some(*deadline)).optional("reason", reason.as_deref())
            }
            Command::Cancel | Command::Schedule { .. } => {
                let request = self.head().request.ok_or_else(|| Refusal::rule(Rule::CancelWithoutRequest))?;
                Draft::of("run_cancelled").optional("reason", self.texts(request.reason))
            }
        }
        .end())
    }

    /// Rules 2 to 8 of R16, each for all members before the next.
    fn schedule(self, members: &[Member<'_>], anchor: Ns) -> Result<Vec<Draft>> {
        if members.is_empty() {
            return Err(Refusal::rule(Rule::EmptyList));
        }
        members.iter().try_for_each(|member| self.check_values(member))?;
        let mut named = HashSet::new();
        if let Some(member) =
            members.iter().find(|member| !named.insert((std::mem::discriminant(*member), member.id())))
        {
            return Err(Refusal::of(Rule::NamedTwice, member.kind(), member.id()));
        }
        let standings = members.iter().map(|member| self.standing(member)).collect::<Result<Vec<_>>>()?;
        self.check_tokens(members.iter().zip(&standings).filter(|(_, standing)| **standing == Standing::New))?;
        if standings.iter().all(|standing| *standing == Standing::Resolved) {
            return Err(Refusal::rule(Rule::NothingNew));
        }
        let new = members.iter().zip(&standings).filter(|(_, standing)| **standing == Standing::New);
        new.map(|(member, _)| member.draft(anchor)).collect()
    }

    /// Rule 3: what is blank or too long, or says nothing sensible.
    pub(crate) fn check_values(self, member: &Member<'_>) -> Result<()> {
        let (kind, id) = (member.kind(), member.id());
        if is_blank(id) {
            return Err(Refusal::of(Rule::BlankId, kind, id));
        }
        if matches!(member, Member::Hook { token, .. } if is_blank(token)) {
            return Err(Refusal::of(Rule::BlankToken, kind, id));
        }
        if self.is_new(member) {
            limits(kind, id, id, Rule::IdTooLong, Rule::IdControlCharacter)?;
            if let Member::Step { step_name, .. } = member {
                limits(kind, id, step_name, Rule::NameTooLong, Rule::NameControlCharacter)?;
            }
        }
        match member {
            Member::Progress(progress) => progress.validate_values(),
            Member::Child(child) => child.validate_values(),
            _ => Ok(()),
        }
    }

    /// Whether the member would create its id.
    fn is_new(self, member: &Member<'_>) -> bool {
        match member {
            Member::Step { step_id, .. } => self.step(step_id).is_none(),
            Member::Wait { wait_id, .. } => self.wait(wait_id).is_none(),
            Member::Hook { hook_id, .. } => self.hook(hook_id).is_none(),
            Member::Progress(progress) => self.progress(&progress.progress_id).is_none(),
            Member::Child(child) => self.child(&child.reference_id).is_none(),
            Member::DisposeHook { .. } | Member::CloseWait { .. } => false,
        }
    }

    /// Rule 5: drift, work that was cancelled, and disposals or closings of what is not there.
    fn standing(self, member: &Member<'_>) -> Result<Standing> {
        match member {
            Member::Step { .. } => self.step_standing(member),
            Member::Wait { wait_id, until } => self.wait_standing(wait_id, *until),
            Member::Hook { hook_id, token, metadata } => self.hook_standing(hook_id, token, metadata),
            Member::Progress(progress) => self.progress_standing(progress),
            Member::Child(child) => self.child_standing(child),
            Member::DisposeHook { hook_id } => match self.hook(hook_id).map(|hook| hook.status) {
                Some(HookStatus::Active) => Ok(Standing::New),
                Some(HookStatus::Disposed) => Ok(Standing::Resolved),
                other => {
                    let value = other.map_or("unknown", HookStatus::word);
                    Err(Refusal::with(Rule::CannotDispose, Kind::Hook, hook_id, value))
                }
            },
            Member::CloseWait { wait_id } => match self.wait(wait_id).map(|wait| wait.status) {
                Some(WaitStatus::Waiting) => Ok(Standing::New),
                Some(WaitStatus::Completed) => Ok(Standing::Resolved),
                other => {
                    let value = other.map_or("unknown", WaitStatus::word);
                    Err(Refusal::with(Rule::CannotClose, Kind::Wait, wait_id, value))
                }
            },
        }
    }

    fn step_standing(self, member: &Member<'_>) -> Result<Standing> {
        let Member::Step { step_id, step_name, input, retry } = member else { return Ok(Standing::New) };
        let Some(step) = self.step(step_id) else { return Ok(Standing::New) };
        let drift = |part, recorded, now| drift(Kind::Step, step_id, part, step.created, recorded, now);
        let recorded_name = self.text(step.name);
        if recorded_name != step_name {
            return Err(drift("step_name", quoted(recorded_name), quoted(step_name)));
        }
        let recorded_input = self.text(step.input);
        if !same(recorded_input, input) {
            return Err(drift("input", recorded_input.to_owned(), (*input).to_owned()));
        }
        if step.retry != *retry {
            return Err(drift("retry", step.retry.json(), retry.json()));
        }
        match step.status {
            StepStatus::Cancelled => Err(Refusal::of(Rule::AlreadyCancelled, Kind::Step, step_id)),
            StepStatus::Completed | StepStatus::Failed => Ok(Standing::Resolved),
            StepStatus::Pending | StepStatus::Running => Ok(Standing::Open),
        }
    }

    fn wait_standing(self, wait_id: &str, until: Until) -> Result<Standing> {
        let Some(wait) = self.wait(wait_id) else { return Ok(Standing::New) };
        if let Until::At(now) = until
            && now != wait.resume_at
        {
            let (recorded, now) = (quoted(&time::format(wait.resume_at)), quoted(&time::format(now)));
            return Err(drift(Kind::Wait, wait_id, "resume_at", wait.created, recorded, now));
        }
        match wait.status {
            WaitStatus::Cancelled => Err(Refusal::of(Rule::AlreadyCancelled, Kind::Wait, wait_id)),
            WaitStatus::Completed => Ok(Standing::Resolved),
            WaitStatus::Waiting => Ok(Standing::Open),
        }
    }

    fn hook_standing(self, hook_id: &str, token: &str, metadata: &str) -> Result<Standing> {
        let Some(hook) = self.hook(hook_id) else { return Ok(Standing::New) };
        if self.text(hook.token) != token {
            let hidden = || "<redacted>".to_owned();
            return Err(drift(Kind::Hook, hook_id, "token", hook.created, hidden(), hidden()));
        }
        let recorded = self.text(hook.metadata);
        if !same(recorded, metadata) {
            return Err(drift(Kind::Hook, hook_id, "metadata", hook.created, recorded.to_owned(), metadata.to_owned()));
        }
        match hook.status {
            HookStatus::Cancelled => Err(Refusal::of(Rule::AlreadyCancelled, Kind::Hook, hook_id)),
            HookStatus::Received | HookStatus::Disposed => Ok(Standing::Resolved),
            HookStatus::Active => Ok(Standing::Open),
        }
    }

    fn progress_standing(self, progress: &Progress<'_>) -> Result<Standing> {
        let id = &progress.progress_id;
        let Some(fact) = self.progress(id) else { return Ok(Standing::New) };
        let recorded = self.text(fact.object);
        if progress.same_as(recorded) {
            return Ok(Standing::Resolved);
        }
        Err(drift(Kind::Progress, id, "progress", fact.created, recorded.to_owned(), progress.json()))
    }

    fn child_standing(self, child: &Child<'_>) -> Result<Standing> {
        let id = &child.reference_id;
        let Some(fact) = self.child(id) else { return Ok(Standing::New) };
        let recorded = self.text(fact.object);
        if child.same_as(recorded) {
            return Ok(Standing::Resolved);
        }
        Err(drift(Kind::Child, id, "child", fact.created, recorded.to_owned(), child.json()))
    }

    /// Rule 6: tokens of new hooks against those of active and new hooks, less those disposed earlier in the list.
    fn check_tokens<'m>(self, new: impl Iterator<Item = (&'m Member<'m>, &'m Standing)> + Clone) -> Result<()> {
        if !new.clone().any(|(member, _)| matches!(member, Member::Hook { .. })) {
            return Ok(());
        }
        let mut holders: HashMap<&str, Vec<&str>> = HashMap::new();
        for hook in self.active_hooks() {
            holders.entry(self.text(hook.token)).or_default().push(self.text(hook.id));
        }
        for (member, _) in new {
            match member {
                Member::Hook { hook_id, token, .. } => {
                    let held = holders.entry(token).or_default();
                    if let Some(holder) = held.first() {
                        let (token, hook_id) = (token.to_string(), (*holder).to_owned());
                        return Err(Box::new(Refusal::HookTokenConflict { token, hook_id }));
                    }
                    held.push(hook_id);
                }
                Member::DisposeHook { hook_id } => {
                    holders.values_mut().for_each(|held| held.retain(|id| id != hook_id))
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Member<'_> {
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Step { step_id: id, .. }
            | Self::Wait { wait_id: id, .. }
            | Self::Hook { hook_id: id, .. }
            | Self::DisposeHook { hook_id: id }
            | Self::CloseWait { wait_id: id } => id,
            Self::Progress(progress) => &progress.progress_id,
            Self::Child(child) => &child.reference_id,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Step { .. } => Kind::Step,
            Self::Wait { .. } | Self::CloseWait { .. } => Kind::Wait,
            Self::Hook { .. } | Self::DisposeHook { .. } => Kind::Hook,
            Self::Progress(_) => Kind::Progress,
            Self::Child(_) => Kind::Child,
        }
    }

    /// The event of a new member; rule 8 refuses one whose policy or deadline makes none.
    pub(crate) fn draft(&self, anchor: Ns) -> Result<Draft> {
        Ok(match self {
            Self::Step { step_id, step_name, input, retry } => {
                retry.judge(step_id, anchor)?;
                let draft = Draft::of("step_created").string("step_id", step_id).string("step_name", step_name);
                draft.raw("input", Some(input)).raw("retry", Some(&retry.json()))
            }
            Self::Wait { wait_id, until } => {
                let resume_at = match *until {
                    Until::At(at) => at,
                    Until::Delay(delay) => deadline(anchor, delay)
                        .ok_or_else(|| Refusal::with(Rule::DelayOutOfRange, Kind::Wait, wait_id, delay))?,
                };
                Draft::of("wait_created").string("wait_id", wait_id).instant("resume_at", Some(resume_at))
            }
            Self::Hook { hook_id, token, metadata } => Draft::of("hook_created")
                .string("hook_id", hook_id)
                .string("token", token)
                .raw("metadata", Some(metadata)),
            Self::Progress(progress) => Draft::of("run_progress_recorded").raw("progress", Some(&progress.json())),
            Self::Child(child) => Draft::of("child_operation_linked").raw("child", Some(&child.json())),
            Self::DisposeHook { hook_id } => Draft::of("hook_disposed").string("hook_id", hook_id),
            Self::CloseWait { wait_id } => return Ok(Draft::wait_completed(wait_id)),
        }
        .end())
    }
}

/// Whether the workflow answers itself with this event instead of waiting for something (R6).
fn answers_itself(draft: &Draft) -> bool {
    matches!(draft.kind, "run_progress_recorded" | "child_operation_linked" | "hook_disposed" | "wait_completed")
}

/// The limits of R34 on an id or a name.
fn limits(kind: Kind, id: &str, text: &str, too_long: Rule, control: Rule) -> Result<()> {
    if text.len() > MAX_ID_BYTES {
        return Err(Refusal::with(too_long, kind, id, text.len()));
    }
    if has_control(text) {
        return Err(Refusal::of(control, kind, id));
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    let mut out = String::new();
    write_string(&mut out, text);
    out
}

fn drift(kind: Kind, id: &str, part: &'static str, sequence: u64, recorded: String, now: String) -> Box<Refusal> {
    Box::new(Refusal::NonDeterministic(Drift { kind, id: id.to_owned(), part, sequence, recorded, now }))
}

impl Reads<'_> {
    /// A fact recorded by a host call: its event if it is new, none if it is known (spec 06 §6.6).
    pub(crate) fn fact(self, member: &Member<'_>, anchor: Ns) -> Result<Option<Draft>> {
        match self.standing(member)? {
            Standing::New => member.draft(anchor).map(Some),
            Standing::Open | Standing::Resolved => Ok(None),
        }
    }
}
