"""Durable workflows for Python: a run's history lives in a store, and any process with the code can carry it on.

Begin with `Flow`, `FlowEngine` (asyncio) or `BlockingFlowEngine`, and a store such as `"sqlite:///app.db"`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.blocking import (
        BlockingFlowEngine as BlockingFlowEngine,
    )
    from perdure.builds import (
        RuntimeBuildCompatibility as RuntimeBuildCompatibility,
    )
    from perdure.builds import (
        RuntimeBuildId as RuntimeBuildId,
    )
    from perdure.codec import (
        PayloadCodec as PayloadCodec,
    )
    from perdure.codec import (
        PayloadPlace as PayloadPlace,
    )
    from perdure.codec_encrypted import (
        EncryptedPayloads as EncryptedPayloads,
    )
    from perdure.commands import (
        RawCommand as RawCommand,
    )
    from perdure.commands import (
        RuntimeCommand as RuntimeCommand,
    )
    from perdure.context import (
        WorkflowContext as WorkflowContext,
    )
    from perdure.coroutine.context import (
        AsyncContext as AsyncContext,
    )
    from perdure.coroutine.handles import (
        Handle as Handle,
    )
    from perdure.coroutine.handles import (
        HookHandle as HookHandle,
    )
    from perdure.coroutine.handles import (
        WaitHandle as WaitHandle,
    )
    from perdure.coroutine.signals import (
        BranchCancelled as BranchCancelled,
    )
    from perdure.coroutine.signals import (
        WorkflowCancelled as WorkflowCancelled,
    )
    from perdure.coroutine.workflow import (
        AsyncWorkflow as AsyncWorkflow,
    )
    from perdure.dispatcher import (
        FlowTaskDispatcher as FlowTaskDispatcher,
    )
    from perdure.engine import (
        FlowEngine as FlowEngine,
    )
    from perdure.envelope import (
        Envelope as Envelope,
    )
    from perdure.errors import (
        CallFromLoopThread as CallFromLoopThread,
    )
    from perdure.errors import (
        CallFromOwnStep as CallFromOwnStep,
    )
    from perdure.errors import (
        DriveLost as DriveLost,
    )
    from perdure.errors import (
        DuplicateId as DuplicateId,
    )
    from perdure.errors import (
        EndTimedOut as EndTimedOut,
    )
    from perdure.errors import (
        EngineClosed as EngineClosed,
    )
    from perdure.errors import (
        EngineElsewhere as EngineElsewhere,
    )
    from perdure.errors import (
        EventConflict as EventConflict,
    )
    from perdure.errors import (
        FlowError as FlowError,
    )
    from perdure.errors import (
        ForeignAwaitError as ForeignAwaitError,
    )
    from perdure.errors import (
        HistoryLimitExceeded as HistoryLimitExceeded,
    )
    from perdure.errors import (
        HookConflict as HookConflict,
    )
    from perdure.errors import (
        HookDisposed as HookDisposed,
    )
    from perdure.errors import (
        HookTokenConflict as HookTokenConflict,
    )
    from perdure.errors import (
        HookTokenNotFound as HookTokenNotFound,
    )
    from perdure.errors import (
        InvalidRunId as InvalidRunId,
    )
    from perdure.errors import (
        InvalidRuntimeBuildId as InvalidRuntimeBuildId,
    )
    from perdure.errors import (
        InvalidTransition as InvalidTransition,
    )
    from perdure.errors import (
        InvalidWorkerConfiguration as InvalidWorkerConfiguration,
    )
    from perdure.errors import (
        InvalidWorkflow as InvalidWorkflow,
    )
    from perdure.errors import (
        LeaseHeld as LeaseHeld,
    )
    from perdure.errors import (
        LeaseLost as LeaseLost,
    )
    from perdure.errors import (
        NonDeterministic as NonDeterministic,
    )
    from perdure.errors import (
        NonRetryable as NonRetryable,
    )
    from perdure.errors import (
        OutcomeUnknown as OutcomeUnknown,
    )
    from perdure.errors import (
        PayloadCodecFailed as PayloadCodecFailed,
    )
    from perdure.errors import (
        PayloadTooLarge as PayloadTooLarge,
    )
    from perdure.errors import (
        QueueBackpressure as QueueBackpressure,
    )
    from perdure.errors import (
        ReplayLimitExceeded as ReplayLimitExceeded,
    )
    from perdure.errors import (
        RetryAfter as RetryAfter,
    )
    from perdure.errors import (
        RunConflict as RunConflict,
    )
    from perdure.errors import (
        RunNotFound as RunNotFound,
    )
    from perdure.errors import (
        RunTerminal as RunTerminal,
    )
    from perdure.errors import (
        RuntimeBuildRouteNotFound as RuntimeBuildRouteNotFound,
    )
    from perdure.errors import (
        RuntimeBuildUnavailable as RuntimeBuildUnavailable,
    )
    from perdure.errors import (
        Serialization as Serialization,
    )
    from perdure.errors import (
        StepCancelled as StepCancelled,
    )
    from perdure.errors import (
        StepError as StepError,
    )
    from perdure.errors import (
        StepFailed as StepFailed,
    )
    from perdure.errors import (
        StepNotRegistered as StepNotRegistered,
    )
    from perdure.errors import (
        StoreError as StoreError,
    )
    from perdure.errors import (
        StoreRefusal as StoreRefusal,
    )
    from perdure.errors import (
        StoreUnavailable as StoreUnavailable,
    )
    from perdure.errors import (
        TaskLeaseLost as TaskLeaseLost,
    )
    from perdure.errors import (
        TaskSetAside as TaskSetAside,
    )
    from perdure.errors import (
        UnsupportedEventSchemaVersion as UnsupportedEventSchemaVersion,
    )
    from perdure.errors import (
        WorkflowFailed as WorkflowFailed,
    )
    from perdure.errors import (
        WorkflowNotRegistered as WorkflowNotRegistered,
    )
    from perdure.errors import (
        WorkflowRaised as WorkflowRaised,
    )
    from perdure.errors import (
        WorkflowStuck as WorkflowStuck,
    )
    from perdure.exchange import (
        ImportReport as ImportReport,
    )
    from perdure.exchange import (
        import_histories as import_histories,
    )
    from perdure.exchange import (
        stored_histories as stored_histories,
    )
    from perdure.flow import (
        Flow as Flow,
    )
    from perdure.flow import (
        FlowRuntime as FlowRuntime,
    )
    from perdure.flow import (
        StepInvocation as StepInvocation,
    )
    from perdure.flow import (
        WorkflowInvocation as WorkflowInvocation,
    )
    from perdure.guard import (
        GuardWarning as GuardWarning,
    )
    from perdure.guard_calls import (
        GuardViolation as GuardViolation,
    )
    from perdure.instant import (
        Instant as Instant,
    )
    from perdure.model import (
        HookCallbackRoute as HookCallbackRoute,
    )
    from perdure.model import (
        HookMetadata as HookMetadata,
    )
    from perdure.policy import (
        RetryPolicy as RetryPolicy,
    )
    from perdure.queues import (
        DurableTaskQueue as DurableTaskQueue,
    )
    from perdure.queues import (
        FlowTaskQueue as FlowTaskQueue,
    )
    from perdure.queues import (
        MemoryTaskQueue as MemoryTaskQueue,
    )
    from perdure.queues import (
        TaskLease as TaskLease,
    )
    from perdure.queues import (
        TaskWorker as TaskWorker,
    )
    from perdure.replaying import (
        Replayed as Replayed,
    )
    from perdure.replaying import (
        replay_history as replay_history,
    )
    from perdure.retention import (
        HistoryHold as HistoryHold,
    )
    from perdure.retention import (
        PrunedRuns as PrunedRuns,
    )
    from perdure.retention import (
        PruneProgress as PruneProgress,
    )
    from perdure.retention import (
        PruneReport as PruneReport,
    )
    from perdure.retention import (
        RunSelection as RunSelection,
    )
    from perdure.retention import (
        Tombstone as Tombstone,
    )
    from perdure.routing import (
        RuntimeBuildTaskRouter as RuntimeBuildTaskRouter,
    )
    from perdure.scheduler import (
        DueWork as DueWork,
    )
    from perdure.scheduler import (
        FlowScheduler as FlowScheduler,
    )
    from perdure.snapshot import (
        WorkflowRunSnapshot as WorkflowRunSnapshot,
    )
    from perdure.spec import (
        WorkflowSpec as WorkflowSpec,
    )
    from perdure.step import (
        StepContext as StepContext,
    )
    from perdure.step import (
        StepPlan as StepPlan,
    )
    from perdure.stores import (
        FlowEventStore as FlowEventStore,
    )
    from perdure.stores import (
        JsonlEventStore as JsonlEventStore,
    )
    from perdure.stores import (
        MemoryEventStore as MemoryEventStore,
    )
    from perdure.stores import (
        PostgresEventStore as PostgresEventStore,
    )
    from perdure.stores import (
        RunFilter as RunFilter,
    )
    from perdure.stores import (
        RunSummary as RunSummary,
    )
    from perdure.stores import (
        SqliteEventStore as SqliteEventStore,
    )
    from perdure.stores import (
        Wakeup as Wakeup,
    )
    from perdure.stores import (
        open_store as open_store,
    )
    from perdure.task_kinds import (
        DisposeHook as DisposeHook,
    )
    from perdure.task_kinds import (
        DisposeHookByToken as DisposeHookByToken,
    )
    from perdure.task_kinds import (
        DriveRun as DriveRun,
    )
    from perdure.task_kinds import (
        FlowTask as FlowTask,
    )
    from perdure.task_kinds import (
        ResumeDueRetries as ResumeDueRetries,
    )
    from perdure.task_kinds import (
        ResumeDueWaits as ResumeDueWaits,
    )
    from perdure.task_kinds import (
        ResumeHook as ResumeHook,
    )
    from perdure.task_kinds import (
        ResumeHookByToken as ResumeHookByToken,
    )
    from perdure.task_kinds import (
        ResumeScheduledRun as ResumeScheduledRun,
    )
    from perdure.task_kinds import (
        ResumeWait as ResumeWait,
    )
    from perdure.tasks import (
        TaskOutcome as TaskOutcome,
    )
    from perdure.values import (
        CancellationRequest as CancellationRequest,
    )
    from perdure.values import (
        ChildOperationReference as ChildOperationReference,
    )
    from perdure.values import (
        WorkflowProgress as WorkflowProgress,
    )
    from perdure.worker import (
        FlowWorker as FlowWorker,
    )

__all__ = [
    "AsyncContext",
    "AsyncWorkflow",
    "BlockingFlowEngine",
    "BranchCancelled",
    "CallFromLoopThread",
    "CallFromOwnStep",
    "CancellationRequest",
    "ChildOperationReference",
    "DisposeHook",
    "DisposeHookByToken",
    "DriveLost",
    "DriveRun",
    "DueWork",
    "DuplicateId",
    "DurableTaskQueue",
    "EncryptedPayloads",
    "EndTimedOut",
    "EngineClosed",
    "EngineElsewhere",
    "Envelope",
    "EventConflict",
    "Flow",
    "FlowEngine",
    "FlowError",
    "FlowEventStore",
    "FlowRuntime",
    "FlowScheduler",
    "FlowTask",
    "FlowTaskDispatcher",
    "FlowTaskQueue",
    "FlowWorker",
    "ForeignAwaitError",
    "GuardViolation",
    "GuardWarning",
    "Handle",
    "HistoryHold",
    "HistoryLimitExceeded",
    "HookCallbackRoute",
    "HookConflict",
    "HookDisposed",
    "HookHandle",
    "HookMetadata",
    "HookTokenConflict",
    "HookTokenNotFound",
    "ImportReport",
    "Instant",
    "InvalidRunId",
    "InvalidRuntimeBuildId",
    "InvalidTransition",
    "InvalidWorkerConfiguration",
    "InvalidWorkflow",
    "JsonlEventStore",
    "LeaseHeld",
    "LeaseLost",
    "MemoryEventStore",
    "MemoryTaskQueue",
    "NonDeterministic",
    "NonRetryable",
    "OutcomeUnknown",
    "PayloadCodec",
    "PayloadCodecFailed",
    "PayloadPlace",
    "PayloadTooLarge",
    "PruneProgress",
    "PruneReport",
    "PrunedRuns",
    "QueueBackpressure",
    "RawCommand",
    "ReplayLimitExceeded",
    "Replayed",
    "ResumeDueRetries",
    "ResumeDueWaits",
    "ResumeHook",
    "ResumeHookByToken",
    "ResumeScheduledRun",
    "ResumeWait",
    "RetryAfter",
    "RetryPolicy",
    "RunConflict",
    "RunFilter",
    "RunNotFound",
    "RunSelection",
    "RunSummary",
    "RunTerminal",
    "RuntimeBuildCompatibility",
    "RuntimeBuildId",
    "RuntimeBuildRouteNotFound",
    "RuntimeBuildTaskRouter",
    "RuntimeBuildUnavailable",
    "RuntimeCommand",
    "Serialization",
    "SqliteEventStore",
    "StepCancelled",
    "StepContext",
    "StepError",
    "StepFailed",
    "StepInvocation",
    "StepNotRegistered",
    "StepPlan",
    "StoreError",
    "StoreRefusal",
    "StoreUnavailable",
    "TaskLease",
    "TaskLeaseLost",
    "TaskOutcome",
    "TaskSetAside",
    "TaskWorker",
    "Tombstone",
    "UnsupportedEventSchemaVersion",
    "WaitHandle",
    "Wakeup",
    "WorkflowCancelled",
    "WorkflowContext",
    "WorkflowFailed",
    "WorkflowInvocation",
    "WorkflowNotRegistered",
    "WorkflowProgress",
    "WorkflowRaised",
    "WorkflowRunSnapshot",
    "WorkflowSpec",
    "WorkflowStuck",
    "import_histories",
    "open_store",
    "replay_history",
    "stored_histories",
]

_HOMES: Final[dict[str, str]] = {
    **dict.fromkeys(("BlockingFlowEngine",), "perdure.blocking"),
    **dict.fromkeys(("RuntimeBuildCompatibility", "RuntimeBuildId"), "perdure.builds"),
    **dict.fromkeys(("PayloadCodec", "PayloadPlace"), "perdure.codec"),
    **dict.fromkeys(("EncryptedPayloads",), "perdure.codec_encrypted"),
    **dict.fromkeys(("RawCommand", "RuntimeCommand"), "perdure.commands"),
    **dict.fromkeys(("WorkflowContext",), "perdure.context"),
    **dict.fromkeys(("AsyncContext",), "perdure.coroutine.context"),
    **dict.fromkeys(("Handle", "HookHandle", "WaitHandle"), "perdure.coroutine.handles"),
    **dict.fromkeys(("BranchCancelled", "WorkflowCancelled"), "perdure.coroutine.signals"),
    **dict.fromkeys(("AsyncWorkflow",), "perdure.coroutine.workflow"),
    **dict.fromkeys(("FlowEngine",), "perdure.engine"),
    **dict.fromkeys(("Envelope",), "perdure.envelope"),
    **dict.fromkeys(("ImportReport", "import_histories", "stored_histories"), "perdure.exchange"),
    **dict.fromkeys(("Flow", "FlowRuntime", "StepInvocation", "WorkflowInvocation"), "perdure.flow"),
    **dict.fromkeys(("GuardWarning",), "perdure.guard"),
    **dict.fromkeys(("GuardViolation",), "perdure.guard_calls"),
    **dict.fromkeys(("Instant",), "perdure.instant"),
    **dict.fromkeys(("HookCallbackRoute", "HookMetadata"), "perdure.model"),
    **dict.fromkeys(("RetryPolicy",), "perdure.policy"),
    **dict.fromkeys(
        ("HistoryHold", "PruneProgress", "PruneReport", "PrunedRuns", "RunSelection", "Tombstone"), "perdure.retention"
    ),
    **dict.fromkeys(("Replayed", "replay_history"), "perdure.replaying"),
    **dict.fromkeys(("WorkflowRunSnapshot",), "perdure.snapshot"),
    **dict.fromkeys(("WorkflowSpec",), "perdure.spec"),
    **dict.fromkeys(("StepContext", "StepPlan"), "perdure.step"),
    **dict.fromkeys(
        (
            *("FlowEventStore", "JsonlEventStore", "MemoryEventStore", "PostgresEventStore", "RunFilter", "RunSummary"),
            *("SqliteEventStore", "Wakeup", "open_store"),
        ),
        "perdure.stores",
    ),
    **dict.fromkeys(("CancellationRequest", "ChildOperationReference", "WorkflowProgress"), "perdure.values"),
    **dict.fromkeys(("FlowWorker",), "perdure.worker"),
    **dict.fromkeys(("DueWork", "FlowScheduler"), "perdure.scheduler"),
    **dict.fromkeys(("RuntimeBuildTaskRouter",), "perdure.routing"),
    **dict.fromkeys(
        ("DurableTaskQueue", "FlowTaskQueue", "MemoryTaskQueue", "TaskLease", "TaskWorker"), "perdure.queues"
    ),
    **dict.fromkeys(("FlowTaskDispatcher",), "perdure.dispatcher"),
    **dict.fromkeys(
        (
            "DisposeHook",
            "DisposeHookByToken",
            "DriveRun",
            "FlowTask",
            "ResumeDueRetries",
            "ResumeDueWaits",
            "ResumeHook",
            "ResumeHookByToken",
            "ResumeScheduledRun",
            "ResumeWait",
        ),
        "perdure.task_kinds",
    ),
    **dict.fromkeys(("TaskOutcome",), "perdure.tasks"),
}
"""Where each name lives; what is not listed is an error. Names are loaded when first used, so that `import perdure` is quick."""


_OF_EXTRAS = frozenset({"PostgresEventStore"})
"""Names that need an extra: imported by name only, or `from perdure import *` would need all extras."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("perdure")  # read when asked for: the import stays light
    if name not in __all__ and name not in _OF_EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, "perdure.errors")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
