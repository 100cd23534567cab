"""One run carried on in two kernels at once, every answer compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from hypothesis import strategies as st
from kernel.differential_drawn import CALLS, COMMANDS, EVENTS, NOON_NS, OUTCOMES, SECOND_NS, one_of, texts

from perdure.errors import FlowError, Serialization
from perdure.instant import MAX_NS
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES

RUN_ID = "run-1"

RECORDS: dict[str, tuple[str, ...]] = {
    "Decision": ("drafts", "ends", "counts", "concurrency"),
    "Control": ("drafts", "drive", "admit"),
    "Step": (
        *("step_id", "step_name", "status", "input", "retry", "output", "error", "attempt", "retry_after", "failure"),
        *("created_sequence", "to_json"),
    ),
    "Wait": ("wait_id", "status", "resume_at", "created_sequence", "to_json"),
    "Hook": ("hook_id", "token", "status", "metadata", "payload", "created_sequence", "to_json"),
    "Batch": (
        *("run_id", "expected_sequence", "first_sequence", "last_sequence", "lines", "event_ids", "row", "links"),
        *(
            "changes_index",
            "clear_wakeups",
            "delete_wakeups",
            "upsert_wakeups",
            "clear_hooks",
            "delete_hooks",
            "insert_hooks",
        ),
    ),
    "RunRow": (
        *("name", "version", "build", "status", "terminal", "open_waits", "active_hooks", "pending_retries"),
        *("created_at", "updated_at", "ended_at", "created_key", "updated_key", "ended_key", "last_sequence"),
    ),
    "WakeupUpsert": ("kind", "subject_id", "due", "due_key"),
    "WakeupDelete": ("kind", "subject_id"),
    "HookInsert": ("hook_id", "token", "token_hash", "sequence"),
    "HookDelete": ("hook_id", "token_hash"),
}
READS = (
    *(
        "run_id",
        "last_sequence",
        "last_visible",
        "status",
        "terminal",
        "spec",
        "input",
        "build_id",
        "workflow",
        "output",
    ),
    *("error", "outcome", "cancellation", "updated_at"),
)
IDS = ["a", "b", "c", "d", "e", "é", "z/1", "\u200b"]


def shown(value: Any) -> Any:
    """A value of the seam as plain data."""
    if isinstance(value, FlowError):
        return type(value).__name__, _fields(value)
    attributes = RECORDS.get(type(value).__name__)
    if attributes is not None:
        return {name: shown(_attribute(value, name)) for name in attributes}
    if isinstance(value, list | tuple):
        return [shown(member) for member in value]
    if hasattr(value, "snapshot"):
        return reads_of(value)
    assert value is None or isinstance(value, bytes | str | int), f"{type(value)} does not belong to the seam"
    return value


def _attribute(value: Any, name: str) -> Any:
    found = getattr(value, name)
    return found() if callable(found) else found


def _fields(error: FlowError) -> Any:
    return (error.rule, error.line) if type(error) is Serialization else error.args


def reads_of(reads: Any) -> dict[str, Any]:
    """Everything a `Run` or `View` answers without being given a clock."""
    answers = {name: shown(getattr(reads, name)) for name in READS}
    if not reads.last_sequence:
        return answers
    for kind in ("step", "wait", "hook", "progress", "child"):
        answers[kind] = [shown(getattr(reads, kind)(subject)) for subject in IDS]
    refs = [(kind, subject) for kind in ("hook", "step", "other", "wait") for subject in IDS]
    answers["first_resolved"] = [
        shown(reads.first_resolved(some)) for some in (refs, refs[:8], refs[12:], refs[3:5], [])
    ]
    answers["timeline"] = [
        shown(reads.timeline(after, limit)) for after, limit in ((0, 999), (0, 3), (3, 2), (reads.last_sequence - 1, 9))
    ]
    answers["last_created"] = reads.last_created
    for step in filter(None, map(reads.step, IDS)):
        exact = (step.created_sequence - 1, step.step_id, step.step_name, step.input, step.retry)
        answers[f"replayed {step.step_id}"] = [
            shown(reads.replayed_step(*exact)),
            shown(reads.replayed_step(*exact[:2], "other", *exact[3:])),
            shown(reads.replayed_step(0, *exact[1:])),
        ]
    answers["active_hooks"] = shown(reads.active_hooks())
    answers["suspensions"] = shown(reads.suspensions())
    answers["closing"] = shown(reads.closing())
    answers["snapshot"] = reads.snapshot()
    return answers


@dataclass
class Twins:
    """The same object in both kernels. `call` does one thing to both and insists on equal answers."""

    rust: Any
    pure: Any
    refused: FlowError | None = field(default=None, init=False)

    def call(self, act: Callable[[Any], Any]) -> Twins | None:
        """What `act` gives on each side, compared; None if both refused, and `refused` says how."""
        (rust, pure), self.refused = (_tried(act, side) for side in (self.rust, self.pure)), None
        assert shown(rust) == shown(pure)
        if isinstance(pure, FlowError):
            self.refused = pure
            return None
        return Twins(rust, pure)

    def same(self, act: Callable[[Any], Any]) -> Any:
        """As `call`, giving the pure side's answer."""
        answers = self.call(act)
        return answers and answers.pure


def _tried(act: Callable[[Any], Any], side: Any) -> Any:
    try:
        return act(side)
    except FlowError as error:
        return error


