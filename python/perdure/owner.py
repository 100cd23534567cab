"""Who holds a lease: an identity of this process that another one on the same host can find dead (R2)."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final

import orjson

__all__ = ["is_dead", "make_owner"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = "/proc/self/ns/pid"
_START_FIELD: Final = 19  # of /proc/<pid>/stat, counted after the command's closing bracket


def make_owner() -> str:
    """A new identity, as JSON text: a random UUID with boot id, PID namespace, pid and the process's start time."""
    pid = os.getpid()
    try:
        started = _started(pid)
    except OSError:
        started = None  # nobody can prove this owner dead: its leases expire by themselves
    parts = {"id": str(uuid.uuid4()), "boot": _boot(), "namespace": _namespace(), "pid": pid, "started": started}
    return orjson.dumps(parts).decode()


def is_dead(owner: str) -> bool:
    """Whether the owner is provably dead: its boot and namespace are mine and no process has its pid and start time.
    Anything that cannot be read counts as not dead."""
    try:
        parts = orjson.loads(owner)
        boot, namespace, pid, started = parts["boot"], parts["namespace"], parts["pid"], parts["started"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False
    if not boot or not namespace or not started or boot != _boot() or namespace != _namespace():
        return False
    try:
        return bool(_started(pid) != started)
    except OSError:  # hidden, or no /proc here: not provable
        return False


def _boot() -> str | None:
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return None


def _namespace() -> int | None:
    try:
        return Path(_NAMESPACE).stat().st_ino
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When the process began, in ticks since boot; None if there is no such process. Raises `OSError` if it cannot be
    told."""
    if not Path("/proc/self/stat").exists():
        raise OSError("no /proc")
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[_START_FIELD]
