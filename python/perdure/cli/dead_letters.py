"""`perdure dead-letters`: tasks that were set aside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import typer

from perdure.cli.shared import Json, ShowTokens, StoreUrl, counted, named, opened, perform, say, tell_json, tell_table
from perdure.errors import InvalidWorkerConfiguration
from perdure.queues import DeadTask, DurableTaskQueue

__all__ = ["register"]

_PAGE: Final = 500

QueueName = Annotated[str, typer.Option("--queue", metavar="NAME", help="The queue.")]
Leases = Annotated[list[str] | None, typer.Argument(metavar="LEASE...", help="As `list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All that are there now.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    letters = typer.Typer(no_args_is_help=True, help="Look after tasks that were set aside, and say why.")
    letters.command("list")(listing)
    letters.command("redrive")(redrive)
    letters.command("drop")(drop)
    app.add_typer(letters, name="dead-letters")


@asynccontextmanager
async def _queue(store: str, name: str) -> AsyncIterator[DurableTaskQueue]:
    async with opened(store) as opened_store:
        try:
            queue = DurableTaskQueue(opened_store, name)
        except InvalidWorkerConfiguration as error:
            raise typer.BadParameter(str(error), param_hint="--store or --queue") from None
        yield queue


async def _pages(queue: DurableTaskQueue, limit: int | None = None) -> list[DeadTask]:
    found: list[DeadTask] = []
    after: tuple[int, str] | None = None
    while limit is None or len(found) < limit:
        page = await queue.dead_lettered_tasks(
            after=after, limit=_PAGE if limit is None else min(_PAGE, limit - len(found))
        )
        found += page
        if not page:
            break
        after = page[-1].dead_lettered_at.ns, page[-1].lease_id
    return found


def listing(
    store: StoreUrl,
    queue: QueueName = "default",
    limit: Annotated[int, typer.Option(min=1, help="How many at most, oldest first.")] = 100,
    json: Json = False,
    show_tokens: ShowTokens = False,
) -> None:
    """List tasks that were set aside, oldest first. Their JSON, with payload and token, only with --show-tokens."""

    async def work() -> list[DeadTask]:
        async with _queue(store, queue) as found:
            return await _pages(found, limit)

    with named(store):
        dead = perform(work())
    if json:
        tell_json([_as_json(task, show_tokens) for task in dead])
        return
    rows = [
        (
            *(task.lease_id, task.task.type if task.task else "unreadable", task.run_id, task.attempts),
            *(str(task.dead_lettered_at), task.reason),
            *([task.raw.decode("utf-8", "replace")] if show_tokens else []),
        )
        for task in dead
    ]
    tell_table(("lease", "task", "run", "attempts", "set aside", "reason", *(["json"] if show_tokens else [])), rows)


def _as_json(task: DeadTask, show_tokens: bool) -> dict[str, object]:
    found: dict[str, object] = {
        "lease_id": task.lease_id,
        "type": task.task.type if task.task else None,
        "run_id": task.run_id,
        "reason": task.reason,
        "attempts": task.attempts,
        "enqueued_at": str(task.enqueued_at),
        "dead_lettered_at": str(task.dead_lettered_at),
    }
    return found | ({"task": task.raw.decode("utf-8", "replace")} if show_tokens else {})


def redrive(
    store: StoreUrl, leases: Leases = None, queue: QueueName = "default", every: All = False, json: Json = False
) -> None:
    """Enqueue tasks again, with all their attempts before them. One that is not there, or not any more, is refused."""
    _each(store, queue, leases or [], every, "redriven", DurableTaskQueue.redrive, json)


def drop(
    store: StoreUrl, leases: Leases = None, queue: QueueName = "default", every: All = False, json: Json = False
) -> None:
    """Delete tasks for good."""
    _each(store, queue, leases or [], every, "dropped", DurableTaskQueue.drop, json)


def _each(
    store: str,
    queue: str,
    leases: Sequence[str],
    every: bool,
    done: str,
    act: Callable[[DurableTaskQueue, str], Coroutine[Any, Any, bool]],
    json: bool,
) -> None:
    if bool(leases) == every:
        raise typer.BadParameter("name leases, or give --all", param_hint="LEASE")

    async def work() -> tuple[list[str], list[str]]:
        async with _queue(store, queue) as found:
            chosen = [task.lease_id for task in await _pages(found)] if every else list(dict.fromkeys(leases))
            answers: dict[bool, list[str]] = {True: [], False: []}
            with counted(done, len(chosen)) as more:
                for lease_id in chosen:
                    answers[await act(found, lease_id)].append(lease_id)
                    more(1)
            return answers[True], answers[False]

    with named(store):
        acted, missing = perform(work())
    if json:
        tell_json({done: acted, "missing": missing})
    else:
        tell_table((done,), [(lease_id,) for lease_id in acted])
    if missing and not every:
        say(f"not among the dead letters of queue {queue!r}: {' '.join(missing)}")
        raise typer.Exit(1)
