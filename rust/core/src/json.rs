//! JSON without a tree: where a value ends, which members an object has, text in and text out (R27, R30).

use crate::scan;
use std::borrow::Cow;

/// Deepest nesting of one line or text.
pub const MAX_DEPTH: u32 = 127;

/// Why something cannot be read. Whether that is grammar or form is found out afterwards, off the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flaw(pub &'static str);

pub type Read<T> = Result<T, Flaw>;

/// A place in a text.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

/// The quoted name of a member and its colon, as we and the reference write them.
#[macro_export]
macro_rules! names {
    ($($name:literal),* $(,)?) => { [$(concat!("\"", $name, "\":")),*] };
}

/// The members of an object that is a whole, well-formed span. They mostly come in this order with no others between: then
/// each name is one comparison.
#[macro_export]
macro_rules! object {
    ($span:expr, $first:literal $(, $name:literal)* $(,)?) => {{
        let span = $span;
        let mut cursor = $crate::json::Cursor::new(span);
        let mut in_order = || {
            let found = [
                cursor.member(concat!("{\"", $first, "\":"), $crate::json::MAX_DEPTH)?,
                $(cursor.member(concat!(",\"", $name, "\":"), $crate::json::MAX_DEPTH)?,)*
            ];
            $crate::json::Read::Ok(cursor.literal("}").then_some(found))
        };
        match in_order() {
            Ok(Some(found)) => Ok(found),
            _ => $crate::json::object(span, &$crate::names![$first $(, $name)*]),
        }
    }};
}

impl<'a> Cursor<'a> {
    pub const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The bytes from here on.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    #[inline]
    fn since(&self, start: usize) -> Read<&'a str> {
        self.text.get(start..self.at).ok_or(Flaw("cut inside a character"))
    }

    pub fn at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// Steps over `literal` if it is next.
    #[inline(always)]
    pub fn literal(&mut self, literal: &str) -> bool {
        let found = self.text.as_bytes().get(self.at..).is_some_and(|rest| rest.starts_with(literal.as_bytes()));
        if found {
            self.at += literal.len();
        }
        found
    }

    #[inline]
    pub fn blanks(&mut self) {
        self.at = scan::blanks(self.text.as_bytes(), self.at);
    }

    #[inline]
    fn byte(&mut self, wanted: u8, otherwise: &'static str) -> Read<()> {
        if self.peek() == Some(wanted) {
            self.at += 1;
            return Ok(());
        }
        Err(Flaw(otherwise))
    }

    /// Steps over `count` bytes.
    #[inline]
    pub fn skip(&mut self, count: usize) {
        self.at += count;
    }

    /// The next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Read<&'a str> {
        let start = self.at;
        self.at += count;
        self.since(start)
    }

    /// An unsigned integer that starts with another digit than 0 and has up to 19.
    #[inline]
    pub fn unsigned(&mut self) -> Option<u64> {
        let (number, end) = scan::unsigned(self.text.as_bytes(), self.at)?;
        self.at = end;
        Some(number)
    }

    /// A string from its opening quote on; the answer is what stands between the quotes, still escaped.
    #[inline]
    pub fn string(&mut self) -> Read<&'a str> {
        self.byte(b'"', "a string was expected")?;
        let start = self.at;
        self.at = scan::string(self.text.as_bytes(), start)?;
        self.text.get(start..self.at - 1).ok_or(Flaw("cut inside a character"))
    }

    /// One whole value, nested at most `room` levels, as the span it takes.
    #[inline]
    pub fn value(&mut self, room: u32) -> Read<&'a str> {
        let start = self.at;
        self.at = scan::value(self.text.as_bytes(), start, room)?;
        self.since(start)
    }

    /// The next member's value if it has this name, given with its quotes, its colon and the comma or brace before it.
    #[inline(always)]
    pub fn member(&mut self, name: &'static str, room: u32) -> Read<Option<&'a str>> {
        if self.literal(name) { self.value(room).map(Some) } else { Ok(None) }
    }

    /// An object's values by the given names (made by `names!`), in any order; unknown members are read over, a member twice is refused.
    #[inline]
    pub fn members<const N: usize>(&mut self, names: &[&str; N], room: u32) -> Read<[Option<&'a str>; N]> {
        self.byte(b'{', "an object was expected")?;
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok([None; N]);
        }
        self.more_members(names, room)
    }

    /// The members of an object from the next key on, its closing brace included.
    #[inline]
    pub fn more_members<const N: usize>(&mut self, names: &[&str; N], room: u32) -> Read<[Option<&'a str>; N]> {
        let room = room.checked_sub(1).ok_or(Flaw("nested too deep"))?;
        let mut found = [None; N];
        let mut unknown: Vec<Cow<'a, str>> = Vec::new();
        let mut guess = 0;
        loop {
            let slot = self.member_name(names, &mut guess, &mut unknown)?;
            let value = self.value(room)?;
            let place = slot.and_then(|slot| found.get_mut(slot));
            if place.is_some_and(|place| place.replace(value).is_some()) {
                return Err(Flaw("a key twice"));
            }
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(Flaw("a comma or a closing brace was expected")),
            }
            self.blanks();
        }
        self.at += 1;
        Ok(found)
    }

    /// Which of `names` comes next. They mostly come in order, so the one after the last is tried first.
    #[inline]
    fn member_name<const N: usize>(
        &mut self,
        names: &[&str; N],
        guess: &mut usize,
        unknown: &mut Vec<Cow<'a, str>>,
    ) -> Read<Option<usize>> {
        for (slot, name) in names.iter().enumerate().skip(*guess) {
            if self.literal(name) {
                *guess = slot + 1;
                self.blanks();
                return Ok(Some(slot));
            }
        }
        let name = unescape(self.string()?)?;
        self.at = scan::colon(self.text.as_bytes(), self.at)?;
        let slot = names.iter().position(|known| bare(known) == name);
        match slot {
            Some(slot) => *guess = slot + 1,
            None if unknown.contains(&name) => return Err(Flaw("a key twice")),
            None => unknown.push(name),
        }
        Ok(slot)
    }

    /// The elements of a list, as spans.
    pub fn elements(&mut self, room: u32) -> Read<Vec<&'a str>> {
        self.byte(b'[', "a list was expected")?;
        let room = room.checked_sub(1).ok_or(Flaw("nested too deep"))?;
        let mut items = Vec::new();
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(items);
        }
        loop {
            items.push(self.value(room)?);
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(Flaw("a comma or a closing bracket was expected")),
            }
            self.blanks();
        }
        self.at += 1;
        Ok(items)
    }
}

