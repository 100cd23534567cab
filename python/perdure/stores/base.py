"""What a store is to the rest of perdure: it moves bytes and index rows and knows no rule of a run (spec 07,
R47-R50)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from perdure.errors import FlowError, LeaseLost
from perdure.kernel import Batch

if TYPE_CHECKING:
    from perdure.retention import HistoryHold, PruneProgress, PruneReport, RunSelection, Tombstone

__all__ = [
    "ActiveHook",
    "After",
    "Append",
    "Claim",
    "Claimed",
    "Committed",
    "FlowEventStore",
    "Lease",
    "LeaseState",
    "Outlook",
    "RunFilter",
    "RunPage",
    "RunRecord",
    "RunSummary",
    "Runnable",
    "RunnablePage",
    "Wakeup",
]


Claim = Literal["none", "firm", "if_free", "take_over"]
"""Whether a commit claims the lease. `firm` is refused with `LeaseHeld` while another owner's lease is live, `if_free` is
committed without the claim then, `take_over` claims all the same. A claim adds 1 to the epoch, also over the owner's own
live lease."""
After = Literal["keep", "park", "free", "fail"]
"""What becomes of the lease after a commit: it is kept, or given back with the workflow having seen everything (`park`,
R3), with work left (`free`), or because the drive failed (`fail`, R44)."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What a commit says of the run's lease (R2, R3, R43, R44, R47)."""

    owner: str
    """Text of the process's identity (R2); opaque to the store."""
    ttl_ns: int
    """Time from the store's clock to the expiry of a lease claimed or renewed, ns."""
    epoch: int | None = None
    """The epoch held: the commit is `LeaseLost` unless the run has this owner and epoch. None: no lease is held."""
    claim: Claim = "none"
    unless_leased: bool = False
    """The commit of a drive without a lease: `LeaseHeld` while another's is live."""
    after: After = "keep"
    """`keep` renews to now + ttl when less than half of ttl is left."""
    accepted: bool = False
    """The batch holds an accepted decision: failures, back-off and hold are cleared (R43, R44)."""
    counted: bool = False
    """With `after="fail"`: failures + 1 and a back-off of fraction * min(10 min, 1 s * 2^failures), failures before the
    + 1 (R44)."""
    fraction: float = 0.0
    """Uniform in [0, 1], drawn by the caller."""
    may_hold: bool = True
    """Whether reaching `max_failures` holds the run; not for `HookTokenConflict` and `RunNotFound` of a link (R44)."""
    max_failures: int = 20
    hold: str | None = None
    """JSON text of a run hold to set with the release (R43); a terminal run takes none. An object; member "builds" lists the
    builds whose drives caused it."""
    build: str | None = None
    """The build of the process, noted in the hold that reaching `max_failures` sets."""


@dataclass(
    slots=True
)  # not frozen, as each commit makes one of these and one of the next, and that would cost twice as much
class Append:
    """One batch to commit. `lease` is None for a foreign append, that is by a call that does not drive (R23): such an
    append is never refused for a lease."""

    batch: Batch
    lease: Lease | None = None
    restored: bool = False
    """The whole history of a run that comes from elsewhere: runs that it is linked to may be missing."""


