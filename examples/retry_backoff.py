"""A step that fails and is tried again, later each time.

The exchange-rate service is down twice. Between attempts nothing runs and nothing sleeps: the next attempt is an entry in
the store, and whoever comes by when it is due carries the run on, this process or another.

    python examples/retry_backoff.py [FILE]
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

from perdure import BlockingFlowEngine, Flow, RetryPolicy, RuntimeCommand, StepContext, WorkflowContext

flow = Flow()

# Up to five attempts. The longest delay doubles, 100 ms, 200 ms, 400 ms, and then stays; the delay itself is drawn below
# that limit, so that a thousand runs that failed together do not all come back together.
PATIENT = RetryPolicy.exponential(5, timedelta(milliseconds=100), timedelta(milliseconds=400))


@flow.step
def fetch_rate(currency: str, step: StepContext) -> float:
    """Any exception counts as a failed attempt and is stored with it."""
    if step.attempt < 3:
        raise ConnectionError("503 Service Unavailable")
    return 1.0842


@flow.workflow("price-in-euro", version="1")
def price_in_euro(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.step_completed("rate"):
        return ctx.schedule_step("rate", fetch_rate, ctx.input["currency"], retry=PATIENT)
    return ctx.complete(round(ctx.input["amount"] / ctx.step_output("rate"), 2))


def main(file: str | None = None) -> None:
    with TemporaryDirectory() as folder, BlockingFlowEngine(flow, f"sqlite:///{file or folder + '/runs.db'}") as engine:
        snapshot = engine.run(price_in_euro, {"amount": 120, "currency": "USD"}, run_id="price-1")
        print(f"after the first attempt the run is {snapshot.status}")
        while not snapshot.terminal:
            time.sleep(0.02)
            engine.resume_due_retries(datetime.now(UTC))
            snapshot = engine.snapshot("price-1")

        for event in engine.history("price-1"):
            if event.type == "step_retrying":
                failure = event.event
                print(f"attempt {failure['attempt']}: {failure['error']}; next one at {failure['retry_after']}")
        print(f"{snapshot.status} at attempt {snapshot.steps['rate'].attempt}: {snapshot.output} EUR")


if __name__ == "__main__":
    main(*sys.argv[1:])
