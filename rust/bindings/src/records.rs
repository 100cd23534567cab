//! Small read-only records that cross to Python.

use perdure_core::append::{
    HookDelete as CoreHookDelete, HookInsert as CoreHookInsert, RunRow as CoreRunRow, WakeupDelete as CoreWakeupDelete,
    WakeupUpsert as CoreWakeupUpsert,
};
use perdure_core::control::Control as CoreControl;
use perdure_core::decide::Decision as CoreDecision;
use perdure_core::state::{Hook as CoreHook, Step as CoreStep, Wait as CoreWait};
use perdure_core::table::Detached;
use perdure_core::{Reads, time};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

fn bytes<'py>(py: Python<'py>, text: &str) -> Bound<'py, PyBytes> {
    PyBytes::new(py, text.as_bytes())
}

/// A step of the run.
#[pyclass(frozen, module = "perdure._core")]
pub struct Step(Detached<CoreStep>);

impl Step {
    pub fn of(reads: Reads<'_>, step: &CoreStep) -> Self {
        Self(Detached::new(reads.ink(), step))
    }
}

#[pymethods]
impl Step {
    #[getter]
    fn step_id(&self) -> &str {
        self.0.text(self.0.row.id)
    }

    #[getter]
    fn step_name(&self) -> &str {
        self.0.text(self.0.row.name)
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.0.row.status.word()
    }

    #[getter]
    fn error(&self) -> Option<&str> {
        self.0.texts(self.0.row.error)
    }

    #[getter]
    fn attempt(&self) -> u32 {
        self.0.row.attempt
    }

    #[getter]
    fn retry_after(&self) -> Option<i128> {
        self.0.row.retry_after
    }

    #[getter]
    fn created_sequence(&self) -> u64 {
        self.0.row.created
    }

    #[getter]
    fn input<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, self.0.text(self.0.row.input))
    }

    #[getter]
    fn retry<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.0.row.retry.json())
    }

    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.texts(self.0.row.output).map(|output| bytes(py, output))
    }

    #[getter]
    fn failure<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.texts(self.0.row.failure).map(|failure| bytes(py, failure))
    }

    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.0.json())
    }

    fn __repr__(&self) -> String {
        format!("Step(step_id={:?}, status={:?}, attempt={})", self.step_id(), self.status(), self.attempt())
    }
}

/// A wait of the run.
#[pyclass(frozen, module = "perdure._core")]
pub struct Wait(Detached<CoreWait>);

impl Wait {
    pub fn of(reads: Reads<'_>, wait: &CoreWait) -> Self {
        Self(Detached::new(reads.ink(), wait))
    }
}

#[pymethods]
impl Wait {
    #[getter]
    fn wait_id(&self) -> &str {
        self.0.text(self.0.row.id)
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.0.row.status.word()
    }

    #[getter]
    fn resume_at(&self) -> i128 {
        self.0.row.resume_at
    }

    #[getter]
    fn created_sequence(&self) -> u64 {
        self.0.row.created
    }

    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.0.json())
    }

    fn __repr__(&self) -> String {
        format!("Wait(wait_id={:?}, status={:?}, resume_at={})", self.wait_id(), self.status(), self.resume_at())
    }
}

/// A hook of the run. The repr hides the token.
#[pyclass(frozen, module = "perdure._core")]
pub struct Hook(Detached<CoreHook>);

impl Hook {
    pub fn of(reads: Reads<'_>, hook: &CoreHook) -> Self {
        Self(Detached::new(reads.ink(), hook))
    }
}

#[pymethods]
impl Hook {
    #[getter]
    fn hook_id(&self) -> &str {
        self.0.text(self.0.row.id)
    }

    #[getter]
    fn token(&self) -> &str {
        self.0.text(self.0.row.token)
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.0.row.status.word()
    }

    #[getter]
    fn created_sequence(&self) -> u64 {
        self.0.row.created
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, self.0.text(self.0.row.metadata))
    }

    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.texts(self.0.row.payload).map(|payload| bytes(py, payload))
    }

    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes(py, &self.0.json())
    }

    fn __repr__(&self) -> String {
        format!("Hook(hook_id={:?}, status={:?}, token=<redacted>)", self.hook_id(), self.status())
    }
}

/// The run's row of the index after a batch.
#[pyclass(frozen, module = "perdure._core")]
pub struct RunRow(Arc<CoreRunRow>);

impl From<&Arc<CoreRunRow>> for RunRow {
    fn from(row: &Arc<CoreRunRow>) -> Self {
        Self(Arc::clone(row))
    }
}

#[pymethods]
impl RunRow {
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn version(&self) -> &str {
        &self.0.version
    }

    #[getter]
    fn build(&self) -> Option<&str> {
        self.0.build.as_deref()
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.0.status
    }

    #[getter]
    fn terminal(&self) -> bool {
        self.0.terminal
    }

    #[getter]
    fn open_waits(&self) -> u32 {
        self.0.open_waits
    }

    #[getter]
    fn active_hooks(&self) -> u32 {
        self.0.active_hooks
    }

    #[getter]
    fn pending_retries(&self) -> u32 {
        self.0.pending_retries
    }

    #[getter]
    fn created_at(&self) -> i128 {
        self.0.created_at
    }

    #[getter]
    fn updated_at(&self) -> i128 {
        self.0.updated_at
    }

    #[getter]
    fn ended_at(&self) -> Option<i128> {
        self.0.ended_at
    }

    #[getter]
    fn created_key(&self) -> String {
        time::due_key(self.0.created_at)
    }

    #[getter]
    fn updated_key(&self) -> String {
        time::due_key(self.0.updated_at)
    }

    #[getter]
    fn ended_key(&self) -> Option<String> {
        self.0.ended_at.map(time::due_key)
    }

    #[getter]
    fn last_sequence(&self) -> u64 {
        self.0.last_sequence
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
