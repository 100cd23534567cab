"""The asyncio shell: `FlowEngine`, every host call of spec 06 and 09 over one store and one runtime."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from hashlib import sha256
from os import PathLike, fspath
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

import orjson

from perdure import kernel as kernels
from perdure import payload
from perdure.asking import RuntimeProgram, check_input, spec_of
from perdure.attempts import STEP_OF, Attempts
from perdure.builds import RuntimeBuildCompatibility, admit
from perdure.codec import Coding, PayloadCodec
from perdure.effects import Accepted, CommitMode, DriveOptions, Opening, Outcome
from perdure.errors import (
    CallFromOwnStep,
    EngineClosed,
    EngineElsewhere,
    EventConflict,
    FlowError,
    HookTokenNotFound,
    InvalidRunId,
    InvalidTransition,
    ReplayLimitExceeded,
)
from perdure.flow import FlowRuntime
from perdure.host_call import HostCall
from perdure.inspection import Inspection
from perdure.instant import Instant, format_instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Batch, KernelName, Run
from perdure.leasing import LeaseKeeper, Leasing
from perdure.model import (
    ChildOperationReference,
    Envelope,
    WorkflowProgress,
    WorkflowRunSnapshot,
    WorkflowSpec,
)
from perdure.observing import Observer, ObserverQueue
from perdure.owner import is_dead, make_owner
from perdure.session import ActiveDrive, Session, Shell
from perdure.stores import MemoryEventStore, open_store
from perdure.stores.base import Claimed, FlowEventStore, Wakeup
from perdure.threads import StepThreads
from perdure.wire import Moment, moment_ns

__all__ = ["FlowEngine"]

_log = logging.getLogger("perdure")

T = TypeVar("T")
_SHORTEST: Final = {"lease_ttl": timedelta(milliseconds=10), "poll_interval": timedelta(milliseconds=1)}
_WHITE_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""The code points of Unicode's White_Space property (R33)."""


