//! Lines in the layout that we and the reference write, read without looking for members.
//!
//! Nearly every line of a history has this layout, so a replay spends its time here. It is safe because it only ever says yes:
//! each part is compared or read as in `line::read_any_order`, every member stands once and in one order, and whatever differs
//! by a single byte is left to that reading, which alone refuses.

use crate::event::{self, LastPolicy};
use crate::json::{Cursor, MAX_DEPTH, write_name, write_string};
use crate::line::Envelope;
use crate::time::{Minute, Ns};

/// Reads the lines of one run.
#[derive(Debug)]
pub struct Reader<'a> {
    /// What every line begins with, up to the sequence.
    prefix: String,
    minute: Minute,
    policy: LastPolicy<'a>,
}

impl<'a> Reader<'a> {
    pub fn new(run_id: &str) -> Self {
        let mut prefix = String::with_capacity(run_id.len() + 24);
        prefix.push('{');
        write_name(&mut prefix, "run_id");
        write_string(&mut prefix, run_id);
        write_name(&mut prefix, "sequence");
        Self { prefix, minute: Minute::default(), policy: LastPolicy::default() }
    }

    /// Reads a line if it is spelt as we spell it, and hands it to `take`.
    #[inline]
    pub fn read<T>(&mut self, line: &'a str, take: impl FnOnce(Envelope<'_, 'a>) -> T) -> Option<T> {
        let mut cursor = Cursor::new(line);
        let (sequence, timestamp) = self.head(&mut cursor)?;
        let event = event::read_in_order(&mut cursor, MAX_DEPTH - 1, &mut self.policy);
        let event = event.as_ref().ok().filter(|_| cursor.literal("}") && cursor.at_end())?;
        Some(take(Envelope { sequence, timestamp, event }))
    }

    #[inline]
    fn head(&mut self, cursor: &mut Cursor<'_>) -> Option<(u64, Ns)> {
        if !cursor.literal(&self.prefix) {
            return None;
        }
        let sequence = cursor.unsigned()?;
        if !cursor.literal(",\"event_id\":\"") || !is_event_id(cursor.take(36).ok()?) {
            return None;
        }
        if !cursor.literal("\",\"timestamp\":\"") {
            return None;
        }
        let (timestamp, length) = self.minute.parse_start(cursor.rest())?;
        cursor.skip(length);
        cursor.literal("\",\"event\":").then_some((sequence, timestamp))
    }
}

/// 8-4-4-4-12 hexadecimal digits with hyphens, either case.
#[inline]
pub fn is_event_id(text: &str) -> bool {
    let Ok(id) = <&[u8; 36]>::try_from(text.as_bytes()) else { return false };
    let hyphens = [id[8], id[13], id[18], id[23]] == *b"----";
    let words = [
        [id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]],
        [id[9], id[10], id[11], id[12], id[14], id[15], id[16], id[17]],
        [id[19], id[20], id[21], id[22], id[24], id[25], id[26], id[27]],
        [id[28], id[29], id[30], id[31], id[32], id[33], id[34], id[35]],
    ];
    hyphens && words.iter().all(|word| is_hex(u64::from_le_bytes(*word)))
}

/// Whether all eight bytes are hexadecimal digits. Adding to a byte below 0x80 sets its high bit from a certain value on.
#[inline]
const fn is_hex(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    const fn from(word: u64, least: u8) -> u64 {
        word.wrapping_add(ONES * (0x80 - least as u64))
    }
    let letter = word | (ONES * 0x20);
    let digits = from(word, b'0') & !from(word, b'9' + 1);
    let letters = from(letter, b'a') & !from(letter, b'f' + 1);
    word & HIGHS == 0 && (digits | letters) & HIGHS == HIGHS
}
