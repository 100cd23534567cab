"""A stand-in for what the kernel shows of a run: just the reads a context makes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from perdure.commands import RuntimeCommand
from perdure.context import StepContext, WorkflowContext
from perdure.flow import StepInvocation, WorkflowInvocation
from perdure.kernel import Reads
from perdure.model import WorkflowSpec


class FakeReads:
    """Holds what it is given; everything else is not there."""

    def __init__(self, **parts: Any) -> None:
        self.run_id = "run-1"
        self.input: bytes = parts.get("input", b"null")
        self.cancellation: bytes | None = parts.get("cancellation")
        self._parts = parts

    def _find(self, kind: str, id: str) -> Any:
        found = self._parts.get(kind, {}).get(id)
        return SimpleNamespace(**found) if isinstance(found, dict) else found

    def step(self, step_id: str) -> Any:
        return self._find("steps", step_id)

    def wait(self, wait_id: str) -> Any:
        return self._find("waits", wait_id)

    def hook(self, hook_id: str) -> Any:
        return self._find("hooks", hook_id)

    def progress(self, progress_id: str) -> Any:
        return self._find("progress", progress_id)

    def child(self, reference_id: str) -> Any:
        return self._find("children", reference_id)

    def first_resolved(self, refs: Sequence[tuple[str, str]]) -> tuple[str, str, int] | None:
        found = [entry for entry in self._parts.get("resolutions", []) if entry[:2] in list(refs)]
        return min(found, key=lambda entry: entry[2], default=None)


def context(**parts: Any) -> WorkflowContext:
    """A context over a fake run."""
    return WorkflowContext(cast(Reads, FakeReads(**parts)), list)


def wire(command: RuntimeCommand) -> str:
    """What crosses to the kernel."""
    return command.to_json().decode()


def ask(name: str, version: str = "1", **parts: Any) -> WorkflowInvocation:
    """One ask of a workflow over a fake run."""
    return WorkflowInvocation("run-1", WorkflowSpec.python(name, version), cast(Reads, FakeReads(**parts)), list)


def attempt(step_name: str, input: bytes = b"null", number: int = 1) -> StepInvocation:
    """One attempt of step "s"."""
    return StepInvocation("run-1", "s", step_name, input, number, StepContext("run-1", "s", step_name, number))
