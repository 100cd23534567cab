"""The lease columns in SQLite: reading and writing them, claims, and what an idle worker asks (R2, R3, R43, R50)."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final

from perdure.errors import LeaseLost, RunNotFound
from perdure.payload import encode
from perdure.stores import leases
from perdure.stores.base import Claimed
from perdure.stores.leases import UNKNOWN, Columns, RunState, Wanted

__all__ = [
    "claim",
    "claim_held",
    "claim_query",
    "claimable_held",
    "has_claim",
    "held_query",
    "known_state",
    "next_query",
    "one_value",
    "outlook_of",
    "outlook_query",
    "owned",
    "read_state",
    "release_hold",
    "renew",
    "set_hold",
    "void",
    "write_columns",
]

_COLUMNS: Final = "owner, epoch, parked_sequence, failures, not_before, hold, claim_at"
STATE: Final = f"SELECT last_sequence, terminal, {_COLUMNS} FROM flow_runs WHERE run_id = ?"
SET_COLUMNS: Final = """
UPDATE flow_runs SET
    owner = ?, epoch = ?, parked_sequence = ?, failures = ?, not_before = ?, hold = ?, claim_at = ?
WHERE run_id = ?"""
OWNERS: Final = """
SELECT owner FROM (WITH RECURSIVE known(owner) AS (
    SELECT min(owner) FROM flow_runs WHERE owner IS NOT NULL
    UNION ALL SELECT (SELECT min(r.owner) FROM flow_runs AS r WHERE r.owner > known.owner) FROM known
    WHERE known.owner IS NOT NULL
) SELECT owner FROM known WHERE owner IS NOT NULL)"""
OWNED: Final = "SELECT run_id FROM flow_runs WHERE owner = ?"


def read_state(connection: sqlite3.Connection, run_id: str) -> RunState:
    """What the run's row says, `UNKNOWN` if it has none."""
    found = connection.execute(STATE, (run_id,)).fetchone()
    if found is None:
        return UNKNOWN
    last_sequence, terminal, *columns = found
    return RunState(last_sequence, bool(terminal), Columns(*columns))


def write_columns(connection: sqlite3.Connection, run_id: str, row: Columns) -> None:
    """Replaces the run's lease columns."""
    connection.execute(SET_COLUMNS, (*row, run_id))


# claims ----------------------------------------------------------------------------------------------------------


