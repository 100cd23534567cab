//! Where a JSON value ends. Places go in and come out by value, so that the loop over a line keeps everything in registers;
//! blanks are looked for only where the byte that is usually there is not.

use crate::json::Flaw;

/// What stands where it must not. As wide as a place, so that an answer comes back in two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Break {
    Control,
    OpenString,
    Escape,
    Number,
    Value,
    Name,
    Colon,
    ObjectEnd,
    ListEnd,
    Depth,
}

impl From<Break> for Flaw {
    #[cold]
    fn from(found: Break) -> Self {
        Self(match found {
            Break::Control => "a control character in a string",
            Break::OpenString => "a string without its end",
            Break::Escape => "an escape that JSON does not have",
            Break::Number => "a number that is not JSON",
            Break::Value => "a value was expected",
            Break::Name => "a string was expected",
            Break::Colon => "a colon was expected",
            Break::ObjectEnd => "a comma or a closing brace was expected",
            Break::ListEnd => "a comma or a closing bracket was expected",
            Break::Depth => "nested too deep",
        })
    }
}

pub type Place = Result<usize, Break>;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The place of the first byte from `at` on that is not a blank.
#[inline]
pub fn blanks(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at) {
        Some(byte) if *byte > b' ' => at,
        _ => skip_blanks(bytes, at),
    }
}

#[cold]
fn skip_blanks(bytes: &[u8], at: usize) -> usize {
    at + run(bytes, at, |byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
}

/// The unsigned integer at `at` and the place after it, unless it starts with 0 or is longer than 64 bits surely hold.
#[inline]
pub fn unsigned(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let (mut number, mut end) = (0_u64, at);
    while let Some(digit) = bytes.get(end).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9) {
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        end += 1;
    }
    let whole = bytes.get(at) != Some(&b'0') && matches!(end - at, 1..=19);
    whole.then_some((number, end))
}

/// The place after the last of the digits from `at` on.
#[inline]
pub fn digits(bytes: &[u8], at: usize) -> usize {
    at + run(bytes, at, |byte| byte.is_ascii_digit())
}

/// How many bytes from `at` on are of a kind.
#[inline]
fn run(bytes: &[u8], at: usize, of_kind: impl Fn(u8) -> bool) -> usize {
    bytes.get(at..).unwrap_or_default().iter().take_while(|byte| of_kind(**byte)).count()
}

/// The place after a string whose opening quote is before `at`. Eight bytes at a time.
#[inline(never)]
pub fn string(bytes: &[u8], at: usize) -> Place {
    let mut rest = bytes.get(at..).unwrap_or_default();
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        if let Some(hit) = first_stop(*word) {
            let at = bytes.len() - rest.len() + hit;
            return if rest.get(hit) == Some(&b'"') { Ok(at + 1) } else { rest_of_string(bytes, at) };
        }
        rest = after;
    }
    rest_of_string(bytes, bytes.len() - rest.len())
}

#[cold]
#[inline(never)]
fn rest_of_string(bytes: &[u8], mut at: usize) -> Place {
    loop {
        match bytes.get(at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => return string(bytes, escape(bytes, at)?),
            Some(0..0x20) => return Err(Break::Control),
            Some(_) => at += 1,
            None => return Err(Break::OpenString),
        }
    }
}

fn escape(bytes: &[u8], at: usize) -> Place {
    let hex = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') if bytes.get(at + 2..at + 6).is_some_and(hex) => Ok(at + 6),
        _ => Err(Break::Escape),
    }
}

/// Where in the word the first quote, backslash or control character is.
#[inline]
const fn first_stop(word: [u8; 8]) -> Option<usize> {
    let word = u64::from_le_bytes(word);
    // Flipping bit 1 puts the quote at 0x20, next to the control characters, and keeps those below it.
    let low = word ^ (ONES * 2);
    let slash = word ^ (ONES * 0x5c);
    // Only a byte above a true hit can be hit falsely, and the lowest hit is the one that counts.
    let hits = ((low.wrapping_sub(ONES * 0x21) & !low) | (slash.wrapping_sub(ONES) & !slash)) & HIGHS;
    if hits == 0 { None } else { Some(hits.trailing_zeros() as usize / 8) }
}

