//! `Run`, `View` and `Batch`: the projection of a run, staged events over it, and what a store commits.
//!
//! Answers are taken from the locked state as Rust values and become Python objects after the lock is let go, so that no Python
//! code can run under it.

use crate::errors::{instant, poisoned, raise};
use crate::records::{Control, Decision, Hook, HookDelete, HookInsert, RunRow, Step, Wait, WakeupDelete, WakeupUpsert};
use perdure_core::append::{self, Batch as CoreBatch};
use perdure_core::state::{Mark, What};
use perdure_core::{Layer, Reads, Refusal, State, line, project};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyString};
use std::sync::{Arc, RwLock};

type Shared = Arc<RwLock<State>>;
type Found<'py> = Bound<'py, PyBytes>;

/// The projection of one run; never holds uncommitted events.
#[pyclass(frozen, module = "perdure._core")]
pub struct Run {
    state: Shared,
}

/// A read-only overlay of uncommitted drafts on a `Run`.
#[pyclass(frozen, module = "perdure._core")]
pub struct View {
    state: Shared,
    layer: Arc<Layer>,
}

/// Envelopes at an expected sequence, with the index changes they imply.
#[pyclass(frozen, module = "perdure._core")]
pub struct Batch {
    state: Shared,
    layer: Arc<Layer>,
    batch: CoreBatch,
}

impl Run {
    pub fn new(state: State) -> Self {
        Self { state: Arc::new(RwLock::new(state)) }
    }

    fn layer(&self) -> Option<&Layer> {
        None
    }
}

impl View {
    fn layer(&self) -> Option<&Layer> {
        Some(&self.layer)
    }
}

/// Answers `ask` from the state and the layer over it.
fn answer<T>(
    py: Python<'_>,
    state: &Shared,
    layer: Option<&Layer>,
    ask: impl FnOnce(Reads<'_>) -> Result<T, Box<Refusal>>,
) -> PyResult<T> {
    let state = state.read().map_err(poisoned)?;
    let reads = match layer {
        Some(layer) => Reads::view(&state, layer),
        None => Ok(Reads::new(&state, None)),
    };
    match reads.and_then(ask) {
        Ok(value) => Ok(value),
        Err(refusal) => {
            let run_id = Reads::new(&state, None).run_id().to_owned();
            drop(state);
            Err(raise(py, &run_id, *refusal))
        }
    }
}

fn bytes<'py>(py: Python<'py>, text: &str) -> Found<'py> {
    PyBytes::new(py, text.as_bytes())
}

fn found<'py>(py: Python<'py>, text: Option<String>) -> Option<Found<'py>> {
    text.map(|text| bytes(py, &text))
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

/// Sequence, event type, id, and the largest timestamp up to there.
type Marked<'py> = (u64, &'py Bound<'py, PyString>, String, Bound<'py, PyAny>);

/// An instant, by the short way where 64 bits hold it.
fn ns(py: Python<'_>, instant: i128) -> PyResult<Bound<'_, PyAny>> {
    Ok(match i64::try_from(instant) {
        Ok(short) => short.into_pyobject(py)?.into_any(),
        Err(_) => instant.into_pyobject(py)?.into_any(),
    })
}

fn word(py: Python<'_>, what: What) -> &Bound<'_, PyString> {
    match what {
        What::RunStarted => intern!(py, "run_started"),
        What::CancellationRequested => intern!(py, "run_cancellation_requested"),
        What::StepCreated => intern!(py, "step_created"),
        What::StepCompleted => intern!(py, "step_completed"),
        What::StepFailed => intern!(py, "step_failed"),
        What::StepNonRetryable => intern!(py, "step_non_retryable"),
        What::StepCancelled => intern!(py, "step_cancelled"),
        What::WaitCreated => intern!(py, "wait_created"),
        What::WaitCompleted => intern!(py, "wait_completed"),
        What::HookCreated => intern!(py, "hook_created"),
        What::HookReceived => intern!(py, "hook_received"),
        What::HookDisposed => intern!(py, "hook_disposed"),
    }
}

fn drafts<'py>(py: Python<'py>, drafts: &[String]) -> Vec<Found<'py>> {
    drafts.iter().map(|draft| bytes(py, draft)).collect()
}

