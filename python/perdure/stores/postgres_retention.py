"""Retention in PostgreSQL: how runs stand, what deletes them, and the holds that keep them (R51, spec 7.7).

Whoever links to a run, or holds its history, locks the run's row against being deleted; so a prune that has locked the rows of
a component sees every link and hold there is, and those that come later find the rows gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from perdure.errors import RunConflict, RunNotFound
from perdure.instant import due_key, parse_instant
from perdure.retention import Digest, HistoryHold, Part, Standing, Tombstone, check_hold, may_go
from perdure.stores.postgres_asking import Ask, Each, Row
from perdure.stores.retaining import Retaining
from perdure.stores.rules import RUN_COLUMNS, check_limit, record_from

__all__ = ["PostgresRetention"]

T = TypeVar("T")

LOCK: Final = "SELECT run_id FROM @schema@.flow_runs WHERE run_id = ANY ($1::text[]) ORDER BY run_id FOR UPDATE"
RECORDS: Final = f"SELECT {RUN_COLUMNS} FROM @schema@.flow_runs WHERE run_id = ANY ($1::text[])"
HELD: Final = "SELECT DISTINCT run_id FROM @schema@.flow_history_holds WHERE run_id = ANY ($1::text[])"
LINKED: Final = """
SELECT l.run_id, l.linked_run_id FROM @schema@.flow_links AS l
WHERE l.run_id = ANY ($1::text[])
    AND NOT EXISTS (SELECT FROM @schema@.flow_tombstones AS t WHERE t.run_id = l.linked_run_id)
