"""`Run` and `View`: what the kernel seam answers about one run (R4, R58)."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from perdure._pure import json
from perdure._pure.append import Batch, Staged, make_batch
from perdure._pure.control import Control, control
from perdure._pure.decide import Decision, decide
from perdure._pure.draft import encode, make
from perdure._pure.event import Event, decode_event
from perdure._pure.project import apply, fold
from perdure._pure.settle import closing, settle, starts
from perdure._pure.snapshot import snapshot
from perdure._pure.state import KINDS, Hook, State, Step, Wait, refuse
from perdure.errors import Serialization
from perdure.instant import MAX_NS, MIN_NS

if TYPE_CHECKING:
    # Types only, as in `append`.
    from perdure import kernel as seam

__all__ = ["Run", "View"]


class _Reads(ABC):
    """The reads and judgements that a run and its views share.

    Reads that walk tables hold the run's lock, so that another thread's `extend` or `accept` cannot change them midway.
    """

    _lock: threading.RLock
    _max_event_bytes: int

    @abstractmethod
    def _state(self) -> State:
        """The state that is read; raises `stale_view` for a view whose run moved on."""

    @property
    def run_id(self) -> str:
        return self._state().run_id

    @property
    def last_sequence(self) -> int:
        return self._state().last_sequence

    @property
    def last_visible(self) -> int:
        return self._state().last_visible

    @property
    def status(self) -> str:
        return self._state().derived_status

    @property
    def terminal(self) -> bool:
        return self._state().terminal

    @property
    def spec(self) -> bytes:
        spec = self._state().spec
        return spec.to_json().encode() if spec else b""

    @property
    def input(self) -> bytes:
        return self._state().input.encode()

    @property
    def build_id(self) -> str | None:
        spec = self._state().spec
        return spec.build_id if spec else None

    @property
    def workflow(self) -> tuple[str, str]:
        spec = self._state().spec
        return (spec.name, spec.version) if spec else ("", "")

    @property
    def output(self) -> bytes | None:
        return _bytes(self._state().output)

    @property
    def error(self) -> str | None:
        return self._state().error

    @property
    def outcome(self) -> bytes | None:
        return _bytes(self._state().outcome)

    @property
    def cancellation(self) -> bytes | None:
        request = self._state().request
        return request.text().encode() if request else None

    @property
    def updated_at(self) -> int:
        return self._state().updated_at

    def step(self, step_id: str) -> Step | None:
        return self._state().steps.get(step_id)

    def wait(self, wait_id: str) -> Wait | None:
        return self._state().waits.get(wait_id)

    def hook(self, hook_id: str) -> Hook | None:
        return self._state().hooks.get(hook_id)

    def progress(self, progress_id: str) -> bytes | None:
        fact = self._state().progress.get(progress_id)
        return fact.value.to_json().encode() if fact else None

    def child(self, reference_id: str) -> bytes | None:
        fact = self._state().children.get(reference_id)
        return fact.value.to_json().encode() if fact else None

    def active_hooks(self) -> list[seam.Hook]:
        with self._lock:
            state = self._state()
            return [] if state.terminal else sorted(state.hooks.opened(), key=lambda hook: hook.hook_id)

    def suspensions(self) -> list[tuple[str, str, int | None]]:
        with self._lock:
            state = self._state()
            if state.terminal:
                return []
            waits = sorted((wait.wait_id, wait.resume_at) for wait in state.waits.opened())
            hooks = sorted(hook.hook_id for hook in state.hooks.opened())
            retries = sorted((step.step_id, due) for step, due in state.delayed())
        return [
            *(("wait", key, due) for key, due in waits),
            *(("hook", key, None) for key in hooks),
            *(("retry", key, due) for key, due in retries),
        ]

    def first_resolved(self, refs: Sequence[tuple[str, str]]) -> tuple[str, str, int] | None:
        state = self._state()
        found = [(state.resolved(kind, key), KINDS.index(kind), key) for kind, key in refs if state.resolved(kind, key)]
        if not found:
            return None
        sequence, kind, key = min(found)
        return (KINDS[kind], key, sequence)

    def timeline(self, after: int, limit: int) -> list[tuple[int, str, str, int]]:
        with self._lock:
            return self._state().timeline(after, limit)

    @property
    def last_created(self) -> int:
        with self._lock:
            return self._state().last_created

    def replayed_step(
        self, after: int, step_id: str, step_name: str, input: bytes, retry: bytes
    ) -> tuple[int, int, bytes] | None:
        with self._lock:
            state = self._state()
            events = state.timeline(after, 2)
            shapes = [(event, key) for _, event, key, _ in events]
            step = state.steps.get(step_id)
            if step is None or shapes != [("step_created", step_id), ("step_completed", step_id)]:
                return None
            if (step.step_name, step.input, step.retry) != (step_name, input, retry) or step.output is None:
                return None
            return events[1][0], events[1][3], step.output

    def snapshot(self) -> bytes:
        with self._lock:
            return snapshot(self._state())

    def next_wakeup(self, clock: int, horizon: int) -> int | None:
        _check_instants(clock, horizon)
        with self._lock:
            state = self._state()
            if state.terminal:
                return None
            moments = [wait.resume_at for wait in state.waits.opened() if wait.resume_at > clock]
            moments += [due for _, due in state.delayed() if due > horizon]
        return min(moments, default=None)

    def due_waits(self, now: int) -> list[bytes]:
        _check_instants(now)
        with self._lock:
            due = self._state().due_waits(now)
        return encode(make("wait_completed", wait_id=json.quote(wait.wait_id)) for wait in due)

    def due_wakeups(self, now: int) -> list[tuple[str, str, int]]:
        _check_instants(now)
        with self._lock:
            state = self._state()
            waits = sorted((wait.wait_id, wait.resume_at) for wait in state.due_waits(now))
            retries = sorted((step.step_id, due) for step, due in state.delayed() if due <= now)
        return [*(("wait", key, due) for key, due in waits), *(("retry", key, due) for key, due in retries)]

    def decide(self, command: bytes, clock: int, horizon: int) -> Decision:
        _check_instants(clock, horizon)
        with self._lock:
            return decide(self._state(), command, max(clock, horizon), self._max_event_bytes)

    def starts(self, horizon: int, live: Collection[tuple[str, int]], limit: int) -> list[tuple[str, int, bool]]:
        _check_instants(horizon)
        with self._lock:
            return starts(self._state(), horizon, live, limit)

    def closing(self) -> list[bytes]:
        with self._lock:
            return closing(self._state())

    def settle(
        self, step_id: str, attempt: int, outcome: bytes, clock: int, horizon: int, restart: bool
    ) -> list[bytes]:
        _check_instants(clock, horizon)
        anchor = max(clock, horizon)
        return settle(self._state(), self._max_event_bytes, step_id, attempt, outcome, anchor, restart=restart)

    def control(self, call: bytes, now: int) -> Control:
        _check_instants(now)
        with self._lock:
            return control(self._state(), call, now, self._max_event_bytes)


class Run(_Reads):
    """The projection of one run; never holds uncommitted events."""

    def __init__(self, run_id: str, max_event_bytes: int) -> None:
        self._lock = threading.RLock()
        self._base = State(run_id)
        self._max_event_bytes = max_event_bytes

    @classmethod
    def of_history(cls, run_id: str, history: bytes, max_event_bytes: int) -> Run:
        """The run that these lines make; nobody else sees it yet, so they are folded without a layer."""
        run = cls(run_id, max_event_bytes)
        fold(run._base, history)
        if run._base.last_sequence == 0:
            raise Serialization("malformed", 1, "the history has lines and no event")
        return run

    def _state(self) -> State:
        return self._base

    def stage(self, drafts: Sequence[bytes], clock: int) -> View:
        return View(self, self._base, [], drafts, clock)

    def extend(self, tail: bytes) -> None:
        with self._lock:
            layer = self._base.layer()
            fold(layer, tail)
            self._base.adopt(layer)

    def accept(self, batch: seam.Batch) -> None:
        with self._lock:
            if not isinstance(batch, Batch) or batch.expected_sequence != self._base.last_sequence:
                raise refuse(self._base, "stale_view")
            layers: list[State] = []
            at: State | None = batch.layer
            while at is not None and at is not self._base:
                layers.append(at)
                at = at.parent
            if at is None:
                raise refuse(self._base, "stale_view")
            for layer in reversed(layers):
                self._base.adopt(layer)

    def __repr__(self) -> str:
        return f"<Run {self.run_id} at {self.last_sequence}>"


class View(_Reads):
    """Uncommitted drafts over a run, in a layer that copies nothing; read-only."""

    def __init__(self, run: Run, below: State, staged: Sequence[Staged], drafts: Sequence[bytes], clock: int) -> None:
        _check_instants(clock)
        self._run = run
        self._lock = run._lock
        self._max_event_bytes = run._max_event_bytes
        events = [_decode_draft(draft) for draft in drafts]
        with self._lock:
            self._base_sequence = run._base.last_sequence
            self._layer = below.layer()
            self._staged = list(staged)
            for event in events:
                sequence = self._layer.last_sequence + 1
                apply(self._layer, event, sequence, clock)
                self._staged.append(Staged(sequence, clock, event.text))

    def _state(self) -> State:
        if self._run._base.last_sequence != self._base_sequence:
            raise refuse(self._run._base, "stale_view")
        return self._layer

    def stage(self, drafts: Sequence[bytes], clock: int) -> View:
        with self._lock:
            return View(self._run, self._state(), self._staged, drafts, clock)

    def append(self, entropy: bytes) -> Batch:
        with self._lock:
            return make_batch(self._run._base, self._state(), self._staged, entropy)

    def __repr__(self) -> str:
        return f"<View of run {self._layer.run_id} at {self._layer.last_sequence}>"


def _decode_draft(draft: bytes) -> Event:
    text = json.read_part(draft)
    return decode_event(text, (0, len(text)))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _check_instants(*moments: int) -> None:
    for ns in moments:
        if not MIN_NS <= ns <= MAX_NS:
            raise ValueError(f"{ns} ns lies outside the calendar (years 0001 to 9999)")
