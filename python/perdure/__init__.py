"""Durable workflows for Python: a run's history lives in a store, and any process with the code can carry it on.

Begin with `Flow`, `FlowEngine` (asyncio) or `BlockingFlowEngine`, and a store such as `"sqlite:///app.db"`.
"""

from __future__ import annotations

from perdure.blocking import BlockingFlowEngine
from perdure.builds import RuntimeBuildCompatibility
from perdure.commands import RawCommand, RuntimeCommand
from perdure.context import WorkflowContext
from perdure.engine import FlowEngine
from perdure.envelope import Envelope
from perdure.errors import (
    CallFromLoopThread,
    EngineClosed,
    EventConflict,
    FlowError,
    HistoryLimitExceeded,
    HookConflict,
    HookTokenConflict,
    HookTokenNotFound,
    InvalidRunId,
    InvalidRuntimeBuildId,
    InvalidTransition,
    InvalidWorkflow,
    LeaseHeld,
    LeaseLost,
    NonDeterministic,
    NonRetryable,
    OutcomeUnknown,
    PayloadTooLarge,
    ReplayLimitExceeded,
    RetryAfter,
    RunConflict,
    RunNotFound,
    RunTerminal,
    RuntimeBuildUnavailable,
    Serialization,
    StepCancelled,
    StepError,
    StepFailed,
    StepNotRegistered,
    StoreError,
    StoreRefusal,
    StoreUnavailable,
    UnsupportedEventSchemaVersion,
    WorkflowNotRegistered,
    WorkflowRaised,
)
from perdure.flow import Flow, FlowRuntime, StepInvocation, WorkflowInvocation
from perdure.instant import Instant
from perdure.model import HookCallbackRoute, HookMetadata
from perdure.policy import RetryPolicy
from perdure.snapshot import WorkflowRunSnapshot
from perdure.spec import WorkflowSpec
from perdure.step import StepContext, StepPlan
from perdure.stores import FlowEventStore, MemoryEventStore, RunFilter, RunSummary, SqliteEventStore, Wakeup, open_store
from perdure.values import CancellationRequest, ChildOperationReference, WorkflowProgress

__all__ = [
    "BlockingFlowEngine",
    "CallFromLoopThread",
    "CancellationRequest",
    "ChildOperationReference",
    "EngineClosed",
    "Envelope",
    "EventConflict",
    "Flow",
    "FlowEngine",
    "FlowError",
    "FlowEventStore",
    "FlowRuntime",
    "HistoryLimitExceeded",
    "HookCallbackRoute",
    "HookConflict",
    "HookMetadata",
    "HookTokenConflict",
    "HookTokenNotFound",
    "Instant",
    "InvalidRunId",
    "InvalidRuntimeBuildId",
    "InvalidTransition",
    "InvalidWorkflow",
    "LeaseHeld",
    "LeaseLost",
    "MemoryEventStore",
    "NonDeterministic",
    "NonRetryable",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "RawCommand",
    "ReplayLimitExceeded",
    "RetryAfter",
    "RetryPolicy",
    "RunConflict",
    "RunFilter",
    "RunNotFound",
    "RunSummary",
    "RunTerminal",
    "RuntimeBuildCompatibility",
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
    "UnsupportedEventSchemaVersion",
    "Wakeup",
    "WorkflowContext",
    "WorkflowInvocation",
    "WorkflowNotRegistered",
    "WorkflowProgress",
    "WorkflowRaised",
    "WorkflowRunSnapshot",
    "WorkflowSpec",
    "open_store",
]
