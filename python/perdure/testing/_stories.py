"""Runs written by hand for the store suite: drafts in, batches of a real kernel out, and random legal histories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from random import Random
from typing import Final

from perdure.errors import FlowError, InvalidTransition
from perdure.instant import MAX_NS, format_instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Batch, Kernel, Reads, Run
from perdure.stores.base import Append, Committed, FlowEventStore, Lease

__all__ = [
    "SECOND",
    "START",
    "Draft",
    "Story",
    "child",
    "created",
    "hook",
    "hook_done",
    "random_drafts",
    "started",
    "token_hash",
    "wait",
    "wait_done",
]

Draft = Mapping[str, object]
SECOND: Final = 1_000_000_000
START: Final = 1_800_000_000 * SECOND
"""The clock of a story's first batch; each later one is a second and a nanosecond on."""


def created(build: str | None = None, name: str = "demo", version: str = "1", input: object = None) -> Draft:
    """A `run_created` draft."""
    runtime = {"kind": "rust_embedded", "entrypoint": name, "export_name": "main"}
    spec: dict[str, object] = {"name": name, "version": version, "runtime": runtime}
    if build is not None:
        spec["runtime_build_id"] = build
    return {"type": "run_created", "spec": spec, "input": input}


def started() -> Draft:
    """A `run_started` draft."""
    return {"type": "run_started"}


def wait(wait_id: str, due: int) -> Draft:
    """A `wait_created` draft; `due` in ns."""
    return {"type": "wait_created", "wait_id": wait_id, "resume_at": format_instant(due)}


def wait_done(wait_id: str) -> Draft:
    """A `wait_completed` draft."""
    return {"type": "wait_completed", "wait_id": wait_id}


def hook(hook_id: str, token: str) -> Draft:
    """A `hook_created` draft."""
    return {"type": "hook_created", "hook_id": hook_id, "token": token, "metadata": None}


def hook_done(hook_id: str) -> Draft:
    """A `hook_disposed` draft."""
    return {"type": "hook_disposed", "hook_id": hook_id}


def child(reference_id: str, run_id: str) -> Draft:
    """A `child_operation_linked` draft that names another run."""
    reference = {"reference_id": reference_id, "kind": "flow", "operation_id": "o", "flow_run_id": run_id}
    return {"type": "child_operation_linked", "child": reference}


def token_hash(token: str) -> bytes:
    """What a store keeps of a token (R49)."""
    return hashlib.sha256(token.encode()).digest()


class Story:
    """One run as its writer sees it: stages drafts, commits batches, adopts what was acknowledged."""

    def __init__(self, kernel: Kernel, run_id: str) -> None:
        self.run: Run = kernel.new(run_id, DEFAULT_MAX_EVENT_BYTES)
        self.run_id = run_id
        self.clock = START
        self._random = Random(run_id)

    def batch(self, *drafts: Draft) -> Batch:
        """The drafts as a batch on top of what was acknowledged."""
        view = self.run.stage([encode(draft) for draft in drafts], self.clock)
        return view.append(self._random.randbytes(16 * len(drafts)))

    def accept(self, batch: Batch) -> None:
        """Adopts a batch that the store acknowledged."""
        self.run.accept(batch)
        self.clock += SECOND + 1

    async def write(self, store: FlowEventStore, *drafts: Draft, lease: Lease | None = None) -> Committed:
        """Commits the drafts. Raises the refusal, if there is one."""
        batch = self.batch(*drafts)
        (answer,) = await store.commit([Append(batch, lease)])
        if isinstance(answer, FlowError):
            raise answer
        assert answer.last_sequence == batch.last_sequence
        if drafts:
            self.accept(batch)
        return answer


def encode(draft: Draft) -> bytes:
    """The draft as a kernel takes it."""
    return json.dumps(draft, ensure_ascii=False, separators=(",", ":")).encode()


_ENDS: Final[tuple[Draft, ...]] = (
    {"type": "run_cancellation_requested", "request": {}},
    {"type": "run_completed", "output": None},
    {"type": "run_failed", "error": "e"},
    {"type": "run_cancelled", "reason": None},
)


def random_drafts(story: Story, random: Random, tokens: Iterable[str]) -> list[Draft]:
    """Up to twelve drafts that are legal as the next events of `story`; none once it has ended."""
    drafts: list[Draft] = []
    if story.run.last_sequence == 0:
        drafts.append(created(random.choice((None, "build-1", "build-2")), name=random.choice(("demo", "other"))))
    held = list(tokens)
    for _ in range(random.randint(1, 12)):  # most candidates are refused
        view = story.run.stage([encode(draft) for draft in drafts], story.clock)
        candidate = _candidate(view, story.clock, random, held)
        try:
            story.run.stage([encode(draft) for draft in (*drafts, candidate)], story.clock)
        except InvalidTransition:
            continue
        drafts.append(candidate)
    return drafts


def _candidate(view: Reads, clock: int, random: Random, tokens: list[str]) -> Draft:
    subject = random.choice("abcdefgh") + random.choice(("", "é", "-1"))
    due = random.choice((clock, clock + 1, clock + random.randint(-5, 50) * SECOND, MAX_NS))
    if random.random() < 0.01:
        return random.choice(_ENDS)
    if random.random() < 0.5:
        return _of_a_step(view, subject, due, random)
    choices: list[Draft] = [
        started(),
        wait(subject, due),
        wait(subject, due),
        wait_done(subject),
        hook(subject, random.choice(tokens)),
        hook(subject, random.choice(tokens)),
        hook_done(subject),
        {"type": "hook_received", "hook_id": subject, "payload": {"n": 1}},
    ]
    return random.choice(choices)


def _of_a_step(view: Reads, subject: str, due: int, random: Random) -> Draft:
    step = view.step(subject)
    named: dict[str, object] = {"step_id": subject}
    if step is None:
        policy = {"max_attempts": random.randint(1, 3), "delay_ms": 1000}
        return {"type": "step_created", **named, "step_name": "s", "input": 1, "retry": policy}
    if step.status == "pending":
        return {"type": "step_started", **named, "attempt": step.attempt + 1}
    failed: dict[str, object] = {**named, "attempt": step.attempt, "error": "e"}
    return random.choice(
        (
            {"type": "step_completed", **named, "output": "é"},
            {"type": "step_retrying", **failed, "retry_after": format_instant(due)},
            {"type": "step_failed", **failed},
        )
    )
