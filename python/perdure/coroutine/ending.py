"""What a pass comes to: the next command, the end of the run, or that it is stuck (R38, R39)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.commands import Cancel, Complete, Fail, RuntimeCommand, ScheduleAll, Timeout
from perdure.coroutine import report
from perdure.coroutine.signals import WorkflowCancelled
from perdure.errors import EndTimedOut, FlowError, StepFailed, WorkflowFailed, WorkflowStuck
from perdure.outcome import message_of, whole
from perdure.payload import encode
from perdure.wire import instant_text

if TYPE_CHECKING:
    from perdure.coroutine.chain import Chain
    from perdure.coroutine.replay import Replay

__all__ = ["command"]


def command(replay: Replay, main: Chain) -> RuntimeCommand:
    """The command of this pass. Raises `WorkflowRaised` for a fault of the code, `WorkflowStuck`."""
    error = replay.error
    if main.done and error is not None and replay.is_fault(error):
        refusal = isinstance(error, FlowError)  # it says by itself what is wrong, such as a value that cannot be stored
        raise error if refusal else replay.raised(error)
    if main.done and not replay.chains:
        facts = replay.facts()
        return ScheduleAll(tuple(facts)) if facts else _end(replay, error)
    if requests := replay.requests():
        return ScheduleAll(tuple(requests))
    if (oldest := replay.oldest_open()) is not None:
        return oldest
    raise WorkflowStuck(replay.run_id, tuple(report.awaits(replay)))


def _end(replay: Replay, error: BaseException | None) -> RuntimeCommand:
    """How the run ends; `error` is what escaped the workflow, no fault of the code."""
    if error is None:
        replay.returned()
    if replay.requested and (error is None or isinstance(error, WorkflowCancelled)):
        return Cancel()
    if error is None:
        return Complete(encode(replay.result))
    if isinstance(error, StepFailed):
        return Fail(error.error)
    if isinstance(error, EndTimedOut):
        deadline: Any = error.deadline
        return Timeout(instant_text("deadline", deadline), error.reason)
    if isinstance(error, (WorkflowFailed, *replay.program.fails_on)):
        return Fail(whole(message_of(error)))
    raise replay.raised(error)
