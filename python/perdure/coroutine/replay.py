"""`Replay`: one run's coroutine, fed its history event by event (R37, R38).

Kept between asks it is a cache: it is fed only what is new, and dropping it changes nothing in the log (R63).
"""

from __future__ import annotations

import secrets
import sys
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from threading import get_ident
from typing import Any, Final, Protocol, TypeVar

from perdure.commands import Member, RuntimeCommand
from perdure.coroutine import ending, report
from perdure.coroutine.chain import WAITING, Chain, Rank, Shield, Signal
from perdure.coroutine.closing import close_chains, close_generators
from perdure.coroutine.context import AsyncContext
from perdure.coroutine.handles import ChainHandle, Handle, HookHandle, StepHandle, WorkHandle
from perdure.coroutine.logs import PassLog
from perdure.coroutine.places import Place, tell
from perdure.coroutine.scopes import AWAITING, INSIDE, awaiting
from perdure.coroutine.signals import BranchCancelled, PassEnded, WorkflowCancelled, is_bug
from perdure.coroutine.trap import foreign_yield, loop_in_loop, trapped
from perdure.errors import DuplicateId, FlowError, NonDeterministic, WorkflowRaised
from perdure.kernel import Reads
from perdure.outcome import message_of
from perdure.values import CancellationRequest

__all__ = ["Program", "Replay"]

T = TypeVar("T")
_AWAITS_WHEN_OVER: Final = 1_000
_KINDS: Final = ("step", "wait", "hook")
_LEAST_AHEAD: Final = 8
_MOST_AHEAD: Final = 512


