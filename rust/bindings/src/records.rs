//! Small read-only records that cross to Python.

use perdure_core::append::{
    HookDelete as CoreHookDelete, HookInsert as CoreHookInsert, RunRow as CoreRunRow, WakeupDelete as CoreWakeupDelete,
    WakeupUpsert as CoreWakeupUpsert,
};
use perdure_core::control::Control as CoreControl;
use perdure_core::decide::Decision as CoreDecision;
use perdure_core::state::{Hook as CoreHook, Step as CoreStep, Wait as CoreWait};
use perdure_core::{Reads, time};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

fn bytes<'py>(py: Python<'py>, text: &str) -> Bound<'py, PyBytes> {
    PyBytes::new(py, text.as_bytes())
}

/// A step of the run.
#[pyclass(frozen, module = "perdure._core")]
pub struct Step {
    #[pyo3(get)]
    step_id: String,
    #[pyo3(get)]
    step_name: String,
    #[pyo3(get)]
    status: &'static str,
    #[pyo3(get)]
    error: Option<String>,
    #[pyo3(get)]
    attempt: u32,
    #[pyo3(get)]
    retry_after: Option<i128>,
    #[pyo3(get)]
    created_sequence: u64,
    input: String,
    retry: String,
    output: Option<String>,
    failure: Option<String>,
    json: String,
}

impl Step {
    pub fn of(reads: Reads<'_>, step: &CoreStep) -> Self {
        let text = |span| reads.texts(span).map(str::to_owned);
        Self {
            step_id: reads.text(step.id).to_owned(),
            step_name: reads.text(step.name).to_owned(),
            status: step.status.word(),
            error: text(step.error),
            attempt: step.attempt,
            retry_after: step.retry_after,
            created_sequence: step.created,
            input: reads.text(step.input).to_owned(),
            retry: step.retry.json(),
            output: text(step.output),
            failure: text(step.failure),
            json: reads.step_json(step),
        }
    }
}

#[pymethods]
impl Step {
    #[getter]
    fn input<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.input)
    }

    #[getter]
    fn retry<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.retry)
    }

    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.output.as_deref().map(|output| bytes(py, output))
    }

    #[getter]
    fn failure<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.failure.as_deref().map(|failure| bytes(py, failure))
    }

    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.json)
    }

    fn __repr__(&self) -> String {
        format!("Step(step_id={:?}, status={:?}, attempt={})", self.step_id, self.status, self.attempt)
    }
}

/// A wait of the run.
#[pyclass(frozen, module = "perdure._core")]
pub struct Wait {
    #[pyo3(get)]
    wait_id: String,
    #[pyo3(get)]
    status: &'static str,
    #[pyo3(get)]
    resume_at: i128,
    #[pyo3(get)]
    created_sequence: u64,
    json: String,
}

impl Wait {
    pub fn of(reads: Reads<'_>, wait: &CoreWait) -> Self {
        Self {
            wait_id: reads.text(wait.id).to_owned(),
            status: wait.status.word(),
            resume_at: wait.resume_at,
            created_sequence: wait.created,
            json: reads.wait_json(wait),
        }
    }
}

#[pymethods]
impl Wait {
    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.json)
    }

    fn __repr__(&self) -> String {
        format!("Wait(wait_id={:?}, status={:?}, resume_at={})", self.wait_id, self.status, self.resume_at)
    }
}

/// A hook of the run. The repr hides the token.
#[pyclass(frozen, module = "perdure._core")]
pub struct Hook {
    #[pyo3(get)]
    hook_id: String,
    #[pyo3(get)]
    token: String,
    #[pyo3(get)]
    status: &'static str,
    #[pyo3(get)]
    created_sequence: u64,
    metadata: String,
    payload: Option<String>,
    json: String,
}

impl Hook {
    pub fn of(reads: Reads<'_>, hook: &CoreHook) -> Self {
        Self {
            hook_id: reads.text(hook.id).to_owned(),
            token: reads.text(hook.token).to_owned(),
            status: hook.status.word(),
            created_sequence: hook.created,
            metadata: reads.text(hook.metadata).to_owned(),
            payload: reads.texts(hook.payload).map(str::to_owned),
            json: reads.hook_json(hook),
        }
    }
}

#[pymethods]
impl Hook {
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.metadata)
    }

    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.payload.as_deref().map(|payload| bytes(py, payload))
    }

    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.json)
    }

    fn __repr__(&self) -> String {
        format!("Hook(hook_id={:?}, status={:?}, token=<redacted>)", self.hook_id, self.status)
    }
}

