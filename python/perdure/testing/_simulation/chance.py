"""What is drawn from a seed: how the simulated world is made, and which accidents happen in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal

from perdure.effects import CommitMode

__all__ = ["Chance", "Fate", "ProcessSettings", "QueueSettings", "Role", "Settings", "draw_settings", "upgraded"]

Fate = Literal["fine", "unavailable", "crash_before", "crash_after", "applied_unknown", "lost_unknown", "late"]
"""What becomes of one request: `late` answers `OutcomeUnknown` and takes effect some time afterwards."""
Role = Literal["host", "runs", "tasks"]
"""What a process does beside the calls of its host: nothing, drive runs, or do the tasks of the queue."""
_MS: Final = 1_000_000
_TEN_MINUTES_NS: Final = 600_000_000_000


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """One process: an engine, and perhaps a worker or a scheduler beside it."""

    number: int
    lease: bool
    role: Role
    schedules: bool
    commit: CommitMode
    concurrency: int
    build: str | None
    compatible: bool
    """Whether it drives runs pinned to older builds."""
    drifts: bool
    """Its code gives one step another input than the others' does."""
    lacks: bool
    """Its code does not know one of the steps (R44)."""
    skew_ns: int
    """By how much the process's own clock is wrong (R45)."""
    lag_ns: int
    """By how much its reading of the store's clock lags behind it at most."""
    at_once: int
    batch: int
    look_s: float
    """How long an idle worker or scheduler sleeps at most."""
    drain_ms: int
    grace_ms: int
    patience_s: int
    poll_ms: int


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The queue of a world whose runs are carried on by tasks. One that is not ours (`own` False) knows nothing of runs, and
    loses, doubles and delays deliveries (R46)."""

    own: bool
    ttl_ms: int
    max_attempts: int
    redispatch_s: float


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
    queue: QueueSettings | None
    pinned: bool
    """Whether some runs are pinned to the build of the first process."""
    hints: float
    """The part of all hints that reach those who listen."""

    @property
    def faults(self) -> bool:
        """Whether anything goes wrong here."""
        return self.accidents > 0


def draw_settings(random: Random, *, faults: bool) -> Settings:
    """A world of one to four processes and one to three runs."""
    builds = random.random() < 0.4
    carried = random.choice(("runs", "runs", "tasks", "both"))
    roles: list[Role] = ["tasks" if carried == "tasks" else "runs"]
    for _ in range(random.choice((0, 1, 1, 2))):
        works = random.random() < 0.75
        roles.append("host" if not works else roles[0] if carried != "both" else "tasks")
    if carried == "both" and "tasks" not in roles:
        roles.append("tasks")
    queue = None if carried == "runs" else _draw_queue(random)
    return Settings(
        runs=random.choice((1, 1, 2, 3)),
        processes=tuple(_draw_process(random, n, role, builds, queue is not None) for n, role in enumerate(roles)),
        actions=random.choice((4, 10, 20)),
        ttl_ms=random.choice((2_000, 6_000, 30_000)),
        limit=random.choice((8, 64, 1024)),
        max_event_bytes=random.choice((4_096, 1_048_576)),
        accidents=random.choice((0.0, 0.5, 1.0, 3.0, 6.0)) if faults else 0.0,
        max_failures=random.choice((2, 4, 20)),
        deaths_show=random.random() < 0.4,
        queue=queue,
        pinned=builds and random.random() < 0.5,
        hints=random.choice((0.0, 0.7, 1.0)),
    )


def _draw_queue(random: Random) -> QueueSettings:
    return QueueSettings(
        own=random.random() < 0.7,
        ttl_ms=random.choice((1_000, 5_000, 30_000)),
        max_attempts=random.choice((2, 20)),
        redispatch_s=random.choice((5.0, 60.0)),
    )


def _draw_process(random: Random, number: int, role: Role, builds: bool, tasks: bool) -> ProcessSettings:
    first = number == 0
    lease = role != "host" or random.random() < 0.5
    return ProcessSettings(
        number=number,
        lease=lease,
        role=role,
        schedules=tasks and (first or random.random() < 0.4),
        commit="each" if random.random() < 0.15 else "staged",
        concurrency=random.choice((1, 2, 4, 64)),
        build=f"b{number}" if builds else None,
        compatible=first or random.random() < 0.7,
        drifts=builds and not first and random.random() < 0.4,
        lacks=not first and random.random() < 0.15,
        skew_ns=random.choice((0, random.randrange(-_TEN_MINUTES_NS, _TEN_MINUTES_NS))),
        lag_ns=random.choice((0, 0, random.randrange(40 * _MS), random.randrange(800 * _MS))),
        at_once=random.choice((1, 2, 16)),
        batch=random.choice((1, 2, 16)),
        look_s=random.choice((1.0, 5.0, 30.0)),
        drain_ms=random.choice((0, 300, 30_000)),
        grace_ms=random.choice((0, 100, 10_000)),
        patience_s=random.choice((1, 60)),
        poll_ms=random.choice((200, 1_000, 5_000)),
    )


def upgraded(settings: ProcessSettings, random: Random) -> ProcessSettings:
    """The settings of the next process in the place of one that ended: now and then it runs a newer build, or an older one
    again."""
    if settings.build is None or settings.number == 0 or random.random() < 0.5:
        return settings
    build = f"b{settings.number}.{random.randrange(3)}"
    return replace(settings, build=build, drifts=random.random() < 0.4, lacks=random.random() < 0.15)


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
        """The fate of any other request; one that changes nothing is lost instead of applied."""
        if now_ns < self._out_until_ns:
            return "unavailable"
        drawn = self.random.random() * 100
        if drawn < 0.7 * self._factor:
            return "unavailable"
        if drawn < 0.9 * self._factor:
            return "applied_unknown"
        return "crash_before" if drawn < 1.1 * self._factor else "fine"

    def of_delivery(self) -> Literal["fine", "lost", "twice", "late"]:
        """The fate of a task on its way to a queue that promises nothing."""
        drawn = self.random.random() * 100
        if self.is_calm:
            return "fine"
        return "lost" if drawn < 15 else "twice" if drawn < 30 else "late" if drawn < 45 else "fine"


_COMMIT_FATES: Final[tuple[tuple[Fate, float], ...]] = (
    ("unavailable", 2.0),
    ("crash_before", 0.8),
    ("crash_after", 1.2),
    ("applied_unknown", 1.2),
    ("lost_unknown", 0.8),
    ("late", 0.7),
)
