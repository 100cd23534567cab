//! The retry policy: its form on the wire, what makes it valid, and the delay after a failure (spec 05).

use crate::error::{Kind, Refusal, Result, Rule};
use crate::json::{self, Flaw, Read, write_name};
use crate::object;
use crate::time::{self, NS_PER_MS, Ns};
use sha2::{Digest, Sha256};

/// Five stored values. Any are kept; whether they make sense is judged by `judge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub max_attempts: u32,
    pub delay_ms: u64,
    pub exponential: bool,
    pub max_delay_ms: u64,
    pub continues: bool,
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
        out.push('{');
        write_name(out, "max_attempts");
        out.push_str(&self.max_attempts.to_string());
        write_name(out, "delay_ms");
        out.push_str(&self.delay_ms.to_string());
        if self.exponential {
            out.push_str(",\"backoff\":\"exponential\"");
        }
        if self.max_delay_ms > 0 {
            write_name(out, "max_delay_ms");
            out.push_str(&self.max_delay_ms.to_string());
        }
        if self.continues {
            out.push_str(",\"on_exhausted\":\"continue_workflow\"");
        }
        out.push('}');
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
