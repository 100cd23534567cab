"""Who holds a lease: an identity of this process that another one on the same host can find dead (R2)."""

from __future__ import annotations

import os
import select
import uuid
from pathlib import Path
from typing import Final

import orjson

__all__ = ["is_dead", "make_owner", "pid_of", "process_of"]

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
    """Whether the owner is provably dead: its boot and namespace are mine and no process has its pid and start time, or only
    what is left of one that has ended. Anything that cannot be read counts as not dead."""
    process = _process_here(owner)
    if process is None:
        return False
    pid, started = process
    try:
        return _started(pid) != started or _has_ended(pid)
    except OSError:  # hidden, or no /proc here: not provable
        return False


def pid_of(owner: str) -> int | None:
    """The pid of an owner of my boot and namespace, whether or not it still lives; None for one of elsewhere."""
    process = _process_here(owner)
    return None if process is None else process[0]


def process_of(owner: str) -> int | None:
    """A descriptor of the owner's process, which can be read once that has ended; None for a process of elsewhere or one
    that is gone, and on systems without such descriptors. To be closed."""
    process = _process_here(owner)
    if process is None or not hasattr(os, "pidfd_open"):
        return None
    pid, started = process
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        if _started(pid) == started:  # after the descriptor was opened, so that it is of this very process
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _process_here(owner: str) -> tuple[int, str] | None:
    """Pid and start time of an owner of my boot and namespace."""
    try:
        parts = orjson.loads(owner)
        boot, namespace, pid, started = parts["boot"], parts["namespace"], parts["pid"], parts["started"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if not (isinstance(pid, int) and isinstance(started, str) and boot and namespace):
        return None
    return (pid, started) if boot == _boot() and namespace == _namespace() else None


def _has_ended(pid: int) -> bool:
    """Whether all threads of the process have ended, though its parent has not asked for its status yet."""
    if not hasattr(os, "pidfd_open"):
        return False
    descriptor = os.pidfd_open(pid)
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(0))
    finally:
        os.close(descriptor)


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
        if _is_hidden(pid):
            raise
        return None
    return stat.rpartition(")")[2].split()[_START_FIELD]


def _is_hidden(pid: int) -> bool:
    """Whether there is such a process all the same: under the mount option `hidepid` /proc shows those of other users to
    nobody."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
