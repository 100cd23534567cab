"""What must hold for the demo to succeed, judged from what the store and the ledger say afterwards."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from perdure import kernel as kernels
from perdure.demo.ledger import Attempt
from perdure.demo.orders import APPROVAL, CARD, PICKUP
from perdure.demo.record import KERNELS, SETTLING, Record, Row, open_attempts
from perdure.envelope import Envelope
from perdure.instant import Instant

__all__ = ["Check", "Evidence", "checks_of"]

ENDS: Final = frozenset(
    {"run_completed", "run_failed", "run_cancelled", "run_timed_out", "run_retry_exhausted", "run_host_shutdown"}
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold; `found` is told where it does not."""

    holds: bool
    text: str
    found: object = ""


@dataclass(frozen=True)
class Evidence:
    """Everything that is judged: the record at the end, the histories at the kill, how the two processes ended."""

    record: Record
    at_kill: dict[str, list[Envelope]]
    killed: Attempt
    exits: dict[str, int]

    @property
    def rows(self) -> list[Row]:
        return self.record.rows

    def of(self, run_id: str, *types: str) -> list[Row]:
        """The events of these types of a run."""
        return [row for row in self.rows if row.run_id == run_id and row.type in types]


def checks_of(evidence: Evidence) -> list[Check]:
    """All checks, in the order in which they are printed."""
    parts = (_processes, _ends, _histories, _side_effects, _retries, _batch, _approval, _clean_up, _kernels)
    return [check for part in parts for check in part(evidence)]


def _processes(evidence: Evidence) -> Iterator[Check]:
    first, second = evidence.exits.get("first"), evidence.exits.get("second")
    yield Check(first == -signal.SIGKILL, "the first process was ended by SIGKILL", first)
    yield Check(second == 0, "the second process carried every run to its end and exited with status 0", second)


def _ends(evidence: Evidence) -> Iterator[Check]:
    wanted = {CARD: "completed", APPROVAL: "completed", PICKUP: "cancelled"}
    for run_id, status in wanted.items():
        run = evidence.record.runs().get(run_id)
        found = "missing" if run is None else run.status
        yield Check(found == status, f"{run_id} ended {status}", found)
    summary = evidence.record.summary
    counts = (summary.total_runs, summary.non_terminal_runs, summary.active_hooks, summary.open_waits)
    text = "the store's index agrees: 3 runs, none open, no active hook, no open wait"
    yield Check(counts == (3, 0, 0, 0), text, counts)


def _histories(evidence: Evidence) -> Iterator[Check]:
    histories = evidence.record.histories
    numbered = all([e.sequence for e in h] == list(range(1, len(h) + 1)) for h in histories.values())
    yield Check(numbered, "the sequences of each run are 1 to n, without gap or repeat")
    ended = all([e.type in ENDS for e in h] == [False] * (len(h) - 1) + [True] for h in histories.values())
    yield Check(ended, "each run has one final event, and nothing after it")
    kept = all(histories.get(run_id, [])[: len(then)] == then for run_id, then in evidence.at_kill.items())
    count = sum(len(then) for then in evidence.at_kill.values())
    yield Check(kept and count > 0, f"all {count} events committed before the kill are there unchanged")


def _side_effects(evidence: Evidence) -> Iterator[Check]:
    effects = evidence.record.effects
    run_id, step_id, attempt = evidence.killed
    twice = [e for e in effects if e.of == evidence.killed]
    what = f"{step_id} of {run_id}, attempt {attempt}"
    processes = [e.process for e in twice]
    yield Check(processes == ["first", "second"], f"{what}, was cut off and ran twice: once per process", processes)
    yield Check(len({e.key for e in twice}) == 1, "both times under the same attempt number and one idempotency key")
    starts = [r for r in evidence.of(run_id, "step_started") if r.subject == step_id and r.attempt == attempt]
    ends = [r for r in evidence.of(run_id, "step_completed") if r.subject == step_id]
    yield Check(len(starts) == len(ends) == 1, "its history has one start and one outcome of it all the same")
    charged = [e for e in effects if e.of == evidence.killed and e.charged]
    yield Check(len(charged) == 1, "the card was charged once: the provider knew the key")
    times = Counter(e.of for e in effects)
    others = {of: count for of, count in times.items() if of != evidence.killed}
    started = {(r.run_id, r.subject, r.attempt) for r in evidence.rows if r.type == "step_started"}
    once = started == times.keys() and set(others.values()) == {1}
    yield Check(once, f"each of the other {len(others)} attempts had its side effect exactly once", others)
    yield Check(_none_after_commit(evidence), "nothing ran again after its outcome was committed")


