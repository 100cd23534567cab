"""Small programs from one description, in both forms, with explicit ids.

A description is nested tuples, `(operation, id, …)`; a block is a tuple of operations. `in_async` runs one as a developer would
write it. `in_commands` answers from the history alone: it works out when each operation began and ended, as sequence numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from perdure import (
    AsyncContext,
    BranchCancelled,
    Flow,
    RetryPolicy,
    RuntimeCommand,
    StepContext,
    StepFailed,
    WorkflowCancelled,
    WorkflowContext,
)
from perdure.commands import Member

__all__ = ["flow_of"]

HOUR = timedelta(hours=1)
ONCE = RetryPolicy.none().continue_workflow_on_failure()
TWICE = RetryPolicy.fixed(2, HOUR).continue_workflow_on_failure()
"""The second attempt is due an hour later, so that a step can be open while the run is suspended."""


def flow_of(block: Any, *, commands: bool) -> tuple[Flow, Any]:
    """A flow with the workflow `program` in one form, and the step `work` that does as its input says."""
    flow = Flow(guard="off")

    @flow.step(inline=True)
    def work(context: StepContext, how: str) -> str:
        if how == "fails" or (how == "flaky" and context.attempt == 1):
            raise ValueError(how)
        return how

    if commands:

        @flow.workflow("program", version="1")
        def program(ctx: WorkflowContext) -> RuntimeCommand:
            return _Reader(ctx, work).answer(block)

        return flow, program

    @flow.workflow("program", version="1")
    async def workflow(ctx: AsyncContext) -> Any:
        return await _block(ctx, work, block)

    return flow, workflow


# -- the async form ----------------------------------------------------------------------------------------------------


async def _block(ctx: AsyncContext, work: Any, block: Any) -> list[Any]:
    return [await _one(ctx, work, *operation) for operation in block]


async def _one(ctx: AsyncContext, work: Any, operation: str, id: str, value: Any) -> Any:
    match operation:
        case "step":
            policy = TWICE if value == "flaky" else ONCE
            return await ctx.step(work.options(id=id, retry=policy), value)
        case "sleep":
            await ctx.sleep(HOUR, id=id)
            return "slept"
        case "ask":
            hook = ctx.hook(str, id=id, token=f"canary-{id}")
            if await ctx.race(hook, ctx.sleep(value * HOUR, id=id)) is hook:
                return hook.result()
            hook.dispose()
            return "silence"
        case "timer":
            timer = ctx.timer(HOUR, id=id)
            found = await _block(ctx, work, value)
            timer.close()
            return found
        case "limit":
            try:
                with ctx.scope(id):  # so that the automatic id of the limit is its chain's path and `timeout`
                    async with ctx.timeout(HOUR):
                        return await _block(ctx, work, value)
            except TimeoutError:
                return "late"
        case "gather":
            return list(await ctx.gather(*(_block(ctx, work, branch) for branch in value)))
        case "race":
            return (await ctx.race(*(_block(ctx, work, branch) for branch in value))).result()
        case "attempt":
            try:
                return await _block(ctx, work, value)
            except StepFailed as error:
                return error.error
        case _:
            try:
                return await _block(ctx, work, value)
            except (StepFailed, WorkflowCancelled, BranchCancelled):
                async with ctx.cleanup():
                    await ctx.step(work.options(id=id, retry=TWICE), "flaky")
                raise


# -- the command form --------------------------------------------------------------------------------------------------

_At = tuple[int, int]
"""A sequence, and the turn after it: chains that one event sets going run one after another, first in, first out (R36)."""


@dataclass(frozen=True)
class _Signal:
    """What ends a block from outside: "request", "branch", or the id of a time limit."""

    at: _At
    kind: str


@dataclass(frozen=True)
class _End:
    """How an operation ended: "ok", "failed", or a signal's kind; None while it has not."""

    kind: str | None
    at: _At = (0, 0)
    value: Any = None


_PENDING = _End(None)
_Signals = tuple[_Signal, ...]


@dataclass
class _Chain:
    """Where ids of groups and time limits are counted (R35)."""

    path: str = ""
    groups: int = 0

    @property
    def depth(self) -> int:
        return self.path.count("/")

    def members(self, count: int) -> list[_Chain]:
        self.groups += 1
        return [_Chain(f"{self.path}{self.groups}.{number}/") for number in range(1, count + 1)]


@dataclass(frozen=True)
class _Asked:
    """Work that the program has asked for, or closed. A request is raised in the innermost chains first; what it makes the
    program ask for `again` comes before that, in the old order."""

    at: _At
    depth: int
    member: Member
    again: _At = (0, 0)

    def turn(self, requested: int) -> tuple[_At, int, _At]:
        return self.at, -self.depth if self.at == (requested, 0) else 0, self.again


