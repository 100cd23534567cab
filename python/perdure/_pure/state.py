"""What a run is: its steps, waits, hooks and facts, and layers of changes over them that copy nothing (spec 02, R4).

A `State` without a parent holds the committed run. A layer is a `State` whose parent is another: it holds only what
changed, answers everything else from below, and `adopt` folds it down. Records are immutable, so a layer replaces them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from perdure._pure.event import Child, Progress, Spec
from perdure._pure.json import quote
from perdure._pure.retry import Policy
from perdure.errors import InvalidTransition
from perdure.instant import format_instant

__all__ = ["KINDS", "Cause", "Fact", "Hook", "Mark", "Request", "State", "Step", "Table", "Wait", "refuse"]

KINDS: Final = ("step", "wait", "hook")
"""The kinds of work, in the order that breaks ties between resolutions (R28)."""


class Step(NamedTuple):
    """One step; `resolved` is the sequence of its resolution, 0 while there is none."""

    step_id: str
    step_name: str
    status: str
    input_text: str
    policy: Policy
    created_sequence: int
    attempt: int = 0
    output_text: str | None = None
    error: str | None = None
    retry_after: int | None = None
    failure_text: str | None = None
    resolved: int = 0

    @property
    def key(self) -> str:
        return self.step_id

    @property
    def input(self) -> bytes:
        return self.input_text.encode()

    @property
    def retry(self) -> bytes:
        return self.policy.to_json().encode()

    @property
    def output(self) -> bytes | None:
        return None if self.output_text is None else self.output_text.encode()

    @property
    def failure(self) -> bytes | None:
        return None if self.failure_text is None else self.failure_text.encode()

    def __repr__(self) -> str:
        return f"Step(step_id={self.step_id!r}, status={self.status!r}, attempt={self.attempt})"

    @property
    def is_open(self) -> bool:
        return self.status in ("pending", "running")

    @property
    def retry_due(self) -> int | None:
        """When a delayed retry is due, in ns; None for a step that waits for no retry."""
        return self.retry_after if self.status == "pending" else None

    def text(self) -> str:
        return (
            f'{{"step_id":{quote(self.step_id)},"step_name":{quote(self.step_name)},"status":"{self.status}",'
            f'"input":{self.input_text},"retry":{self.policy.to_json()},"output":{self.output_text or "null"},'
            f'"error":{_or_null(self.error)},"attempt":{self.attempt},"retry_after":{_moment(self.retry_after)}}}'
        )

    def to_json(self) -> bytes:
        return self.text().encode()


class Wait(NamedTuple):
    """One wait."""

    wait_id: str
    status: str
    resume_at: int
    created_sequence: int
    resolved: int = 0

    @property
    def key(self) -> str:
        return self.wait_id

    @property
    def is_open(self) -> bool:
        return self.status == "waiting"

    def text(self) -> str:
        return f'{{"wait_id":{quote(self.wait_id)},"status":"{self.status}","resume_at":{_moment(self.resume_at)}}}'

    def to_json(self) -> bytes:
        return self.text().encode()


class Hook(NamedTuple):
    """One hook; the repr hides its token."""

    hook_id: str
    token: str
    status: str
    metadata_text: str
    created_sequence: int
    payload_text: str | None = None
    resolved: int = 0

    @property
    def key(self) -> str:
        return self.hook_id

    @property
    def metadata(self) -> bytes:
        return self.metadata_text.encode()

    @property
    def payload(self) -> bytes | None:
        return None if self.payload_text is None else self.payload_text.encode()

    @property
    def is_open(self) -> bool:
        return self.status == "active"

    def text(self) -> str:
        return (
            f'{{"hook_id":{quote(self.hook_id)},"token":{quote(self.token)},"status":"{self.status}",'
            f'"metadata":{self.metadata_text},"payload":{self.payload_text or "null"}}}'
        )

    def to_json(self) -> bytes:
        return self.text().encode()

    def __repr__(self) -> str:
        return f"Hook(hook_id={self.hook_id!r}, status={self.status!r}, token=<redacted>)"


Value = TypeVar("Value", Progress, Child)


class Fact(NamedTuple, Generic[Value]):
    """A progress record or a child link, with the sequence that recorded it. Facts never change."""

    value: Value
    created_sequence: int

    @property
    def key(self) -> str:
        return self.value[0]

    @property
    def is_open(self) -> bool:
        return False


class Request(NamedTuple):
    """The cancellation request."""

    reason: str | None
    requested_at: int
    sequence: int

    def text(self) -> str:
        body = "{}" if self.reason is None else f'{{"reason":{quote(self.reason)}}}'
        return f'{{"request":{body},"requested_at":{_moment(self.requested_at)},"sequence":{self.sequence}}}'


Mark = tuple[int, str, str, int]
"""Sequence, event type, id, and the largest timestamp up to there."""


class Cause(NamedTuple):
    """The first final failure under fail_run (R19)."""

    step_id: str
    exhausted: bool  # by step_failed; otherwise by step_non_retryable


class _Record(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def created_sequence(self) -> int: ...
    @property
    def is_open(self) -> bool: ...


R = TypeVar("R", bound=_Record)


class Table(Generic[R]):
    """Records by id, over those of a parent table. Looking at the open ones costs what is open, not what is there.

    A record opens once, when it is created, and closes once.
    """

    __slots__ = ("_open", "_parent", "open_count", "own")

    def __init__(self, parent: Table[R] | None = None) -> None:
        self._parent = parent
        self.own: dict[str, R] = {}
        self._open: dict[str, None] = {}
        self.open_count: int = parent.open_count if parent else 0

    def get(self, key: str) -> R | None:
        table: Table[R] | None = self
        while table is not None:
            found = table.own.get(key)
            if found is not None:
                return found
            table = table._parent
        return None

    def put(self, key: str, record: R) -> None:
        before = self.get(key)
        self.own[key] = record
        opened, was_open = record.is_open, before is not None and before.is_open
        if opened:
            if before is None:
                self._open[key] = None
        else:
            self._open.pop(key, None)
        self.open_count += opened - was_open

    def opened(self) -> Iterator[R]:
        """The open records in the order of their creation."""
        if self._parent is not None:
            for record in self._parent.opened():
                own = self.own.get(record.key)
                if own is None:
                    yield record
                elif own.is_open:
                    yield own
        for key in self._open:
            yield self.own[key]

    def all(self) -> dict[str, R]:
        """Every record by id, in the order of creation; costs what the run holds."""
        return self.own if self._parent is None else {**self._parent.all(), **self.own}

    def adopt(self, layer: Table[R]) -> None:
        for key, record in layer.own.items():
            self.put(key, record)


_SCALARS: Final = (
    "run_id",
    "status",
    "spec",
    "input",
    "output",
    "error",
    "outcome",
    "request",
    "cause",
    "pending_retries",
    "last_sequence",
    "last_visible",
    "created_at",
    "updated_at",
    "latest",
    "ended_at",
)


class State:
    """A run, or a layer of changes over one. `status` is the folded one: `suspended` is only derived (spec 2.1)."""

    __slots__ = (*_SCALARS, "children", "hooks", "marks", "parent", "progress", "steps", "waits")

    run_id: str
    status: str
    spec: Spec | None
    input: str
    output: str | None
    error: str | None
    outcome: str | None
    request: Request | None
    cause: Cause | None
    pending_retries: int
    last_sequence: int
    last_visible: int
    created_at: int
    updated_at: int
    latest: int  # the largest timestamp so far; timestamps need not rise (R13)
    ended_at: int | None

    def __init__(self, run_id: str) -> None:
        self.parent: State | None = None
        self.run_id, self.status, self.spec, self.input = run_id, "pending", None, ""
        self.output = self.error = self.outcome = None
        self.request = self.cause = self.ended_at = None
        self.pending_retries = self.last_sequence = self.last_visible = self.created_at = self.updated_at = (
            self.latest
        ) = 0
        self.marks: list[Mark] = []
        self.steps: Table[Step] = Table()
        self.waits: Table[Wait] = Table()
        self.hooks: Table[Hook] = Table()
        self.progress: Table[Fact[Progress]] = Table()
        self.children: Table[Fact[Child]] = Table()

    def layer(self) -> State:
        """An empty layer over this state."""
        above = State.__new__(State)
        above._take_scalars(self)
        above.parent, above.marks = self, []
        above.steps, above.waits, above.hooks = Table(self.steps), Table(self.waits), Table(self.hooks)
        above.progress, above.children = Table(self.progress), Table(self.children)
        return above

    def adopt(self, layer: State) -> None:
        """Folds a layer that lies directly on this state into it."""
        self._take_scalars(layer)
        self.marks += layer.marks
        self.steps.adopt(layer.steps)
        self.waits.adopt(layer.waits)
        self.hooks.adopt(layer.hooks)
        self.progress.adopt(layer.progress)
        self.children.adopt(layer.children)

    def _take_scalars(self, other: State) -> None:
        for name in _SCALARS:
            setattr(self, name, getattr(other, name))

    @property
    def terminal(self) -> bool:
        return self.outcome is not None

    @property
    def derived_status(self) -> str:
        """`suspended` instead of `running` while a suspension is open (spec 2.1)."""
        if self.status == "running" and (self.waits.open_count or self.hooks.open_count or self.pending_retries):
            return "suspended"
        return self.status

    def put_step(self, step: Step) -> None:
        before = self.steps.get(step.step_id)
        self.pending_retries += (step.retry_due is not None) - (before is not None and before.retry_due is not None)
        self.steps.put(step.step_id, step)

    def timeline(self, after: int, limit: int) -> list[Mark]:
        """The first events past `after` that workflow code is shown again when it is replayed (R38)."""
        past = [] if self.parent is None else self.parent.timeline(after, limit)
        at = bisect_right(self.marks, after, key=itemgetter(0))
        return past + self.marks[at : at + limit - len(past)]

    @property
    def last_created(self) -> int:
        """The sequence of the newest event that created a step, wait or hook."""
        newest = next((mark[0] for mark in reversed(self.marks) if mark[1].endswith("_created")), 0)
        return newest or (0 if self.parent is None else self.parent.last_created)

    def resolved(self, kind: str, key: str) -> int:
        """The sequence at which (kind, id) was resolved; 0 if it was not, or is not known."""
        if kind == "step":
            step = self.steps.get(key)
            return step.resolved if step else 0
        if kind == "wait":
            wait = self.waits.get(key)
            return wait.resolved if wait else 0
        hook = self.hooks.get(key) if kind == "hook" else None
        return hook.resolved if hook else 0

    def due_waits(self, now: int) -> list[Wait]:
        """The waits due at `now`, by (resume_at, id bytes)."""
        # Code point order of str is byte order of UTF-8, so ids are compared as they are; here and below.
        due = [] if self.terminal else [wait for wait in self.waits.opened() if wait.resume_at <= now]
        return sorted(due, key=lambda wait: (wait.resume_at, wait.wait_id))

    def due_retries(self, now: int) -> list[Step]:
        """The steps whose delayed retry is due at `now`, by id bytes."""
        return sorted(step for step, due in self.delayed() if due <= now)

    def delayed(self) -> Iterable[tuple[Step, int]]:
        """The steps that wait for a retry, with its due time; none on a terminal run."""
        if self.terminal or not self.pending_retries:
            return
        for step in self.steps.opened():
            if step.retry_due is not None:
                yield step, step.retry_due


def refuse(
    state: State,
    rule: str,
    kind: str | None = None,
    key: str | None = None,
    value: object = None,
    sequence: int | None = None,
) -> InvalidTransition:
    """The `InvalidTransition` of a rule about this run."""
    return InvalidTransition(state.run_id, rule, kind, key, sequence, None if value is None else str(value))


def _or_null(text: str | None) -> str:
    return "null" if text is None else quote(text)


def _moment(ns: int | None) -> str:
    return "null" if ns is None else f'"{format_instant(ns)}"'
