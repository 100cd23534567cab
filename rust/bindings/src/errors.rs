//! Refusals of the core as the classes of `perdure.errors`, which are looked up when the module is imported.

use perdure_core::Refusal;
use perdure_core::error::{Drift, Rule, Transition};
use perdure_core::line::SCHEMA_VERSION;
use pyo3::exceptions::{PyImportError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

macro_rules! classes {
    ($($field:ident $name:literal),* $(,)?) => {
        struct Classes { $($field: Py<PyType>),* }

        impl Classes {
            fn find(module: &Bound<'_, PyModule>) -> PyResult<Self> {
                Ok(Self { $($field: module.getattr($name)?.cast_into::<PyType>()?.unbind()),* })
            }
        }
    };
}

classes! {
    serialization "Serialization",
    unsupported_version "UnsupportedEventSchemaVersion",
    invalid_workflow "InvalidWorkflow",
    invalid_transition "InvalidTransition",
    non_deterministic "NonDeterministic",
    hook_token_conflict "HookTokenConflict",
    hook_conflict "HookConflict",
    payload_too_large "PayloadTooLarge",
    run_not_found "RunNotFound",
    run_terminal "RunTerminal",
    run_conflict "RunConflict",
    invalid_run_id "InvalidRunId",
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

/// Looks up every class and every rule code, so that a renamed one fails at import and not at its first use.
pub fn load(py: Python<'_>) -> PyResult<()> {
    let module = py.import("perdure.errors")?;
    let rules = module.getattr("RULES")?.cast_into::<PyDict>()?;
    for rule in Rule::ALL {
        if !rules.contains(rule.code())? {
            return Err(PyImportError::new_err(format!("perdure.errors.RULES lacks {:?}", rule.code())));
        }
    }
    CLASSES.get_or_try_init(py, || Classes::find(&module)).map(drop)
}

/// The exception for a refusal of the run called `run_id`.
pub fn raise(py: Python<'_>, run_id: &str, refusal: Refusal) -> PyErr {
    exception(py, run_id, refusal).unwrap_or_else(|error| error)
}

fn exception(py: Python<'_>, run_id: &str, refusal: Refusal) -> PyResult<PyErr> {
    let classes = CLASSES.get(py).ok_or_else(|| PyRuntimeError::new_err("perdure._core was not initialised"))?;
    let (class, args) = arguments(py, classes, run_id, refusal)?;
    Ok(PyErr::from_value(class.bind(py).call1(args)?))
}

type Call<'c, 'py> = (&'c Py<PyType>, Bound<'py, PyTuple>);

fn arguments<'c, 'py>(
    py: Python<'py>,
    classes: &'c Classes,
    run_id: &str,
    refusal: Refusal,
) -> PyResult<Call<'c, 'py>> {
    Ok(match refusal {
        Refusal::Serialization { fault, line, detail } => {
            (&classes.serialization, (fault.code(), line, detail).into_pyobject(py)?)
        }
        Refusal::UnsupportedVersion { version, line } => {
            (&classes.unsupported_version, (version, SCHEMA_VERSION, line).into_pyobject(py)?)
        }
        Refusal::InvalidWorkflow { field } => (&classes.invalid_workflow, (field,).into_pyobject(py)?),
        Refusal::InvalidTransition(Transition { rule, kind, id, sequence, value }) => {
            let kind = kind.map(|kind| kind.word());
            (&classes.invalid_transition, (run_id, rule.code(), kind, id, sequence, value).into_pyobject(py)?)
        }
        Refusal::NonDeterministic(Drift { kind, id, part, sequence, recorded, now }) => {
            (&classes.non_deterministic, (run_id, kind.word(), id, part, sequence, recorded, now).into_pyobject(py)?)
        }
        Refusal::HookTokenConflict { token, hook_id } => {
            (&classes.hook_token_conflict, (token, run_id, hook_id).into_pyobject(py)?)
        }
        Refusal::HookConflict { hook_id, reason } => {
            (&classes.hook_conflict, (run_id, hook_id, reason).into_pyobject(py)?)
        }
        Refusal::PayloadTooLarge { event_key, bytes, max_bytes } => {
            (&classes.payload_too_large, (event_key, bytes, max_bytes).into_pyobject(py)?)
        }
        Refusal::RunNotFound => (&classes.run_not_found, (run_id,).into_pyobject(py)?),
        Refusal::RunTerminal => (&classes.run_terminal, (run_id,).into_pyobject(py)?),
        Refusal::RunConflict { reason } => (&classes.run_conflict, (run_id, reason).into_pyobject(py)?),
        Refusal::InvalidRunId { reason } => (&classes.invalid_run_id, (run_id, reason).into_pyobject(py)?),
    })
}

/// A lock that a panic left behind: what it guards can no longer be trusted.
pub fn poisoned<T>(_: T) -> PyErr {
    PyRuntimeError::new_err("the kernel failed inside this run; project the run again from its history")
}

/// An instant given from Python. `ValueError` outside the years 0001 to 9999.
pub fn instant(value: &Bound<'_, PyAny>) -> PyResult<i128> {
    let range = perdure_core::time::MIN..=perdure_core::time::MAX;
    match value.extract::<i128>() {
        Ok(at) if range.contains(&at) => Ok(at),
        Err(error) if !error.is_instance_of::<pyo3::exceptions::PyOverflowError>(value.py()) => Err(error),
        _ => Err(PyValueError::new_err(format!("instant {value} ns is outside the years 0001 to 9999"))),
    }
}
