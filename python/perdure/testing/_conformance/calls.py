"""Making the calls of a case, in order, and noting what each gave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from perdure.engine import FlowEngine
from perdure.errors import FlowError, RunNotFound
from perdure.instant import format_instant
from perdure.model import WorkflowSpec
from perdure.stores.base import Wakeup
from perdure.testing._conformance.values import dumps, loads, plain
from perdure.testing._conformance.world import BESIDE, Crashed, Race, World
from perdure.testing.virtual_time import Phase

__all__ = ["Caller", "Result"]

_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave: a value as JSON, or an error; and when it returned."""

    at: int
    value: Any = None
    error: BaseException | None = None


class Caller:
    """Makes the calls of a case in its world."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.race = self._race  # type: ignore[method-assign]  # a world cannot make calls by itself
        self._slots: list[Result | None] = []
        self._driving = False

    @property
    def during(self) -> list[Result]:
        """Results of the calls of other clients, in the order they were made."""
        return [result for result in self._slots if result is not None]

    async def all(self) -> tuple[list[Result], list[int]]:
        """Makes all calls; gives their results, and the last sequence of the run each meant, after it."""
        results, sequences = [], []
        for call in self._world.row["calls"]:
            results.append(await self._one(call))
            sequences.append(await self._last_sequence(call.get("run_id", self._world.run_id)))
        return results, sequences

    async def _last_sequence(self, run_id: str) -> int:
        try:
            history = await self._world.store.history(run_id)
        except RunNotFound:
            return 0
        return int(loads(history.decode().rstrip("\n").rpartition("\n")[2])["sequence"])

    async def _one(self, call: dict[str, Any]) -> Result:
        world = self._world
        self._driving = drives(call)
        task = asyncio.create_task(self._result(call))
        either: list[asyncio.Future[Any]] = [task, world.crashed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if world.crashed.done():
            await world.end_engine()
            return Result(world.loop.clock_ns(), error=Crashed("the engine ended at a commit"))
        result = await task
        if world.tasks:
            await asyncio.wait(world.tasks)
            for done in world.tasks:
                done.result()
            world.tasks.clear()
        self._settle_joiners(result)
        return result

    def _settle_joiners(self, shared: Result) -> None:
        """A refusal of the shared drive reaches every joiner; it is no result of the joiner's own."""
        for index, result in enumerate(self._slots):
            if result is None or result.error is None or shared.error is None:
                continue
            same = type(result.error) is type(shared.error) and result.error.args == shared.error.args
            if same and result.at == shared.at:
                self._slots[index] = Result(result.at, "joined")

    # -- calls of other clients ------------------------------------------------------------------------------------

    def _begin(self, call: dict[str, Any]) -> None:
        self._slots.append(None)
        self._world.spawn(self._beside(len(self._slots) - 1, call))

    async def _beside(self, slot: int, call: dict[str, Any]) -> None:
        """A call of another client of this engine, which joins the drive that is waiting."""
        BESIDE.set(True)
        result = await self._result(call)
        self._slots[slot] = Result(result.at, "joined") if result.error is None and drives(call) else result
        if call["op"] == "append_raw":
            self._world.loop.call_at_ns(result.at, Phase.STEPS, self._notice, call)

    def _notice(self, call: dict[str, Any]) -> None:
        """An engine is told of what another process appended, as its store would."""
        self._world.spawn(self._join(call.get("run_id", self._world.run_id)))

    async def _join(self, run_id: str) -> None:
        try:
            await self._world.engine.drive(run_id)
        except FlowError:
            return  # the drive that was joined tells it to its own caller

    async def _race(self, race: Race) -> None:
        """Calls that another process gets in before a commit. One that would drive leaves that to the drive under way."""
        for call in race.calls:
            joins = self._driving and drives(call) and _OPS[call["op"]].can_append_only
            result = await self._result({**call, "drive": False} if joins else call, by_other_process=True)
            self._slots.append(Result(result.at, "joined") if joins and result.error is None else result)

    # -- one call --------------------------------------------------------------------------------------------------

    async def _result(self, call: dict[str, Any], *, by_other_process: bool = False) -> Result:
        world = self._world
        try:
            if call["op"] in _ARRANGED:
                value = await self._arrange(call)
            else:
                value = await self._perform(world.other_client if by_other_process else world.engine, call)
        except FlowError as error:
            return Result(world.loop.clock_ns(), error=error)
        return Result(world.loop.clock_ns(), value)

    async def _arrange(self, call: dict[str, Any]) -> int | None:
        """What is arranged for later, or done by hand."""
        world, now = self._world, self._world.loop.clock_ns()
        match call["op"]:
            case "append_raw":
                return await world.append(call.get("run_id", world.run_id), call["event"])
            case "program":
                world.program.rules = call["program"]
            case "crash_from":
                world.crash_from = call["sequence"]
            case "builds":
                await world.set_builds(call["builds"])
            case "advance":
                await world.loop.sleep_until_ns(now + call["ms"] * _MS)
            case "during":
                world.loop.call_at_ns(now + call["after_ms"] * _MS, Phase.OTHERS, self._begin, call["call"])
            case "race_at":
                calls = call["call"] if isinstance(call["call"], list) else [call["call"]]
                world.races.append(Race(call["sequence"], tuple(calls)))
        return None

    async def _perform(self, engine: FlowEngine, call: dict[str, Any]) -> Any:
        world, op = self._world, call["op"]
        run_id = call.get("run_id", world.run_id)
        if op == "start":
            spec = WorkflowSpec.from_json(dumps(call.get("spec", world.row["spec"])).encode("utf-8", "surrogatepass"))
            given = plain(call.get("input", world.row["input"]))
            return await engine.start(spec, given, run_id=run_id, drive=call.get("drive", True))
        known = _OPS[op]
        arguments = {key: plain(value) for key, value in call.items() if key not in ("op", "run_id")}
        if known.of_a_run:
            arguments["run_id"] = run_id
        return known.shape(await getattr(engine, op)(**arguments))


