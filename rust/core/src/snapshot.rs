//! The snapshot JSON, byte for byte as R28 orders it.

use crate::error::Kind;
use crate::json::{write_name, write_string};
use crate::parts::{raw_member, string_member};
use crate::reads::Reads;
use crate::state::{Hook, Step, Wait};
use crate::table::{Detached, Ink, Row, Span};
use crate::time::{self, Ns};

impl<'a> Reads<'a> {
    /// The whole snapshot; of a run without events only what it has.
    pub fn snapshot(self) -> String {
        let (head, ink) = (self.head(), self.ink());
        let mut out = String::with_capacity(512);
        out.push('{');
        string_member(&mut out, "run_id", self.run_id());
        ink.raw(&mut out, "spec", Some(head.spec));
        ink.raw(&mut out, "input", Some(head.input));
        string_member(&mut out, "status", head.shown_status());
        self.map(&mut out, "steps", self.sorted(self.all_steps()), |out, step| ink.write_step(out, step));
        self.map(&mut out, "waits", self.sorted(self.all_waits()), |out, wait| ink.write_wait(out, wait));
        self.map(&mut out, "hooks", self.sorted(self.all_hooks()), |out, hook| ink.write_hook(out, hook));
        raw_member(&mut out, "cancellation", Some(self.cancellation().as_deref().unwrap_or("null")));
        let progress: Vec<_> = self.all_progress().map(|fact| self.text(fact.object)).collect();
        raw_member(&mut out, "progress", Some(&format!("[{}]", progress.join(","))));
        self.map(&mut out, "child_operations", self.sorted(self.all_children()), |out, fact| {
            out.push_str(self.text(fact.object));
        });
        ink.raw(&mut out, "output", head.output);
        ink.string(&mut out, "error", head.error);
        ink.raw(&mut out, "terminal_outcome", head.outcome);
        raw_member(&mut out, "last_sequence", Some(&head.last_sequence.to_string()));
        self.write_resolutions(&mut out);
        let failures = self.all_steps().filter(|step| step.failure.is_some());
        self.map(&mut out, "failures", self.sorted(failures), |out, step| {
            out.push_str(self.texts(step.failure).unwrap_or("null"));
        });
        out.push('}');
        out
    }

    fn map<T: Row>(self, out: &mut String, name: &str, rows: Vec<&'a T>, mut write: impl FnMut(&mut String, &'a T)) {
        write_name(out, name);
        for (at, row) in rows.into_iter().enumerate() {
            out.push(if at == 0 { '{' } else { ',' });
            write_string(out, self.text(row.id()));
            out.push(':');
            write(out, row);
        }
        if out.ends_with(':') {
            out.push('{');
        }
        out.push('}');
    }

    fn write_resolutions(self, out: &mut String) {
        write_name(out, "resolutions");
        out.push('[');
        for (count, resolution) in self.resolutions().enumerate() {
            if count > 0 {
                out.push(',');
            }
            let id = match resolution.kind {
                Kind::Wait => self.wait_row(resolution.at).map(|wait| wait.id),
                Kind::Hook => self.hook_row(resolution.at).map(|hook| hook.id),
                _ => self.step_row(resolution.at).map(|step| step.id),
            };
            out.push('[');
            write_string(out, resolution.kind.word());
            out.push(',');
            write_string(out, self.texts(id).unwrap_or_default());
            out.push(',');
            out.push_str(&resolution.sequence.to_string());
            out.push(']');
        }
        out.push(']');
    }

    /// `{"request":…,"requested_at":…,"sequence":…}` once cancellation was requested.
    pub fn cancellation(self) -> Option<String> {
        let request = self.head().request?;
        let mut out = String::from("{\"request\":{");
        if let Some(reason) = self.texts(request.reason) {
            string_member(&mut out, "reason", reason);
        }
        out.push('}');
        instant_member(&mut out, "requested_at", Some(request.at));
        raw_member(&mut out, "sequence", Some(&request.sequence.to_string()));
        out.push('}');
        Some(out)
    }
}

/// The entries of single rows.
impl Ink<'_> {
    fn raw(self, out: &mut String, name: &str, span: Option<Span>) {
        let value = self.texts(span).filter(|text| !text.is_empty());
        raw_member(out, name, Some(value.unwrap_or("null")));
    }

    fn string(self, out: &mut String, name: &str, span: Option<Span>) {
        match self.texts(span) {
            Some(text) => string_member(out, name, text),
            None => raw_member(out, name, Some("null")),
        }
    }

    fn write_step(self, out: &mut String, step: &Step) {
        out.push('{');
        self.string(out, "step_id", Some(step.id));
        self.string(out, "step_name", Some(step.name));
        string_member(out, "status", step.status.word());
        self.raw(out, "input", Some(step.input));
        write_name(out, "retry");
        step.retry.write(out);
        self.raw(out, "output", step.output);
        self.string(out, "error", step.error);
        raw_member(out, "attempt", Some(&step.attempt.to_string()));
        instant_member(out, "retry_after", step.retry_after);
        out.push('}');
    }

    fn write_wait(self, out: &mut String, wait: &Wait) {
        out.push('{');
        self.string(out, "wait_id", Some(wait.id));
        string_member(out, "status", wait.status.word());
        instant_member(out, "resume_at", Some(wait.resume_at));
        out.push('}');
    }

    fn write_hook(self, out: &mut String, hook: &Hook) {
        out.push('{');
        self.string(out, "hook_id", Some(hook.id));
        self.string(out, "token", Some(hook.token));
        string_member(out, "status", hook.status.word());
        self.raw(out, "metadata", Some(hook.metadata));
        self.raw(out, "payload", hook.payload);
        out.push('}');
    }
}

macro_rules! entry {
    ($row:ty, $write:ident) => {
        impl Detached<$row> {
            /// Its entry of the snapshot.
            pub fn json(&self) -> String {
                let mut out = String::new();
                self.ink().$write(&mut out, &self.row);
                out
            }
        }
    };
}

entry!(Step, write_step);
entry!(Wait, write_wait);
entry!(Hook, write_hook);

/// Writes a member whose value is an instant or null.
pub(crate) fn instant_member(out: &mut String, name: &str, at: Option<Ns>) {
    match at {
        Some(at) => string_member(out, name, &time::format(at)),
        None => raw_member(out, name, Some("null")),
    }
}