class FlowEngine(Inspection):
    """Drives workflow runs on the running asyncio event loop.

    `runtime` is a `Flow` or any `FlowRuntime`; `store` a store, a URL or path such as `sqlite:///app.db`, or None for
    memory. A store made here is closed with the engine, one that was passed in is not. What goes wrong with a run or a
    store is a `FlowError`, with `.run_id` where a run is meant; a value of the wrong type is `TypeError` or `ValueError`.

    Settings: `kernel` "rust" or "pure"; `max_replay_iterations` passes and conflicts in a row before
    `ReplayLimitExceeded` (R6); `concurrency` live attempts per run (R26); `max_event_bytes` of one event's JSON;
    `commit` "staged" or "each" (R18); `record_tracebacks` in failure events (R53); `builds` this engine may drive
    (spec 08 §8.5); `clock` gives ns since 1970 (default: the store's); `store_patience` for a store that fails (R1);
    `cancel_grace` for steps that a cancellation took away (R21); `settle_grace` for steps that still run when the drive is
    refused, None to wait for them (R14); `lease`, `lease_ttl` and `poll_interval` for other
    engines' appends (R2); `max_failures` of a worker's drives before a hold (R44); `max_history_events` (R6);
    `cache_bytes` of idle projections and coroutines, about; `observer` and its queue's `observer_limit` (R52);
    `strict_replay` replays async workflows from the start at each ask and asserts the same commands (R63); `random` for
    back-off only; `codec` for what payloads are stored as (R42).
    """

    def __init__(
        self,
        runtime: FlowRuntime,
        store: FlowEventStore | str | PathLike[str] | None = None,
        *,
        kernel: KernelName = "rust",
        max_replay_iterations: int = 1024,
        concurrency: int = 64,
        max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
        commit: CommitMode = "staged",
        record_tracebacks: bool = True,
        builds: RuntimeBuildCompatibility | None = None,
        clock: Callable[[], int] | None = None,
        store_patience: timedelta = timedelta(seconds=60),
        cancel_grace: timedelta = timedelta(seconds=10),
        settle_grace: timedelta | None = None,
        lease: bool = True,
        lease_ttl: timedelta = timedelta(seconds=30),
        poll_interval: timedelta = timedelta(milliseconds=50),
        max_failures: int = 20,
        max_history_events: int = 200_000,
        cache_bytes: int = 64 * 1024 * 1024,
        observer: Observer | None = None,
        observer_limit: int = 10_000,
        strict_replay: bool = False,
        random: Random | None = None,
        codec: PayloadCodec | None = None,
    ) -> None:
        _check_runtime(runtime, commit)
        _check_counts(concurrency=concurrency, max_failures=max_failures, max_history_events=max_history_events)
        _check_durations(lease_ttl=lease_ttl, poll_interval=poll_interval, settle_grace=settle_grace or timedelta())
        _check_durations(store_patience=store_patience, cancel_grace=cancel_grace)
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owns_store = store is None or isinstance(store, str | PathLike)
        self._store = _store_of(store)
        self.runtime, self.builds = runtime, builds
        self._kernel = kernels.load(kernel)
        self._coding = None if codec is None else Coding(codec, self._kernel.json_equal)
        self._threads = StepThreads()
        self._lingering: set[asyncio.Task[object]] = set()
        self._limit = max(1, max_replay_iterations)
        self._record_tracebacks = record_tracebacks
        self._strict_replay = strict_replay
        self._grace = cancel_grace
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._closed = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._cache_bytes = cache_bytes
        self._observer = observer
        self._observing = ObserverQueue(observer, observer_limit) if observer is not None else None
        leasing = self._leasing(lease, lease_ttl, max_failures, random or Random())
        self._keeper = LeaseKeeper(leasing, lambda: list(self._sessions.values()), poll_interval.total_seconds())
        self._shell = Shell(
            kernel=self._kernel,
            store=self._store,
            options=DriveOptions(self._limit, concurrency, commit, lease, max_history_events, _ns(settle_grace)),
            max_event_bytes=max_event_bytes,
            patience_seconds=store_patience.total_seconds(),
            clock=clock or self._store.clock,
            program=self._program,
            attempts=self._attempts,
            discarded=_log_discarded,
            failed=_log_failed,
            committed=self._committed,
            idle=self._keep,
            closed=lambda: self._closed,
            leasing=leasing,
        )

    def _leasing(self, enabled: bool, ttl: timedelta, max_failures: int, random: Random) -> Leasing:
        return Leasing(
            store=self._store,
            owner=make_owner(),
            ttl_ns=_ns(ttl),
            enabled=enabled,
            build=self.builds.current if self.builds is not None else None,
            max_failures=max_failures,
            is_dead=is_dead,
            random=random,
        )

    @property
    def store(self) -> FlowEventStore:
        """The engine's store. Raises `EngineElsewhere` in a process that was forked after the engine was made."""
        if os.getpid() != self._process:
            raise EngineElsewhere("fork")
        return self._store

    def check_use(self) -> None:
        """Raises `EngineClosed` or `EngineElsewhere`: locks and tasks belong to one loop of one process."""
        if self._closed:
            raise EngineClosed
        if os.getpid() != self._process:
            raise EngineElsewhere("fork")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise EngineElsewhere("loop")

    @classmethod
    def in_memory(cls, runtime: FlowRuntime) -> Self:
        """An engine over a memory store of its own."""
        return cls(runtime)

    async def __aenter__(self) -> Self:
        self.check_use()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels the drives under way (their steps stay `running` and are redelivered), then closes what the engine
        owns."""
        self._closed = True
        drives = self.active_drives
        for drive in drives:
            drive.end()
        tasks = [drive.task for drive in drives if drive.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        while self._calls:
            self._idle.clear()
            await self._idle.wait()
        for lingering in self._lingering:
            lingering.cancel()
        if self._lingering:
            await asyncio.wait(self._lingering, timeout=max(1.0, self._grace.total_seconds()))
        for session in self._sessions.values():
            session.evicted()
        await self._keeper.close()
        if self._observing is not None:
            await self._observing.close()
        self._threads.close()
        if self._owns_store:
            await self._store.close()

    # -- starting --------------------------------------------------------------------------------------------------

    async def start(
        self,
        workflow: str | WorkflowSpec | Callable[..., Any],
        input: object = None,
        *,
        run_id: str | None = None,
        drive: bool = True,
    ) -> str:
        """Starts a run and drives it until it ends or suspends; gives its id. Idempotent for an equal spec and input.

        `workflow` is a registered name (its only version), the workflow function, or a `WorkflowSpec`; `run_id`
        defaults to a random UUID. An engine that takes only runs pinned to a build pins a new one to its current build, unless it
        is given a spec, which says so itself. With `drive=False` the run is only created, for a worker or a later call. Raises
        `InvalidWorkflow`, `InvalidRunId`, `RunConflict`, `RuntimeBuildUnavailable`, `PayloadTooLarge`,
        `Serialization("payload")` for an input that does not fit the parameters of an async workflow registered here, and what
        the drive raises (the run then exists). Spec 04 §4.1, R17, R56."""
        spec = spec_of(self.runtime, workflow)
        run_id = str(uuid.uuid4()) if run_id is None else run_id
        call = {"op": "start", "spec": orjson.Fragment(spec.to_json()), "input": _raw(input), "drive": drive}
        self._kernel.check_spec(spec.to_json())
        self._check_run_id(run_id)
        pinned = None
        if self.builds is not None and not self.builds.accept_unpinned and not isinstance(workflow, WorkflowSpec):
            pinned = spec.with_build(self.builds.current).to_json()
        await self._call(run_id, call, new_spec=pinned)
        return run_id

    async def start_with_id(
        self, run_id: str, workflow: str | WorkflowSpec | Callable[..., Any], input: object = None
    ) -> str:
        """`start` with the run id first."""
        return await self.start(workflow, input, run_id=run_id)

    async def submit(
        self, workflow: str | WorkflowSpec | Callable[..., Any], input: object = None, *, run_id: str | None = None
    ) -> str:
        """Creates the run durably without driving it; gives its id."""
        return await self.start(workflow, input, run_id=run_id, drive=False)

    async def run(
        self, workflow: str | WorkflowSpec | Callable[..., Any], input: object = None, *, run_id: str | None = None
    ) -> WorkflowRunSnapshot:
        """`start`, then the run's snapshot."""
        return await self.snapshot(await self.start(workflow, input, run_id=run_id))

    async def drive(self, run_id: str, *, take_over: bool = False) -> WorkflowRunSnapshot:
        """Carries a run on until it ends or suspends. While another process holds the run's lease this executes nothing
        and gives the snapshot, unless `take_over` claims the lease regardless; its owner's next commit is then refused
        (R2). Raises `RunNotFound`, and the first refusal of the drive."""
        return await self._call_snapshot(run_id, {"op": "drive"}, take_over=take_over)

    async def drive_claimed(self, claimed: Claimed) -> WorkflowRunSnapshot:
        """Drives a run whose lease `store.claim` gave to this engine's `owner`, as a worker does: what is due at the
        claim is completed first, and a failure is counted on the run (R9, R44)."""
        await self._call(claimed.run_id, {"op": "drive"}, due=claimed.now, claimed=claimed)
        return await self.snapshot(claimed.run_id)

    @property
    def observer(self) -> Observer | None:
        """The observer this engine was given."""
        return self._observer

    @property
    def runtime_build_compatibility(self) -> RuntimeBuildCompatibility | None:
        """The builds this engine was given (spec 08 §8.5)."""
        return self.builds

    def supports_runtime_build(self, build: str | None = None) -> bool:
        """Whether this engine may drive runs pinned to `build`, None for runs that are not pinned."""
        return build is None if self.builds is None else self.builds.supports(build)

    async def runtime_build_id(self, run_id: str) -> str | None:
        """The build a run is pinned to, None if it is not. Raises `RunNotFound`."""
        return await self.read(run_id, lambda run: run.build_id)

    @property
    def observations_dropped(self) -> int:
        """Events the observer was not told of because its queue of `observer_limit` was full (R52)."""
        return self._observing.dropped if self._observing is not None else 0

    @property
    def owner(self) -> str:
        """This engine's identity as a holder of leases (R2)."""
        return self.leasing.owner

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def leasing(self) -> Leasing:
        """How this engine leases runs."""
        return self._shell.leasing

    @property
    def keeper(self) -> LeaseKeeper:
        """What renews the leases of this engine; a worker has it do so from a thread."""
        return self._keeper

    @property
    def active_drives(self) -> list[ActiveDrive]:
        """The drives under way, those that still end included."""
        return [session.active for session in self._sessions.values() if session.active is not None]

    async def release_hold(self, run_id: str) -> bool:
        """Lets workers take a held run again, after its code was repaired (R43). False if it was not held."""
        self._check_run_id(run_id)
        return await self.store.release_hold(run_id)

    # -- waits and retries -----------------------------------------------------------------------------------------

    async def resume_wait(
        self, run_id: str, wait_id: str, *, early: bool = False, drive: bool = True
    ) -> WorkflowRunSnapshot:
        """Completes a due wait (with `early=True` also one that is not due) and drives. Spec 06 §6.1, R24."""
        call = {"op": "resume_wait", "wait_id": wait_id, "early": early, "drive": drive}
        return await self._call_snapshot(run_id, call)

    async def resume_due_waits(self, now: Moment) -> list[tuple[str, str]]:
        """Completes all waits due at `now`, drives their runs, and gives the (run id, wait id) pairs this call
        completed. A run that refuses does not stop the others; its error is raised at the end (R58)."""
        moment = moment_ns("now", now)
        wakeups = [w for w in await self.store.list_due_wakeups(moment) if w.kind == "wait"]
        resumed = await self._resume_each(wakeups, "resume_due_waits", moment)
        return sorted(pair for pair in resumed if pair in {(w.run_id, w.subject_id) for w in wakeups})

    async def resume_due_retries(self, now: Moment) -> list[tuple[str, str]]:
        """Drives every run with a retry due at `now`; gives the (run id, step id) pairs that were due at the start."""
        moment = moment_ns("now", now)
        wakeups = [w for w in await self.store.list_due_wakeups(moment) if w.kind == "retry"]
        await self._resume_each(wakeups, "resume_due_retries", moment)
        return sorted((w.run_id, w.subject_id) for w in wakeups)

    async def resume_scheduled_run(self, run_id: str, now: Moment) -> list[Wakeup]:
        """Completes the waits of one run due at `now`, starts its due retries, drives; gives what was due at the start.
        Spec 06 §6.2."""
        moment = moment_ns("now", now)
        due: list[Wakeup] = []

        def look(run: Run) -> None:
            due[:] = [Wakeup(run_id, kind, id, at, run.build_id) for kind, id, at in run.due_wakeups(moment)]

        await self._call(run_id, {"op": "resume_scheduled_run", "now": str(Instant(moment))}, due=moment, look=look)
        return due

    async def _resume_each(self, wakeups: list[Wakeup], op: str, moment: int) -> list[tuple[str, str]]:
        completed: list[tuple[str, str]] = []
        first: FlowError | None = None
        for run_id in dict.fromkeys(w.run_id for w in wakeups):
            try:
                call = {"op": op, "now": str(Instant(moment))}
                completed += [(run_id, wait_id) for wait_id in await self._call(run_id, call, due=moment)]
            except FlowError as error:
                first = first or error
        if first is not None:
            raise first
        return completed

    # -- hooks -----------------------------------------------------------------------------------------------------

    async def resume_hook(
        self, run_id: str, hook_id: str, payload: object, *, drive: bool = True
    ) -> WorkflowRunSnapshot:
        """Delivers a payload to a hook and drives. An equal redelivery is a no-op, another is `HookConflict` (spec 06
        §6.3). Raises also `RunNotFound`, `RunTerminal`, `InvalidTransition` where there is no such hook (yet), and
        `Serialization("payload")`, with nothing delivered, if an async workflow registered here asks for another type."""
        call = {"op": "resume_hook", "hook_id": hook_id, "payload": _raw(payload), "drive": drive}
        return await self._call_snapshot(run_id, call)

    async def dispose_hook(self, run_id: str, hook_id: str, *, drive: bool = True) -> WorkflowRunSnapshot:
        """Closes a hook nobody will answer, and drives."""
        return await self._call_snapshot(run_id, {"op": "dispose_hook", "hook_id": hook_id, "drive": drive})

    async def resume_hook_by_token(self, token: str, payload: object, *, drive: bool = True) -> tuple[str, str]:
        """`resume_hook` by the hook's token; gives (run id, hook id). Raises as that, and `HookTokenNotFound`, also for a
        redelivery: a token is known until its hook is answered. Who must tell the two apart keeps both ids and uses
        `resume_hook`."""
        run_id, hook_id = await self.find_hook(token)
        await self._call(run_id, {"op": "resume_hook", "hook_id": hook_id, "payload": _raw(payload), "drive": drive})
        return run_id, hook_id

    async def dispose_hook_by_token(self, token: str, *, drive: bool = True) -> tuple[str, str]:
        """`dispose_hook` by the hook's token; gives (run id, hook id). Raises `HookTokenNotFound`."""
        run_id, hook_id = await self.find_hook(token)
        await self._call(run_id, {"op": "dispose_hook", "hook_id": hook_id, "drive": drive})
        return run_id, hook_id

    # -- cancellation and ends -------------------------------------------------------------------------------------

    async def request_cancellation(
        self, run_id: str, reason: str | None = None, *, drive: bool = True
    ) -> WorkflowRunSnapshot:
        """Asks a run to clean up and end; drives its clean-up. Spec 06 §6.4."""
        return await self._call_snapshot(run_id, {"op": "request_cancellation", "reason": reason, "drive": drive})

    async def force_cancel(self, run_id: str, reason: str | None = None) -> WorkflowRunSnapshot:
        """Ends a run as cancelled at once, without clean-up. A run that has ended is left as it is."""
        return await self._call_snapshot(run_id, {"op": "force_cancel", "reason": reason})

    cancel = force_cancel

    async def terminate_for_timeout(
        self, run_id: str, deadline: Moment, reason: str | None = None
    ) -> WorkflowRunSnapshot:
        """Ends a run as timed out at once."""
        moment = str(Instant(moment_ns("deadline", deadline)))
        return await self._call_snapshot(run_id, {"op": "terminate_for_timeout", "deadline": moment, "reason": reason})

    async def terminate_for_host_shutdown(self, run_id: str, reason: str | None = None) -> WorkflowRunSnapshot:
        """Ends a run because its host goes away for good."""
        return await self._call_snapshot(run_id, {"op": "terminate_for_host_shutdown", "reason": reason})

    # -- facts -----------------------------------------------------------------------------------------------------

    async def record_progress(
        self, run_id: str, progress: WorkflowProgress | Mapping[str, object]
    ) -> WorkflowRunSnapshot:
        """Records a progress fact from outside. Equal again is a no-op; another under its id is `NonDeterministic`."""
        return await self._call_snapshot(run_id, {"op": "record_progress", "progress": _fact(progress)})

    async def link_child_operation(
        self, run_id: str, child: ChildOperationReference | Mapping[str, object]
    ) -> WorkflowRunSnapshot:
        """Links an operation of another system, or a run of this store, to the run. Raises `RunNotFound` for an
        unknown run."""
        return await self._call_snapshot(run_id, {"op": "link_child_operation", "child": _fact(child)})

    # -- reading ---------------------------------------------------------------------------------------------------

    async def history(self, run_id: str) -> list[Envelope]:
        """All events of the run. Raises `RunNotFound`."""
        self._check_run_id(run_id)
        return Envelope.parse_lines(await self.store.history(run_id))

    async def read(self, run_id: str, look: Callable[[Run], T]) -> T:
        """What `look` says of the run, its latest events folded. Raises `RunNotFound`."""
        self._check_run_id(run_id)
        async with self._locked(run_id) as session:
            return look(await session.load())

    # -- how a call is made ----------------------------------------------------------------------------------------

    async def _call_snapshot(
        self, run_id: str, call: Mapping[str, object], *, take_over: bool = False
    ) -> WorkflowRunSnapshot:
        self._check_run_id(run_id)
        await self._call(run_id, call, take_over=take_over)
        return await self.snapshot(run_id)

    async def _call(self, run_id: str, call: Mapping[str, object], **options: Any) -> list[str]:
        """Judges the call, appends what is its own, drives where its row says so; gives the waits this call
        completed."""
        return await self.make(HostCall(run_id, call, **options))

    async def make(self, call: HostCall) -> list[str]:
        """The same for a call that the caller wants to look at afterwards, whatever became of it."""
        self._check_run_id(call.run_id)
        try:
            return await self._make_call(call)
        except FlowError as error:
            error.run_id = error.run_id or call.run_id
            raise

    async def _make_call(self, call: HostCall) -> list[str]:
        if call.drives and STEP_OF.get() == call.run_id:
            raise CallFromOwnStep(call.run_id)
        while True:
            async with self._locked(call.run_id) as session:
                unready = session.unready()
                if unready is None:
                    active = await self._begin(session, call)
                    break
            await unready
        if active is None:
            return call.own_waits
        drive, joined = active
        try:
            await session.wait(drive)
        finally:
            call.stood_aside = drive.drive.stood_aside
            if not joined:
                call.own_waits += drive.drive.completed_waits
        return call.own_waits

    async def _begin(self, session: Session, call: HostCall) -> tuple[ActiveDrive, bool] | None:
        """Appends what is the call's own; the drive to wait for and whether it was joined, or None for a call that is
        done."""
        try:
            known = None if call.claimed is None else call.claimed.last_sequence
            run = await session.patiently(session.load_or_new if call.starts else lambda: session.load(known))
            call.found = True
            if self._closed:
                raise EngineClosed
            if call.look is not None:
                call.look(run)
            drives = await self._append(session, run, call)
            if self._closed:
                raise EngineClosed
            if drives:
                return self._join(session, call)
        except (FlowError, asyncio.CancelledError):
            await self._decline(session, call)
            raise
        return None

    async def _append(self, session: Session, run: Run, call: HostCall) -> bool:
        """Appends the call's own events and says whether it goes on to drive. What opens a drive (creation, start,
        waits due) rides on its first commit (R9, R17)."""
        for _ in range(self._limit):
            clock = session.clock()
            if self._coding is not None or call.new_spec is not None:
                call.text = call.judged(run, self._coding)
            control = run.control(call.text, clock)
            if control.admit:
                admit(self.builds, session.run_id, self._build(run, call))
            drafts = control.drafts
            if drafts:
                self._check_types(session, run, call)
            if control.drive and call.opens_drive:
                joins = session.active is not None and call.completes_waits
                drafts = run.due_waits(call.due) if joins and call.due is not None else []
            if not drafts:
                call.accepted = True
                return control.drive
            claims = control.drive and session.active is None
            view = run.stage(drafts, clock)
            answer = await session.commit(view, self._shell.leasing.for_call() if claims else None)
            if isinstance(answer, Accepted):
                run.accept(answer.batch)
                self._committed(run, answer.batch)
                call.accepted = call.appended = True
                if call.due is not None:
                    call.own_waits += [orjson.loads(draft)["wait_id"] for draft in drafts]
                if session.active is not None:
                    session.active.wake()
                return control.drive  # under another owner's live lease the drive finds that out and stands aside (R2)
            if not isinstance(answer, EventConflict):
                raise answer
            await session.extend()
        raise ReplayLimitExceeded(self._limit)

    async def _decline(self, session: Session, call: HostCall) -> None:
        """A run that was claimed and is not driven after all goes back at once."""
        if session.active is None:
            if call.claimed is not None:
                session.adopt(call.claimed)
            await session.give_back()
        else:
            await session.finish_commit()
            session.active.wake()

    def _join(self, session: Session, call: HostCall) -> tuple[ActiveDrive, bool]:
        if call.claimed is not None:
            session.adopt(call.claimed)
        call.drove, worker = True, call.worker or call.claimed is not None
        horizon = session.clock() if call.due is None else call.due
        active, joined = session.active, True
        if active is None:
            opening = Opening(
                horizon,
                call.text if call.starts else None,
                call.due if call.completes_waits else None,
                held=session.epoch is not None,
                take_over=call.take_over,
                worker=worker,
                failures=0 if call.claimed is None else call.claimed.failures,
                lost=call.claimed is not None and call.claimed.lost,
                start_again=partial(call.judged, coding=self._coding) if call.starts else None,
            )
            active, joined = session.begin(opening), False
            self._keeper.wake()
        else:
            active.join(horizon, worker=worker)
        active.waiters += 1
        return active, joined

    def _check_run_id(self, run_id: str) -> None:
        if not isinstance(run_id, str):
            raise TypeError(f"a run id is a str, not {type(run_id).__name__}")
        if not run_id.isascii():  # also what has no UTF-8 form, which the kernel could not be given
            raise InvalidRunId(run_id, "characters")
        self._kernel.check_run_id(run_id)

    def _committed(self, run: Run, batch: Batch) -> None:
        if batch.lines and self._observing is not None:
            self._observing.put(run, batch)
        row = batch.row
        if batch.lines and row.terminal:
            level = logging.WARNING if row.status == "failed" else logging.INFO
            _log.log(level, "run %s (%s %s) ended as %s", batch.run_id, row.name, row.version, row.status)

    def _check_types(self, session: Session, run: Run, call: HostCall) -> None:
        """Raises `Serialization("payload")` for what the workflow is known to have no use for, before it is written. Code of
        another build than the run's is not asked."""
        given = call.call
        if given["op"] == "start" and run.last_sequence == 0:
            spec = WorkflowSpec.from_json(call.new_spec or orjson.dumps(given["spec"]))
            if self.supports_runtime_build(spec.runtime_build_id):
                check_input(self.runtime, spec, orjson.dumps(given["input"]))
        elif given["op"] == "resume_hook" and self.supports_runtime_build(run.build_id):
            session.check_payload(str(given["hook_id"]), orjson.dumps(given["payload"]))

    def _build(self, run: Run, call: HostCall) -> str | None:
        if run.last_sequence:
            return run.build_id
        spec = orjson.loads(call.new_spec or orjson.dumps(call.call["spec"]))
        return spec.get("runtime_build_id") if isinstance(spec, dict) else None

    async def find_hook(self, token: str) -> tuple[str, str]:
        """(run id, hook id) of the active hook with this token. Raises `HookTokenNotFound`, `InvalidTransition`."""
        if not isinstance(token, str):
            raise TypeError(f"a hook token is a str, not {type(token).__name__}")
        if not token.strip(_WHITE_SPACE):
            raise InvalidTransition("", "blank_token", "hook", "")
        found: list[tuple[str, str]] = []
        for row in await self.store.find_active_hooks(sha256(token.encode("utf-8", "surrogatepass")).digest()):
            hook = await self.read(row.run_id, lambda run, id=row.hook_id: run.hook(id))  # type: ignore[misc]  # binds the row
            if hook is not None and hook.token == token:  # whatever became of it meanwhile, the call by id judges
                found.append((row.run_id, row.hook_id))
        if not found:
            raise HookTokenNotFound(token)
        if len(found) > 1:
            raise InvalidTransition(found[0][0], "token_ambiguous")
        return found[0]

    # -- sessions --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(self, run_id: str) -> AsyncIterator[Session]:
        self.check_use()
        session = self._sessions.get(run_id)
        if session is None:
            session = self._sessions[run_id] = Session(run_id, self._shell)
        session.users += 1
        self._calls += 1
        try:
            async with session.lock:
                if self._closed:
                    raise EngineClosed
                yield session
        finally:
            session.users -= 1
            self._calls -= 1
            if not self._calls:
                self._idle.set()
            self._keep(session)

    def _keep(self, session: Session) -> None:
        """The cache of projections: least recently used first out; runs that have ended or never began are not kept."""
        if session.users or session.active is not None or session.run_id not in self._sessions:
            return
        if session.run is None or session.run.terminal or session.run.last_sequence == 0:
            self._sessions.pop(session.run_id, None)
            session.evicted()
            return
        self._sessions.move_to_end(session.run_id)
        total = sum(s.weight for s in self._sessions.values())
        for oldest in list(self._sessions.values()):
            if total <= self._cache_bytes:
                return
            if not oldest.users and oldest.active is None:
                total -= oldest.weight
                del self._sessions[oldest.run_id]
                oldest.evicted()

    def _program(self, run_id: str) -> RuntimeProgram:
        return RuntimeProgram(self.runtime, run_id, self._coding, self._kernel.json_equal, self._strict_replay)

    def _attempts(self, run_id: str, on_outcome: Callable[[], None]) -> Attempts:
        return Attempts(
            *(self.runtime, run_id, self._threads, self._record_tracebacks, self._grace, self._lingering, on_outcome),
            coding=self._coding,
        )


