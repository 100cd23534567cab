//! Objects inside events and commands: the workflow spec, progress and child operations (spec 01 §1.4).

use crate::equal::same_or_null;
use crate::error::{Kind, Refusal, Result, Rule};
use crate::event::{Text, given, needed, optional_text, text};
use crate::json::{self, Flaw, Read, write_name, write_string};
use crate::line::unreadable;
use crate::object;
use crate::text::{is_blank, is_build_id};

/// What a run was started with. `patch_markers` and `signal_names` are kept raw and not looked at.
#[derive(Debug)]
pub struct Spec<'a> {
    pub name: Text<'a>,
    pub version: Text<'a>,
    pub kind: Text<'a>,
    pub entrypoint: Text<'a>,
    pub export_name: Text<'a>,
    pub build: Option<Text<'a>>,
    pub patch_markers: Option<&'a str>,
    pub signal_names: Option<&'a str>,
}

impl<'a> Spec<'a> {
    pub fn read(span: &'a str) -> Read<Self> {
        let [name, version, runtime, build, patch_markers, signal_names] =
            object!(span, "name", "version", "runtime", "runtime_build_id", "patch_markers", "signal_names")?;
        let [kind, entrypoint, export_name] = object!(needed(runtime)?, "kind", "entrypoint", "export_name")?;
        let kind = text(kind)?;
        if !matches!(&*kind, "native_ts" | "rust_embedded") {
            return Err(Flaw("runtime.kind is native_ts or rust_embedded"));
        }
        let build = optional_text(build)?;
        if build.as_deref().is_some_and(|build| !is_build_id(build)) {
            return Err(Flaw("runtime_build_id breaks the grammar of build ids"));
        }
        Ok(Self {
            name: text(name)?,
            version: text(version)?,
            kind,
            entrypoint: text(entrypoint)?,
            export_name: text(export_name)?,
            build,
            patch_markers: given(patch_markers),
            signal_names: given(signal_names),
        })
    }

    /// Reads a text that is a spec and nothing else, and refuses one with a blank part.
    pub fn check(spec: &'a str) -> Result<Self> {
        let read = json::whole(spec).and_then(Self::read);
        let spec = read.map_err(|flaw| unreadable(spec, flaw))?;
        spec.validate()?;
        Ok(spec)
    }

    /// Refuses a spec with a blank part.
    pub fn validate(&self) -> Result<()> {
        let parts = [
            ("name", &self.name),
            ("version", &self.version),
            ("runtime.entrypoint", &self.entrypoint),
            ("runtime.export_name", &self.export_name),
        ];
        match parts.into_iter().find(|(_, part)| is_blank(part)) {
            Some((field, _)) => Err(Box::new(Refusal::InvalidWorkflow { field })),
            None => Ok(()),
        }
    }

    /// The spec as R28 writes it: known fields in order, null and unknown ones dropped.
    pub fn json(&self) -> String {
        let mut out = String::from("{");
        string_member(&mut out, "name", &self.name);
        string_member(&mut out, "version", &self.version);
        out.push_str(",\"runtime\":{");
        string_member(&mut out, "kind", &self.kind);
        string_member(&mut out, "entrypoint", &self.entrypoint);
        string_member(&mut out, "export_name", &self.export_name);
        out.push('}');
        if let Some(build) = &self.build {
            string_member(&mut out, "runtime_build_id", build);
        }
        raw_member(&mut out, "patch_markers", self.patch_markers);
        raw_member(&mut out, "signal_names", self.signal_names);
        out.push('}');
        out
    }
}

/// How far some work is.
#[derive(Debug)]
pub struct Progress<'a> {
    pub progress_id: Text<'a>,
    pub completed: u64,
    pub total: Option<u64>,
    pub message: Option<Text<'a>>,
    pub details: Option<&'a str>,
}

impl<'a> Progress<'a> {
    pub fn read(span: &'a str) -> Read<Self> {
        let [progress_id, completed, total, message, details] =
            object!(span, "progress_id", "completed", "total", "message", "details")?;
        Ok(Self {
            progress_id: text(progress_id)?,
            completed: json::unsigned(needed(completed)?)?,
            total: given(total).map(json::unsigned).transpose()?,
            message: optional_text(message)?,
            details: given(details),
        })
    }

