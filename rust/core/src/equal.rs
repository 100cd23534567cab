//! JSON equality: structural, and type-aware about numbers (spec 01 §1.7, R29).

use crate::error::{Fault, Refusal, Result};
use crate::json::{self, Cursor, Flaw, MAX_DEPTH, Read, Unit, Units};
use crate::names;
use std::collections::HashMap;

/// Whether two texts say the same. `Serialization` for one that is not JSON.
pub fn json_equal(left: &str, right: &str) -> Result<bool> {
    let value = |text| json::whole(text).map_err(|flaw| Refusal::unreadable(Fault::Malformed, flaw.0));
    Ok(same(value(left)?, value(right)?))
}

/// Whether two well-formed values say the same.
pub fn same(left: &str, right: &str) -> bool {
    left == right || matches!((tree(left, MAX_DEPTH), tree(right, MAX_DEPTH)), (Ok(left), Ok(right)) if left == right)
}

/// As `same` where an absent value counts as null.
pub fn same_or_null(left: Option<&str>, right: Option<&str>) -> bool {
    same(left.unwrap_or("null"), right.unwrap_or("null"))
}

#[derive(Debug, PartialEq)]
enum Tree<'a> {
    /// `null`, `true`, `false`.
    Word(&'a str),
    Integer(i128),
    Float(f64),
    /// An integer beyond 64 bits or a float beyond its range equals only the same lexeme.
    Lexeme(&'a str),
    Text(Vec<u8>),
    List(Vec<Tree<'a>>),
    Object(HashMap<Vec<u8>, Tree<'a>>),
}

fn tree(span: &str, room: u32) -> Read<Tree<'_>> {
    let room_inside = room.saturating_sub(1);
    Ok(match span.bytes().next() {
        Some(b'{') => {
            let mut members = HashMap::new();
            for (name, value) in pairs(span, room)? {
                members.insert(exact(name), tree(value, room_inside)?);
            }
            Tree::Object(members)
        }
        Some(b'[') => {
            let elements = Cursor::new(span).elements(room)?;
            Tree::List(elements.into_iter().map(|element| tree(element, room_inside)).collect::<Read<_>>()?)
        }
        Some(b'"') => Tree::Text(exact(Cursor::new(span).string()?)),
        Some(b'-' | b'0'..=b'9') => number(span),
        Some(_) => Tree::Word(span),
        None => return Err(Flaw("a value was expected")),
    })
}

/// The members of an object as spans, names still escaped.
fn pairs(span: &str, room: u32) -> Read<Vec<(&str, &str)>> {
    // An object has the commas and nesting of a list; only its names stand between, so it is read member by member.
    let mut cursor = Cursor::new(span);
    let mut out = Vec::new();
    cursor.literal("{");
    cursor.blanks();
    while cursor.peek() == Some(b'"') {
        let name = cursor.string()?;
        cursor.blanks();
        cursor.literal(":");
        cursor.blanks();
        out.push((name, cursor.value(room)?));
        cursor.blanks();
        cursor.literal(",");
        cursor.blanks();
    }
    Ok(out)
}

fn number(lexeme: &str) -> Tree<'_> {
    if lexeme.contains(['.', 'e', 'E']) || lexeme == "-0" {
        return match lexeme.parse::<f64>() {
            Ok(float) if float.is_finite() => Tree::Float(float),
            _ => Tree::Lexeme(lexeme),
        };
    }
    match lexeme.parse::<i128>() {
        Ok(integer) if (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&integer) => Tree::Integer(integer),
        _ => Tree::Lexeme(lexeme),
    }
}

/// What an escaped text says, exactly: a lone surrogate becomes its three bytes, which no other text has.
fn exact(raw: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    for unit in Units::new(raw) {
        match unit {
            Unit::Plain(part) => out.extend_from_slice(part.as_bytes()),
            Unit::Char(character) => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            Unit::Lone(unit) => {
                let [high, low] = unit.to_be_bytes();
                out.extend([0xe0 | (high >> 4), 0x80 | ((high & 15) << 2) | (low >> 6), 0x80 | (low & 63)]);
            }
        }
    }
    out
}

/// Equality of specs as R28 writes them; a given spec without a build equals any stored build (R57).
pub fn same_spec(stored: &str, given: &str) -> bool {
    const NAMES: [&str; 6] = names!["name", "version", "runtime", "runtime_build_id", "patch_markers", "signal_names"];
    let read = |spec| Cursor::new(spec).members(&NAMES, MAX_DEPTH);
    let (Ok(mut stored), Ok(given)) = (read(stored), read(given)) else {
        return false;
    };
    if given[3].is_none() {
        stored[3] = None;
    }
    stored.iter().zip(&given).all(|(stored, given)| same_or_null(*stored, *given))
}