def _nothing(answer: Any) -> None:
    return None


def _status(answer: Any) -> str:
    return str(answer.status)


def _pairs(answer: Any) -> list[list[str]]:
    return [list(pair) for pair in answer]


def _wakeups(answer: list[Wakeup]) -> list[dict[str, Any]]:
    return [_wakeup(wakeup) for wakeup in answer]


def _wakeup(wakeup: Wakeup) -> dict[str, Any]:
    build = {} if wakeup.runtime_build_id is None else {"runtime_build_id": wakeup.runtime_build_id}
    when = format_instant(wakeup.scheduled_at)
    return {
        "kind": wakeup.kind,
        "run_id": wakeup.run_id,
        "subject_id": wakeup.subject_id,
        "scheduled_at": when,
        **build,
    }


def _json(answer: Any) -> Any:
    return loads(dumps(answer))


@dataclass(frozen=True, slots=True)
class _Op:
    """A call: the engine's method of the same name, and how its answer is written in a result."""

    shape: Callable[[Any], Any] = _nothing
    of_a_run: bool = True
    drives: bool = False
    can_append_only: bool = False  # takes `drive=False`


_OPS: Final[dict[str, _Op]] = {
    "start": _Op(drives=True, can_append_only=True),
    "drive": _Op(_status, drives=True),
    "resume_wait": _Op(drives=True, can_append_only=True),
    "resume_hook": _Op(drives=True, can_append_only=True),
    "dispose_hook": _Op(drives=True, can_append_only=True),
    "resume_hook_by_token": _Op(list, of_a_run=False, drives=True, can_append_only=True),
    "dispose_hook_by_token": _Op(list, of_a_run=False, drives=True, can_append_only=True),
    "request_cancellation": _Op(_status, drives=True, can_append_only=True),
    "force_cancel": _Op(),
    "cancel": _Op(),
    "terminate_for_timeout": _Op(),
    "terminate_for_host_shutdown": _Op(),
    "record_progress": _Op(),
    "link_child_operation": _Op(),
    "resume_scheduled_run": _Op(_wakeups, drives=True),
    "resume_due_waits": _Op(_pairs, of_a_run=False, drives=True),
    "resume_due_retries": _Op(_pairs, of_a_run=False, drives=True),
    "list_due_waits": _Op(_pairs, of_a_run=False),
    "list_due_retries": _Op(_pairs, of_a_run=False),
    "list_due_wakeups": _Op(_wakeups, of_a_run=False),
    "next_wakeup": _Op(_json, of_a_run=False),
    "list_open_suspensions": _Op(_json, of_a_run=False),
    "list_active_hooks": _Op(_json, of_a_run=False),
    "list_run_ids": _Op(list, of_a_run=False),
    "run_summary": _Op(asdict, of_a_run=False),
}
_ARRANGED: Final = frozenset("append_raw program crash_from builds advance during race_at".split())


def drives(call: dict[str, Any]) -> bool:
    """Whether the call goes on to drive, where its row says so."""
    known = _OPS.get(call["op"])
    return known is not None and known.drives and call.get("drive", True) is not False
