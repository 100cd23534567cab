"""What a log may say of an error: ids, types and places, never a value of the user's (R60)."""

from __future__ import annotations

import re
from typing import Final

from perdure.errors import (
    CallFromOwnStep,
    DuplicateId,
    FlowError,
    ForeignAwaitError,
    HistoryLimitExceeded,
    HookConflict,
    HookTokenConflict,
    InvalidTransition,
    InvalidWorkflow,
    NonDeterministic,
    PayloadTooLarge,
    ReplayLimitExceeded,
    RunNotFound,
    RuntimeBuildUnavailable,
    Serialization,
    StepNotRegistered,
    StoreError,
    WorkflowNotRegistered,
    WorkflowRaised,
    WorkflowStuck,
)

__all__ = ["told"]

_WHOLE: Final = (
    *(CallFromOwnStep, DuplicateId, ForeignAwaitError, HistoryLimitExceeded, HookConflict, HookTokenConflict),
    *(
        InvalidTransition,
        InvalidWorkflow,
        PayloadTooLarge,
        ReplayLimitExceeded,
        RunNotFound,
        RuntimeBuildUnavailable,
        StepNotRegistered,
    ),
    *(StoreError, WorkflowNotRegistered, WorkflowStuck),
)
"""Errors whose text has no value of the user's."""
_PATH: Final = re.compile(r"""\$(?:\.[A-Za-z_][A-Za-z0-9_]*|\[\d+\]|\["(?:[^"\\]|\\.)*"\]|\[\.\.\.\])+""")
_UNKNOWN: Final = re.compile(r"unknown field `[^`]*`")


def told(error: BaseException) -> str:
    """The error's code, and as much of its text as a log may hold; of an error that is not ours, the name of its class."""
    if not isinstance(error, FlowError):
        return type(error).__name__
    match error:
        case NonDeterministic(part="place"):
            text = f"{error.kind} {error.id!r} of event {error.sequence} was not asked for by then"
        case NonDeterministic():
            known = f"{error.kind} {error.id!r} of event {error.sequence}"
            text = f"{known} has another {error.part} now, at {error.path}"
        case WorkflowRaised():
            text = error.error.partition(":")[0] + (f" at {error.where}" if error.where else "")
        case Serialization(rule="payload"):  # these name types, and places in the payload, whose keys may be the user's
            text = _UNKNOWN.sub("unknown field", _PATH.sub("$", str(error)))
        case _ if isinstance(error, _WHOLE):
            text = str(error)
        case _:
            return error.code
    return f"{error.code}: {text}"
