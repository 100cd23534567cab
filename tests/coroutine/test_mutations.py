"""R37: natural workflows, changed at one place, are replayed over what the unchanged ones recorded. Drift is told exactly where
an oracle says that recorded work is not asked for any more (`natural/oracle.py`), over the whole history and its prefixes.

Here for sampled changes; `make natural` for all of them, over more histories and every prefix.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from coroutine.natural import NATURAL, Natural
from coroutine.natural.driving import EVERYWHERE, finish, happen, played, sample, started
from coroutine.natural.mutants import Mutant, mutants, unchanged
from coroutine.natural.oracle import FINE, Undecidable, verdicts
from perdure import FlowError, NonDeterministic
from perdure.errors import WorkflowStuck
from perdure.keeping import KeptCoroutine
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel, load

CHANGES = 10


def histories(kernel: Kernel, natural: Natural) -> list[bytes]:
    """One that was driven straight, one in another order, one cancelled half-way, one whose middle step failed."""
    plain = played(kernel, natural)
    prefixes = [prefix for prefix in plain.prefixes() if not prefix.run.terminal]
    cancelled = prefixes[len(prefixes) * 2 // 3]
    cancelled.request("enough")
    finish(cancelled)
    steps = [line for line in plain.opened() if line.startswith("step ")]
    broken = steps[len(steps) // 2] if steps else ""
    failed = started(kernel, natural)
    while not failed.run.terminal:
        still = failed.open()
        if broken in still:
            failed.fail(broken.removeprefix("step "))
        else:
            happen(failed, still[0])
    logs = [plain.log, played(kernel, natural, Random(natural.name)).log, cancelled.log, failed.log]
    return sample(logs, 1, natural.name)


def replayed(kernel: Kernel, mutant: Mutant, log: bytes) -> str:
    """What one ask over this history says."""
    kept = KeptCoroutine(mutant.flow, "r", kernel.json_equal)
    run = kernel.project("r", log, DEFAULT_MAX_EVENT_BYTES)
    try:
        kept.ask(mutant.flow.spec_of(mutant.workflow), run.stage([], run.updated_at))
    except NonDeterministic as error:
        return f"drift at {error.sequence}"
    except WorkflowStuck:
        return FINE
    except FlowError as error:
        return type(error).__name__
    finally:
        kept.close()
    return FINE


def judged(kernel: Kernel, mutant: Mutant, log: bytes) -> str:
    """Compares the replay of the history and of its prefixes with the oracle; gives what is said of the whole."""
    try:
        expected = verdicts(kernel, mutant, log)
    except Undecidable:
        return "undecidable"
    lines = log.splitlines(keepends=True)
    assert len(expected) == len(lines)
    changes = [count for count in range(3, len(lines)) if expected[count - 1] != expected[count - 2]]
    near = {2, len(lines), *changes, *(count - 1 for count in changes)}
    for count in range(2, len(lines) + 1) if EVERYWHERE else sorted(near):
        said = replayed(kernel, mutant, b"".join(lines[:count]))
        assert said == expected[count - 1], f"{mutant.label}, prefix {count}: {said}, not {expected[count - 1]}"
    return expected[-1].split(" ", maxsplit=1)[0]


def survey(kernel: Kernel, natural: Natural) -> Counter[str]:
    """How many changes came to which verdict."""
    found: Counter[str] = Counter()
    for log in histories(kernel, natural):
        assert judged(kernel, unchanged(natural.workflow), log) == FINE
        for mutant in sample(mutants(natural.workflow), CHANGES, natural.name):
            found[judged(kernel, mutant, log)] += 1
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # changed code forgets to await, and is told so
@pytest.mark.parametrize("natural", NATURAL, ids=lambda natural: natural.name)
def test_drift_is_told_exactly_where_the_record_no_longer_matches(natural: Natural) -> None:
    found = survey(load("rust"), natural)
    assert found["undecidable"] <= found.total() // 4
