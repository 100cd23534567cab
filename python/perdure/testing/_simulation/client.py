"""The store as one process sees it: across a way on which requests and answers take time, are lost, or come late."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from perdure.errors import FlowError, LeaseLost
from perdure.retention import EVERY_RUN, HistoryHold, PruneReport, RunSelection, Tombstone
from perdure.stores.base import (
    ActiveHook,
    Append,
    Claimed,
    Committed,
    LeaseState,
    Outlook,
    RunFilter,
    RunnablePage,
    RunPage,
    RunSummary,
    Wakeup,
)
from perdure.stores.leases import Wanted
from perdure.testing._simulation.audit import Auditor
from perdure.testing._simulation.chance import Chance
from perdure.testing._simulation.lanes import LaneLoop
from perdure.testing._simulation.way import Hints, Host, Way
from perdure.testing.virtual_time import Phase

__all__ = ["Client"]

_ALL: Final = RunFilter()


class Client(Way):
    """A `FlowEventStore` for one process. Once the process is dead no call of it reaches the store."""

    def __init__(
        self, auditor: Auditor, chance: Chance, loop: LaneLoop, host: Host, hints: Hints, lag_ns: int = 0
    ) -> None:
        super().__init__(auditor, chance, loop, host, lag_ns)
        self._hints = hints

    # -- commits ---------------------------------------------------------------------------------------------------

    async def commit(self, appends: Sequence[Append]) -> Sequence[Committed | FlowError]:
        self._count()
        await self._travel()
        if (time_ns := self._chance.races_ns()) is not None:
            self._host.race(appends[0].batch.run_id)
            await self._loop.sleep_until_ns(self._loop.clock_ns() + time_ns, Phase.STEPS)
        if self._host.closed:
            self._auditor.fail("a call", f"{self._host.party.name} commits after it was closed")
        fate = self._chance.of_commit(self._loop.clock_ns())
        name = ", ".join(_named(append) for append in appends)
        run_ids = [append.batch.run_id for append in appends]
        match fate:
            case "crash_before":
                await self._die()
            case "unavailable":
                raise self._unavailable(f"commit {name}", *run_ids)
            case "lost_unknown":
                raise self._unknown(f"commit {name}", *run_ids)
            case "late":
                later = self._loop.clock_ns() + self._chance.random.randrange(1, 3_000_000_000)
                context = self._loop.main.context.copy()
                self._loop.call_at_ns(later, Phase.OTHERS, self._apply_late, list(appends), context=context)
                raise self._unknown(f"commit {name}", *run_ids)
        answers = [self._apply(append) for append in appends]
        if fate == "crash_after":
            await self._die()
        if fate == "applied_unknown":
            raise self._unknown(f"commit {name}", *run_ids)
        self._lag_ns = min(self._lag_ns, await self._travel())
        return answers

    def _apply(self, append: Append) -> Committed | FlowError:
        answer = self._auditor.commit(self._host.party, append)
        if isinstance(answer, LeaseLost):
            self._host.party.excuse(append.batch.run_id)
        said = "ok" if isinstance(answer, Committed) else answer.code
        self._host.note(f"commit {_named(append)}: {said}")
        return answer

    def _apply_late(self, appends: list[Append]) -> None:
        """A request that was thought lost arrives after all, whether its sender lives or not."""
        for append in appends:
            self._host.note("late:")
            self._apply(append)

    # -- leases ----------------------------------------------------------------------------------------------------

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
        wanted = Wanted(workflows, builds, besides)

        def call() -> list[Claimed]:
            return self._claimed("claims", self._auditor.claim(self._host.party, k, wanted, ttl_ns))

        return await self._ask("claim", call, changes=True)

    def _claimed(self, said: str, claimed: list[Claimed]) -> list[Claimed]:
        if claimed:
            self._host.note(f"{said} {' '.join(c.run_id for c in claimed)}")
        return claimed

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
        wanted = Wanted(workflows, builds, besides)

        def call() -> list[Claimed]:
            claimed = self._auditor.claim_held(self._host.party, k, build, wanted, ttl_ns)
            return self._claimed("claims held", claimed)

        return await self._ask("claim_held", call, changes=True)

    async def next_claim(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> int | None:
        return await self._read(
            "next_claim", self._medium.store.next_claim(workflows=workflows, builds=builds, besides=besides)
        )

    async def outlook(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> Outlook:
        call = self._medium.store.outlook(workflows=workflows, builds=builds, besides=besides)
        return await self._read("outlook", call)

    def elsewhere(self) -> None:
        """A simulated process has one loop."""

    async def renew(
        self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int
    ) -> list[tuple[str, int] | LeaseLost]:
        run_ids = [run_id for run_id, _ in pairs]
        if ttl_ns == 0:
            self._host.note(f"hands back {' '.join(run_ids)}")
        answers = await self._ask("renew", lambda: self._auditor.renew(owner, pairs, ttl_ns), *run_ids)
        for run_id, answer in zip(run_ids, answers, strict=True):
            if isinstance(answer, LeaseLost):
                self._host.party.excuse(run_id)
        return answers

    async def lease(self, run_id: str) -> LeaseState:
        return await self._read("lease", self._medium.store.lease(run_id), run_id)

    async def void(self, owner: str) -> int:
        return await self._ask("void", lambda: self._auditor.void(owner))

    async def set_hold(self, run_id: str, hold: str, *, expected_sequence: int) -> bool:
        def call() -> bool:
            return self._auditor.set_hold(self._host.party, run_id, hold, expected_sequence)

        return await self._ask("set_hold", call, run_id)

    async def release_hold(self, run_id: str) -> bool:
        return await self._ask("release_hold", lambda: self._auditor.release_hold(run_id), run_id)

    # -- reads -----------------------------------------------------------------------------------------------------

    async def last_sequences(self, run_ids: Sequence[str]) -> dict[str, int]:
        return await self._read("last_sequences", self._medium.store.last_sequences(run_ids))

    async def changes(self) -> int:
        """Counted here, so that a world goes the same way on every store."""
        return self._hints.count

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        return await self._hints.wait(seen, timeout_seconds)

    async def history(self, run_id: str, after: int = 0) -> bytes:
        return await self._read("history", self._medium.store.history(run_id, after), run_id)

    async def list_due_wakeups(self, now: int, limit: int | None = None) -> list[Wakeup]:
        return await self._read("list_due_wakeups", self._medium.store.list_due_wakeups(now, limit))

    async def next_scheduled_wakeup(self) -> Wakeup | None:
        return await self._read("next_scheduled_wakeup", self._medium.store.next_scheduled_wakeup())

    async def find_active_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        return await self._read("find_active_hooks", self._medium.store.find_active_hooks(token_hash))

    async def list_active_hooks(self) -> list[ActiveHook]:
        return await self._read("list_active_hooks", self._medium.store.list_active_hooks())

    async def runs(self, filter: RunFilter = _ALL, *, after: str | None = None, limit: int = 100) -> RunPage:
        return await self._read("runs", self._medium.store.runs(filter, after=after, limit=limit))

    async def run_ids(self) -> list[str]:
        return await self._read("run_ids", self._medium.store.run_ids())

    async def summary(self) -> RunSummary:
        return await self._read("summary", self._medium.store.summary())

    async def summary_by_build(self) -> dict[str | None, RunSummary]:
        return await self._read("summary_by_build", self._medium.store.summary_by_build())

    async def runnable(self, now: int, *, after: tuple[int, str] | None = None, limit: int = 1000) -> RunnablePage:
        return await self._ask("runnable", lambda: self._auditor.runnable(now, after, limit))

    # -- retention -------------------------------------------------------------------------------------------------

    async def prune(self, cutoff: int, filter: RunSelection = EVERY_RUN, **options: Any) -> PruneReport:
        return await self._read("prune", self._medium.store.prune(cutoff, filter, **options))

    async def tombstone(self, run_id: str) -> Tombstone | None:
        return await self._read("tombstone", self._medium.store.tombstone(run_id))

    async def hold_history(self, run_id: str, hold_id: str, reason: str) -> bool:
        return await self._read("hold_history", self._medium.store.hold_history(run_id, hold_id, reason), run_id)

    async def release_history(self, run_id: str, hold_id: str) -> bool:
        return await self._read("release_history", self._medium.store.release_history(run_id, hold_id), run_id)

    async def history_holds(
        self, run_id: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[HistoryHold]:
        return await self._read("history_holds", self._medium.store.history_holds(run_id, after=after, limit=limit))

    async def close(self) -> None:
        """The store outlives its clients."""


def _named(append: Append) -> str:
    """A commit as the trace shows it: run, sequences, event kinds, and what it says of the lease."""
    batch, lease = append.batch, append.lease
    kinds = [line.split(b'"type":"', 1)[1].split(b'"', 1)[0].decode() for line in batch.lines.splitlines()]
    text = f"{batch.run_id}@{batch.expected_sequence} {' '.join(kinds) or '-'}"
    if lease is None:
        return text
    held = f"epoch {lease.epoch}" if lease.epoch is not None else lease.claim
    return f"{text} [{held}{'' if lease.after == 'keep' else ', ' + lease.after}]"
