"""One drive, its effects answered by hand: what is committed with what, and what is asked when (rulings §G)."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from scenarios.kit import TOKEN

from drive.hand import Ask, Hand, batch, done, failed, final, pending
from perdure import (
    EventConflict,
    HookTokenConflict,
    InvalidTransition,
    NonDeterministic,
    ReplayLimitExceeded,
    RetryPolicy,
    RunConflict,
    RuntimeCommand,
    WorkflowContext,
    WorkflowProgress,
)
from perdure.kernel import Kernel

CREATED = ["run_created", "run_started"]
BATCH = [*CREATED, "step_created a", "step_created b", "step_started a 1", "step_started b 1"]
LATER = timedelta(seconds=60)


def in_row(*ids: str) -> Ask:
    """Steps one after the other."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        for step_id in ids:
            if not ctx.step_completed(step_id):
                return ctx.schedule_step(step_id, "work")
        return ctx.complete()

    return ask


def test_an_outcome_and_its_decision_are_one_commit(kernel: Kernel) -> None:
    """R4, R17: creation rides on the first decision, each outcome on the next one; N steps are N + 1 commits."""
    hand = Hand(kernel, in_row("a", "b", "c"))
    assert hand.commit() == [*CREATED, "step_created a", "step_started a 1"]
    for now, following in pairwise("abc"):
        assert hand.started() == [(now, 1)]
        hand.take(done(now))
        assert hand.commit() == [f"step_completed {now}", f"step_created {following}", f"step_started {following} 1"]
    assert hand.started() == [("c", 1)]
    hand.take(done("c"))
    assert hand.commit() == ["step_completed c", "run_completed"]
    assert hand.ended
    assert hand.program.asks == 4


def test_outcomes_ready_together_are_one_commit(kernel: Kernel) -> None:
    """All outcomes taken at once are recorded in arrival order and shown in one ask (R8)."""
    hand = Hand(kernel, batch("ab"))
    assert hand.commit() == BATCH
    assert hand.started() == [("a", 1), ("b", 1)]
    hand.take(done("b"), done("a"))
    assert hand.commit() == ["step_completed b", "step_completed a", "run_completed"]
    assert hand.ended
    assert hand.program.asks == 2


def test_each_puts_outcomes_and_decisions_apart(kernel: Kernel) -> None:
    """R18: under `each` outcomes are one append and the decision another, with nothing launched in between."""
    hand = Hand(kernel, in_row("a", "b"), mode="each")
    assert [hand.commit(), hand.commit(), hand.commit()] == [
        ["run_created"],
        ["run_started"],
        ["step_created a", "step_started a 1"],
    ]
    assert hand.started() == [("a", 1)]
    hand.take(done("a"))
    assert hand.commit() == ["step_completed a"]
    assert hand.commit() == ["step_created b", "step_started b 1"]
    assert hand.started() == [("b", 1)]
    hand.take(done("b"))
    assert [hand.commit(), hand.commit()] == [["step_completed b"], ["run_completed"]]
    assert hand.ended


PROGRESS = {"type": "run_progress_recorded", "progress": {"progress_id": "p", "completed": 1, "details": None}}
REQUEST = {"type": "run_cancellation_requested", "request": {"reason": "stop"}}


def test_a_conflict_keeps_the_outcome_and_asks_anew(kernel: Kernel) -> None:
    """R10: somebody else's event costs no step its result; the decision is made again over both."""
    hand = Hand(kernel, in_row("a", "b"))
    hand.commit()
    hand.started()
    hand.take(done("a", {"n": 1}))
    hand.foreign(PROGRESS)
    decided = ["step_completed a", "step_created b", "step_started b 1"]
    assert hand.conflict() == decided
    assert hand.run.last_sequence == 5
    assert hand.commit() == decided
    assert hand.program.asks == 3
    assert hand.started() == [("b", 1)]
    assert hand.run.snapshot().count(b'"output":{"n":1}') == 1
    assert hand.discarded == []


def test_a_conflicting_retry_is_not_computed_again(kernel: Kernel) -> None:
    """R10: the same draft is appended again, its deadline counted from the failure and not from the second try."""
    hand = Hand(kernel, lambda ctx: ctx.schedule_all([ctx.step("a", "work", retry=RetryPolicy.fixed(2, LATER))]))
    hand.commit()
    hand.started()
    due = hand.clock.after(seconds=60)
    hand.take(failed("a"))
    hand.foreign(PROGRESS)
    hand.clock.advance(seconds=30)
    hand.conflict()
    assert hand.commit() == ["step_retrying a 1"]
    step = hand.run.step("a")
    assert step is not None
    assert step.retry_after == due.ns
    assert hand.ended


