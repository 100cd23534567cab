//! The functions of the kernel module.

use crate::errors::raise;
use crate::run::Run;
use perdure_core::parts::Spec;
use perdure_core::retry::Policy;
use perdure_core::{Refusal, State, equal, line, text};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::sync::atomic::{AtomicUsize, Ordering};

type Projected = Result<State, Box<Refusal>>;

/// A run without events.
#[pyfunction]
pub fn new(run_id: &str, max_event_bytes: usize) -> Run {
    Run::new(State::new(run_id, max_event_bytes))
}

/// Folds lines into a run.
#[pyfunction]
pub fn project(py: Python<'_>, run_id: &str, history: &[u8], max_event_bytes: usize) -> PyResult<Run> {
    let projected = py.detach(|| perdure_core::project::project(run_id, history, max_event_bytes));
    projected.map(Run::new).map_err(|refusal| raise(py, run_id, *refusal))
}

/// Folds many histories on up to `threads` threads: a run or its refusal for each, in order.
#[pyfunction]
#[pyo3(signature = (histories, threads, max_event_bytes = 1_048_576))]
pub fn project_many(
    py: Python<'_>,
    histories: Vec<(String, PyBackedBytes)>,
    threads: usize,
    max_event_bytes: usize,
) -> PyResult<Vec<Py<PyAny>>> {
    let projected = py.detach(|| project_all(&histories, threads, max_event_bytes));
    let items = histories.iter().zip(projected);
    let item = |((run_id, _), projected): (&(String, PyBackedBytes), Projected)| match projected {
        Ok(state) => Ok(Py::new(py, Run::new(state))?.into_any()),
        Err(refusal) => Ok(raise(py, run_id, *refusal).into_value(py).into_any()),
    };
    items.map(item).collect()
}

fn project_all(histories: &[(String, PyBackedBytes)], threads: usize, max_event_bytes: usize) -> Vec<Projected> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((run_id, history)) = histories.get(at) else { return done };
            done.push((at, perdure_core::project::project(run_id, history, max_event_bytes)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let helpers = threads.min(histories.len()).saturating_sub(1);
        let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for helper in helpers {
            all.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, projected)| projected).collect()
}

/// Delay in milliseconds after `failed_attempt` failed; 0 = at once.
#[pyfunction]
pub fn retry_delay_ms(policy: &Bound<'_, PyAny>, run_id: &str, step_id: &str, failed_attempt: u32) -> PyResult<u64> {
    let backoff: String = policy.getattr("backoff")?.extract()?;
    let exponential = match backoff.as_str() {
        "fixed" => false,
        "exponential" => true,
        other => return Err(PyValueError::new_err(format!("backoff {other:?} is neither 'fixed' nor 'exponential'"))),
    };
    let policy = Policy {
        max_attempts: policy.getattr("max_attempts")?.extract()?,
        delay_ms: policy.getattr("delay_ms")?.extract()?,
        exponential,
        max_delay_ms: policy.getattr("max_delay_ms")?.extract()?,
        continues: false,
    };
    Ok(policy.delay_after(run_id, step_id, failed_attempt))
}

/// Refuses a spec that cannot be read or has a blank part.
#[pyfunction]
pub fn check_spec(py: Python<'_>, spec: &[u8]) -> PyResult<()> {
    let checked = line::utf8(spec).and_then(Spec::check);
    checked.map(drop).map_err(|refusal| raise(py, "", *refusal))
}

/// Refuses an empty run id, or one with other characters than letters, digits, `-` and `_`.
#[pyfunction]
pub fn check_run_id(py: Python<'_>, run_id: &str) -> PyResult<()> {
    match text::run_id_flaw(run_id, false) {
        Some(reason) => Err(raise(py, run_id, Refusal::InvalidRunId { reason })),
        None => Ok(()),
    }
}

/// JSON equality of spec 01 §1.7 and R29.
#[pyfunction]
pub fn json_equal(py: Python<'_>, left: &[u8], right: &[u8]) -> PyResult<bool> {
    let compare = || equal::json_equal(line::utf8(left)?, line::utf8(right)?);
    compare().map_err(|refusal| raise(py, "", *refusal))
}