/// The run's row of the index after a batch.
#[pyclass(frozen, get_all, module = "perdure._core")]
pub struct RunRow {
    name: String,
    version: String,
    build: Option<String>,
    status: &'static str,
    terminal: bool,
    open_waits: u32,
    active_hooks: u32,
    pending_retries: u32,
    created_at: i128,
    updated_at: i128,
    ended_at: Option<i128>,
    last_sequence: u64,
}

impl From<&CoreRunRow> for RunRow {
    fn from(row: &CoreRunRow) -> Self {
        Self {
            name: row.name.clone(),
            version: row.version.clone(),
            build: row.build.clone(),
            status: row.status,
            terminal: row.terminal,
            open_waits: row.open_waits,
            active_hooks: row.active_hooks,
            pending_retries: row.pending_retries,
            created_at: row.created_at,
            updated_at: row.updated_at,
            ended_at: row.ended_at,
            last_sequence: row.last_sequence,
        }
    }
}

/// A wakeup row to write.
#[pyclass(frozen, get_all, module = "perdure._core")]
pub struct WakeupUpsert {
    kind: &'static str,
    subject_id: String,
    due: i128,
    due_key: String,
}

impl From<&CoreWakeupUpsert> for WakeupUpsert {
    fn from(row: &CoreWakeupUpsert) -> Self {
        Self { kind: row.kind, subject_id: row.subject_id.clone(), due: row.due, due_key: time::due_key(row.due) }
    }
}

/// A wakeup row to delete.
#[pyclass(frozen, get_all, module = "perdure._core")]
pub struct WakeupDelete {
    kind: &'static str,
    subject_id: String,
}

impl From<&CoreWakeupDelete> for WakeupDelete {
    fn from(row: &CoreWakeupDelete) -> Self {
        Self { kind: row.kind, subject_id: row.subject_id.clone() }
    }
}

/// An active hook's row to write. The repr hides token and hash.
#[pyclass(frozen, module = "perdure._core")]
pub struct HookInsert(CoreHookInsert);

impl From<&CoreHookInsert> for HookInsert {
    fn from(row: &CoreHookInsert) -> Self {
        Self(row.clone())
    }
}

#[pymethods]
impl HookInsert {
    #[getter]
    fn hook_id(&self) -> &str {
        &self.0.hook_id
    }

    #[getter]
    fn token(&self) -> &str {
        &self.0.token
    }

    #[getter]
    fn token_hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.token_hash)
    }

    #[getter]
    fn sequence(&self) -> u64 {
        self.0.sequence
    }

    fn __repr__(&self) -> String {
        format!("HookInsert(hook_id={:?}, sequence={})", self.0.hook_id, self.0.sequence)
    }
}

/// An active hook's row to delete.
#[pyclass(frozen, module = "perdure._core")]
pub struct HookDelete(CoreHookDelete);

impl From<&CoreHookDelete> for HookDelete {
    fn from(row: &CoreHookDelete) -> Self {
        Self(row.clone())
    }
}

#[pymethods]
impl HookDelete {
    #[getter]
    fn hook_id(&self) -> &str {
        &self.0.hook_id
    }

    #[getter]
    fn token_hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.token_hash)
    }

    fn __repr__(&self) -> String {
        format!("HookDelete(hook_id={:?})", self.0.hook_id)
    }
}

/// An accepted command.
#[pyclass(frozen, module = "perdure._core")]
pub struct Decision(CoreDecision);

impl From<CoreDecision> for Decision {
    fn from(decision: CoreDecision) -> Self {
        Self(decision)
    }
}

#[pymethods]
impl Decision {
    #[getter]
    fn drafts<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.0.drafts.iter().map(|draft| bytes(py, draft)).collect()
    }

    #[getter]
    fn ends(&self) -> bool {
        self.0.ends
    }

    #[getter]
    fn counts(&self) -> bool {
        self.0.counts
    }

    #[getter]
    fn concurrency(&self) -> Option<u64> {
        self.0.concurrency
    }
}

/// What a host call does.
#[pyclass(frozen, module = "perdure._core")]
pub struct Control(CoreControl);

impl From<CoreControl> for Control {
    fn from(control: CoreControl) -> Self {
        Self(control)
    }
}

#[pymethods]
impl Control {
    #[getter]
    fn drafts<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.0.drafts.iter().map(|draft| bytes(py, draft)).collect()
    }

    #[getter]
    fn drive(&self) -> bool {
        self.0.drive
    }

    #[getter]
    fn admit(&self) -> bool {
        self.0.admit
    }
}
