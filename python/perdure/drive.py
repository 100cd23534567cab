"""The drive: one generator that carries a run on (rulings §G).

It does no I/O. It yields the effects of `effects.py` and is sent their results, so the asyncio shell and the simulator
share every line of it. A store error or a cancellation is thrown into the generator and ends it; whoever runs it then
lets the live attempts go. Between two effects the run is nobody else's: the shell holds the run's lock except while
`NextOutcomes` waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

from perdure.effects import (
    Accepted,
    Attempt,
    Commit,
    DriveOptions,
    Effect,
    Failed,
    HistoryNeeded,
    Load,
    Look,
    NextOutcomes,
    Opening,
    Outcome,
    Program,
    Release,
    Standing,
    StartSteps,
    Taken,
)
from perdure.errors import (
    DriveLost,
    EngineClosed,
    EventConflict,
    FlowError,
    HistoryLimitExceeded,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    ReplayLimitExceeded,
)
from perdure.kernel import Batch, Reads, Run, View

__all__ = ["Drive", "Steps"]

Steps = Generator[Effect, object, None]


@dataclass(frozen=True, slots=True)
class _Staged:
    """Drafts that wait for the next commit, and what must still hold for them after a conflict (R10)."""

    kind: Literal["created", "started", "wait", "step"]
    drafts: tuple[bytes, ...]
    subject: str = ""
    attempt: int = 0
    outcome: Outcome | None = None

    def still_applies(self, run: Run) -> bool:
        if self.kind == "created":
            return run.last_sequence == 0
        if run.terminal:
            return False
        if self.kind == "started":
            return run.status == "pending"
        if self.kind == "wait":
            wait = run.wait(self.subject)
            return wait is not None and wait.status == "waiting"
        return _runs_at(run, self.subject, self.attempt)


def _runs_at(reads: Reads, step_id: str, attempt: int) -> bool:
    step = reads.step(step_id)
    return step is not None and step.status == "running" and step.attempt == attempt


@dataclass(slots=True)
class Drive:
    """One drive of one run. `steps()` is the generator; the other attributes are its state, read by the shell at the
    end."""

    run: Run
    program: Program
    options: DriveOptions
    opening: Opening
    clock: Callable[[], int]
    discarded: Callable[[Outcome], None] = lambda outcome: None
    committed: Callable[[Batch, Sequence[Outcome]], None] = lambda batch, outcomes: None
    """Told of each batch that was committed, and of the outcomes in it, once the run has folded them."""
    completed_waits: list[str] = field(default_factory=list)
    live: dict[tuple[str, int], None] = field(default_factory=dict)
    _staged: list[_Staged] = field(default_factory=list)
    _restarts: list[tuple[str, int]] = field(default_factory=list)
    _asked: int | None = None
    _broken: FlowError | None = None
    _counted: int = 0
    _conflicts: int = 0
    _horizon: int = 0
    _concurrency: int = 0
    known_sequence: int = 0
    _timeouts: dict[str, int] = field(default_factory=dict)
    _undo: tuple[int, dict[str, int | None]] | None = None
    _settle_until: int | None = None
    _kept_clock: int | None = None
    _lines: bytes | None = None
    _held: bool = False
    _parked: int = -1
    _marked: bool = False
    _aside: bool = False
    _began: bool = False
    _suspect: bool = False  # the drive before failed, and this one has made no progress yet
    draining: bool = False
    """Set from outside: ask and start nothing more, record what the running attempts bring, give the lease back (R2)."""

    def steps(self) -> Steps:
        """Runs until the run is suspended or terminal; raises the first refusal (R14)."""
        self._horizon, self._concurrency = self.opening.horizon, self.options.concurrency
        yield from self._look()
        if not self._aside:
            self._open()
        while not self._aside:
            if self.run.terminal:
                yield from self._end()
                return
            if self.draining and self._broken is None:
                self._give_way()
            clock = self.clock() if self._kept_clock is None else self._kept_clock
            view = self.run.stage(_drafts(self._staged), clock)
            if self._staged and self.options.mode == "each" and self._broken is None:
                yield from self._commit_outcomes(clock)
                continue
            if closing := view.closing():
                refusal = yield from self._commit(Commit(view.stage(closing, clock)))
                if refusal is not None and not isinstance(refusal, EventConflict | LeaseHeld):
                    raise refusal
                continue
            if self._broken is not None:
                yield from self._settle_broken(view, self._broken)
                continue
            if (yield from self._pass(view, clock)):
                return

    @property
    def stood_aside(self) -> bool:
        """Whether another owner's lease was live, so that this drive left the run to it (R2)."""
        return self._aside

    # -- the parts of the loop -------------------------------------------------------------------------------------

    def _look(self) -> Steps:
        """Another owner's live lease: it does what is due, this drive stands aside (R2), or is refused if it drives
        without leases."""
        self._held = self._marked = self.opening.held
        if self._held or self.run.last_sequence == 0:
            self._judge(self.opening.failures, self.opening.lost)
            return
        standing = yield Look()
        if not isinstance(standing, Standing):
            raise TypeError(f"Look was answered with {type(standing).__name__}")
        self._parked, self._marked = standing.parked, standing.marked
        if standing.held_elsewhere and not self.opening.take_over:
            if not self.options.leases:
                raise LeaseHeld(self.run.run_id)
            self._aside = True
        self._judge(standing.failures, standing.lost)

    def _judge(self, failures: int, lost: bool) -> None:
        """A drive that was lost after others had failed is counted before anything else is tried, and so the run waits (R44)."""
        self._suspect = failures > 0
        if lost:
            self._broken = DriveLost(self.run.run_id, failures + 1)

    def _open(self) -> None:
        run, opening = self.run, self.opening
        self.known_sequence = run.last_sequence
        if self._broken is not None:
            return
        if run.last_sequence == 0 and opening.start is not None:
            created, *rest = run.control(opening.start, self.clock()).drafts
            self._staged = [_Staged("created", (created,)), *(_Staged("started", (draft,)) for draft in rest)]
            return
        self._staged = self._repair()
        if opening.due is not None:
            self._staged += _waits(run.due_waits(opening.due))

    def _repair(self) -> list[_Staged]:
        """A pending run owes its `run_started` (spec 4.6)."""
        return [_Staged("started", (draft,)) for draft in self.run.control(b'{"op":"drive"}', self.clock()).drafts]

    def _end(self) -> Steps:
        if self.live:
            yield Release(tuple(self.live), ended=True)
            self.live.clear()
        if self._broken is not None:
            raise self._broken

    def _commit_outcomes(self, clock: int) -> Steps:
        """Under `commit="each"`: what was staged becomes durable before the workflow sees it, creation and start each
        by itself (R18)."""
        self._counted = 0
        alone = self._staged[0].kind in ("created", "started")
        later = self._staged[1:] if alone else []
        part = self._staged[: len(self._staged) - len(later)]
        yield from self._commit(Commit(self.run.stage(_drafts(part), clock)), later)

    def _settle_broken(self, view: View, broken: FlowError) -> Steps:
        """Ask no more, start nothing; record what the running attempts still bring, then raise (R1, R14). The lease is
        given back with the last of it."""
        self._kept_clock = None
        yield from self._settle_no_longer()
        last, released = not self.live, False
        # A failure to be counted claims first (R44); a drain counts nothing.
        leased = self._held or (self.options.leases and self.opening.worker and not self.draining)
        if self._staged or (last and leased):
            refusal = yield from self._commit(Commit(view, "fail" if last else "keep", error=broken))
            if isinstance(refusal, EventConflict):
                return
            released = refusal is None and self.options.leases
            if refusal is not None:
                self._staged = []
        if last:
            if not released:
                yield Failed(broken)
            raise broken
        if not self.run.terminal:
            self._staged = yield from self._take()

    def _give_way(self) -> None:
        """The drain of a worker, as a refusal that counts for nothing: what was not begun is left to the next drive."""
        self._broken = EngineClosed()
        self._staged = [staged for staged in self._staged if staged.kind == "step"]

    def _settle_no_longer(self) -> Steps:
        """What still runs when the settle grace is over is let go; its steps stay `running` (R14)."""
        if self.options.settle_grace is None or not self.live:
            return
        if self._settle_until is None:
            self._settle_until = self.clock() + self.options.settle_grace
        elif self.clock() >= self._settle_until:
            yield Release(tuple(self.live), ended=True)
            self.live.clear()

    def _pass(self, view: View, clock: int) -> Generator[Effect, object, bool]:
        """One pass: ask if there is something to see, commit, launch, wait. True when the drive ends suspended."""
        ends = accepted = False
        if self._staged:
            self._counted = 0
        try:
            if self._asked is None or view.last_visible > self._asked:
                self._asked = view.last_sequence
                view, ends = yield from self._decide(view, clock)
                accepted = True
            launches, view = ([], view) if ends else self._plan(view, clock)
        except FlowError as error:
            self._forget_decision()
            self._broken, self._kept_clock = error, clock  # the outcomes keep the time the workflow saw (R13)
            return False
        parks = not (ends or launches or self.live) and view.last_visible <= self._asked
        has_events = view.last_sequence > self.run.last_sequence
        # Doing again what the drive before failed over is no progress, and leaves the count of failures as it is (R44).
        clears = accepted and (has_events or parks or not self._suspect)
        commits = has_events or self._owes_lease(parks, bool(launches), clears)
        if commits:
            refusal = yield from self._commit(Commit(view, "park" if parks else "keep", clears))
            if refusal is not None:
                self._forget_decision()
                self._kept_clock = None if isinstance(refusal, EventConflict) else clock
                return False
        self._undo = None
        self._restarts = []
        if accepted:
            self.program.accepted()
        if launches and self.draining:
            return False
        if launches and not self.run.terminal:
            self.live.update(dict.fromkeys((a.step_id, a.attempt) for a in launches))
            yield StartSteps(tuple(launches), renew=self.options.leases and not commits)
        if self.run.terminal or self.run.last_visible > self._asked:
            return False
        if not self.live:
            return True
        self._staged = yield from self._take()
        return False

    def _owes_lease(self, parks: bool, launches: bool, accepted: bool) -> bool:
        """Whether the lease columns change although no event does (§G): a claim before a launch, a parking, or the end
        of a hold or back-off by a decision that was accepted. Without leases a launch still asks whether others drive."""
        if (accepted and self._marked) or (launches and not self._held):
            return True
        return self.options.leases and parks and (self._held or self._parked < self.run.last_sequence)

    def _decide(self, view: View, clock: int) -> Generator[Effect, object, tuple[View, bool]]:
        while True:
            try:
                asked = self.program.ask(view, lambda: self._history(view))
                break
            except HistoryNeeded:
                known = self.run.last_sequence
                self._lines = _first_lines((yield from self._load(0)), known) if known else b""
        decision = view.decide(asked.command, clock, self._horizon)
        if decision.counts:
            if self._counted >= self.options.limit:
                raise ReplayLimitExceeded(self.options.limit)
            self._counted += 1
        elif decision.drafts:
            self._counted = 0
        staged = view.stage(decision.drafts, clock)
        if decision.drafts and not decision.ends and staged.last_sequence > self.options.max_events:
            raise HistoryLimitExceeded(view.run_id, self.options.max_events)
        self._adopt(decision.concurrency, asked.timeouts)
        return staged, decision.ends

    def _adopt(self, concurrency: int | None, timeouts: Mapping[str, int]) -> None:
        """Limits of this decision; `_undo` takes them back if it is refused (R26, R54)."""
        self._undo = (self._concurrency, {step_id: self._timeouts.get(step_id) for step_id in timeouts})
        if concurrency is not None:
            self._concurrency = min(self.options.concurrency, concurrency)
        self._timeouts.update(timeouts)

    def _forget_decision(self) -> None:
        if self._undo is None:
            return
        self._concurrency, timeouts = self._undo
        for step_id, limit_ms in timeouts.items():
            if limit_ms is None:
                del self._timeouts[step_id]
            else:
                self._timeouts[step_id] = limit_ms
        self._undo = None

    def _history(self, view: View) -> bytes:
        """All lines the workflow may see; staged events have no id yet and show an empty one."""
        if self._lines is None:
            raise HistoryNeeded
        staged = view.last_sequence - self.run.last_sequence
        return self._lines + view.append(bytes(16 * staged)).lines

    def _plan(self, view: View, clock: int) -> tuple[list[Attempt], View]:
        """The attempts to launch after the commit, and the view with their `step_started` events."""
        restarts = [key for key in [*self._restarts, *self._restarted(view)] if key not in self.live]
        starts = view.starts(self._horizon, [*self.live, *restarts], self._concurrency)
        launches = [self._attempt(view, *key) for key in restarts]
        launches += [self._attempt(view, step_id, attempt) for step_id, attempt, _ in starts]
        started = [_step_started(step_id, attempt) for step_id, attempt, needs_event in starts if needs_event]
        if started:
            self._counted = 0
        return launches, view.stage(started, clock)

    def _attempt(self, view: View, step_id: str, attempt: int) -> Attempt:
        step = view.step(step_id)
        if step is None:
            raise InvalidTransition(view.run_id, "id_unknown", "step", step_id)
        declared = self.program.timeout_ms(step.step_name, step_id)
        return Attempt(step_id, attempt, step.step_name, step.input, self._timeouts.get(step_id, declared))

    # -- commit and conflict ---------------------------------------------------------------------------------------

    def _commit(self, commit: Commit, later: Sequence[_Staged] = ()) -> Generator[Effect, object, FlowError | None]:
        """Commits what the view stages: all that is staged but `later`, and perhaps a decision. On a refusal says
        which, and leaves the state as the next turn needs it."""
        answer = yield commit
        if isinstance(answer, Accepted):
            self.run.accept(answer.batch)
            self._staged = self._staged[: len(self._staged) - len(later)]
            self._after_commit(answer, commit)
            self._staged = list(later)
            return None
        if not isinstance(answer, FlowError):
            raise TypeError(f"Commit was answered with {type(answer).__name__}")
        if isinstance(answer, EventConflict):
            yield from self._conflict()
        elif isinstance(answer, LeaseHeld):
            yield from self._stand_aside(answer)
        elif isinstance(answer, LeaseLost):
            raise answer
        elif self._broken is None:
            self._broken = answer
        return answer

    def _stand_aside(self, refusal: LeaseHeld) -> Steps:
        """The first commit met another owner's lease: that owner goes on with the run (R2)."""
        if self._began or not self.options.leases:
            raise refusal
        self._aside = True
        created = any(s.kind == "created" for s in self._staged)
        yield from self._extend()
        if created and self.opening.start is not None:
            self._compare_start(self.opening.start)

    def _restarted(self, reads: Reads) -> list[tuple[str, int]]:
        """Attempts that follow a staged immediate retry; each keeps the slot of the one before it (R25, R26)."""
        following = [(s.subject, s.attempt + 1) for s in self._staged if s.kind == "step"]
        return [key for key in following if _runs_at(reads, *key)]

    def _after_commit(self, accepted: Accepted, commit: Commit) -> None:
        batch = accepted.batch
        self._began, self._held = True, accepted.held
        if commit.accepted:
            self._marked = self._suspect = False
        if commit.after == "park":
            self._parked = batch.last_sequence
        self.completed_waits += [s.subject for s in self._staged if s.kind == "wait"]
        self.committed(batch, [s.outcome for s in self._staged if s.outcome is not None])
        self._restarts = self._restarted(self.run)
        self._conflicts = 0
        self.known_sequence = batch.last_sequence
        if self._lines is not None:
            self._lines += batch.lines

    def _conflict(self) -> Steps:
        self._conflicts += 1
        if self._conflicts >= self.options.limit and self._broken is None:
            self._broken = ReplayLimitExceeded(self.options.limit)
        created = any(s.kind == "created" for s in self._staged)
        yield from self._extend()
        self._asked = None
        self._restarts = []
        kept = [s for s in self._staged if s.still_applies(self.run)]
        for outcome in (s.outcome for s in self._staged if s not in kept):
            if outcome is not None:
                self.discarded(outcome)
        self._staged = kept
        if created and self.run.last_sequence and self.opening.start is not None:
            self._staged = []
            self._compare_start(self.opening.start)
            self._staged = self._repair()

    def _compare_start(self, start: bytes) -> None:
        """Another start won: spec and input are compared with this one's (R17)."""
        again = self.opening.start_again
        self.run.control(start if again is None else again(self.run), self.clock())

    def _extend(self) -> Steps:
        tail = yield from self._load(self.run.last_sequence)
        if tail:
            self.run.extend(tail)
        yield from self._notice()

    def _notice(self) -> Steps:
        """Somebody else appended: attempts whose step it took away are told and let go (R21)."""
        if self.run.last_sequence == self.known_sequence:
            return
        self.known_sequence = self.run.last_sequence
        self._counted = 0
        self._lines = None
        if gone := tuple(key for key in self.live if not self.run.terminal and not _runs_at(self.run, *key)):
            for key in gone:
                del self.live[key]
            yield Release(gone, ended=False)

    def _load(self, after: int) -> Generator[Effect, object, bytes]:
        lines = yield Load(after)
        if not isinstance(lines, bytes):
            raise TypeError(f"Load was answered with {type(lines).__name__}")
        return lines

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _take(self) -> Generator[Effect, object, list[_Staged]]:
        """Waits until something can be recorded or decided (R9); the waits due come ahead of the outcomes."""
        if due := self.run.due_waits(self.clock()):
            return _waits(due)
        until = self.run.next_wakeup(self.clock(), self._horizon)
        if self._settle_until is not None:
            until = self._settle_until if until is None else min(until, self._settle_until)
        taken = yield NextOutcomes(until)
        if not isinstance(taken, Taken):
            raise TypeError(f"NextOutcomes was answered with {type(taken).__name__}")
        if taken.foreign:
            yield from self._extend()
        else:
            yield from self._notice()
        clock = self.clock()
        self._horizon = max(self._horizon, clock, taken.horizon or 0)
        for outcome in taken.outcomes:
            self.live.pop((outcome.step_id, outcome.attempt), None)
        return _waits(self.run.due_waits(clock)) + self._settle(taken.outcomes, clock)

    def _settle(self, outcomes: tuple[Outcome, ...], clock: int) -> list[_Staged]:
        restart = self._broken is None
        settled = [self._settle_one(outcome, clock, restart) for outcome in outcomes]
        if restart and settled and self.run.stage(_drafts(settled), clock).closing():
            settled = [self._settle_one(outcome, clock, False) for outcome in outcomes]  # the run ends here (R19)
        for outcome, staged in zip(outcomes, settled, strict=True):
            if not staged.drafts:
                self.discarded(outcome)
        return [staged for staged in settled if staged.drafts]

    def _settle_one(self, outcome: Outcome, clock: int, restart: bool) -> _Staged:
        drafts = self.run.settle(outcome.step_id, outcome.attempt, outcome.outcome, clock, self._horizon, restart)
        return _Staged("step", tuple(drafts), outcome.step_id, outcome.attempt, outcome)


def _first_lines(lines: bytes, count: int) -> bytes:
    """The first `count` lines: a load may bring events that the run has not folded yet."""
    return b"".join(line + b"\n" for line in lines.split(b"\n")[:count])


def _drafts(staged: Iterable[_Staged]) -> list[bytes]:
    return [draft for item in staged for draft in item.drafts]


def _waits(drafts: Iterable[bytes]) -> list[_Staged]:
    return [_Staged("wait", (draft,), orjson.loads(draft)["wait_id"]) for draft in drafts]


def _step_started(step_id: str, attempt: int) -> bytes:
    return b'{"type":"step_started","step_id":%b,"attempt":%d}' % (orjson.dumps(step_id), attempt)
