"""Leases outside a commit, each change and each question in one statement (R2, R3, R43, R50).

They say in SQL what `leases.py` says in Python. The clock is the server's, or parameter 1 where a test sets the time. Rows
are locked by run id, as `flow_commit` locks them, or passed over where somebody else has them."""

from __future__ import annotations

from typing import Final

from perdure.stores.leases import Wanted

__all__ = [
    "CLAIM",
    "CLAIM_HELD",
    "LEASE",
    "NEXT_CLAIM",
    "OUTLOOK",
    "RELEASE_HOLD",
    "RENEW",
    "SET_HOLD",
    "VOID",
    "wanted_values",
]

_CLOCK: Final = "clock AS MATERIALIZED (SELECT coalesce($1::bigint, @schema@.flow_clock()) AS now)"
_LIVE: Final = "(r.owner IS NOT NULL AND r.claim_at IS NOT NULL AND r.claim_at > (SELECT clock.now / 1000 FROM clock))"


def _wanted(first: int) -> str:
    names, versions, builds, unpinned, besides = (f"${first + n}" for n in range(5))
    return (
        f"({names}::text[] IS NULL OR (r.name, r.version) IN (SELECT * FROM unnest({names}::text[], {versions}::text[])))"
        f" AND ({builds}::text[] IS NULL OR r.build = ANY ({builds}::text[]) OR ({unpinned}::boolean AND r.build IS NULL))"
        f" AND r.run_id <> ALL ({besides}::text[])"
    )


def wanted_values(wanted: Wanted) -> tuple[object, ...]:
    """The five parameters of what a worker wants: names, versions, builds, whether runs without a build are meant, and what
    it passes over."""
    names = versions = builds = None
    if wanted.workflows is not None:
        names, versions = [name for name, _ in wanted.workflows], [version for _, version in wanted.workflows]
    if wanted.builds is not None:
        builds = [build for build in wanted.builds if build is not None]
    return names, versions, builds, wanted.builds is None or None in wanted.builds, list(wanted.besides)


_PICKED: Final = "r.run_id, r.claim_at, coalesce(r.owner <> $2, false) AS expired, r.not_before, r.failures"
_GIVE: Final = """given AS (
    UPDATE @schema@.flow_runs AS r SET owner = $2, epoch = r.epoch + 1, not_before = NULL,
        failures = greatest(r.failures, picked.expired::integer),
        claim_at = @schema@.flow_microseconds(clock.now + $4::bigint)
    FROM picked, clock WHERE r.run_id = picked.run_id
    RETURNING r.run_id, r.epoch, r.last_sequence, picked.claim_at AS due, clock.now, r.failures,
        picked.expired AND picked.failures > 0 OR coalesce(picked.not_before = 0, false) AS lost
)"""

CLAIM: Final = f"""
WITH {_CLOCK},
picked AS MATERIALIZED (
    SELECT {_PICKED} FROM @schema@.flow_runs AS r
    WHERE r.claim_at <= (SELECT clock.now / 1000 FROM clock) AND r.claim_at IS NOT NULL AND r.hold IS NULL AND {_wanted(5)}
    ORDER BY r.claim_at, r.run_id LIMIT $3::bigint FOR NO KEY UPDATE SKIP LOCKED
),
met AS MATERIALIZED (
    SELECT r.run_id FROM @schema@.flow_runs AS r
    WHERE r.claim_at <= (SELECT clock.now / 1000 FROM clock) AND r.claim_at IS NOT NULL AND r.hold IS NOT NULL
        AND ((SELECT count(*) FROM picked) < $3::bigint
            OR (r.claim_at, r.run_id) < (SELECT p.claim_at, p.run_id FROM picked AS p ORDER BY 1 DESC, 2 DESC LIMIT 1))
    FOR NO KEY UPDATE SKIP LOCKED
),
passed AS (UPDATE @schema@.flow_runs AS r SET claim_at = NULL FROM met WHERE r.run_id = met.run_id),
{_GIVE}
SELECT run_id, epoch, last_sequence, now, failures, lost FROM given ORDER BY due, run_id"""

CLAIM_HELD: Final = f"""
WITH {_CLOCK},
picked AS MATERIALIZED (
    SELECT {_PICKED} FROM @schema@.flow_runs AS r
    WHERE r.hold IS NOT NULL AND NOT {_LIVE} AND {_wanted(5)}
        AND NOT EXISTS (SELECT FROM @schema@.flow_builds(r.hold) AS caused (build) WHERE caused.build = $10)
    ORDER BY r.run_id LIMIT $3::bigint FOR NO KEY UPDATE SKIP LOCKED
),
{_GIVE}
SELECT run_id, epoch, last_sequence, now, failures, lost FROM given ORDER BY run_id"""

