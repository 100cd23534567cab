"""The live attempts of one run: launches steps the way they were declared and collects how they ended."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, cast

from perdure.codec import Coding, PayloadPlace
from perdure.effects import Attempt, Outcome
from perdure.errors import RetryAfter
from perdure.flow import FlowRuntime, StepInvocation
from perdure.outcome import (
    completed_outcome,
    failure_outcome,
    suggested_ms,
    timeout_outcome,
    timeout_text,
    where_raised,
)
from perdure.payload import encode
from perdure.step import StepContext, StepPlan
from perdure.threads import StepThreads

__all__ = ["Attempts"]

_log = logging.getLogger("perdure")
STEP_OF: Final[ContextVar[str | None]] = ContextVar("perdure_step_of", default=None)
"""The run whose step this thread or task is running: a call that would wait for that run is refused."""
_MAX_SUGGESTION_MS: Final = 2**64 - 1


@dataclass(slots=True, eq=False)
class _Live:
    """One attempt under way. `over` once its result no longer counts; what comes later is dropped."""

    attempt: Attempt
    context: StepContext
    mode: str
    over: bool = False
    ended: bool = False
    task: asyncio.Task[object] | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class Attempts:
    """Runs attempts and keeps their outcomes, in the order they came, until they are taken. Lives on one event loop."""

    runtime: FlowRuntime
    run_id: str
    threads: StepThreads
    record_tracebacks: bool
    grace: timedelta
    lingering: set[asyncio.Task[object]]
    on_outcome: Callable[[], None]
    coding: Coding | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    fatal: BaseException | None = None
    _live: dict[tuple[str, int], _Live] = field(default_factory=dict)

    def launch(self, attempts: tuple[Attempt, ...]) -> None:
        for attempt in attempts:
            self._launch(attempt)

    def release(self, keys: tuple[tuple[str, int], ...], *, ended: bool) -> None:
        """Sets the cancelled token of these attempts, drops what they will bring, and ends them: at once when the run
        has ended (R20), else after the grace period (R21)."""
        loop = asyncio.get_running_loop()
        for key in keys:
            live = self._live.pop(key, None)
            if live is None:
                continue
            self._retire(live)
            if live.task is not None:
                self.lingering.add(live.task)
                live.task.add_done_callback(self.lingering.discard)
            if ended or not self.grace:
                self._stop(live)
            else:
                loop.call_later(self.grace.total_seconds(), self._stop, live)

    async def abort(self) -> None:
        """Ends everything that still runs: the drive was cancelled or failed. The steps stay `running` in history. Async
        attempts are waited for, at most the grace period; threads cannot be (R54)."""
        tasks = [live.task for live in self._live.values() if live.task is not None]
        self.release(tuple(self._live), ended=True)
        self.outcomes.clear()
        if tasks:
            await asyncio.wait(tasks, timeout=self.grace.total_seconds())

    # -- one attempt -----------------------------------------------------------------------------------------------

    def _launch(self, attempt: Attempt) -> None:
        plan = plan_of(self.runtime, attempt.step_name)
        context = StepContext(self.run_id, attempt.step_id, attempt.step_name, attempt.attempt)
        live = _Live(attempt, context, plan.mode)
        self._live[attempt.step_id, attempt.attempt] = live
        invocation = StepInvocation(
            self.run_id, attempt.step_id, attempt.step_name, attempt.input, attempt.attempt, context
        )
        if plan.mode == "inline":
            self._finish(live, self._result_of(invocation))
        elif plan.mode == "async":
            live.task = asyncio.create_task(self._run_async(live, invocation), name=f"{self.run_id}/{attempt.step_id}")
        else:
            self._run_thread(live, invocation)

    def _run_thread(self, live: _Live, invocation: StepInvocation) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                if live.attempt.timeout_ms is not None:
                    loop.call_soon_threadsafe(self._arm, live)
                result = self._result_of(invocation)
                loop.call_soon_threadsafe(self._finish, live, result)
            except RuntimeError:  # the loop is closed: nobody waits for this result any more
                _log.debug("the result of step %s came after its engine was closed", invocation.step_id)

        self.threads.submit(work)

    async def _run_async(self, live: _Live, invocation: StepInvocation) -> None:
        result: Outcome | BaseException
        STEP_OF.set(self.run_id)
        self._arm(live)
        try:
            value = self.runtime.run_step(self._plain(invocation))
            if inspect.isawaitable(value):
                value = await value
            result = self._completed(value, invocation)
        except asyncio.CancelledError as error:
            if live.over:  # ours: the attempt was let go
                raise
            result = self._failure(error, invocation)
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its outcome
            result = self._failure(error, invocation)
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and SystemExit are handed to the drive
            result = error
        self._finish(live, result)

    def _result_of(self, invocation: StepInvocation) -> Outcome | BaseException:
        outer = STEP_OF.set(self.run_id)
        try:
            return self._completed(self.runtime.run_step(self._plain(invocation)), invocation)
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its outcome
            return self._failure(error, invocation)
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and SystemExit are handed to the drive
            return error
        finally:
            STEP_OF.reset(outer)

    def _plain(self, invocation: StepInvocation) -> StepInvocation:
        """What the step is called with; an input that cannot be decoded is the step's final failure (R42)."""
        if self.coding is None:
            return invocation
        place = PayloadPlace(self.run_id, "step_input", invocation.step_id)
        return replace(invocation, input=self.coding.decode(invocation.input, place))

    def _completed(self, value: object, invocation: StepInvocation) -> Outcome:
        """Raises `Serialization` for what cannot be stored, a final failure of the attempt (R15)."""
        output = encode(value)
        if self.coding is not None:
            output = self.coding.encode(output, PayloadPlace(self.run_id, "step_output", invocation.step_id))
        return Outcome(invocation.step_id, invocation.attempt, completed_outcome(output))

    def _failure(self, error: BaseException, invocation: StepInvocation) -> Outcome:
        if isinstance(error, RetryAfter) and not 0 < (suggested_ms(error.delay) or 0) <= _MAX_SUGGESTION_MS:
            _log.warning(
                "run %s step %s attempt %d: the delay of its RetryAfter is out of range and ignored",
                *(invocation.run_id, invocation.step_id, invocation.attempt),
            )
        try:
            where = where_raised(error)
            told = f"failed: {type(error).__qualname__}" + (f" at {where}" if where else "")
            outcome = failure_outcome(error, self.record_tracebacks)
        except Exception:  # noqa: BLE001 - of the error's own class; the attempt has failed all the same
            told, outcome = "failed", failure_outcome(RuntimeError("an error that cannot be told"), False)
        return Outcome(invocation.step_id, invocation.attempt, outcome, told)

    def _arm(self, live: _Live) -> None:
        """The time limit counts from the function's start (R54)."""
        limit_ms = live.attempt.timeout_ms
        if limit_ms is not None and not live.over:
            live.timer = asyncio.get_running_loop().call_later(limit_ms / 1000, self._time_out, live, limit_ms)

    def _finish(self, live: _Live, result: Outcome | BaseException) -> None:
        live.ended = True
        if live.over:
            return
        self._live.pop((live.attempt.step_id, live.attempt.attempt), None)
        live.over = True
        if live.timer is not None:
            live.timer.cancel()
        if isinstance(result, BaseException):
            self.fatal = self.fatal or result
        else:
            self.outcomes.append(result)
        self.on_outcome()

    def _time_out(self, live: _Live, timeout_ms: int) -> None:
        if live.over:
            return
        outcome, told = timeout_outcome(timeout_ms), timeout_text(timeout_ms)
        self._finish(live, Outcome(live.attempt.step_id, live.attempt.attempt, outcome, told))
        live.ended = False  # its outcome is known, its function goes on
        live.context.cancelled.set()
        self._stop(live)

    def _retire(self, live: _Live) -> None:
        live.over = True
        live.context.cancelled.set()
        if live.timer is not None:
            live.timer.cancel()

    def _stop(self, live: _Live) -> None:
        if live.task is not None:
            live.task.cancel()
        elif live.mode == "thread" and not live.ended:
            self.threads.abandon()


def plan_of(runtime: FlowRuntime, step_name: str) -> StepPlan:
    """How this runtime wants a step run. A host's own runtime says it by `plan_step`, or by an async `run_step`."""
    plan = getattr(runtime, "plan_step", None)
    if plan is not None:
        return cast(StepPlan, plan(step_name))
    return StepPlan(mode="async" if inspect.iscoroutinefunction(runtime.run_step) else "thread")
