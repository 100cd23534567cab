"""The one writing connection of an SQLite store: a group of batches as one transaction (R47, R48, R50)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Final

from perdure.errors import OutcomeUnknown, StoreError
from perdure.instant import due_key
from perdure.kernel import Batch
from perdure.stores.base import ActiveHook, Committed
from perdure.stores.group import Answer
from perdure.stores.rules import RANK, refusal
from perdure.stores.sqlite_file import SqliteFile, is_busy, is_certain, is_input_output

__all__ = ["SqliteWriter"]

_PAUSE_SECONDS: Final = 0.02
_ADVANCE: Final = """
UPDATE flow_runs SET
    last_sequence = ?, status = ?, terminal = ?, open_waits = ?, active_hooks = ?, pending_retries = ?,
    updated_at = ?, ended_at = ?, claim_at = iif(?, NULL, claim_at)
WHERE run_id = ? AND last_sequence = ?"""
_CREATE: Final = """
INSERT INTO flow_runs (
    run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries,
    created_at, updated_at, ended_at, last_sequence, claim_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, iif(?, NULL, 0))"""
_APPEND: Final = "INSERT INTO flow_commits (run_id, first_sequence, last_sequence, lines) VALUES (?, ?, ?, ?)"
_SET_WAKEUP: Final = """
INSERT INTO flow_wakeups (run_id, kind, subject_id, due_key) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET due_key = excluded.due_key"""
_TOKEN_OWNER: Final = """
SELECT run_id, hook_id FROM flow_hooks WHERE token_hash = ? AND run_id <> ? ORDER BY run_id, hook_id LIMIT 1"""


class SqliteWriter:
    """Writes groups of batches. Used by one thread at a time.

    After an input/output error it is poisoned: SQLite's picture of the file may be wrong, so `poison` holds the error that
    every later call must raise."""

    def __init__(self, file: SqliteFile, connection: sqlite3.Connection) -> None:
        self._file = file
        self._connection = connection
        self.poison: OutcomeUnknown | None = None

    def write(self, batches: Sequence[Batch]) -> list[Answer]:
        """Commits `batches` (of different runs) in one transaction, in run id order; refusals are among the answers.

        Raises `StoreUnavailable` or `StoreError` with nothing written, or `OutcomeUnknown`."""
        if self.poison is not None:
            raise OutcomeUnknown(self.poison.detail)
        answers: dict[str, Answer] = {}
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for batch in sorted(batches, key=lambda batch: batch.run_id):
                answers[batch.run_id] = self._apply(batch)
        except sqlite3.Error as error:
            raise self._failed(error, "writing") from None
        except BaseException:
            # A value that SQLite cannot take, or no memory: the transaction must not stay open for the next group.
            self._roll_back()
            raise
        self._commit()
        return [answers[batch.run_id] for batch in batches]

    # one batch -----------------------------------------------------------------------------------------------

    def _apply(self, batch: Batch) -> Answer:
        # The usual batch needs no look before it writes: one statement compares the sequence and moves it.
        plain = batch.expected_sequence > 0 and batch.lines and not batch.links and not batch.insert_hooks
        if not (plain and self._advance(batch)):
            refused = refusal(batch, self)
            if refused is not None:
                return refused
            if not batch.lines:
                return Committed(batch.last_sequence)
            if batch.expected_sequence:
                self._advance(batch)
            else:
                self._create(batch)
        run_id = batch.run_id
        self._connection.execute(_APPEND, (run_id, batch.first_sequence, batch.last_sequence, batch.lines))
        self._write_wakeups(batch)
        self._write_hooks(batch)
        for linked in batch.links:
            self._connection.execute("INSERT INTO flow_links VALUES (?, ?) ON CONFLICT DO NOTHING", (run_id, linked))
        return Committed(batch.last_sequence)

    def _advance(self, batch: Batch) -> bool:
        row = batch.row
        values = (
            row.last_sequence,
            row.status,
            row.terminal,
            row.open_waits,
            row.active_hooks,
            row.pending_retries,
            due_key(row.updated_at),
            None if row.ended_at is None else due_key(row.ended_at),
            row.terminal,
            batch.run_id,
            batch.expected_sequence,
        )
        return self._connection.execute(_ADVANCE, values).rowcount == 1

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
            due_key(row.created_at),
            due_key(row.updated_at),
            None if row.ended_at is None else due_key(row.ended_at),
            row.last_sequence,
            row.terminal,
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

    def last_sequence(self, run_id: str) -> int | None:
        found = self._connection.execute("SELECT last_sequence FROM flow_runs WHERE run_id = ?", (run_id,)).fetchone()
        return None if found is None else found[0]

    def token_owner(self, token_hash: bytes, besides: str) -> ActiveHook | None:
        found = self._connection.execute(_TOKEN_OWNER, (token_hash, besides)).fetchone()
        return None if found is None else ActiveHook(*found)

    # the end of the transaction ------------------------------------------------------------------------------

    def _commit(self) -> None:
        deadline = time.monotonic() + self._file.busy_seconds
        while True:
            try:
                self._connection.execute("COMMIT")
                return
            except sqlite3.Error as error:
                # A busy COMMIT leaves the transaction as it was, to be repeated (R48).
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
