"""The PostgreSQL store: one schema of a database, one round trip per group of batches, reads from a pool beside it (DESIGN
§7, R47, R48, R50)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, Literal, Self, TypeVar

from perdure.errors import FlowError, LeaseLost, RunNotFound
from perdure.instant import MAX_NS, MIN_NS, due_key, parse_instant
from perdure.stores import leases, postgres_claims
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
from perdure.stores.leases import Columns, Wanted
from perdure.stores.postgres_asking import Ask, Each, PostgresAsking, Row
from perdure.stores.postgres_batches import COMMIT, COMMIT_RESTORED, answers_of, arguments_of, restored_links
from perdure.stores.postgres_database import PostgresDatabase, Preparing
from perdure.stores.postgres_group import AsyncGroupCommitter
from perdure.stores.postgres_hints import PostgresHints, channel_of
from perdure.stores.postgres_retention import PostgresRetention
from perdure.stores.postgres_steps import (
    STEP,
    STEPS,
    arguments_of_one,
    arguments_of_steps,
    integer_of,
    integers_of,
)
from perdure.stores.rules import (
    ALL_RUNS,
    KINDS,
    RUN_COLUMNS,
    Tally,
    check_limit,
    is_step,
    lines_after,
    page_of,
    record_from,
    summary_of,
)
from perdure.stores.runnable import POSTGRES_ROWS, START, bound, runnable_page, summaries_of
from perdure.stores.task_rows import TaskRows

__all__ = ["Durability", "PostgresEventStore"]

Durability = Literal["on", "off", "local", "remote_write", "remote_apply"]
T = TypeVar("T")

_FEWEST_CONNECTIONS: Final = 2

HISTORY: Final = """
SELECT first_sequence, lines FROM @schema@.flow_commits
WHERE run_id = $1 AND first_sequence >= (
    SELECT max(first_sequence) FROM @schema@.flow_commits
    WHERE run_id = $1 AND first_sequence <= greatest($2::bigint, 0) + 1)
ORDER BY first_sequence"""
_WAKEUP: Final = """
SELECT w.run_id, w.kind, w.subject_id, w.due_key, r.build
FROM @schema@.flow_wakeups AS w JOIN @schema@.flow_runs AS r ON r.run_id = w.run_id"""
DUE: Final = f"{_WAKEUP} WHERE w.due_key <= $1 ORDER BY w.due_key, w.run_id, w.kind, w.subject_id LIMIT $2::bigint"
NEXT: Final = f"{_WAKEUP} ORDER BY w.due_key, w.run_id, w.kind, w.subject_id LIMIT 1"
TOKEN: Final = "SELECT run_id, hook_id FROM @schema@.flow_hooks WHERE token_hash = $1 ORDER BY run_id, hook_id"
_RUNS: Final = f"SELECT {RUN_COLUMNS} FROM @schema@.flow_runs"
HOOKS: Final = "SELECT run_id, hook_id FROM @schema@.flow_hooks ORDER BY run_id, hook_id"
RUN_IDS: Final = "SELECT run_id FROM @schema@.flow_runs ORDER BY run_id"
SUMMARY: Final = """
SELECT status, terminal, count(*), sum(open_waits)::bigint, sum(active_hooks)::bigint, sum(pending_retries)::bigint
FROM @schema@.flow_runs GROUP BY status, terminal"""
BUILDS: Final = """
SELECT build, status, terminal, count(*), sum(open_waits)::bigint, sum(active_hooks)::bigint,
    sum(pending_retries)::bigint
