"""Retry policies as values (spec 05 §5.1, R11, R59)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal

import msgspec

from perdure.errors import Serialization

__all__ = ["RetryPolicy"]

U32: Final = 2**32 - 1
U64: Final = 2**64 - 1
_MILLISECOND: Final = timedelta(milliseconds=1)

Backoff = Literal["fixed", "exponential"]
FailureAction = Literal["fail_run", "continue_workflow"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how late a failed step is tried again.

    `max_attempts` counts the first execution; 0 is stored as it is and means 1. `delay_ms` and `max_delay_ms` are
    milliseconds. `on_exhausted` None is `fail_run` in the command form (R11). Any u32 or u64 is a value; whether the
    values fit together is judged where the step is declared (spec 05 §5.2, R59).
    Raises `ValueError` for negative, non-integer or larger numbers.
    """

    max_attempts: int = 3
    delay_ms: int = 0
    backoff: Backoff = "fixed"
    max_delay_ms: int = 0
    on_exhausted: FailureAction | None = None

    def __post_init__(self) -> None:
        _require("max_attempts", self.max_attempts, U32)
        _require("delay_ms", self.delay_ms, U64)
        _require("max_delay_ms", self.max_delay_ms, U64)
        if self.backoff not in ("fixed", "exponential"):
            raise ValueError(f"backoff is 'fixed' or 'exponential', not {self.backoff!r}")
        if self.on_exhausted not in (None, "fail_run", "continue_workflow"):
            raise ValueError(f"on_exhausted is None, 'fail_run' or 'continue_workflow', not {self.on_exhausted!r}")

    @classmethod
    def none(cls) -> RetryPolicy:
        """One attempt and no more."""
        return cls(max_attempts=1)

    @classmethod
    def fixed(cls, max_attempts: int, delay: timedelta = timedelta(0), *, delay_ms: int | None = None) -> RetryPolicy:
        """`max_attempts` (at least 1) attempts, each `delay` after the failure; below a millisecond means at once.

        Give the delay as `delay` or as `delay_ms`.
        """
        return cls(_attempts(max_attempts), _whole_ms("delay", delay, delay_ms))

    @classmethod
    def exponential(
        cls,
        max_attempts: int,
        initial: timedelta = timedelta(0),
        maximum: timedelta = timedelta(0),
        *,
        delay_ms: int | None = None,
        max_delay_ms: int | None = None,
    ) -> RetryPolicy:
        """Full jitter below a limit that doubles from `initial` (at least 1 ms) to `maximum` (at least `initial`)."""
        first = max(_whole_ms("initial", initial, delay_ms), 1)
        most = max(_whole_ms("maximum", maximum, max_delay_ms), first)
        return cls(_attempts(max_attempts), first, "exponential", most)

    def with_failure_action(self, action: FailureAction) -> RetryPolicy:
        """The same policy with what happens when the attempts are used up."""
        return replace(self, on_exhausted=action)

    def continue_workflow_on_failure(self) -> RetryPolicy:
        """The failure goes to the workflow, which reads it with `ctx.step_failed`."""
        return self.with_failure_action("continue_workflow")

    def fail_run_on_failure(self) -> RetryPolicy:
        """The failure ends the run."""
        return self.with_failure_action("fail_run")

    def to_json(self) -> bytes:
        """The policy as the command form writes it; what is at its default is left out (spec 01 §1.4)."""
        out = f'{{"max_attempts":{self.max_attempts},"delay_ms":{self.delay_ms}'
        if self.backoff != "fixed":
            out += f',"backoff":"{self.backoff}"'
        if self.max_delay_ms:
            out += f',"max_delay_ms":{self.max_delay_ms}'
        if self.on_exhausted == "continue_workflow":
            out += ',"on_exhausted":"continue_workflow"'
        return (out + "}").encode()

    @classmethod
    def from_json(cls, raw: bytes) -> RetryPolicy:
        """The policy of its JSON. Raises `Serialization("shape")`."""
        try:
            return msgspec.convert(msgspec.json.decode(raw), cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Serialization("shape", detail=f"not a retry policy: {error}") from None


def _require(name: str, value: object, limit: int) -> None:
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"{name} is an integer from 0 to {limit}, not {value!r}")


def _attempts(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"max_attempts is an integer from 0 to {U32}, not {value!r}")
    return max(value, 1)


def _whole_ms(name: str, delay: timedelta, delay_ms: int | None) -> int:
    """Whole milliseconds, at most 2^64-1 (spec 05 §5.1)."""
    if delay_ms is None:
        if not isinstance(delay, timedelta):
            raise ValueError(f"{name} is a timedelta, not {delay!r}; for a number of milliseconds name it delay_ms")
        delay_ms = delay // _MILLISECOND
    elif delay:
        raise ValueError(f"give {name} as a timedelta or in milliseconds, not both")
    if type(delay_ms) is not int or delay_ms < 0:
        raise ValueError(f"{name} is not negative and a whole number of milliseconds, not {delay_ms!r}")
    return min(delay_ms, U64)
