//! Instants as nanoseconds since 1970-01-01T00:00:00Z, years 0001 to 9999 (R31), and their text (spec 01 §1.5).

use crate::json::{Flaw, Read};
use std::fmt::Write;

/// Nanoseconds since 1970-01-01T00:00:00Z.
pub type Ns = i128;

const NS: i128 = 1_000_000_000;
pub const NS_PER_MS: i128 = 1_000_000;
const DAY: i64 = 86_400;
const MIN_SECONDS: i64 = -62_135_596_800;
const MAX_SECONDS: i64 = 253_402_300_799;
/// 0001-01-01T00:00:00Z.
pub const MIN: Ns = MIN_SECONDS as i128 * NS;
/// 9999-12-31T23:59:59.999999999Z.
pub const MAX: Ns = MAX_SECONDS as i128 * NS + (NS - 1);

const WRONG: Flaw = Flaw("a timestamp such as 2026-01-02T03:04:05.678Z was expected");

/// Reads RFC 3339 text; digits past nine are cut.
#[inline]
pub fn parse(text: &str) -> Read<Ns> {
    let (date, rest) = text.as_bytes().split_first_chunk::<19>().ok_or(WRONG)?;
    let seconds = date_time(date)?;
    let (nanos, rest) = fraction(rest)?;
    let seconds = match rest {
        b"Z" | b"z" => seconds,
        _ => seconds - offset(rest)?,
    };
    if !(MIN_SECONDS..=MAX_SECONDS).contains(&seconds) {
        return Err(Flaw("a timestamp outside the years 0001 to 9999"));
    }
    Ok(i128::from(seconds) * NS + i128::from(nanos))
}

/// The last minute that was read: the lines of a history come in bursts, and most share it with the line before.
#[derive(Debug, Default)]
pub struct Minute {
    /// Such as `2026-01-02T03:04:`.
    text: [u8; 17],
    seconds: i64,
}

impl Minute {
    /// Reads the timestamp at the start of `text` if it ends with `Z`, as we write it, and how long it is.
    #[inline]
    pub fn parse_start(&mut self, text: &[u8]) -> Option<(Ns, usize)> {
        let (date, rest) = text.split_first_chunk::<19>()?;
        let (minute, &[tens, ones]) = date.split_first_chunk::<17>()? else { return None };
        if *minute != self.text {
            let seconds = date_time(date).ok().filter(|seconds| (MIN_SECONDS..=MAX_SECONDS).contains(seconds))?;
            (self.text, self.seconds) = (*minute, seconds - pair(tens, ones).ok()?);
        }
        let second = pair(tens, ones).ok().filter(|second| *second < 60)?;
        let (nanos, rest) = fraction(rest).ok()?;
        let (b'Z', rest) = rest.split_first()? else { return None };
        Some((i128::from(self.seconds + second) * NS + i128::from(nanos), text.len() - rest.len()))
    }
}

#[inline]
fn pair(tens: u8, ones: u8) -> Read<i64> {
    let (tens, ones) = (tens.wrapping_sub(b'0'), ones.wrapping_sub(b'0'));
    if tens > 9 || ones > 9 {
        return Err(WRONG);
    }
    Ok(i64::from(tens) * 10 + i64::from(ones))
}

#[inline]
fn date_time(text: &[u8; 19]) -> Read<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' ', h1, h2, b':', n1, n2, b':', s1, s2] = *text
    else {
        return Err(WRONG);
    };
    let year = pair(y1, y2)? * 100 + pair(y3, y4)?;
    let (month, day) = (pair(m1, m2)?, pair(d1, d2)?);
    let (hour, minute, second) = (pair(h1, h2)?, pair(n1, n2)?, pair(s1, s2)?);
    let whole = (1..=12).contains(&month)
        && (1..=month_length(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !whole {
        return Err(WRONG);
    }
    Ok(days(year, month, day) * DAY + hour * 3_600 + minute * 60 + second)
}

const fn month_length(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01, counting years from March so that the leap day comes last.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[inline]
fn fraction(rest: &[u8]) -> Read<(u32, &[u8])> {
    let Some((b'.', digits)) = rest.split_first() else {
        return Ok((0, rest));
    };
    let (mut nanos, mut length) = (0_u32, 0);
    while let Some(digit) = digits.get(length).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9) {
        if length < 9 {
            nanos = nanos * 10 + u32::from(digit);
        }
        length += 1;
    }
    match length {
        0 => Err(WRONG),
        _ => Ok((nanos * POWERS.get(length).unwrap_or(&1), digits.get(length..).unwrap_or_default())),
    }
}

/// What makes nanoseconds of so many fraction digits.
const POWERS: [u32; 10] = [1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1_000, 100, 10, 1];

fn offset(text: &[u8]) -> Read<i64> {
    let &[sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] = text else {
        return Err(WRONG);
    };
    let (hours, minutes) = (pair(h1, h2)?, pair(m1, m2)?);
    if hours > 23 || minutes > 59 {
        return Err(WRONG);
    }
    let seconds = hours * 3_600 + minutes * 60;
    Ok(if sign == b'-' { -seconds } else { seconds })
}

/// `at` as text with the shortest of 0, 3, 6 or 9 fraction digits that is exact.
pub fn format(at: Ns) -> String {
    let nanos = at.rem_euclid(NS);
    let (digits, scale) = match nanos {
        0 => (0, 1),
        _ if nanos % 1_000_000 == 0 => (3, 1_000_000),
        _ if nanos % 1_000 == 0 => (6, 1_000),
        _ => (9, 1),
    };
    with_fraction(at, digits, nanos / scale)
}

/// `at` with exactly nine fraction digits: text order is time order (spec 07 §7.5).
pub fn due_key(at: Ns) -> String {
    with_fraction(at, 9, at.rem_euclid(NS))
}

fn with_fraction(at: Ns, digits: usize, fraction: i128) -> String {
    let seconds = i64::try_from(at.div_euclid(NS)).unwrap_or(MAX_SECONDS);
    let (year, month, day) = civil(seconds.div_euclid(DAY));
    let of_day = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let mut out = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if digits > 0 {
        // Writing into a String cannot fail.
        let _ = write!(out, ".{fraction:0digits$}");
    }
    out.push('Z');
    out
}

const fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = days.div_euclid(146_097) * 400 + year_of_era;
    (if month <= 2 { year + 1 } else { year }, month, day)
}