FROM @schema@.flow_runs GROUP BY build, status, terminal"""
LAST: Final = "SELECT run_id, last_sequence FROM @schema@.flow_runs WHERE run_id = ANY ($1::text[])"
CHANGES: Final = "SELECT hashtextextended(pg_current_snapshot()::text, 0)"
"""A snapshot names every transaction that had ended by then, so it differs once another one has."""


class PostgresEventStore(PostgresRetention):
    """Histories and index in one schema of a PostgreSQL database (14 or newer, UTF-8).

    `address`: `postgresql://user@host:port/database`, or libpq's `key=value` form. Each `schema` is a store of its own; one
    that is missing is made. `pool_size` is the number of connections, at least 2: one commits, the others read and claim.
    `wait_seconds` bounds the wait for one of them, `answer_seconds` that for the server's answer. `synchronous` is the
    `synchronous_commit` of commits, the server's own setting by default; with "off" an acknowledged commit may be lost when
    the server crashes. `clock` is for tests: ns since 1970-01-01T00:00:00Z in place of the server's clock (R45).

    Statements stand alone and leave no state in their session, so PgBouncer may pool them by transaction. They are prepared
    on a direct connection and not behind a pooler, which the store notices by itself; `prepare_threshold` is psycopg's, for
    PgBouncer 1.21 and newer. Hints that others have appended are heard on one more connection, made by the first
    `wait_for_change`, which must be direct: `listen_address` says to where, if `address` leads to a pooler.

    The first call connects and migrates; `connect` does both at once. A store serves one event loop.
    """

    def __init__(
        self,
        address: str,
        clock: Callable[[], int] | None = None,
        *,
        schema: str = "perdure",
        pool_size: int = 5,
        wait_seconds: float = 10.0,
        answer_seconds: float = 60.0,
        synchronous: Durability | None = None,
        prepare_threshold: Preparing = "auto",
        listen_address: str | None = None,
        migrate: bool = True,
    ) -> None:
        if pool_size < _FEWEST_CONNECTIONS:
            raise ValueError(f"pool_size is {pool_size}; a store needs at least {_FEWEST_CONNECTIONS} connections")
        if synchronous not in (None, "on", "off", "local", "remote_write", "remote_apply"):
            raise ValueError(f"synchronous is {synchronous!r}; use a value of PostgreSQL's synchronous_commit, or None")
        self._database = PostgresDatabase(address, schema, prepare_threshold, listen_address)
        self._set_clock = clock
        self._synchronous = synchronous
        self._settings: dict[str, Any] = {
            "wait_seconds": wait_seconds,
            "answer_seconds": answer_seconds,
            "migrate": migrate,
        }
        self._channel = channel_of(schema)
        self._steps = AsyncGroupCommitter(self._write_steps, str(self._database))
        self._group = AsyncGroupCommitter(self._write, str(self._database))
        self._hints = PostgresHints(self._database, self._ask_for_changes, wait_seconds)
        self._asking = PostgresAsking(
            self._database, pool_size, opened=self._set_reading, changed=self._hints.changed, **self._settings
        )
        self._reading = (time.time_ns(), time.monotonic_ns())  # of the server's clock, and ours when it came

    @classmethod
    async def connect(cls, address: str, **options: Any) -> Self:
        """A store that is connected and migrated. Raises `StoreUnavailable`, `StoreError`."""
        store = cls(address, **options)
        await store.open()
        return store

    @classmethod
    async def connect_verified(cls, address: str, **options: Any) -> Self:
        """As `connect`, for roles that may not change tables: a schema that lacks a migration is refused (spec 7.6)."""
        return await cls.connect(address, migrate=False, **options)

    def __repr__(self) -> str:
        return f"<PostgresEventStore: {self._database}>"

    # commits -------------------------------------------------------------------------------------------------

    async def commit(self, appends: Sequence[Append]) -> list[Committed | FlowError]:
        """As `FlowEventStore.commit`."""
        self._asking.check()
        if len(appends) == 1 and is_step(appends[0]):
            (moved,) = await self._steps.commit(appends)
            if moved is not None:
                return [moved]
        return await self._group.commit(appends)

    async def _write_steps(self, appends: Sequence[Append]) -> list[Committed | None]:
        """Moves runs on, all in one round trip; None for those that changed nothing, be it a refusal or a renewal."""
        if len(appends) == 1:
            values = arguments_of_one(appends[0], self._test_time(), self._synchronous)
            now = integer_of(*await self._asking.change_on_kept(STEP, values))
            moved = {0} if now is not None else set()
        else:
            order = sorted(range(len(appends)), key=lambda n: appends[n].batch.run_id)
            values = arguments_of_steps([appends[n] for n in order], self._test_time(), self._synchronous)
            time, places_moved = await self._asking.change_on_kept(STEPS, values)
            now, places = integer_of(time), integers_of(places_moved)
            moved = set(order) if places is None else {order[place - 1] for place in places}
        if now is None:
            return [None] * len(appends)
        self._note(now)
        return [_moved(append, now) if n in moved else None for n, append in enumerate(appends)]

    async def _write(self, appends: Sequence[Append]) -> list[Committed | FlowError]:
        values = (*arguments_of(appends), self._test_time(), self._synchronous, self._channel)
        links = restored_links(appends)
        if links is None:
            rows = await self._change(COMMIT, *values)
        else:
            rows = await self._change(COMMIT_RESTORED, *values, *links)
        answers = answers_of(appends, rows)
        self._note(rows[0][1])
        return answers

    # histories and index -------------------------------------------------------------------------------------

    async def history(self, run_id: str, after: int = 0) -> bytes:
        """As `FlowEventStore.history`."""
        rows = await self._rows(HISTORY, run_id, after)
        if not rows:
            raise RunNotFound(run_id)
        first_sequence, lines = rows[0]
        return lines_after(lines, first_sequence, after) + b"".join(lines for _, lines in rows[1:])

    async def list_due_wakeups(self, now: int, limit: int | None = None) -> list[Wakeup]:
        """As `FlowEventStore.list_due_wakeups`."""
        check_limit(limit)
        rows = await self._rows(DUE, due_key(min(max(now, MIN_NS), MAX_NS)), limit)
        return [_wakeup(row) for row in sorted(rows, key=lambda row: (row[1], row[0], row[2]))]

    async def next_scheduled_wakeup(self) -> Wakeup | None:
        """As `FlowEventStore.next_scheduled_wakeup`."""
        rows = await self._rows(NEXT)
        return _wakeup(rows[0]) if rows else None

    async def find_active_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        """As `FlowEventStore.find_active_hooks`."""
        return [ActiveHook(*row) for row in await self._rows(TOKEN, token_hash)]

    async def list_active_hooks(self) -> list[ActiveHook]:
        """As `FlowEventStore.list_active_hooks`."""
        return [ActiveHook(*row) for row in await self._rows(HOOKS)]

    async def runs(self, filter: RunFilter = ALL_RUNS, *, after: str | None = None, limit: int = 100) -> RunPage:
        """As `FlowEventStore.runs`."""
        check_limit(limit)
        query, values = listing(filter, after, limit)
        return page_of([record_from(row) for row in await self._rows(query, *values)], limit)

    async def run_ids(self) -> list[str]:
        """As `FlowEventStore.run_ids`."""
        return [run_id for (run_id,) in await self._rows(RUN_IDS)]

    async def summary(self) -> RunSummary:
        """As `FlowEventStore.summary`."""
        return summary_of(Tally(*row) for row in await self._rows(SUMMARY))

    async def summary_by_build(self) -> dict[str | None, RunSummary]:
        """As `FlowEventStore.summary_by_build`."""
        return summaries_of(await self._rows(BUILDS))

    async def runnable(self, now: int, *, after: tuple[int, str] | None = None, limit: int = 1000) -> RunnablePage:
        """As `FlowEventStore.runnable`."""
        check_limit(limit)
        key, (claim_at, run_id) = due_key(min(max(now, MIN_NS), MAX_NS)), after or START
        values = (key, bound(now), claim_at, run_id, limit, self._test_time(), now // 1000)
        found = await self._rows(POSTGRES_ROWS, *values)
        rows, later = [row for row in found if row[1] is not None], [row[0] for row in found if row[1] is None]
        clock = rows[0][-1] if rows else 0
        return runnable_page([row[:-1] for row in rows], now, clock, limit, later[0] if later else None)

    async def last_sequences(self, run_ids: Sequence[str]) -> dict[str, int]:
        """As `FlowEventStore.last_sequences`."""
        return dict(await self._rows(LAST, list(run_ids)))

    async def changes(self) -> int:
        """As `FlowEventStore.changes`; it moves also for what others do in other schemas and databases of the server."""
        return await self._hints.changes()

    async def _ask_for_changes(self) -> int:
        ((snapshot,),) = await self._rows(CHANGES)
        return int(snapshot)

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowEventStore.wait_for_change`: woken by what this store object commits, and by other processes where they
        append to runs that they do not drive, or create some. What else they do is seen when the time is up."""
        await self._asking.open()
        return await self._hints.wait(seen, timeout_seconds)

    # leases --------------------------------------------------------------------------------------------------

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
        """As `FlowEventStore.claim`."""
        check_limit(k, "k")
        wanted = postgres_claims.wanted_values(Wanted(workflows, builds, besides))
        return await self._claim(postgres_claims.CLAIM, self._test_time(), owner, k, ttl_ns, *wanted)

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
        """As `FlowEventStore.claim_held`."""
        check_limit(k, "k")
        wanted = postgres_claims.wanted_values(Wanted(workflows, builds, besides))
        return await self._claim(postgres_claims.CLAIM_HELD, self._test_time(), owner, k, ttl_ns, *wanted, build)

    async def _claim(self, statement: str, *values: object) -> list[Claimed]:
        claimed = [Claimed(*row) for row in await self._change(statement, *values)]
        if claimed:
            self._note(claimed[0].now)
        return claimed

    async def next_claim(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> int | None:
        """As `FlowEventStore.next_claim`."""
        wanted = postgres_claims.wanted_values(Wanted(workflows, builds, besides))
        rows = await self._rows(postgres_claims.NEXT_CLAIM, *wanted)
        return rows[0][0] if rows else None

    async def outlook(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> Outlook:
        """As `FlowEventStore.outlook`."""
        wanted = postgres_claims.wanted_values(Wanted(workflows, builds, besides))
        ((now, claim_at, owners),) = await self._rows(postgres_claims.OUTLOOK, self._test_time(), *wanted)
        self._note(now)
        return Outlook(now, claim_at, tuple(owners))

    async def renew(
        self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int
    ) -> list[tuple[str, int] | LeaseLost]:
        """As `FlowEventStore.renew`."""
        run_ids, epochs = [run_id for run_id, _ in pairs], [epoch for _, epoch in pairs]
        # Once more does no harm, so an answer that is lost is asked for again.
        rows = await self._rows(postgres_claims.RENEW, self._test_time(), owner, run_ids, epochs, ttl_ns)
        self._hints.changed()
        renewed = {(run_id, epoch): last_sequence for run_id, epoch, last_sequence, _ in rows}
        if rows:
            self._note(rows[0][3])
        return [(pair[0], renewed[pair]) if pair in renewed else LeaseLost(pair[0]) for pair in pairs]

    async def lease(self, run_id: str) -> LeaseState:
        """As `FlowEventStore.lease`."""
        rows = await self._rows(postgres_claims.LEASE, self._test_time(), run_id)
        if not rows:
            raise RunNotFound(run_id)
        now, last_sequence, _, *columns = rows[0]
        return leases.state_of(Columns(*columns), last_sequence, now)

    async def void(self, owner: str) -> int:
        """As `FlowEventStore.void`."""
        return len(await self._change(postgres_claims.VOID, owner))

    async def set_hold(self, run_id: str, hold: str, *, expected_sequence: int) -> bool:
        """As `FlowEventStore.set_hold`."""
        values = (self._test_time(), run_id, hold, expected_sequence)
        return self._changed(run_id, await self._change(postgres_claims.SET_HOLD, *values))

    async def release_hold(self, run_id: str) -> bool:
        """As `FlowEventStore.release_hold`."""
        return self._changed(run_id, await self._change(postgres_claims.RELEASE_HOLD, run_id))

    def _changed(self, run_id: str, rows: list[Row]) -> bool:
        ((known, changed),) = rows
        if not known:
            raise RunNotFound(run_id)
        return bool(changed)

    # opening and closing -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects, and migrates if it must; what the first call does otherwise. Raises `StoreUnavailable`,
        `StoreError`."""
        await self._asking.open()

    async def close(self) -> None:
        """As `FlowEventStore.close`. Later calls raise `StoreError`."""
        if self._asking.is_forked():
            return
        await self._steps.close()
        await self._group.close()
        await self._hints.close()
        await self._asking.close()

    def elsewhere(self) -> PostgresEventStore:
        """As `FlowEventStore.elsewhere`: a connection belongs to one loop, so another store with connections of its own."""
        return PostgresEventStore(
            self._database.address,
            self._set_clock,
            schema=self._database.schema,
            pool_size=_FEWEST_CONNECTIONS,
            prepare_threshold=self._database.prepare_threshold,
            listen_address=self._database.listen_address,
            synchronous=self._synchronous,
            **self._settings,
        )

    def task_rows(self) -> TaskRows:
        """The task queues in this schema, which `DurableTaskQueue` reads and writes."""
        from perdure.stores.postgres_queue import PostgresTaskRows

        return PostgresTaskRows(self._rows, self._change, self._test_time, self.clock, self._channel)

    def clock(self) -> int:
        """As `FlowEventStore.clock`: the server's, as last heard, and the time since."""
        if self._set_clock is not None:
            return self._set_clock()
        heard, at = self._reading
        return heard + time.monotonic_ns() - at

    def _note(self, now: int) -> None:
        """Takes over a reading of the server's clock; what `clock` said never goes back (R45)."""
        self._reading = (max(now, self.clock()), time.monotonic_ns())

    def _set_reading(self, now: int) -> None:
        """The first reading: until here it was this process's own clock, which may be wrong (R45)."""
        self._reading = (now, time.monotonic_ns())

    def _test_time(self) -> int | None:
        return None if self._set_clock is None else self._set_clock()

    # asking --------------------------------------------------------------------------------------------------

    async def _rows(self, statement: str, *values: object) -> list[Row]:
        return await self._asking.rows(statement, *values)

    async def _change(self, statement: str, *values: object) -> list[Row]:
        return await self._asking.change(statement, *values)

    async def _transact(self, work: Callable[[Ask, Each], Awaitable[T]]) -> T:
        return await self._asking.transact(work)


def _moved(append: Append, now: int) -> Committed:
    return Committed(append.batch.last_sequence, now, None if append.lease is None else append.lease.epoch)


def listing(filter: RunFilter, after: str | None, limit: int) -> tuple[str, list[object]]:
    """The query of one page of runs, with one row more to see whether another page follows."""
    terms: list[str] = []
    values: list[object] = []

    def add(term: str, value: object) -> None:
        values.append(value)
        terms.append(f"{term.replace('?', f'${len(values)}')}")

    if filter.status is not None:
        add("status = ANY (?::text[])", list(filter.status))
    for column in ("name", "version", "build"):
        value = getattr(filter, column)
        if value is not None:
            add(f"{column} = ?", value)
    if filter.terminal is not None:
        terms.append("terminal" if filter.terminal else "NOT terminal")
    if filter.held is not None:
        terms.append(f"hold IS {'NOT NULL' if filter.held else 'NULL'}")
    if after is not None:
        add("run_id > ?", after)
    where = f"WHERE {' AND '.join(terms)} " if terms else ""
    return f"{_RUNS} {where}ORDER BY run_id LIMIT ${len(values) + 1}::bigint", [*values, limit + 1]


def _wakeup(row: Row) -> Wakeup:
    run_id, kind, subject_id, due, build = row
    return Wakeup(run_id, KINDS[kind], subject_id, parse_instant(due), build)