/// The methods that `Run` and `View` share (`Reads` of `perdure.kernel`), and `$own` beside them.
macro_rules! reads {
    ($class:ident { $($own:tt)* }) => {
        impl $class {
            fn ask<T>(&self, py: Python<'_>, ask: impl FnOnce(Reads<'_>) -> Result<T, Box<Refusal>>) -> PyResult<T> {
                answer(py, &self.state, self.layer(), ask)
            }

            fn get<T>(&self, py: Python<'_>, ask: impl FnOnce(Reads<'_>) -> T) -> PyResult<T> {
                self.ask(py, |reads| Ok(ask(reads)))
            }
        }

        #[pymethods]
        impl $class {
            #[getter]
            fn run_id(&self, py: Python<'_>) -> PyResult<String> {
                self.get(py, |reads| reads.run_id().to_owned())
            }

            #[getter]
            fn last_sequence(&self, py: Python<'_>) -> PyResult<u64> {
                self.get(py, |reads| reads.head().last_sequence)
            }

            #[getter]
            fn last_visible(&self, py: Python<'_>) -> PyResult<u64> {
                self.get(py, |reads| reads.head().last_visible)
            }

            #[getter]
            fn status(&self, py: Python<'_>) -> PyResult<&'static str> {
                self.get(py, |reads| reads.head().shown_status())
            }

            #[getter]
            fn terminal(&self, py: Python<'_>) -> PyResult<bool> {
                self.get(py, |reads| reads.is_terminal())
            }

            #[getter]
            fn spec<'py>(&self, py: Python<'py>) -> PyResult<Found<'py>> {
                Ok(bytes(py, &self.get(py, |reads| reads.text(reads.head().spec).to_owned())?))
            }

            #[getter]
            fn input<'py>(&self, py: Python<'py>) -> PyResult<Found<'py>> {
                Ok(bytes(py, &self.get(py, |reads| reads.text(reads.head().input).to_owned())?))
            }

            #[getter]
            fn build_id(&self, py: Python<'_>) -> PyResult<Option<String>> {
                self.get(py, |reads| owned(reads.texts(reads.head().build)))
            }

            #[getter]
            fn workflow(&self, py: Python<'_>) -> PyResult<(String, String)> {
                self.get(py, |reads| {
                    (reads.text(reads.head().name).to_owned(), reads.text(reads.head().version).to_owned())
                })
            }

            #[getter]
            fn output<'py>(&self, py: Python<'py>) -> PyResult<Option<Found<'py>>> {
                Ok(found(py, self.get(py, |reads| owned(reads.texts(reads.head().output)))?))
            }

            #[getter]
            fn error(&self, py: Python<'_>) -> PyResult<Option<String>> {
                self.get(py, |reads| owned(reads.texts(reads.head().error)))
            }

            #[getter]
            fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Option<Found<'py>>> {
                Ok(found(py, self.get(py, |reads| owned(reads.texts(reads.head().outcome)))?))
            }

            #[getter]
            fn cancellation<'py>(&self, py: Python<'py>) -> PyResult<Option<Found<'py>>> {
                Ok(found(py, self.get(py, |reads| reads.cancellation())?))
            }

            #[getter]
            fn updated_at(&self, py: Python<'_>) -> PyResult<i128> {
                self.get(py, |reads| reads.head().updated_at)
            }

            fn step(&self, py: Python<'_>, step_id: &str) -> PyResult<Option<Step>> {
                self.get(py, |reads| reads.step(step_id).map(|step| Step::of(reads, step)))
            }

            fn wait(&self, py: Python<'_>, wait_id: &str) -> PyResult<Option<Wait>> {
                self.get(py, |reads| reads.wait(wait_id).map(|wait| Wait::of(reads, wait)))
            }

            fn hook(&self, py: Python<'_>, hook_id: &str) -> PyResult<Option<Hook>> {
                self.get(py, |reads| reads.hook(hook_id).map(|hook| Hook::of(reads, hook)))
            }

            fn progress<'py>(&self, py: Python<'py>, progress_id: &str) -> PyResult<Option<Found<'py>>> {
                let object = |reads: Reads<'_>| Some(reads.text(reads.progress(progress_id)?.object).to_owned());
                Ok(found(py, self.get(py, object)?))
            }

            fn child<'py>(&self, py: Python<'py>, reference_id: &str) -> PyResult<Option<Found<'py>>> {
                let object = |reads: Reads<'_>| Some(reads.text(reads.child(reference_id)?.object).to_owned());
                Ok(found(py, self.get(py, object)?))
            }

            fn active_hooks(&self, py: Python<'_>) -> PyResult<Vec<Hook>> {
                self.get(py, |reads| reads.active_hooks().into_iter().map(|hook| Hook::of(reads, hook)).collect())
            }

            fn suspensions(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, String, Option<i128>)>> {
                self.get(py, |reads| reads.suspensions().iter().map(|s| (s.kind, s.id.to_owned(), s.due)).collect())
            }

            fn first_resolved(
                &self,
                py: Python<'_>,
                refs: Vec<(String, String)>,
            ) -> PyResult<Option<(String, String, u64)>> {
                let first = self.get(py, |reads| reads.first_resolved(&refs))?;
                Ok(first.and_then(|(at, sequence)| {
                    let (kind, id) = refs.into_iter().nth(at)?;
                    Some((kind, id, sequence))
                }))
            }

            fn timeline<'py>(&self, py: Python<'py>, after: u64, limit: usize) -> PyResult<Vec<Marked<'py>>> {
                let marks: Vec<_> = self.get(py, |reads| {
                    reads.timeline(after).take(limit).map(|(mark, id)| (mark, id.to_owned())).collect()
                })?;
                let told = |(mark, id): (Mark, String)| Ok((mark.sequence, word(py, mark.what), id, ns(py, mark.latest)?));
                marks.into_iter().map(told).collect()
            }

            #[getter]
            fn last_created(&self, py: Python<'_>) -> PyResult<u64> {
                self.get(py, |reads| reads.last_created())
            }

            fn replayed_step<'py>(
                &self,
                py: Python<'py>,
                after: u64,
                step_id: &str,
                step_name: &str,
                input: &[u8],
                retry: &[u8],
            ) -> PyResult<Option<(u64, Bound<'py, PyAny>, Found<'py>)>> {
                let (Ok(input), Ok(retry)) = (std::str::from_utf8(input), std::str::from_utf8(retry)) else {
                    return Ok(None);
                };
                let found = self.get(py, |reads| {
                    let found = reads.replayed_step(after, step_id, step_name, input, retry);
                    found.map(|(sequence, latest, output)| (sequence, latest, output.to_owned()))
                })?;
                found.map(|(sequence, latest, output)| Ok((sequence, ns(py, latest)?, bytes(py, &output)))).transpose()
            }

            fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Found<'py>> {
                let snapshot = |reads: Reads<'_>| match reads.is_empty() {
                    true => Err(Box::new(Refusal::RunNotFound)),
                    false => Ok(reads.snapshot()),
                };
                Ok(bytes(py, &self.ask(py, snapshot)?))
            }

            fn next_wakeup(
                &self,
                py: Python<'_>,
                clock: &Bound<'_, PyAny>,
                horizon: &Bound<'_, PyAny>,
            ) -> PyResult<Option<i128>> {
                let (clock, horizon) = (instant(clock)?, instant(horizon)?);
                self.get(py, |reads| reads.next_wakeup(clock, horizon))
            }

            fn due_wakeups(&self, py: Python<'_>, now: &Bound<'_, PyAny>) -> PyResult<Vec<(&'static str, String, i128)>> {
                let now = instant(now)?;
                self.get(py, |reads| reads.due_wakeups(now).iter().map(|w| (w.kind, w.id.to_owned(), w.due)).collect())
            }

            fn due_waits<'py>(&self, py: Python<'py>, now: &Bound<'_, PyAny>) -> PyResult<Vec<Found<'py>>> {
                let now = instant(now)?;
                Ok(drafts(py, &self.get(py, |reads| reads.due_wait_drafts(now))?))
            }

            fn closing<'py>(&self, py: Python<'py>) -> PyResult<Vec<Found<'py>>> {
                Ok(drafts(py, &self.get(py, |reads| reads.closing())?))
            }

            fn decide(
                &self,
                py: Python<'_>,
                command: &[u8],
                clock: &Bound<'_, PyAny>,
                horizon: &Bound<'_, PyAny>,
            ) -> PyResult<Decision> {
                let anchor = instant(clock)?.max(instant(horizon)?);
                Ok(Decision::from(self.ask(py, |reads| reads.decide(line::utf8(command)?, anchor))?))
            }

            fn starts(
                &self,
                py: Python<'_>,
                horizon: &Bound<'_, PyAny>,
                live: &Bound<'_, PyAny>,
                limit: isize,
            ) -> PyResult<Vec<(String, u32, bool)>> {
                let (horizon, limit) = (instant(horizon)?, usize::try_from(limit).unwrap_or(0));
                let live = live.try_iter()?.map(|attempt| attempt?.extract()).collect::<PyResult<Vec<(String, u64)>>>()?;
                self.get(py, |reads| {
                    let starts = reads.starts(horizon, &live, limit).into_iter();
                    starts.map(|start| (start.step_id.to_owned(), start.attempt, start.needs_event)).collect()
                })
            }

            #[allow(clippy::too_many_arguments, reason = "the seam's own arguments")]
            fn settle<'py>(
                &self,
                py: Python<'py>,
                step_id: &str,
                attempt: u64,
                outcome: &[u8],
                clock: &Bound<'_, PyAny>,
                horizon: &Bound<'_, PyAny>,
                restart: bool,
            ) -> PyResult<Vec<Found<'py>>> {
                let anchor = instant(clock)?.max(instant(horizon)?);
                let settle = |reads: Reads<'_>| reads.settle(step_id, attempt, line::utf8(outcome)?, anchor, restart);
                Ok(drafts(py, &self.ask(py, settle)?))
            }

            fn control(&self, py: Python<'_>, call: &[u8], now: &Bound<'_, PyAny>) -> PyResult<Control> {
                let now = instant(now)?;
                Ok(Control::from(self.ask(py, |reads| reads.control(line::utf8(call)?, now))?))
            }

            fn stage(&self, py: Python<'_>, drafts: Vec<PyBackedBytes>, clock: &Bound<'_, PyAny>) -> PyResult<View> {
                let clock = instant(clock)?;
                let layer = self.ask(py, |reads| {
                    let drafts = drafts.iter().map(|draft| line::utf8(draft)).collect::<Result<Vec<_>, _>>()?;
                    project::stage(reads, &drafts, clock)
                })?;
                Ok(View { state: Arc::clone(&self.state), layer: Arc::new(layer) })
            }

            $($own)*
        }
    };
}

