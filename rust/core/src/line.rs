//! History lines: the envelope, and which refusal a line that cannot be read is (spec 01 §1.1, R30, R61).

use crate::canonical::{self, is_event_id};
use crate::error::{Fault, Refusal, Result};
use crate::event::{self, Event, Text, needed};
use crate::json::{self, Cursor, Flaw, MAX_DEPTH, Read};
use crate::names;
use crate::time::Ns;

/// The schema version we read; lines without one have it.
pub const SCHEMA_VERSION: u64 = 1;

/// What one line says. The event is lent, not given: it is large, and moving it costs more than reading it.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'e, 'a> {
    pub sequence: u64,
    pub timestamp: Ns,
    pub event: &'e Event<'a>,
}

/// Reads a line member by member: the id of its run, sequence, timestamp and event.
fn read_any_order(line: &str) -> Read<(Text<'_>, u64, Ns, Event<'_>)> {
    let mut cursor = Cursor::new(line);
    cursor.blanks();
    let [run_id, sequence, event_id, timestamp, event, version] =
        cursor.members(&names!["run_id", "sequence", "event_id", "timestamp", "event", "schema_version"], MAX_DEPTH)?;
    cursor.blanks();
    if !cursor.at_end() {
        return Err(Flaw("something follows the line's object"));
    }
    if version.map_or(Ok(SCHEMA_VERSION), json::unsigned)? != SCHEMA_VERSION {
        return Err(Flaw("an unsupported schema version"));
    }
    if !is_event_id(&event::text(event_id)?) {
        return Err(Flaw("event_id is not a UUID"));
    }
    let mut inside = Cursor::new(needed(event)?);
    let run_id = event::text(run_id)?;
    let sequence = json::unsigned(needed(sequence)?)?;
    let timestamp = event::instant(needed(timestamp)?)?;
    Ok((run_id, sequence, timestamp, event::read(&mut inside, MAX_DEPTH - 1)?))
}

/// What a line that could not be read is refused as: bad grammar comes before a foreign version, and that before bad form.
fn classify(line: &str, flaw: Flaw) -> Box<Refusal> {
    if let Err(flaw) = json::whole(line) {
        return Refusal::unreadable(Fault::Malformed, flaw.0);
    }
    match foreign_version(line) {
        Some(version) => Box::new(Refusal::UnsupportedVersion { version, line: None }),
        None => Refusal::unreadable(Fault::Shape, flaw.0),
    }
}

/// The first `schema_version` of the line's object, if it is an unsigned integer that we do not read.
fn foreign_version(line: &str) -> Option<u64> {
    let mut cursor = Cursor::new(line);
    cursor.blanks();
    if !cursor.literal("{") {
        return None;
    }
    cursor.blanks();
    while cursor.peek() == Some(b'"') {
        let name = cursor.string().ok()?;
        cursor.blanks();
        cursor.literal(":");
        cursor.blanks();
        let value = cursor.value(MAX_DEPTH).ok()?;
        if json::unescape(name).is_ok_and(|name| name == "schema_version") {
            return json::unsigned(value).ok().filter(|version| *version != SCHEMA_VERSION);
        }
        cursor.blanks();
        cursor.literal(",");
        cursor.blanks();
    }
    None
}

/// What a text that is no line was refused as: bad grammar comes before bad form.
pub fn unreadable(text: &str, flaw: Flaw) -> Box<Refusal> {
    match json::whole(text) {
        Err(flaw) => Refusal::unreadable(Fault::Malformed, flaw.0),
        Ok(_) => Refusal::unreadable(Fault::Shape, flaw.0),
    }
}

/// UTF-8 or the refusal.
pub fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| Refusal::unreadable(Fault::Malformed, "not UTF-8"))
}

/// The lines of `history` as envelopes of `run_id`, blank lines skipped. Numbers count every line from 1.
#[derive(Debug)]
pub struct Lines<'a> {
    run_id: &'a str,
    canonical: canonical::Reader<'a>,
    rest: &'a [u8],
    number: usize,
}

impl<'a> Lines<'a> {
    pub fn new(run_id: &'a str, history: &'a [u8]) -> Self {
        Self { run_id, canonical: canonical::Reader::new(run_id), rest: history, number: 0 }
    }

    /// The next line without its end. Checked as UTF-8 line by line, while it is in the cache for its reading.
    #[inline]
    fn next_line(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        self.number += 1;
        let end = memchr::memchr(b'\n', self.rest).unwrap_or(self.rest.len());
        let (line, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest.get(1..).unwrap_or_default();
        Some(line)
    }

    /// Hands the next line that is not blank to `take`, or says why it cannot be read.
    #[inline]
    pub fn next<T>(&mut self, take: impl FnMut(Envelope<'_, 'a>) -> T) -> Option<Result<T>> {
        let line = loop {
            let line = self.next_line()?;
            if !is_blank(line) {
                break line;
            }
        };
        Some(self.decode(line, take).map_err(|refusal| refusal.in_line(self.number)))
    }

    #[inline]
    fn decode<T>(&mut self, line: &'a [u8], mut take: impl FnMut(Envelope<'_, 'a>) -> T) -> Result<T> {
        let line = utf8(line)?;
        if let Some(taken) = self.canonical.read(line, &mut take) {
            return Ok(taken);
        }
        let (run_id, sequence, timestamp, event) = read_any_order(line).map_err(|flaw| classify(line, flaw))?;
        if run_id != self.run_id {
            return Err(Refusal::unreadable(Fault::ForeignRun, "a line of another run"));
        }
        Ok(take(Envelope { sequence, timestamp, event: &event }))
    }

    /// Why the first of the remaining lines that cannot be read cannot be read.
    pub fn flaw(&mut self) -> Option<Box<Refusal>> {
        while let Some(read) = self.next(|_| ()) {
            if let Err(refusal) = read {
                return Some(refusal);
            }
        }
        None
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
}