class _Reader:
    """Answers one ask. An operation that begins at a sequence is open from then on, and signals after it may end it."""

    def __init__(self, ctx: WorkflowContext, work: Any) -> None:
        self.ctx, self.work = ctx, work
        self.created: dict[tuple[str, str], int] = {}
        self.resolved: dict[tuple[str, str], tuple[_At, Any]] = {}
        self.disposed: set[tuple[str, str]] = set()
        self.begun = self.requested = 0
        self.asked: dict[tuple[str, str], _Asked] = {}
        self.closed: dict[tuple[str, str], _Asked] = {}
        for envelope in ctx.history:
            self._read(envelope.sequence, envelope.type, envelope.event)

    def _read(self, sequence: int, what: str, event: Any) -> None:
        if what == "run_started":
            self.begun = sequence
        elif what == "run_cancellation_requested":
            self.requested = sequence
        kind, _, end = what.partition("_")
        if kind not in ("step", "wait", "hook"):
            return
        key = (kind, event[f"{kind}_id"])
        if end == "created":
            self.created[key] = sequence
        elif end in ("completed", "failed", "non_retryable", "received"):
            self.resolved[key] = ((sequence, 0), event)
        elif end == "disposed":
            self.disposed.add(key)

    def answer(self, block: Any) -> RuntimeCommand:
        """The next command."""
        signals = (_Signal((self.requested, 0), "request"),) if self.requested else ()
        end = self.block(block, (self.begun, 0), signals, _Chain(), "")
        if end.kind is not None:
            if end.kind in ("ok", "request") and self.requested:
                return self.ctx.cancel()
            return self.ctx.complete(end.value) if end.kind == "ok" else self.ctx.fail(end.value)
        asked = sorted(self.asked.items(), key=lambda item: item[1].turn(self.requested))
        closed = sorted(self.closed.items(), key=lambda item: item[1].at)
        new = [one.member for key, one in asked if key not in self.created and not self._lost(one.at[0])]
        new += [one.member for key, one in closed if self._is_open(key)]
        if not new:
            new = [one.member for key, one in asked if self._is_open(key)][:1]
        return self.ctx.schedule_all(new)

    def _is_open(self, key: tuple[str, str]) -> bool:
        at = self.created.get(key)
        return at is not None and key not in self.resolved and key not in self.disposed and not self._lost(at)

    def _lost(self, at: int) -> bool:
        """What was asked for before the request and is not resolved by then, the request cancelled (R39)."""
        return at < self.requested

    # -- operations ----------------------------------------------------------------------------------------------------

    def block(self, block: Any, at: _At, signals: _Signals, chain: _Chain, scope: str) -> _End:
        found = []
        for operation, id, value in block:
            end = self.one(operation, scope + id, value, at, signals, chain, scope)
            if end.kind != "ok":
                return end
            at = end.at
            found.append(end.value)
        return _End("ok", at, found)

    def one(self, operation: str, id: str, value: Any, at: _At, signals: _Signals, chain: _Chain, scope: str) -> _End:
        match operation:
            case "step":
                return self.step(id, value, at, signals, chain)
            case "sleep":
                return self.leaf(("wait", id), self.ctx.wait_for(id, HOUR), at, signals, chain)
            case "ask":
                return self.ask(id, value, at, signals, chain)
            case "timer":
                return self.timer(id, value, at, signals, chain, scope)
            case "limit":
                return self.limit(id, value, at, signals, chain)
            case "gather" | "race":
                return self.group(operation, value, at, signals, chain.members(len(value)), scope)
            case "attempt":
                end = self.block(value, at, signals, chain, scope)
                return _End("ok", end.at, end.value) if end.kind == "failed" else end
            case _:
                return self.guarded(id, value, at, signals, chain, scope)

    def leaf(self, key: tuple[str, str], member: Member, at: _At, signals: _Signals, chain: _Chain) -> _End:
        self.asked.setdefault(key, _Asked(at, chain.depth, member))
        signal = _next(signals, at)
        resolved = self.resolved.get(key)
        if resolved is not None and (signal is None or resolved[0] <= signal.at):
            sequence, event = resolved
            if event["type"] in ("step_failed", "step_non_retryable"):
                return _End("failed", sequence, event["error"])
            return _End("ok", sequence, event.get("output", event.get("payload", "slept")))
        return _PENDING if signal is None else _End(signal.kind, signal.at)

    def step(self, id: str, how: str, at: _At, signals: _Signals, chain: _Chain) -> _End:
        policy = TWICE if how == "flaky" else ONCE
        return self.leaf(("step", id), self.ctx.schedule_step(id, self.work, how, retry=policy), at, signals, chain)

    def ask(self, id: str, hours: int, at: _At, signals: _Signals, chain: _Chain) -> _End:
        chain.members(2)
        hook = self.leaf(("hook", id), self.ctx.create_hook(id, f"canary-{id.rpartition('/')[2]}"), at, signals, chain)
        wait = self.leaf(("wait", id), self.ctx.wait_for(id, hours * HOUR), at, signals, chain)
        first = min((end for end in (hook, wait) if end.kind), key=lambda end: end.at, default=_PENDING)
        if first.kind == "ok" and first is hook:
            self.closed["wait", id] = _Asked(first.at, 0, self.ctx.close_wait(id))
        elif first.kind == "ok":
            self.closed["hook", id] = _Asked(first.at, 0, self.ctx.dispose_hook(id))
            return _End("ok", first.at, "silence")
        return first

    def timer(self, id: str, block: Any, at: _At, signals: _Signals, chain: _Chain, scope: str) -> _End:
        self.asked.setdefault(("wait", id), _Asked(at, chain.depth, self.ctx.wait_for(id, HOUR)))
        end = self.block(block, at, signals, chain, scope)
        if end.kind == "ok":
            self.closed["wait", id] = _Asked(end.at, 0, self.ctx.close_wait(id))
        return end

    def limit(self, id: str, block: Any, at: _At, signals: _Signals, chain: _Chain) -> _End:
        key = ("wait", f"{id}/{chain.path}timeout")
        self.asked.setdefault(key, _Asked(at, chain.depth, self.ctx.wait_for(key[1], HOUR)))
        late = self.resolved.get(key)
        inside = signals if late is None else (*signals, _Signal(late[0], id))
        end = self.block(block, at, inside, chain, f"{id}/")
        if end.kind is not None:
            self.closed[key] = _Asked(end.at, 0, self.ctx.close_wait(key[1]))
        return _End("ok", end.at, "late") if end.kind == id else end

    def guarded(self, id: str, block: Any, at: _At, signals: _Signals, chain: _Chain, scope: str) -> _End:
        end = self.block(block, at, signals, chain, scope)
        if end.kind in (None, "ok"):
            return end
        late = (self.requested, 0)
        shielded = (_Signal(late, "request"),) if late > end.at else ()
        clean = self.step(id, "flaky", end.at, shielded, chain)
        if clean.kind == "request":
            key = ("step", f"{id}~cancel")
            clean = self.step(key[1], "flaky", late, (), chain)
            self.asked[key] = replace(self.asked[key], at=(late[0], -1), again=end.at)
        if clean.kind is None:
            return _PENDING
        if clean.kind == "failed":
            return clean
        kinds = {signal.kind for signal in signals if end.at < signal.at <= clean.at}
        for kind in ("request", "branch"):
            if kind in kinds and end.kind != "request":
                return _End(kind, clean.at)
        return _End(end.kind, clean.at, end.value)

    def group(
        self, operation: str, branches: Any, at: _At, signals: _Signals, chains: list[_Chain], scope: str
    ) -> _End:
        def all_of(told: list[_Signals]) -> list[_End]:
            return [
                self.block(branch, at, signals, _Chain(chain.path), scope)
                for branch, chain, signals in zip(branches, chains, told, strict=True)
            ]

        begun, at = at, (at[0], at[1] + 1)
        before = dict(self.asked), dict(self.closed)
        ends = all_of([signals] * len(chains))
        telling = ("failed",) if operation == "gather" else ("ok", "failed")
        first = min((end for end in ends if end.kind in telling), key=lambda end: end.at, default=None)
        if first is not None:  # what had not ended by then gets the branch's signal
            self.asked, self.closed = before
            more = (*signals, _Signal((first.at[0], first.at[1] + 1), "branch"))
            ends = all_of([signals if end.kind is not None and end.at <= first.at else more for end in ends])
        if any(end.kind is None for end in ends):
            return _PENDING
        last = max(end.at for end in ends)
        last = (last[0], last[1] + 1)
        told = [signal for signal in signals if begun < signal.at <= last]
        if any(signal.kind == "request" for signal in told):
            return _End("request", last)
        if first is not None:
            return _End(first.kind, last, first.value)
        if told:
            return _End(min(told, key=lambda signal: signal.at).kind, last)
        return _End("ok", last, [end.value for end in ends])


def _next(signals: _Signals, at: _At) -> _Signal | None:
    return min((signal for signal in signals if signal.at > at), key=lambda signal: signal.at, default=None)
