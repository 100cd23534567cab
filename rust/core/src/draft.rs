//! Drafts: events without envelope, fields in the order of the catalogue (spec 01 §1.2).

use crate::error::{Refusal, Result};
use crate::event;
use crate::json::{self, Flaw, Read};
use crate::line::unreadable;
use crate::parts::{raw_member, string_member};
use crate::snapshot::instant_member;
use crate::time::Ns;
use std::borrow::Cow;

/// Deepest nesting of what becomes part of a line.
pub const MAX_DEPTH: u32 = json::MAX_DEPTH - 1;

/// One event to be staged.
#[derive(Clone, Debug)]
pub struct Draft {
    pub kind: &'static str,
    pub json: String,
}

impl Draft {
    pub fn of(kind: &'static str) -> Self {
        let mut json = String::from("{");
        string_member(&mut json, "type", kind);
        Self { kind, json }
    }

    pub fn string(mut self, name: &str, value: &str) -> Self {
        string_member(&mut self.json, name, value);
        self
    }

    /// A string, null when absent.
    pub fn optional(mut self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => string_member(&mut self.json, name, value),
            None => raw_member(&mut self.json, name, Some("null")),
        }
        self
    }

    /// A raw span, left out when absent.
    pub fn raw(mut self, name: &str, value: Option<&str>) -> Self {
        raw_member(&mut self.json, name, value);
        self
    }

    pub fn number(self, name: &str, value: impl ToString) -> Self {
        self.raw(name, Some(&value.to_string()))
    }

    pub fn instant(mut self, name: &str, at: Option<Ns>) -> Self {
        instant_member(&mut self.json, name, at);
        self
    }

    pub fn end(mut self) -> Self {
        self.json.push('}');
        self
    }

    pub fn wait_completed(wait_id: &str) -> Self {
        Self::of("wait_completed").string("wait_id", wait_id).end()
    }

    pub fn step_started(step_id: &str, attempt: u32) -> Self {
        Self::of("step_started").string("step_id", step_id).number("attempt", attempt).end()
    }

    /// Refuses an event whose JSON is larger than `max_bytes`.
    pub fn check_size(&self, max_bytes: usize) -> Result<()> {
        if self.json.len() <= max_bytes {
            return Ok(());
        }
        let event_key = event::key(self.kind);
        Err(Box::new(Refusal::PayloadTooLarge { event_key, bytes: self.json.len(), max_bytes }))
    }
}

/// The JSON of drafts, in order.
pub fn texts(drafts: Vec<Draft>) -> Vec<String> {
    drafts.into_iter().map(|draft| draft.json).collect()
}

/// A text whose spans become part of a line: well-formed, without blanks around, and without line ends, which in JSON can only be
/// blanks and are read as spaces.
pub fn part(text: &str) -> Result<Cow<'_, str>> {
    let value = json::whole_within(text, MAX_DEPTH).map_err(|flaw| unreadable(text, flaw))?;
    Ok(if value.contains('\n') { Cow::Owned(value.replace('\n', " ")) } else { Cow::Borrowed(value) })
}

/// Reads a text made by `part`; what fails now is its form.
pub fn shape<T>(read: Read<T>) -> Result<T> {
    read.map_err(|Flaw(detail)| Refusal::unreadable(crate::error::Fault::Shape, detail))
}
