"""The uses that need an engine: `run` and `continue`. Each gives what is wrong with a row, or None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import FlowError
from perdure.instant import parse_instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES
from perdure.stores.base import Append
from perdure.testing import virtual_time
from perdure.testing._conformance import arrival
from perdure.testing._conformance.calls import Caller, Result
from perdure.testing._conformance.compare import (
    difference,
    error_found,
    events_as_listed,
    exact_line,
    exact_text,
    loose_event,
    loose_result,
    loose_snapshot,
    same_error,
)
from perdure.testing._conformance.rows import Row
from perdure.testing._conformance.values import dumps, loads
from perdure.testing._conformance.world import Setup, World, opened

__all__ = ["continue_case", "left_out_of_continue", "left_out_of_run", "run_case"]

_START_NS: Final = parse_instant("2026-11-29T20:31:42Z")


@dataclass(frozen=True, slots=True)
class _Found:
    """What a case did: results, last sequences, what other clients got, steps, asks, and the lines of every run."""

    results: list[Result]
    sequences: list[int]
    during: list[Result]
    steps: list[tuple[str, str, int]]
    asks: int
    lines: dict[str, list[str]]


def is_exact(row: Row) -> bool:
    """Made by the rulings, so compared exactly; else recorded from the reference engine."""
    return bool(row.data["recorded"]["engine"] == "rulings")


def left_out_of_run(row: Row, setup: Setup) -> str | None:
    """Why a row is not run, or None."""
    if "crash" in row.data["tags"]:
        return "tag crash"
    if setup.commit == "each" and any(call["op"] == "race_at" for call in row.data["calls"]):
        return "race_at counts on staged commits"
    return _left_out_of_shell(row, setup)


def _left_out_of_shell(row: Row, setup: Setup) -> str | None:
    """In real time nothing can happen at a given moment of a drive: no call, no end of a step, no timer."""
    if setup.shell == "asyncio":
        return None
    timed = {call["op"] for call in row.data["calls"]} & {"during", "race_at"}
    for outcome in (outcome for listed in row.data["steps"].values() for outcome in listed):
        timed |= outcome.keys() & {"sleep_ms", "timeout_ms"}
    if timed:
        return f"timed within a drive: {', '.join(sorted(timed))}"
    if setup.shell == "blocking" and arrival.decides(row.data):
        return "order of arrival decides"
    return None


def left_out_of_continue(row: Row, setup: Setup) -> str | None:
    """Why a row is not continued, or None."""
    return _left_out_of_any_continue(row) or _left_out_of_shell(row, setup)


def _left_out_of_any_continue(row: Row) -> str | None:
    if is_exact(row):
        return None if "continue" in row.data["tags"] else "without the tag continue"
    if "ours" in row.data:
        return "differs on purpose"
    if "clock" in row.data["tags"]:
        return "tag clock"
    ops = {call["op"] for call in row.data["calls"]} & {"program", "append_raw", "builds"}
    return f"op {', '.join(sorted(ops))}" if ops else None


# -- run ---------------------------------------------------------------------------------------------------------------


def run_case(row: Row, setup: Setup) -> str | None:
    """All calls on a fresh engine give what was recorded."""
    found = _play(row, setup, _START_NS)
    if "ours" in row.data:
        return _differs_as_listed(row, found)
    recorded = row.data["recorded"]
    in_order = setup.shell != "blocking" or not arrival.live_together(row.data)
    problems = [
        *_results_differ(row, "call", row.data["calls"], recorded["results"], found.results),
        _differs("last sequences", recorded["last_sequences"], found.sequences),
        _steps_differ(recorded["steps"], found.steps),
        *_runs_differ(row, setup, found.lines, in_order),
    ]
    if is_exact(row):
        if setup.commit == "staged" and in_order:  # each commit is an ask more
            problems.append(_differs("asks", recorded["asks"], found.asks))
        problems += _results_differ(row, "call during", [], recorded.get("during", []), found.during)
    return _joined(problems)


def _play(row: Row, setup: Setup, start_ns: int, prefix: Sequence[str] = ()) -> _Found:
    async def main(loop: virtual_time.VirtualTimeLoop) -> _Found:
        async with opened(setup.store, loop) as store:
            world = World(row.data, setup, store, loop)
            if prefix:
                await _put(world, world.run_id, prefix)
            caller = Caller(world)
            try:
                results, sequences = await caller.all()
            finally:
                await world.close()
            lines = {}
            for run_id in await world.store.run_ids():
                lines[run_id] = (await world.store.history(run_id)).decode().split("\n")[:-1]
            return _Found(results, sequences, caller.during, world.program.steps, world.program.asks, lines)

    return virtual_time.run(main, start_ns)


def _joined(problems: list[str | None]) -> str | None:
    return "; ".join(problem for problem in problems if problem) or None


def _differs(what: str, expected: Any, found: Any) -> str | None:
    return None if expected == found else f"{what}: expected {dumps(expected)}, found {dumps(found)}"


def _steps_differ(expected: list[list[Any]], found: list[tuple[str, str, int]]) -> str | None:
    """As a multiset: which attempts ran, however they were interleaved."""
    return _differs("step executions", sorted(expected), sorted([step_id, attempt] for _, step_id, attempt in found))


def _results_differ(
    row: Row, what: str, calls: list[dict[str, Any]], expected: list[Any], found: list[Result]
) -> list[str | None]:
    problems: list[str | None] = []
    if len(expected) != len(found):
        problems.append(f"{what}: expected {len(expected)} results, found {len(found)}")
    for index, (wanted, result) in enumerate(zip(expected, found, strict=False)):
        name = f"{what} {index + 1}" + (f" ({calls[index]['op']})" if calls else "")
        problem = _result_differs(row, wanted, result)
        problems.append(problem and f"{name}: {problem}")
    return problems


def _result_differs(row: Row, expected: dict[str, Any], found: Result) -> str | None:
    if "error" in expected:
        if found.error is not None and same_error(expected["error"], found.error):
            return None
        return f"expected {dumps(expected['error'])}, found {_shown(found)}"
    if found.error is not None:
        return f"expected {dumps(expected['ok'])}, found {_shown(found)}"
    if is_exact(row):
        return difference(loads(exact_text(dumps(expected["ok"]))), loads(exact_text(dumps(found.value))))
    return difference(loose_result(expected["ok"]), loose_result(found.value))


def _shown(result: Result) -> str:
    return dumps(result.value) if result.error is None else dumps(error_found(result.error))


def _runs_differ(row: Row, setup: Setup, found: dict[str, list[str]], in_order: bool) -> list[str | None]:
    recorded = row.data["recorded"]["runs"]
    problems = [_differs("runs in the store", sorted(recorded), sorted(found))]
    for run_id in recorded:
        if run_id in found and in_order:
            compare = _exactly if is_exact(row) else _loosely
            problems.append(compare(setup, run_id, recorded[run_id], found[run_id]))
        elif run_id in found:
            problems.append(_in_any_order(row, run_id, recorded[run_id]["lines"], found[run_id]))
            problems.append(_ends_differ(setup, run_id, recorded[run_id]["snapshots"], found[run_id]))
    return problems


def _in_any_order(row: Row, run_id: str, recorded: list[str], found: list[str]) -> str | None:
    """Steps that ran together in threads end in any order, so the events are a multiset."""
    content = _timestamp_and_event if is_exact(row) else loose_event
    expected, seen = (sorted(dumps(content(line)) for line in lines) for lines in (recorded, found))
    problem = difference(expected, seen)
    return problem and f"events of {run_id}, sorted, {problem}"


def _timestamp_and_event(line: str) -> list[Any]:
    envelope = loads(exact_line(line))
    return [envelope["timestamp"], envelope["event"]]


def _loosely(setup: Setup, run_id: str, recorded: dict[str, Any], found: list[str]) -> str | None:
    problem = difference([loose_event(line) for line in recorded["lines"]], [loose_event(line) for line in found])
    return problem and f"events of {run_id} {problem}"


def _exactly(setup: Setup, run_id: str, recorded: dict[str, Any], found: list[str]) -> str | None:
    for index, (expected, line) in enumerate(zip(recorded["lines"], found, strict=False), 1):
        if exact_line(expected) != exact_line(line):
            return f"line {index} of {run_id}: expected {expected}, found {line}"
    if len(recorded["lines"]) != len(found):
        extra = [*recorded["lines"], *found][min(len(recorded["lines"]), len(found)) :][:1] or ["nothing"]
        return f"{run_id}: expected {len(recorded['lines'])} lines, found {len(found)}; the next: {extra[0]}"
    for cut, expected in enumerate(recorded["snapshots"], 1):
        snapshot = _snapshot(setup, run_id, found[:cut])
        if exact_text(expected) != exact_text(snapshot):
            return f"snapshot {cut} of {run_id}: expected {expected}, found {snapshot}"
    return None


def _snapshot(setup: Setup, run_id: str, lines: list[str]) -> str:
    history = "".join(f"{line}\n" for line in lines).encode()
    return setup.load().project(run_id, history, DEFAULT_MAX_EVENT_BYTES).snapshot().decode()


def _differs_as_listed(row: Row, found: _Found) -> str | None:
    """`ours`: results by kind, events as `type:id`."""
    ours = row.data["ours"]
    kinds = ["ok" if result.error is None else type(result.error).__name__ for result in found.results]
    lines = found.lines.get(row.data["run_id"], [])
    return _joined(
        [
            _differs("results", ours["results"], kinds),
            _differs("events", ours["events"], events_as_listed(lines, ours["events"])),
        ]
    )


# -- continue ----------------------------------------------------------------------------------------------------------


def continue_case(row: Row, setup: Setup) -> str | None:
    """Any prefix of the case's run in a fresh store, then all calls again, ends in the recorded final snapshot."""
    run_id = row.data["run_id"]
    recorded = row.data["recorded"]["runs"].get(run_id, {"lines": [], "snapshots": []})
    for cut in range("crash" in row.data["tags"], len(recorded["lines"]) + 1):
        prefix = recorded["lines"][:cut]
        start_ns = parse_instant(loads(prefix[-1])["timestamp"]) if prefix else _START_NS
        found = _play(row, setup, start_ns, prefix)
        problem = _ends_differ(setup, run_id, recorded["snapshots"], found.lines.get(run_id, []))
        if problem := problem or _ran_again(run_id, prefix, found.steps):
            return f"continued from {cut} events: {problem}"
    return None


