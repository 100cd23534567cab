"""Keeping a run's coroutine between asks, or opening it anew (R4, R63)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from perdure.commands import RuntimeCommand
from perdure.errors import NonDeterministic
from perdure.flow import FlowRuntime
from perdure.kernel import Reads
from perdure.spec import WorkflowSpec

if TYPE_CHECKING:
    from perdure.coroutine.replay import Replay

__all__ = ["KeptCoroutine"]

_COROUTINE_BYTES: Final = 12_000
_CALL_BYTES: Final = 200
"""As measured by benches/bench_coroutine.py."""
_NO_LIMITS: Final[Mapping[str, int]] = {}


class KeptCoroutine:
    """The coroutine of one run, if its workflow is an async one and the runtime lets it be kept.

    A pass that was not accepted may have been fed events that never were committed, so its coroutine is dropped before
    the next ask; dropping it changes nothing.
    """

    def __init__(
        self, runtime: FlowRuntime, run_id: str, same: Callable[[bytes, bytes], bool], strict: bool = False
    ) -> None:
        self._open: Callable[..., Replay | None] | None = getattr(runtime, "open_workflow", None)
        self._run_id, self._same, self._strict = run_id, same, strict
        self._replay: Replay | None = None
        self._pending = False
        self._tokens: dict[str, str] = {}

    @property
    def limits(self) -> Mapping[str, int]:
        """Time limits by `options` of the steps that are open, ms."""
        return _NO_LIMITS if self._replay is None else self._replay.limits

    @property
    def size(self) -> int:
        """About how many bytes the coroutine takes, beside what the workflow itself holds."""
        return 0 if self._replay is None else _COROUTINE_BYTES + _CALL_BYTES * self._replay.calls

    def ask(self, spec: WorkflowSpec, reads: Reads) -> RuntimeCommand | None:
        """The next command; None if this is no coroutine to keep. Raises what ends the pass."""
        if self._open is None:
            return None
        if self._pending:
            self.close()
        if self._replay is None:
            self._replay = self._new(spec)
        replay = self._replay
        if replay is None:
            return None
        self._pending = True
        try:
            command = replay.ask(reads)
            if self._strict:
                self._hold_to(command, spec, reads)
        except BaseException:
            self.close()  # now, and not when the collector finds it
            raise
        return command

    def hook_check(self, spec: WorkflowSpec, reads: Reads, hook_id: str) -> Callable[[bytes], None] | None:
        """What judges a payload for this open hook; None where nobody can. A coroutine that is kept is only looked at, and another
        one is thrown away: fed outside a drive, it would hold decisions that are never committed. Raises what ends the pass."""
        if self._replay is not None and not self._pending and (known := self._replay.open_hook(hook_id)) is not None:
            return known
        replay = None if self._open is None else self._open(spec, self._run_id, self._same, {})
        if replay is None:
            return None
        try:
            replay.ask(reads)
            return replay.open_hook(hook_id)
        finally:
            replay.close()

    def _new(self, spec: WorkflowSpec) -> Replay | None:
        return None if self._open is None else self._open(spec, self._run_id, self._same, self._tokens)

    def _hold_to(self, command: RuntimeCommand, spec: WorkflowSpec, reads: Reads) -> None:
        """Raises `NonDeterministic` if a replay from the start asks for something else."""
        fresh: Any = self._new(spec)
        try:
            again = fresh.ask(reads).to_json()
        finally:
            fresh.close()
        if again != command.to_json():
            kept, other = command.to_json().decode(), again.decode()
            raise NonDeterministic(self._run_id, "workflow", spec.name, "command", reads.last_sequence, kept, other)

    def accepted(self) -> None:
        """The pass counts: the coroutine may be kept, and what it held back is said."""
        self._pending = False
        if self._replay is not None:
            self._replay.confirm()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()  # an engine that was forgotten rather than closed

    def close(self) -> None:
        """Ends the coroutine (R63)."""
        replay, self._replay, self._pending = self._replay, None, False
        if replay is not None:
            replay.close()
