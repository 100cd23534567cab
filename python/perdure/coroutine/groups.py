"""Groups: `gather`, `race` and `as_completed` (R36)."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from perdure.coroutine.chain import WAITING, Chain, Rank, Signal
from perdure.coroutine.handles import ChainHandle, Handle, StepHandle, WaitHandle
from perdure.coroutine.places import Place, place_of, tell
from perdure.coroutine.signals import BranchCancelled, WorkflowCancelled, is_bug
from perdure.errors import Serialization
from perdure.outcome import brief

if TYPE_CHECKING:
    from perdure.coroutine.replay import Replay

__all__ = ["AsCompleted", "Gather", "Group", "Race", "close_unstarted", "pass_over"]

T = TypeVar("T")

_ENDING = (BranchCancelled, WorkflowCancelled)


class Group(Generic[T]):
    """What `gather` and `race` share: members are opened when the group is awaited, chains are waited for."""

    def __init__(self, replay: Replay, members: Iterable[Any], place: Place) -> None:
        self._replay, self._members, self.place = replay, tuple(members), place
        self._begun = False
        self._finished = False
        self._parent: Chain | None = None
        self._shields: tuple[Any, ...] = ()
        self._handles: list[Handle[Any]] = []
        self._open: dict[Handle[Any], None] = {}
        self._signal: Signal | None = None
        self._error: BaseException | None = None
        replay.idle[self] = None

    called = "group"

    def __await__(self) -> Generator[Any, Any, T]:
        replay = self._replay
        if replay.over:
            close_unstarted(self._members)
            yield from replay.refuse()
        if self._begun:
            raise RuntimeError(f"the {self.called} made at {tell(self.place)} is awaited a second time")
        self._begun = True
        replay.idle.pop(self, None)
        try:
            chain = replay.enter(place_of(sys._getframe(1)))
        except BaseException:
            pass_over(replay, self._members)
            raise
        self._begin(chain)
        while not self._finished:
            chain.waiting = self
            yield WAITING
            if replay.over:
                raise GeneratorExit
        return self._outcome()

    def forget(self) -> None:
        """It will never be awaited; its coroutines end here, so that Python does not tell of them once more."""
        close_unstarted(self._members)

    def describe(self) -> str:
        rest = ", ".join(handle.describe() for handle in self._open)
        return f"{self.called} of {rest or 'nothing open'}"

    # -- the members ---------------------------------------------------------------------------------------------

    def _begin(self, chain: Chain) -> None:
        self._parent, self._shields = chain, tuple(chain.shields)
        path = chain.next_group()
        handles: dict[int, Handle[Any]] = {}  # one coroutine given twice is run once
        for number, member in enumerate(self._members, 1):
            handle = handles.get(id(member))
            if handle is None:
                handle = self._replay.handle_of(member, chain, f"{path}{number}/", self.place)
                handles[id(member)] = handle
            self._handles.append(handle)
        self._members = ()
        for handle in self._handles:
            handle.seen = True
            if not handle.done():
                self._open[handle] = None
                handle.watch(self)
        for handle in sorted({id(h): h for h in self._handles if h.done()}.values(), key=lambda handle: handle.order):
            self._resolved(handle)
        self._check_finished()

    def wake(self, handle: Handle[Any]) -> None:
        """A member resolved."""
        self._open.pop(handle, None)
        if not self._finished:
            self._resolved(handle)
            self._check_finished()

    def _resolved(self, handle: Handle[Any]) -> None:
        raise NotImplementedError

    def _waits_for(self, handle: Handle[Any]) -> bool:
        """Whether the group, told to end, waits for this member."""
        return isinstance(handle, ChainHandle)

    def _ends(self) -> bool:
        """Whether the group was told to end."""
        return self._signal is not None or self._error is not None

    def _check_finished(self) -> None:
        ends = self._ends()
        still_open = any(not ends or self._waits_for(handle) for handle in self._open)
        if not still_open and not self._finished:
            self._finish()

    def _finish(self) -> None:
        self._finished = True
        for handle in self._open:
            handle.unwatch(self)
        self._open.clear()
        if self._parent is not None and self._parent.waiting is self:
            self._parent.wake()

    def _outcome(self) -> T:
        """What the await gives, or raises why the group ended."""
        error, signal, chain = self._error, self._signal, self._parent
        if error is not None and (signal is None or is_bug(error)):
            if signal is not None and chain is not None:
                chain.put(signal)  # a fault of the code comes first; the signal is raised at the next await
            raise error
        if signal is not None:
            raise signal.error
        return self._results()

    def _results(self) -> T:
        raise NotImplementedError

    # -- ending --------------------------------------------------------------------------------------------------

    def interrupt(self, chain: Chain, signal: Signal) -> bool:
        """The blocked parent is to get this signal: the group ends its chains first and raises it then. A group that
        already ends keeps its reason, but for the request; then the parent gets the signal at its next await."""
        if self._ends() and signal.rank is not Rank.REQUEST:
            chain.put(signal)
            return True
        self._signal = signal
        if self._error is not None and not self._replay.is_fault(self._error):
            self._error = None  # overridden
        self._end_chains(signal.error.__cause__ if signal.rank is Rank.BRANCH else None)
        self._check_finished()
        return True

    def _end_chains(self, reason: BaseException | None = None) -> None:
        """Tells the chains that they are not needed; `reason` is the failure that ends the group, if one does."""
        for handle in list(self._open):
            if isinstance(handle, ChainHandle) and handle.chain is not None:
                error = BranchCancelled()
                error.__cause__ = reason
                self._replay.tell(handle.chain, Signal(Rank.BRANCH, error, self._shields))

    def _later(self, handle: Handle[Any], error: BaseException) -> None:
        """A failure after the reason: a fault of the code replaces it, anything else is noted."""
        if isinstance(error, _ENDING):
            return
        if is_bug(error) and (self._error is None or not is_bug(self._error)):
            self._error = error
            return
        if not isinstance(handle, ChainHandle):
            return
        text = f"{handle.describe()} then failed: {brief(error)}"
        reason = self._error if self._signal is None else self._signal.error
        if reason is not None:
            reason.add_note(text)
        self._replay.warn(text, self.place)


class Gather(Group[T]):
    """All members; ends at the first failure, when all its work has ended."""

    called = "gather"

    def __init__(self, replay: Replay, members: Iterable[Any], place: Place, return_exceptions: bool) -> None:
        super().__init__(replay, members, place)
        self._return_exceptions = return_exceptions

    def _resolved(self, handle: Handle[Any]) -> None:
        error = handle.failure()
        if error is None:
            return
        if self._ends():
            self._later(handle, error)
        elif not self._return_exceptions:
            self._error = error
            self._end_chains(error)

    def _waits_for(self, handle: Handle[Any]) -> bool:
        return isinstance(handle, ChainHandle) or (self._signal is None and isinstance(handle, StepHandle))

    def _results(self) -> T:
        if not self._return_exceptions:
            return cast(T, tuple(handle.take() for handle in self._handles))
        outcomes = [(handle, handle.failure()) for handle in self._handles]
        for _, error in outcomes:
            if isinstance(error, WorkflowCancelled):
                raise error
        return cast(T, tuple(_value(handle) if error is None else error for handle, error in outcomes))


def _value(handle: Handle[Any]) -> object:
    """The handle's value, or as a value the `Serialization` that its await raises: what is stored does not fit the type."""
    try:
        return handle.value()
    except Serialization as error:
        return error


