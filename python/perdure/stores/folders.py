"""Folders that outlast power loss."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path

__all__ = ["make_folder", "sync_folder"]


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, where they are missing. Each name is made durable in the folder that holds it, or
    power loss could take away all that is committed below it. Raises `OSError`."""
    if folder.is_dir():
        return
    new = [folder, *takewhile(lambda above: not above.exists(), folder.parents)]
    folder.mkdir(parents=True, exist_ok=True)
    for made in new:
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
