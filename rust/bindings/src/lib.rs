//! `perdure._core`: the Rust kernel behind the seam of `perdure.kernel`. An export list; the rules live in `perdure-core`.

mod errors;
mod functions;
mod records;
mod run;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::functions::{check_run_id, check_spec, json_equal, new, project, project_many, retry_delay_ms};
    #[pymodule_export]
    use super::records::{
        Control, Decision, Hook, HookDelete, HookInsert, RunRow, Step, Wait, WakeupDelete, WakeupUpsert,
    };
    #[pymodule_export]
    use super::run::{Batch, Run, View};
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("build_profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
        errors::load(module.py())
    }
}