class Race(Group[T]):
    """The first member to resolve, as its handle."""

    called = "race"

    def __init__(self, replay: Replay, members: Iterable[Any], place: Place) -> None:
        super().__init__(replay, members, place)
        if not self._members:
            replay.idle.pop(self, None)
            raise ValueError("race() needs at least one member")
        self._winner: Handle[Any] | None = None
        self._given = [member for member in self._members if isinstance(member, WaitHandle) and not member.opened]

    def _ends(self) -> bool:
        return self._winner is not None or super()._ends()

    def _resolved(self, handle: Handle[Any]) -> None:
        if not self._ends():
            self._winner = handle
            if not isinstance(handle, ChainHandle):
                handle.seen = False  # the winner's failure is raised by its own result()
            self._end_chains(handle.failure())
            for lost in self._given:
                if lost is not handle and lost.closes_when_lost:
                    lost.shut()
        elif handle is not self._winner and (error := handle.failure()) is not None:
            self._later(handle, error)

    def _results(self) -> T:
        return cast(T, self._winner)


class AsCompleted(AsyncIterator[Handle[T]], Generic[T]):
    """Handles in the order in which they resolve."""

    def __init__(self, replay: Replay, handles: Iterable[Handle[T]], place: Place) -> None:
        self._replay, self.place = replay, place
        self._handles = list(dict.fromkeys(handles))
        self._left = len(self._handles)
        self._ready: deque[Handle[T]] = deque(sorted((h for h in self._handles if h.done()), key=lambda h: h.order))
        self._waiting: dict[Chain, None] = {}
        listener = _Listener(self)
        for handle in self._handles:
            handle.seen = True
            if not handle.done():
                handle.watch(listener)
        weakref.finalize(
            self, _unwatch, tuple(weakref.ref(handle) for handle in self._handles), listener
        ).atexit = False

    def __aiter__(self) -> AsCompleted[T]:
        return self

    def __anext__(self) -> Awaitable[Handle[T]]:
        if not self._left:
            raise StopAsyncIteration
        return _Next(self)

    def describe(self) -> str:
        return "the next of " + ", ".join(handle.describe() for handle in self._handles if not handle.done())

    def interrupt(self, chain: Chain, signal: Signal) -> bool:
        self._waiting.pop(chain, None)
        return False

    def resolved(self, handle: Handle[T]) -> None:
        self._ready.append(handle)
        self._wake_one()

    def _wake_one(self) -> None:
        """Several chains may share the iterator; the one that waits longest is next."""
        chain = next(iter(self._waiting), None)
        if chain is not None:
            del self._waiting[chain]
            chain.wake()

    def next(self, place: Place) -> Generator[Any, Any, Handle[T]]:
        replay = self._replay
        if replay.over:
            yield from replay.refuse()
        chain = replay.enter(place)
        while not self._ready:
            if not self._left:
                self._wake_one()
                raise StopAsyncIteration
            self._waiting[chain], chain.waiting = None, self
            yield WAITING
            if replay.over:
                raise GeneratorExit
            if chain.pending is not None:
                if self._ready:
                    self._wake_one()
                chain.raise_pending()
        self._left -= 1
        if not self._left:
            self._wake_one()
        return self._ready.popleft()