class Program(Protocol):
    """The workflow that is run: its code, and what its exceptions mean."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def fails_on(self) -> tuple[type[BaseException], ...]: ...

    def begin(self, ctx: AsyncContext, raw_input: bytes) -> Coroutine[Any, Any, Any]:
        """Calls the workflow function. Raises `Serialization("payload")` if the input does not fit its parameters."""
        ...


class Replay:
    """One run's chains and what they asked for. `ask` is the driver; everything else is for handles and groups."""

    def __init__(
        self, program: Program, run_id: str, same: Callable[[bytes, bytes], bool], tokens: dict[str, str] | None = None
    ) -> None:
        """`same` says whether two JSON texts are equal; `tokens` are those drawn for hooks that are not recorded yet."""
        self.program, self.run_id, self.same = program, run_id, same
        self.reads: Reads
        self.latest = 0  # the largest timestamp up to the last event delivered, ns
        self.live = False
        self.over = True  # no code of the workflow runs, or nothing that it still does counts
        self.reason: str | None = None  # of the cancellation request
        self.outer_error: BaseException | None = None
        self.ready: deque[Chain] = deque()
        self.main: Chain | None = None
        self.chains: dict[Chain, None] = {}
        self.result: Any = None
        self.error: BaseException | None = None
        self._position = 0
        self._marks: deque[tuple[int, str, str, int]] = deque()
        self._ahead = _LEAST_AHEAD
        self._decided = 0
        self._requested = 0  # the sequence of the cancellation request that was delivered
        self._current: Chain | None = None
        self._fatal: BaseException | None = None
        self._broken = False
        self._thread = 0
        self.dead = False  # its code is being closed
        self._closing_awaits: bool | None = None  # while code runs that must not await: whether it did
        self._telling: list[tuple[Chain, Signal]] | None = None  # while chains are told: whom their groups tell
        self._refusals = 0
        self._order = 0
        self._asked: dict[tuple[str, str], WorkHandle[Any] | Member] = {}
        self._open: dict[tuple[str, str], WorkHandle[Any]] = {}
        self._closings: dict[WorkHandle[Any], None] = {}
        self._facts: dict[tuple[str, str], bytes] = {}
        self._used: dict[str, dict[str, Place]] = {kind: {} for kind in _KINDS}
        self._steps_used = self._used["step"]
        self._limits: dict[str, int] = {}
        self._tokens = {} if tokens is None else tokens
        self.idle: dict[Any, None] = {}  # calls and groups that are not awaited yet
        self._unread: dict[Handle[Any], None] = {}
        self._warnings: list[tuple[str, Place]] = []
        self._generators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.log = PassLog(self)

    # -- one pass ------------------------------------------------------------------------------------------------

    def ask(self, reads: Reads) -> RuntimeCommand:
        """Feeds the code what is new in `reads` and gives its next command. Raises what ends the pass; then this object
        is of no use any more and must be closed."""
        self.reads, self._thread = reads, get_ident()
        self.outer_error = sys.exc_info()[1]
        with trapped(self._generators, self._finalised, self._error_of_loop):
            self._walk()
        if self.main is None:
            raise FlowError(f"run {self.run_id!r} has not started")
        return ending.command(self, self.main)

    def open_hook(self, hook_id: str) -> Callable[[bytes], None] | None:
        """What judges a payload for this open hook, by raising `Serialization("payload")`; None if the code has asked for no
        such hook."""
        key = ("hook", hook_id)
        handle = self._open.get(key) or self._asked.get(key)  # whose creation was committed since
        return handle.check if isinstance(handle, HookHandle) else None

    def _walk(self) -> None:
        self._decided = self.reads.last_created
        self._forget_marks()
        while self._marks or self._more():  # `passed` moves on, too
            sequence, event, subject, latest = self._marks.popleft()
            self._position = sequence
            kind, _, what = event.partition("_")
            if what == "created":
                self._recorded(sequence, (kind, subject))
                continue
            self.latest, self.live = latest, sequence > self._decided
            if kind != "run":
                self._resolved((kind, subject), event)
            elif event == "run_cancellation_requested":
                self._request(sequence)
            elif self.main is None:
                self._begin()
            if self.ready:
                self._run()

    def _more(self) -> bool:
        self._marks.extend(self.reads.timeline(self._position, self._ahead))
        self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        return bool(self._marks)

    def _forget_marks(self) -> None:
        self._marks.clear()
        self._ahead = _LEAST_AHEAD

    def passed(self, handle: StepHandle[Any]) -> bytes | None:
        """The short way of a step that is awaited at once: if the next two events are its creation and its completion, they
        are delivered right here, as nobody else could be woken by them. Gives the output then; else nothing is changed."""
        chain = self._current
        if chain is None or handle.opened or self.over or self.ready or chain.pending is not None or chain.shields:
            return None
        step, count = handle.step, 0
        given: Any = step.given_id
        if given is None:
            name = step.name
            if handle.scope or chain.path:
                name = handle.scope + chain.path + name
            names = chain.names
            count = names.get(name, 0) + 1
            step_id = name if count == 1 else f"{name}#{count}"
        elif isinstance(given, str):
            step_id = handle.scope + given
        else:
            return None
        marks, used = self._marks, self._steps_used
        if step_id in used or (marks and marks[0][2] != step_id):
            return None
        found = self.reads.replayed_step(self._position, step_id, step.name, handle.input or b"null", step.async_retry)
        if found is None:
            return None
        position, self.latest, output = found
        self._position = position
        self.live = position > self._decided
        if marks:
            self._forget_marks()
        if count:
            names[name] = count
        chain.place = used[step_id] = handle.place  # as good as where it is awaited, and at hand
        self.idle.pop(handle, None)
        handle.id, handle.opened, handle.seen, handle.ended = step_id, True, True, "step_completed"
        self._order = handle.order = self._order + 1
        return output

    def _begin(self) -> None:
        ctx = AsyncContext(self, self.log)
        context = Context()
        coroutine = context.run(self.program.begin, ctx, self.reads.input)
        self.main = chain = Chain(self, coroutine, context)
        self.chains[chain] = None
        self.ready.append(chain)

    def _run(self) -> None:
        """Runs each chain in its turn until it blocks."""
        ready = self.ready
        while ready:
            chain = ready.popleft()
            if chain.done or self._broken:
                continue
            if not chain.started and getattr(chain.coroutine, "cr_suspended", False):
                self.finished(
                    chain, None, RuntimeError(f"{chain.handle.describe()} is run already; start one of its own")
                )
                continue
            self._current, chain.started = chain, True
            self.over = False
            try:
                yielded = chain.context.run(chain.coroutine.send, None)
            except StopIteration as stop:
                self._current, self.over = None, True
                self.finished(chain, stop.value, None)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # whatever the workflow raises is its end, judged later
                self._current, self.over = None, True
                if (foreign := loop_in_loop(error)) is not None:
                    raise self.end_pass(foreign) from error
                self.finished(chain, None, error)
            else:
                self._current, self.over = None, True
                if yielded is not WAITING and self._fatal is None:
                    self.end_pass(foreign_yield(chain.coroutine, yielded))
            if self._fatal is not None:
                raise self._fatal

    def finished(self, chain: Chain, value: Any, error: BaseException | None) -> None:
        """A chain ended."""
        chain.done = True
        self.chains.pop(chain, None)
        if chain is not self.main:
            handle: ChainHandle[Any] = chain.handle
            handle.end(value, error)
            return
        self.result, self.error = value, error
        if error is not None and self.is_fault(error):
            self._broken = True  # a fault of the code compensates nothing: no other chain goes on
            return
        for open_chain in self._innermost_first():
            open_chain.interrupt(_returned())

    def tell(self, chain: Chain, signal: Signal) -> None:
        """Interrupts a chain and, before its next sibling, those that its groups tell then: groups inside groups, however
        many, take no stack."""
        if self._telling is not None:
            self._telling.append((chain, signal))
            return
        left = [(chain, signal)]
        try:
            while left:
                further: list[tuple[Chain, Signal]] = []
                self._telling, (told, by) = further, left.pop()
                told.interrupt(by)
                left.extend(reversed(further))
        finally:
            self._telling = None

    def _innermost_first(self) -> list[Chain]:
        return sorted(self.chains, key=lambda chain: -chain.depth)

    # -- what the history says -----------------------------------------------------------------------------------

    def _recorded(self, sequence: int, key: tuple[str, str]) -> None:
        handle = self._asked.pop(key, None)
        if not isinstance(handle, WorkHandle):
            raise self._drift(sequence, key)
        self._open[key] = handle
        handle.recorded()
        if key[0] == "hook":
            self._tokens.pop(key[1], None)
        if self._fatal is not None:
            raise self._fatal

    def _resolved(self, key: tuple[str, str], event: str) -> None:
        handle = self._open.pop(key, None)
        if handle is not None:
            if key[0] == "step":
                self._limits.pop(key[1], None)
            self._closings.pop(handle, None)
            handle.resolve(event)

    def _request(self, sequence: int) -> None:
        """The cancellation request: cancels what is open or was only asked for, then is raised in every open chain."""
        self._requested = sequence
        request = self.request()
        self.reason = None if request is None else request.reason
        if self.main is None:
            self._begin()
        taken = [*self._open.values(), *(asked for asked in self._asked.values() if isinstance(asked, WorkHandle))]
        self._open.clear()
        self._asked = {key: asked for key, asked in self._asked.items() if isinstance(asked, Member)}
        self._closings.clear()
        self._limits.clear()
        taken = [handle for handle in taken if not handle.done()]
        again = [handle for handle in taken if handle.shielded and handle.kind != "hook"]
        cancelled = [handle for handle in taken if handle not in again]
        for handle in sorted(cancelled, key=lambda handle: (_KINDS.index(handle.kind), handle.id.encode())):
            handle.ended = "request"
            handle.mark()
        for chain in self._innermost_first():
            chain.interrupt(Signal(Rank.REQUEST, WorkflowCancelled(self.reason)))
        for handle in again:
            self._call(handle, f"{handle.id}~cancel")
            self._ask(handle)
        for handle in cancelled:
            handle.wake_all()

    def drifted(self, handle: WorkHandle[Any], part: str, recorded: bytes, now: bytes) -> None:
        """The definition of recorded work is another now."""
        text, other = recorded.decode(), now.decode()
        self.end_pass(NonDeterministic(self.run_id, handle.kind, handle.id, part, self._position, text, other))

    def _drift(self, sequence: int, key: tuple[str, str]) -> NonDeterministic:
        return report.unasked(self, sequence, key)

    # -- what handles and groups ask -----------------------------------------------------------------------------

    def enter(self, place: Place) -> Chain:
        """An await begins; raises the signal that is due at it."""
        chain = self._current
        if chain is None:
            raise self._outside()
        code = place[0]
        if code is not AWAITING and code is not INSIDE:
            chain.place = place
        if chain.pending is not None:
            chain.raise_pending()
        return chain

    def current_chain(self) -> Chain:
        """The chain that is running. Raises `RuntimeError` outside of a pass."""
        if self._current is None or get_ident() != self._thread:
            raise self._outside()
        return self._current

    def _outside(self) -> RuntimeError:
        return RuntimeError(f"this belongs to a workflow (run {self.run_id!r}) and works only while its code runs")

    def absent(self) -> bool:
        """Whether what the code asks for is to have no effect: the pass has ended, was dropped, or is being collected.
        Raises `RuntimeError` for other code than the workflow's."""
        if not self.over:
            return False
        ending = self.dead or self._fatal is not None or self._closing_awaits is not None
        if not ending and not any(getattr(chain.coroutine, "cr_running", False) for chain in self.chains):
            raise self._outside()
        return True

    def refuse(self) -> Generator[Any, Any, None]:
        """An await of a pass that is over: nothing can come of it. Code that goes on awaiting regardless is suspended."""
        self.absent()
        if self._closing_awaits is not None:
            self._closing_awaits = True
        self._refusals += 1
        if self._refusals > _AWAITS_WHEN_OVER:
            yield WAITING
        raise GeneratorExit if self._fatal is None else PassEnded

    def end_pass(self, error: BaseException) -> BaseException:
        """Ends the pass with this error even if the workflow catches it; gives what to raise."""
        if self._fatal is None:
            self._fatal = error
            self.over = True
            if isinstance(error, FlowError):
                error.run_id = self.run_id
        return self._fatal

    def next_order(self) -> int:
        self._order += 1
        return self._order

    def handle_of(self, member: Any, chain: Chain, path: str, place: Place) -> Handle[Any]:
        """The handle of a member of a group: work is opened, a coroutine becomes a chain."""
        if isinstance(member, Handle):
            if isinstance(member, WorkHandle):
                member.open(chain)
            return member
        if not hasattr(member, "cr_frame"):
            if not hasattr(member, "__await__"):
                raise TypeError(f"a group takes awaitables, and one is {type(member).__name__}")
            member = awaiting(member)
        return self._chain(member, chain, path, place)

    def start(self, coroutine: Coroutine[Any, Any, Any], place: Place) -> Handle[Any]:
        """`ctx.start(coroutine)`."""
        if self.absent():
            coroutine.close()
            return ChainHandle(self, place)
        chain = self.current_chain()
        handle = self._chain(coroutine, chain, f"{chain.next_group()}1/", place)
        handle.started = True
        if self.main is not None and self.main.done and handle.chain is not None:  # nobody would end it otherwise
            handle.chain.interrupt(_returned())
        return handle

    def _chain(self, coroutine: Coroutine[Any, Any, Any], parent: Chain, path: str, place: Place) -> ChainHandle[Any]:
        handle: ChainHandle[Any] = ChainHandle(self, place)
        chain = Chain(self, coroutine, copy_context(), path, parent.depth + 1, handle, list(parent.shields))
        chain.place, chain.fault = place, self.fault_at(parent)
        handle.chain = chain
        self.chains[chain] = None
        self.ready.append(chain)
        return handle

    def opened(self, handle: WorkHandle[Any], chain: Chain) -> None:
        """Work is asked for, in this chain."""
        self._name(handle, chain)
        self._ask(handle)

    def _name(self, handle: WorkHandle[Any], chain: Chain) -> None:
        self.idle.pop(handle, None)
        if chain.shields:
            handle.shielded = True
        if handle.given_id is None:
            name = handle.scope + chain.path + handle.name
            names = chain.names
            count = names[name] = names.get(name, 0) + 1
            self._call(handle, name if count == 1 else f"{name}#{count}")
        elif isinstance(handle.given_id, str):
            self._call(handle, handle.scope + handle.given_id)
        else:
            raise TypeError(f"the id of a {handle.called} is text, not {type(handle.given_id).__name__}")

    def _call(self, handle: WorkHandle[Any], subject: str) -> None:
        """Gives it its id, which nothing of its kind may have had before."""
        first = self._used[handle.kind].setdefault(subject, handle.place)
        if first is not handle.place:
            error = DuplicateId(self.run_id, handle.kind, subject, tell(first), tell(handle.place))
            raise self.end_pass(error)
        handle.id = subject

    def _ask(self, handle: WorkHandle[Any]) -> None:
        self._asked[handle.key] = handle
        if isinstance(handle, StepHandle) and handle.limit_ms is not None:
            self._limits[handle.id] = handle.limit_ms

    def token(self, hook_id: str) -> str:
        """The secret of a hook: the recorded one, or a new one of 32 random bytes."""
        record = self.reads.hook(hook_id)
        if record is not None:
            return record.token
        return self._tokens.setdefault(hook_id, secrets.token_urlsafe(32))

    def closes(self, handle: WorkHandle[Any]) -> None:
        """A hook is disposed or a timer closed. One that is not recorded is neither opened nor closed."""
        if handle.key in self._open:
            self._closings[handle] = None
        else:
            self._asked.pop(handle.key, None)

    def lowered(self, shield: Shield) -> None:
        """A clean-up block ended."""
        for chain in self._innermost_first():
            if shield in chain.shields:
                chain.lower(shield)

    def fact(self, kind: str, subject: str, raw: bytes, member: Member) -> None:
        """Progress or a child link, recorded with this pass unless it is already."""
        if not self.absent():
            self._facts[kind, subject] = raw
            self._asked[kind, subject] = member

    def request(self) -> CancellationRequest | None:
        raw = self.reads.cancellation if self._requested else None
        return None if raw is None else CancellationRequest.recorded(raw)

    def first_resolved(self, refs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
        if wrong := [kind for kind, _ in refs if kind not in _KINDS]:
            raise ValueError(f"first_resolved knows the kinds 'step', 'wait' and 'hook', not {wrong[0]!r}")
        found = None if self.dead else self.reads.first_resolved(refs)
        return None if found is None or found[2] > self._position else (found[0], found[1])

    # -- faults --------------------------------------------------------------------------------------------------

    def is_fault(self, error: BaseException) -> bool:
        """Whether this is neither ours nor listed in `fails_on` (R39)."""
        return is_bug(error) and not isinstance(error, self.program.fails_on)

    def fault_at(self, chain: Chain) -> BaseException | None:
        """The fault that is being handled right now: by the running code of this chain, or by what began the chain.
        Whoever drives may be handling something, too; that is not the workflow's."""
        active = sys.exc_info()[1]
        if isinstance(active, BranchCancelled) and active.__cause__ is not None:
            active = active.__cause__  # what ended the group: a fault of one branch compensates nothing in another
        if active is not None and active is not self.outer_error and self.is_fault(active):
            return active
        return chain.fault

    def raised(self, error: BaseException) -> WorkflowRaised:
        """What the engine says of an exception that ends no run."""
        raised = report.raised(self, error)
        raised.__cause__ = error
        return raised

    def _error_of_loop(self, error: BaseException) -> BaseException:
        return self.end_pass(error)

    def _finalised(self, generator: Any) -> None:
        """An async generator was dropped while suspended: its clean-up may not await, nobody would wait for it."""
        problem = close_generators(self, [generator])
        if problem is not None and self._current is not None:
            self.end_pass(self.raised(problem))

    def without_awaits(self, act: Callable[[], object]) -> bool:
        """Does something that may run code of the workflow, which must not await; whether it did."""
        over, self.over, self._closing_awaits = self.over, True, False
        try:
            act()
            return self._closing_awaits
        finally:
            self.over, self._closing_awaits = over, None

    # -- what is said once ---------------------------------------------------------------------------------------

    def unread(self, handle: Handle[Any]) -> None:
        """A started handle failed and nobody has looked at it so far."""
        self._unread[handle] = None

    def warn(self, text: str, place: Place) -> None:
        """Said when the pass is committed."""
        if self.live:
            self._warnings.append((text, place))

    # -- for the driver's end ------------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """How many steps, waits and hooks the code has asked for."""
        return sum(map(len, self._used.values()))

    @property
    def requested(self) -> bool:
        return self._requested > 0

    @property
    def limits(self) -> dict[str, int]:
        """Time limits by `options` of the steps that are open, ms."""
        return self._limits

    def requests(self) -> list[Member]:
        """What was asked for and is not recorded, in the order asked, then the disposals and closings."""
        members = [asked if isinstance(asked, Member) else asked.member() for asked in self._pending()]
        closings = (handle.closing() for handle in self._closings)
        return members + [member for member in closings if member is not None]

    def facts(self) -> list[Member]:
        return [asked for asked in self._pending() if isinstance(asked, Member)]

    def _pending(self) -> list[WorkHandle[Any] | Member]:
        for key, raw in list(self._facts.items()):
            recorded = self.reads.progress(key[1]) if key[0] == "progress" else self.reads.child(key[1])
            if recorded is not None and (recorded == raw or self.same(recorded, raw)):
                del self._facts[key]
                self._asked.pop(key, None)
        return list(self._asked.values())

    def oldest_open(self) -> Member | None:
        handle = next(iter(self._open.values()), None)
        return None if handle is None else handle.member()

    def confirm(self) -> None:
        """The pass was committed: says what was held back."""
        self.log.flush()
        warnings, self._warnings = self._warnings, []
        report.emit(warnings)

    def returned(self) -> None:
        """The workflow returned: tells of what was never awaited."""
        for call in self.idle:
            self.warn(f"ctx.{call.called}(…) was never awaited and did nothing", call.place)
            call.forget()
        for handle in self._unread:
            error = None if handle.seen else handle.failure()
            if error is not None and not isinstance(error, BranchCancelled | WorkflowCancelled):
                self.warn(f"{handle.describe()} failed and was never awaited: {message_of(error)}", handle.place)
        self.idle.clear()
        self._unread.clear()

    def close(self) -> None:
        """Ends what is left, so that nothing of it runs later (R63)."""
        self.over, self.dead, self._fatal, self._refusals = True, True, None, 0
        with trapped(self._generators, self._finalised, self._error_of_loop):
            close_chains(self._innermost_first(), self.run_id)
            close_generators(self, list(self._generators))
        for call in self.idle:
            call.forget()
        self.dead = False
        self.idle.clear()
        self.chains.clear()
        self.ready.clear()


def _returned() -> Signal:
    return Signal(Rank.BRANCH, BranchCancelled("the workflow has returned"))
