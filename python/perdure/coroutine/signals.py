"""What ends a chain from outside, and what a workflow raises to say how its run ends (R39)."""

from __future__ import annotations

from typing import Final

from perdure.errors import EndTimedOut, HookDisposed, StepFailed, WorkflowFailed

__all__ = ["OURS", "BranchCancelled", "PassEnded", "WorkflowCancelled", "is_bug"]


class WorkflowCancelled(BaseException):
    """Cancellation of the run was requested; raised once in every open chain, and by awaiting work that the request
    cancelled. Not an `Exception`, so that `except Exception` does not swallow it. `reason` is the request's.

    It does not wait for steps that run: what they still do comes after, or beside, the clean-up (R21)."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return "cancellation of the run was requested" + (f": {self.reason}" if self.reason else "")


class BranchCancelled(BaseException):
    """This chain is not needed any longer: its group failed, another member won the race, a time limit ran out, or the
    workflow returned. Not an `Exception`, so that `except Exception` does not swallow it."""

    def __init__(self, reason: str = "this branch is not needed any longer") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class PassEnded(BaseException):
    """The pass is over: nothing the workflow still does counts."""


OURS: Final = (StepFailed, HookDisposed, WorkflowFailed, EndTimedOut, WorkflowCancelled, BranchCancelled, TimeoutError)
"""What a workflow meets when all is as it should be. `TimeoutError` is what our time limits raise (R65)."""


def is_bug(error: BaseException) -> bool:
    """Whether this is neither one of ours nor a cancellation: a fault of the code (R36, R39)."""
    return not isinstance(error, (*OURS, GeneratorExit, PassEnded))