def _ends_differ(setup: Setup, run_id: str, snapshots: list[str], found: list[str]) -> str | None:
    if not snapshots or not found:
        return None if len(snapshots) == len(found) else f"expected {len(snapshots)} events, found {len(found)}"
    expected, snapshot = exact_text(snapshots[-1]), exact_text(_snapshot(setup, run_id, found))
    problem = difference(loose_snapshot(expected), loose_snapshot(snapshot))
    return problem and f"final snapshot {problem}"


def _ran_again(run_id: str, prefix: Sequence[str], steps: list[tuple[str, str, int]]) -> str | None:
    """An outcome that was committed is never computed again (R18)."""
    attempts: dict[str, int] = {}
    settled = set()
    for event in (loads(line)["event"] for line in prefix):
        if event["type"] == "step_started":
            attempts[event["step_id"]] = event["attempt"]
        elif event["type"] in ("step_completed", "step_retrying", "step_failed", "step_non_retryable"):
            settled.add((run_id, event["step_id"], attempts[event["step_id"]]))
    again = sorted(settled.intersection(steps))
    return f"steps: expected no committed outcome to be computed again, found {dumps(again)}" if again else None


async def _put(world: World, run_id: str, lines: Sequence[str]) -> None:
    """Puts a prefix into the store, each event with its own timestamp; runs it links to are put there first."""
    events = []
    for line in lines:
        envelope = loads(line)
        events.append((line[line.index('"event":') + len('"event":') : -1], parse_instant(envelope["timestamp"])))
        linked = envelope["event"].get("child", {}).get("flow_run_id")
        recorded = world.row["recorded"]["runs"].get(linked)
        if recorded and linked != run_id and linked not in await world.store.run_ids():
            await _put(world, linked, recorded["lines"])
    (answer,) = await world.store.commit([Append(await world.batch(run_id, events))])
    if isinstance(answer, FlowError):
        raise answer