reads!(Run {
    fn extend(&self, py: Python<'_>, tail: &[u8]) -> PyResult<()> {
        let folded = py.detach(|| {
            let mut state = self.state.write().map_err(poisoned)?;
            PyResult::Ok(project::extend(&mut state, tail))
        })?;
        folded.or_else(|refusal| self.ask(py, |_| Err(refusal)))
    }

    fn accept(&self, py: Python<'_>, batch: &Batch) -> PyResult<()> {
        if !Arc::ptr_eq(&self.state, &batch.state) {
            return self.ask(py, |_| Err(Refusal::rule(perdure_core::error::Rule::StaleView)));
        }
        let adopted = {
            let mut state = self.state.write().map_err(poisoned)?;
            append::accept(&mut state, &batch.layer)
        };
        adopted.or_else(|refusal| self.ask(py, |_| Err(refusal)))
    }
});

reads!(View {
    fn append(&self, py: Python<'_>, entropy: &[u8]) -> PyResult<Batch> {
        let batch = self.ask(py, |reads| append::append(reads, entropy))?;
        Ok(Batch { state: Arc::clone(&self.state), layer: Arc::clone(&self.layer), batch })
    }
});

fn records<'py, 'r, C, R: 'r>(py: Python<'py>, rows: &'r [R]) -> PyResult<Bound<'py, PyList>>
where
    C: From<&'r R> + IntoPyObject<'py>,
{
    PyList::new(py, rows.iter().map(C::from))
}

