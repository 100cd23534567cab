"""Task queues and their worker (spec 08 §8.3, 8.4)."""

from __future__ import annotations

from perdure.queues.queue import DeadTask, DurableTaskQueue, FlowTaskQueue, MemoryTaskQueue, TaskLease
from perdure.queues.worker import TaskWorker

__all__ = ["DeadTask", "DurableTaskQueue", "FlowTaskQueue", "MemoryTaskQueue", "TaskLease", "TaskWorker"]
