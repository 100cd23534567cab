//! Host calls: the tables of spec 06 as amended by R22 to R24, R33 and R58.

use crate::command::{Call, Member};
use crate::draft::{self, Draft, shape};
use crate::equal::{same, same_spec};
use crate::error::{Kind, Refusal, Result, Rule};
use crate::json::Flaw;
use crate::parts::{Child, Progress, Spec, string_member};
use crate::reads::Reads;
use crate::state::{Hook, HookStatus, RunStatus, WaitStatus};
use crate::text::{is_blank, run_id_flaw};
use crate::time::{self, Ns};

/// What a host call does.
#[derive(Debug)]
pub struct Control {
    pub drafts: Vec<String>,
    pub drive: bool,
    pub admit: bool,
}

/// What a row of a table says.
struct Row {
    drafts: Vec<Draft>,
    drive: bool,
    admit: bool,
}

impl Row {
    const NOTHING: Self = Self { drafts: Vec::new(), drive: false, admit: false };

    /// Appends and drives as the call says; both need build admission.
    fn resolves(draft: Draft, drive: bool) -> Self {
        Self { drafts: vec![draft], drive, admit: true }
    }

    /// Appends nothing and drives if the call says so.
    const fn drives(drive: bool) -> Self {
        Self { drafts: Vec::new(), drive, admit: drive }
    }

    /// Appends without workflow code: no admission.
    fn records(draft: Option<Draft>) -> Self {
        Self { drafts: draft.into_iter().collect(), ..Self::NOTHING }
    }
}

impl<'a> Reads<'a> {
    /// Judges a host call; `now` is the clock by which direct calls see what is due.
    pub fn control(self, call: &str, now: Ns) -> Result<Control> {
        let call = draft::part(call)?;
        let call = Call::read(&call)?;
        let row = match &*call.text("op")? {
            "start" => self.start(&call),
            "drive" => self.drive(),
            "resume_wait" => self.resume_wait(&call, now),
            "resume_hook" => self.resume_hook(&call),
            "dispose_hook" => self.dispose_hook(&call),
            "request_cancellation" => self.request_cancellation(&call),
            "force_cancel" => self.force("run_cancelled", None, &call),
            "terminate_for_timeout" => self.force("run_timed_out", Some(call.instant("deadline")?), &call),
            "terminate_for_host_shutdown" => self.force("run_host_shutdown", None, &call),
            "record_progress" => {
                let progress = shape(Progress::read(call.raw("progress")?))?;
                self.record(&Member::Progress(progress), now)
            }
            "link_child_operation" => {
                let child = shape(Child::read(call.raw("child")?))?;
                self.record(&Member::Child(child), now)
            }
            "resume_scheduled_run" => self.resume_scheduled_run(call.instant("now")?),
            "resume_due_waits" => self.resume_due_waits(call.instant("now")?),
            "resume_due_retries" => self.resume_due_retries(call.instant("now")?),
            _ => shape(Err(Flaw("an unknown op"))),
        }?;
        for draft in &row.drafts {
            draft.check_size(self.state.max_event_bytes)?;
        }
        Ok(Control { drafts: draft::texts(row.drafts), drive: row.drive, admit: row.admit })
    }

    fn known(self) -> Result<()> {
        if self.is_empty() { Err(Box::new(Refusal::RunNotFound)) } else { Ok(()) }
    }

    /// What a pending run still lacks before it can be driven.
    fn repair(self) -> Vec<Draft> {
        match self.head().status {
            RunStatus::Pending => vec![Draft::of("run_started").end()],
            _ => Vec::new(),
        }
    }

    fn start(self, call: &Call<'_>) -> Result<Row> {
        let spec = shape(Spec::read(call.raw("spec")?))?;
        let (input, drive) = (call.raw("input")?, call.flag("drive", true)?);
        spec.validate()?;
        if let Some(reason) = run_id_flaw(self.run_id(), self.is_empty()) {
            return Err(Box::new(Refusal::InvalidRunId { reason }));
        }
        let spec = spec.json();
        if self.is_empty() {
            let created = Draft::of("run_created").raw("spec", Some(&spec)).raw("input", Some(input)).end();
            let mut drafts = vec![created];
            if drive {
                drafts.append(&mut self.repair());
            }
            return Ok(Row { drafts, drive, admit: true });
        }
        if !same_spec(self.text(self.head().spec), &spec) {
            return Err(Box::new(Refusal::RunConflict { reason: "spec" }));
        }
        if !same(self.text(self.head().input), input) {
            return Err(Box::new(Refusal::RunConflict { reason: "input" }));
        }
        if drive { self.drive() } else { Ok(Row::NOTHING) }
    }

    fn drive(self) -> Result<Row> {
        self.known()?;
        if self.is_terminal() {
            return Ok(Row::NOTHING);
        }
        Ok(Row { drafts: self.repair(), ..Row::drives(true) })
    }

    fn resume_wait(self, call: &Call<'_>, now: Ns) -> Result<Row> {
        let (wait_id, early, drive) = (call.text("wait_id")?, call.flag("early", false)?, call.flag("drive", true)?);
        not_blank(Kind::Wait, &wait_id)?;
        self.known()?;
        let wait = self.wait(&wait_id).ok_or_else(|| self.unknown(Kind::Wait, &wait_id))?;
        if self.is_terminal() {
            return Ok(Row::NOTHING);
        }
        if wait.status != WaitStatus::Waiting {
            return Ok(Row::drives(drive));
        }
        if wait.resume_at > now && !early {
            return Err(Refusal::with(Rule::WaitNotDue, Kind::Wait, &wait_id, time::format(wait.resume_at)));
        }
        Ok(Row::resolves(Draft::wait_completed(&wait_id), drive))
    }