def claim_query(wanted: Wanted, now: int) -> tuple[str, list[object]]:
    """Runs whose time has come, in the order of claims: wanted ones, and held ones whatever they are."""
    terms, values = _wanted_terms(wanted)
    due = f"claim_at <= ? AND (hold IS NOT NULL OR ({terms}))"
    query = f"SELECT run_id, hold IS NOT NULL FROM flow_runs WHERE {due} ORDER BY claim_at, run_id"
    return query, [now // 1000, *values]


def held_query(wanted: Wanted) -> tuple[str, list[object]]:
    """Held runs that are wanted, by id."""
    terms, values = _wanted_terms(wanted)
    return f"SELECT run_id FROM flow_runs WHERE hold IS NOT NULL AND {terms} ORDER BY run_id", values


def next_query(wanted: Wanted) -> tuple[str, list[object]]:
    """The earliest `claim_at` of a wanted run that is not held."""
    terms, values = _wanted_terms(wanted)
    ahead = f"claim_at IS NOT NULL AND hold IS NULL AND {terms}"
    return f"SELECT claim_at FROM flow_runs WHERE {ahead} ORDER BY claim_at, run_id LIMIT 1", values


def outlook_query(wanted: Wanted) -> tuple[str, list[object]]:
    """The same in one query with the owners of leases, each found by one step in their index."""
    query, values = next_query(wanted)
    return f"SELECT * FROM ({query}) UNION ALL {OWNERS}", values


def outlook_of(rows: Sequence[tuple[int | str]]) -> tuple[int | None, tuple[str, ...]]:
    """What the rows of `outlook_query` say: the earliest `claim_at`, and the owners."""
    cells = [cell for (cell,) in rows]
    claim_at = next((cell for cell in cells if isinstance(cell, int)), None)
    return claim_at, tuple(cell for cell in cells if isinstance(cell, str))


def _wanted_terms(wanted: Wanted) -> tuple[str, list[object]]:
    terms: list[str] = ["1"]
    values: list[object] = []
    if wanted.workflows is not None:
        rows = ", ".join("(?, ?)" for _ in wanted.workflows)
        # The plus keeps the planner at the index of the order asked for: that by name would have all runs of a workflow sorted.
        terms.append(f"(+name, version) IN (VALUES {rows})" if rows else "0")
        values += [value for workflow in wanted.workflows for value in workflow]
    if wanted.builds is not None:
        named = [build for build in wanted.builds if build is not None]
        unpinned = " OR build IS NULL" if None in wanted.builds else ""
        terms.append(f"(build IN ({', '.join('?' * len(named))}){unpinned})")
        values += named
    if wanted.besides:
        terms.append("run_id NOT IN (SELECT value FROM json_each(?))")
        values.append(one_value(wanted.besides))
    return " AND ".join(terms), values


def one_value(run_ids: Collection[str]) -> str:
    """Ids for `json_each`, however many: SQLite binds 32,766 values at most. Raises `UnicodeEncodeError`, as binding them
    would, for what is no text."""
    "".join(run_ids).encode()
    return encode(list(run_ids)).decode()


def claim(connection: sqlite3.Connection, owner: str, k: int, wanted: Wanted, ttl_ns: int, now: int) -> list[Claimed]:
    """As `FlowEventStore.claim`, inside a transaction; `now` is the store's clock."""
    found: list[str] = []
    passed: list[str] = []
    for run_id, is_held in connection.execute(*claim_query(wanted, now)):
        (passed if is_held else found).append(run_id)
        if len(found) == k:
            break
    for run_id in passed:
        write_columns(connection, run_id, leases.passed_over(read_state(connection, run_id).lease))
    return [_give(connection, run_id, owner, ttl_ns, now) for run_id in found]


def claim_held(
    connection: sqlite3.Connection, owner: str, k: int, build: str, wanted: Wanted, ttl_ns: int, now: int
) -> list[Claimed]:
    """As `FlowEventStore.claim_held`, inside a transaction."""
    found = claimable_held(connection, k, build, wanted, now)
    return [_give(connection, run_id, owner, ttl_ns, now) for run_id in found]


def has_claim(connection: sqlite3.Connection, wanted: Wanted, now: int) -> bool:
    """Whether a claim would change anything."""
    return connection.execute(*claim_query(wanted, now)).fetchone() is not None


def claimable_held(connection: sqlite3.Connection, k: int, build: str, wanted: Wanted, now: int) -> list[str]:
    """The first `k` held runs that a worker of this build may try (R43)."""
    run_ids = [run_id for (run_id,) in connection.execute(*held_query(wanted))]
    found = (
        run_id
        for run_id in run_ids
        if leases.is_claimable_though_held(read_state(connection, run_id).lease, now, build)
    )
    return list(islice(found, k))


def _give(connection: sqlite3.Connection, run_id: str, owner: str, ttl_ns: int, now: int) -> Claimed:
    state = read_state(connection, run_id)
    row, lost = leases.given(state.lease, owner, ttl_ns, now)
    write_columns(connection, run_id, row)
    return Claimed(run_id, row.epoch, state.last_sequence, now, row.failures, lost)


# beside claims ---------------------------------------------------------------------------------------------------


def renew(
    connection: sqlite3.Connection, owner: str, pairs: Sequence[tuple[str, int]], ttl_ns: int, now: int
) -> list[tuple[str, int] | LeaseLost]:
    """As `FlowEventStore.renew`, inside a transaction."""
    answers: list[tuple[str, int] | LeaseLost] = []
    for run_id, epoch in pairs:
        state = read_state(connection, run_id)
        row = leases.renewed(state.lease, owner, epoch, ttl_ns, now)
        if row is None:
            answers.append(LeaseLost(run_id))
        else:
            write_columns(connection, run_id, row)
            answers.append((run_id, state.last_sequence))
    return answers


def void(connection: sqlite3.Connection, owner: str) -> int:
    """As `FlowEventStore.void`, inside a transaction."""
    run_ids = owned(connection, owner)
    for run_id in run_ids:
        write_columns(connection, run_id, leases.voided(read_state(connection, run_id).lease))
    return len(run_ids)


def owned(connection: sqlite3.Connection, owner: str) -> list[str]:
    """The runs that `owner` leases."""
    return [run_id for (run_id,) in connection.execute(OWNED, (owner,))]


def set_hold(connection: sqlite3.Connection, run_id: str, hold: str, expected_sequence: int, now: int) -> bool:
    """As `FlowEventStore.set_hold`, inside a transaction."""
    return _change(connection, run_id, leases.held(known_state(connection, run_id), hold, expected_sequence, now))


def release_hold(connection: sqlite3.Connection, run_id: str) -> bool:
    """As `FlowEventStore.release_hold`, inside a transaction."""
    return _change(connection, run_id, leases.hold_released(known_state(connection, run_id).lease))


def known_state(connection: sqlite3.Connection, run_id: str) -> RunState:
    """As `read_state`. Raises `RunNotFound`."""
    state = read_state(connection, run_id)
    if state is UNKNOWN:
        raise RunNotFound(run_id)
    return state


def _change(connection: sqlite3.Connection, run_id: str, row: Columns | None) -> bool:
    if row is not None:
        write_columns(connection, run_id, row)
    return row is not None
