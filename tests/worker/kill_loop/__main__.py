"""The parent of the kill loop, and its command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path

from perdure.kernel import load
from perdure.testing.postgres import PostgresServer
from worker.kill_loop.audit import audit
from worker.kill_loop.ledger import Ledger
from worker.kill_loop.processes import Plan, fork, submit_and_answer, work

_PATIENCE_SECONDS = 120.0
"""For what is left after the killing; a machine that is busy with other things is slow."""


class Parent:
    """Forks, kills, replaces and reaps. It opens no store."""

    def __init__(self, plan: Plan, workers: int, skew: float, seed: int) -> None:
        self._plan = plan
        self._random = random.Random(seed)
        self._skew = skew
        self._log = plan.folder / "log"
        self._ledger: Ledger = plan.ledger
        self._client = fork(partial(submit_and_answer, plan), self._log)
        self._workers = [self._begin() for _ in range(workers)]
        self.wrong: list[str] = []

    def _begin(self) -> int:
        return fork(partial(work, self._plan, self._random.uniform(-self._skew, self._skew)), self._log)

    def kill_one(self) -> None:
        number = self._random.randrange(len(self._workers))
        pid = self._workers[number]
        if os.waitpid(pid, os.WNOHANG)[0]:
            self.wrong.append("a worker ended by itself")
        else:
            self._ledger.note("killed", pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._workers[number] = self._begin()

    def finish(self) -> None:
        """Nobody is killed any more: the runs end, then the workers are told to drain."""
        if self._wait(self._client) != 0:
            self.wrong.append("the client did not see all runs end")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while set(self._workers) - self._begun() and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in self._workers:
            os.kill(pid, signal.SIGTERM)
        codes = [self._wait(pid) for pid in self._workers]
        if any(codes):
            self.wrong.append(f"workers ended with {codes}")

    def _begun(self) -> set[int]:
        """Who handles signals already."""
        return {fact[2] for fact in self._ledger.read() if fact[0] == "began"}

    def _wait(self, pid: int) -> int:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return -1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.kill_loop")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgres for a server of its own, or a URL")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long processes are killed")
    parser.add_argument("--every", type=float, default=0.5, help="seconds from kill to kill")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lease-ttl", type=float, default=2.0)
    parser.add_argument("--skew", type=float, default=600.0, help="seconds by which a worker's clock may be wrong")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    load("rust")
    if options.store != "sqlite":
        import_module("perdure.stores.postgres")  # once, not in each fork
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="perdure-kill-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url = stack.enter_context(PostgresServer()).url if options.store == "postgres" else options.store
        return run(Plan(url, folder, options.runs, options.seconds, options.lease_ttl), options)


def run(plan: Plan, options: argparse.Namespace) -> int:
    began = time.monotonic()
    parent = Parent(plan, options.workers, options.skew, options.seed)
    while (left := began + plan.seconds - time.monotonic()) > 0:
        time.sleep(min(options.every, left))
        parent.kill_one()
    killed = time.monotonic()
    parent.finish()
    finished = time.monotonic()
    tally = asyncio.run(audit(plan))
    tally.wrong += parent.wrong
    log = (plan.folder / "log").read_text("utf-8") if (plan.folder / "log").exists() else ""
    times = f"{killed - began:.0f} s of kills, {finished - killed:.1f} s to finish and drain"
    told = [f"{options.store}: {plan.runs} runs, {options.workers} workers, {times}", *tally.lines()]
    if tally.wrong:
        told.append(log[-10_000:])
    sys.stdout.write("\n".join(told) + "\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
