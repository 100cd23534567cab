//! What the kernel refuses: one enum with stable codes, mapped one to one onto the classes of `perdure.errors`.

/// Kinds of things an id can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Step,
    Wait,
    Hook,
    Progress,
    Child,
}

impl Kind {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Wait => "wait",
            Self::Hook => "hook",
            Self::Progress => "progress",
            Self::Child => "child",
        }
    }
}

macro_rules! rules {
    ($($name:ident $code:literal),* $(,)?) => {
        /// Why an event, command or call is an invalid transition. The codes are keys of `perdure.errors.RULES`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule { $($name),* }

        impl Rule {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            pub const fn code(self) -> &'static str {
                match self { $(Self::$name => $code),* }
            }
        }
    };
}

rules! {
    FirstNotCreated "first_not_created",
    SequenceGap "sequence_gap",
    CreatedAgain "created_again",
    RunEnded "run_ended",
    RunNotPending "run_not_pending",
    CompleteWhileCancelling "complete_while_cancelling",
    RequestTwice "request_twice",
    ExhaustedMismatch "exhausted_mismatch",
    IdUsed "id_used",
    IdUnknown "id_unknown",
    StepNotPending "step_not_pending",
    StepNotRunning "step_not_running",
    StepNotOpen "step_not_open",
    AttemptMismatch "attempt_mismatch",
    RetryBeyondBudget "retry_beyond_budget",
    AttemptsLeft "attempts_left",
    RetryAfterMissing "retry_after_missing",
    RetryAfterUnexpected "retry_after_unexpected",
    WaitNotWaiting "wait_not_waiting",
    HookNotActive "hook_not_active",
    ProgressInvalid "progress_invalid",
    ChildInvalid "child_invalid",
    PolicyInvalid "policy_invalid",
    DelayOutOfRange "delay_out_of_range",
    EmptyList "empty_list",
    BlankId "blank_id",
    BlankToken "blank_token",
    IdTooLong "id_too_long",
    IdControlCharacter "id_control_character",
    NameTooLong "name_too_long",
    NameControlCharacter "name_control_character",
    NamedTwice "named_twice",
    AlreadyCancelled "already_cancelled",
    CannotDispose "cannot_dispose",
    CannotClose "cannot_close",
    NothingNew "nothing_new",
    CancelWithoutRequest "cancel_without_request",
    WaitNotDue "wait_not_due",
    NoEvents "no_events",
    StaleView "stale_view",
    EntropyLength "entropy_length",
}

/// What an invalid transition is about; fields that do not apply are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub rule: Rule,
    pub kind: Option<Kind>,
    pub id: Option<String>,
    pub sequence: Option<u64>,
    pub value: Option<String>,
}

/// A known id that came back with another definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    pub kind: Kind,
    pub id: String,
    pub part: &'static str,
    pub sequence: u64,
    pub recorded: String,
    pub now: String,
}

/// How bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not UTF-8, not JSON, or nested too deep.
    Malformed,
    /// JSON of the wrong form.
    Shape,
    /// A line of another run.
    ForeignRun,
}

impl Fault {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Shape => "shape",
            Self::ForeignRun => "foreign_run",
        }
    }
}

/// Everything the kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Serialization { fault: Fault, line: Option<usize>, detail: &'static str },
    UnsupportedVersion { version: u64, line: Option<usize> },
    InvalidWorkflow { field: &'static str },
    InvalidTransition(Transition),
    NonDeterministic(Drift),
    HookTokenConflict { token: String, hook_id: String },
    HookConflict { hook_id: String, reason: &'static str },
    PayloadTooLarge { event_key: &'static str, bytes: usize, max_bytes: usize },
    RunNotFound,
    RunTerminal,
    RunConflict { reason: &'static str },
    InvalidRunId { reason: &'static str },
}

/// Refusals are rare and large, so they travel boxed.
pub type Result<T> = std::result::Result<T, Box<Refusal>>;

impl Refusal {
    /// A refusal of `rule` that names nothing.
    pub fn rule(rule: Rule) -> Box<Self> {
        Self::about(rule, None, None, None, None)
    }

    /// A refusal of `rule` about the thing called `id`.
    pub fn of(rule: Rule, kind: Kind, id: &str) -> Box<Self> {
        Self::about(rule, Some(kind), Some(id), None, None)
    }

    /// As `of`, with the value that the rule's text shows.
    pub fn with(rule: Rule, kind: Kind, id: &str, value: impl ToString) -> Box<Self> {
        Self::about(rule, Some(kind), Some(id), None, Some(value.to_string()))
    }

    pub fn about(
        rule: Rule,
        kind: Option<Kind>,
        id: Option<&str>,
        sequence: Option<u64>,
        value: Option<String>,
    ) -> Box<Self> {
        Box::new(Self::InvalidTransition(Transition { rule, kind, id: id.map(str::to_owned), sequence, value }))
    }

    /// Bytes without lines (a command, a call, a draft) that cannot be read.
    pub fn unreadable(fault: Fault, detail: &'static str) -> Box<Self> {
        Box::new(Self::Serialization { fault, line: None, detail })
    }

    /// The same refusal, found at the event with this sequence.
    pub fn at(mut self: Box<Self>, sequence: u64) -> Box<Self> {
        if let Self::InvalidTransition(transition) = &mut *self {
            transition.sequence = Some(sequence);
        }
        self
    }

    /// The same refusal, found in this line.
    pub fn in_line(mut self: Box<Self>, number: usize) -> Box<Self> {
        if let Self::Serialization { line, .. } | Self::UnsupportedVersion { line, .. } = &mut *self {
            *line = Some(number);
        }
        self
    }
}
