"""How a worker hears of the death of another process of its host, without asking anybody again and again (R2)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from typing import Final

from perdure.owner import process_of

__all__ = ["DeathWatch"]

_MOST: Final = 256
"""Descriptors kept open; owners beyond them are looked at with each outlook."""


class DeathWatch:
    """Watches the processes of known owners: the system tells the moment when one ends. Lives on one event loop, which
    calls `on_death` then."""

    def __init__(self, is_dead: Callable[[str], bool], on_death: Callable[[], None]) -> None:
        self._is_dead = is_dead
        self._on_death = on_death
        self._descriptors: dict[str, int] = {}
        self._ended: set[str] = set()

    def dead(self, owners: Collection[str]) -> list[str]:
        """Those of `owners` that are provably dead. The others are watched from now on, and nobody else."""
        for gone in self._descriptors.keys() - set(owners):
            self._forget(gone)
        self._ended &= set(owners)
        return [owner for owner in owners if not self._lives(owner)]

    def close(self) -> None:
        """Watches nobody any more."""
        for owner in list(self._descriptors):
            self._forget(owner)

    def _lives(self, owner: str) -> bool:
        if owner in self._descriptors:
            return True
        if owner in self._ended or self._is_dead(owner):
            return False
        if len(self._descriptors) < _MOST and (descriptor := process_of(owner)) is not None:
            try:
                asyncio.get_running_loop().add_reader(descriptor, self._end, owner)
            except (NotImplementedError, OSError):  # a loop that cannot watch descriptors
                os.close(descriptor)
            else:
                self._descriptors[owner] = descriptor
        return True

    def _end(self, owner: str) -> None:
        self._ended.add(owner)
        self._forget(owner)
        self._on_death()

    def _forget(self, owner: str) -> None:
        descriptor = self._descriptors.pop(owner)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
