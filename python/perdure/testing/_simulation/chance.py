"""What is drawn from a seed: how the simulated world is made, and which accidents happen in it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from perdure.effects import CommitMode

__all__ = ["Chance", "Fate", "ProcessSettings", "Settings", "draw_settings"]

Fate = Literal["fine", "unavailable", "crash_before", "crash_after", "applied_unknown", "lost_unknown", "late"]
"""What becomes of one request: `late` answers `OutcomeUnknown` and takes effect some time afterwards."""
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """One process: an engine, and perhaps a worker beside it."""

    lease: bool
    works: bool
    commit: CommitMode
    concurrency: int
    build: str | None
    drifts: bool
    """Its code gives one step another input than the others' does."""
    grace_ms: int
    patience_s: int
    poll_ms: int


@dataclass(frozen=True, slots=True)
class Settings:
    """One simulated world."""

    runs: int
    processes: tuple[ProcessSettings, ...]
    actions: int
    ttl_ms: int
    limit: int
    max_event_bytes: int
    accidents: float
    """Factor on the probability of every accident."""
    max_failures: int
    deaths_show: bool
    """Whether a killed process is provably dead to the others (R2)."""


def draw_settings(random: Random, *, faults: bool) -> Settings:
    """A world of one to three processes and one to three runs."""
    builds = random.random() < 0.35
    processes = tuple(_draw_process(random, number, builds) for number in range(random.choice((1, 2, 2, 3))))
    return Settings(
        runs=random.choice((1, 1, 2, 3)),
        processes=processes,
        actions=random.choice((4, 10, 20)),
        ttl_ms=random.choice((2_000, 6_000, 30_000)),
        limit=random.choice((8, 64, 1024)),
        max_event_bytes=random.choice((4_096, 1_048_576)),
        accidents=random.choice((0.0, 0.5, 1.0, 3.0, 6.0)) if faults else 0.0,
        max_failures=random.choice((2, 4, 20)),
        deaths_show=random.random() < 0.4,
    )


def _draw_process(random: Random, number: int, builds: bool) -> ProcessSettings:
    first = number == 0
    lease = first or random.random() < 0.8
    return ProcessSettings(
        lease=lease,
        works=lease and (first or random.random() < 0.75),
        commit="each" if random.random() < 0.15 else "staged",
        concurrency=random.choice((1, 2, 4, 64)),
        build=f"b{number}" if builds else None,
        drifts=builds and not first and random.random() < 0.3,
        grace_ms=random.choice((0, 100, 10_000)),
        patience_s=random.choice((1, 60)),
        poll_ms=random.choice((200, 1_000, 5_000)),
    )


class Chance:
    """Draws accidents. `calm` ends them."""

    def __init__(self, random: Random, settings: Settings) -> None:
        self.random = random
        self._factor = settings.accidents
        self._ttl_ms = settings.ttl_ms
        self._out_until_ns = 0

    def calm(self) -> None:
        """From now on nothing goes wrong."""
        self._factor = 0.0
        self._out_until_ns = 0

    def black_out(self, until_ns: int) -> None:
        """Nobody reaches the store until then."""
        self._out_until_ns = until_ns

    @property
    def is_calm(self) -> bool:
        return self._factor == 0.0

    def way_ns(self) -> int | None:
        """How long a request or an answer is on its way; None: no time passes, and nothing else runs."""
        drawn = self.random.random()
        if drawn < 0.45:
            return None
        if drawn < 0.8 or (self.is_calm and drawn < 0.97):
            return 0
        if drawn < 0.99 or self.is_calm:
            return self.random.randrange(1, 40 * _MS)
        return self.random.randrange(1, self._ttl_ms * _MS * 3 // 2)

    def races_ns(self) -> int | None:
        """For a commit that somebody else's call overtakes: how much time that call has."""
        if self.random.random() * 100 < 4 * self._factor:
            return self.random.randrange(1, 30 * _MS)
        return None

    def of_commit(self, now_ns: int) -> Fate:
        """The fate of a commit."""
        if now_ns < self._out_until_ns:
            return "unavailable"
        drawn = self.random.random() * 100
        for fate, percent in _COMMIT_FATES:
            drawn -= percent * self._factor
            if drawn < 0:
                return fate
        return "fine"

    def of_request(self, now_ns: int) -> Fate:
        """The fate of any other request."""
        if now_ns < self._out_until_ns:
            return "unavailable"
        drawn = self.random.random() * 100
        if drawn < 0.7 * self._factor:
            return "unavailable"
        return "crash_before" if drawn < 1.0 * self._factor else "fine"


_COMMIT_FATES: Final[tuple[tuple[Fate, float], ...]] = (
    ("unavailable", 2.0),
    ("crash_before", 0.8),
    ("crash_after", 1.2),
    ("applied_unknown", 1.2),
    ("lost_unknown", 0.8),
    ("late", 0.7),
)
