"""Chains: a run's main coroutine and those given to a group or to `ctx.start`; what interrupts them (R36, R39, R65)."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from perdure.coroutine.places import Place
from perdure.coroutine.signals import BranchCancelled

if TYPE_CHECKING:
    from perdure.coroutine.handles import Handle
    from perdure.coroutine.replay import Replay

__all__ = ["WAITING", "Awaited", "Chain", "Rank", "Shield", "Signal", "Waiter"]

WAITING: Final = object()
"""What a chain yields to the driver when it blocks; anything else it yields is foreign (R64)."""


class Rank(IntEnum):
    """Which signal wins when two meet."""

    TIMEOUT = 1
    BRANCH = 2
    REQUEST = 3


class Shield:
    """One `ctx.cleanup()` block while it is open."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """Something to raise in a chain. `shields` are the blocks it comes from inside of: those do not keep it off.
    `owner` is the time limit that turns it into a `TimeoutError`."""

    rank: Rank
    error: BaseException
    shields: tuple[Shield, ...] = ()
    owner: object = None


class Waiter(Protocol):
    """What is told when a handle resolves."""

    def wake(self, handle: Handle[Any]) -> None: ...


class Awaited(Protocol):
    """What a chain can be blocked on: a handle or a group."""

    def describe(self) -> str: ...

    def interrupt(self, chain: Chain, signal: Signal) -> bool:
        """Takes the signal on behalf of the blocked chain; False if the chain is to get it by itself, now."""
        ...


@dataclass(slots=True, eq=False)
class Chain:
    """One coroutine and where it stands. `path` prefixes its automatic ids (R35)."""

    replay: Replay
    coroutine: Coroutine[Any, Any, Any]
    context: Context
    path: str = ""
    depth: int = 0
    handle: Any = None  # the `ChainHandle` of every chain but the main one
    shields: list[Shield] = field(default_factory=list)
    started: bool = False
    done: bool = False
    place: Place | None = None  # of its newest await
    waiting: Awaited | None = None
    pending: Signal | None = None
    behind: list[Signal] = field(default_factory=list)
    """Time limits that ran out before `pending` was raised: each limit is told of its own."""
    fault: BaseException | None = None  # what the code that began this chain was handling
    deferred: list[Signal] = field(default_factory=list)
    told: Rank | None = None
    names: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    randoms: int = 0
    uuids: int = 0

    def next_group(self) -> str:
        """The path of the next group of this chain, without its member."""
        self.groups += 1
        return f"{self.path}{self.groups}."

    # -- waking --------------------------------------------------------------------------------------------------

    def wake(self, handle: object = None) -> None:
        """Lets the chain go on in its turn."""
        self.waiting = None
        self.replay.ready.append(self)

    # -- signals -------------------------------------------------------------------------------------------------

    def interrupt(self, signal: Signal) -> None:
        """Raises the signal at the await the chain is at, or at its next one; later if a clean-up block shields it."""
        if self.done or not self._heeds(signal):
            return
        if self._is_shielded(signal):
            self.deferred.append(signal)
        else:
            self._deliver(signal)

    def _heeds(self, signal: Signal) -> bool:
        """At most one `BranchCancelled`, none after the request, and one request."""
        if signal.rank is Rank.TIMEOUT:
            return True
        if self.told is not None and signal.rank <= self.told:
            return False
        self.told = signal.rank
        return True

    def _is_shielded(self, signal: Signal) -> bool:
        return any(shield not in signal.shields for shield in self.shields)

    def _deliver(self, signal: Signal) -> None:
        if not self.started and self.handle is not None:  # of the main chain it is raised at the first await
            self.coroutine.close()
            self.replay.finished(self, None, BranchCancelled())
            return
        awaited = self.waiting
        if awaited is not None and awaited.interrupt(self, signal):
            return
        self.put(signal)
        if awaited is not None:
            self.wake()

    def put(self, signal: Signal) -> None:
        """Raised at the next await. Of two the higher wins; only a time limit is not lost by that."""
        held = self.pending
        if held is None:
            self.pending = signal
            return
        if signal.rank > held.rank:
            self.pending, signal = signal, held
        if signal.rank is Rank.TIMEOUT:
            self.behind.append(signal)

    def raise_pending(self) -> None:
        """Raises what was delivered and not raised yet."""
        signal = self.pending
        if signal is not None:
            self.pending = self.behind.pop(0) if self.behind else None
            raise signal.error

    def shelter(self, shield: Shield) -> None:
        """A clean-up block begins: what was not raised yet is raised when it ends."""
        self.shields.append(shield)
        if self.pending is not None:
            self.deferred += (self.pending, *self.behind)
            self.pending, self.behind = None, []

    def lower(self, shield: Shield) -> None:
        """A clean-up block ended: what only it kept off is delivered."""
        self.shields.remove(shield)
        free = [signal for signal in self.deferred if not self._is_shielded(signal)]
        self.deferred = [signal for signal in self.deferred if self._is_shielded(signal)]
        for signal in sorted(free, key=lambda signal: -signal.rank):
            late = signal.rank is Rank.BRANCH and self.told is Rank.REQUEST
            if not self.done and not late:
                self._deliver(signal)

    def forget(self, owner: object) -> None:
        """Drops the signals of a time limit whose block has ended."""
        self.behind = [signal for signal in self.behind if signal.owner is not owner]
        if self.pending is not None and self.pending.owner is owner:
            self.pending = self.behind.pop(0) if self.behind else None
        self.deferred = [signal for signal in self.deferred if signal.owner is not owner]
