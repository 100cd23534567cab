"""Recorded histories replayed by today's code, before it is deployed: does it still ask for what is recorded? (R37, R38)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from perdure.asking import RuntimeProgram
from perdure.codec import Coding, PayloadCodec
from perdure.effects import Asked
from perdure.envelope import Envelope
from perdure.errors import NonDeterministic, Serialization
from perdure.flow import FlowRuntime
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Decision, Kernel, KernelName, Run, View, load

__all__ = ["Replayed", "replay_history"]

_BY_WORKFLOWS: Final = ("run_completed", "run_failed")
"""Ends that only a workflow brings about, beside a failure that the kernel closes the run for."""
_GOES_ON: Final = '"goes on"'


@dataclass(frozen=True, slots=True)
class Replayed:
    """A history that fits the code. `events` are those that were replayed: of a run that ended all but what ended it."""

    run_id: str
    workflow: str
    version: str
    events: int
    ended: bool


class _Cut(NamedTuple):
    """A run as its workflow was asked last, and the event that then ended it, if the workflow did that."""

    run: Run
    lines: list[bytes]
    end: Envelope | None


def replay_history(
    runtime: FlowRuntime, history: bytes, *, kernel: KernelName = "rust", codec: PayloadCodec | None = None
) -> Replayed:
    """Asks the workflow of a run what it wants at the end of its history; no step is run, and nothing is written.

    `history` is lines of one run, as `store.history` gives them or `perdure export` writes them. An async workflow walks through
    all of it, one of the command form is asked once, with all its work before it. A run that has ended is asked without the
    event that ended it, and must end alike: the output or the error is compared.

    Raises what a drive would: `NonDeterministic`, whose `part` is "end" where the run would end otherwise or go on;
    `WorkflowNotRegistered`, `StepNotRegistered` for a step that would be run next; `WorkflowRaised`, `WorkflowStuck`,
    `ForeignAwaitError`; and `Serialization` or `InvalidTransition` for lines that are no history."""
    rules = load(kernel)
    lines = [line + b"\n" for line in history.split(b"\n") if line.strip()]
    if not lines:
        raise Serialization("shape", detail="a history without an event")
    run_id = Envelope.parse(lines[0]).run_id
    whole = rules.project(run_id, history, DEFAULT_MAX_EVENT_BYTES)
    cut = _cut(rules, whole, lines)
    name, version = whole.workflow
    if cut.run.status != "pending":
        coding = None if codec is None else Coding(codec, rules.json_equal)
        program = RuntimeProgram(runtime, run_id, coding, rules.json_equal)
        try:
            _ask(program, cut, coding)
        finally:
            program.close()
    return Replayed(run_id, name, version, len(cut.lines), whole.terminal)


def _cut(rules: Kernel, whole: Run, lines: list[bytes]) -> _Cut:
    if not whole.terminal:
        return _Cut(whole, lines, None)
    before, run = lines[:-1], whole
    end: Envelope | None = Envelope.parse(lines[-1])
    while before:
        run = rules.project(whole.run_id, b"".join(before), DEFAULT_MAX_EVENT_BYTES)
        if not run.closing():
            break
        before, end = before[:-1], None  # a step that failed for good ended the run, and nobody was asked
    return _Cut(run, before, end)


def _ask(program: RuntimeProgram, cut: _Cut, coding: Coding | None) -> None:
    run, clock = cut.run, cut.run.updated_at
    asked = program.ask(run.stage([], clock), lambda: b"".join(cut.lines))
    decision = run.decide(asked.command, clock, clock)
    view = run.stage(decision.drafts, clock)
    if cut.end is not None:
        _compare_ends(cut.end, view, decision, asked, coding)
    if not decision.ends:
        for step_id, _, _ in view.starts(clock, [], len(cut.lines) + len(decision.drafts)):
            step = view.step(step_id)
            if step is not None:
                program.timeout_ms(step.step_name, step_id)


def _compare_ends(end: Envelope, view: View, decision: Decision, asked: Asked, coding: Coding | None) -> None:
    """An end from outside says nothing of the code: a forced cancellation, a time limit, a host that shut down."""
    recorded, now = _event(end, coding), None
    if decision.ends:
        *_, last = Envelope.parse_lines(view.append(bytes(16 * len(decision.drafts))).lines)
        now = _event(last, coding)
    alike = now is not None and now["type"] == end.type
    if now != recorded and (alike or end.type in _BY_WORKFLOWS):
        texts = (orjson.dumps(recorded).decode(), _GOES_ON if now is None else orjson.dumps(now).decode())
        raise NonDeterministic(view.run_id, "workflow", view.workflow[0], "end", end.sequence, *texts)


def _event(envelope: Envelope, coding: Coding | None) -> dict[str, Any]:
    """The event with its payload as the workflow sees it."""
    return (envelope if coding is None else coding.envelope(envelope)).event
