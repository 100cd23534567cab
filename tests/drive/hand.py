"""A shell made of a test: it answers the effects of one drive by hand, so every order of things can be forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import orjson
from scenarios.kit import Clock, story

from perdure.commands import RuntimeCommand
from perdure.context import WorkflowContext
from perdure.drive import Drive
from perdure.effects import (
    Accepted,
    Asked,
    Commit,
    CommitMode,
    DriveOptions,
    Effect,
    Failed,
    Load,
    Look,
    NextOutcomes,
    Opening,
    Outcome,
    Release,
    Standing,
    StartSteps,
    Taken,
)
from perdure.errors import EventConflict, FlowError
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel, Reads, Run
from perdure.model import Envelope, WorkflowSpec

__all__ = ["Ask", "Hand", "batch", "done", "failed", "final", "pending"]

E = TypeVar("E", Commit, Load, NextOutcomes, Release, StartSteps)
Ask = Callable[[WorkflowContext], RuntimeCommand]

_SPEC = WorkflowSpec.python("flow", "1").to_json()
_START = b'{"op":"start","spec":%b,"input":null,"drive":true}' % _SPEC
_ENTROPY = bytes(16)


class _Program:
    """The workflow is a function, every step is known and none has a time limit."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.asks = 0

    def ask(self, reads: Reads, history: Callable[[], bytes]) -> Asked:
        command = self._ask(WorkflowContext(reads, lambda: Envelope.parse_lines(history())))
        self.asks += 1
        return Asked(command.to_json(), command.timeouts)

    def accepted(self) -> None:
        """Nothing is kept."""

    def check_payload(self, reads: Reads, hook_id: str, payload: bytes) -> None:
        """Every payload will do."""

    @property
    def kept_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is kept."""

    def timeout_ms(self, step_name: str, step_id: str) -> int | None:
        return None


class Hand:
    """One drive of run `r` over a log in memory. Each method demands the effect it answers and gives what it held."""

    def __init__(
        self,
        kernel: Kernel,
        ask: Ask,
        *,
        log: bytes = b"",
        clock: Clock | None = None,
        mode: CommitMode = "staged",
        limit: int = 1024,
        concurrency: int = 64,
        due: int | None = None,
    ) -> None:
        self.kernel, self.clock, self.log = kernel, clock or Clock(), log
        self.program = _Program(ask)
        self.discarded: list[Outcome] = []
        run = self._project() if log else kernel.new("r", DEFAULT_MAX_EVENT_BYTES)
        opening = Opening(self.clock(), None if log else _START, due)
        options = DriveOptions(limit, concurrency, mode)
        self.drive = Drive(run, self.program, options, opening, self.clock, self.discarded.append)
        self._steps = self.drive.steps()
        self.effect: Effect | None = None
        self.bare_commits = 0
        self._send(None)

    # -- answers ---------------------------------------------------------------------------------------------------

    def commit(self) -> list[str]:
        """Accepts the commit and tells its events."""
        batch = self._due(Commit).view.append(_ENTROPY * self._staged())
        self.log += batch.lines
        self._send(Accepted(batch))
        return story(Envelope.parse_lines(batch.lines))

    def refuse(self, error: FlowError) -> list[str]:
        """Refuses the commit and tells what it would have been."""
        told = self.peek()
        self._due(Commit)
        self._send(error)
        return told

    def conflict(self) -> list[str]:
        """Refuses the commit because the log moved on, and answers the load that follows with the tail."""
        sequence = self._project().last_sequence if self.log else 0
        told = self.refuse(EventConflict("r", self.run.last_sequence, sequence))
        self.load()
        return told

    def load(self) -> None:
        """Answers a load from the log."""
        after = self._due(Load).after
        self._send(
            b"".join(line for line in self.log.splitlines(keepends=True) if Envelope.parse(line).sequence > after)
        )

    def started(self) -> list[tuple[str, int]]:
        """Launches nothing, and tells what was to be launched."""
        attempts = self._due(StartSteps).attempts
        self._send(None)
        return [(attempt.step_id, attempt.attempt) for attempt in attempts]

    def released(self) -> tuple[list[str], bool]:
        """The steps let go, and whether because the run ended."""
        effect = self._due(Release)
        self._send(None)
        return [step_id for step_id, _ in effect.attempts], effect.ended

    def take(self, *outcomes: Outcome, horizon: int | None = None, foreign: bool = False) -> int | None:
        """Gives these outcomes; tells until when the drive would have waited."""
        until = self._due(NextOutcomes).until
        self._send(Taken(outcomes, horizon, foreign))
        return until

    # -- looks -----------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        return self.drive.run

    @property
    def ended(self) -> bool:
        """Whether the drive returned: the run is suspended or over."""
        return self.effect is None

    def peek(self) -> list[str]:
        """The events of the commit that is asked for."""
        view = self._due(Commit).view
        return story(Envelope.parse_lines(view.append(_ENTROPY * self._staged()).lines))

    def foreign(self, *events: dict[str, Any]) -> None:
        """Another process appends to the log."""
        view = self._project().stage([orjson.dumps(event) for event in events], self.clock())
        self.log += view.append(_ENTROPY * len(events)).lines

    # -- inside ----------------------------------------------------------------------------------------------------

    def _project(self) -> Run:
        return self.kernel.project("r", self.log, DEFAULT_MAX_EVENT_BYTES)

    def _staged(self) -> int:
        return _stages(self._due(Commit), self.run)

    def _due(self, kind: type[E]) -> E:
        assert isinstance(self.effect, kind), f"the drive asks for {self.effect}, not for {kind.__name__}"
        return self.effect

    def _send(self, answer: object) -> None:
        """Sends an answer; what is about the lease alone is answered here: nobody else has one."""
        with suppress(StopIteration):
            effect, self.effect = self._steps.send(answer), None
            while isinstance(effect, Look | Failed) or (isinstance(effect, Commit) and not _stages(effect, self.run)):
                if isinstance(effect, Failed):
                    effect = self._steps.send(None)
                elif isinstance(effect, Look):
                    effect = self._steps.send(Standing(held_elsewhere=False, parked=-1))
                else:
                    self.bare_commits += 1
                    effect = self._steps.send(Accepted(effect.view.append(b"")))
            self.effect = effect
            return
        self.effect = None


def _stages(commit: Commit, run: Run) -> int:
    return commit.view.last_sequence - run.last_sequence


def done(step_id: str, output: object = None, attempt: int = 1) -> Outcome:
    """The attempt succeeded."""
    return _outcome(step_id, attempt, {"type": "completed", "output": output})


def failed(step_id: str, error: str = "runtime error: no", attempt: int = 1, after: timedelta | None = None) -> Outcome:
    """The attempt failed; the policy says what next."""
    more = {} if after is None else {"retry_after_ms": after // timedelta(milliseconds=1)}
    return _outcome(step_id, attempt, {"type": "failed", "error": error, **more})


def final(step_id: str, error: str = "non-retryable step error: no", attempt: int = 1) -> Outcome:
    """The attempt failed for good."""
    return _outcome(step_id, attempt, {"type": "non_retryable", "error": error})


def _outcome(step_id: str, attempt: int, outcome: dict[str, object]) -> Outcome:
    return Outcome(step_id, attempt, orjson.dumps(outcome))


def pending(kernel: Kernel, input: bytes = b"null") -> bytes:
    """The log of a run whose only event is `run_created`."""
    created = b'{"type":"run_created","spec":%b,"input":%b}' % (_SPEC, input)
    return kernel.new("r", DEFAULT_MAX_EVENT_BYTES).stage([created], Clock().ns).append(_ENTROPY).lines


def batch(ids: Sequence[str], ask: Ask | None = None) -> Ask:
    """A workflow with one batch of steps that then completes, or goes on with `ask`."""

    def answer(ctx: WorkflowContext) -> RuntimeCommand:
        if all(ctx.step_completed(step_id) for step_id in ids):
            return ask(ctx) if ask is not None else ctx.complete()
        return ctx.schedule_steps([ctx.step(step_id, "work") for step_id in ids])

    return answer
