"""Staging, appending, accepting: layers, lines, net index changes, and stale views (R4, R13, R47, R50)."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise

import pytest
from kernel.pure_support import (
    SECOND,
    SPEC,
    commit,
    created,
    event,
    hook_created,
    j,
    pure,
    refusal,
    stage,
    started,
    step_created,
    step_started,
    wait_created,
)

from perdure.errors import FlowError
from perdure.kernel import Batch, Run, View


def append(view: View, events: int) -> Batch:
    return view.append(bytes(range(16)) * events)


def retrying(step_id: str, at: str | None, attempt: int = 1) -> dict[str, object]:
    return event("step_retrying", step_id=step_id, attempt=attempt, error="e", retry_after=at)


def changes(batch: Batch) -> tuple[list[str], list[str], list[str], list[str]]:
    return (
        [f"{row.kind} {row.subject_id}" for row in batch.delete_wakeups],
        [f"{row.kind} {row.subject_id} {row.due // SECOND}" for row in batch.upsert_wakeups],
        [row.hook_id for row in batch.delete_hooks],
        [f"{row.hook_id} {row.sequence}" for row in batch.insert_hooks],
    )


def test_lines_are_canonical_and_carry_the_clock_of_their_stage() -> None:
    view = pure.new("r", 999).stage([j(event("run_created", spec=SPEC, input=1))], SECOND)
    view = view.stage([b' {"type" : "run_started"}\n'], 1_500_000_000)
    batch = append(view, 2)
    identity = "00010203-0405-4607-8809-0a0b0c0d0e0f"
    assert batch.lines.decode().split("\n") == [
        (
            f'{{"run_id":"r","sequence":1,"event_id":"{identity}","timestamp":"1970-01-01T00:00:01Z",'
            f'"event":{j(event("run_created", spec=SPEC, input=1)).decode()}}}'
        ),
        (
            f'{{"run_id":"r","sequence":2,"event_id":"{identity}","timestamp":"1970-01-01T00:00:01.500Z",'
            '"event":{"type" : "run_started"}}'
        ),
        "",
    ]
    assert batch.event_ids == [identity, identity]
    assert (batch.expected_sequence, batch.first_sequence, batch.last_sequence) == (0, 1, 2)
    assert (batch.row.created_at, batch.row.updated_at) == (SECOND, 1_500_000_000)


def test_views_stack_and_leave_the_run_alone() -> None:
    run = started(step_created("a"))
    before = run.snapshot()
    first = stage(run, step_started("a"), wait_created("w"), clock=1)
    second = stage(first, event("wait_completed", wait_id="w"), hook_created("h"), clock=2)
    assert run.snapshot() == before and run.last_sequence == 3
    assert [view.last_sequence for view in (run, first, second)] == [3, 5, 7]
    assert [view.last_visible for view in (run, first, second)] == [1, 1, 6]
    assert [view.status for view in (run, first, second)] == ["running", "suspended", "suspended"]
    assert [len(view.suspensions()) for view in (run, first, second)] == [0, 1, 1]
    assert second.suspensions() == [("hook", "h", None)]
    assert second.first_resolved([("hook", "h"), ("wait", "w"), ("other", "w")]) == ("wait", "w", 6)
    assert first.first_resolved([("wait", "w")]) is None
    run.accept(append(second, 4))
    assert run.last_sequence == 7 and run.suspensions() == [("hook", "h", None)]


def test_a_refused_draft_names_the_sequence_it_would_get_and_changes_nothing() -> None:
    run = started()
    before = run.snapshot()
    with pytest.raises(FlowError) as info:
        stage(run, wait_created("w"), wait_created("w"))
    assert refusal(info) == ("id_used", "wait", "w", 4, None)
    with pytest.raises(FlowError) as info:
        run.stage([j(event("run_started")), b'{"type":"unknown"}'], 0)
    assert refusal(info)[:3] == ("Serialization", "shape", None)
    assert run.snapshot() == before


def test_a_draft_may_nest_one_level_less_than_a_line() -> None:
    def deep(levels: int) -> bytes:
        return b'{"type":"run_completed","output":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    run = started()
    batch = append(run.stage([deep(126)], 0), 1)
    run.extend(batch.lines)
    assert run.status == "completed"
    with pytest.raises(FlowError) as info:
        started().stage([deep(127)], 0)
    assert refusal(info)[:2] == ("Serialization", "malformed")


def moved(run: Run) -> None:
    run.accept(append(stage(run, wait_created("moved")), 1))


def test_a_view_is_stale_once_its_run_moved_on() -> None:
    run = started()
    view = stage(run, wait_created("w"))
    batch = append(view, 1)
    moved(run)
    for use in (view.snapshot, view.closing, lambda: view.status, lambda: view.stage([], 0), lambda: view.append(b"")):
        with pytest.raises(FlowError) as info:
            use()
        assert refusal(info) == ("stale_view", None, None, None, None)
    with pytest.raises(FlowError) as info:
        run.accept(batch)
    assert refusal(info)[0] == "stale_view"


def test_a_batch_belongs_to_the_run_it_was_made_of() -> None:
    with pytest.raises(FlowError) as info:
        started().accept(append(stage(started(), wait_created("w")), 1))
    assert refusal(info)[0] == "stale_view"


def test_an_empty_batch_moves_nothing() -> None:
    run = started(wait_created("w"))
    view = run.stage([], 5)
    batch = view.append(b"")
    assert (batch.lines, batch.event_ids, batch.first_sequence, batch.last_sequence) == (b"", [], 4, 3)
    assert changes(batch) == ([], [], [], []) and not batch.clear_wakeups and batch.row.open_waits == 1
    run.accept(batch)
    run.extend(b" \n\n")
    assert view.last_sequence == 3
    row = pure.new("r", 9).stage([], 0).append(b"").row
    assert (row.name, row.version, row.build, row.status, row.created_at) == ("", "", None, "pending", 0)


def test_entropy_must_fit() -> None:
    with pytest.raises(FlowError) as info:
        stage(started(), wait_created("w")).append(bytes(15))
    assert refusal(info) == ("entropy_length", None, None, None, "15 bytes for 1 events")


def test_index_changes_are_net_for_the_batch() -> None:
    run = started(
        wait_created("kept"),
        wait_created("done"),
        hook_created("old", "t"),
        step_created("s", attempts=9, delay_ms=1),
        step_started("s"),
        retrying("s", "1970-01-01T00:00:01Z"),
        step_created("same", attempts=9, delay_ms=1),
        step_started("same"),
        retrying("same", "1970-01-01T00:00:01Z"),
    )
    view = stage(
        run,
        event("wait_completed", wait_id="done"),
        wait_created("flash"),
        event("wait_completed", wait_id="flash"),
        wait_created("new"),
    )
    view = stage(view, event("hook_disposed", hook_id="old"), hook_created("fresh", "t"), hook_created("gone"))
    view = stage(view, event("hook_received", hook_id="gone", payload=1))
    for step_id, at in (("s", "1970-01-01T00:00:02Z"), ("same", "1970-01-01T00:00:01Z")):
        view = stage(view, step_started(step_id, 2), retrying(step_id, at, 2))
    batch = append(view, 12)
    assert changes(batch) == (["wait done"], ["wait new 10", "retry s 2"], ["old"], ["fresh 17"])
    token_hash = hashlib.sha256(b"t").digest()
    assert batch.delete_hooks[0].token_hash == batch.insert_hooks[0].token_hash == token_hash
    assert batch.upsert_wakeups[1].due_key == "1970-01-01T00:00:02.000000000Z"
    assert (batch.row.open_waits, batch.row.active_hooks, batch.row.pending_retries) == (2, 1, 2)
    starting = append(stage(run, step_started("s", 2)), 1)
    assert changes(starting) == (["retry s"], [], [], [])


def test_a_request_deletes_row_by_row_and_an_end_clears() -> None:
    run = started(wait_created("b"), wait_created("a"), hook_created("h"))
    request = append(stage(run, event("run_cancellation_requested", request={})), 1)
    assert changes(request) == (["wait a", "wait b"], [], ["h"], []) and not request.clear_wakeups
    end = append(stage(run, wait_created("c"), event("run_failed", error="e"), clock=7), 2)
    assert changes(end) == ([], [], [], []) and end.clear_wakeups and end.clear_hooks
    assert (end.row.status, end.row.terminal, end.row.open_waits, end.row.ended_at) == ("failed", True, 0, 7)
    run.accept(end)
    assert run.suspensions() == run.active_hooks() == run.due_waits(99 * SECOND) == run.due_wakeups(99 * SECOND) == []
    assert run.next_wakeup(0, 0) is None
    assert not run.stage([], 0).append(b"").clear_wakeups


def test_links_are_listed_once_in_order() -> None:
    def link(reference_id: str, target: str | None) -> dict[str, object]:
        child = {"reference_id": reference_id, "kind": "k", "operation_id": "o", "flow_run_id": target}
        return event("child_operation_linked", child=child)

    view = stage(started(), link("1", "z"), link("2", "a"), link("3", None))
    assert append(stage(view, link("4", "z"), link("5", "r")), 5).links == ["z", "a", "r"]


def test_reprs_hide_tokens_and_payloads() -> None:
    secret = "perdure-secret-token"
    run = started(hook_created("h", secret), step_created("s", value=secret))
    batch = append(stage(run, event("hook_disposed", hook_id="h"), hook_created("i", secret)), 2)
    decision = run.decide(j({"type": "create_hook", "hook_id": "k", "token": secret + "2"}), 0, 0)
    for shown in (run.hook("h"), run.step("s"), batch, batch.insert_hooks, batch.delete_hooks, run, decision):
        assert secret not in repr(shown)
        assert hashlib.sha256(secret.encode()).digest()[:4].hex() not in repr(shown)


def test_wakeups_and_horizons() -> None:
    run = started(
        wait_created("z", "1970-01-01T00:00:01Z"),
        wait_created("a", "1970-01-01T00:00:02Z"),
        step_created("s", attempts=2, delay_ms=1),
        step_started("s"),
        retrying("s", "1970-01-01T00:00:01.5Z"),
    )
    assert run.due_wakeups(2 * SECOND) == [
        ("wait", "a", 2 * SECOND),
        ("wait", "z", SECOND),
        ("retry", "s", SECOND * 3 // 2),
    ]
    assert [json.loads(draft)["wait_id"] for draft in run.due_waits(2 * SECOND)] == ["z", "a"]
    assert run.next_wakeup(0, 0) == SECOND
    assert run.next_wakeup(SECOND, 0) == SECOND * 3 // 2
    assert run.next_wakeup(SECOND, SECOND * 3 // 2) == 2 * SECOND
    assert run.next_wakeup(2 * SECOND, 2 * SECOND) is None


def test_a_run_without_events_can_be_read() -> None:
    run = pure.new("r", 9)
    assert (run.status, run.last_sequence, run.last_visible, run.spec, run.input) == ("pending", 0, 0, b"", b"")
    assert run.workflow == ("", "") and run.updated_at == 0 and not run.terminal
    assert run.suspensions() == [] and run.next_wakeup(0, 0) is None and run.first_resolved([("step", "a")]) is None
    with pytest.raises(FlowError) as info:
        run.snapshot()
    assert refusal(info) == ("RunNotFound", "r")


def test_reads_of_a_record() -> None:
    retry = {"max_attempts": 2, "delay_ms": 0, "backoff": "fixed", "on_exhausted": "continue_workflow"}
    run = created(event("step_created", step_id="a", step_name="n", input={"x": 1}, retry=retry))
    step = run.step("a")
    assert step is not None and step.input == b'{"x":1}' and step.created_sequence == 2
    assert step.retry == b'{"max_attempts":2,"delay_ms":0,"on_exhausted":"continue_workflow"}'
    assert step.to_json() in run.snapshot()
    assert run.cancellation is None
    commit(run, event("run_cancellation_requested", request={"reason": "r"}), clock=SECOND)
    assert run.cancellation == b'{"request":{"reason":"r"},"requested_at":"1970-01-01T00:00:01Z","sequence":3}'


def test_staging_costs_what_is_staged() -> None:
    """A layer holds its own changes and nothing of the run below, however much that is."""
    run = started(*(step_created(f"s{n}") for n in range(500)))
    views = [run.stage([], 0)]
    for n in range(5):
        views.append(stage(views[-1], step_started(f"s{n}")))
    layers = [view._layer for view in views]  # type: ignore[attr-defined]  # what is measured is private
    assert [len(layer.steps.own) for layer in layers] == [0, 1, 1, 1, 1, 1]
    assert all(above.parent is below for below, above in pairwise(layers))
