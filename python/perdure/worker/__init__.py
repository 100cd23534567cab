"""Workers: processes that claim runnable runs and carry them on (spec 08 §8.4, R2, R3, R43-R45)."""

from __future__ import annotations

from perdure.worker.flow_worker import FlowWorker

__all__ = ["FlowWorker"]
