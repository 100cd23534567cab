//! The projection of a run: what its events have made of it so far, and the layer of staged events over it (spec 02, R4).

use crate::error::Kind;
use crate::retry::Policy;
use crate::table::{Detach, Ink, Row, Sheet, Span, Table, keep};
use crate::time::Ns;

/// What a run is while it is folded; "suspended" is derived when asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunStatus {
    #[default]
    Pending,
    Running,
    Cancelling,
    Completed,
    Failed,
    Cancelled,
}

impl RunStatus {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStatus {
    Pending,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl StepStatus {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStatus {
    Waiting,
    Completed,
    Cancelled,
}

impl WaitStatus {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookStatus {
    Active,
    Received,
    Disposed,
    Cancelled,
}

impl HookStatus {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Received => "received",
            Self::Disposed => "disposed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A step; `resolved` is the sequence of its resolution, 0 while it has none.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub id: Span,
    pub name: Span,
    pub input: Span,
    pub retry: Policy,
    pub status: StepStatus,
    pub non_retryable: bool,
    pub attempt: u32,
    pub output: Option<Span>,
    pub error: Option<Span>,
    pub failure: Option<Span>,
    pub retry_after: Option<Ns>,
    pub created: u64,
    pub resolved: u64,
}

impl Step {
    /// When a delayed retry is due, while one is pending.
    pub fn wakeup(&self) -> Option<Ns> {
        self.retry_after.filter(|_| self.status == StepStatus::Pending)
    }
}

impl Row for Step {
    fn id(&self) -> Span {
        self.id
    }

    fn is_open(&self) -> bool {
        matches!(self.status, StepStatus::Pending | StepStatus::Running)
    }
}

impl Detach for Step {
    fn spans(&mut self) -> impl Iterator<Item = &mut Span> {
        let now_and_then = [&mut self.output, &mut self.error, &mut self.failure];
        [&mut self.id, &mut self.name, &mut self.input].into_iter().chain(now_and_then.into_iter().flatten())
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub id: Span,
    pub status: WaitStatus,
    pub resume_at: Ns,
    pub created: u64,
    pub resolved: u64,
}

impl Wait {
    pub fn wakeup(&self) -> Option<Ns> {
        self.is_open().then_some(self.resume_at)
    }
}

impl Row for Wait {
    fn id(&self) -> Span {
        self.id
    }

    fn is_open(&self) -> bool {
        self.status == WaitStatus::Waiting
    }
}

impl Detach for Wait {
    fn spans(&mut self) -> impl Iterator<Item = &mut Span> {
        std::iter::once(&mut self.id)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Hook {
    pub id: Span,
    pub token: Span,
    pub metadata: Span,
    pub payload: Option<Span>,
    pub status: HookStatus,
    pub created: u64,
    pub resolved: u64,
}

impl Row for Hook {
    fn id(&self) -> Span {
        self.id
    }

    fn is_open(&self) -> bool {
        self.status == HookStatus::Active
    }
}

impl Detach for Hook {
    fn spans(&mut self) -> impl Iterator<Item = &mut Span> {
        [&mut self.id, &mut self.token, &mut self.metadata].into_iter().chain(&mut self.payload)
    }
}

/// A recorded fact: progress or a child operation, as its canonical object.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    pub id: Span,
    pub object: Span,
    pub link: Option<Span>,
    pub created: u64,
}

impl Row for Fact {
    fn id(&self) -> Span {
        self.id
    }

    fn is_open(&self) -> bool {
        false
    }
}

/// A recorded cancellation request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub reason: Option<Span>,
    pub at: Ns,
    pub sequence: u64,
}

/// What a resolution is about, in the order of R28.
#[derive(Clone, Copy, Debug)]
pub struct Resolution {
    pub kind: Kind,
    pub at: u32,
    pub sequence: u64,
}

/// The events that workflow code is shown again, one by one, when it is replayed (R38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    RunStarted,
    CancellationRequested,
    StepCreated,
    StepCompleted,
    StepFailed,
    StepNonRetryable,
    StepCancelled,
    WaitCreated,
    WaitCompleted,
    HookCreated,
    HookReceived,
    HookDisposed,
}

impl What {
    pub const fn creates(self) -> bool {
        matches!(self, Self::StepCreated | Self::WaitCreated | Self::HookCreated)
    }
}

/// One such event: the row it is about, and the largest timestamp of the history up to it.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub what: What,
    pub at: u32,
    pub sequence: u64,
    pub latest: Ns,
}

/// Everything about a run that is not a row of a table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    pub status: RunStatus,
    pub last_sequence: u64,
    pub last_visible: u64,
    pub created_at: Ns,
    pub updated_at: Ns,
    /// The largest timestamp so far; timestamps need not rise (R13).
    pub latest: Ns,
    pub spec: Span,
    pub name: Span,
    pub version: Span,
    pub build: Option<Span>,
    pub input: Span,
    pub output: Option<Span>,
    pub error: Option<Span>,
    pub outcome: Option<Span>,
    pub request: Option<Request>,
    pub open_waits: u32,
    pub active_hooks: u32,
    pub pending_retries: u32,
    /// The first step that failed for good under `fail_run` (R19).
    pub final_failure: Option<u32>,
}

impl Head {
    /// The status as shown: running with something to wait for is suspended.
    pub const fn shown_status(&self) -> &'static str {
        let waits = self.open_waits + self.active_hooks + self.pending_retries > 0;
        match self.status {
            RunStatus::Running if waits => "suspended",
            status => status.word(),
        }
    }
}

/// A run's committed events, folded.
#[derive(Debug, Default)]
pub struct State {
    pub(crate) run_id: String,
    pub(crate) max_event_bytes: usize,
    pub(crate) generation: u64,
    pub(crate) ink: String,
    pub(crate) head: Head,
    pub(crate) steps: Table<Step>,
    pub(crate) waits: Table<Wait>,
    pub(crate) hooks: Table<Hook>,
    pub(crate) progress: Table<Fact>,
    pub(crate) children: Table<Fact>,
    pub(crate) resolutions: Vec<Resolution>,
    pub(crate) marks: Vec<Mark>,
}

/// Staged or tail events, folded over a state that does not know of them.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(crate) generation: u64,
    pub(crate) below: usize,
    pub(crate) ink: String,
    pub(crate) head: Head,
    pub(crate) steps: Sheet<Step>,
    pub(crate) waits: Sheet<Wait>,
    pub(crate) hooks: Sheet<Hook>,
    pub(crate) progress: Sheet<Fact>,
    pub(crate) children: Sheet<Fact>,
    pub(crate) resolutions: Vec<Resolution>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) drafts: Vec<Draft>,
}