Action = tuple[str, Any]
ACTIONS: st.SearchStrategy[Action] = st.sampled_from(
    ["command"] * 5 + ["start steps"] * 3 + ["outcome"] * 4 + ["call"] * 2 + ["raw", "time"]
).flatmap(lambda kind: st.tuples(st.just(kind), _DRAWN[kind]))
_DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "command": COMMANDS,
    "start steps": st.integers(1, 3),
    "outcome": st.tuples(OUTCOMES, st.booleans()),
    "call": CALLS,
    "raw": EVENTS,
    "time": one_of(st.just("1000"), texts("0", "3600000", "1")),
}
STORIES = st.lists(ACTIONS, min_size=10, max_size=40)


class Story:
    """One run, carried on in both kernels by the same actions; every answer on the way is compared."""

    def __init__(self, kernels: Twins, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        self.clock = NOON_NS
        self.lines: list[bytes] = []
        self.last_command = b'{"type":"cancel"}'
        run = kernels.call(lambda kernel: kernel.new(RUN_ID, max_event_bytes))
        assert run is not None
        self.run = run
        spec = (
            '{"name":"demo","version":"1","runtime":{"kind":"rust_embedded","entrypoint":"demo","export_name":"main"}}'
        )
        self.call(f'{{"op":"start","spec":{spec},"input":{{}}}}')

    def tell(self, actions: Sequence[Action]) -> None:
        does: dict[str, Callable[[Any], None]] = {
            "command": self.command,
            "start steps": self.start_steps,
            "outcome": self.outcome,
            "call": self.call,
            "raw": self.raw,
            "time": self.pass_time,
        }
        for kind, drawn in actions:
            does[kind](drawn)

    def command(self, command: str) -> None:
        self.last_command = as_bytes(command)
        decision = self.run.same(lambda run: run.decide(self.last_command, self.clock, self.clock + SECOND_NS))
        if decision is not None:
            self.commit(decision.drafts)

    def start_steps(self, limit: int) -> None:
        self.same_starts(self.run, limit)
        starts = self.run.same(lambda run: run.starts(self.clock, [], limit))
        self.commit([_started(step_id, attempt) for step_id, attempt, needs_event in starts or [] if needs_event])

    def same_starts(self, reads: Twins, limit: int) -> None:
        running = [
            (step.step_id, step.attempt) for step in map(reads.pure.step, IDS) if step and step.status == "running"
        ]
        for live in (running, running[:1], [("a", 1), ("a", 2), ("b", 1), ("gone", 1)], [*running, *running]):
            for horizon in (self.clock, MAX_NS):
                for most in (0, limit, 64):
                    reads.same(lambda reads: reads.starts(horizon, live, most))  # noqa: B023 - called at once

    def outcome(self, drawn: tuple[str, bool]) -> None:
        outcome, restart = drawn
        steps = [self.run.pure.step(step_id) for step_id in IDS]
        running = next((step for step in steps if step is not None and step.status == "running"), None)
        step_id, attempt = (running.step_id, running.attempt) if running is not None else ("a", 1)
        horizon = self.clock if restart else self.clock + 60 * SECOND_NS
        self.run.same(lambda run: run.settle(step_id, attempt + 1, as_bytes(outcome), self.clock, horizon, restart))
        drafts = self.run.same(
            lambda run: run.settle(step_id, attempt, as_bytes(outcome), self.clock, horizon, restart)
        )
        self.commit(drafts or [])
        self.commit(self.run.same(lambda run: run.closing()))

    def call(self, call: str) -> None:
        control = self.run.same(lambda run: run.control(as_bytes(call), self.clock))
        if control is not None:
            self.commit(control.drafts)

    def raw(self, event: str) -> None:
        self.commit([as_bytes(event)])

    def pass_time(self, ms: str) -> None:
        self.clock += int(ms) * 10**6
        for moment in (self.clock, MAX_NS):
            self.run.same(lambda run, now=moment: run.next_wakeup(self.clock, now))
            self.run.same(lambda run, now=moment: run.due_wakeups(now))
            self.run.same(lambda run, now=moment: run.due_waits(now))

    def commit(self, drafts: Sequence[bytes]) -> None:
        """Stages the drafts in two layers, appends and accepts them, and compares all that can be read on the way."""
        drafts = list(drafts)
        layer = self.run.call(lambda run: run.stage(drafts[:1], self.clock))
        view = layer and layer.call(lambda view: view.stage(drafts[1:], self.clock + 1))
        if view is None:
            return
        if drafts:
            view.same(lambda view: view.decide(self.last_command, self.clock, self.clock))
            self.same_starts(view, 1)
        entropy = _entropy(len(drafts), len(self.lines))
        batches = view.call(lambda view: view.append(entropy))
        assert batches is not None
        self.lines += batches.pure.lines.splitlines(keepends=True)
        self.run.rust.accept(batches.rust)
        self.run.pure.accept(batches.pure)
        assert shown(self.run.rust) == shown(self.run.pure)
        assert view.call(lambda stale: stale.append(entropy)) is None or not drafts


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _started(step_id: str, attempt: int) -> bytes:
    return json.dumps({"type": "step_started", "step_id": step_id, "attempt": attempt}, ensure_ascii=False).encode()


def _entropy(events: int, salt: int) -> bytes:
    return b"".join(sha256(f"{salt}/{index}".encode()).digest()[:16] for index in range(events))