def test_an_outcome_that_no_longer_applies_is_dropped(kernel: Kernel) -> None:
    """R10, R21: a request that came first took the step away; its outcome is dropped and logged, the workflow asked."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.cancel() if ctx.cancellation_request() else in_row("a", "b")(ctx)

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    outcome = done("a")
    hand.take(outcome)
    hand.foreign(REQUEST)
    assert hand.conflict() == ["step_completed a", "step_created b", "step_started b 1"]
    assert hand.commit() == ["run_cancelled"]
    assert hand.ended
    assert hand.discarded == [outcome]


def test_a_refused_command_keeps_the_outcome(kernel: Kernel) -> None:
    """R1: the kernel refuses the decision; the outcome is committed alone, then the refusal raised."""
    hand = Hand(kernel, lambda ctx: ctx.schedule_step("a", "work"))
    hand.commit()
    hand.started()
    hand.take(done("a"))
    assert hand.peek() == ["step_completed a"]
    with pytest.raises(InvalidTransition) as refused:
        hand.commit()
    assert refused.value.rule == "nothing_new"


def test_a_raising_workflow_keeps_the_outcome(kernel: Kernel) -> None:
    """R1: so it does when the ask itself raises."""
    error = NonDeterministic("r", "step", "a", "input", 3, "1", "2")

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a"):
            raise error
        return ctx.schedule_step("a", "work")

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    hand.take(done("a"))
    with pytest.raises(NonDeterministic) as refused:
        hand.commit()
    assert refused.value is error
    assert hand.log.count(b"step_completed") == 1


def test_a_commit_refused_by_the_store_keeps_the_outcome(kernel: Kernel) -> None:
    """R1: the token is held elsewhere; the outcome is committed without the hook, then the refusal raised."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.create_hook("h", TOKEN) if ctx.step_completed("a") else ctx.schedule_step("a", "work")

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    hand.take(done("a"))
    error = HookTokenConflict(TOKEN, "other", "h")
    assert hand.refuse(error) == ["step_completed a", "hook_created h"]
    assert hand.peek() == ["step_completed a"]
    with pytest.raises(HookTokenConflict) as refused:
        hand.commit()
    assert refused.value is error
    assert hand.program.asks == 2


def test_a_refused_first_decision_leaves_the_creation(kernel: Kernel) -> None:
    """R17: creation and start are committed alone."""
    hand = Hand(kernel, lambda ctx: ctx.cancel())
    assert hand.peek() == CREATED
    with pytest.raises(InvalidTransition) as refused:
        hand.commit()
    assert refused.value.rule == "cancel_without_request"