UNION ALL
SELECT l.linked_run_id, l.run_id FROM @schema@.flow_links AS l WHERE l.linked_run_id = ANY ($1::text[])"""
_LINES: Final = """
SELECT run_id, lines FROM @schema@.flow_commits WHERE run_id = ANY ($1::text[]) ORDER BY run_id, first_sequence"""
_NOW: Final = "SELECT coalesce($1::bigint, @schema@.flow_clock())"
_BURY: Final = """
INSERT INTO @schema@.flow_tombstones (run_id, deleted_at, last_sequence, last_event_id, history_sha256)
SELECT t.run_id, $2, t.last_sequence, t.event_id, t.digest
FROM unnest($1::text[], $3::bigint[], $4::text[], $5::bytea[]) AS t (run_id, last_sequence, event_id, digest)"""
_TABLES: Final = (
    *("flow_commits", "flow_wakeups", "flow_hooks", "flow_links", "flow_history_holds"),
    *("flow_tasks", "flow_task_dead_letters", "flow_runs"),
)
"""What a run has rows in, by `run_id`."""
_TOMBSTONE: Final = """
SELECT run_id, deleted_at, last_sequence, last_event_id, history_sha256 FROM @schema@.flow_tombstones WHERE run_id = $1"""
_KEEP: Final = "SELECT run_id FROM @schema@.flow_runs WHERE run_id = $1 FOR KEY SHARE"
_HOLD: Final = """
INSERT INTO @schema@.flow_history_holds VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING true"""
_REASON: Final = "SELECT reason FROM @schema@.flow_history_holds WHERE run_id = $1 AND hold_id = $2"
_RELEASE: Final = "DELETE FROM @schema@.flow_history_holds WHERE run_id = $1 AND hold_id = $2 RETURNING true"
HOLDS: Final = """
SELECT run_id, hold_id, reason, created_at FROM @schema@.flow_history_holds
WHERE (run_id, hold_id) > ($1, $2) ORDER BY run_id, hold_id LIMIT $3::bigint"""
HOLDS_OF: Final = """
SELECT run_id, hold_id, reason, created_at FROM @schema@.flow_history_holds
WHERE run_id = $4 AND (run_id, hold_id) > ($1, $2) ORDER BY run_id, hold_id LIMIT $3::bigint"""


class PostgresRetention(Retaining):
    """The retention of a store that can read and transact on PostgreSQL connections."""

    async def _rows(self, statement: str, *values: object) -> list[Row]:
        """Asks what may be asked twice."""
        raise NotImplementedError

    async def _transact(self, work: Callable[[Ask, Each], Awaitable[T]]) -> T:
        """Runs `work` in one READ COMMITTED transaction."""
        raise NotImplementedError

    def _test_time(self) -> int | None:
        """The clock of a test, in place of the server's."""
        raise NotImplementedError

    async def _standings(self, run_ids: Sequence[str]) -> dict[str, Standing]:
        return await _standings(self._rows, run_ids)

    async def _delete(self, parts: Sequence[Part], cutoff: int) -> list[bool]:
        run_ids = [run_id for part in parts for run_id in part.looked_at]

        async def work(ask: Ask, each: Each) -> list[bool]:
            await ask(LOCK, run_ids)
            # A statement of its own: it sees what was committed before the locks were had.
            standings = await _standings(ask, run_ids)
            gone = [may_go(part, standings, cutoff) for part in parts]
            buried = [run_id for part, is_gone in zip(parts, gone, strict=True) if is_gone for run_id in part.run_ids]
            if buried:
                ((now,),) = await ask(_NOW, self._test_time())
                await _bury(ask, each, standings, buried, now)
            return gone

        return await self._transact(work)

    async def tombstone(self, run_id: str) -> Tombstone | None:
        """As `FlowEventStore.tombstone`."""
        for found, deleted_at, last_sequence, event_id, digest in await self._rows(_TOMBSTONE, run_id):
            return Tombstone(found, parse_instant(deleted_at), last_sequence, event_id, digest.hex())
        return None

    async def hold_history(self, run_id: str, hold_id: str, reason: str) -> bool:
        """As `FlowEventStore.hold_history`."""
        check_hold(hold_id, reason)

        async def work(ask: Ask, _: Each) -> bool:
            if not await ask(_KEEP, run_id):
                raise RunConflict(run_id, "pruned") if await ask(_TOMBSTONE, run_id) else RunNotFound(run_id)
            ((now,),) = await ask(_NOW, self._test_time())
            if await ask(_HOLD, run_id, hold_id, reason, due_key(now)):
                return True
            if await ask(_REASON, run_id, hold_id) != [(reason,)]:
                raise RunConflict(run_id, "history_hold")
            return False

        return await self._transact(work)

    async def release_history(self, run_id: str, hold_id: str) -> bool:
        """As `FlowEventStore.release_history`."""

        async def work(ask: Ask, _: Each) -> bool:
            return bool(await ask(_RELEASE, run_id, hold_id))

        return await self._transact(work)

    async def history_holds(
        self, run_id: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[HistoryHold]:
        """As `FlowEventStore.history_holds`."""
        check_limit(limit)
        values = (*(after or ("", "")), limit)
        rows = await (self._rows(HOLDS, *values) if run_id is None else self._rows(HOLDS_OF, *values, run_id))
        return [HistoryHold(run, hold, reason, parse_instant(at)) for run, hold, reason, at in rows]


async def _standings(ask: Ask, run_ids: Sequence[str]) -> dict[str, Standing]:
    values = list(run_ids)
    records = {row[0]: record_from(row) for row in await ask(RECORDS, values)}
    held = {row[0] for row in await ask(HELD, values)}
    linked: dict[str, set[str]] = {}
    for run_id, other in await ask(LINKED, values):
        linked.setdefault(run_id, set()).add(other)
    return {
        run_id: Standing(records.get(run_id), run_id in held, frozenset(linked.get(run_id, ()))) for run_id in run_ids
    }


async def _bury(ask: Ask, each: Each, standings: dict[str, Standing], run_ids: list[str], now: int) -> None:
    digests = {run_id: Digest(run_id, _last_sequence(standings[run_id])) for run_id in run_ids}
    async for run_id, lines in each(_LINES, run_ids):
        digests[run_id].add(lines)
    left = [digests[run_id].tombstone(now) for run_id in run_ids]
    await ask(
        _BURY,
        run_ids,
        due_key(now),
        [tombstone.terminal_sequence for tombstone in left],
        [tombstone.terminal_event_id for tombstone in left],
        [bytes.fromhex(tombstone.history_sha256) for tombstone in left],
    )
    for table in _TABLES:
        await ask(f"DELETE FROM @schema@.{table} WHERE run_id = ANY ($1::text[])", run_ids)


def _last_sequence(standing: Standing) -> int:
    return 0 if standing.record is None else standing.record.last_sequence
