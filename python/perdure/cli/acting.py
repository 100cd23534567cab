"""`perdure resume`, `cancel` and `release`: what an operator does to a run. Nothing is driven here, workers are told to."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, NamedTuple

import typer

from perdure.builds import RuntimeBuildCompatibility
from perdure.cli.leases import failing, obstacle
from perdure.cli.runs import Codec, RunId
from perdure.cli.shared import Json, StoreUrl, Workflow, counted, opened, perform, say, tell_json, tell_table
from perdure.cli.target import resolve_codec
from perdure.codec import PayloadCodec, check_plain
from perdure.engine import FlowEngine
from perdure.errors import InvalidTransition, RunNotFound, Serialization
from perdure.flow import Flow
from perdure.inspection import every_run_id
from perdure.payload import decode
from perdure.snapshot import WorkflowRunSnapshot
from perdure.stores.base import FlowEventStore, RunFilter

__all__ = ["register"]

Wait = Annotated[str | None, typer.Option("--wait", metavar="ID", help="Complete this wait.")]
Hook = Annotated[str | None, typer.Option("--hook", metavar="ID", help="Answer this hook, with --payload.")]
Token = Annotated[
    bool,
    typer.Option("--token", help="Answer the hook whose token comes on standard input; no RUN is needed then."),
]
Payload = Annotated[str | None, typer.Option(metavar="JSON", help="What the hook is answered with.")]
Dispose = Annotated[bool, typer.Option("--dispose", help="Close the hook: nobody will answer it.")]
Early = Annotated[bool, typer.Option("--early", help="Complete the wait though it is not due.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("resume")(resume)
    app.command("cancel")(cancel)
    app.command("release")(release)


@asynccontextmanager
async def _engine(store: FlowEventStore, run_id: str, codec: PayloadCodec | None = None) -> AsyncIterator[FlowEngine]:
    """An engine that may append to the run whatever build it is pinned to: it asks no workflow."""
    async with FlowEngine(Flow(), store) as looking:
        build = await looking.runtime_build_id(run_id)
        if codec is None:
            check_plain(run_id, await looking.read(run_id, lambda run: run.input))
    builds = None if build is None else RuntimeBuildCompatibility(build)
    async with FlowEngine(Flow(), store, builds=builds, codec=codec) as engine:
        yield engine


async def _on_run(
    address: str,
    run_id: str,
    act: Callable[[FlowEngine], Awaitable[WorkflowRunSnapshot]],
    codec: PayloadCodec | None = None,
) -> _Acted:
    async with opened(address) as store, _engine(store, run_id, codec) as engine:
        return await _acted(store, await act(engine))


class _Acted(NamedTuple):
    """A run after the command, and why workers do not carry that out at once, if so."""

    snapshot: WorkflowRunSnapshot
    obstacle: str | None


async def _acted(store: FlowEventStore, snapshot: WorkflowRunSnapshot) -> _Acted:
    return _Acted(snapshot, obstacle(snapshot.run_id, await store.lease(snapshot.run_id), store.clock()))


def _tell(acted: _Acted, json: bool) -> None:
    snapshot = acted.snapshot
    if json:
        tell_json({"run_id": snapshot.run_id, "status": snapshot.status, "last_sequence": snapshot.last_sequence})
    else:
        typer.echo(f"run {snapshot.run_id} is {snapshot.status}, with {snapshot.last_sequence} events")
    if acted.obstacle is not None:
        say(acted.obstacle)


# resume --------------------------------------------------------------------------------------------------------


def resume(
    store: StoreUrl,
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's id.")] = None,
    wait: Wait = None,
    hook: Hook = None,
    token: Token = False,
    payload: Payload = None,
    dispose: Dispose = False,
    early: Early = False,
    codec: Codec = None,
    json: Json = False,
) -> None:
    """Let a run go on: complete a wait, or answer or close a hook. A worker carries the run on.

    A token is a secret and comes on standard input, never as an argument, which other users of the machine could read:
    `perdure resume --token --payload '{"approved": true}' < token.txt`.
    """
    if sum((wait is not None, hook is not None, token)) != 1:
        raise typer.BadParameter("give one of --wait, --hook and --token", param_hint="--wait")
    if (run_id is None) != token:
        raise typer.BadParameter("name the run; with --token the token finds it", param_hint="RUN")
    given = None if codec is None else resolve_codec(codec)
    if wait is not None:
        if payload is not None or dispose:
            raise typer.BadParameter("a wait takes no answer", param_hint="--payload or --dispose")
        try:
            acted = perform(
                _on_run(store, run_id or "", lambda e: e.resume_wait(run_id or "", wait, early=early, drive=False))
            )
        except InvalidTransition as error:
            if error.rule != "wait_not_due":
                raise
            say(f"run {run_id!r}: wait {wait!r} is not due before {error.value}; --early completes it now")
            raise typer.Exit(1) from None
        _tell(acted, json)
        return
    if early:
        raise typer.BadParameter("only a wait has a time", param_hint="--early")
    if (payload is None) == (not dispose):
        raise typer.BadParameter("give --payload, or --dispose", param_hint="--payload")
    answer = _Answer(None if payload is None else _json(payload), given)
    if token:
        _tell(perform(answer.by_token(store, sys.stdin.read().strip())), json)
    else:
        _tell(perform(answer.by_id(store, run_id or "", hook or "")), json)


class _Answer:
    """What a hook is answered with; nothing closes it."""

    def __init__(self, payload: tuple[object] | None, codec: PayloadCodec | None) -> None:
        self._payload = payload
        self._codec = codec

    async def by_id(self, address: str, run_id: str, hook_id: str) -> _Acted:
        """Answers one hook of a run."""
        return await _on_run(address, run_id, lambda engine: self._give(engine, run_id, hook_id), self._codec)

    async def by_token(self, address: str, token: str) -> _Acted:
        """Answers the hook with this token."""
        async with opened(address) as store:
            async with FlowEngine(Flow(), store) as looking:
                run_id, hook_id = await looking.find_hook(token)
            async with _engine(store, run_id, self._codec) as engine:
                return await _acted(store, await self._give(engine, run_id, hook_id))

    async def _give(self, engine: FlowEngine, run_id: str, hook_id: str) -> WorkflowRunSnapshot:
        if self._payload is None:
            return await engine.dispose_hook(run_id, hook_id, drive=False)
        return await engine.resume_hook(run_id, hook_id, self._payload[0], drive=False)


def _json(text: str) -> tuple[object]:
    try:
        return (decode(text.encode("utf-8", "surrogateescape")),)
    except Serialization as error:
        raise typer.BadParameter(
            f"it is no JSON ({error.detail}); a text needs its quotes: '\"yes\"'", param_hint="--payload"
        ) from None


# cancel, release -----------------------------------------------------------------------------------------------


def cancel(
    store: StoreUrl,
    run_id: RunId,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept in the run's history.")] = None,
    force: Annotated[bool, typer.Option("--force", help="End it at once, without its clean-up.")] = False,
    json: Json = False,
) -> None:
    """Ask a run to clean up and end; a worker carries that out. With --force it ends at once."""

    async def act(engine: FlowEngine) -> WorkflowRunSnapshot:
        if force:
            return await engine.force_cancel(run_id, reason)
        return await engine.request_cancellation(run_id, reason, drive=False)

    _tell(perform(_on_run(store, run_id, act)), json)


def release(
    store: StoreUrl,
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Runs that are held.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are held, or those of --workflow.")] = False,
    workflow: Workflow = None,
    json: Json = False,
) -> None:
    """Let workers take held runs again, once their code has been repaired."""
    if bool(run_ids) == every:
        raise typer.BadParameter("name runs, or give --all", param_hint="RUN")
    if workflow is not None and not every:
        raise typer.BadParameter("it goes with --all", param_hint="--workflow")

    held = RunFilter(name=workflow, held=True)

    async def work() -> tuple[dict[str, list[str]], dict[str, str | None]]:
        answers: dict[str, list[str]] = {"released": [], "not_held": [], "missing": []}
        backing_off: dict[str, str | None] = {}
        async with opened(store) as opened_store:
            chosen = await every_run_id(opened_store, held) if every else list(dict.fromkeys(run_ids or []))
            with counted("releasing", len(chosen)) as more:
                for run_id in chosen:
                    try:
                        kind = "released" if await opened_store.release_hold(run_id) else "not_held"
                        if kind == "not_held":
                            backing_off[run_id] = failing(await opened_store.lease(run_id), opened_store.clock())
                    except RunNotFound:
                        kind = "missing"
                    answers[kind].append(run_id)
                    more(1)
        return answers, backing_off

    answers, backing_off = perform(work())
    if json:
        tell_json(answers)
    elif answers["released"]:
        tell_table(("released",), [(run_id,) for run_id in answers["released"]])
    if every:
        if not answers["released"]:
            say("no such run is held")
        return
    for run_id in answers["not_held"]:
        words = backing_off[run_id]
        say(f"run {run_id!r} was not held" + ("" if words is None else f"; {words}"))
    for run_id in answers["missing"]:
        say(f"run {run_id!r} is not in the store")
    if answers["missing"] or answers["not_held"]:
        raise typer.Exit(1)
