"""The invariants of spec/README.md, checked at every change of the store and at every start of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import orjson

from perdure.errors import EventConflict, FlowError, HookTokenConflict, LeaseHeld, LeaseLost, RunNotFound
from perdure.instant import parse_instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel, Reads, Run
from perdure.stores.base import Append, Claimed, Committed, LeaseState, RunnablePage
from perdure.stores.leases import Wanted
from perdure.testing._simulation.index import check_index
from perdure.testing._simulation.leases import LeaseBooks
from perdure.testing._simulation.medium import Medium

__all__ = ["Auditor", "Book", "InvariantBroken", "Party"]

_ENDS: Final = frozenset(
    "run_completed run_failed run_cancelled run_timed_out run_retry_exhausted run_host_shutdown".split()
)
_OUTCOMES: Final = frozenset("step_completed step_failed step_non_retryable step_retrying".split())
_BY_DRIVES: Final = _OUTCOMES | {"step_created", "step_started", "step_cancelled", "wait_created", "hook_created"}
_EVERYTHING: Final = 10**6


class InvariantBroken(AssertionError):
    """What the simulation found. The text says which rule, and where; `seed` and `trace` are set by the runner."""

    seed: int | None = None
    trace: Sequence[str] = ()


@dataclass(eq=False)
class Party:
    """What the auditor knows of a process. `owner`: its identity as a holder of leases."""

    name: str
    owner: str
    leases: bool
    concurrency: int
    each: bool
    """Whether it commits what it staged apart from the decision that follows."""
    gone: Callable[[], bool]
    answers: Callable[[Reads], bytes | None]
    """What its workflow would ask for on this run; None if it would raise."""
    supports: Callable[[str | None], bool]
    """Whether its code may drive runs pinned to a build."""
    build: str | None = None
    asked: set[str] = field(default_factory=set)
    """Runs that a host has asked it to drive."""
    asks_all: bool = False
    left_alone: dict[str, int] = field(default_factory=dict)
    """Runs that were held when it was given a task that drives them, each with its epoch then (R43)."""
    running: dict[tuple[str, str, int], Callable[[], bool]] = field(default_factory=dict)
    """Attempts under way, each with whether it has been told to end."""
    finished: set[tuple[str, str, int]] = field(default_factory=set)
    """Attempts that ended here and whose outcome is not in the store yet."""
    mishaps: int = 0
    """How often the store failed it."""
    excused: set[tuple[str, str, int]] = field(default_factory=set)
    """Attempts whose outcome may be lost: the store failed, or the lease was lost, while they ran."""

    def excuse(self, run_id: str) -> None:
        """The drive of a run was told of a store error or a lost lease: it may end, and its attempts with it."""
        self.excused |= {key for key in self.running if key[0] == run_id}
        self.finished = {key for key in self.finished if key[0] != run_id}

    def leased_task(self, run_id: str | None, leases: LeaseBooks) -> None:
        """It was given a task for a run."""
        if run_id is not None and leases.of(run_id).hold is not None:
            self.left_alone[run_id] = leases.of(run_id).epoch
        elif run_id is not None:
            self.left_alone.pop(run_id, None)


class Book:
    """What the store has said is durable of one run, and its projection, folded commit by commit."""

    def __init__(self, run_id: str, kernel: Kernel) -> None:
        self.run_id = run_id
        self.lines = b""
        self.cuts: list[int] = []
        self.run: Run = kernel.new(run_id, DEFAULT_MAX_EVENT_BYTES)
        self._kernel = kernel

    def add(self, lines: bytes) -> None:
        if self.run.last_sequence == 0:
            self.run = self._kernel.project(self.run_id, lines, DEFAULT_MAX_EVENT_BYTES)
        else:
            self.run.extend(lines)
        self.cuts.append(len(self.lines))
        self.lines += lines

    def at(self, sequence: int) -> bytes:
        """The first `sequence` lines."""
        return b"".join(self.lines.splitlines(keepends=True)[:sequence])


class Auditor:
    """Watches one store. Everything it compares with, it keeps itself or reads through the store's public methods."""

    def __init__(self, medium: Medium, kernel: Kernel, *, quiet: bool) -> None:
        self.medium = medium
        self.kernel = kernel
        self.quiet = quiet  # whether nothing goes wrong from the beginning on
        self.leases = LeaseBooks(medium, self.fail)
        self.changed: Callable[[], None] = lambda: None
        self.books: dict[str, Book] = {}
        self.parties: list[Party] = []
        self.commits = self.refusals = self.launches = 0
        self.usurped: set[str] = set()
        """Runs whose live lease was taken over: the one who lost it cannot know yet."""
        self.broken: InvariantBroken | None = None
        self.on_broken: Callable[[], None] = lambda: None

    def fail(self, rule: int | str, text: str) -> NoReturn:
        """The first failure counts, whoever catches it: steps and calls are run by code that catches much."""
        error = InvariantBroken(f"invariant {rule}: {text}" if isinstance(rule, int) else f"{rule}: {text}")
        if self.broken is None:
            self.broken = error
            self.on_broken()
        raise error

    def book(self, run_id: str) -> Book:
        """The run's book; an empty one if nothing is durable yet."""
        if run_id not in self.books:
            self.books[run_id] = Book(run_id, self.kernel)
        return self.books[run_id]

    # -- commits ---------------------------------------------------------------------------------------------------

    def commit(self, party: Party, append: Append) -> Committed | FlowError:
        """Commits through the store and judges what it did."""
        run_id = append.batch.run_id
        before = self.medium.lease(run_id)
        (answer,) = self.medium.run(self.medium.store.commit([append]))
        after = self.medium.lease(run_id)
        if isinstance(answer, Committed):
            self.commits += 1
            self._accepted(party, append, answer, before, after)
            self.changed()
        else:
            self.refusals += 1
            self._refused(append, answer, before, after)
        return answer

    def _accepted(
        self, party: Party, append: Append, answer: Committed, before: LeaseState | None, after: LeaseState | None
    ) -> None:
        batch, lease, book = append.batch, append.lease, self.book(append.batch.run_id)
        where = f"{party.name}, run {batch.run_id} at {batch.expected_sequence}"
        if after is None:
            self.fail(1, f"{where}: committed, and the store does not know the run")
        if book.run.last_sequence != batch.expected_sequence or answer.last_sequence != batch.last_sequence:
            self.fail(2, f"{where}: accepted on top of {book.run.last_sequence}")
        anothers = before is not None and before.live and before.owner != party.owner
        if lease is not None and lease.epoch is not None:
            if before is None or (before.owner, before.epoch) != (lease.owner, lease.epoch):
                self.fail(4, f"{where}: the lease was lost, and the commit of its owner was accepted")
        elif lease is not None and anothers and (lease.claim == "firm" or lease.unless_leased):
            self.fail(4, f"{where}: accepted although another's lease is live")
        asked = party.asks_all or batch.run_id in party.asked
        held = before is not None and before.hold is not None and party.left_alone.get(batch.run_id) == before.epoch
        if held and lease is not None and lease.claim == "firm" and not asked:
            self.fail("R43", f"{where}: a task drives a held run")
        if anothers and lease is not None and lease.claim == "take_over":
            self.usurped.add(batch.run_id)
        if answer.epoch is not None and (after.owner, after.epoch) != (party.owner, answer.epoch):
            self.fail(4, f"{where}: said to hold epoch {answer.epoch}, the row says {after.epoch}")
        events = [orjson.loads(line) for line in batch.lines.splitlines()]
        self._check_events(where, party, append, events)
        if lease is not None and lease.accepted:
            self._check_decision(where, party, book.run, [envelope["event"] for envelope in events])
        if lease is not None and lease.claim in ("firm", "if_free") and answer.epoch is not None:
            self._check_taken(party, batch.run_id, before)
        if batch.lines:
            book.add(batch.lines)
        self.leases.committed(party, append, book.run)
        self._check_row(where, book, after)
        if after.owner is None and before is not None and before.owner == party.owner and not book.run.terminal:
            self._check_let_go(where, party, book)
        if lease is not None and lease.accepted and lease.hold is None and after.hold is not None:
            self.fail("R43", f"{where}: a decision was accepted and the run is still held")
        if lease is not None and lease.after == "park" and after.parked_sequence == after.last_sequence:
            self._check_idle(where, party, book)
        check_index(self.medium, book, self.fail)

    def _refused(self, append: Append, answer: FlowError, before: LeaseState | None, after: LeaseState | None) -> None:
        run_id = append.batch.run_id
        if before != after:
            self.fail(9, f"run {run_id}: a commit was refused with {answer.code} and changed the run's row")
        first = next((kind for kind, applies in self._refusals(append, answer, before) if applies), None)
        if first is not type(answer):
            named = "without cause" if first is None else f"although {first.code} comes first"
            self.fail("R47", f"run {run_id}: refused with {answer.code} {named}")

    def _refusals(
        self, append: Append, answer: FlowError, before: LeaseState | None
    ) -> list[tuple[type[FlowError], bool]]:
        """Every refusal in the order of R47, and whether it applies."""
        batch, lease = append.batch, append.lease
        owner, epoch, last = (None, 0, 0) if before is None else (before.owner, before.epoch, before.last_sequence)
        lost = lease is not None and lease.epoch is not None and (owner, epoch) != (lease.owner, lease.epoch)
        asks = lease is not None and (lease.claim == "firm" or lease.unless_leased)
        anothers = before is not None and before.live and lease is not None and owner != lease.owner
        unknown = any(
            linked != batch.run_id and (linked not in self.books or not self.books[linked].lines)
            for linked in batch.links
        )
        taken = isinstance(answer, HookTokenConflict) and any(
            (hook.run_id, hook.hook_id) == (answer.existing_run_id, answer.existing_hook_id)
            for hook in self.medium.run(self.medium.store.list_active_hooks())
        )
        return [
            (LeaseLost, lost),
            (LeaseHeld, asks and anothers),
            (EventConflict, last != batch.expected_sequence),
            (RunNotFound, unknown),
            (HookTokenConflict, taken),
        ]

    def _check_events(self, where: str, party: Party, append: Append, events: list[dict[str, Any]]) -> None:
        book, lease = self.book(append.batch.run_id), append.lease
        owed = bool(book.run.closing()) and bool(events)
        kinds = [envelope["event"]["type"] for envelope in events]
        foreign = lease is None or lease.claim == "if_free"
        before_the_end = party.each and set(kinds) <= _OUTCOMES | {"wait_completed"}  # R19: the closing comes after it
        if not foreign and owed and not _ENDS & set(kinds) and not before_the_end:
            self.fail("R19", f"{where}: a final failure owes the end of the run, and {kinds} was added instead")
        for number, envelope in enumerate(events, book.run.last_sequence + 1):
            event = envelope["event"]
            if parse_instant(envelope["timestamp"]) > self.medium.clock():
                self.fail("R45", f"{where}: {event['type']} is of {envelope['timestamp']}, which is to come")
            if envelope["sequence"] != number:
                self.fail(2, f"{where}: sequence {envelope['sequence']} where {number} comes next")
            if book.run.terminal:
                self.fail(5, f"{where}: {event['type']} after the run's end")
            if foreign and event["type"] in _BY_DRIVES:
                self.fail(4, f"{where}: {event['type']} without a drive")
            for key in ("step_id", "wait_id", "hook_id"):
                if str(event.get(key, "")).startswith("bad-"):
                    self.fail(9, f"{where}: {event['type']} of a command that was refused")
            if event["type"] == "hook_created":
                self._check_token(where, book.run_id, event["token"])
            if event["type"] in _OUTCOMES:
                self._outcome(book.run_id, event)
        if any(kind in _ENDS for kind in kinds[:-1]):
            self.fail(5, f"{where}: something follows the run's end")

    def _check_decision(self, where: str, party: Party, run: Run, events: list[dict[str, Any]]) -> None:
        """What a drive adds is what the workflow asks for over exactly the history that it is added to (R4)."""
        now = self.medium.clock()
        for cut in range(len(events), -1, -1):
            view = run.stage([orjson.dumps(event) for event in events[:cut]], now)
            command = None if view.terminal else party.answers(view)
            if command is None:
                continue
            try:
                drafts = [orjson.loads(draft) for draft in view.decide(command, now, now).drafts]
            except FlowError:
                continue
            after = events[cut + len(drafts) :]
            same = [_comparable(draft) for draft in drafts] == [_comparable(e) for e in events[cut:][: len(drafts)]]
            if same and all(event["type"] == "step_started" for event in after):
                return
        self.fail("R4", f"{where}: {[event['type'] for event in events]} is not what the workflow asks for there")

    def _check_token(self, where: str, run_id: str, token: str) -> None:
        for other in self.books.values():
            if other.run_id != run_id and any(hook.token == token for hook in other.run.active_hooks()):
                self.fail("W12", f"{where}: a hook was opened with a token that run {other.run_id} holds")

    def _outcome(self, run_id: str, event: dict[str, Any]) -> None:
        for party in self.parties:
            party.finished = {k for k in party.finished if k[:2] != (run_id, event["step_id"])}

    # -- the row ---------------------------------------------------------------------------------------------------

    def _check_row(self, where: str, book: Book, row: LeaseState) -> None:
        run = book.run
        if row.last_sequence != run.last_sequence:
            self.fail(1, f"{where}: the row says {row.last_sequence}, acknowledged were {run.last_sequence}")
        if run.terminal:
            if row.claim_at is not None or row.owner is not None or row.hold is not None:
                self.fail(6, f"{where}: a terminal run can be claimed, is leased, or is held")
            return

    def _check_idle(self, where: str, party: Party, book: Book) -> None:
        """A run that was parked has nothing to do before somebody appends or a wakeup is due."""
        run = book.run
        if run.closing():
            self.fail("R19", f"{where}: parked although the end of the run is owed")
        if starts := run.starts(0, [], _EVERYTHING):
            self.fail("R3", f"{where}: parked with steps to start: {[step for step, _, _ in starts]}")
        command = party.answers(run)
        if command is None:
            self.fail("R3", f"{where}: parked although the workflow raises")
        now = self.medium.clock()
        if drafts := run.decide(command, now, now).drafts:
            kinds = [orjson.loads(draft)["type"] for draft in drafts]
            self.fail("R3", f"{where}: parked although the workflow has not seen everything; it would add {kinds}")

    def _check_let_go(self, where: str, party: Party, book: Book) -> None:
        """A lease is given back after its attempts ended, or were told to."""
        for (run_id, step_id, attempt), told in party.running.items():
            step = book.run.step(step_id) if run_id == book.run_id else None
            if step is not None and step.status == "running" and step.attempt == attempt and not told():
                self.fail(4, f"{where}: the lease was given back while step {step_id} attempt {attempt} runs")

    # -- claims ----------------------------------------------------------------------------------------------------

    def claim(self, party: Party, k: int, wanted: Wanted, ttl_ns: int) -> list[Claimed]:
        """Claims through the store and judges what it gave."""
        before = {run_id: self.medium.lease(run_id) for run_id in self.books}
        right = self.leases.runnable(wanted, {run_id: book.run for run_id, book in self.books.items() if book.lines})
        workflows, builds, besides = wanted
        claimed = self.medium.run(
            self.medium.store.claim(party.owner, k, workflows=workflows, builds=builds, besides=besides, ttl_ns=ttl_ns)
        )
        given = {claim.run_id for claim in claimed}
        if not given <= right:
            self.fail(4, f"{party.name} was given {sorted(given - right)}, which are not runnable")
        if len(claimed) < k and given != right:
            self.fail(6, f"{party.name} asked for {k} runs and was not given {sorted(right - given)}")
        self._given(party, claimed, before, ttl_ns)
        return claimed

    def claim_held(self, party: Party, k: int, build: str, wanted: Wanted, ttl_ns: int) -> list[Claimed]:
        """Claims held runs through the store: those that no drive of this build has caused to be held (R43)."""
        before = {run_id: self.medium.lease(run_id) for run_id in self.books}
        workflows, builds, besides = wanted
        claimed = self.medium.run(
            self.medium.store.claim_held(
                party.owner, k, build=build, workflows=workflows, builds=builds, besides=besides, ttl_ns=ttl_ns
            )
        )
        for claim in claimed:
            row = before[claim.run_id]
            if row is None or row.live or row.hold is None or build in orjson.loads(row.hold)["builds"]:
                self.fail(4, f"{party.name} was given the held run {claim.run_id}, which it may not try")
        self._given(party, claimed, before, ttl_ns)
        return claimed

    def _given(
        self, party: Party, claimed: Sequence[Claimed], before: Mapping[str, LeaseState | None], ttl_ns: int
    ) -> None:
        for claim in claimed:
            row = before[claim.run_id]
            if row is None or (claim.epoch, claim.last_sequence) != (row.epoch + 1, row.last_sequence):
                self.fail("R45", f"{party.name} was given epoch {claim.epoch} of run {claim.run_id}, the row was {row}")
            if not party.supports(self.books[claim.run_id].run.build_id):
                self.fail("R44", f"{party.name} claimed run {claim.run_id} of a build it does not know")
            self._check_taken(party, claim.run_id, row)
            self.leases.chosen(party, claim.run_id)
            self.leases.claimed(claim, party.owner, ttl_ns)

    def _check_taken(self, party: Party, run_id: str, row: LeaseState | None) -> None:
        """Whose lease has expired, though nothing hindered them, has not renewed it (R2)."""
        if row is None or row.owner in (None, party.owner) or not self.quiet:
            return
        (loser,) = (other for other in self.parties if other.owner == row.owner)
        if not loser.gone() and not row.live:
            self.fail("R2", f"{loser.name} let its lease of run {run_id} expire; {party.name} has it now")

    def renew(self, owner: str, pairs: Sequence[tuple[str, int]], ttl_ns: int) -> list[tuple[str, int] | LeaseLost]:
        """Renews through the store and judges the answers: the epoch alone decides (R47)."""
        held = [(row.owner, row.epoch) if (row := self.medium.lease(id)) is not None else None for id, _ in pairs]
        answers = self.medium.run(self.medium.store.renew(owner, pairs, ttl_ns=ttl_ns))
        for (run_id, epoch), before, answer in zip(pairs, held, answers, strict=True):
            if (before == (owner, epoch)) == isinstance(answer, LeaseLost):
                self.fail("R47", f"the renewal of epoch {epoch} of run {run_id} was answered wrongly")
            if not isinstance(answer, LeaseLost):
                self.leases.renewed(run_id, ttl_ns)
        return answers

    def void(self, owner: str) -> int:
        """Ends the leases of a dead owner: of nobody else (R2)."""
        for party in self.parties:
            if party.owner == owner and not party.gone():
                self.fail("R2", f"the leases of {party.name} were ended, which lives")
        ended = self.medium.run(self.medium.store.void(owner))
        if ended != self.leases.voided(owner):
            self.fail("R2", f"{ended} leases of a dead owner were ended")
        self.changed()
        return ended

    def set_hold(self, party: Party, run_id: str, hold: str, expected_sequence: int) -> bool:
        """Holds a run without a lease, if nobody else drives it and nothing was appended (R43)."""
        row = self.medium.lease(run_id)
        held = self.medium.run(self.medium.store.set_hold(run_id, hold, expected_sequence=expected_sequence))
        right = row is not None and not row.live and row.last_sequence == expected_sequence
        if held != (right and not self.books[run_id].run.terminal):
            self.fail("R43", f"{party.name} holds run {run_id}: {held}")
        if held:
            self.leases.held(run_id, hold)
        return held

    def release_hold(self, run_id: str) -> bool:
        """A host lets go of a held run (R3)."""
        released = self.medium.run(self.medium.store.release_hold(run_id))
        if released:
            self.leases.released(run_id)
            self.changed()
        return released

    def runnable(self, now: int, after: tuple[int, str] | None, limit: int) -> RunnablePage:
        """What the scheduler sends tasks for: every runnable run, and no other (R46)."""
        page = self.medium.run(self.medium.store.runnable(now, after=after, limit=limit))
        clock, found = self.medium.clock(), {run.run_id for run in page.runs}
        if after is None and page.next is None and now <= clock:
            models = {run_id: self.leases.of(run_id) for run_id, book in self.books.items() if book.lines}
            early = {id for id, model in models.items() if model.runnable(now) and not model.live(clock)}
            late = {id for id, model in models.items() if model.runnable(-(-clock // 1000) * 1000)}
            if not early <= found <= late:
                self.fail("R46", f"runnable runs are {sorted(early)} to {sorted(late)}, listed were {sorted(found)}")
        return page

    # -- steps -----------------------------------------------------------------------------------------------------

    def launching(self, party: Party, run_id: str, attempts: Sequence[tuple[str, int]]) -> None:
        """The engine launches attempts: under a lease that cannot be another's by now (R2)."""
        row, run = self.medium.lease(run_id), self.book(run_id).run
        live = [told for key, told in party.running.items() if key[0] == run_id and not told()]
        if len(live) + len(attempts) > party.concurrency:
            self.fail("R26", f"{party.name}, run {run_id}: {len(live)} live attempts and {len(attempts)} more")
        if not party.leases or run.terminal or run_id in self.usurped or row is None:
            return
        if row.owner != party.owner or not row.live:
            state = "expired" if row.owner == party.owner else "not held"
            self.fail(4, f"{party.name}, run {run_id}: launches {list(attempts)} while its lease is {state}")

    def launched(self, party: Party, key: tuple[str, str, int], told: Callable[[], bool]) -> None:
        """A step function begins."""
        self.launches += 1
        run_id, step_id, attempt = key
        book, row = self.book(run_id), self.medium.lease(run_id)
        step = book.run.step(step_id)
        where = f"{party.name}, run {run_id}, step {step_id} attempt {attempt}"
        if step is None or step.attempt < attempt:
            self.fail(1, f"{where}: runs before its start is durable")
        holds = party.leases and row is not None and row.owner == party.owner
        if holds and step.status != "cancelled" and (step.status != "running" or step.attempt != attempt):
            self.fail(4, f"{where}: runs although its outcome is durable ({step.status}, attempt {step.attempt})")
        for other in self.parties:
            if key in other.finished and not other.gone() and other.leases:
                taken = row is not None and row.owner not in (None, other.owner)
                if other is party or not (taken or not party.leases):
                    self.fail(4, f"{where}: runs again although {other.name} had its outcome and lost nothing")
            other.finished.discard(key)
            both = other is not party and key in other.running and not other.gone() and party.leases
            known = run_id not in self.usurped  # who lost a live lease cannot know yet
            if both and known and row is not None and row.live and row.owner == other.owner:
                self.fail(4, f"{where}: runs at the same time in {other.name}, which holds the lease")
        if key in party.running and not party.running[key]():
            self.fail(4, f"{where}: runs twice in one process")
        party.running[key] = told
        party.excused.discard(key)

    def closed(self, party: Party) -> None:
        """An engine has been closed in order: what it leased it has given back (R2)."""
        if party.mishaps:
            return
        for run_id in self.books:
            row = self.medium.lease(run_id)
            live = row is not None and row.claim_at is not None and row.claim_at > -(-self.medium.clock() // 1000)
            if row is not None and live and row.owner == party.owner:
                self.fail(4, f"{party.name} was closed and still leases run {run_id}")

    def ended(self, party: Party, key: tuple[str, str, int], *, with_outcome: bool) -> None:
        """A step function has returned or raised; without outcome if it was told to end."""
        party.running.pop(key, None)
        step = self.book(key[0]).run.step(key[1])
        counts = with_outcome and key not in party.excused
        if counts and step is not None and step.status == "running" and step.attempt == key[2]:
            party.finished.add(key)


def _comparable(event: dict[str, Any]) -> dict[str, Any]:
    """An event without the deadline of a relative wait, which counts from the drive's horizon (R40)."""
    return {key: value for key, value in event.items() if key != "resume_at"}