fn bare<'n>(quoted: &&'n str) -> &'n str {
    quoted.strip_prefix('"').and_then(|name| name.strip_suffix("\":")).unwrap_or(quoted)
}

/// One whole text that is one value with blanks around, or the flaw.
pub fn whole(text: &str) -> Read<&str> {
    whole_within(text, MAX_DEPTH)
}

/// As `whole`, nested at most `room` levels.
pub fn whole_within(text: &str, room: u32) -> Read<&str> {
    let mut cursor = Cursor::new(text);
    cursor.blanks();
    let value = cursor.value(room)?;
    cursor.blanks();
    if cursor.at_end() { Ok(value) } else { Err(Flaw("something follows the value")) }
}

/// The members of an object that is a whole span.
pub fn object<'a, const N: usize>(span: &'a str, names: &[&str; N]) -> Read<[Option<&'a str>; N]> {
    Cursor::new(span).members(names, MAX_DEPTH)
}

/// The text of a string value.
#[inline]
pub fn text(span: &str) -> Read<Cow<'_, str>> {
    let raw = span.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    unescape(raw.ok_or(Flaw("a string was expected"))?)
}

/// What an escaped text says. A surrogate without its other half is refused.
#[inline]
pub fn unescape(raw: &str) -> Read<Cow<'_, str>> {
    if !scan::has_escape(raw) {
        return Ok(Cow::Borrowed(raw));
    }
    let mut out = String::with_capacity(raw.len());
    for unit in Units::new(raw) {
        match unit {
            Unit::Plain(part) => out.push_str(part),
            Unit::Char(character) => out.push(character),
            Unit::Lone(_) => return Err(Flaw("a lone surrogate")),
        }
    }
    Ok(Cow::Owned(out))
}

/// A piece of an escaped text.
#[derive(Debug)]
pub enum Unit<'a> {
    Plain(&'a str),
    Char(char),
    /// A surrogate escape without its other half.
    Lone(u16),
}

/// The pieces of a text between quotes whose escapes are known to be well-formed.
#[derive(Debug)]
pub struct Units<'a> {
    rest: &'a str,
}

impl<'a> Units<'a> {
    pub const fn new(raw: &'a str) -> Self {
        Self { rest: raw }
    }

    /// A `\uXXXX` at the start, as its code unit.
    fn code_unit(text: &str) -> Option<u16> {
        let hex = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(hex, 16).ok()
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn unicode(&mut self) -> Unit<'a> {
        let first = Self::code_unit(self.rest).unwrap_or_default();
        self.skip(6);
        if let Some(character) = char::from_u32(u32::from(first)) {
            return Unit::Char(character);
        }
        let pair = Self::code_unit(self.rest).and_then(|second| char::decode_utf16([first, second]).next()?.ok());
        match pair {
            Some(character) => {
                self.skip(6);
                Unit::Char(character)
            }
            None => Unit::Lone(first),
        }
    }
}

impl<'a> Iterator for Units<'a> {
    type Item = Unit<'a>;

    fn next(&mut self) -> Option<Unit<'a>> {
        let plain = self.rest.find('\\').unwrap_or(self.rest.len());
        if plain > 0 {
            let part = self.rest.get(..plain)?;
            self.skip(plain);
            return Some(Unit::Plain(part));
        }
        let character = match *self.rest.as_bytes().get(1)? {
            b'u' => return Some(self.unicode()),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            other => char::from(other),
        };
        self.skip(2);
        Some(Unit::Char(character))
    }
}

/// An unsigned integer lexeme: digits and nothing else.
#[inline]
pub fn unsigned(span: &str) -> Read<u64> {
    if !span.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Flaw("an unsigned integer was expected"));
    }
    span.parse().map_err(|_| Flaw("an unsigned 64-bit integer was expected"))
}

#[inline]
pub fn unsigned32(span: &str) -> Read<u32> {
    u32::try_from(unsigned(span)?).map_err(|_| Flaw("an unsigned 32-bit integer was expected"))
}

/// Writes a string as the kernels write theirs (R27).
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\')) {
        out.push_str(rest.get(..at).unwrap_or_default());
        match rest.as_bytes().get(at).copied().unwrap_or_default() {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            8 => out.push_str("\\b"),
            12 => out.push_str("\\f"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => {
                out.push_str("\\u00");
                out.extend(
                    [control >> 4, control & 15].map(|half| char::from_digit(u32::from(half), 16).unwrap_or('0')),
                );
            }
        }
        rest = rest.get(at + 1..).unwrap_or_default();
    }
    out.push_str(rest);
    out.push('"');
}

/// Writes `"name":`, after a comma unless it is the first of its object.
pub fn write_name(out: &mut String, name: &str) {
    if !out.ends_with('{') {
        out.push(',');
    }
    out.push('"');
    out.push_str(name);
    out.push_str("\":");
}
