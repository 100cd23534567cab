"""What the histories say, held against what the processes wrote down while they lived."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from perdure import Envelope
from perdure.instant import parse_instant
from perdure.stores.base import FlowEventStore
from worker.kill_loop.ledger import Ledger
from worker.kill_loop.processes import Plan
from worker.kill_loop.program import kind_of, name_of

__all__ = ["Tally", "audit"]

_OUTCOMES: Final = ("step_completed", "step_retrying", "step_failed", "step_non_retryable")
_ENDS: Final = {
    "run_completed",
    "run_failed",
    "run_cancelled",
    "run_timed_out",
    "run_retry_exhausted",
    "run_host_shutdown",
}


@dataclass
class Tally:
    """The sum of it. `wrong` names each thing that must not be."""

    counts: Counter[str] = field(default_factory=Counter)
    late_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield ", ".join(f"{self.counts[name]} {name}" for name in self.counts)
        late = sorted(self.late_ms)
        if late:
            shares = [(share, late[min(len(late) - 1, int(len(late) * share))]) for share in (0.5, 0.9, 0.99)]
            told = ", ".join(f"p{share * 100:g} {ms:.0f} ms" for share, ms in shares)
            yield f"lateness of {len(late)} wakeups: {told}, most {late[-1]:.0f} ms"
        yield from (f"WRONG: {what}" for what in self.wrong[:50])
        yield "nothing was lost, nothing ran twice after its commit" if not self.wrong else f"{len(self.wrong)} WRONG"


async def audit(plan: Plan) -> Tally:
    """Reads everything; the store must be at rest."""
    tally, facts = Tally(), _facts(plan.ledger)
    store = plan.open()
    try:
        for number in range(plan.runs):
            run_id = name_of(number)
            events = Envelope.parse_lines(await store.history(run_id))
            _check_end(tally, run_id, events)
            _check_steps(tally, run_id, events, facts[run_id])
            _check_leases(tally, run_id, facts[run_id], facts[""], plan)
            tally.counts["events"] += len(events)
        await _check_rest(tally, plan, store)
    finally:
        await store.close()
    tally.counts["kills"] = len(facts[""])
    return tally


def _facts(ledger: Ledger) -> dict[str, list[list[Any]]]:
    """By run; kills, which are of no run, under the empty name."""
    found: dict[str, list[list[Any]]] = defaultdict(list)
    for fact in ledger.read():
        if fact[0] != "began":
            found["" if fact[0] == "killed" else fact[3]].append(fact)
    return found


def _check_end(tally: Tally, run_id: str, events: list[Envelope]) -> None:
    """Each run ends exactly once, and as its kind must."""
    ends = [event.type for event in events if event.type in _ENDS]
    expected = "run_cancelled" if kind_of(run_id) == "cancel" else "run_completed"
    if ends != [expected] or events[-1].type != expected:
        tally.wrong.append(f"{run_id} ended by {ends or 'nothing'}, expected {expected}")
    tally.counts[f"runs {expected.removeprefix('run_')}"] += 1


def _check_steps(tally: Tally, run_id: str, events: list[Envelope], facts: list[list[Any]]) -> None:
    """Each committed outcome comes of an attempt that ran, and none ran once its outcome was known to be committed."""
    known = [(fact[5], fact[1]) for fact in facts if fact[0] in ("claimed", "committed")]
    ran: dict[tuple[str, int], list[int]] = defaultdict(list)
    for what, at, _, _, *rest in facts:
        if what == "ran":
            ran[rest[0], rest[1]].append(at)
    tally.counts["attempts run"] += sum(map(len, ran.values()))
    attempts: dict[str, int] = {}
    for event in events:
        if event.type == "step_started":
            started = json.loads(event.raw)
            attempts[started["step_id"]] = started["attempt"]
        if event.type == "wait_completed":
            tally.late_ms.append((event.timestamp.ns - _due(events, event)) / 1e6)
        if event.type not in _OUTCOMES:
            continue
        step_id = json.loads(event.raw)["step_id"]
        key = (step_id, attempts[step_id])
        durable = min((at for sequence, at in known if sequence >= event.sequence), default=None)
        tally.counts["outcomes"] += 1
        if not ran[key]:
            tally.wrong.append(f"{run_id} has an outcome of {key}, which never ran")
        if durable is not None and any(at > durable for at in ran[key]):
            tally.wrong.append(f"{run_id} ran {key} again after its outcome was committed")


def _due(events: list[Envelope], done: Envelope) -> int:
    wait_id = json.loads(done.raw)["wait_id"]
    created = next(e for e in events if e.type == "wait_created" and json.loads(e.raw)["wait_id"] == wait_id)
    return parse_instant(json.loads(created.raw)["resume_at"])


def _check_leases(tally: Tally, run_id: str, facts: list[list[Any]], kills: list[list[Any]], plan: Plan) -> None:
    """No two live leases: an epoch has one owner, commits never go back to an older one, and a claim takes only what was
    released, has expired, or belonged to a dead process."""
    owners: dict[int, int] = {}
    for what, _, pid, _, epoch, *_ in facts:
        if what in ("claimed", "committed") and epoch is not None and owners.setdefault(epoch, pid) != pid:
            tally.wrong.append(f"{run_id}: epoch {epoch} had two owners")
    died = {pid: at for _, at, _, pid in kills}
    for what, _, _, _, epoch, *rest in facts:
        if what in ("claimed", "lost"):
            tally.counts[f"leases {what}"] += 1
        if what == "claimed" and _is_live(epoch - 1, rest[1], facts, died.get(owners.get(epoch - 1, 0)), plan):
            tally.wrong.append(f"{run_id}: epoch {epoch} was claimed while epoch {epoch - 1} was live")
    committed = sorted((fact[5], fact[4]) for fact in facts if fact[0] == "committed" and fact[4] is not None)
    if any(later[1] < earlier[1] for earlier, later in pairwise(committed)):
        tally.wrong.append(f"{run_id}: a commit under an older epoch came after one under a newer: {committed}")


def _is_live(epoch: int, now: int, facts: list[list[Any]], died_at: int | None, plan: Plan) -> bool:
    """Whether, as far as is written down, that epoch's lease held at `now`."""
    if died_at is not None and died_at <= now:
        return False
    granted = [0]
    for what, _, _, _, of_epoch, *rest in facts:
        if of_epoch == epoch and what == "releases":
            return False
        if of_epoch == epoch and what == "claimed":
            granted.append(rest[1])
        if of_epoch == epoch and what == "renewed" and rest[0] <= now:
            granted.append(rest[0])
    return max(granted) + int(plan.lease_ttl * 1e9) > now


async def _check_rest(tally: Tally, plan: Plan, store: FlowEventStore) -> None:
    """Nothing due is left, and nobody holds anything."""
    summary = await store.summary()
    if (summary.total_runs, summary.terminal_runs) != (plan.runs, plan.runs):
        tally.wrong.append(f"of {plan.runs} runs {summary.total_runs} exist and {summary.terminal_runs} ended")
    outlook = await store.outlook(builds=None)
    left = (outlook.claim_at, outlook.owners, await store.next_scheduled_wakeup(), await store.list_active_hooks())
    if left != (None, (), None, []):
        tally.wrong.append(f"left behind: {left}")
