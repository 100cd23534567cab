//! The retry policy: its form on the wire, what makes it valid, and the delay after a failure (spec 05).

use crate::error::{Kind, Refusal, Result, Rule};
use crate::json::{self, Flaw, Read};
use crate::object;
use crate::time::{self, NS_PER_MS, Ns};
use sha2::{Digest, Sha256};
use std::fmt;

/// Five stored values. Any are kept; whether they make sense is judged by `judge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub max_attempts: u32,
    pub delay_ms: u64,
    pub exponential: bool,
    pub max_delay_ms: u64,
    pub continues: bool,
}

/// What is left of a text after what was written, as long as they agree.
struct Left<'a>(&'a str);

impl fmt::Write for Left<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(piece).ok_or(fmt::Error)?;
        Ok(())
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self { max_attempts: 3, delay_ms: 0, exponential: false, max_delay_ms: 0, continues: false }
    }
}

impl Policy {
    pub fn read(span: &str) -> Read<Self> {
        let [attempts, delay, backoff, max_delay, exhausted] =
            object!(span, "max_attempts", "delay_ms", "backoff", "max_delay_ms", "on_exhausted")?;
        Ok(Self {
            max_attempts: json::unsigned32(attempts.ok_or(Flaw("max_attempts is missing"))?)?,
            delay_ms: json::unsigned(delay.ok_or(Flaw("delay_ms is missing"))?)?,
            exponential: match backoff.map(json::text).transpose()?.as_deref() {
                None | Some("fixed") => false,
                Some("exponential") => true,
                Some(_) => return Err(Flaw("backoff is fixed or exponential")),
            },
            max_delay_ms: max_delay.map_or(Ok(0), json::unsigned)?,
            continues: match exhausted.map(json::text).transpose()?.as_deref() {
                None | Some("fail_run") => false,
                Some("continue_workflow") => true,
                Some(_) => return Err(Flaw("on_exhausted is fail_run or continue_workflow")),
            },
        })
    }

    /// The policy as on the wire, defaults left out.
    pub fn write(&self, out: &mut String) {
        let _: fmt::Result = self.put(out); // a string takes everything
    }

    fn put(&self, out: &mut impl fmt::Write) -> fmt::Result {
        write!(out, "{{\"max_attempts\":{},\"delay_ms\":{}", self.max_attempts, self.delay_ms)?;
        if self.exponential {
            out.write_str(",\"backoff\":\"exponential\"")?;
        }
        if self.max_delay_ms > 0 {
            write!(out, ",\"max_delay_ms\":{}", self.max_delay_ms)?;
        }
        if self.continues {
            out.write_str(",\"on_exhausted\":\"continue_workflow\"")?;
        }
        out.write_char('}')
    }

    /// Whether `text` is what `write` writes, found without writing it.
    pub fn is_written(&self, text: &str) -> bool {
        let mut left = Left(text);
        self.put(&mut left).is_ok() && left.0.is_empty()
    }

    pub fn json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    /// Attempts allowed, the first included; a stored 0 means 1.
    pub fn budget(&self) -> u32 {
        self.max_attempts.max(1)
    }

    /// Refuses a policy that contradicts itself or whose largest delay leaves the calendar from `at` on (spec 05 §5.2).
    pub fn judge(&self, step_id: &str, at: Ns) -> Result<()> {
        let wrong = match (self.exponential, self.delay_ms, self.max_delay_ms) {
            (false, _, 0) => None,
            (true, 0, _) => Some("delay_ms"),
            (true, delay, max) if max >= delay => None,
            _ => Some("max_delay_ms"),
        };
        if let Some(part) = wrong {
            return Err(Refusal::with(Rule::PolicyInvalid, Kind::Step, step_id, part));
        }
        let largest = if self.exponential { self.max_delay_ms } else { self.delay_ms };
        deadline(at, largest)
            .filter(|_| i64::try_from(largest).is_ok())
            .map(drop)
            .ok_or_else(|| Refusal::with(Rule::DelayOutOfRange, Kind::Step, step_id, largest))
    }

    /// Milliseconds between a failure and the next attempt; 0 = at once (spec 05 §5.3).
    pub fn delay_after(&self, run_id: &str, step_id: &str, failed_attempt: u32) -> u64 {
        if !self.exponential {
            return self.delay_ms;
        }
        let exponent = failed_attempt.saturating_sub(1).min(63);
        let cap = self.delay_ms.saturating_mul(1 << exponent).min(self.max_delay_ms);
        match sample(run_id, step_id, failed_attempt).checked_rem(cap) {
            Some(part) => part.saturating_add(1),
            // A cap of 0 belongs to no valid policy and means no delay.
            None => 0,
        }
    }
}

/// The first eight bytes of the hash that spreads the delays; no clock and no generator is asked, so a restart gives the same.
fn sample(run_id: &str, step_id: &str, failed_attempt: u32) -> u64 {
    let mut hash = Sha256::new();
    hash.update(b"a3s-flow.retry-jitter.v1");
    for id in [run_id, step_id] {
        hash.update((id.len() as u64).to_be_bytes());
        hash.update(id);
    }
    hash.update(failed_attempt.to_be_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// `at` plus so many milliseconds, if the calendar has that instant.
pub fn deadline(at: Ns, delay_ms: u64) -> Option<Ns> {
    let due = at + i128::from(delay_ms) * NS_PER_MS;
    (due <= time::MAX).then_some(due)
}
