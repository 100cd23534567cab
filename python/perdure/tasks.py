"""What becomes of a task: `handle` does it, and says whether to acknowledge it, bring it back, or set it aside (R44, spec
08 §8.2).

Our queues and the adapters of foreign ones act on the same `TaskOutcome`, so the rules stand here once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from perdure import payload
from perdure.dispatcher import FlowTaskDispatcher
from perdure.errors import (
    EngineClosed,
    FlowError,
    HookConflict,
    HookTokenNotFound,
    InvalidRunId,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    PayloadCodecFailed,
    PayloadTooLarge,
    RunNotFound,
    RunTerminal,
    RuntimeBuildUnavailable,
    Serialization,
    StepNotRegistered,
    StoreError,
    WorkflowNotRegistered,
)
from perdure.host_call import HostCall
from perdure.instant import Instant, parse_instant
from perdure.kernel import Reads
from perdure.task_kinds import (
    TASK_TYPES,
    DisposeHook,
    DisposeHookByToken,
    DriveRun,
    FlowTask,
    ResumeDueRetries,
    ResumeDueWaits,
    ResumeHook,
    ResumeHookByToken,
    ResumeScheduledRun,
    ResumeWait,
)
from perdure.told import told
from perdure.wire import moment_ns

if TYPE_CHECKING:
    from perdure.engine import FlowEngine

__all__ = [
    "Ack",
    "DeadLetter",
    "DisposeHook",
    "DisposeHookByToken",
    "Disposition",
    "DriveRun",
    "FlowTask",
    "FlowTaskDispatcher",
    "Nack",
    "ResumeDueRetries",
    "ResumeDueWaits",
    "ResumeHook",
    "ResumeHookByToken",
    "ResumeScheduledRun",
    "ResumeWait",
    "TaskOutcome",
    "backoff_ns",
    "handle",
]

_log = logging.getLogger("perdure")

Pair = tuple[str, str]
"""(run id, wait, step or hook id)."""

_FIRST_BACKOFF_NS: Final = 1_000_000_000
_LAST_BACKOFF_NS: Final = 600_000_000_000
_DOUBLINGS: Final = 10
_ENDED: Final = (RunNotFound, RunTerminal)
_ELSEWHERE: Final = (WorkflowNotRegistered, StepNotRegistered, RuntimeBuildUnavailable)
"""Another worker may know what this one does not: such a task comes back and is never set aside (R44)."""
_AWAY: Final = (StoreError, EngineClosed)
_TAKEN: Final = (LeaseLost, LeaseHeld)
_UNTOLD: Final = (*_ENDED, *_TAKEN, EngineClosed)
"""What happens to tasks every day."""
_FOR_GOOD: Final = (
    *(HookConflict, HookTokenNotFound, InvalidTransition, InvalidRunId),
    *(PayloadTooLarge, Serialization),
)
"""Refusals of spec 06 that no later try changes. Their texts hold ids and rules, no payload and no token."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The task is done, or what is left of it is found by the scheduler."""


@dataclass(frozen=True, slots=True)
class Nack:
    """The task comes back after a while. `counted`: it is set aside when that happened too often; `not_before`: no sooner
    than this, ns since 1970."""

    reason: str
    counted: bool = True
    not_before: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The task is set aside for an operator."""

    reason: str


Disposition = Ack | Nack | DeadLetter


_BECOMES: Final[dict[type[Disposition], str]] = {
    Ack: "the run says what becomes of it",
    Nack: "the task comes back",
    DeadLetter: "the task is set aside",
}


def backoff_ns(nacks: int, random: random.Random) -> int:
    """The wait before a task that came back `nacks` times is delivered again: uniform up to 1 s * 2^nacks, at most 10
    min; as for runs (R44)."""
    return int(random.random() * min(_LAST_BACKOFF_NS, _FIRST_BACKOFF_NS << min(nacks, _DOUBLINGS)))


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What this handling did, and what is to become of the task. The lists name only what was committed by this handling:
    a redelivered task that found the work done reports empty ones, and yet drives the run and names it."""

    task: FlowTask
    run_ids: tuple[str, ...] = ()
    resumed_waits: tuple[Pair, ...] = ()
    resumed_retries: tuple[Pair, ...] = ()
    resumed_hook: Pair | None = None
    disposed_hook: Pair | None = None
    disposition: Disposition = field(default_factory=Ack)
    error: FlowError | None = field(default=None, compare=False)


