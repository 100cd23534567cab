"""The simulator: whole worlds made from a seed, in which everything goes wrong that can, and the invariants must hold.

Up to four processes share one store: engines that hosts call, workers, schedulers and the workers of a queue, of one build
or of several that follow each other. Calls and tasks from outside, kills, pauses beyond the time of a lease, blocked event
loops, wrong clocks, hints and deliveries that are lost, doubled or late, and commits that are lost, late or unanswered come
between any two of their steps; the seed decides all of it. The programs are the real ones, each process is simulated: one
lane of callbacks and one for its thread of renewals, virtual time (`perdure.testing.virtual_time`), ids from the seed. At
every change of the store the invariants of spec/README.md are checked, and each lease against a model of R3; at the end
accidents stop, whatever can be done must be done within a tick, and every run must come to its end.

    python -m perdure.testing.simulation --seeds 1000
    python -m perdure.testing.simulation --first 400 --seeds 1 -v

The exit status is 0 if every invariant held, 1 if one broke; then its seed is printed, and that seed replays it. `simulate`
does the same from Python.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.kernel import KernelName
from perdure.testing._simulation.audit import InvariantBroken
from perdure.testing._simulation.medium import StoreName
from perdure.testing._simulation.running import Told, run_seed

__all__ = ["InvariantBroken", "Told", "main", "simulate"]

_PROGRESS_EVERY = 500
_TRACE_SHOWN = 60


def simulate(seed: int, *, kernel: KernelName = "rust", store: StoreName = "memory", faults: bool = True) -> Told:
    """Runs the world of one seed to its rest; the same seed gives the same trace and the same histories, on every kernel and
    store. Without `faults` nothing is lost, late, killed or paused.

    Raises `InvariantBroken`, with `seed` and `trace`."""
    try:
        return run_seed(seed, kernel=kernel, store=store, faults=faults)
    except InvariantBroken as broken:
        broken.add_note(f"seed {seed}, kernel {kernel}, store {store}{'' if faults else ', without faults'}")
        raise


@dataclass(slots=True)
class _Tally:
    """What all seeds came to."""

    seeds: int = 0
    commits: int = 0
    launches: int = 0

    def add(self, told: Told) -> None:
        self.commits += told.commits
        self.launches += told.launches

    def __str__(self) -> str:
        return f"{self.seeds} seeds, {self.commits} commits, {self.launches} steps run"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; gives the exit status."""
    options = _parser().parse_args(arguments)
    logging.getLogger("perdure").setLevel(logging.CRITICAL)  # lost commits and leases are the point here
    tally, found = _Tally(), Counter[int]()
    for seed in range(options.first, options.first + options.seeds):
        tally.seeds += 1
        try:
            told = simulate(seed, kernel=options.kernel, store=options.store, faults=options.faults)
        except InvariantBroken as broken:
            found[seed] += 1
            _show(broken, verbose=options.verbose)
            if not options.keep_going:
                break
        else:
            tally.add(told)
            if options.verbose and options.seeds == 1:
                print("\n".join(told.trace))
        if tally.seeds % _PROGRESS_EVERY == 0:
            print(f"  … {tally}", file=sys.stderr, flush=True)
    broke = f"; BROKEN with seeds {' '.join(map(str, found))}" if found else "; every invariant held"
    print(f"{tally}{broke}")
    return 1 if found else 0


def _show(broken: InvariantBroken, *, verbose: bool) -> None:
    trace = broken.trace if verbose else broken.trace[-_TRACE_SHOWN:]
    print("\n".join(trace))
    print(f"seed {broken.seed}: {broken}", flush=True)
    print(f"again: make simulate SEEDS=1 SEED={broken.seed}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.simulation", description="Simulated worlds.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default %(default)s)")
    parser.add_argument("--kernel", choices=("rust", "pure"), default="rust")
    parser.add_argument("--store", choices=("memory", "sqlite"), default="memory")
    parser.add_argument(
        "--faults", action=argparse.BooleanOptionalAction, default=True, help="whether anything goes wrong"
    )
    parser.add_argument("--keep-going", action="store_true", help="go on after a broken invariant")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the whole trace")
    return parser


if __name__ == "__main__":
    sys.exit(main())
