"""The SQLite store on a disk that is full, or that fails to sync: real errors of a real file system, or of a shim in front of
it (R48)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perdure

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets a disk fail on demand, built from `failing_disk.c`."""
    library = tmp_path_factory.mktemp("shim") / "failing_disk.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "failing_disk.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


def told(*arguments: str, wrapped: list[str] | None = None, **environment: str) -> dict[str, Any]:
    """What `sqlite_disk` says when it is run with these arguments."""
    paths = os.pathsep.join((str(Path(perdure.__path__[0]).parent), str(HERE.parent)))
    command = [*(wrapped or []), sys.executable, "-m", "stores.sqlite_disk", *arguments]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def own_mounts() -> list[str] | None:
    """How a process gets mounts of its own here: as root, or as root of a user namespace; None where neither is allowed."""
    for command in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        probe = [*command, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        try:
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return command
        except FileNotFoundError:
            return None
    return None


def test_a_full_disk_a_small_tmpfs_or_where_none_may_be_mounted_a_shim(tmp_path: Path, shim: Path) -> None:
    disk, mounts = tmp_path / "disk", own_mounts()
    disk.mkdir()
    path = disk / "runs.db"
    if mounts is not None:
        mount = f'mount -t tmpfs -o size=4m tmpfs "{disk}" && exec "$@"'
        found = told("tmpfs", str(path), wrapped=[*mounts, "sh", "-c", mount, "sh"])
    else:
        found = told("shim", str(path), LD_PRELOAD=str(shim), FAILING_DISK=str(path))
    assert_nothing_was_lost_by_a_full_disk(found)


def test_a_disk_that_is_full_at_every_write(tmp_path: Path, shim: Path) -> None:
    path = tmp_path / "runs.db"
    assert_nothing_was_lost_by_a_full_disk(told("shim", str(path), LD_PRELOAD=str(shim), FAILING_DISK=str(path)))


def assert_nothing_was_lost_by_a_full_disk(found: dict[str, Any]) -> None:
    assert len(found["said"]) == 5
    for text in found["said"]:
        assert "has no room left" in text and "nothing was written. Free disk space" in text
    assert found["stored"] == found["acknowledged"]
    assert min(found["acknowledged"].values()) >= 1 + 20 + 5


def test_a_failed_sync_makes_the_outcome_unknown_and_nothing_acknowledged_is_lost(tmp_path: Path, shim: Path) -> None:
    path = tmp_path / "runs.db"
    found = told("sync", str(path), LD_PRELOAD=str(shim), FAILING_DISK=str(path))
    assert len(found["said"]) == 6
    assert all("what is on disk is unknown" in text for text in found["said"])
    assert found["acknowledged"] == dict.fromkeys("abc", 21)
    # The group is there as a whole, or not at all; both are allowed, and neither was claimed.
    assert found["found"] in (dict.fromkeys("abc", 21), dict.fromkeys("abc", 22))
    settled = "Committed" if found["found"]["a"] == 21 else "EventConflict"
    assert found["settled"] == [settled] * 3
    assert found["stored"] == dict.fromkeys("abc", 22)


def test_a_failed_sync_of_a_checkpoint_loses_nothing(tmp_path: Path, shim: Path) -> None:
    path = tmp_path / "runs.db"
    found = told("checkpoint", str(path), LD_PRELOAD=str(shim), FAILING_DISK=str(path))
    assert found["stored"] == found["acknowledged"] == dict.fromkeys("abc", 32)
    assert "a checkpoint failed (disk I/O error); it is tried again" in found["stderr"]
