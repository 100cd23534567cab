"""A prune killed by SIGKILL at every step, on the three durable stores: nothing is half gone, and the next one goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.testing.postgres import shared_server


@pytest.mark.parametrize(("kind", "least"), [("sqlite", 20), ("jsonl", 10), ("postgres", 15)])
def test_a_prune_killed_at_every_step_is_finished_by_the_next(kind: str, least: int, tmp_path: Path) -> None:
    address = {
        "sqlite": str(tmp_path / "app.db"),
        "jsonl": f"jsonl:{tmp_path / 'runs'}",
        "postgres": f"{shared_server().url}?schema=killed",
    }[kind]
    path = os.pathsep.join(str(Path(file).parents[1]) for file in (perdure.__file__, __file__))
    command = [sys.executable, "-m", "retention.killed", kind, address]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least