def refused_after_a(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.step_completed("a"):
        return ctx.cancel()
    return ctx.schedule_steps([ctx.step(s, "work", retry=RetryPolicy.fixed(2)) for s in "ab"])


def test_a_refused_drive_lets_its_siblings_settle(kernel: Kernel) -> None:
    """R14: no more asks and no starts; the running sibling's immediate retry is recorded alone; then the refusal."""
    hand = Hand(kernel, refused_after_a)
    hand.commit()
    hand.started()
    hand.take(done("a"))
    assert hand.commit() == ["step_completed a"]
    hand.take(failed("b"))
    assert hand.peek() == ["step_retrying b 1"]
    with pytest.raises(InvalidTransition) as refused:
        hand.commit()
    assert refused.value.rule == "cancel_without_request"
    assert hand.program.asks == 2


def test_a_final_failure_while_settling_ends_the_run(kernel: Kernel) -> None:
    """R14: it still closes the run, and the first refusal is raised although the run ended meanwhile."""
    hand = Hand(kernel, refused_after_a)
    hand.commit()
    hand.started()
    hand.take(done("a"))
    hand.commit()
    hand.take(final("b"))
    assert hand.peek() == ["step_non_retryable b 1", "run_failed"]
    with pytest.raises(InvalidTransition) as refused:
        hand.commit()
    assert refused.value.rule == "cancel_without_request"
    assert hand.run.status == "failed"


def test_a_conflict_while_settling_keeps_the_outcome(kernel: Kernel) -> None:
    """R10, R14: the outcome is appended behind the foreign event, without an ask."""
    hand = Hand(kernel, refused_after_a)
    hand.commit()
    hand.started()
    hand.take(done("a"))
    hand.foreign(PROGRESS)
    assert hand.conflict() == ["step_completed a"]
    assert hand.commit() == ["step_completed a"]
    assert hand.program.asks == 2
    hand.take(done("b"))
    with pytest.raises(InvalidTransition):
        hand.commit()


def test_a_final_failure_is_closed_at_once(kernel: Kernel) -> None:
    """R19: what is open is cancelled in id order, the run ends, all in one append with the outcome, without an ask."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_steps([ctx.step(s, "work", retry=RetryPolicy.none()) for s in "cab"], concurrency=2)

    hand = Hand(kernel, ask)
    hand.commit()
    assert hand.started() == [("c", 1), ("a", 1)]
    hand.take(failed("c"))
    assert hand.commit() == ["step_failed c 1", "step_cancelled a 1", "step_cancelled b 0", "run_retry_exhausted c 1"]
    assert hand.released() == (["a"], True)
    assert hand.ended
    assert hand.program.asks == 1


def test_the_first_final_failure_is_the_cause(kernel: Kernel) -> None:
    """R19: the other outcomes of the take are recorded too, a retry among them as `step_retrying` alone."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_steps([ctx.step(s, "work", retry=RetryPolicy.fixed(2)) for s in "abcd"])

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    hand.take(failed("d"), final("b"), done("a"), final("c"))
    assert hand.commit() == [
        "step_retrying d 1",
        "step_non_retryable b 1",
        "step_completed a",
        "step_non_retryable c 1",
        "step_cancelled d 1",
        "run_failed",
    ]
    assert hand.run.error == "non-retryable step error: no"
    assert hand.log.count(b"run failed by step b; outcome unknown") == 1


def test_an_interrupted_end_is_repaired_before_any_ask(kernel: Kernel) -> None:
    """R19, spec 4.6: with `step_failed` durable the next drive only closes, also under `each`."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_steps([ctx.step(s, "work", retry=RetryPolicy.none()) for s in "ab"])

    first = Hand(kernel, ask, mode="each")
    while first.effect is not None and not first.log.count(b"step_started"):
        first.commit()
    first.started()
    first.take(failed("a"))
    assert first.commit() == ["step_failed a 1"]
    for mode in ("staged", "each"):
        hand = Hand(kernel, ask, log=first.log, mode=mode)
        assert hand.commit() == ["step_cancelled b 1", "run_retry_exhausted a 1"]
        assert hand.ended
        assert hand.program.asks == 0


def facts(count: int) -> Ask:
    """Records `count` facts, one a pass, then completes."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        for number in range(count):
            if ctx.progress(f"p{number}") is None:
                return ctx.record_progress(WorkflowProgress(f"p{number}", number))
        return ctx.complete()

    return ask


def test_the_limit_counts_passes_in_a_row(kernel: Kernel) -> None:
    """R6: with limit n, n passes of facts and then an end go well."""
    hand = Hand(kernel, facts(3), limit=3)
    while not hand.ended:
        hand.commit()
    assert hand.run.status == "completed"
    assert hand.program.asks == 4


def test_another_event_resets_the_count(kernel: Kernel) -> None:
    """R6: an outcome between facts begins the count anew; so does an event of somebody else."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        first = facts(2)(ctx)
        if b"record_progress" in first.to_json():
            return first
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", "work")
        return facts(4)(ctx)

    hand = Hand(kernel, ask, limit=2)
    for _ in range(3):
        hand.commit()
    hand.started()
    hand.take(done("a"))
    while not hand.ended:
        hand.commit()
    assert hand.run.status == "completed"


def test_disposals_and_closings_count(kernel: Kernel) -> None:
    """R6: answering itself by closing waits is no work either."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        waits = [f"w{n}" for n in range(3)]
        for wait_id in waits:
            if not ctx.wait_completed(wait_id) and ctx.progress("opened"):
                return ctx.close_wait(wait_id)
        opening = [ctx.wait_for(wait_id, LATER) for wait_id in waits]
        return ctx.schedule_all([*opening, ctx.record_progress(WorkflowProgress("opened", 1))])

    hand = Hand(kernel, ask, limit=2)
    hand.commit()
    assert [hand.commit(), hand.peek()] == [["wait_completed w0"], ["wait_completed w1"]]
    with pytest.raises(ReplayLimitExceeded) as refused:
        hand.commit()
    assert refused.value.limit == 2
    assert hand.program.asks == 4


def test_conflicts_in_a_row_are_limited(kernel: Kernel) -> None:
    """R6: the limit-th conflict in a row ends the drive; the outcome beside the decision is committed alone."""
    hand = Hand(kernel, in_row("a", "b"), limit=2)
    hand.commit()
    hand.started()
    hand.take(done("a"))
    for number in range(2):
        hand.foreign({"type": "run_progress_recorded", "progress": {"progress_id": f"p{number}", "completed": 1}})
        hand.conflict()
    assert hand.peek() == ["step_completed a"]
    with pytest.raises(ReplayLimitExceeded):
        hand.commit()
    assert hand.log.count(b'"step_completed"') == 1


def test_slots_are_filled_as_they_fall_free(kernel: Kernel) -> None:
    """R26: all members are created at once, two started; each outcome commit starts the next."""
    hand = Hand(kernel, batch("abcd"), concurrency=2)
    created = [f"step_created {s}" for s in "abcd"]
    assert hand.commit() == [*CREATED, *created, "step_started a 1", "step_started b 1"]
    assert hand.started() == [("a", 1), ("b", 1)]
    hand.take(done("b"))
    assert hand.commit() == ["step_completed b", "step_started c 1"]
    assert hand.started() == [("c", 1)]
    hand.take(done("a"), done("c"))
    assert hand.commit() == ["step_completed a", "step_completed c", "step_started d 1"]
    assert hand.started() == [("d", 1)]


def test_an_immediate_retry_keeps_its_slot(kernel: Kernel) -> None:
    """R25, R26: `[step_retrying, step_started n+1]` is one append; the pending sibling goes on waiting."""
    hand = Hand(kernel, batch("ab"), concurrency=1)
    hand.commit()
    assert hand.started() == [("a", 1)]
    hand.take(failed("a"))
    assert hand.commit() == ["step_retrying a 1", "step_started a 2"]
    assert hand.started() == [("a", 2)]
    assert hand.program.asks == 1  # neither event is a reason to ask (R8)
    hand.take(done("a", attempt=2))
    assert hand.commit() == ["step_completed a", "step_started b 1"]


def test_the_limit_of_a_command_holds_from_then_on(kernel: Kernel) -> None:
    """R26: `concurrency=1` of the accepted command, within the engine's limit."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if all(ctx.step_completed(s) for s in "ab"):
            return ctx.complete()
        return ctx.schedule_all([ctx.step(s, "work") for s in "ab"], concurrency=1)

    hand = Hand(kernel, ask)
    assert hand.commit()[-1] == "step_started a 1"
    assert hand.started() == [("a", 1)]
    hand.take(done("a"))
    assert hand.commit() == ["step_completed a", "step_started b 1"]


def test_a_running_step_without_a_slot_waits_for_one(kernel: Kernel) -> None:
    """R7, R26: running steps are redelivered first, at the same attempt and without an event, as slots allow."""
    first = Hand(kernel, batch("abc"))
    first.commit()
    hand = Hand(kernel, batch("abc"), log=first.log, concurrency=2)
    assert hand.started() == [("a", 1), ("b", 1)]
    hand.take(done("a"))
    assert hand.commit() == ["step_completed a"]
    assert hand.started() == [("c", 1)]


def test_open_steps_run_although_nobody_names_them(kernel: Kernel) -> None:
    """R7: the command names only the wait; the interrupted step is redelivered all the same."""
    first = Hand(kernel, batch("a"))
    first.commit()
    hand = Hand(kernel, lambda ctx: ctx.wait_until("w", "2030-01-01T00:00:00Z"), log=first.log)
    assert hand.commit() == ["wait_created w"]
    assert hand.started() == [("a", 1)]


def test_a_pass_that_raises_starts_nothing(kernel: Kernel) -> None:
    """R7: the interrupted step stays as it is when the first ask is refused."""
    first = Hand(kernel, batch("a"))
    first.commit()
    with pytest.raises(InvalidTransition):
        Hand(kernel, lambda ctx: ctx.cancel(), log=first.log)


def test_a_drive_that_opens_nothing_ends_suspended(kernel: Kernel) -> None:
    """Every drive asks once; with nothing live and nothing new it ends without a commit."""
    waiting: Ask = lambda ctx: ctx.wait_until("w", "2030-01-01T00:00:00Z")  # noqa: E731 - one answer, used twice
    first = Hand(kernel, waiting)
    first.commit()
    assert first.ended
    hand = Hand(kernel, waiting, log=first.log)
    assert hand.ended
    assert (hand.program.asks, hand.run.status) == (1, "suspended")


def test_ending_with_work_open_lets_it_go(kernel: Kernel) -> None:
    """R20: legal with a step live; nothing is recorded for it, its result is dropped."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("a") else batch("ab")(ctx)

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    hand.take(done("a"))
    assert hand.commit() == ["step_completed a", "run_completed"]
    assert hand.released() == (["b"], True)
    assert hand.ended
    step = hand.run.step("b")
    assert step is not None
    assert step.status == "running"


def test_a_request_takes_running_steps_away(kernel: Kernel) -> None:
    """R21: the attempts are told, the workflow is asked at once, and clean-up does not wait for them."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("undo"):
            return ctx.cancel()
        return ctx.schedule_step("undo", "work") if ctx.cancellation_request() else batch("ab")(ctx)

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    hand.foreign(REQUEST)
    hand.take(foreign=True)
    hand.load()
    assert hand.released() == (["a", "b"], False)
    assert hand.commit() == ["step_created undo", "step_started undo 1"]
    assert hand.started() == [("undo", 1)]
    hand.take(done("undo"))
    assert hand.commit() == ["step_completed undo", "run_cancelled"]
    assert hand.ended


def test_a_foreign_end_lets_everything_go(kernel: Kernel) -> None:
    """R20: the run was ended from outside while a step ran."""
    hand = Hand(kernel, in_row("a"))
    hand.commit()
    hand.started()
    hand.foreign({"type": "run_cancelled", "reason": None})
    outcome = done("a")
    hand.take(outcome)
    assert hand.conflict() == ["step_completed a", "run_completed"]
    assert hand.ended
    assert hand.run.status == "cancelled"
    assert hand.discarded == [outcome]


def test_a_pending_run_is_repaired(kernel: Kernel) -> None:
    """Spec 4.6, R17: any drive adds the missing `run_started`, with its first decision."""
    hand = Hand(kernel, in_row("a"), log=pending(kernel))
    assert hand.commit() == ["run_started", "step_created a", "step_started a 1"]


def test_a_start_that_lost_the_race_goes_on(kernel: Kernel) -> None:
    """R17: conflict at sequence 0: spec and input are equal, so the staged creation is dropped and `run_started` kept."""
    hand = Hand(kernel, in_row("a"))
    hand.log = pending(kernel)
    assert hand.conflict() == [*CREATED, "step_created a", "step_started a 1"]
    assert hand.commit() == ["run_started", "step_created a", "step_started a 1"]
    assert hand.started() == [("a", 1)]


def test_a_start_that_lost_the_race_to_another_input(kernel: Kernel) -> None:
    """R17: the other start differs: `RunConflict`, and nothing of this one is written."""
    hand = Hand(kernel, in_row("a"))
    hand.log = pending(kernel, input=b"1")
    with pytest.raises(RunConflict) as refused:
        hand.conflict()
    assert refused.value.args == ("r", "input")


def waits(*after: float) -> Ask:
    """A step beside waits w0, w1 … due after so many seconds."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a"):
            return ctx.complete()
        due = [ctx.wait_for(f"w{n}", timedelta(seconds=s)) for n, s in enumerate(after)]
        return ctx.schedule_all([*due, ctx.step("a", "work")])

    return ask


