"""The two kernels are one: whatever they are given, they answer with equal values, equal bytes or equal refusals.

Every test drives both kernels in step through `Twins`, which compares each answer. Only the prose of `Serialization.detail`
may differ. Histories are made by random commands, outcomes, host calls and raw events; mutated ones start from those.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel.differential_drawn import NOON_NS, SPEC, one_of, texts
from kernel.differential_story import RUN_ID, STORIES, Action, Story, Twins, as_bytes, shown

from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, load

pytestmark = pytest.mark.timeout(1800)  # a failure is made small before it is told, which takes its time
DATA = Path(__file__).parents[1] / "data"
MANY = 8 * settings().max_examples  # for what costs little; the profile says how many the others get


@pytest.fixture(scope="module")
def kernels() -> Twins:
    return Twins(load("rust"), load("pure"))


@given(actions=STORIES)
def test_runs_in_step(kernels: Twins, actions: list[Action]) -> None:
    Story(kernels).tell(actions)


@given(actions=STORIES, limit=st.integers(100, 400))
def test_runs_in_step_under_a_small_event_limit(kernels: Twins, actions: list[Action], limit: int) -> None:
    Story(kernels, limit).tell(actions)


@given(actions=STORIES, cuts=st.lists(st.integers(0, 40), max_size=3))
def test_extending_at_any_cut_is_projecting_the_whole(kernels: Twins, actions: list[Action], cuts: list[int]) -> None:
    story = Story(kernels)
    story.tell(actions)
    lines = story.lines
    whole = kernels.call(lambda kernel: kernel.project(RUN_ID, b"".join(lines), DEFAULT_MAX_EVENT_BYTES))
    assert whole is not None
    assert shown(whole.pure) == shown(story.run.pure)
    places = sorted({1, len(lines), *(cut for cut in cuts if 1 <= cut <= len(lines))})
    grown = kernels.call(lambda kernel: kernel.project(RUN_ID, b"".join(lines[: places[0]]), DEFAULT_MAX_EVENT_BYTES))
    assert grown is not None
    for start, end in pairwise(places):
        tail = b"".join(lines[start:end])
        grown.call(lambda run: run.extend(tail))  # noqa: B023 - called at once
        assert shown(grown.rust) == shown(grown.pure)
    assert shown(grown.pure) == shown(whole.pure)


# -- mutated histories -------------------------------------------------------------------------------------------------

INTERESTING = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b",",
    b":",
    b"0",
    b"-",
    b".",
    b"e",
    b" ",
    b"\t",
    b"\r",
    b"\x00",
    b"\x80",
    b"\xc3",
    b"\xff",
    b"n",
    b"t",
    b"1",
    b"Z",
    b"+",
]
MUTATIONS = st.lists(
    st.tuples(
        texts("flip", "insert", "delete", "drop line", "swap lines", "repeat line", "cut", "retype", "sequence"),
        st.integers(0, 2**16),
        st.integers(0, 2**16),
    ),
    min_size=1,
    max_size=3,
)


def mutated(lines: list[bytes], mutations: list[tuple[str, int, int]]) -> bytes:
    for kind, first, second in mutations:
        lines = _mutated(list(lines), kind, first, second)
    return b"".join(lines)


def _mutated(lines: list[bytes], kind: str, first: int, second: int) -> list[bytes]:
    if not lines:
        return lines
    at = first % len(lines)
    line = lines[at]
    place = second % max(len(line), 1)
    piece = INTERESTING[first % len(INTERESTING)]
    match kind:
        case "flip":
            lines[at] = line[:place] + piece + line[place + 1 :]
        case "insert":
            lines[at] = line[:place] + piece + line[place:]
        case "delete":
            lines[at] = line[:place] + line[place + 1 + first % 5 :]
        case "drop line":
            del lines[at]
        case "swap lines":
            other = second % len(lines)
            lines[at], lines[other] = lines[other], lines[at]
        case "repeat line":
            lines.insert(second % (len(lines) + 1), line)
        case "cut":
            lines[at:] = [line[:place]]
        case "retype":
            lines[at] = line.replace(b"step_", b"run_" if second % 2 else b"wait_", 1)
        case "sequence":
            lines[at] = line.replace(b'"sequence":', b'"sequence":%d' % (second % 3), 1)
    return lines


def renumbered(history: bytes) -> bytes:
    """The lines that still parse, with their sequences put right, so that the rules behind the sequence are reached."""
    lines = []
    for number, line in enumerate(history.split(b"\n")[:-1], 1):
        before, found, after = line.partition(b'"sequence":')
        lines.append(before + found + b"%d" % number + after.lstrip(b"0123456789") if found else line)
    return b"".join(line + b"\n" for line in lines)


def unlike(kernels: Twins, run_id: str, lines: list[bytes], history: bytes, cut: int) -> None:
    """A history that was `lines` before it was mutated: projected whole, in bulk, and as the tail of a sound beginning."""
    kernels.call(lambda kernel: kernel.project(run_id, history, DEFAULT_MAX_EVENT_BYTES))
    kernels.call(lambda kernel: kernel.project_many([(run_id, history), ("run-2", b""), (run_id, history)], 2))
    begun = kernels.call(lambda kernel: kernel.project(run_id, b"".join(lines[:cut]), DEFAULT_MAX_EVENT_BYTES))
    assert begun is not None
    begun.call(lambda run: run.extend(b"".join(history.splitlines(keepends=True)[cut:])))
    assert shown(begun.rust) == shown(begun.pure)


@given(actions=STORIES, mutations=MUTATIONS, repair=st.booleans(), cut=st.integers(1, 40))
def test_mutated_stories(
    kernels: Twins, actions: list[Action], mutations: list[tuple[str, int, int]], repair: bool, cut: int
) -> None:
    story = Story(kernels)
    story.tell(actions)
    history = mutated(story.lines, mutations)
    unlike(kernels, RUN_ID, story.lines, renumbered(history) if repair else history, cut)


@cache
def recorded() -> list[tuple[str, list[bytes]]]:
    """Every history of the recorded cases."""
    rows = [
        json.loads(line)
        for kind in ("ours", "reference")
        for line in (DATA / kind / "cases.jsonl").read_text(encoding="utf-8").split("\n")
        if line
    ]
    runs = [item for row in rows for item in row["recorded"]["runs"].items()]
    return [(run_id, [line.encode() + b"\n" for line in run["lines"]]) for run_id, run in runs]


@settings(max_examples=MANY)
@given(of=st.integers(0, 10**6), mutations=MUTATIONS, repair=st.booleans(), cut=st.integers(1, 40))
def test_mutated_recordings(
    kernels: Twins, of: int, mutations: list[tuple[str, int, int]], repair: bool, cut: int
) -> None:
    run_id, lines = recorded()[of % len(recorded())]
    history = mutated(lines, mutations)
    unlike(kernels, run_id, lines, renumbered(history) if repair else history, cut)


# -- pure functions ----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.one_of(
        texts(
            "null", "true", "false", "0", "-0", "0.0", "-0.0", "1", "1.0", "1e0", "10e-1", "1e400", "-1e400", "1E400"
        ),
        texts(
            "18446744073709551615", "18446744073709551616", "1.8446744073709551616e19", "-9223372036854775808", "0.1"
        ),
        texts("-9223372036854775809", "9007199254740993", "9007199254740993.0", "5e-324", "2e-324", "1e-999999999"),
        texts(
            '""',
            '"a"',
            r'"\u0061"',
            '"é"',
            r'"\u00e9"',
            r'"\ud83d\ude00"',
            '"😀"',
            r'"\ud800"',
            r'"\/"',
            '"/"',
            "NaN",
            "01",
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda members: "[" + " , ".join(members) + "]"),
        st.lists(st.tuples(texts('"a"', '"b"', r'"\u0061"'), inner), max_size=3).map(
            lambda members: "{" + ",".join(f"{key} : {value}" for key, value in members) + "}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=MANY)
@given(left=JSON, right=JSON, same=st.booleans())
def test_json_equality(kernels: Twins, left: str, right: str, same: bool) -> None:
    right = left.replace(":", " :").replace('"a"', r'"\u0061"') if same else right
    kernels.same(lambda kernel: kernel.json_equal(as_bytes(left), as_bytes(right)))


@dataclass(frozen=True)
class Policy:
    max_attempts: int
    delay_ms: int
    backoff: str
    max_delay_ms: int


U64 = st.one_of(st.integers(0, 10_000), st.integers(0, 2**64 - 1))


@given(
    policy=st.builds(Policy, st.integers(0, 2**32 - 1), U64, st.sampled_from(["fixed", "exponential"]), U64),
    run_id=st.text(max_size=8),
    step_id=st.text(max_size=8),
    attempt=st.one_of(st.integers(1, 70), st.integers(0, 2**32 - 1)),
)
def test_retry_delays(kernels: Twins, policy: Policy, run_id: str, step_id: str, attempt: int) -> None:
    kernels.same(lambda kernel: kernel.retry_delay_ms(policy, run_id, step_id, attempt))


@given(spec=one_of(SPEC, JSON), run_id=st.one_of(st.text(max_size=6), texts("a" * 201, "A-z_0", "é", "a\n")))
def test_checks_at_the_door(kernels: Twins, spec: str, run_id: str) -> None:
    kernels.same(lambda kernel: kernel.check_spec(as_bytes(spec)))
    kernels.same(lambda kernel: kernel.check_run_id(run_id))
    kernels.same(lambda kernel: kernel.new(run_id, 100).last_sequence)


@given(actions=STORIES, command=st.binary(max_size=60))
def test_commands_that_are_any_bytes(kernels: Twins, actions: list[Action], command: bytes) -> None:
    story = Story(kernels)
    story.tell(actions[:5])
    story.run.same(lambda run: run.decide(command, NOON_NS, NOON_NS))
    story.run.same(lambda run: run.stage([command], NOON_NS))
    story.run.same(lambda run: run.control(command, NOON_NS))
    story.run.same(lambda run: run.settle("a", 1, command, NOON_NS, NOON_NS, True))
