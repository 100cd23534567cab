//! What a run, or a view of staged events over it, answers. Costs follow what is asked and what is open (R4, R58).

use crate::error::{Kind, Refusal, Result, Rule};
use crate::state::{Fact, Head, Hook, Layer, Mark, Resolution, RunStatus, State, Step, Wait, What};
use crate::table::{Ink, Row, Sheet, Span, Table};
use crate::time::Ns;

/// A run, with or without a layer of staged events over it.
#[derive(Clone, Copy, Debug)]
pub struct Reads<'a> {
    pub(crate) state: &'a State,
    pub(crate) layer: Option<&'a Layer>,
}

macro_rules! rows {
    ($table:ident: $row:ty, $at:ident, $find:ident, $get:ident, $open:ident, $all:ident) => {
        rows!($table: $row, $at, $find, $get, $all);

        /// The open ones in the order in which they were created.
        pub(crate) fn $open(self) -> impl Iterator<Item = (u32, &'a $row)> {
            open(&self.state.$table, self.layer.map(|layer| &layer.$table))
        }
    };
    ($table:ident: $row:ty, $at:ident, $find:ident, $get:ident, $all:ident) => {
        pub(crate) fn $at(self, id: &str) -> Option<u32> {
            match self.layer {
                Some(layer) => layer.$table.find(&self.state.$table, self.ink(), id),
                None => self.state.$table.find(self.ink(), id),
            }
        }

        pub(crate) fn $get(self, at: u32) -> Option<&'a $row> {
            match self.layer {
                Some(layer) => layer.$table.row(&self.state.$table, at),
                None => self.state.$table.row(at),
            }
        }

        pub fn $find(self, id: &str) -> Option<&'a $row> {
            self.$get(self.$at(id)?)
        }

        /// All, in the order in which they were created.
        pub(crate) fn $all(self) -> impl Iterator<Item = &'a $row> {
            all(&self.state.$table, self.layer.map(|layer| &layer.$table))
        }
    };
}

fn open<'a, T: Row>(table: &'a Table<T>, sheet: Option<&'a Sheet<T>>) -> impl Iterator<Item = (u32, &'a T)> {
    let below = table.open().filter_map(move |(at, row)| match sheet {
        Some(sheet) => Some((at, sheet.row(table, at)?)).filter(|(_, row)| row.is_open()),
        None => Some((at, row)),
    });
    let added = sheet.into_iter().flat_map(Sheet::added).filter(|(_, row)| row.is_open());
    below.chain(added)
}

fn all<'a, T: Row>(table: &'a Table<T>, sheet: Option<&'a Sheet<T>>) -> impl Iterator<Item = &'a T> {
    let below = (0_u32..).zip(table.rows()).filter_map(move |(at, row)| match sheet {
        Some(sheet) => sheet.row(table, at),
        None => Some(row),
    });
    below.chain(sheet.into_iter().flat_map(Sheet::added).map(|(_, row)| row))
}

/// Something that will wake the run up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakeup<'a> {
    /// `wait` or `retry`.
    pub kind: &'static str,
    pub id: &'a str,
    pub due: Ns,
}

/// Something that an open run waits for; hooks have no due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspension<'a> {
    pub kind: &'static str,
    pub id: &'a str,
    pub due: Option<Ns>,
}

impl<'a> Reads<'a> {
    pub const fn new(state: &'a State, layer: Option<&'a Layer>) -> Self {
        Self { state, layer }
    }

    /// The view of `layer`, unless the run has moved on since it was staged.
    pub fn view(state: &'a State, layer: &'a Layer) -> Result<Self> {
        if layer.generation == state.generation {
            return Ok(Self::new(state, Some(layer)));
        }
        Err(Refusal::rule(Rule::StaleView))
    }

    rows!(steps: Step, step_at, step, step_row, open_steps, all_steps);
    rows!(waits: Wait, wait_at, wait, wait_row, open_waits, all_waits);
    rows!(hooks: Hook, hook_at, hook, hook_row, open_hooks, all_hooks);
    rows!(progress: Fact, progress_at, progress, progress_row, all_progress);
    rows!(children: Fact, child_at, child, child_row, all_children);

