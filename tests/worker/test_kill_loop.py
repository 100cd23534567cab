"""The short form of the kill loop; `make kill-loop STORE=sqlite|postgres SECONDS=N` runs any length."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

TESTS = Path(__file__).resolve().parents[1]
SECONDS = 20
RUNS = {"sqlite": 300, "postgres": 240}
"""Fewer than the thousand of the long form, by the share of its time; PostgreSQL's server needs a part of the machine."""


@pytest.mark.parametrize("store", RUNS)
def test_nothing_is_lost_and_nothing_runs_twice_after_its_commit(store: str) -> None:
    """Eight workers with wrong clocks, one killed every half second; then they finish and drain (R2, R3, R45)."""
    environment = os.environ | {"PYTHONPATH": f"{Path(perdure.__file__).parents[1]}:{TESTS}"}
    command = [sys.executable, "-m", "worker.kill_loop", "--store", store, "--seconds", str(SECONDS)]
    command += ["--runs", str(RUNS[store])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was lost" in done.stdout