/// One staged event and the clock of its stage.
#[derive(Clone, Debug)]
pub struct Draft {
    pub(crate) json: String,
    pub(crate) clock: Ns,
}

impl State {
    /// A run without events.
    pub fn new(run_id: &str, max_event_bytes: usize) -> Self {
        Self { run_id: run_id.to_owned(), max_event_bytes, ..Self::default() }
    }

    /// Moves on to what `layer` makes of this state. The caller has checked that it was made over it.
    pub(crate) fn adopt(&mut self, layer: Layer) {
        if layer.head.last_sequence == self.head.last_sequence {
            return;
        }
        self.generation += 1;
        if self.ink.is_empty() {
            self.ink = layer.ink;
        } else {
            self.ink.push_str(&layer.ink);
        }
        let ink = Ink { below: &self.ink, above: "" };
        self.steps.adopt(layer.steps, ink);
        self.waits.adopt(layer.waits, ink);
        self.hooks.adopt(layer.hooks, ink);
        self.progress.adopt(layer.progress, ink);
        self.children.adopt(layer.children, ink);
        self.resolutions.extend(layer.resolutions);
        self.marks.extend(layer.marks);
        self.head = layer.head;
    }
}

impl Layer {
    /// Nothing staged over `state`.
    pub fn over(state: &State) -> Self {
        Self {
            generation: state.generation,
            below: state.ink.len(),
            ink: String::new(),
            head: state.head,
            steps: Sheet::over(&state.steps),
            waits: Sheet::over(&state.waits),
            hooks: Sheet::over(&state.hooks),
            progress: Sheet::over(&state.progress),
            children: Sheet::over(&state.children),
            resolutions: Vec::new(),
            marks: Vec::new(),
            drafts: Vec::new(),
        }
    }

    /// Makes room for what so many bytes of lines usually hold: a step takes three lines, and half of a line is its envelope.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.ink.reserve(bytes / 2);
        self.steps.reserve(bytes / 1_024);
    }

    #[inline]
    pub(crate) fn keep(&mut self, text: &str) -> Span {
        keep(self.below, &mut self.ink, text)
    }

    #[inline]
    pub(crate) fn ink<'a>(&'a self, state: &'a State) -> Ink<'a> {
        Ink { below: &state.ink, above: &self.ink }
    }
}