#[pymethods]
impl Batch {
    #[getter]
    fn run_id(&self) -> &str {
        &self.batch.run_id
    }

    #[getter]
    fn expected_sequence(&self) -> u64 {
        self.batch.expected_sequence
    }

    #[getter]
    fn first_sequence(&self) -> u64 {
        self.batch.expected_sequence.saturating_add(1)
    }

    #[getter]
    fn last_sequence(&self) -> u64 {
        self.batch.last_sequence
    }

    #[getter]
    fn lines<'py>(&self, py: Python<'py>) -> Found<'py> {
        bytes(py, &self.batch.lines)
    }

    #[getter]
    fn event_ids(&self) -> Vec<String> {
        self.batch.event_ids.clone()
    }

    #[getter]
    fn row(&self) -> RunRow {
        RunRow::from(&self.batch.row)
    }

    #[getter]
    fn changes_index(&self) -> bool {
        self.batch.changes_index()
    }

    #[getter]
    fn clear_wakeups(&self) -> bool {
        self.batch.clears
    }

    #[getter]
    fn delete_wakeups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        records::<WakeupDelete, _>(py, &self.batch.delete_wakeups)
    }

    #[getter]
    fn upsert_wakeups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        records::<WakeupUpsert, _>(py, &self.batch.upsert_wakeups)
    }

    #[getter]
    fn clear_hooks(&self) -> bool {
        self.batch.clears
    }

    #[getter]
    fn delete_hooks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        records::<HookDelete, _>(py, &self.batch.delete_hooks)
    }

    #[getter]
    fn insert_hooks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        records::<HookInsert, _>(py, &self.batch.insert_hooks)
    }

    #[getter]
    fn links(&self) -> Vec<String> {
        self.batch.links.clone()
    }
}
