"""One simulated world from its first call to its rest."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from perdure.attempts import Attempts
from perdure.effects import Attempt, Commit, Opening
from perdure.errors import EngineClosed, FlowError
from perdure.instant import parse_instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, KernelName, load
from perdure.leasing import Leasing
from perdure.snapshot import WorkflowRunSnapshot
from perdure.stores.base import Lease
from perdure.testing._simulation import calls
from perdure.testing._simulation.audit import Auditor, Book, InvariantBroken
from perdure.testing._simulation.calls import Call
from perdure.testing._simulation.chance import Chance, ProcessSettings, Settings, draw_settings, upgraded
from perdure.testing._simulation.drawing import draw_plan
from perdure.testing._simulation.index import check_first_wakeup
from perdure.testing._simulation.lanes import LaneLoop
from perdure.testing._simulation.medium import Medium, StoreName, opened
from perdure.testing._simulation.post import Post
from perdure.testing._simulation.process import Process, World
from perdure.testing._simulation.programs import REPAIRED
from perdure.testing._simulation.threads import SimulatedRenewals
from perdure.testing._simulation.watch import Watch
from perdure.testing._simulation.way import Hints

__all__ = ["Simulation", "Told", "run_seed"]

_START: Final = parse_instant("2026-01-01T00:00:00Z")
_ROUND_S: Final = 15.0
_ROUNDS: Final = 60
_LATEST_DELIVERY_S: Final = 20.0


@dataclass(slots=True)
class Told:
    """What one seed came to."""

    seed: int
    trace: list[str]
    histories: dict[str, bytes]
    commits: int
    launches: int
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        parts = ["\n".join(self.trace).encode(), *(f"{k}\n".encode() + v for k, v in sorted(self.histories.items()))]
        self.digest = hashlib.sha256(b"\0".join(parts)).hexdigest()


class Simulation:
    """The director: makes processes, calls and accidents, then lets everything come to rest."""

    def __init__(self, seed: int, settings: Settings, loop: LaneLoop, medium: Medium, kernel: KernelName) -> None:
        self.seed = seed
        self.settings = settings
        self.loop = loop
        self.random = Random(f"{seed}/director")
        self.trace: list[str] = []
        self.auditor = Auditor(medium, load("rust"), quiet=not settings.faults)  # whatever kernel the engines use
        self.run_ids = tuple(f"run-{n}" for n in range(1, settings.runs + 1))
        self.processes: list[Process] = []
        self._watching: asyncio.Task[None] | None = None
        self._made = 0
        self._restarts = 0
        self._calm = False
        drawer = Random(f"{seed}/plans")
        self.plans = {
            run_id: draw_plan(f"plan-of-{run_id}", drawer, _START, (run_id, *(r for r in self.run_ids if r != run_id)))
            for run_id in self.run_ids
        }
        hints, post_hints = (Hints(Random(f"{seed}/{name}"), settings.hints) for name in ("hints", "post hints"))
        self.auditor.changed = hints.ring
        pins = Random(f"{seed}/pins")
        first = settings.processes[0].build
        self.pins = {run_id: first if settings.pinned and pins.random() < 0.6 else None for run_id in self.run_ids}
        self.world = World(
            seed,
            settings,
            loop,
            self.auditor,
            Chance(Random(f"{seed}/chance"), settings),
            self.random,
            {plan.name: plan for plan in self.plans.values()},
            kernel,
            self._note,
            self._restart,
            self._call_on,
            hints,
            None if settings.queue is None else Post(self.auditor, settings.queue),
            post_hints,
            () if first is None else (first,),
        )
        self.watch = Watch(self.auditor, lambda: self._alive, self.world.post)

    def _note(self, who: str, what: str) -> None:
        self.trace.append(f"{(self.loop.clock_ns() - _START) / 1e9:10.4f} {who:8} {what}")

    # -- processes -------------------------------------------------------------------------------------------------

    def _start_process(self, settings: ProcessSettings) -> None:
        self._made += 1
        process = Process(self.world, settings, f"p{settings.number}.{self._made}")
        self.processes.append(process)

    def _restart(self, process: Process) -> None:
        """A process that ended is followed by another in its place, a while later."""
        self._restarts += 1
        after_ns = 1 if self._calm else self.random.randrange(1, 8_000_000_000)
        context = self.loop.main.context.copy()
        following = upgraded(process.settings, self.random)
        self.loop.call_later(after_ns / 1e9, self._start_process, following, context=context)

    @property
    def _alive(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def launching(self, run_id: str, attempts: list[tuple[str, int]]) -> None:
        """The engine of the process that is running launches attempts."""
        lane = self.loop.current_lane()
        (process,) = (process for process in self.processes if process.lane is lane)
        self.auditor.launching(process.party, run_id, attempts)

    # -- the time of accidents -------------------------------------------------------------------------------------

    async def main(self) -> None:
        """The whole life of this world."""
        for settings in self.settings.processes:
            self._start_process(settings)
        if self.auditor.quiet:
            self._watching = self.loop.spawn(self.loop.main, self.watch.run())
        for run_id in self.run_ids:
            options = {} if self.random.random() < 0.3 else {"drive": False}
            self._call(calls.start_call(run_id, self.plans[run_id].name, 1, self.pins[run_id], **options))
            await self._pass(2.0)
        for _ in range(self.settings.actions):
            await self._pass(self.random.choice((0.0, 0.0, 0.01, 0.3, 1.0, 6.0, 20.0)))
            await self._act()
        await self._come_to_rest()

    async def _pass(self, seconds: float) -> None:
        await asyncio.sleep(self.random.random() * seconds)

    async def _act(self) -> None:
        drawn = self.random.random() * 100
        factor = self.settings.accidents
        alive = self._alive
        if alive and drawn < 6 * factor:
            self._pause(self.random.choice(alive))
        elif alive and drawn < 8 * factor:
            process = self.random.choice(alive)
            process.note("is killed")
            process.crash()
        elif alive and drawn < 9.5 * factor:
            await self._replace(self.random.choice(alive))
        elif drawn < 10.5 * factor:
            seconds = self.random.choice((1.0, 8.0, 90.0)) * self.random.random()
            self._note("director", f"nobody reaches the store for {seconds:.3f} s")
            self.world.chance.black_out(self.loop.clock_ns() + int(seconds * 1e9))
        elif drawn < 14 * factor:
            self._hang_up()
        else:
            self._call_on(self._busiest() or self.random.choice(self.run_ids))

    def _busiest(self) -> str | None:
        """Mostly a run with steps under way: a call on it meets its drive."""
        busy = sorted({key[0] for process in self._alive for key in process.party.running})
        return self.random.choice(busy) if busy and self.random.random() < 0.7 else None

    def _pause(self, process: Process) -> None:
        seconds = self.random.choice((0.05, 1.0, 2.5 * self.settings.ttl_ms / 1000)) * self.random.random()
        whole = self.random.random() < 0.7
        process.note(f"{'stands still' if whole else 'is blocked'} for {seconds:.3f} s")
        self.loop.pause(process.lane, threads=whole)
        self.loop.call_later(seconds, self.loop.go_on, process.lane)

    async def _replace(self, process: Process) -> None:
        process.closing = True
        task = process.spawn(process.close)
        context = self.loop.main.context.copy()
        task.add_done_callback(lambda _: self._restart(process), context=context)

    def _hang_up(self) -> None:
        """A caller does not wait any longer; what its call began goes on only if somebody else waits for it (R22)."""
        waiting = [(process, task) for process in self._alive for task in process.calls if not task.done()]
        if waiting:
            process, task = self.random.choice(waiting)
            process.note("a caller hangs up")
            for run_id in self.run_ids:
                process.party.excuse(run_id)
            task.cancel()

    # -- calls -----------------------------------------------------------------------------------------------------

    def _call(self, call: Call) -> None:
        alive = self._alive
        if alive:
            process = self.random.choice(alive)
            process.calls.append(process.spawn(self._make, process, call))

    def _call_on(self, run_id: str) -> None:
        book = self.auditor.books.get(run_id)
        run = book.run if book else None
        call = calls.draw_call(self.random, run_id, self.plans[run_id], run, self.pins[run_id])
        task = None
        if self.world.post is not None and self.random.random() < 0.4:
            task = calls.draw_task(self.random, call, self.loop.clock_ns())
        if task is None:
            self._call(call)
        elif self._alive:
            process = self.random.choice(self._alive)
            process.spawn(process.send, task)

    async def _make(self, process: Process, call: Call) -> None:
        book = self.auditor.book(call.run_id)
        process.note(f"asked: {call}")
        process.party.asked.add(call.run_id)
        process.party.asks_all |= call.op in ("resume_due", "by_token")
        before, since = calls.verdict(call, book.run, process.client.clock()), book.run.last_sequence
        answer: WorkflowRunSnapshot | None = None
        refusal: FlowError | None = None
        try:
            answer = await call.make(process.engine, self.loop.clock_ns())
        except FlowError as error:
            refusal = error
        said = "ok" if refusal is None else type(refusal).__name__
        process.note(f"answered: {call.op} {call.run_id}: {said}")
        self._judge(process, call, before, said, since)
        if answer is not None:
            self._check_snapshot(answer)

    def _judge(self, process: Process, call: Call, before: str | None, said: str, since: int) -> None:
        book = self.auditor.book(call.run_id)
        after = calls.verdict(call, book.run, process.client.clock())
        if said == "RuntimeBuildUnavailable" and not process.supports(self.pins[call.run_id]):
            return
        if said in ("StoreUnavailable", "OutcomeUnknown", "EngineClosed", "ReplayLimitExceeded"):
            return
        if said == "ok" and not calls.has_happened(call, book.run):
            self.auditor.fail(1, f"{process.name}: {call} was acknowledged and is not in the history")
        if before is None or before != after or said == before:
            return
        if before == "ok" and call.drives:
            return  # what the drive raises
        if said in self._verdicts_between(process, call, book, since):
            return  # judged between two appends of others
        self.auditor.fail(7, f"{process.name}: {call} was answered {said}; the table says {before}")

    def _verdicts_between(self, process: Process, call: Call, book: Book, since: int) -> set[str | None]:
        """What the tables said at each sequence the run went through while the call was under way."""
        runs = (
            self.auditor.kernel.project(book.run_id, book.at(sequence), DEFAULT_MAX_EVENT_BYTES)
            for sequence in range(max(1, since), book.run.last_sequence + 1)
        )
        return {calls.verdict(call, run, process.client.clock()) for run in runs}

    def _check_snapshot(self, snapshot: WorkflowRunSnapshot) -> None:
        """Nothing is ever shown that is not durable."""
        book = self.auditor.book(snapshot.run_id)
        lines = book.at(snapshot.last_sequence)
        shown = self.auditor.kernel.project(book.run_id, lines, DEFAULT_MAX_EVENT_BYTES).snapshot()
        if shown != snapshot.json:
            self.auditor.fail(1, f"run {book.run_id}: a snapshot at {snapshot.last_sequence} shows what is not durable")

    # -- rest ------------------------------------------------------------------------------------------------------

    async def _come_to_rest(self) -> None:
        """No more accidents: now every run must end, or be held (invariant 6)."""
        self._note("director", "no more accidents")
        self._calm = True
        self.world.chance.calm()
        for process in self.processes:
            self.loop.go_on(process.lane)
        await asyncio.sleep(10)
        if self._watching is None:  # what is on its way may still take long
            self.loop.call_later(1.5 * self.settings.ttl_ms / 1000, self._begin_watch)
        for number in range(_ROUNDS):
            if self._at_rest():
                break
            self._help(number)
            await asyncio.sleep(
                _ROUND_S if number < _ROUNDS // 2 else 8 * _ROUND_S
            )  # a back-off takes up to 10 min (R44)
        else:
            self._complain()
        if self.seed % 4 == 0 and all(book.run.terminal for book in self._books()):
            await asyncio.sleep(_LATEST_DELIVERY_S)
            if self.world.post is None or not self.world.post.waiting():
                await self.watch.idle_minute()
        if self._watching is not None:
            self._watching.cancel()
        for process in self._alive:
            process.closing = True
            task = process.spawn(process.close)
            await asyncio.wait([task])
        self._check_end()

    def _begin_watch(self) -> None:
        if self._alive:
            self._watching = self.loop.spawn(self.loop.main, self.watch.run())

    def _books(self) -> list[Book]:
        return [self.auditor.book(run_id) for run_id in self.run_ids]

    def _at_rest(self) -> bool:
        if not all(task.done() for process in self._alive for task in process.calls):
            return False
        for book in self._books():
            row = self.auditor.medium.lease(book.run_id)
            if row is None or not (book.run.terminal or self._stays_held(book)):
                return False
        return True

    def _stays_held(self, book: Book) -> bool:
        """A run on whose recorded steps the builds disagree cannot go on."""
        row = self.auditor.medium.lease(book.run_id)
        return row is not None and row.hold is not None and not row.live and self._drifting

    @property
    def _drifting(self) -> bool:
        return len({process.settings.drifts for process in self.processes}) > 1

    def _help(self, number: int) -> None:
        """What a host owes its runs: starts, repairs, answers to hooks, released holds."""
        for run_id, book in zip(self.run_ids, self._books(), strict=True):
            row = self.auditor.medium.lease(run_id)
            if row is None:
                self._call(calls.start_call(run_id, self.plans[run_id].name, 1, self.pins[run_id]))
            elif book.run.terminal:
                continue
            elif row.hold is not None and number % 4 == 0:
                self._call(Call("release_hold", run_id))
            elif book.run.progress(REPAIRED) is None:
                self._call(calls.repair_call(run_id))
            else:
                for hook in book.run.active_hooks():
                    self._call(
                        Call("resume_hook", run_id, {"hook_id": hook.hook_id, "payload": "at last", "drive": False})
                    )

    def _complain(self) -> None:
        for book in self._books():
            if not book.run.terminal:
                row = self.auditor.medium.lease(book.run_id)
                shown = None if row is None else replace(row, owner=None if row.owner is None else "somebody")
                self.auditor.fail(6, f"run {book.run_id} did not end: {book.run.status}, {shown}")
        self.auditor.fail(6, "the world did not come to rest")

    def _check_end(self) -> None:
        auditor, medium = self.auditor, self.auditor.medium
        pure, random = load("pure"), Random(f"{self.seed}/cuts")
        for book in self._books():
            if medium.run(medium.store.history(book.run_id)) != book.lines:
                auditor.fail(1, f"run {book.run_id}: the history is not what was acknowledged")
            self._check_folds(book, pure, random)
        check_first_wakeup(medium, self._books(), auditor.fail)

    def _check_folds(self, book: Book, pure: Any, random: Random) -> None:
        """Invariant 3: in one go, commit by commit, cut anywhere, and in the other kernel."""
        whole = self.auditor.kernel.project(book.run_id, book.lines, DEFAULT_MAX_EVENT_BYTES).snapshot()
        cut = random.randrange(1, book.run.last_sequence + 1)
        head = book.at(cut)
        parts = pure.project(book.run_id, head, DEFAULT_MAX_EVENT_BYTES)
        if head != book.lines:
            parts.extend(book.lines[len(head) :])
        if not book.run.snapshot() == whole == parts.snapshot():
            self.auditor.fail(3, f"run {book.run_id}: folds differ (cut at {cut}, commits at {book.cuts})")


@contextmanager
def _seeded(simulation: Simulation) -> Iterator[None]:
    """Ids from the seed in place of the machine's, deaths as this world has them, and an eye on every launch."""
    random = Random(f"{simulation.seed}/ids")
    dead_owners = simulation.world.dead_owners
    launch = Attempts.launch

    def watched(self: Attempts, attempts: tuple[Attempt, ...]) -> None:
        simulation.launching(self.run_id, [(attempt.step_id, attempt.attempt) for attempt in attempts])
        launch(self, attempts)

    for_drive = Leasing.for_drive

    def judged(self: Leasing, epoch: int | None, opening: Opening, commit: Commit) -> Lease:
        lease = for_drive(self, epoch, opening, commit)
        if self.enabled:
            simulation.auditor.leases.ends(commit.view.run_id, commit.error, opening.worker, lease)
        return lease

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(bytes=random.randbytes(16))

    identities = (f"owner-{number}" for number in count(1))
    with (
        mock.patch("perdure.session.os", SimpleNamespace(urandom=random.randbytes)),
        mock.patch("perdure.engine.make_owner", new=identities.__next__),
        mock.patch("perdure.engine.is_dead", dead_owners.__contains__),
        mock.patch.object(Attempts, "launch", watched),
        mock.patch.object(Leasing, "for_drive", judged),
        mock.patch("perdure.leasing.RenewalThread", SimulatedRenewals),
        mock.patch("time.time_ns", simulation.loop.own_clock_ns),
        mock.patch("perdure.queues.queue.uuid", SimpleNamespace(uuid4=new_uuid)),
        mock.patch("perdure.engine.uuid", SimpleNamespace(uuid4=new_uuid)),
    ):
        yield