def test_waits_that_come_due_beside_a_step(kernel: Kernel) -> None:
    """R9: `until` is the earliest wakeup; what is due is completed by (time, id), ahead of outcomes taken with it."""
    hand = Hand(kernel, waits(20, 10, 20, 99))
    begun = hand.clock.ns
    hand.commit()
    hand.started()
    hand.clock.advance(seconds=30)
    assert hand.take(done("a")) == begun + 10 * 10**9
    assert hand.commit() == [
        "wait_completed w1",
        "wait_completed w0",
        "wait_completed w2",
        "step_completed a",
        "run_completed",
    ]


def test_an_overdue_wait_is_completed_before_anything_is_waited_for(kernel: Kernel) -> None:
    """R9: with a step live, a wait already due is completed at once, and the workflow asked."""
    hand = Hand(kernel, waits(0))
    hand.commit()
    assert hand.started() == [("a", 1)]
    assert hand.commit() == ["wait_completed w0"]
    assert hand.program.asks == 2
    assert hand.take(done("a")) is None


def test_with_nothing_live_no_wait_is_completed(kernel: Kernel) -> None:
    """R9: a drive sleeps for no wakeup and completes no wait by itself; `due` of a scheduled drive does, at the start."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.wait_completed("w") else ctx.wait_until("w", "2020-01-01T00:00:00Z")

    first = Hand(kernel, ask)
    first.commit()
    assert first.ended
    again = Hand(kernel, ask, log=first.log)
    assert again.ended
    hand = Hand(kernel, ask, log=first.log, due=first.clock.ns)
    assert hand.commit() == ["wait_completed w", "run_completed"]
    assert hand.drive.completed_waits == ["w"]


def test_a_retry_that_comes_due_starts_in_this_drive(kernel: Kernel) -> None:
    """R9: while a sibling runs the horizon follows the clock, and the due retry is started without an ask."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_steps([ctx.step("a", "work", retry=RetryPolicy.fixed(2, LATER)), ctx.step("b", "work")])

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    hand.take(failed("a"))
    assert hand.commit() == ["step_retrying a 1"]
    due = hand.clock.after(seconds=60).ns
    hand.clock.ns = due
    assert hand.take() == due
    assert hand.commit() == ["step_started a 2"]
    assert hand.started() == [("a", 2)]
    assert hand.program.asks == 1