    /// Refuses a blank id, then what `validate_values` refuses.
    pub fn validate(&self) -> Result<()> {
        if is_blank(&self.progress_id) {
            return Err(self.invalid("progress_id"));
        }
        self.validate_values()
    }

    pub fn validate_values(&self) -> Result<()> {
        match self.total {
            Some(0) => Err(self.invalid("total")),
            Some(total) if self.completed > total => Err(self.invalid("completed")),
            _ => Ok(()),
        }
    }

    fn invalid(&self, part: &str) -> Box<Refusal> {
        Refusal::with(Rule::ProgressInvalid, Kind::Progress, &self.progress_id, part)
    }

    pub fn json(&self) -> String {
        let mut out = String::from("{");
        string_member(&mut out, "progress_id", &self.progress_id);
        write_name(&mut out, "completed");
        out.push_str(&self.completed.to_string());
        if let Some(total) = self.total {
            write_name(&mut out, "total");
            out.push_str(&total.to_string());
        }
        if let Some(message) = &self.message {
            string_member(&mut out, "message", message);
        }
        raw_member(&mut out, "details", self.details);
        out.push('}');
        out
    }

    /// Whether the recorded object says the same.
    pub fn same_as(&self, recorded: &str) -> bool {
        Progress::read(recorded).is_ok_and(|recorded| {
            (self.completed, self.total, &self.message) == (recorded.completed, recorded.total, &recorded.message)
                && same_or_null(self.details, recorded.details)
        })
    }
}

/// A pure record of work elsewhere.
#[derive(Debug)]
pub struct Child<'a> {
    pub reference_id: Text<'a>,
    pub kind: Text<'a>,
    pub operation_id: Text<'a>,
    pub flow_run_id: Option<Text<'a>>,
    pub metadata: Option<&'a str>,
}

impl<'a> Child<'a> {
    pub fn read(span: &'a str) -> Read<Self> {
        let [reference_id, kind, operation_id, flow_run_id, metadata] =
            object!(span, "reference_id", "kind", "operation_id", "flow_run_id", "metadata")?;
        Ok(Self {
            reference_id: text(reference_id)?,
            kind: text(kind)?,
            operation_id: text(operation_id)?,
            flow_run_id: optional_text(flow_run_id)?,
            metadata: given(metadata),
        })
    }

    /// Refuses a blank reference id, then what `validate_values` refuses.
    pub fn validate(&self) -> Result<()> {
        if is_blank(&self.reference_id) {
            return Err(self.invalid("reference_id"));
        }
        self.validate_values()
    }

    pub fn validate_values(&self) -> Result<()> {
        let parts = [
            ("kind", Some(&self.kind)),
            ("operation_id", Some(&self.operation_id)),
            ("flow_run_id", self.flow_run_id.as_ref()),
        ];
        match parts.into_iter().find(|(_, part)| part.is_some_and(|part| is_blank(part))) {
            Some((part, _)) => Err(self.invalid(part)),
            None => Ok(()),
        }
    }

    fn invalid(&self, part: &str) -> Box<Refusal> {
        Refusal::with(Rule::ChildInvalid, Kind::Child, &self.reference_id, part)
    }

    pub fn json(&self) -> String {
        let mut out = String::from("{");
        string_member(&mut out, "reference_id", &self.reference_id);
        string_member(&mut out, "kind", &self.kind);
        string_member(&mut out, "operation_id", &self.operation_id);
        if let Some(flow_run_id) = &self.flow_run_id {
            string_member(&mut out, "flow_run_id", flow_run_id);
        }
        raw_member(&mut out, "metadata", self.metadata);
        out.push('}');
        out
    }

    /// Whether the recorded object says the same.
    pub fn same_as(&self, recorded: &str) -> bool {
        Child::read(recorded).is_ok_and(|recorded| {
            (&self.kind, &self.operation_id, &self.flow_run_id)
                == (&recorded.kind, &recorded.operation_id, &recorded.flow_run_id)
                && same_or_null(self.metadata, recorded.metadata)
        })
    }
}

/// Writes a member whose value is a string.
pub fn string_member(out: &mut String, name: &str, value: &str) {
    write_name(out, name);
    write_string(out, value);
}

/// Writes a member whose value is a raw span, if there is one.
pub fn raw_member(out: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        write_name(out, name);
        out.push_str(value);
    }
}