def _check_runtime(runtime: object, commit: str) -> None:
    if not callable(getattr(runtime, "run_workflow", None)) or not callable(getattr(runtime, "run_step", None)):
        raise TypeError(f"runtime is a Flow, or has run_workflow and run_step; {type(runtime).__name__} has not")
    if commit not in ("staged", "each"):
        raise ValueError(f"commit must be 'staged' or 'each', not {commit!r}")


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        _at_least(name, value, 1)


def _check_durations(**durations: timedelta) -> None:
    for name, value in durations.items():
        _at_least(name, value, _SHORTEST.get(name, timedelta()))


def _at_least(name: str, value: Any, least: Any) -> None:
    if type(value) is not type(least):
        raise TypeError(f"{name} must be a {type(least).__name__}, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


@overload
def _ns(duration: timedelta) -> int: ...
@overload
def _ns(duration: timedelta | None) -> int | None: ...
def _ns(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(microseconds=1) * 1_000


def _store_of(store: FlowEventStore | str | PathLike[str] | None) -> FlowEventStore:
    if store is None:
        return MemoryEventStore()
    return open_store(fspath(store)) if isinstance(store, str | PathLike) else store


def _raw(value: object) -> orjson.Fragment:
    return orjson.Fragment(payload.encode(value))


def _fact(value: WorkflowProgress | ChildOperationReference | Mapping[str, object]) -> orjson.Fragment:
    if isinstance(value, WorkflowProgress | ChildOperationReference):
        return orjson.Fragment(value.to_json())
    return _raw(value)


def _log_discarded(run_id: str, outcome: Outcome) -> None:
    _log.warning(
        "outcome_discarded: run %s step %s attempt %d ended after its step did",
        run_id,
        outcome.step_id,
        outcome.attempt,
    )


def _log_failed(run: Run, outcome: Outcome) -> None:
    """A failed attempt, and what comes of it: class and place of the error only, for its text may hold a payload (R60)."""
    step = run.step(outcome.step_id)
    called, comes = outcome.step_id, "it is not tried again"
    if step is not None and step.step_name != step.step_id:
        called = f"{step.step_id} ({step.step_name})"
    if step is not None and step.attempt > outcome.attempt:
        comes = "it is tried again now"
    elif step is not None and step.retry_after is not None:
        comes = f"it is tried again at {format_instant(step.retry_after)}"
    _log.warning("run %s step %s attempt %d %s; %s", run.run_id, called, outcome.attempt, outcome.told, comes)
