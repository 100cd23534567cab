"""Many steps side by side: pictures of a gallery are scaled, at most two at a time.

Steps of one batch are recorded together and run at once, plain functions on threads. Each outcome is stored as it comes:
after a crash only the pictures that were not done are scaled again.

    python examples/batch_steps.py [FILE]
"""

from __future__ import annotations

import sys
import threading
import time
from tempfile import TemporaryDirectory

from perdure import BlockingFlowEngine, Flow, RetryPolicy, RuntimeCommand, WorkflowContext

flow = Flow()

# One bad picture must not spoil the gallery: the workflow hears of it and goes on.
BEST_EFFORT = RetryPolicy.none().continue_workflow_on_failure()


class Meter:
    """How many are inside, and the most there have been."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1


busy = Meter()


@flow.step
def scale(picture: str) -> int:
    """Gives the bytes of the small picture."""
    with busy:
        time.sleep(0.03)
        if picture.endswith(".txt"):
            raise ValueError(f"{picture} is not a picture")
        return 1000 * len(picture)


@flow.workflow("gallery", version="1")
def gallery(ctx: WorkflowContext) -> RuntimeCommand:
    """Names the whole batch each time it is asked; what is recorded already is not recorded again."""
    pictures = ctx.input_as(list[str])
    done = [name for name in pictures if ctx.step_completed(name)]
    failed = [name for name in pictures if ctx.step_failed(name) is not None]
    if len(done) + len(failed) < len(pictures):
        steps = [ctx.step(name, scale, name, retry=BEST_EFFORT) for name in pictures]
        return ctx.schedule_steps(steps, concurrency=2)
    return ctx.complete({"bytes": sum(ctx.step_output(name) for name in done), "failed": failed})


def main(file: str | None = None) -> None:
    with TemporaryDirectory() as folder, BlockingFlowEngine(flow, f"sqlite:///{file or folder + '/runs.db'}") as engine:
        pictures = ["beach.png", "notes.txt", "dunes.png", "pier.png", "gulls.png", "boats.png"]
        snapshot = engine.run(gallery, pictures, run_id="gallery-1")
        for step in snapshot.steps.values():
            print(f"{step.step_id}: {step.status} {step.output or step.error}")
        print(f"{snapshot.status}: {snapshot.output}, at most {busy.most} at once")


if __name__ == "__main__":
    main(*sys.argv[1:])