@dataclass(slots=True)
class Committed:
    """A batch is durable. `last_sequence` is the run's, after it."""

    last_sequence: int
    now: int = field(default=0, compare=False)
    """The store's clock, ns, read inside the transaction (R45)."""
    epoch: int | None = None
    """The epoch of the lease this owner holds after the commit; None if it holds none."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run whose lease `claim` gave out. `now` is the store's clock, ns. `failures`: how many drives in a row have failed
    (R44). `lost`: the last one's owner never gave the lease back, because its process ended or stood still, and others had failed
    before; the claimer is to count that, by giving the run back as failed. A first loss the claim has counted itself."""

    run_id: str
    epoch: int
    last_sequence: int
    now: int = field(default=0, compare=False)
    failures: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What a run's row says of lease, parking, failures and hold, outside the history (R3, R43, R44)."""

    owner: str | None
    epoch: int
    parked_sequence: int
    failures: int
    not_before: int | None
    """Back-off of a failed drive: ns since 1970, in whole microseconds; 0 if its owner died, which is yet to be counted, and
    nothing touched the run since."""
    hold: str | None
    """JSON text of the run hold."""
    claim_at: int | None
    """R3's column: microseconds since 1970, rounded up."""
    live: bool
    """Whether somebody's lease has not expired."""
    last_sequence: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What an idle worker sees (R3). `now` is the store's clock, ns; `claim_at` what it sleeps until, as `next_claim` gives it;
    `owners` those who lease runs, live or expired."""

    now: int
    claim_at: int | None
    owners: tuple[str, ...]


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
    hold: str | None = None
    """JSON text of the run hold, None for a run that is not held (R43)."""
    failures: int = 0
    """Drives that failed in a row since the last decision that was accepted (R44)."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a listing shows; every field given must hold."""

    status: tuple[str, ...] | None = None
    name: str | None = None
    version: str | None = None
    build: str | None = None
    terminal: bool | None = None
    held: bool | None = None


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


@dataclass(frozen=True, slots=True)
class Runnable:
    """A runnable run (R3) as a scheduler sees it: its build, where its history ends, and how many of its wakeups are due."""

    run_id: str
    build: str | None
    last_sequence: int
    due_waits: int
    due_retries: int


@dataclass(frozen=True, slots=True)
class RunnablePage:
    """Runs in the order of claims. `next` is the cursor of the following page; on the last page it is None and `next_at` says
    when the next run becomes runnable by itself, ns, None for never."""

    runs: tuple[Runnable, ...]
    next: tuple[int, str] | None
    next_at: int | None


