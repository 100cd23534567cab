"""What a replay of changed code over a recorded history must say (R37), found without replaying.

The changed code runs straight, as a new run of its own that is told each recorded outcome when the history comes to it. At a
recorded creation it must by then have asked for that kind and id with that definition; nothing else is drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from coroutine.natural.mutants import Mutant
from coroutine.world import World
from perdure import DuplicateId, Envelope, FlowError, ForeignAwaitError
from perdure.commands import CreateHook, Member, ScheduleStep, WaitFor, WaitUntil
from perdure.coroutine.replay import Replay
from perdure.errors import WorkflowRaised, WorkflowStuck
from perdure.kernel import Kernel, View

__all__ = ["FINE", "Undecidable", "verdicts"]

FINE = "fine"
"""No drift, and no other error than `WorkflowStuck`: whether the straight run is stuck depends on what it closed itself."""

_CREATED = {"step_created": "step", "wait_created": "wait", "hook_created": "hook"}
_ENDS = ("run_completed", "run_failed", "run_cancelled", "run_timed_out", "run_retry_exhausted")
_UNTOLD = ("run_created", "run_progress_recorded", "child_operation_linked", *_ENDS)


class Undecidable(Exception):
    """The changed code does what the kernel refuses of a straight run, such as one token for two hooks."""


class _Once:
    """The coroutine of the straight run, kept for good: it never sees a creation that it did not make."""

    def __init__(self, mutant: Mutant, kernel: Kernel, tokens: dict[str, str]) -> None:
        self._mutant, self._kernel, self._tokens = mutant, kernel, tokens
        self.replay: Replay | None = None
        self.asked: dict[tuple[str, str], Any] = {}

    def ask(self, spec: Any, view: View) -> Any:
        if self.replay is None:
            self.replay = self._mutant.workflow.open("r", self._kernel.json_equal, self._tokens)
        try:
            return self.replay.ask(view)
        finally:
            for member in self.replay.requests():
                self._note(member)

    def _note(self, member: Member) -> None:
        match member:
            case ScheduleStep():
                self.asked.setdefault(("step", member.step_id), _step(member.step_name, member.input, member.retry))
            case WaitFor():
                self.asked.setdefault(("wait", member.wait_id), None)
            case WaitUntil():
                self.asked.setdefault(("wait", member.wait_id), member.resume_at)
            case CreateHook():
                self.asked.setdefault(("hook", member.hook_id), _hook(member.token, member.metadata))
            case _:
                pass

    def accepted(self) -> None:
        pass

    def close(self) -> None:
        if self.replay is not None:
            self.replay.close()
            self.replay = None


def _step(name: str, input: Any, retry: Any) -> Any:
    return name, _plain(input), _plain(retry)


def _hook(token: str, metadata: Any) -> Any:
    return token, _plain(metadata)


def _plain(value: Any) -> bytes:
    return orjson.dumps(orjson.loads(value) if isinstance(value, bytes) else value, option=orjson.OPT_SORT_KEYS)


class _Straight(World):
    def decide(self) -> View:
        view = self.run.stage([], self.clock)
        command = self.kept.ask(self.spec, view)
        assert command is not None
        try:
            return view.stage(view.decide(command.to_json(), self.clock, self.clock).drafts, self.clock)
        except FlowError as error:
            raise Undecidable(str(error)) from error


def verdicts(kernel: Kernel, mutant: Mutant, log: bytes) -> list[str]:
    """For each prefix, from the one that ends with `run_created`: FINE, `drift at <sequence>`, or the error's name."""
    history = Envelope.parse_lines(log)
    tokens = {e.event["hook_id"]: e.event["token"] for e in history if e.type == "hook_created"}
    world: World = _Straight(kernel, mutant.flow, mutant.workflow, log=log.splitlines(keepends=True)[0], ask=False)
    world.kept.close()
    once = _Once(mutant, kernel, tokens)
    world.kept = once  # type: ignore[assignment]  # in place of the cache of an engine
    try:
        return list(_walk(world, once, history))
    finally:
        once.close()


def _walk(world: World, once: _Once, history: Sequence[Envelope]) -> Iterator[str]:
    state, ended = FINE, False
    matched: set[tuple[str, str]] = set()
    lost: set[tuple[str, str]] = set()
    for envelope in history:
        event, world.clock = envelope.event, envelope.timestamp.ns
        if kind := _CREATED.get(envelope.type):
            key = (kind, event[f"{kind}_id"])
            if key in lost or key not in once.asked or not _equal(once.asked[key], kind, event):
                state = f"drift at {envelope.sequence}"
                yield from [state] * (len(history) - envelope.sequence + 1)
                return
            matched.add(key)
        elif envelope.type not in _UNTOLD:
            if envelope.type == "run_cancellation_requested":
                lost |= once.asked.keys() - matched  # cancelled before it was opened (R39)
            if not ended and not world.run.terminal and _happens(world, envelope):
                state = _asked(world)
                if state != FINE and not _code_ended(once):
                    yield from [state] * (len(history) - envelope.sequence + 1)
                    return
                ended = state != FINE
        yield state


def _equal(asked: Any, kind: str, event: Any) -> bool:
    if kind == "step":
        return bool(asked == _step(event["step_name"], event["input"], event["retry"]))
    if kind == "hook":
        return bool(asked == _hook(event["token"], event["metadata"]))
    return asked is None or bool(asked == event["resume_at"])


def _happens(world: World, envelope: Envelope) -> bool:
    """Tells the straight run the recorded event, unless it brought that about itself; whether the code is to be asked."""
    event = envelope.event
    for kind in ("wait", "hook"):
        if envelope.type.startswith(f"{kind}_"):
            thing: Any = getattr(world.run, kind)(event[f"{kind}_id"])
            if thing.status not in ("waiting", "active"):
                return False
    world._append([orjson.dumps(event)])
    return envelope.type not in ("step_started", "step_retrying")


def _asked(world: World) -> str:
    try:
        world.ask()
    except WorkflowStuck:
        return FINE
    except FlowError as error:
        return type(error).__name__
    return FINE


def _code_ended(once: _Once) -> bool:
    """Whether the code ran to its end, so that what is recorded later is drift, rather than an error having ended the pass,
    as a duplicate id does, or clean-up entered with a fault."""
    replay = once.replay
    if replay is None or replay.main is None or not replay.main.done:
        return False
    return not isinstance(replay.error, DuplicateId | ForeignAwaitError | WorkflowRaised)