/// Whether `text` has a backslash.
#[inline]
pub fn has_escape(text: &str) -> bool {
    let bytes = text.as_bytes();
    let in_word = |word: &[u8; 8]| {
        let slash = u64::from_le_bytes(*word) ^ (ONES * 0x5c);
        slash.wrapping_sub(ONES) & !slash & HIGHS != 0
    };
    match bytes.last_chunk::<8>() {
        // The last word may overlap the one before; looking twice costs less than looking at single bytes.
        Some(last) => in_word(last) || bytes.as_chunks::<8>().0.iter().any(in_word),
        None => bytes.contains(&b'\\'),
    }
}

fn number(bytes: &[u8], at: usize) -> Place {
    let some_digits = |at| Some(digits(bytes, at)).filter(|end| *end > at).ok_or(Break::Number);
    let at = at + usize::from(bytes.get(at) == Some(&b'-'));
    let mut end = some_digits(at)?;
    if bytes.get(at) == Some(&b'0') && end > at + 1 {
        return Err(Break::Number);
    }
    if bytes.get(end) == Some(&b'.') {
        end = some_digits(end + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(end) {
        let sign = matches!(bytes.get(end + 1), Some(b'+' | b'-'));
        end = some_digits(end + 1 + usize::from(sign))?;
    }
    Ok(end)
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Place {
    let rest = bytes.get(at..).unwrap_or_default();
    let found = [&b"null"[..], b"true", b"false"].into_iter().find(|word| rest.starts_with(word));
    found.map(|word| at + word.len()).ok_or(Break::Value)
}

/// The place after a colon and the blanks around it.
#[inline]
pub fn colon(bytes: &[u8], at: usize) -> Place {
    let at = blanks(bytes, at);
    match bytes.get(at) {
        Some(b':') => Ok(blanks(bytes, at + 1)),
        _ => Err(Break::Colon),
    }
}

/// The place after the value at `at`, nested at most `room` levels.
#[inline]
pub fn value(bytes: &[u8], at: usize, room: u32) -> Place {
    match bytes.get(at) {
        Some(b'"') => string(bytes, at + 1),
        _ => other_value(bytes, at, room),
    }
}

/// As `value`, for all that is no string; strings are so many that they are kept out of the recursion.
#[inline(never)]
fn other_value(bytes: &[u8], at: usize, room: u32) -> Place {
    match bytes.get(at) {
        Some(b'{') => object(bytes, at + 1, room),
        Some(b'[') => list(bytes, at + 1, room),
        Some(b'-' | b'0'..=b'9') => number(bytes, at),
        _ => word(bytes, at),
    }
}

/// The place after an object whose brace is before `at`.
fn object(bytes: &[u8], at: usize, room: u32) -> Place {
    let room = room.checked_sub(1).ok_or(Break::Depth)?;
    let mut at = blanks(bytes, at);
    if bytes.get(at) == Some(&b'}') {
        return Ok(at + 1);
    }
    loop {
        if bytes.get(at) != Some(&b'"') {
            return Err(Break::Name);
        }
        at = colon(bytes, string(bytes, at + 1)?)?;
        at = blanks(bytes, value(bytes, at, room)?);
        match bytes.get(at) {
            Some(b',') => at = blanks(bytes, at + 1),
            Some(b'}') => return Ok(at + 1),
            _ => return Err(Break::ObjectEnd),
        }
    }
}

/// The place after a list whose bracket is before `at`.
fn list(bytes: &[u8], at: usize, room: u32) -> Place {
    let room = room.checked_sub(1).ok_or(Break::Depth)?;
    let mut at = blanks(bytes, at);
    if bytes.get(at) == Some(&b']') {
        return Ok(at + 1);
    }
    loop {
        at = blanks(bytes, value(bytes, at, room)?);
        match bytes.get(at) {
            Some(b',') => at = blanks(bytes, at + 1),
            Some(b']') => return Ok(at + 1),
            _ => return Err(Break::ListEnd),
        }
    }
}
