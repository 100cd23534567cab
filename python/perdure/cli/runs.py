"""`perdure runs`, `show`, `history` and `hooks`: what the runs of a store are doing and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

import orjson
import typer

from perdure.cli.leases import driver, hold_of, next_drive, time_of
from perdure.cli.shared import (
    Json,
    ShowTokens,
    Statuses,
    StoreUrl,
    Version,
    Workflow,
    brief,
    opened,
    perform,
    plain,
    say,
    selection,
    tell_json,
    tell_table,
)
from perdure.cli.target import resolve_codec
from perdure.engine import FlowEngine
from perdure.envelope import Envelope
from perdure.flow import Flow
from perdure.owner import pid_of
from perdure.snapshot import HookSnapshot, StepSnapshot, WaitSnapshot, WorkflowRunSnapshot
from perdure.stores.base import LeaseState, RunFilter, RunRecord, RunSummary

__all__ = ["Codec", "RunId", "register"]

_PAGE: Final = 500
_REDACTED: Final = "<redacted>"
_OPEN: Final = frozenset({"pending", "running", "waiting", "active"})
"""The status of a step, a wait or a hook that something may still come of."""

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Codec = Annotated[
    str | None, typer.Option(metavar="MODULE:CODEC", help="What the payloads are stored with, if anything.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("runs")(runs)
    app.command("show")(show)
    app.command("history")(history)
    app.command("hooks")(hooks)


# runs ----------------------------------------------------------------------------------------------------------


def runs(
    store: StoreUrl,
    status: Statuses = None,
    workflow: Workflow = None,
    version: Version = None,
    build: Annotated[str | None, typer.Option(metavar="ID", help="Only runs pinned to this build.")] = None,
    terminal: Annotated[
        bool | None, typer.Option("--ended/--open", help="Only runs that have ended, or only those that have not.")
    ] = None,
    held: Annotated[
        bool | None, typer.Option("--held/--not-held", help="Only runs that are held, or only others.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, by run id.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="RUN", help="Only runs past this id, the last one shown.")
    ] = None,
    counts: Annotated[bool, typer.Option("--counts", help="Count all runs by state instead.")] = False,
    by_build: Annotated[
        bool, typer.Option("--by-build", help="Count them for each build: one without open runs needs no worker.")
    ] = False,
    json: Json = False,
) -> None:
    """List runs, with what they wait for and why they are held; or count them."""
    if counts or by_build:
        _count(store, by_build, json)
        return
    selection(status, None, None, None, None)  # refuses a status that no run can have
    filter = RunFilter(tuple(status) if status else None, workflow, version, build, terminal, held)

    async def work() -> tuple[list[RunRecord], str | None]:
        found: list[RunRecord] = []
        cursor = after
        async with opened(store) as opened_store:
            while len(found) < limit:
                page = await opened_store.runs(filter, after=cursor, limit=min(_PAGE, limit - len(found)))
                found += page.runs
                cursor = page.next
                if cursor is None:
                    break
        return found, cursor

    found, cursor = perform(work())
    if json:
        tell_json({"runs": [_record(row) for row in found], "next": cursor})
        return
    columns = ("run", "workflow", "version", "build", "status", "waits", "hooks", "retries", "events", "updated")
    tell_table(columns, [_row(row) for row in found])
    if cursor is not None:
        say(f"there are more: --after {cursor}, or a larger --limit")


def _row(row: RunRecord) -> tuple[object, ...]:
    status = row.status
    if row.hold is not None:
        status += f", held: {hold_of(row.hold).get('code', '?')}"
    elif row.failures and not row.terminal:
        status += f", failing: {row.failures} drive{'s' * (row.failures > 1)}"
    return (
        *(row.run_id, row.name, row.version, row.build, status),
        *(row.open_waits or None, row.active_hooks or None, row.pending_retries or None),
        *(row.last_sequence, time_of(row.updated_at)),
    )


def _record(row: RunRecord) -> dict[str, object]:
    times = {key: time_of(getattr(row, key)) for key in ("created_at", "updated_at", "ended_at")}
    return asdict(row) | times | {"hold": None if row.hold is None else hold_of(row.hold)}


def _count(store: str, by_build: bool, json: bool) -> None:
    async def work() -> dict[str | None, RunSummary]:
        async with opened(store) as opened_store:
            return await opened_store.summary_by_build() if by_build else {None: await opened_store.summary()}

    found = {build: asdict(summary) for build, summary in perform(work()).items()}
    if json:
        tell_json([{"build": build} | counts for build, counts in found.items()] if by_build else found[None])
    elif by_build:
        names = ("total_runs", "non_terminal_runs", "open_waits", "active_hooks", "pending_retries")
        rows = [(build or "(none)", *(counts[name] for name in names)) for build, counts in found.items()]
        tell_table(("build", "runs", "open", "waits", "hooks", "retries"), rows)
    else:
        tell_table(("what", "how many"), [(name.replace("_", " "), count) for name, count in found[None].items()])


# one run -------------------------------------------------------------------------------------------------------


def show(
    store: StoreUrl,
    run_id: RunId,
    codec: Codec = None,
    traceback: Annotated[
        bool,
        typer.Option("--traceback", help="Print the newest traceback recorded of each step; --json always has them."),
    ] = False,
    json: Json = False,
    show_tokens: ShowTokens = False,
) -> None:
    """Show one run: its state, steps, waits and hooks, who drives it, and why it is held."""
    given = None if codec is None else resolve_codec(codec)

    async def work() -> tuple[WorkflowRunSnapshot, LeaseState, int]:
        async with opened(store) as opened_store, FlowEngine(Flow(), opened_store, codec=given) as engine:
            return await engine.snapshot(run_id), await opened_store.lease(run_id), opened_store.clock()

    snapshot, lease, now = perform(work())
    if json:
        tell_json(_snapshot(snapshot, show_tokens) | {"lease": _lease(lease)})
        return
    tell_table(("run", snapshot.run_id), _facts(snapshot, lease, now))
    _tell_part(
        ("step", "function", "status", "attempt", "retry at", "output or error"),
        [
            (
                *(step_id, step.step_name, _status(snapshot, step), step.attempt, step.retry_after),
                brief(step.output_json.decode()) if step.status == "completed" else _step_error(snapshot, step),
            )
            for step_id, step in snapshot.steps.items()
        ],
    )
    _tell_part(
        ("wait", "status", "until"),
        [(i, _status(snapshot, wait), wait.resume_at) for i, wait in snapshot.waits.items()],
    )
    _tell_part(
        ("hook", "status", "token"),
        [(i, _status(snapshot, hook), hook.token if show_tokens else _REDACTED) for i, hook in snapshot.hooks.items()],
    )
    if traceback:
        _tell_tracebacks(snapshot)


def _facts(snapshot: WorkflowRunSnapshot, lease: LeaseState, now: int) -> list[tuple[str, object]]:
    spec = snapshot.spec
    parts = _snapshot(snapshot, show_tokens=False)
    facts: list[tuple[str, object]] = [
        ("workflow", f"{spec.name} {spec.version}"),
        ("build", spec.runtime_build_id),
        ("status", snapshot.status),
        ("events", snapshot.last_sequence),
        ("input", brief(_text(parts["input"]))),
    ]
    if snapshot.status == "completed":
        facts.append(("output", brief(_text(parts["output"]))))
    if snapshot.error is not None:
        facts.append(("error", snapshot.error))
    if (words := driver(lease)) is not None:
        facts.append(("driven by" if lease.live else "was driven by", words))
    if lease.failures:
        facts.append(("failed drives", lease.failures))
        if (again := next_drive(lease, now)) is not None:
            facts.append(("next drive", again))
    if lease.hold is not None:
        facts += [(f"held, {name}", _text(value)) for name, value in hold_of(lease.hold).items()]
    return facts


def _lease(lease: LeaseState) -> dict[str, object]:
    return {
        "live": lease.live,
        "epoch": lease.epoch,
        "process": None if lease.owner is None else pid_of(lease.owner),
        "failures": lease.failures,
        "not_before": time_of(lease.not_before or None),
        "hold": None if lease.hold is None else hold_of(lease.hold),
    }


def _snapshot(snapshot: WorkflowRunSnapshot, show_tokens: bool) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(snapshot.json)
    found |= {"input": snapshot.input, "output": snapshot.output}  # as they were before a codec
    for step_id, step in snapshot.steps.items():
        found["steps"][step_id] |= {"input": step.input, "output": step.output}
    for hook_id, hook in snapshot.hooks.items():
        found["hooks"][hook_id] |= {"metadata": hook.metadata, "payload": hook.payload}
    if not show_tokens:
        for entry in found["hooks"].values():
            entry["token"] = _REDACTED
    return found


def _tell_part(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    if rows:
        typer.echo()
        tell_table(columns, rows)


def _step_error(snapshot: WorkflowRunSnapshot, step: StepSnapshot) -> str | None:
    """The step's error with the type of its exception. The failure that a snapshot has may be of an earlier attempt, as one
    that timed out leaves none; then the texts differ."""
    failure = snapshot.failures.get(step.step_id)
    if step.error is None or failure is None:
        return step.error
    said = step.error.partition(": ")[2]
    return _typed(step.error, failure) if said in str(failure.get("message")) else step.error


def _typed(error: str, failure: Mapping[str, Any]) -> str:
    """`error` behind the type of the exception, if `failure`, which may be any object, has one."""
    kind = failure.get("type")
    return f"{kind.removeprefix('builtins.')}: {error}" if isinstance(kind, str) and kind else error


def _tell_tracebacks(snapshot: WorkflowRunSnapshot) -> None:
    recorded = {step_id: failure.get("traceback") for step_id, failure in snapshot.failures.items()}
    found = {step_id: text for step_id, text in recorded.items() if isinstance(text, str) and text}
    for step_id, text in found.items():
        typer.echo(f"\nstep {plain(step_id)}, the newest traceback recorded:")
        for line in text.splitlines():
            typer.echo(plain(line))
    if not found:
        say("no traceback is recorded")


def _status(snapshot: WorkflowRunSnapshot, work: StepSnapshot | WaitSnapshot | HookSnapshot) -> str:
    """The status of a part of the run; what was open when the run ended is closed with it, and no event says so."""
    return "ended with the run" if snapshot.terminal and work.status in _OPEN else work.status


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


# history -------------------------------------------------------------------------------------------------------


def history(
    store: StoreUrl,
    run_id: RunId,
    after: Annotated[int, typer.Option(min=0, metavar="SEQUENCE", help="Only events past this one.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="How many at most.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON, payload and all.")] = False,
    show_tokens: ShowTokens = False,
) -> None:
    """Show what happened in a run, as a time-line: when, how long after its beginning, what, and to which of its work."""

    async def work() -> list[Envelope]:
        async with opened(store) as opened_store:
            return Envelope.parse_lines(await opened_store.history(run_id))

    events = perform(work())
    begun = events[0].timestamp.ns if events else 0
    shown = [envelope for envelope in events if envelope.sequence > after][:limit]
    if json:
        for envelope in shown:
            tell_json(_line(envelope, show_tokens))
        return
    rows = [
        (
            *(envelope.sequence, envelope.timestamp, f"+{(envelope.timestamp.ns - begun) / 1e9:.3f}"),
            *(envelope.type, _subject(envelope), _detail(envelope)),
        )
        for envelope in shown
    ]
    tell_table(("#", "time", "seconds", "event", "of", "detail"), rows)


def _line(envelope: Envelope, show_tokens: bool) -> dict[str, object]:
    event: object = orjson.Fragment(envelope.raw)
    if envelope.type == "hook_created" and not show_tokens:
        event = envelope.event | {"token": _REDACTED}
    return {
        "run_id": envelope.run_id,
        "sequence": envelope.sequence,
        "event_id": envelope.event_id,
        "timestamp": str(envelope.timestamp),
        "event": event,
    }


def _subject(envelope: Envelope) -> str | None:
    subject = envelope.subject
    return None if subject is None else " ".join(subject)


def _detail(envelope: Envelope) -> str | None:
    """What tells this event from others of its kind; payloads are left to --json."""
    event: Mapping[str, Any] = envelope.event
    parts = [
        f"{key.replace('_', ' ')} {event[key]}" for key in ("attempt", "resume_at", "retry_after") if event.get(key)
    ]
    reason = event.get("reason") or event.get("request", {}).get("reason")
    error = event.get("error")
    if error:
        error = _typed(error, event.get("failure") or {})
    parts += [text for text in (event.get("step_name"), reason, error) if text]
    return ", ".join(parts) or None


# hooks ---------------------------------------------------------------------------------------------------------


def hooks(
    store: StoreUrl,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only those of this run.")] = None,
    json: Json = False,
    show_tokens: ShowTokens = False,
) -> None:
    """List the hooks that wait for somebody to answer them."""

    async def work() -> list[dict[str, Any]]:
        async with opened(store) as opened_store, FlowEngine(Flow(), opened_store) as engine:
            if run is None:
                return await engine.list_active_hooks()
            snapshot = await engine.snapshot(run)
            entries = [] if snapshot.terminal else orjson.loads(snapshot.json)["hooks"].values()
            return [{"run_id": run, "hook": hook} for hook in entries if hook["status"] == "active"]

    found = [
        {
            "run_id": entry["run_id"],
            "hook_id": entry["hook"]["hook_id"],
            "token": entry["hook"]["token"] if show_tokens else _REDACTED,
            "metadata": entry["hook"]["metadata"],
        }
        for entry in perform(work())
    ]
    if json:
        tell_json(found)
        return
    tell_table(
        ("run", "hook", "token", "metadata"),
        [(*list(row.values())[:3], brief(_text(row["metadata"])) if row["metadata"] else None) for row in found],
    )
