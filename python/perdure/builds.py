"""Runtime builds: which code may drive which run (spec 08 §8.5)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

from perdure.errors import InvalidRuntimeBuildId, RuntimeBuildUnavailable

__all__ = ["RuntimeBuildCompatibility", "RuntimeBuildId", "admit", "check_build_id"]

_GRAMMAR: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-_.:+/@]{0,126}[A-Za-z0-9])?")


def check_build_id(value: str) -> str:
    """The build id, if it follows the grammar of spec 08 §8.5; else raises `InvalidRuntimeBuildId`."""
    if _GRAMMAR.fullmatch(value) is None:
        raise InvalidRuntimeBuildId(value)
    return value


class RuntimeBuildId(str):
    """A build id, checked: 1 to 128 ASCII letters, digits and `- _ . : + / @`, beginning and ending with a letter or
    digit. Raises `InvalidRuntimeBuildId`. Wherever a build id is asked for, plain text will do and is checked too."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """The id of this text."""
        return super().__new__(cls, check_build_id(value))


@dataclass(frozen=True, slots=True)
class RuntimeBuildCompatibility:
    """The build this process runs, the other builds whose runs it can carry on, and whether it takes unpinned runs.

    Raises `InvalidRuntimeBuildId` for an id outside the grammar.
    """

    current: str
    compatible: Collection[str] = frozenset()
    accept_unpinned: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.compatible, str):
            raise TypeError("compatible is a collection of build ids, not one text")
        check_build_id(self.current)
        object.__setattr__(self, "compatible", frozenset(map(check_build_id, self.compatible)))

    def supports(self, build: str | None) -> bool:
        """Whether a run pinned to `build`, or to none, may be driven here."""
        return self.accept_unpinned if build is None else build == self.current or build in self.compatible

    def admit(self, run_id: str, build: str | None) -> None:
        """Raises `RuntimeBuildUnavailable` unless the run may be driven here."""
        if not self.supports(build):
            raise RuntimeBuildUnavailable(run_id, build, self.current)


def admit(builds: RuntimeBuildCompatibility | None, run_id: str, build: str | None) -> None:
    """Admission of one run; without a compatibility configured only unpinned runs are driven (spec 08 §8.5)."""
    if builds is not None:
        builds.admit(run_id, build)
    elif build is not None:
        raise RuntimeBuildUnavailable(run_id, build, None)
