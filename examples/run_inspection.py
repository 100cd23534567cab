"""Looking at runs: what there is, what each one waits for, and what happened.

Counters, listings and wakeups come from the store's indexes and stay quick with a million runs; a snapshot, a history and
what an open run waits for are read from the run itself.

    python examples/run_inspection.py [FILE]
"""

from __future__ import annotations

import hmac
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

from perdure import BlockingFlowEngine, Flow, RetryPolicy, RunFilter, RuntimeCommand, WorkflowContext
from perdure.observe import MemoryObserver, labels_of

flow = Flow()

NEXT_WEEK = timedelta(days=7)
TOMORROW = RetryPolicy.fixed(2, timedelta(days=1))
SECRET = b"a real one comes from the host's configuration"


@flow.step
def look_up(customer: str) -> str:
    if customer == "nobody":
        raise LookupError("no such customer")
    return f"{customer} since 2019"


@flow.step
def send_mail(customer: str) -> None:
    raise ConnectionError("the mail server is being repaired")


def token_of(run_id: str) -> str:
    """A secret that nobody can guess and that comes out the same each time the workflow is asked."""
    return hmac.digest(SECRET, run_id.encode(), "sha256").hex()


@flow.workflow("newsletter", version="2")
def newsletter(ctx: WorkflowContext) -> RuntimeCommand:
    """Ends up in a different place for each customer, so that there is something to look at."""
    customer = ctx.input
    if not ctx.step_completed("look-up"):
        return ctx.schedule_step("look-up", look_up, customer, retry=RetryPolicy.none())
    if customer == "Ada" and not ctx.step_completed("mail"):
        return ctx.schedule_step("mail", send_mail, customer, retry=TOMORROW)
    if customer == "Grace" and not ctx.wait_completed("next-issue"):
        return ctx.wait_for("next-issue", NEXT_WEEK)
    if customer == "Edsger" and not ctx.hook_received("consent"):
        return ctx.create_hook("consent", token_of(ctx.run_id))
    return ctx.complete("done")


def main(file: str | None = None) -> None:
    observer = MemoryObserver()
    with (
        TemporaryDirectory() as folder,
        BlockingFlowEngine(flow, f"sqlite:///{file or folder + '/runs.db'}", observer=observer) as engine,
    ):
        for customer in ("Ada", "Barbara", "Edsger", "Grace", "nobody"):
            engine.start(newsletter, customer, run_id=f"newsletter-{customer}")
        show(engine)
    print("\nEvents, as an observer counts them:")
    for (key, status), count in sorted(Counter(counted(observer)).items()):
        print(f"  {count} {key} ({status})")


def show(engine: BlockingFlowEngine) -> None:
    now = datetime.now(UTC)
    summary = engine.run_summary()
    print(f"{summary.total_runs} runs, {summary.completed_runs} completed, {summary.failed_runs} failed")

    print("\nRuns that have not ended:")
    for row in engine.runs(RunFilter(terminal=False), limit=10).runs:
        print(f"  {row.run_id}: {row.status} after {row.last_sequence} events")

    print("\nWhat they wait for:")
    for item in engine.list_open_suspensions(now):
        due = f", due now: {item['due']}" if "due" in item else ""
        print(f"  {item['run_id']}: {item['kind']}{due}")
    wakeup = engine.next_wakeup(now)
    print(f"  next of all by time: {wakeup['run_id'] if wakeup else 'nothing'}")

    failed = engine.snapshot("newsletter-nobody")
    print(f"\nWhy {failed.run_id} {failed.status}: {failed.error}")
    for event in engine.history(failed.run_id):
        print(f"  {event.sequence} {event.key} {event.subject[1] if event.subject else ''}".rstrip())


def counted(observer: MemoryObserver) -> list[tuple[str, str]]:
    labels = [labels_of(observation) for observation in observer.observations]
    return [(label["event_key"], label["status"]) for label in labels]


if __name__ == "__main__":
    main(*sys.argv[1:])
