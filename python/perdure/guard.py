"""The guard: says of a workflow, when it is registered, what a replay would see differently; and, if asked, refuses it.

`Flow(guard="warn")`, the default, lints each workflow and warns with file and line. `"raise"` also turns the calls
themselves into `GuardViolation` while a workflow runs (see `guard_calls.py`). `"off"` does neither.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from perdure.guard_lint import findings

__all__ = ["Guard", "GuardMode", "GuardWarning"]

GuardMode = Literal["warn", "raise", "off"]


class GuardWarning(UserWarning):
    """Workflow code that a replay would not repeat alike. `# perdure: allow` on the line says that it is meant."""


class Guard:
    """The guard of one flow."""

    def __init__(self, mode: GuardMode) -> None:
        """Raises `ValueError` for another mode."""
        if mode not in ("warn", "raise", "off"):
            raise ValueError(f"guard must be 'warn', 'raise' or 'off', not {mode!r}")
        self._mode = mode
        if mode == "raise":
            from perdure import guard_calls

            guard_calls.install()
            self._watching = guard_calls.watching

    def register(self, function: Any) -> None:
        """Lints a workflow; each finding is a `GuardWarning` at its own file and line."""
        if self._mode == "off":
            return
        for finding in findings(function):
            text = f"[{finding.code}] {finding.text}"
            warnings.warn_explicit(text, GuardWarning, finding.file, finding.line, module=_module_of(function))

    def watching(self) -> AbstractContextManager[None]:
        """For the time of one pass."""
        return self._watching() if self._mode == "raise" else nullcontext()


def _module_of(function: Any) -> str:
    module = getattr(function, "__module__", None)
    return module if isinstance(module, str) and module in sys.modules else "<unknown>"
