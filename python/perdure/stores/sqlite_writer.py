"""The one writing connection of an SQLite store: a group of batches, or a change of leases, as one transaction (R47, R48,
R50)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from perdure.errors import OutcomeUnknown, StoreError
from perdure.instant import parse_instant
from perdure.kernel import Batch
from perdure.stores import leases
from perdure.stores.base import ActiveHook, Append, Committed, Lease
from perdure.stores.group import Answer
from perdure.stores.pace import Pace
from perdure.stores.rules import RANK, is_step, refusal
from perdure.stores.sqlite_claims import read_state, write_columns
from perdure.stores.sqlite_file import SqliteFile, is_busy, is_certain, is_input_output
from perdure.stores.sqlite_turnstile import OwnTurn, Turnstile

__all__ = ["SqliteWriter"]

T = TypeVar("T")
_PAUSE_SECONDS: Final = 0.02
_FIRST_PAUSE_SECONDS: Final = 0.0005
_ADVANCE: Final = """
UPDATE flow_runs SET
    last_sequence = ?, status = ?, terminal = ?, open_waits = ?, active_hooks = ?, pending_retries = ?,
    updated_at = ?, ended_at = ?
WHERE run_id = ? AND last_sequence = ?"""
STEADY: Final = """
UPDATE flow_runs SET last_sequence = ?, open_waits = ?, active_hooks = ?, pending_retries = ?, updated_at = ?
WHERE run_id = ? AND last_sequence = ? AND owner = ? AND epoch = ? AND claim_at >= ? AND status = ?
    AND failures = 0 AND hold IS NULL"""
_EPOCH: Final = 8
"""Its place among the values of `STEADY`."""
_CREATE: Final = """
INSERT INTO flow_runs (
    run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries,
    created_at, updated_at, ended_at, last_sequence
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
EARLIEST: Final = "SELECT min(due_key) FROM flow_wakeups WHERE run_id = ?"
_APPEND: Final = "INSERT INTO flow_commits (run_id, first_sequence, last_sequence, lines) VALUES (?, ?, ?, ?)"
_SET_WAKEUP: Final = """
INSERT INTO flow_wakeups (run_id, kind, subject_id, due_key) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET due_key = excluded.due_key"""
_TOKEN_OWNER: Final = """
SELECT run_id, hook_id FROM flow_hooks WHERE token_hash = ? AND run_id <> ? ORDER BY run_id, hook_id LIMIT 1"""


class SqliteWriter:
    """Writes groups of batches. Used by one thread at a time. `clock` is the store's, ns; `turns` are those of the file, which
    a `GroupCommitter` asks this object for.

    After an input/output error it is poisoned: SQLite's picture of the file may be wrong, so `poison` holds the error that
    every later call must raise."""

    def __init__(
        self,
        file: SqliteFile,
        connection: sqlite3.Connection,
        clock: Callable[[], int] = time.time_ns,
        turns: Turnstile | OwnTurn | None = None,
    ) -> None:
        self._turns = OwnTurn() if turns is None else turns
        self._file = file
        self._connection = connection
        self._clock = clock
        self.poison: OutcomeUnknown | None = None
        self.commits = 0
        """How many transactions have changed something."""
        self._deadline: float | None = None
        """Until when this turn may be waited for, with all that it waits for; None if it was had at once."""
        self._pace = Pace()
        """Of COMMIT."""

    def write(self, appends: Sequence[Append]) -> list[Answer]:
        """Commits batches (of different runs) in one transaction, in run id order; refusals are among the answers.

        Raises `StoreUnavailable` or `StoreError` with nothing written, or `OutcomeUnknown`."""

        return self.transact(lambda connection, now: self._apply_all(appends, now))

    def transact(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Runs `work` in one transaction. It is given the store's clock, read once the write lock is held (R45)."""
        if self.poison is not None:
            raise OutcomeUnknown(self.poison.detail)
        connection = self._connection
        try:
            if not connection.in_transaction:
                self._begin()
            before = connection.total_changes
            given = work(connection, self._clock())
        except sqlite3.Error as error:
            raise self._failed(error, "writing") from None
        except (UnicodeEncodeError, OverflowError):
            self._roll_back()
            raise self._file.unfit() from None
        except BaseException:
            # A value that SQLite cannot take, or no memory: the transaction must not stay open for the next group.
            self._roll_back()
            raise
        began = time.perf_counter()
        self._commit()
        if connection.total_changes != before:
            self.commits += 1
            self._pace.took(time.perf_counter() - began)
        return given

    # turns ---------------------------------------------------------------------------------------------------

    def is_quick(self) -> bool:
        """As `Turns.is_quick`."""
        return self._pace.is_quick()

    def take(self, *, wait: bool) -> bool:
        """As `Turns.take`. Without `wait`, the transaction has begun when it is our turn: nothing is left to wait for but
        the disk."""
        self._deadline = time.monotonic() + self._file.busy_seconds if wait else None
        if wait:
            self._file.take(self._turns)
            return True
        try:
            if self.poison is not None or not self._turns.take(0):
                return False
        except StoreError:
            return False  # said when the thread meets it
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            self._turns.release()
            return False
        return True

    def release(self) -> None:
        """As `Turns.release`."""
        try:
            if self._connection.in_transaction:
                self._roll_back()  # all callers had gone
        finally:
            self._turns.release()

    def _begin(self) -> None:
        deadline = self._deadline or time.monotonic() + self._file.busy_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._deadline = None  # what comes later in this turn waits anew
                return
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
            # A program without our locks: it cannot be queued behind, only asked again.
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS)

    # batches -------------------------------------------------------------------------------------------------

    def _apply_all(self, appends: Sequence[Append], now: int) -> list[Answer]:
        if len(appends) == 1:
            return [self._apply(appends[0], now)]
        answers = self._advance_plainly(appends, now)
        if len(answers) == len(appends):
            return list(answers.values())
        rest = [append for append in appends if append.batch.run_id not in answers]
        for append in sorted(rest, key=lambda append: append.batch.run_id):
            answers[append.batch.run_id] = self._apply(append, now)
        return [answers[append.batch.run_id] for append in appends]

    def _advance_plainly(self, appends: Sequence[Append], now: int) -> dict[str, Answer]:
        """Commits those that change nothing but their own run's row, which no other batch of the group looks at, so that they
        need no order. None of them unless all can be: the others find out which cannot."""
        plain = [(append.batch, values) for append in appends if (values := _steady_values(append, now)) is not None]
        if len(plain) < 2:
            return {}
        execute, execute_many = self._connection.execute, self._connection.executemany
        execute("SAVEPOINT plain")
        if execute_many(STEADY, [values for _, values in plain]).rowcount == len(plain):
            execute_many(_APPEND, [_append_values(batch) for batch, _ in plain])
            execute("RELEASE plain")
            return {batch.run_id: Committed(batch.last_sequence, now, values[_EPOCH]) for batch, values in plain}
        execute("ROLLBACK TO plain")
        execute("RELEASE plain")
        return {}

    def _apply(self, append: Append, now: int) -> Answer:
        batch, execute = append.batch, self._connection.execute
        values = _steady_values(append, now)
        if values is not None and execute(STEADY, values).rowcount == 1:
            execute(_APPEND, _append_values(batch))
            return Committed(batch.last_sequence, now, values[_EPOCH])
        state = read_state(self._connection, batch.run_id)
        refused = refusal(append, state, now, self)
        if refused is not None:
            return refused
        if batch.lines:
            if batch.expected_sequence:
                execute(_ADVANCE, _advance_values(batch))
            else:
                self._create(batch)
            self._write_events(batch)
        row, epoch = leases.committed(state.lease, append, now, lambda: self._earliest(batch.run_id))
        if row != state.lease:
            write_columns(self._connection, batch.run_id, row)
        return Committed(batch.last_sequence, now, epoch)

    def _earliest(self, run_id: str) -> int | None:
        (due,) = self._connection.execute(EARLIEST, (run_id,)).fetchone()
        return None if due is None else parse_instant(due)

    def _write_events(self, batch: Batch) -> None:
        run_id, execute = batch.run_id, self._connection.execute
        execute(_APPEND, _append_values(batch))
        self._write_wakeups(batch)
        self._write_hooks(batch)
        for linked in batch.links:
            execute("INSERT INTO flow_links VALUES (?, ?) ON CONFLICT DO NOTHING", (run_id, linked))

    def _create(self, batch: Batch) -> None:
        row = batch.row
        values = (
            batch.run_id,
            row.name,
            row.version,
            row.build,
            row.status,
            row.terminal,
            row.open_waits,
            row.active_hooks,
            row.pending_retries,
            row.created_key,
            row.updated_key,
            row.ended_key,
            row.last_sequence,
        )
        self._connection.execute(_CREATE, values)

    def _write_wakeups(self, batch: Batch) -> None:
        run_id, execute = batch.run_id, self._connection.execute
        if batch.clear_wakeups:
            execute("DELETE FROM flow_wakeups WHERE run_id = ?", (run_id,))
        for gone in batch.delete_wakeups:
            execute(
                "DELETE FROM flow_wakeups WHERE run_id = ? AND kind = ? AND subject_id = ?",
                (run_id, RANK[gone.kind], gone.subject_id),
            )
        for wakeup in batch.upsert_wakeups:
            execute(_SET_WAKEUP, (run_id, RANK[wakeup.kind], wakeup.subject_id, wakeup.due_key))

    def _write_hooks(self, batch: Batch) -> None:
        run_id, execute = batch.run_id, self._connection.execute
        if batch.clear_hooks:
            execute("DELETE FROM flow_hooks WHERE run_id = ?", (run_id,))
        for gone in batch.delete_hooks:
            execute(
                "DELETE FROM flow_hooks WHERE token_hash = ? AND run_id = ? AND hook_id = ?",
                (gone.token_hash, run_id, gone.hook_id),
            )
        for hook in batch.insert_hooks:
            execute(
                "INSERT INTO flow_hooks VALUES (?, ?, ?, ?)", (hook.token_hash, run_id, hook.hook_id, hook.sequence)
            )

    # what a refusal is judged by -----------------------------------------------------------------------------

    def pruned(self, run_id: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM flow_tombstones WHERE run_id = ?", (run_id,)).fetchone()
        return found is not None

    def exists(self, run_id: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM flow_runs WHERE run_id = ?", (run_id,)).fetchone()
        return found is not None

    def token_owner(self, token_hash: bytes, besides: str) -> ActiveHook | None:
        found = self._connection.execute(_TOKEN_OWNER, (token_hash, besides)).fetchone()
        return None if found is None else ActiveHook(*found)

    # the end of the transaction ------------------------------------------------------------------------------

    def _commit(self) -> None:
        deadline: float | None = None
        while True:
            try:
                self._connection.execute("COMMIT")
                return
            except sqlite3.Error as error:
                # A busy COMMIT leaves the transaction as it was, to be repeated (R48).
                deadline = deadline or time.monotonic() + self._file.busy_seconds
                if is_busy(error) and self._connection.in_transaction and time.monotonic() < deadline:
                    time.sleep(_PAUSE_SECONDS)
                    continue
                raise self._failed(error, "committing", certain=is_certain(error)) from None

    def _failed(self, error: sqlite3.Error, doing: str, *, certain: bool = True) -> StoreError:
        # `in_transaction` is read before any other statement: SQLite may have rolled back by itself, and the next statement
        # would then commit alone. Either way none of the group is written; the whole of it has failed.
        rolled_back = self._roll_back()
        if certain and rolled_back and not is_input_output(error):
            return self._file.failure(error, doing)
        self.poison = self._file.unknown(error)
        return OutcomeUnknown(self.poison.detail)

    def _roll_back(self) -> bool:
        if not self._connection.in_transaction:
            return True
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            self.poison = self._file.unknown(error)
            return False
        return True


def _append_values(batch: Batch) -> tuple[object, ...]:
    return (batch.run_id, batch.first_sequence, batch.last_sequence, batch.lines)


def _steady_values(append: Append, now: int) -> tuple[Any, ...] | None:
    """What `STEADY` is given: for the usual commit under a lease, which leaves the lease and all indexes as they are, one
    statement compares status, sequence and lease, and moves the sequence. None for any other commit."""
    if not is_step(append):
        return None
    batch, lease, row = append.batch, cast(Lease, append.lease), append.batch.row
    return (
        row.last_sequence,
        row.open_waits,
        row.active_hooks,
        row.pending_retries,
        row.updated_key,
        batch.run_id,
        batch.expected_sequence,
        lease.owner,
        lease.epoch,
        leases.renewal_from(lease.ttl_ns, now),
        row.status,
    )


def _advance_values(batch: Batch) -> tuple[object, ...]:
    row = batch.row
    return (
        row.last_sequence,
        row.status,
        row.terminal,
        row.open_waits,
        row.active_hooks,
        row.pending_retries,
        row.updated_key,
        row.ended_key,
        batch.run_id,
        batch.expected_sequence,
    )