NEXT_CLAIM: Final = f"""
SELECT r.claim_at FROM @schema@.flow_runs AS r
WHERE r.claim_at IS NOT NULL AND r.hold IS NULL AND {_wanted(1)} ORDER BY r.claim_at, r.run_id LIMIT 1"""

OUTLOOK: Final = f"""
WITH RECURSIVE {_CLOCK},
known (owner) AS (
    SELECT min(owner) FROM @schema@.flow_runs WHERE owner IS NOT NULL
    UNION ALL SELECT (SELECT min(r.owner) FROM @schema@.flow_runs AS r WHERE r.owner > known.owner) FROM known
    WHERE known.owner IS NOT NULL
)
SELECT clock.now,
    (SELECT r.claim_at FROM @schema@.flow_runs AS r
        WHERE r.claim_at IS NOT NULL AND r.hold IS NULL AND {_wanted(2)} ORDER BY r.claim_at, r.run_id LIMIT 1),
    ARRAY(SELECT owner FROM known WHERE owner IS NOT NULL)
FROM clock"""

RENEW: Final = f"""
WITH {_CLOCK},
mine AS MATERIALIZED (
    SELECT r.run_id FROM @schema@.flow_runs AS r WHERE r.run_id = ANY ($3::text[]) AND r.owner = $2
    ORDER BY r.run_id FOR NO KEY UPDATE
)
UPDATE @schema@.flow_runs AS r SET owner = CASE WHEN $5::bigint > 0 THEN r.owner END,
    claim_at = CASE WHEN $5::bigint > 0 OR r.hold IS NULL THEN @schema@.flow_microseconds(clock.now + $5::bigint) END
FROM mine, clock, unnest($3::text[], $4::bigint[]) AS pair (run_id, epoch)
WHERE r.run_id = mine.run_id AND pair.run_id = r.run_id AND r.owner = $2 AND r.epoch = pair.epoch
RETURNING r.run_id, r.epoch, r.last_sequence, clock.now"""

VOID: Final = """
WITH dead AS MATERIALIZED (
    SELECT r.run_id FROM @schema@.flow_runs AS r WHERE r.owner = $1 ORDER BY r.run_id FOR NO KEY UPDATE
)
UPDATE @schema@.flow_runs AS r SET owner = NULL, failures = greatest(r.failures, 1),
    not_before = CASE WHEN r.failures > 0 THEN 0 END, claim_at = CASE WHEN r.hold IS NULL THEN 0 END
FROM dead WHERE r.run_id = dead.run_id AND r.owner = $1 RETURNING r.run_id"""

SET_HOLD: Final = f"""
WITH {_CLOCK},
known AS MATERIALIZED (SELECT r.run_id FROM @schema@.flow_runs AS r WHERE r.run_id = $2 FOR NO KEY UPDATE),
changed AS (
    UPDATE @schema@.flow_runs AS r SET hold = $3, claim_at = NULL FROM known
    WHERE r.run_id = known.run_id AND NOT r.terminal AND r.last_sequence = $4::bigint AND NOT {_LIVE}
    RETURNING r.run_id
)
SELECT (SELECT count(*) FROM known), (SELECT count(*) FROM changed)"""

RELEASE_HOLD: Final = """
WITH known AS MATERIALIZED (SELECT r.run_id FROM @schema@.flow_runs AS r WHERE r.run_id = $1 FOR NO KEY UPDATE),
changed AS (
    UPDATE @schema@.flow_runs AS r SET hold = NULL, parked_sequence = -1, failures = 0, not_before = NULL,
        claim_at = CASE WHEN r.owner IS NULL OR r.claim_at IS NULL THEN 0 ELSE r.claim_at END
    FROM known WHERE r.run_id = known.run_id AND r.hold IS NOT NULL
    RETURNING r.run_id
)
SELECT (SELECT count(*) FROM known), (SELECT count(*) FROM changed)"""

LEASE: Final = """
SELECT coalesce($1::bigint, @schema@.flow_clock()), last_sequence, terminal,
    owner, epoch, parked_sequence, failures, not_before, hold, claim_at
FROM @schema@.flow_runs WHERE run_id = $2"""
