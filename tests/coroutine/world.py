"""One run of an async workflow, driven by hand: kernel, kept coroutine and log, without engine, store or clock.

Every ask is asked of a fresh replay too, so each test also shows that dropping the coroutine changes nothing (R63).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import orjson
from scenarios.kit import story

from perdure.errors import FlowError
from perdure.flow import Flow
from perdure.instant import parse_instant
from perdure.keeping import KeptCoroutine
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel, Run, View
from perdure.model import Envelope, WorkflowSpec

__all__ = ["SECOND", "World"]

SECOND = 1_000_000_000


class World:
    """Run `r`. Each method that appends events asks the workflow then, unless inside `together()`."""

    def __init__(
        self,
        kernel: Kernel,
        flow: Flow,
        workflow: Any,
        input: object = None,
        *,
        log: bytes = b"",
        strict: bool = True,
        ask: bool = True,
    ) -> None:
        self.kernel, self.flow = kernel, flow
        self.spec: WorkflowSpec = flow.spec_of(workflow)
        self.clock = parse_instant("2026-01-01T00:00:00Z")
        self.strict = strict
        self.kept = self._keep()
        self.log = b""
        self.commands: list[dict[str, Any]] = []
        self._waiting = False
        if log:
            self.log = log
            self.run: Run = kernel.project("r", log, DEFAULT_MAX_EVENT_BYTES)
        else:
            self.run = kernel.new("r", DEFAULT_MAX_EVENT_BYTES)
            call = {"op": "start", "spec": orjson.Fragment(self.spec.to_json()), "input": input, "drive": ask}
            self._append(self.run.control(orjson.dumps(call), self.clock).drafts)
        if ask:
            self.ask()

    def _keep(self) -> KeptCoroutine:
        return KeptCoroutine(self.flow, "r", self.kernel.json_equal, self.strict)

    # -- the drive -------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Asks until nothing new is visible, as a drive does."""
        self.start()
        while not self.run.terminal:
            seen = self.run.last_sequence
            self._commit(self.decide())
            if self.run.last_visible <= seen:
                return

    def start(self) -> None:
        """A pending run owes its `run_started`."""
        if self.run.status == "pending":
            self._append(self.run.control(b'{"op":"drive"}', self.clock).drafts)

    def decide(self) -> View:
        """Asks once; the view with what was decided, not committed yet."""
        view = self.run.stage([], self.clock)
        command = self.kept.ask(self.spec, view)
        assert command is not None
        self.commands.append(orjson.loads(command.to_json()))
        return view.stage(view.decide(command.to_json(), self.clock, self.clock).drafts, self.clock)

    def _commit(self, view: View) -> None:
        batch = view.append(bytes(16 * (view.last_sequence - self.run.last_sequence)))
        self.run.accept(batch)
        self.log += batch.lines
        self.kept.accepted()

    def _append(self, drafts: list[bytes]) -> None:
        view = self.run.stage(drafts, self.clock)
        batch = view.append(bytes(16 * len(drafts)))
        self.run.accept(batch)
        self.log += batch.lines

    def drop(self) -> None:
        """The coroutine leaves the cache."""
        self.kept.close()
        self.kept = self._keep()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What happens inside is seen by the workflow in one ask."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False
        self.ask()

    def _happened(self) -> None:
        if not self._waiting:
            self.ask()

    # -- what happens ----------------------------------------------------------------------------------------------

    def done(self, step_id: str, output: object = None) -> None:
        """The step succeeds."""
        self._settle(step_id, {"type": "completed", "output": output})
        self._happened()

    def fail(self, step_id: str, error: str = "runtime error: no", *, final: bool = False, kind: str = "") -> None:
        """The step fails for good: by its policy, or `final` without regard to it."""
        outcome: dict[str, Any] = {"type": "non_retryable" if final else "failed", "error": error}
        if kind:
            outcome["failure"] = {"type": kind, "message": "no", "traceback": ""}
        while self._status(step_id) in ("pending", "running"):
            self._settle(step_id, outcome)
        self._happened()

    def _status(self, step_id: str) -> str:
        step = self.run.step(step_id)
        assert step is not None, f"there is no step {step_id!r} in {self.open()}"
        return step.status

    def _settle(self, step_id: str, outcome: dict[str, Any]) -> None:
        assert self._status(step_id) in ("pending", "running")
        step = self.run.step(step_id)
        assert step is not None
        attempt = step.attempt
        if step.status == "pending":
            attempt += 1
            started = {"type": "step_started", "step_id": step_id, "attempt": attempt}
            self._append([orjson.dumps(started)])
        drafts = self.run.settle(step_id, attempt, orjson.dumps(outcome), self.clock, self.clock, restart=False)
        self._append(drafts)

    def fire(self, wait_id: str) -> None:
        """The wait is over; the clock moves to its time."""
        wait = self.run.wait(wait_id)
        assert wait is not None and wait.status == "waiting", f"no wait {wait_id!r} in {self.open()}"
        self.clock = max(self.clock, wait.resume_at)
        self._append([orjson.dumps({"type": "wait_completed", "wait_id": wait_id})])
        self._happened()

    def receive(self, hook_id: str, payload: object = None) -> None:
        """The hook gets a payload."""
        self._append([orjson.dumps({"type": "hook_received", "hook_id": hook_id, "payload": payload})])
        self._happened()

    def dispose(self, hook_id: str) -> None:
        """The hook is disposed from outside."""
        self._append([orjson.dumps({"type": "hook_disposed", "hook_id": hook_id})])
        self._happened()

    def request(self, reason: str | None = None) -> None:
        """Cancellation is requested."""
        self._append(
            [orjson.dumps({"type": "run_cancellation_requested", "request": {"reason": reason} if reason else {}})]
        )
        self._happened()

    def tick(self, seconds: float = 1) -> None:
        self.clock += int(seconds * SECOND)

    # -- looks -----------------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        return self.run.status

    @property
    def output(self) -> Any:
        raw = self.run.output
        return None if raw is None else orjson.loads(raw)

    @property
    def error(self) -> str | None:
        return self.run.error

    @property
    def story(self) -> list[str]:
        """The events in short, without starts of steps."""
        return [
            line for line in story(Envelope.parse_lines(self.log)) if not line.startswith(("step_started", "run_st"))
        ]

    def opened(self) -> list[str]:
        """What was created, in order, such as `step charge`."""
        return [line.replace("_created", "") for line in self.story if "_created " in line]

    def open(self) -> list[str]:
        """What is open now, in the order of creation."""
        found = []
        for line in self.opened():
            kind, _, subject = line.partition(" ")
            thing: Any = getattr(self.run, kind)(subject)
            if thing is not None and thing.status in ("pending", "running", "waiting", "active"):
                found.append(line)
        return found

    def refuses(self, kind: type[FlowError]) -> Any:
        """The error that the next ask raises."""
        try:
            self.ask()
        except kind as error:
            return error
        raise AssertionError(f"the ask gave {self.commands[-1:]}")

    # -- playing on ------------------------------------------------------------------------------------------------

    def play(self, outcomes: Callable[[str, Any], Any], random: Random | None = None, payload: object = None) -> None:
        """Resolves what is open, in the order of creation or at random, until the run ends. `outcomes(name, input)` gives
        a step's output, or raises its failure."""
        for _ in range(10_000):
            still = self.open()
            if self.run.terminal or not still:
                return
            kind, _, subject = (still[0] if random is None else random.choice(still)).partition(" ")
            if kind == "wait":
                self.fire(subject)
            elif kind == "hook":
                self.receive(subject, payload)
            else:
                self._play_step(subject, outcomes)
        raise AssertionError("the run does not end")

    def _play_step(self, step_id: str, outcomes: Callable[[str, Any], Any]) -> None:
        step = self.run.step(step_id)
        assert step is not None
        try:
            output = outcomes(step.step_name, orjson.loads(step.input))
        except Exception as error:  # noqa: BLE001 - a step may raise anything
            self.fail(step_id, f"runtime error: {error}")
        else:
            self.done(step_id, output)

    def prefixes(self) -> Iterator[World]:
        """A world for every prefix of the log, asked once."""
        lines = self.log.splitlines(keepends=True)
        for count in range(1, len(lines) + 1):
            yield World(self.kernel, self.flow, self.spec, log=b"".join(lines[:count]), strict=False, ask=False)