class FlowEventStore(Protocol):
    """The store contract. All methods but `close` may be called from any task of one event loop, concurrently."""

    async def commit(self, appends: Sequence[Append]) -> Sequence[Committed | FlowError]:
        """Commits each batch as a whole, with what it says of the lease, or refuses it; answers in the order given. At most
        one batch per run and call.

        Refusals, in this order (R47): `RunConflict("pruned")`, `LeaseLost`, `LeaseHeld`, `EventConflict`, `RunNotFound` for
        a linked run (a link to the run itself always exists), `HookTokenConflict` for a token that an active hook of
        another run holds. They are returned. Raised: `StoreUnavailable` (nothing of the call was written),
        `OutcomeUnknown`, `StoreError`. A batch without events changes the lease only, and conflicts like any other."""
        ...

    async def claim(
        self,
        owner: str,
        k: int,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
        ttl_ns: int,
    ) -> list[Claimed]:
        """Gives `owner` the leases of the first `k` runnable runs (R3) by (claim_at, run id) whose (workflow, version) is in
        `workflows` and whose build is in `builds`, None taking any, and whose id is not among `besides`. An expired lease on
        a held run met on the way is cleared from the order of claims.

        Taking over the expired lease of another owner is a failure (R44): see `Claimed`."""
        ...

    async def claim_held(
        self,
        owner: str,
        k: int,
        *,
        build: str,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
        ttl_ns: int,
    ) -> list[Claimed]:
        """Gives `owner` the leases of the first `k` held runs, by run id, that nobody leases, of known workflow and build,
        whose hold does not name the worker's own `build` among its builds (R43). The hold stays, and failures are counted as
        by `claim`."""
        ...

    async def next_claim(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> int | None:
        """The earliest claim_at of a run that is not held, of known workflow and build, not among `besides`, microseconds,
        due or not; None if there is none (R3)."""
        ...

    async def outlook(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> Outlook:
        """What an idle worker looks at before it claims, in one query: `next_claim`, the store's clock, and who leases runs
        (R2, R3)."""
        ...

    async def renew(
        self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int
    ) -> list[tuple[str, int] | LeaseLost]:
        """Renews leases, each given as (run id, epoch); with `ttl_ns=0` they are given back. Answers in that order: (run id,
        last sequence), or `LeaseLost`."""
        ...

    async def lease(self, run_id: str) -> LeaseState:
        """The lease columns of a run. Raises `RunNotFound` for an unknown run."""
        ...

    async def void(self, owner: str) -> int:
        """Ends all leases of `owner`, who is known to be dead, so that its runs can be claimed at once, and adds 1 to the
        failures of each (R44). How many."""
        ...

    async def set_hold(self, run_id: str, hold: str, *, expected_sequence: int) -> bool:
        """Holds an open run without a lease (R43), if nobody's lease is live and `last_sequence` is as expected. Whether it
        did. Raises `RunNotFound`."""
        ...

    async def release_hold(self, run_id: str) -> bool:
        """Ends a hold: the run counts as never parked and never failed (R3). False if it was not held. Raises
        `RunNotFound`."""
        ...

    async def last_sequences(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Last sequence of each of these runs that exists, in one read."""
        ...

    async def changes(self) -> int:
        """A number that differs from the one before if anything was committed between, by this process or another."""
        ...

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """`changes()`, as soon as it may differ from `seen`, at most `timeout_seconds` later. A hint: who relies on what has
        changed must look."""
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

    async def summary_by_build(self) -> dict[str | None, RunSummary]:
        """The same for the runs of each build, None for runs that are not pinned to one; so an operator sees when the last
        open run of an old build has ended (spec 08 §8.5)."""
        ...

    async def runnable(self, now: int, *, after: tuple[int, str] | None = None, limit: int = 1000) -> RunnablePage:
        """One page of the runs that are runnable at `now`, by (claim_at, run id): what a scheduler sends tasks for (R46). Leases
        and back-offs end by the store's clock, whatever `now` is. At most `limit` runs are looked at."""
        ...

    def elsewhere(self) -> FlowEventStore | None:
        """Another store over the same medium for another event loop of the process, which whoever asked closes; None if this one
        serves every loop."""
        ...

    async def prune(
        self,
        cutoff: int,
        filter: RunSelection = ...,
        *,
        batch: int = 500,
        dry_run: bool = False,
        progress: Callable[[PruneProgress], None] | None = None,
    ) -> PruneReport:
        """Deletes the runs that `filter` means and that ended before `cutoff` (ns; their last event lies strictly before it),
        with everything kept of them, for good: their ids cannot be used again (R51). Runs linked to each other, in either
        direction and however far, go together or stay; one that is missing, held by a retention hold or
        left out by `filter` keeps them all.

        Up to `batch` runs go in a transaction, those of a larger component in several, and `progress` is told after
        each. A prune that was cut short is finished by the next one. Raises `RunNotFound` for an id that `filter`
        names and that never was, before anything is deleted."""
        ...

    async def tombstone(self, run_id: str) -> Tombstone | None:
        """What is left of a pruned run; None for any other id."""
        ...

    async def hold_history(self, run_id: str, hold_id: str, reason: str) -> bool:
        """Keeps a run's history from being pruned, until the hold of that id is released; a run may have several. False if
        it is there already. Raises `RunConflict("history_hold")` if it is there with another reason, `RunConflict("pruned")`,
        `RunNotFound`, and `ValueError` for an id or reason that is blank or too long."""
        ...

    async def release_history(self, run_id: str, hold_id: str) -> bool:
        """Ends a retention hold. False if there was none."""
        ...

    async def history_holds(
        self, run_id: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[HistoryHold]:
        """Retention holds, of one run or of all, past `after` by (run id, hold id)."""
        ...

    async def close(self) -> None:
        """Waits for what is under way and frees the medium. Idempotent."""
        ...

    def clock(self) -> int:
        """The store's clock, ns (R45)."""
        ...