class _Next(Awaitable[Handle[T]]):
    def __init__(self, of: AsCompleted[T]) -> None:
        self._of = of

    def __await__(self) -> Generator[Any, Any, Handle[T]]:
        return (yield from self._of.next(place_of(sys._getframe(1))))


class _Listener:
    """Watches handles for an iterator without keeping it alive."""

    def __init__(self, of: AsCompleted[Any]) -> None:
        self._of = weakref.ref(of)

    def wake(self, handle: Handle[Any]) -> None:
        of = self._of()
        if of is not None:
            of.resolved(handle)


def _unwatch(handles: tuple[weakref.ref[Handle[Any]], ...], listener: _Listener) -> None:
    for reference in handles:
        handle = reference()
        if handle is not None:
            handle.unwatch(listener)


def pass_over(replay: Replay, members: Iterable[Any]) -> None:
    """These were to be awaited, and a signal that was due came first: they never begin, and nobody forgot them."""
    close_unstarted(members)
    for member in members:
        if type(member).__hash__ is not None:  # of an awaitable of the user's own
            replay.idle.pop(member, None)


def close_unstarted(members: Iterable[Any]) -> None:
    """Coroutines that will not be started are closed, so that Python does not say they were never awaited."""
    for member in members:
        close = getattr(member, "close", None)
        if close is not None and hasattr(member, "cr_frame"):
            close()
