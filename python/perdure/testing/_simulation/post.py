"""The queue of a simulated world, the way of each process to it, and what the auditor says of tasks (R44, R46)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Final

from perdure.errors import TaskLeaseLost
from perdure.queues import FlowTaskQueue, MemoryTaskQueue, TaskLease
from perdure.stores.task_rows import NewTask
from perdure.task_kinds import DisposeHook, FlowTask, ResumeHook, ResumeWait
from perdure.testing._simulation import calls
from perdure.testing._simulation.audit import Auditor
from perdure.testing._simulation.calls import Call
from perdure.testing._simulation.chance import Chance, QueueSettings
from perdure.testing._simulation.lanes import LaneLoop
from perdure.testing._simulation.way import Hints, Host, Way

__all__ = ["Post", "PostClient"]

_NAME: Final = "default"
_ELSEWHERE: Final = ("workflow_not_registered", "step_not_registered", "runtime_build_unavailable")


class Post(MemoryTaskQueue):
    """The queue, as one thing at which every request takes effect at one instant, and the auditor beside it."""

    def __init__(self, auditor: Auditor, settings: QueueSettings) -> None:
        super().__init__(
            clock=auditor.medium.clock,
            lease_ttl=timedelta(milliseconds=settings.ttl_ms),
            max_attempts=settings.max_attempts,
        )
        self._auditor = auditor
        self.own = settings.own
        self._leased: dict[str, tuple[FlowTask, str | None]] = {}
        """The tasks of all leases, each with what the tables said of it when it was leased."""

    async def enqueue_many(self, tasks: Sequence[FlowTask]) -> list[bool]:
        """As `MemoryTaskQueue.enqueue_many`; a queue that is not ours takes whatever it is given."""
        if self.own:
            added = await super().enqueue_many(tasks)
        else:
            new = [NewTask(f"foreign-{n}", task.to_json(), task.target, False) for n, task in enumerate(tasks)]
            added = [bool(answer) for answer in await self._rows.put(_NAME, new, None)]
        self._check_drives()
        return added

    async def lease(self) -> TaskLease | None:
        """As `MemoryTaskQueue.lease`."""
        lease = await super().lease()
        await self._check_dead()
        if lease is not None:
            if self._auditor.quiet and lease.attempts > lease.nacks:
                self._auditor.fail(
                    "R45", f"the lease of a task {lease.task.type} ran out, though nothing hindered its worker"
                )
            self._leased[lease.lease_id] = lease.task, self._verdict(lease.task)
        return lease

    async def heartbeat(self, lease_id: str) -> str:
        """As `MemoryTaskQueue.heartbeat`."""
        next_id = await super().heartbeat(lease_id)
        self._leased[next_id] = self._leased[lease_id]
        return next_id

    async def ack(self, lease_id: str) -> None:
        """As `MemoryTaskQueue.ack`. A task with an event of its own is done when that is durable, or the run has ended."""
        await super().ack(lease_id)
        task, before = self._leased[lease_id]
        call = _call(task)
        run = None if call is None else self._auditor.book(call.run_id).run
        if call is None or run is None or run.terminal or before == "RunNotFound":
            return
        said = calls.verdict(call, run, self.clock())
        if said != "ok" or not calls.has_happened(call, run):
            self._auditor.fail("R44", f"the task {call} was acknowledged; the table says {said}")

    async def nack(self, lease_id: str, *, reason: str, delay: timedelta = timedelta(), counted: bool = True) -> None:
        """As `MemoryTaskQueue.nack`."""
        await super().nack(lease_id, reason=reason, delay=delay, counted=counted)
        await self._check_dead()

    async def dead_letter(self, lease_id: str, reason: str) -> None:
        """As `MemoryTaskQueue.dead_letter`. Only a task of its own event is set aside, and only if that is refused for good."""
        await super().dead_letter(lease_id, reason)
        task, before = self._leased[lease_id]
        if task.drives or task.type.startswith("resume_due"):
            self._auditor.fail("R44", f"a task {task.type} was set aside: {reason}")
        if {before, self._verdict(task)} <= {"ok", "RunTerminal", "RunNotFound"}:
            self._auditor.fail("R44", f"the task {_call(task)} was set aside: {reason}; the table allows it")

    def _verdict(self, task: FlowTask) -> str | None:
        call = _call(task)
        return None if call is None else calls.verdict(call, self._auditor.book(call.run_id).run, self.clock())

    async def _check_dead(self) -> None:
        for dead in await self.dead_lettered_tasks():
            known = re.fullmatch("([a-z_]+)(:.*)?", dead.reason, re.DOTALL)
            if known is not None and known[1] in _ELSEWHERE:
                self._auditor.fail(
                    "R44", f"a task was set aside because of what another worker may know: {dead.reason}"
                )

    def _check_drives(self) -> None:
        if self.own:
            twice = [run_id for run_id, count in self._drives().items() if count > 1]
            if twice:
                self._auditor.fail("R46", f"runs {twice} have more than one task that only drives them")

    def _drives(self) -> Counter[str | None]:
        return Counter(task.target for task in self.waiting() if task.drives)

    def waiting(self) -> list[FlowTask]:
        """Every task that is pending or leased."""
        rows = self._rows._of(_NAME)  # type: ignore[attr-defined]  # the queue is one in memory, and nobody else asks so
        return [FlowTask.from_json(row.new.task) for row in rows.tasks.values()]

    def overdue(self) -> list[tuple[int, int]]:
        """The tasks that may be leased now: since when, microseconds, and their places in the queue."""
        rows = self._rows._of(_NAME)  # type: ignore[attr-defined]  # as above
        return [(due_at, position) for due_at, position in rows.order if due_at <= self.clock() // 1000]


class PostClient(Way, FlowTaskQueue):
    """The queue for one process."""

    def __init__(
        self, auditor: Auditor, chance: Chance, loop: LaneLoop, host: Host, post: Post, hints: Hints, lag_ns: int
    ) -> None:
        Way.__init__(self, auditor, chance, loop, host, lag_ns)
        self._post = post
        self._hints = hints
        self.lease_ttl = post.lease_ttl

    async def dispatch(self, task: FlowTask) -> bool | None:
        """As `FlowTaskDispatcher.dispatch`."""
        (answer,) = await self.dispatch_many(None, [task])
        return answer

    async def dispatch_many(self, build: str | None, tasks: Sequence[FlowTask]) -> list[bool | None]:
        """As `FlowTaskDispatcher.dispatch_many`. A queue that is not ours cannot say what it has, and loses some."""
        self.ensure_runtime_build_route(build)
        if self._post.own:
            return [*await self._put(tasks)]
        for task in tasks:
            fate = self._chance.of_delivery()
            self._host.note(f"sends {task.type} {task.target}: {fate}")
            if fate == "late":
                seconds, context = self._chance.random.random() * 20, self._loop.main.context.copy()
                self._loop.call_later(seconds, self._put_later, task, context=context)
            elif fate != "lost":
                await self._put([task] if fate == "fine" else [task, task])
        return [None] * len(tasks)

    async def enqueue(self, task: FlowTask) -> bool:
        """As `FlowTaskQueue.enqueue`."""
        return (await self._put([task]))[0]

    async def _put(self, tasks: Sequence[FlowTask]) -> list[bool]:
        answers = await self._read("enqueue", self._post.enqueue_many(tasks), changes=True)
        if any(answers):
            self._host.note(
                f"enqueued {' '.join(f'{t.type}/{t.target}' for t, a in zip(tasks, answers, strict=True) if a)}"
            )
        self._hints.ring()
        return answers

    def _put_later(self, task: FlowTask) -> None:
        self._medium.run(self._post.enqueue_many([task]))
        self._hints.ring()

    async def lease(self) -> TaskLease | None:
        """As `FlowTaskQueue.lease`."""
        lease = await self._read("lease a task", self._post.lease(), changes=True)
        if lease is not None:
            self._host.note(f"leases {lease.task.type} {lease.task.target}")
            self._host.party.leased_task(lease.task.target, self._auditor.leases)
        return lease

    async def heartbeat(self, lease_id: str) -> str:
        """As `FlowTaskQueue.heartbeat`."""
        return await self._read("heartbeat", self._post.heartbeat(lease_id), changes=True)

    async def ack(self, lease_id: str) -> None:
        """As `FlowTaskQueue.ack`."""
        await self._settle("ack", self._post.ack(lease_id))

    async def nack(self, lease_id: str, *, reason: str, delay: timedelta = timedelta(), counted: bool = True) -> None:
        """As `FlowTaskQueue.nack`."""
        call = self._post.nack(lease_id, reason=reason, delay=delay, counted=counted)
        await self._settle(f"nack ({reason}, {delay.total_seconds():.3f} s)", call)

    async def dead_letter(self, lease_id: str, reason: str) -> None:
        """As `FlowTaskQueue.dead_letter`."""
        await self._settle(f"dead letter ({reason})", self._post.dead_letter(lease_id, reason))

    async def _settle(self, said: str, call: Coroutine[object, object, None]) -> None:
        try:
            await self._read("settle a task", call, changes=True)
        except TaskLeaseLost:
            said = f"{said}: too late"
            raise
        finally:
            self._host.note(said)

    async def next_at(self) -> int | None:
        """As `FlowTaskQueue.next_at`."""
        return await self._read("next_at", self._post.next_at())

    async def changes(self) -> int:
        """As `FlowTaskQueue.changes`."""
        return self._hints.count

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowTaskQueue.wait_for_change`."""
        return await self._hints.wait(seen, timeout_seconds)


def _call(task: FlowTask) -> Call | None:
    """The call that does what the task's own event does; None for tasks without one, or whose run is not named."""
    match task:
        case ResumeHook(run_id, hook_id, payload):
            return Call("resume_hook", run_id, {"hook_id": hook_id, "payload": payload})
        case DisposeHook(run_id, hook_id):
            return Call("dispose_hook", run_id, {"hook_id": hook_id})
        case ResumeWait(run_id, wait_id):
            return Call("resume_wait", run_id, {"wait_id": wait_id})
    return None
