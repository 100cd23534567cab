"""RetryPolicy: its wire form, its validity, and the deterministic delay (spec 05, R59)."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from perdure.instant import MAX_NS

if TYPE_CHECKING:
    # A type only: the seam is shape, and this kernel imports nothing of the package but errors and instants.
    from perdure.kernel import Policy as PolicyShape

__all__ = ["DEFAULT_POLICY", "MILLISECOND", "Policy", "add_ms", "retry_delay_ms"]

MILLISECOND: Final = 1_000_000
"""Nanoseconds of a millisecond."""
_U64_MAX: Final = 2**64 - 1
_I64_MAX: Final = 2**63 - 1
_JITTER_DOMAIN: Final = b"a3s-flow.retry-jitter.v1"


class Policy(NamedTuple):
    """A retry policy as `step_created` pins it; any u32/u64 values, judged by `fault` and `fits`."""

    max_attempts: int
    delay_ms: int
    backoff: str  # fixed | exponential
    max_delay_ms: int
    on_exhausted: str  # fail_run | continue_workflow

    @property
    def budget(self) -> int:
        """Attempts there are in all; a stored 0 acts as 1 (spec 5.1)."""
        return max(self.max_attempts, 1)

    @property
    def largest_delay_ms(self) -> int:
        return self.max_delay_ms if self.backoff == "exponential" else self.delay_ms

    @property
    def fails_run(self) -> bool:
        return self.on_exhausted == "fail_run"

    def fault(self) -> str | None:
        """The field that breaks the consistency rules of spec 5.2, if one does."""
        if self.backoff != "exponential":
            return "max_delay_ms" if self.max_delay_ms else None
        if self.delay_ms < 1:
            return "delay_ms"
        return "max_delay_ms" if self.max_delay_ms < self.delay_ms else None

    def fits(self, anchor: int) -> bool:
        """Whether the longest delay, counted from `anchor` (ns), stays inside the calendar (spec 5.2)."""
        delay = self.largest_delay_ms
        return delay == 0 or add_ms(anchor, delay) is not None

    def to_json(self) -> str:
        """The policy as on the wire: defaults left out, except the two fields that are always there."""
        parts = [f'"max_attempts":{self.max_attempts},"delay_ms":{self.delay_ms}']
        if self.backoff == "exponential":
            parts.append('"backoff":"exponential"')
        if self.max_delay_ms:
            parts.append(f'"max_delay_ms":{self.max_delay_ms}')
        if not self.fails_run:
            parts.append('"on_exhausted":"continue_workflow"')
        return "{" + ",".join(parts) + "}"


DEFAULT_POLICY: Final = Policy(3, 0, "fixed", 0, "fail_run")
"""What an absent `retry` means (spec 3.1)."""


def add_ms(anchor: int, delay_ms: int) -> int | None:
    """`anchor` (ns) + delay, or None where the delay exceeds i64 milliseconds or the sum leaves the calendar."""
    moment = anchor + delay_ms * MILLISECOND
    return moment if delay_ms <= _I64_MAX and moment <= MAX_NS else None


def retry_delay_ms(policy: PolicyShape, run_id: str, step_id: str, failed_attempt: int) -> int:
    """Delay in ms after `failed_attempt` failed: fixed, or exponential with full jitter (spec 5.3); 0 = at once."""
    if policy.backoff != "exponential":
        return policy.delay_ms
    exponent = min(max(failed_attempt - 1, 0), 63)
    cap = min(policy.delay_ms << exponent, _U64_MAX, policy.max_delay_ms)
    if cap < 1:
        return 0
    run, step = run_id.encode(), step_id.encode()
    preimage = b"".join(
        (
            _JITTER_DOMAIN,
            struct.pack(">Q", len(run)),
            run,
            struct.pack(">Q", len(step)),
            step,
            struct.pack(">I", failed_attempt),
        )
    )
    sample = int.from_bytes(hashlib.sha256(preimage).digest()[:8], "big")
    return 1 + sample % cap