async def handle(engine: FlowEngine, task: FlowTask) -> TaskOutcome:
    """Does a task with this engine, at max(its `now`, the store's clock) (R46).

    Whatever goes wrong with the run, its steps or the store is in the outcome's `error` and decides its `disposition`. Raised are
    cancellation, which leaves the task undone, and `TypeError` for what is no task."""
    handler = _HANDLERS.get(type(task))
    if handler is None:
        raise TypeError(f"a task is one of the values of perdure.tasks, not {type(task).__name__}")
    try:
        outcome: TaskOutcome = await handler(_Handling(engine), task)
    except (SystemExit, KeyboardInterrupt) as error:  # of a step (R53): it would end the worker, and each one after it
        name = type(error).__name__
        _log.error("a step of task %s of run %s raised %s; the task comes back", task.type, task.target, name)
        return TaskOutcome(task, () if task.target is None else (task.target,), disposition=Nack(name))
    return outcome


@dataclass(frozen=True, slots=True)
class _Handling:
    engine: FlowEngine

    # the kinds ------------------------------------------------------------------------------------------------

    async def drive_run(self, task: DriveRun) -> TaskOutcome:
        return await self.drive(task, task.run_id, "drive", 0)

    async def resume_scheduled_run(self, task: ResumeScheduledRun) -> TaskOutcome:
        return await self.drive(task, task.run_id, "resume_scheduled_run", moment_ns("now", task.now))

    async def resume_wait(self, task: ResumeWait) -> TaskOutcome:
        call, outcome = await self.append(task, task.run_id, {"op": "resume_wait", "wait_id": task.wait_id})
        if call is not None and call.appended:
            outcome = replace(
                outcome, resumed_waits=tuple(sorted({(task.run_id, task.wait_id), *outcome.resumed_waits}))
            )
        return outcome

    async def resume_hook(self, task: ResumeHook) -> TaskOutcome:
        return await self._resume(task, task.run_id, task.hook_id, task.payload)

    async def dispose_hook(self, task: DisposeHook) -> TaskOutcome:
        return await self._dispose(task, task.run_id, task.hook_id)

    async def resume_hook_by_token(self, task: ResumeHookByToken) -> TaskOutcome:
        found = await self._find(task, task.token)
        return found if isinstance(found, TaskOutcome) else await self._resume(task, *found, task.payload)

    async def dispose_hook_by_token(self, task: DisposeHookByToken) -> TaskOutcome:
        found = await self._find(task, task.token)
        return found if isinstance(found, TaskOutcome) else await self._dispose(task, *found)

    async def resume_due_waits(self, task: ResumeDueWaits) -> TaskOutcome:
        return await self._scan(task, "wait", "resume_due_waits", moment_ns("now", task.now))

    async def resume_due_retries(self, task: ResumeDueRetries) -> TaskOutcome:
        return await self._scan(task, "retry", "resume_due_retries", moment_ns("now", task.now))

    # what they are made of ------------------------------------------------------------------------------------

    async def _resume(self, task: FlowTask, run_id: str, hook_id: str, value: object) -> TaskOutcome:
        try:
            raw = orjson.Fragment(payload.encode(value))
        except Serialization as error:
            return self._failed(TaskOutcome(task), error, None)
        call, outcome = await self.append(task, run_id, {"op": "resume_hook", "hook_id": hook_id, "payload": raw})
        return replace(outcome, resumed_hook=(run_id, hook_id)) if call is not None and call.appended else outcome

    async def _dispose(self, task: FlowTask, run_id: str, hook_id: str) -> TaskOutcome:
        call, outcome = await self.append(task, run_id, {"op": "dispose_hook", "hook_id": hook_id})
        return replace(outcome, disposed_hook=(run_id, hook_id)) if call is not None and call.appended else outcome

    async def _find(self, task: FlowTask, token: str) -> Pair | TaskOutcome:
        try:
            return await self.engine.find_hook(token)
        except FlowError as error:
            return self._failed(TaskOutcome(task), error, None)

    async def _scan(self, task: FlowTask, kind: str, op: str, now: int) -> TaskOutcome:
        """One refusal does not stop the others (R58); the gravest disposition is that of the task."""
        try:
            await self.engine.store.changes()  # a store's clock is known for sure once it was asked something
            now = max(now, self.engine.store.clock())
            wakeups = [w for w in await self.engine.store.list_due_wakeups(now) if w.kind == kind]
        except FlowError as error:
            return self._failed(TaskOutcome(task), error, None)
        total = TaskOutcome(task)
        for run_id in dict.fromkeys(wakeup.run_id for wakeup in wakeups):
            one = await self.drive(task, run_id, op, now)
            total = replace(
                total,
                run_ids=(*total.run_ids, *one.run_ids),
                resumed_waits=(*total.resumed_waits, *one.resumed_waits),
                resumed_retries=(*total.resumed_retries, *one.resumed_retries),
                disposition=one.disposition if isinstance(total.disposition, Ack) else total.disposition,
                error=total.error or one.error,
            )
        return total

    async def drive(self, task: FlowTask, run_id: str, op: str, given: int) -> TaskOutcome:
        """A task that only drives its run, at the later of its time and the store's clock; a held run is left alone (R43).
        Where an earlier delivery was cut off after it had completed what was due, the run has not seen all of its events, and
        a redelivery drives it all the same."""
        outcome, retries = TaskOutcome(task, (run_id,)), dict[str, int]()
        call: HostCall | None = None
        try:
            state = await self.engine.store.lease(run_id)
            if state.hold is not None:
                return outcome
            now = max(given, self.engine.store.clock())
            if op == "resume_scheduled_run" and state.last_sequence > state.parked_sequence:
                op = "drive"
            at = {} if op == "drive" else {"now": str(Instant(now))}
            look = partial(_note_due_retries, retries, now)
            call = HostCall(run_id, {"op": op, **at}, due=now, worker=True, look=look)
            await self.engine.make(call)
        except FlowError as error:
            outcome = self._failed(outcome, error, call)
        if call is None:
            return outcome
        waits = tuple(sorted((run_id, wait_id) for wait_id in call.own_waits))
        return replace(outcome, resumed_waits=waits, resumed_retries=await self._started(call, retries))

    async def append(
        self, task: FlowTask, run_id: str, op: Mapping[str, object]
    ) -> tuple[HostCall | None, TaskOutcome]:
        """A task with an event of its own: the event is delivered also to a held run, which is then not driven."""
        call, outcome = None, TaskOutcome(task, (run_id,))
        try:
            is_held = (await self.engine.store.lease(run_id)).hold is not None
            call = HostCall(run_id, {**op, "drive": not is_held}, worker=True)
            await self.engine.make(call)
        except FlowError as error:
            outcome = self._failed(outcome, error, call)
        waits = tuple(sorted((run_id, wait_id) for wait_id in call.own_waits)) if call is not None else ()
        return call, replace(outcome, resumed_waits=waits)

    async def _started(self, call: HostCall, retries: Mapping[str, int]) -> tuple[Pair, ...]:
        """The retries that were due and that this handling's drive has started."""
        if not retries or not call.drove or call.stood_aside:
            return ()
        try:
            begun = await self.engine.read(
                call.run_id, lambda run: [id for id, n in retries.items() if _is_past(run, id, n)]
            )
        except FlowError:  # the work is done and durable; only the report of it is not
            return ()
        return tuple(sorted((call.run_id, step_id) for step_id in begun))

    # what becomes of the task ---------------------------------------------------------------------------------

    def _failed(self, outcome: TaskOutcome, error: FlowError, call: HostCall | None) -> TaskOutcome:
        known = () if isinstance(error, RunNotFound) and not (call and call.found) else outcome.run_ids
        disposition = self._disposition(outcome.task, error, call)
        if not isinstance(error, _UNTOLD):
            _log.warning(
                "task %s of run %s: %s; %s",
                *(outcome.task.type, *(outcome.run_ids or ("unknown",)), told(error), _BECOMES[type(disposition)]),
            )
        return replace(outcome, run_ids=known, disposition=disposition, error=error)

    def _disposition(self, task: FlowTask, error: FlowError, call: HostCall | None) -> Disposition:
        if isinstance(error, (*_ELSEWHERE, *_AWAY)):
            return Nack(error.code, counted=False)
        if call is not None and call.drove:
            return self._after_drive(error)
        if isinstance(error, _ENDED):
            return Ack()
        if isinstance(error, InvalidTransition) and error.rule == "wait_not_due" and error.value is not None:
            return Nack(error.code, not_before=parse_instant(error.value))
        if isinstance(error, PayloadCodecFailed):
            return Nack(error.code)  # another worker may have the key that is missing here
        has_own_event = not task.drives and not isinstance(task, ResumeDueWaits | ResumeDueRetries)
        if (
            has_own_event
            and isinstance(error, _FOR_GOOD)
            and (call is None or call.found or isinstance(error, InvalidRunId))
        ):
            return DeadLetter(f"{error.code}: {error}")
        return Nack(error.code)

    def _after_drive(self, error: FlowError) -> Disposition:
        """The event of the task, if it has one, is durable; the drive after it failed and the run says so by a count, a
        hold or its new owner: what is left comes back with the run (R44)."""
        if isinstance(error, _TAKEN) or self.engine.leasing.enabled:
            return Ack()
        return Nack(error.code)


def _note_due_retries(found: dict[str, int], now: int, run: Reads) -> None:
    """Step id → attempts so far, of the delayed retries due at `now`."""
    for kind, id, _ in run.due_wakeups(now):
        if kind == "retry" and (step := run.step(id)) is not None:
            found[id] = step.attempt


def _is_past(run: Reads, step_id: str, attempt: int) -> bool:
    step = run.step(step_id)
    return step is not None and (step.attempt > attempt or step.status not in ("pending", "cancelled"))


_HANDLERS: Final[dict[type[FlowTask], Any]] = {kind: getattr(_Handling, kind.type) for kind in TASK_TYPES.values()}