def test_a_horizon_handed_over_starts_a_retry(kernel: Kernel) -> None:
    """R22: a scheduler's call that joins hands over its `now`."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_steps([ctx.step("a", "work", retry=RetryPolicy.fixed(2, LATER)), ctx.step("b", "work")])

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    hand.take(failed("a"))
    hand.commit()
    hand.take(horizon=hand.clock.after(seconds=60).ns)
    assert hand.commit() == ["step_started a 2"]


def test_the_whole_history_is_loaded_when_it_is_read(kernel: Kernel) -> None:
    """`ctx.history` shows what this pass sees, staged outcomes included; it is loaded once, then kept."""
    seen: list[list[str]] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        seen.append([envelope.type for envelope in ctx.history])
        return in_row("a", "b")(ctx)

    hand = Hand(kernel, ask)
    hand.commit()
    hand.started()
    hand.take(done("a"))
    hand.commit()
    hand.started()
    hand.take(done("b"))
    hand.commit()
    assert hand.ended
    assert seen[-1] == [
        *CREATED,
        *("step_created", "step_started", "step_completed"),
        *("step_created", "step_started", "step_completed"),
    ]
    assert [len(types) for types in seen] == [2, 5, 8]


def test_a_loaded_history_is_what_the_log_holds(kernel: Kernel) -> None:
    """A drive of an existing run loads its lines when the workflow first reads them."""
    first = Hand(kernel, in_row("a"))
    first.commit()
    seen: list[int] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        seen.append(len(ctx.history))
        return in_row("a")(ctx)

    hand = Hand(kernel, ask, log=first.log)
    hand.load()
    assert hand.started() == [("a", 1)]
    hand.take(done("a"))
    hand.commit()
    assert seen == [4, 5]


def test_an_answer_of_the_wrong_kind_is_a_bug(kernel: Kernel) -> None:
    """A shell that answers a commit with nonsense is told so."""
    hand = Hand(kernel, in_row("a"))
    with pytest.raises(TypeError, match="Commit was answered with str"):
        hand.refuse("fine")  # type: ignore[arg-type]  # that is the point


def test_a_conflict_is_no_error_of_the_drive(kernel: Kernel) -> None:
    """An empty tail after a conflict (the winner was rolled back by its store) only makes the drive try again."""
    hand = Hand(kernel, in_row("a"))
    first = hand.refuse(EventConflict("r", 0, 1))
    hand.load()
    assert hand.commit() == first