def run_seed(seed: int, *, kernel: KernelName, store: StoreName, faults: bool) -> Told:
    """Runs one world. Raises `InvariantBroken` with its seed and trace."""
    loop = LaneLoop(_START, Random(f"{seed}/lanes"))
    settings = draw_settings(Random(f"{seed}/settings"), faults=faults)
    asyncio.set_event_loop(loop)
    try:
        with opened(store, loop.clock_ns) as medium:
            simulation = Simulation(seed, settings, loop, medium, kernel)
            with _seeded(simulation):
                _run_to_end(simulation)
            histories = {book.run_id: book.lines for book in simulation.auditor.books.values()}
            return Told(seed, simulation.trace, histories, simulation.auditor.commits, simulation.auditor.launches)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _run_to_end(simulation: Simulation) -> None:
    loop, auditor = simulation.loop, simulation.auditor
    broken: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not broken.done():
            broken.set_result(None)

    def unexpected(_: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if auditor.broken is None and not isinstance(error, EngineClosed):
            try:
                auditor.fail("a task", f"{context['message']}: {error!r}")
            except InvariantBroken:
                stop()

    auditor.on_broken = stop
    loop.set_exception_handler(unexpected)
    main = loop.spawn(loop.main, simulation.main())
    try:
        loop.run_until_complete(asyncio.wait([main, broken], return_when=asyncio.FIRST_COMPLETED))
        found = auditor.broken
        if found is None:
            main.result()
    except InvariantBroken as error:
        found = error
    except Exception as error:  # noqa: BLE001 - a fault of the director itself has a seed, too
        found = InvariantBroken(f"the simulation itself: {error!r}")
        found.__cause__ = error
    finally:
        _abandon(loop)
    if found is not None:
        found.seed, found.trace = simulation.seed, simulation.trace
        raise found


def _abandon(loop: LaneLoop) -> None:
    loop.set_exception_handler(lambda _, __: None)
    for lane in loop.lanes:
        loop.kill(lane)
    loop.bury()
