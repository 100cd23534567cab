//! History lines: the envelope, and which refusal a line that cannot be read is (spec 01 §1.1, R30, R61).

use crate::error::{Fault, Refusal, Result};
use crate::event::{self, Event, Text, needed};
use crate::json::{self, Cursor, Flaw, MAX_DEPTH, Read};
use crate::names;
use crate::time::{self, Ns};

/// The schema version we read; lines without one have it.
pub const SCHEMA_VERSION: u64 = 1;

/// One decoded line.
#[derive(Debug)]
pub struct Envelope<'a> {
    pub run_id: Text<'a>,
    pub sequence: u64,
    pub timestamp: Ns,
    pub event: Event<'a>,
}

/// Reads a line. The layout that we and the reference write is tried first; every other one is read member by member.
#[inline]
fn read(line: &str) -> Read<Envelope<'_>> {
    let mut cursor = Cursor::new(line);
    match canonical_head(&mut cursor) {
        Some(head) => {
            let event = event::read(&mut cursor, MAX_DEPTH - 1)?;
            if cursor.literal("}") && cursor.at_end() {
                return Ok(Envelope { run_id: head.0.into(), sequence: head.1, timestamp: head.2, event });
            }
            read_any_order(line)
        }
        None => read_any_order(line),
    }
}

/// Everything before the event, if it is spelt as we spell it.
#[inline]
fn canonical_head<'a>(cursor: &mut Cursor<'a>) -> Option<(&'a str, u64, Ns)> {
    if !cursor.literal("{\"run_id\":") {
        return None;
    }
    let run_id = cursor.string().ok().filter(|raw| !raw.as_bytes().contains(&b'\\'))?;
    if !cursor.literal(",\"sequence\":") {
        return None;
    }
    let digits = cursor.digits().ok().filter(|digits| !digits.starts_with('0'))?;
    let sequence = digits.parse().ok()?;
    if !cursor.literal(",\"event_id\":\"") || !is_event_id(cursor.take(36).ok()?) {
        return None;
    }
    if !cursor.literal("\",\"timestamp\":") {
        return None;
    }
    let timestamp = time::parse(cursor.string().ok()?).ok()?;
    cursor.literal(",\"event\":").then_some((run_id, sequence, timestamp))
}

fn read_any_order(line: &str) -> Read<Envelope<'_>> {
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
    Ok(Envelope {
        run_id: event::text(run_id)?,
        sequence: json::unsigned(needed(sequence)?)?,
        timestamp: event::instant(needed(timestamp)?)?,
        event: event::read(&mut inside, MAX_DEPTH - 1)?,
    })
}

/// 8-4-4-4-12 hexadecimal digits with hyphens, either case.
#[inline]
fn is_event_id(text: &str) -> bool {
    let Ok(bytes) = <&[u8; 36]>::try_from(text.as_bytes()) else { return false };
    let hyphens = [bytes[8], bytes[13], bytes[18], bytes[23]] == *b"----";
    // Counting instead of stopping at the first lets the compiler look at many bytes at once.
    hyphens && bytes.iter().map(|byte| u32::from(byte.is_ascii_hexdigit())).sum::<u32>() == 32
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
    rest: &'a [u8],
    number: usize,
}

impl<'a> Lines<'a> {
    pub const fn new(run_id: &'a str, history: &'a [u8]) -> Self {
        Self { run_id, rest: history, number: 0 }
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

    #[inline]
    fn decode(&self, line: &'a [u8]) -> Result<Envelope<'a>> {
        let line = utf8(line).map_err(|refusal| refusal.in_line(self.number))?;
        let envelope = read(line).map_err(|flaw| classify(line, flaw).in_line(self.number))?;
        if envelope.run_id != self.run_id {
            return Err(Refusal::unreadable(Fault::ForeignRun, "a line of another run").in_line(self.number));
        }
        Ok(envelope)
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Result<Envelope<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = self.next_line()?;
            if !is_blank(line) {
                return Some(self.decode(line));
            }
        }
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
}