    /// An id that the run does not have: illegal on an open run, too late on one that ended.
    fn unknown(self, kind: Kind, id: &str) -> Box<Refusal> {
        if self.is_terminal() { Box::new(Refusal::RunTerminal) } else { Refusal::of(Rule::IdUnknown, kind, id) }
    }

    /// The hook of a call; one that is active can only be resolved while the run is open.
    fn called_hook(self, hook_id: &str) -> Result<&'a Hook> {
        not_blank(Kind::Hook, hook_id)?;
        self.known()?;
        let hook = self.hook(hook_id).ok_or_else(|| self.unknown(Kind::Hook, hook_id))?;
        if hook.status == HookStatus::Active && self.is_terminal() {
            return Err(Box::new(Refusal::RunTerminal));
        }
        Ok(hook)
    }

    /// The same resolution again: nothing to append, and nothing to drive once the run has ended.
    fn redelivery(self, drive: bool) -> Row {
        Row::drives(drive && !self.is_terminal())
    }

    fn resume_hook(self, call: &Call<'_>) -> Result<Row> {
        let (hook_id, payload, drive) = (call.text("hook_id")?, call.raw("payload")?, call.flag("drive", true)?);
        let hook = self.called_hook(&hook_id)?;
        let reason = match hook.status {
            HookStatus::Active => {
                let draft = Draft::of("hook_received").string("hook_id", &hook_id).raw("payload", Some(payload));
                return Ok(Row::resolves(draft.end(), drive));
            }
            HookStatus::Received if same(self.texts(hook.payload).unwrap_or("null"), payload) => {
                return Ok(self.redelivery(drive));
            }
            HookStatus::Received => "payload",
            status => status.word(),
        };
        Err(Box::new(Refusal::HookConflict { hook_id: hook_id.into_owned(), reason }))
    }

    fn dispose_hook(self, call: &Call<'_>) -> Result<Row> {
        let (hook_id, drive) = (call.text("hook_id")?, call.flag("drive", true)?);
        match self.called_hook(&hook_id)?.status {
            HookStatus::Active => {
                Ok(Row::resolves(Draft::of("hook_disposed").string("hook_id", &hook_id).end(), drive))
            }
            HookStatus::Disposed => Ok(self.redelivery(drive)),
            status => Err(Box::new(Refusal::HookConflict { hook_id: hook_id.into_owned(), reason: status.word() })),
        }
    }

    fn request_cancellation(self, call: &Call<'_>) -> Result<Row> {
        let (reason, drive) = (call.reason()?, call.flag("drive", true)?);
        self.known()?;
        if self.is_terminal() {
            return Ok(Row::NOTHING);
        }
        match self.head().request {
            Some(request) if self.texts(request.reason) == reason.as_deref() => Ok(Row::drives(drive)),
            Some(_) => Err(Box::new(Refusal::RunConflict { reason: "request" })),
            None => {
                let mut request = String::from("{");
                if let Some(reason) = &reason {
                    string_member(&mut request, "reason", reason);
                }
                request.push('}');
                let draft = Draft::of("run_cancellation_requested").raw("request", Some(&request)).end();
                Ok(Row::resolves(draft, drive))
            }
        }
    }

    /// Ends the run from outside: no clean-up, no workflow code, no admission (spec 06 §6.5).
    fn force(self, kind: &'static str, deadline: Option<Ns>, call: &Call<'_>) -> Result<Row> {
        let reason = call.reason()?;
        self.known()?;
        if self.is_terminal() {
            return Ok(Row::NOTHING);
        }
        let draft = match deadline {
            Some(deadline) => Draft::of(kind).instant("deadline", Some(deadline)),
            None => Draft::of(kind),
        };
        Ok(Row::records(Some(draft.optional("reason", reason.as_deref()).end())))
    }

    fn record(self, member: &Member<'_>, now: Ns) -> Result<Row> {
        self.check_values(member)?;
        self.known()?;
        if self.is_terminal() {
            return Err(Box::new(Refusal::RunTerminal));
        }
        Ok(Row::records(self.fact(member, now)?))
    }

    fn completes_due_waits(self, now: Ns) -> Vec<Draft> {
        self.due_waits(now).into_iter().map(Draft::wait_completed).collect()
    }

    /// `wait_completed` for every wait due at `now` (R9).
    pub fn due_wait_drafts(self, now: Ns) -> Vec<String> {
        draft::texts(self.completes_due_waits(now))
    }

    fn resume_scheduled_run(self, now: Ns) -> Result<Row> {
        self.known()?;
        let drive = !self.due_wakeups(now).is_empty();
        Ok(Row { drafts: self.completes_due_waits(now), drive, admit: !self.is_terminal() })
    }

    fn resume_due_waits(self, now: Ns) -> Result<Row> {
        self.known()?;
        let drafts = self.completes_due_waits(now);
        let drive = !drafts.is_empty();
        Ok(Row { drafts, drive, admit: drive })
    }

    fn resume_due_retries(self, now: Ns) -> Result<Row> {
        self.known()?;
        Ok(Row::drives(self.due_wakeups(now).iter().any(|wakeup| wakeup.kind == "retry")))
    }
}

fn not_blank(kind: Kind, id: &str) -> Result<()> {
    if is_blank(id) { Err(Refusal::of(Rule::BlankId, kind, id)) } else { Ok(()) }
}