    pub fn ink(self) -> Ink<'a> {
        Ink { below: &self.state.ink, above: self.layer.map_or("", |layer| &layer.ink) }
    }

    pub fn text(self, span: Span) -> &'a str {
        self.ink().text(span)
    }

    pub fn texts(self, span: Option<Span>) -> Option<&'a str> {
        self.ink().texts(span)
    }

    pub fn head(self) -> &'a Head {
        self.layer.map_or(&self.state.head, |layer| &layer.head)
    }

    pub fn run_id(self) -> &'a str {
        &self.state.run_id
    }

    pub fn is_empty(self) -> bool {
        self.head().last_sequence == 0
    }

    pub fn is_terminal(self) -> bool {
        self.head().status.is_terminal()
    }

    /// Whether the run has begun and not ended.
    pub fn is_live(self) -> bool {
        !self.is_empty() && !self.is_terminal()
    }

    pub fn is_cancelling(self) -> bool {
        self.head().status == RunStatus::Cancelling
    }

    pub(crate) fn resolutions(self) -> impl Iterator<Item = &'a Resolution> {
        self.state.resolutions.iter().chain(self.layer.into_iter().flat_map(|layer| &layer.resolutions))
    }

    /// The events past `after` that workflow code is shown when it is replayed, each with the id it is about (R38).
    pub fn timeline(self, after: u64) -> impl Iterator<Item = (Mark, &'a str)> {
        let past = |marks: &'a [Mark]| {
            let from = marks.partition_point(|mark| mark.sequence <= after);
            marks.get(from..).unwrap_or_default()
        };
        let staged = self.layer.map_or(&[][..], |layer| &layer.marks);
        past(&self.state.marks).iter().chain(past(staged)).map(move |mark| (*mark, self.marked(*mark)))
    }

    /// The sequence of the newest event that created a step, wait or hook, 0 if there is none.
    pub fn last_created(self) -> u64 {
        let staged = self.layer.map_or(&[][..], |layer| &layer.marks);
        let mut newest = staged.iter().rev().chain(self.state.marks.iter().rev());
        newest.find(|mark| mark.what.creates()).map_or(0, |mark| mark.sequence)
    }

    /// The short way of a replay: if the next two events past `after` create a step of exactly this definition and complete
    /// it, the sequence of the second, the largest timestamp up to it, and the output.
    pub fn replayed_step(
        self,
        after: u64,
        id: &str,
        name: &str,
        input: &str,
        retry: &str,
    ) -> Option<(u64, Ns, &'a str)> {
        let mut marks = self.timeline(after);
        let (created, created_id) = marks.next()?;
        let (completed, _) = marks.next()?;
        if created.what != What::StepCreated || completed.what != What::StepCompleted || created.at != completed.at {
            return None;
        }
        let step = self.step_row(created.at)?;
        let same = created_id == id && self.text(step.name) == name && self.text(step.input) == input;
        if !same || !step.retry.is_written(retry) {
            return None;
        }
        Some((completed.sequence, completed.latest, self.texts(step.output)?))
    }

    fn marked(self, mark: Mark) -> &'a str {
        let id = match mark.what {
            What::RunStarted | What::CancellationRequested => None,
            What::WaitCreated | What::WaitCompleted => self.wait_row(mark.at).map(|wait| wait.id),
            What::HookCreated | What::HookReceived | What::HookDisposed => self.hook_row(mark.at).map(|hook| hook.id),
            _ => self.step_row(mark.at).map(|step| step.id),
        };
        id.map_or("", |id| self.text(id))
    }

    /// Positions of rows in the byte order of their ids.
    pub(crate) fn by_id<T: Row + 'a>(self, rows: impl Iterator<Item = (u32, &'a T)>) -> Vec<u32> {
        let mut rows: Vec<_> = rows.map(|(at, row)| (self.text(row.id()), at)).collect();
        rows.sort_unstable();
        rows.into_iter().map(|(_, at)| at).collect()
    }

    /// Rows in the byte order of their ids.
    pub(crate) fn sorted<T: Row + 'a>(self, rows: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
        let mut rows: Vec<_> = rows.map(|row| (self.text(row.id()), row)).collect();
        rows.sort_unstable_by_key(|(id, _)| *id);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Waits, then delayed retries, each by id. Empty unless the run is open.
    pub fn wakeups(self) -> Vec<Wakeup<'a>> {
        if !self.is_live() {
            return Vec::new();
        }
        let waits =
            self.open_waits().map(|(_, wait)| Wakeup { kind: "wait", id: self.text(wait.id), due: wait.resume_at });
        let retries = self
            .open_steps()
            .filter_map(|(_, step)| Some(Wakeup { kind: "retry", id: self.text(step.id), due: step.wakeup()? }));
        let (mut wakeups, mut retries): (Vec<_>, Vec<_>) = (waits.collect(), retries.collect());
        wakeups.sort_unstable_by_key(|wakeup| wakeup.id);
        retries.sort_unstable_by_key(|wakeup| wakeup.id);
        wakeups.append(&mut retries);
        wakeups
    }

    pub fn due_wakeups(self, now: Ns) -> Vec<Wakeup<'a>> {
        let mut wakeups = self.wakeups();
        wakeups.retain(|wakeup| wakeup.due <= now);
        wakeups
    }

    /// R9's `until`: the earliest wait later than the clock, or retry later than the horizon.
    pub fn next_wakeup(self, clock: Ns, horizon: Ns) -> Option<Ns> {
        if !self.is_live() {
            return None;
        }
        let waits = self.open_waits().map(|(_, wait)| wait.resume_at).filter(|due| *due > clock);
        let retries = self.open_steps().filter_map(|(_, step)| step.wakeup()).filter(|due| *due > horizon);
        waits.chain(retries).min()
    }

    /// Ids of the waits with `resume_at` ≤ `now`, by (resume_at, id).
    pub fn due_waits(self, now: Ns) -> Vec<&'a str> {
        if !self.is_live() {
            return Vec::new();
        }
        let due = self.open_waits().filter(|(_, wait)| wait.resume_at <= now);
        let mut due: Vec<_> = due.map(|(_, wait)| (wait.resume_at, self.text(wait.id))).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Active hooks of an open run, by id.
    pub fn active_hooks(self) -> Vec<&'a Hook> {
        if self.is_live() { self.sorted(self.open_hooks().map(|(_, hook)| hook)) } else { Vec::new() }
    }

    /// What an open run waits for: waits, hooks, retries, each by id.
    pub fn suspensions(self) -> Vec<Suspension<'a>> {
        let wakeups = self.wakeups();
        let timed = |kind| {
            let of_kind = wakeups.iter().filter(move |wakeup| wakeup.kind == kind);
            of_kind.map(|wakeup| Suspension { kind: wakeup.kind, id: wakeup.id, due: Some(wakeup.due) })
        };
        let hooks = self.active_hooks().into_iter();
        let hooks = hooks.map(|hook| Suspension { kind: "hook", id: self.text(hook.id), due: None });
        timed("wait").chain(hooks).chain(timed("retry")).collect()
    }

    /// The sequence at which the thing was resolved, if it was.
    fn resolved(self, kind: &str, id: &str) -> Option<(u64, Kind)> {
        let (sequence, kind) = match kind {
            "step" => (self.step(id)?.resolved, Kind::Step),
            "wait" => (self.wait(id)?.resolved, Kind::Wait),
            "hook" => (self.hook(id)?.resolved, Kind::Hook),
            _ => return None,
        };
        (sequence > 0).then_some((sequence, kind))
    }

    /// Of these (kind, id), the position of the one resolved first, and when. One request cancels many: then kind and id decide.
    pub fn first_resolved(self, refs: &[(String, String)]) -> Option<(usize, u64)> {
        let resolved = refs.iter().enumerate().filter_map(|(at, (kind, id))| {
            let (sequence, kind) = self.resolved(kind, id)?;
            Some(((sequence, kind, id.as_str()), at))
        });
        resolved.min().map(|((sequence, ..), at)| (at, sequence))
    }
}
