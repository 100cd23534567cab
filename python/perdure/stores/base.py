"""What a store is to the rest of perdure: it moves bytes and index rows and knows no rule of a run (spec 07,
R47-R50)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.errors import FlowError
from perdure.kernel import Batch

__all__ = [
    "ActiveHook",
    "Committed",
    "FlowEventStore",
    "RunFilter",
    "RunPage",
    "RunRecord",
    "RunSummary",
    "Wakeup",
]


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch is durable. `last_sequence` is the run's, after it."""

    last_sequence: int


@dataclass(frozen=True, slots=True)
class Wakeup:
    """A row of the wakeup index: a wait or a delayed retry of an open run. `scheduled_at` in ns."""

    run_id: str
    kind: str  # "wait" | "retry"
    subject_id: str
    scheduled_at: int
    runtime_build_id: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveHook:
    """A row of the hook index. Token and metadata are read from the run."""

    run_id: str
    hook_id: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A row of the run index (R50). Times in ns."""

    run_id: str
    name: str
    version: str
    build: str | None
    status: str
    terminal: bool
    open_waits: int
    active_hooks: int
    pending_retries: int
    created_at: int
    updated_at: int
    ended_at: int | None
    last_sequence: int


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a listing shows; every field given must hold."""

    status: tuple[str, ...] | None = None
    name: str | None = None
    version: str | None = None
    build: str | None = None
    terminal: bool | None = None


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of a listing, by run id; `next` is the cursor of the following page, None at the end."""

    runs: tuple[RunRecord, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Counters over the whole store, in the order of spec 2.7. The last three count open runs only."""

    total_runs: int = 0
    pending_runs: int = 0
    running_runs: int = 0
    suspended_runs: int = 0
    cancelling_runs: int = 0
    completed_runs: int = 0
    failed_runs: int = 0
    cancelled_runs: int = 0
    terminal_runs: int = 0
    non_terminal_runs: int = 0
    open_waits: int = 0
    active_hooks: int = 0
    pending_retries: int = 0


class FlowEventStore(Protocol):
    """The store contract. All methods but `close` may be called from any task of one event loop, concurrently."""

    async def commit(self, batches: Sequence[Batch]) -> Sequence[Committed | FlowError]:
        """Commits each batch as a whole or refuses it; answers in the order given. At most one batch per run and call.

        Refusals, in this order (R47): `RunConflict("pruned")`, `EventConflict`, `RunNotFound` for a linked run (a
        link to the run itself always exists), `HookTokenConflict` for a token that an active hook of another run
        holds. They are returned. Raised: `StoreUnavailable` (nothing of the call was written), `OutcomeUnknown`,
        `StoreError`."""
        ...

    async def history(self, run_id: str, after: int = 0) -> bytes:
        """The lines of all events past sequence `after`, b"" if there are none. Raises `RunNotFound` for an unknown
        run."""
        ...

    async def list_due_wakeups(self, now: int, limit: int | None = None) -> list[Wakeup]:
        """Wakeups with scheduled_at <= now, ordered by kind (wait, retry), run id bytes, subject id bytes; with
        `limit`, the earliest ones by (scheduled_at, run id, kind, subject id), then put in that order."""
        ...

    async def next_scheduled_wakeup(self) -> Wakeup | None:
        """The earliest wakeup, due or not: min of (scheduled_at, run id, kind, subject id)."""
        ...

    async def find_active_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        """Active hooks of open runs with this SHA-256 of their token, by (run id, hook id)."""
        ...

    async def list_active_hooks(self) -> list[ActiveHook]:
        """All active hooks of open runs, by (run id, hook id)."""
        ...

    async def runs(self, filter: RunFilter = ..., *, after: str | None = None, limit: int = 100) -> RunPage:
        """Rows of the run index past cursor `after`."""
        ...

    async def run_ids(self) -> list[str]:
        """All run ids, sorted by bytes."""
        ...

    async def summary(self) -> RunSummary:
        """The counters of spec 2.7, from the index."""
        ...

    async def close(self) -> None:
        """Waits for what is under way and frees the medium. Idempotent."""
        ...

    def clock(self) -> int:
        """The store's clock, ns (R45)."""
        ...
