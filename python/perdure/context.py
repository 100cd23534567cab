"""`WorkflowContext`: what a workflow of the command form reads of its run, and the commands it returns (spec 09)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from perdure import commands
from perdure.commands import Member, RuntimeCommand, ScheduleStep
from perdure.envelope import Envelope
from perdure.model import HookMetadata
from perdure.payload import decode, decode_as, encode
from perdure.policy import RetryPolicy
from perdure.step import CancelToken, Step, StepContext
from perdure.values import CancellationRequest, ChildOperationReference, WorkflowProgress
from perdure.wire import Moment, instant_text, text_json, whole_ms

if TYPE_CHECKING:
    from perdure.kernel import Reads

__all__ = ["CancelToken", "StepContext", "WorkflowContext"]

T = TypeVar("T")


class WorkflowContext:
    """Pure reads of one run and builders of commands. It holds no clock: equal histories give equal answers.

    A read of something that is not there gives None or False. Payloads are decoded anew at each call; typed reads raise
    `Serialization("payload")` naming path and type. Builders raise the same for a value that JSON cannot hold exactly.
    """

    __slots__ = ("_find_step", "_history", "_reads")

    def __init__(
        self,
        reads: Reads,
        history: Callable[[], list[Envelope]],
        find_step: Callable[[str], Step[..., Any] | None] = lambda name: None,
    ) -> None:
        self._find_step = find_step
        self._reads = reads
        self._history = history

    # -- reads --------------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self._reads.run_id

    @property
    def input(self) -> Any:
        """The run's input."""
        return decode(self._reads.input)

    def input_as(self, kind: type[T]) -> T:
        """The run's input as `kind`."""
        return decode_as(self._reads.input, kind)

    @property
    def history(self) -> list[Envelope]:
        """All envelopes of the run as this pass sees it; parsing them costs what the history holds."""
        return self._history()

    def cancellation_request(self) -> CancellationRequest | None:
        """The recorded request. Clean-up needs ids of its own, and ends with `cancel`, `fail` or `timeout`."""
        raw = self._reads.cancellation
        return None if raw is None else CancellationRequest.recorded(raw)

    def progress(self, progress_id: str) -> WorkflowProgress | None:
        """The progress entry of this id."""
        raw = self._reads.progress(progress_id)
        return None if raw is None else WorkflowProgress.from_json(raw)

    def child_operation(self, reference_id: str) -> ChildOperationReference | None:
        """The child operation linked under this id."""
        raw = self._reads.child(reference_id)
        return None if raw is None else ChildOperationReference.from_json(raw)

    def step_completed(self, step_id: str) -> bool:
        """Whether the step has an output."""
        return self._step_output(step_id) is not None

    @overload
    def step_output(self, step_id: str) -> Any: ...
    @overload
    def step_output(self, step_id: str, *, as_: type[T]) -> T | None: ...
    def step_output(self, step_id: str, *, as_: Any = object) -> Any:
        """The step's output, decoded to `as_` if given; None while there is none."""
        raw = self._step_output(step_id)
        return None if raw is None else decode_as(raw, as_)

    def step_output_as(self, step_id: str, kind: type[T]) -> T | None:
        """The step's output as `kind`; None while there is none."""
        return self.step_output(step_id, as_=kind)

    def step_failed(self, step_id: str) -> str | None:
        """The stored error text of a step that failed for good or was cancelled because the run failed, else None.

        A step that a cancellation request took down has not failed: see `step_cancelled`.
        """
        step = self._reads.step(step_id)
        if step is None or step.status not in ("failed", "cancelled"):
            return None
        if step.status == "cancelled" and self._cancelled_by_request(step_id):
            return None
        return step.error or ""

    def step_cancelled(self, step_id: str) -> bool:
        """Whether the step was cancelled, by a cancellation request or because the run failed."""
        step = self._reads.step(step_id)
        return step is not None and step.status == "cancelled"

    def wait_completed(self, wait_id: str) -> bool:
        """Whether the wait is over."""
        wait = self._reads.wait(wait_id)
        return wait is not None and wait.status == "completed"

    def hook_received(self, hook_id: str) -> bool:
        """Whether the hook has a payload."""
        return self._hook_payload(hook_id) is not None

    @overload
    def hook_payload(self, hook_id: str) -> Any: ...
    @overload
    def hook_payload(self, hook_id: str, *, as_: type[T]) -> T | None: ...
    def hook_payload(self, hook_id: str, *, as_: Any = object) -> Any:
        """The hook's payload, decoded to `as_` if given; None while there is none."""
        raw = self._hook_payload(hook_id)
        return None if raw is None else decode_as(raw, as_)

    def hook_payload_as(self, hook_id: str, kind: type[T]) -> T | None:
        """The hook's payload as `kind`; None while there is none."""
        return self.hook_payload(hook_id, as_=kind)

    def hook_disposed(self, hook_id: str) -> bool:
        """Whether the hook was disposed."""
        hook = self._reads.hook(hook_id)
        return hook is not None and hook.status == "disposed"

    def first_resolved(self, *refs: tuple[str, str]) -> tuple[str, str] | None:
        """Of these (kind, id), kind step, wait or hook, the one that was resolved first; None while none is."""
        if wrong := [kind for kind, _ in refs if kind not in ("step", "wait", "hook")]:
            raise ValueError(f"first_resolved knows the kinds 'step', 'wait' and 'hook', not {wrong[0]!r}")
        found = self._reads.first_resolved(refs)
        return None if found is None else (found[0], found[1])

    def _step_output(self, step_id: str) -> bytes | None:
        step = self._reads.step(step_id)
        return step.output if step is not None and step.status == "completed" else None

    def _hook_payload(self, hook_id: str) -> bytes | None:
        hook = self._reads.hook(hook_id)
        return hook.payload if hook is not None and hook.status == "received" else None

    def _cancelled_by_request(self, step_id: str) -> bool:
        # What a request cancelled is resolved by the request's own event (R28); a step_cancelled has its own sequence.
        request, resolved = self.cancellation_request(), self._reads.first_resolved([("step", step_id)])
        return request is not None and resolved is not None and request.sequence == resolved[2]

    # -- ends ---------------------------------------------------------------------------------------------------------

    def complete(self, output: Any = None) -> RuntimeCommand:
        """End the run with this output. Not while a cancellation is requested."""
        return commands.Complete(encode(output))

    def fail(self, error: str) -> RuntimeCommand:
        """End the run as failed with this text."""
        text_json("error", error)
        return commands.Fail(error)

    def cancel(self) -> RuntimeCommand:
        """End the run as cancelled, for the reason of the recorded request."""
        return commands.Cancel()

    def timeout(self, deadline: Moment, reason: str | None = None) -> RuntimeCommand:
        """End the run as timed out. Nothing checks that the deadline has passed."""
        return commands.Timeout(instant_text("deadline", deadline), reason)

    # -- facts --------------------------------------------------------------------------------------------------------

    def record_progress(self, progress: WorkflowProgress) -> Member:
        """Record a progress entry; then the workflow is asked again."""
        return commands.RecordProgress(progress.to_json())

    def link_child_operation(self, child: ChildOperationReference) -> Member:
        """Link work outside this run; then the workflow is asked again."""
        return commands.LinkChildOperation(child.to_json())

    # -- work ---------------------------------------------------------------------------------------------------------

    def schedule_step(
        self,
        step_id: str,
        step: Step[..., Any] | str,
        input: Any = None,
        *,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
    ) -> ScheduleStep:
        """Open a step, given by function or by name; also a member for `schedule_steps` and `schedule_all`.

        `input` is the step's one argument; of several `step.input(...)` makes one.
        `retry` defaults to the decorator's policy, then to 3 attempts at once; `timeout` to the decorator's limit.
        """
        known = self._find_step(step) if isinstance(step, str) else step
        if known is None:
            name, policy = str(step), retry  # of another process's code: it will know the step, or refuse it by name
        else:
            name, policy = _declared(known, input, retry, timeout)
        limit = None if known is None else known.limit_ms
        if timeout is not None:
            limit = whole_ms("timeout", timeout, 1)
        wire_policy = None if policy is None else policy.to_json()
        return ScheduleStep(step_id, name, encode(input), wire_policy, limit)

    step = schedule_step

    def schedule_steps(self, steps: Iterable[ScheduleStep], *, concurrency: int | None = None) -> RuntimeCommand:
        """Open several steps in one append; `concurrency` limits the attempts of this run that run at once (R26)."""
        return commands.ScheduleSteps(tuple(steps), concurrency)

    def schedule_all(self, members: Iterable[Member], *, concurrency: int | None = None) -> RuntimeCommand:
        """Open any mix of work in one append (R16).

        Members are what `schedule_step`, `wait_until`, `wait_for`, `create_hook`, `record_progress`,
        `link_child_operation`, `dispose_hook` and `close_wait` return.
        """
        return commands.ScheduleAll(tuple(members), concurrency)

    def wait_until(self, wait_id: str, resume_at: Moment) -> Member:
        """Open a wait due at an aware datetime, RFC 3339 text or `Instant`, the same one on every replay."""
        return commands.WaitUntil(wait_id, instant_text("resume_at", resume_at))

    def wait_for(self, wait_id: str, delay: timedelta) -> Member:
        """Open a wait that is due `delay` after it is first decided (R40); whole milliseconds, rounded up."""
        return commands.WaitFor(wait_id, whole_ms("delay", delay, 0))

    def close_wait(self, wait_id: str) -> Member:
        """Complete an open wait before its time (R40)."""
        return commands.CloseWait(wait_id)

    def create_hook(self, hook_id: str, token: str, metadata: HookMetadata | Any = None) -> Member:
        """Open a hook that is resolved from outside, by id or by the secret `token`. Metadata is stored in clear."""
        raw = metadata.to_json() if isinstance(metadata, HookMetadata) else encode(metadata)
        return commands.CreateHook(hook_id, token, raw)

    def dispose_hook(self, hook_id: str) -> Member:
        """Resolve an active hook as no longer wanted."""
        return commands.DisposeHook(hook_id)


def _declared(
    step: Step[..., Any], input: Any, retry: RetryPolicy | None, timeout: timedelta | None
) -> tuple[str, RetryPolicy | None]:
    """Name and policy of a step given by function; mistakes that would only show at the attempt are raised now."""
    if not isinstance(step, Step):
        raise TypeError(f"schedule_step takes a step decorated with @flow.step or its name, not {type(step).__name__}")
    if timeout is not None and step.plan.mode == "inline":
        raise ValueError(f"step {step.name!r} runs inline and cannot have a timeout (R54)")
    if input is not None and not step.binding.takes_input:
        raise TypeError(f"step {step.name!r} takes no input, and one is given")
    return step.name, retry if retry is not None else step.plan.retry
