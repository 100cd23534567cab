"""What a drive asks of its shell, and what it is answered: plain values, no behaviour (rulings §G).

Look          → `Standing`: who leases the run, and where it was parked
Load          → the lines past a sequence
Commit        → `Accepted` (the batch it made of the view, and whether the lease is held), or the store's refusal
Failed        → None; the drive fails without a commit of its own, the run may have to be held (R43)
StartSteps    → None; the attempts now run
Release       → None; these attempts no longer count: tell them, then let them go
NextOutcomes  → `Taken`: what finished, and what the shell noticed meanwhile
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from perdure.errors import FlowError
from perdure.kernel import Batch, Reads, View

__all__ = [
    "Accepted",
    "After",
    "Asked",
    "Attempt",
    "Commit",
    "CommitMode",
    "DriveOptions",
    "Effect",
    "Failed",
    "HistoryNeeded",
    "Load",
    "Look",
    "NextOutcomes",
    "Opening",
    "Outcome",
    "Program",
    "Release",
    "Standing",
    "StartSteps",
    "Taken",
]

CommitMode = Literal["staged", "each"]
After = Literal["keep", "park", "fail"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a step, to be launched or live."""

    step_id: str
    attempt: int
    step_name: str
    input: bytes
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended; `outcome` is the JSON of `Reads.settle`. `told`: what a log may say of a failure, which is no value
    of the user's (R60); None for an attempt that completed."""

    step_id: str
    attempt: int
    outcome: bytes
    told: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    after: int


@dataclass(frozen=True, slots=True)
class Look:
    pass


@dataclass(frozen=True, slots=True)
class Standing:
    """`held_elsewhere`: another owner's lease is live. `parked`: the sequence at which the run was parked, or -1 (R3).
    `marked`: the run is held or backs off, which an accepted decision ends (R43, R44). `failures`, `lost`: as in `Opening`."""

    held_elsewhere: bool
    parked: int
    marked: bool = False
    failures: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """`after`: what becomes of the lease with this commit; `accepted`: it holds a decision that was accepted (R44);
    `error`: why the drive fails, with `after="fail"`."""

    view: View
    after: After = "keep"
    accepted: bool = False
    error: FlowError | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    error: FlowError


@dataclass(frozen=True, slots=True)
class StartSteps:
    """`renew`: a redelivery goes out without a commit, so the lease must be renewed first (R2)."""

    attempts: tuple[Attempt, ...]
    renew: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """`ended`: the run is over, so nobody waits any longer (R20); else the attempts get a grace period (R21)."""

    attempts: tuple[tuple[str, int], ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class NextOutcomes:
    until: int | None


@dataclass(frozen=True, slots=True)
class Accepted:
    batch: Batch
    held: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """`horizon`: the latest that a joining call handed over, or None. `foreign`: another process may have appended."""

    outcomes: tuple[Outcome, ...]
    horizon: int | None = None
    foreign: bool = False


Effect = Look | Load | Commit | Failed | StartSteps | Release | NextOutcomes


class HistoryNeeded(BaseException):
    """The workflow reads `ctx.history`, which this drive has not loaded yet. Not an Exception: workflow code must not
    catch it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the workflow answered: the command's JSON, and the attempt time limits it names, in ms."""

    command: bytes
    timeouts: Mapping[str, int]


class Program(Protocol):
    """The workflow side of a drive: pure functions of what they are given."""

    def ask(self, reads: Reads, history: Callable[[], bytes]) -> Asked:
        """One call of the workflow. Raises a `FlowError`; `HistoryNeeded` passes through."""
        ...

    def accepted(self) -> None:
        """What was asked last was committed, or changed nothing: what it holds back may be shown, and what it keeps
        stays good (R4)."""
        ...

    @property
    def kept_bytes(self) -> int:
        """About how much is kept between asks."""
        ...

    def check_payload(self, reads: Reads, hook_id: str, payload: bytes) -> None:
        """Raises `Serialization("payload")` if the workflow is known to want another type from this open hook. `reads` has
        committed events only."""
        ...

    def close(self) -> None:
        """Lets go of what is kept between asks; it can be asked again all the same (R63)."""
        ...

    def timeout_ms(self, step_name: str, step_id: str) -> int | None:
        """The step's declared time limit. Raises `StepNotRegistered`."""
        ...


@dataclass(frozen=True, slots=True)
class DriveOptions:
    limit: int  # passes and conflicts in a row (R6)
    concurrency: int  # live attempts per run (R26)
    mode: CommitMode
    leases: bool = False  # hold the run's lease while driving (R2)
    max_events: int = 200_000  # the longest history a decision may make (R6)
    settle_grace: int | None = None  # ns to wait for running attempts after a refusal (R14)


@dataclass(frozen=True, slots=True)
class Opening:
    """How a drive begins. `start`: the JSON of the start call, for a run that may not exist yet (R17).
    `due`: complete the waits due at this instant with the first commit (R9). `held`: the caller claimed the lease.
    `take_over`: another owner's live lease does not stand in the way (R2). `failures`: how many drives in a row have
    failed; `lost`: so has the last one, which its owner did not come to count (R44). `start_again` gives the start call as it is
    compared with a run that another created: with a codec, its input in the recorded bytes where it is equal (R42)."""

    horizon: int
    start: bytes | None = None
    due: int | None = None
    held: bool = False
    take_over: bool = False
    worker: bool = False  # its failures are counted on the run (R44)
    failures: int = 0
    lost: bool = False
    start_again: Callable[[Reads], bytes] | None = None