def _none_after_commit(evidence: Evidence) -> bool:
    settled = {(r.run_id, r.subject, r.attempt): r.at for r in evidence.rows if r.type in SETTLING}
    return not open_attempts(evidence.rows) and all(e.at <= settled.get(e.of, 0) for e in evidence.record.effects)


def _retries(evidence: Evidence) -> Iterator[Check]:
    retries = [e for e in evidence.record.histories.get(CARD, []) if e.type == "step_retrying"]
    yield Check(len(retries) == 2, "the payment failed twice before it succeeded", len(retries))
    delays = [[_delay_ms(evidence, name, retry) for retry in retries] for name in KERNELS]
    text = " and ".join(f"{delay} ms" for delay in delays[0])
    yield Check(delays[0] == delays[1], f"both kernels compute the retry delays {text} from run, step and attempt")
    anchored = all(_anchored(evidence, retry, delay) for retry, delay in zip(retries, delays[0], strict=True))
    yield Check(anchored, "each recorded deadline is its failure plus exactly that delay")
    starts = {r.attempt: r.at for r in evidence.of(CARD, "step_started") if r.subject == "charge"}
    kept = all(starts.get(r.event["attempt"] + 1, 0) >= Instant.parse(r.event["retry_after"]).ns for r in retries)
    yield Check(kept, "no attempt was started before its deadline")


def _delay_ms(evidence: Evidence, kernel: kernels.KernelName, retry: Envelope) -> int:
    step_id, attempt = retry.event["step_id"], retry.event["attempt"]
    policy = evidence.record.runs()[retry.run_id].steps[step_id].retry
    return kernels.load(kernel).retry_delay_ms(policy, retry.run_id, step_id, attempt)


def _anchored(evidence: Evidence, retry: Envelope, delay_ms: int) -> bool:
    """The failure lies between the side effect and the event that records it, and so must the deadline less the delay."""
    anchor = Instant.parse(retry.event["retry_after"]).ns - delay_ms * 1_000_000
    of = (retry.run_id, retry.event["step_id"], retry.event["attempt"])
    return any(e.at <= anchor <= retry.timestamp.ns for e in evidence.record.effects if e.of == of)


def _batch(evidence: Evidence) -> Iterator[Check]:
    batch = [r for r in evidence.rows if r.run_id == CARD and r.subject in ("reserve", "invoice")]
    wanted = ["step_created"] * 2 + ["step_started"] * 2 + ["step_completed"] * 2
    opening = [(r.sequence - batch[0].sequence, r.at - batch[0].at) for r in batch[:4]]
    in_one = opening == [(number, 0) for number in range(4)]
    both = [r.type for r in batch] == wanted
    yield Check(both and in_one, "the batch was opened in one append, and both steps ran side by side")


def _approval(evidence: Evidence) -> Iterator[Check]:
    run = evidence.record.runs()[APPROVAL]
    order = {(kind, subject): sequence for kind, subject, sequence in run.resolutions}
    hook, patience = order.get(("hook", "approval")), order.get(("wait", "patience"))
    won = hook is not None and patience is not None and hook < patience
    yield Check(won, f"the approval (event {hook}) came before the timer beside it was closed (event {patience})")
    fired = {r.subject: r.at for r in evidence.of(APPROVAL, "wait_completed")}
    in_time = fired.get("reminder", 0) >= run.waits["reminder"].resume_at.ns
    yield Check(in_time, "the reminder did not fire before its time")


def _clean_up(evidence: Evidence) -> Iterator[Check]:
    request, end = (evidence.of(PICKUP, kind) for kind in ("run_cancellation_requested", "run_cancelled"))
    undone = [r for r in evidence.of(PICKUP, "step_completed") if r.subject in ("refund", "release")]
    between = all(request[0].sequence < r.sequence < end[0].sequence for r in undone) if request and end else False
    both = {r.subject for r in undone} == {"refund", "release"}
    yield Check(between and both, f"{PICKUP} refunded and released between the request and its end")
    outcome = evidence.record.runs()[PICKUP].terminal_outcome or {}
    yield Check(outcome.get("reason") == "the customer changed their mind", "its end carries the reason of the request")


def _kernels(evidence: Evidence) -> Iterator[Check]:
    rust, pure = (evidence.record.snapshots[name] for name in KERNELS)
    yield Check(rust == pure, "both kernels read the same snapshots from the file, byte for byte")
