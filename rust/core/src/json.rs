//! JSON without a tree: where a value ends, which members an object has, text in and text out (R27, R30).

use std::borrow::Cow;

/// Deepest nesting of one line or text.
pub const MAX_DEPTH: u32 = 127;

/// Why something cannot be read. Whether that is grammar or form is found out afterwards, off the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flaw(pub &'static str);

pub type Read<T> = Result<T, Flaw>;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

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

impl<'a> Cursor<'a> {
    pub const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn rest(&self) -> &'a [u8] {
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
    #[inline]
    pub fn literal(&mut self, literal: &str) -> bool {
        let found = self.rest().starts_with(literal.as_bytes());
        if found {
            self.at += literal.len();
        }
        found
    }

    #[inline]
    pub fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn byte(&mut self, wanted: u8, otherwise: &'static str) -> Read<()> {
        if self.peek() == Some(wanted) {
            self.at += 1;
            return Ok(());
        }
        Err(Flaw(otherwise))
    }

    /// The next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Read<&'a str> {
        let start = self.at;
        self.at += count;
        self.since(start)
    }

    /// The digits here, as far as they go.
    #[inline]
    pub fn digits(&mut self) -> Read<&'a str> {
        let start = self.at;
        self.skip_digits();
        self.since(start)
    }

    /// How many digits were here.
    #[inline]
    fn skip_digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    /// Lower-case letters and underscores, as far as they go.
    #[inline]
    pub fn word(&mut self) -> &'a str {
        let start = self.at;
        while matches!(self.peek(), Some(b'a'..=b'z' | b'_')) {
            self.at += 1;
        }
        self.since(start).unwrap_or_default()
    }

    /// A string from its opening quote on; the answer is what stands between the quotes, still escaped.
    #[inline]
    pub fn string(&mut self) -> Read<&'a str> {
        let start = self.at + 1;
        self.skip_string()?;
        self.text.get(start..self.at - 1).ok_or(Flaw("cut inside a character"))
    }

    #[inline]
    fn skip_string(&mut self) -> Read<()> {
        self.byte(b'"', "a string was expected")?;
        loop {
            self.at += plain_length(self.rest());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(Flaw("a control character in a string")),
                None => return Err(Flaw("a string without its end")),
            }
        }
    }

    fn escape(&mut self) -> Read<()> {
        let rest = self.rest();
        match rest.get(1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') if rest.get(2..6).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) => self.at += 6,
            _ => return Err(Flaw("an escape that JSON does not have")),
        }
        Ok(())
    }

    fn number(&mut self) -> Read<()> {
        const BROKEN: Flaw = Flaw("a number that is not JSON");
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => {
                self.skip_digits();
            }
            _ => return Err(BROKEN),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.skip_digits() == 0 {
                return Err(BROKEN);
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.skip_digits() == 0 {
                return Err(BROKEN);
            }
        }
        Ok(())
    }

    fn scalar(&mut self) -> Read<()> {
        match self.peek() {
            Some(b'"') => self.skip_string()?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(_) if self.literal("null") || self.literal("true") || self.literal("false") => {}
            _ => return Err(Flaw("a value was expected")),
        }
        Ok(())
    }

    #[inline]
    fn key(&mut self) -> Read<()> {
        self.skip_string()?;
        self.blanks();
        self.byte(b':', "a colon was expected")?;
        self.blanks();
        Ok(())
    }

    /// One whole value, nested at most `room` levels, as the span it takes. Each bit of `kinds` is an open level: 1 for an object.
    pub fn value(&mut self, room: u32) -> Read<&'a str> {
        let start = self.at;
        let (mut depth, mut kinds) = (0_u32, 0_u128);
        loop {
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    depth += 1;
                    if depth > room {
                        return Err(Flaw("nested too deep"));
                    }
                    kinds = (kinds << 1) | u128::from(open == b'{');
                    self.at += 1;
                    self.blanks();
                    if !matches!((self.peek(), open), (Some(b'}'), b'{') | (Some(b']'), b'[')) {
                        if open == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            if self.after_value(&mut depth, &mut kinds)? {
                return self.since(start);
            }
        }
    }

    /// Closes what ends here and steps over a comma; true when the outermost value is done.
    fn after_value(&mut self, depth: &mut u32, kinds: &mut u128) -> Read<bool> {
        while *depth > 0 {
            self.blanks();
            let object = *kinds & 1 == 1;
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.blanks();
                    if object {
                        self.key()?;
                    }
                    return Ok(false);
                }
                Some(b'}') if object => self.at += 1,
                Some(b']') if !object => self.at += 1,
                _ => return Err(Flaw("a comma or a closing bracket was expected")),
            }
            *depth -= 1;
            *kinds >>= 1;
        }
        Ok(true)
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
        if names.get(*guess).is_some_and(|name| self.literal(name)) {
            *guess += 1;
            self.blanks();
            return Ok(Some(*guess - 1));
        }
        let name = unescape(self.string()?)?;
        self.blanks();
        self.byte(b':', "a colon was expected")?;
        self.blanks();
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

/// How many bytes come before the next quote, backslash or control character. Eight at a time.
#[inline]
fn plain_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (ONES * 0x22);
        let slash = word ^ (ONES * 0x5c);
        let stops = ((quote.wrapping_sub(ONES) & !quote)
            | (slash.wrapping_sub(ONES) & !slash)
            | (word.wrapping_sub(ONES * 0x20) & !word))
            & HIGHS;
        if stops != 0 {
            return at + (stops.trailing_zeros() as usize) / 8;
        }
        at += 8;
    }
    at + tail.iter().take_while(|byte| !matches!(byte, 0..0x20 | b'"' | b'\\')).count()
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
    if !raw.as_bytes().contains(&b'\\') {
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
