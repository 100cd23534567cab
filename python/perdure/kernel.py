"""The kernel seam: four pure rules (project, decide, retry delay, append) and the tables beside them, in two engines.

`load("rust")` gives the compiled kernel, `load("pure")` the pure-Python one. Both have the names, arguments, results,
exceptions and bytes declared here; there is no fall-back from one to the other. Rulings R4, R13, R16, R28 and R58 fix
it.

Everything that crosses is bytes (UTF-8 JSON), str, int or one of the small read-only records below. Instants are ints
of nanoseconds since 1970-01-01T00:00:00Z; payloads are the raw JSON span that the history holds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Final, Literal, Protocol, cast

__all__ = [
    "Batch",
    "Control",
    "Decision",
    "Hook",
    "HookDelete",
    "HookInsert",
    "Kernel",
    "KernelName",
    "Policy",
    "Reads",
    "Run",
    "RunRow",
    "Step",
    "View",
    "Wait",
    "WakeupDelete",
    "WakeupUpsert",
    "load",
]

KernelName = Literal["rust", "pure"]
DEFAULT_MAX_EVENT_BYTES: Final = 1_048_576
"""Largest JSON of one event, in bytes (spec 1.1)."""


class Policy(Protocol):
    """What `retry_delay_ms` reads of a retry policy."""

    @property
    def max_attempts(self) -> int: ...
    @property
    def delay_ms(self) -> int: ...
    @property
    def backoff(self) -> str: ...  # "fixed" | "exponential"
    @property
    def max_delay_ms(self) -> int: ...


class Step(Protocol):
    """One step as the snapshot shows it (spec 2.3)."""

    @property
    def step_id(self) -> str: ...
    @property
    def step_name(self) -> str: ...
    @property
    def status(self) -> str: ...  # pending | running | completed | failed | cancelled
    @property
    def input(self) -> bytes: ...
    @property
    def retry(self) -> bytes: ...  # the policy as on the wire, defaults omitted
    @property
    def output(self) -> bytes | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def attempt(self) -> int: ...
    @property
    def retry_after(self) -> int | None: ...  # ns
    @property
    def failure(self) -> bytes | None: ...  # newest recorded failure object (R28, R53)
    @property
    def created_sequence(self) -> int: ...
    def to_json(self) -> bytes: ...  # that entry of the snapshot


class Wait(Protocol):
    """One wait as the snapshot shows it (spec 2.4)."""

    @property
    def wait_id(self) -> str: ...
    @property
    def status(self) -> str: ...  # waiting | completed | cancelled
    @property
    def resume_at(self) -> int: ...  # ns
    @property
    def created_sequence(self) -> int: ...
    def to_json(self) -> bytes: ...


class Hook(Protocol):
    """One hook as the snapshot shows it (spec 2.5). The repr hides the token."""

    @property
    def hook_id(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def status(self) -> str: ...  # active | received | disposed | cancelled
    @property
    def metadata(self) -> bytes: ...
    @property
    def payload(self) -> bytes | None: ...
    @property
    def created_sequence(self) -> int: ...
    def to_json(self) -> bytes: ...


class Decision(Protocol):
    """An accepted command: the events it asks for (creations and facts only), as event JSON without envelope."""

    @property
    def drafts(self) -> list[bytes]: ...
    @property
    def ends(self) -> bool: ...  # the drafts end the run
    @property
    def counts(self) -> bool: ...  # stages something, and nothing but progress, links, disposals, closings (R6)
    @property
    def concurrency(self) -> int | None: ...  # the limit the command named (R26)


class Control(Protocol):
    """What a host call does, by the tables of spec 06."""

    @property
    def drafts(self) -> list[bytes]: ...
    @property
    def drive(self) -> bool: ...  # the call goes on to drive the run
    @property
    def admit(self) -> bool: ...  # build admission is owed before anything is appended (R58)


class WakeupUpsert(Protocol):
    @property
    def kind(self) -> str: ...  # "wait" | "retry"
    @property
    def subject_id(self) -> str: ...
    @property
    def due(self) -> int: ...  # ns
    @property
    def due_key(self) -> str: ...  # 30 characters, nine fraction digits and Z: text order is time order (spec 7.5)


class WakeupDelete(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def subject_id(self) -> str: ...


class HookInsert(Protocol):
    """The repr hides token and hash."""

    @property
    def hook_id(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def token_hash(self) -> bytes: ...  # SHA-256 of the token's UTF-8
    @property
    def sequence(self) -> int: ...  # of its hook_created


class HookDelete(Protocol):
    @property
    def hook_id(self) -> str: ...
    @property
    def token_hash(self) -> bytes: ...


class RunRow(Protocol):
    """The run's row of the index as it stands after the batch."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def build(self) -> str | None: ...
    @property
    def status(self) -> str: ...  # derived: suspended included
    @property
    def terminal(self) -> bool: ...
    @property
    def open_waits(self) -> int: ...
    @property
    def active_hooks(self) -> int: ...
    @property
    def pending_retries(self) -> int: ...
    @property
    def created_at(self) -> int: ...  # ns, timestamp of event 1
    @property
    def updated_at(self) -> int: ...  # ns, timestamp of the last event
    @property
    def ended_at(self) -> int | None: ...  # ns, timestamp of the terminal event
    @property
    def created_key(self) -> str: ...  # the three times as index text (spec 7.5)
    @property
    def updated_key(self) -> str: ...
    @property
    def ended_key(self) -> str | None: ...
    @property
    def last_sequence(self) -> int: ...


class Batch(Protocol):
    """Envelopes at an expected sequence, with the index changes they imply (R50); what a store commits.

    Index changes are net for the batch and apply in this order: clear-all flags, deletes (only rows that were there
    before), upserts and inserts. After the terminal event both clear flags are set and nothing is inserted.
    A batch without events has empty lines and `last_sequence == expected_sequence`.
    """

    @property
    def run_id(self) -> str: ...
    @property
    def expected_sequence(self) -> int: ...
    @property
    def first_sequence(self) -> int: ...  # expected_sequence + 1
    @property
    def last_sequence(self) -> int: ...
    @property
    def lines(self) -> bytes: ...  # one envelope per line, each ended by 0x0A
    @property
    def event_ids(self) -> list[str]: ...
    @property
    def row(self) -> RunRow: ...
    @property
    def changes_index(self) -> bool: ...  # whether rows other than the run's own change
    @property
    def clear_wakeups(self) -> bool: ...
    @property
    def delete_wakeups(self) -> list[WakeupDelete]: ...
    @property
    def upsert_wakeups(self) -> list[WakeupUpsert]: ...
    @property
    def clear_hooks(self) -> bool: ...
    @property
    def delete_hooks(self) -> list[HookDelete]: ...
    @property
    def insert_hooks(self) -> list[HookInsert]: ...
    @property
    def links(self) -> list[str]: ...  # flow_run_id of each child linked by this batch, in order, repeats dropped


class Reads(Protocol):
    """What a `Run` and every `View` over it answer. Reading costs what is asked, not what the run holds."""

    @property
    def run_id(self) -> str: ...
    @property
    def last_sequence(self) -> int: ...  # 0 for a run without events; staged events count
    @property
    def last_visible(self) -> int: ...  # sequence of the last visible event (R3, R8), 0 if none
    @property
    def status(self) -> str: ...  # derived; "pending" for a run without events
    @property
    def terminal(self) -> bool: ...
    @property
    def spec(self) -> bytes: ...  # normalised as R28; b"" for a run without events
    @property
    def input(self) -> bytes: ...
    @property
    def build_id(self) -> str | None: ...
    @property
    def workflow(self) -> tuple[str, str]: ...  # name, version
    @property
    def output(self) -> bytes | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def outcome(self) -> bytes | None: ...  # terminal outcome object (spec 6.8)
    @property
    def cancellation(self) -> bytes | None: ...  # {"request":…,"requested_at":…,"sequence":…}
    @property
    def updated_at(self) -> int: ...  # ns, largest-sequence event's timestamp; 0 for a run without events

    def step(self, step_id: str) -> Step | None: ...
    def wait(self, wait_id: str) -> Wait | None: ...
    def hook(self, hook_id: str) -> Hook | None: ...
    def progress(self, progress_id: str) -> bytes | None: ...  # the progress object
    def child(self, reference_id: str) -> bytes | None: ...  # the child operation object
    def active_hooks(self) -> list[Hook]: ...  # by id bytes; empty on a terminal run
    def suspensions(self) -> list[tuple[str, str, int | None]]:
        """Open suspensions (kind, id, due ns; None for hooks), kinds in the order wait, hook, retry, then by id
        bytes. Empty on a terminal run."""
        ...

    def first_resolved(self, refs: Sequence[tuple[str, str]]) -> tuple[str, str, int] | None:
        """Of the given (kind, id), the one resolved first, with the sequence of its resolution; None while none is."""
        ...

    @property
    def last_created(self) -> int: ...  # sequence of the newest event that created a step, wait or hook, 0 if none

    def replayed_step(
        self, after: int, step_id: str, step_name: str, input: bytes, retry: bytes
    ) -> tuple[int, int, bytes] | None:
        """The short way of `timeline`: if its next two entries past `after` create a step of exactly this definition and
        complete it, the sequence of the second, the largest timestamp up to there, ns, and the output; else None."""
        ...

    def timeline(self, after: int, limit: int) -> list[tuple[int, str, str, int]]:
        """The first `limit` events past `after` that a coroutine is shown when it is replayed: sequence, type, id, and the largest
        timestamp of the history up to there, ns (R38). They are run_started, run_cancellation_requested, and what
        creates or resolves a step, wait or hook."""
        ...

    def snapshot(self) -> bytes:
        """The snapshot JSON of R28."""
        ...

    def next_wakeup(self, clock: int, horizon: int) -> int | None:
        """R9's `until`: the earliest of the waits due later than `clock` and the retries due later than `horizon`,
        ns."""
        ...

    def due_waits(self, now: int) -> list[bytes]:
        """`wait_completed` drafts for every wait with resume_at <= now, by (resume_at, id bytes). Empty on a terminal
        run."""
        ...

    def due_wakeups(self, now: int) -> list[tuple[str, str, int]]:
        """(kind, subject id, due ns) with due <= now: waits before retries, then by id bytes. Empty on a terminal
        run."""
        ...

    def stage(self, drafts: Sequence[bytes], clock: int) -> View:
        """These reads with the drafts on top, each stamped `clock`, validated by the projection rules (R4, R13).

        Raises `InvalidTransition` or `Serialization` as projection does; the run is unchanged."""
        ...

    def decide(self, command: bytes, clock: int, horizon: int) -> Decision:
        """Judges one command by the order of R16. Raises `Serialization`, `InvalidTransition`, `NonDeterministic`,
        `HookTokenConflict`, `PayloadTooLarge`."""
        ...

    def starts(self, horizon: int, live: Collection[tuple[str, int]], limit: int) -> list[tuple[str, int, bool]]:
        """(step id, attempt, needs a step_started event): the steps to run now, beside the `live` (step id, attempt)
        (R26, R58)."""
        ...

    def closing(self) -> list[bytes]:
        """The drafts that a final failure under fail_run still owes (R19), or none."""
        ...

    def settle(
        self, step_id: str, attempt: int, outcome: bytes, clock: int, horizon: int, restart: bool
    ) -> list[bytes]:
        """The drafts of one attempt's outcome; none if it no longer counts (R10).

        `outcome` is `{"type":"completed","output":…}`,
        `{"type":"failed","error":text,"retry_after_ms":int?,"failure":{…}?}` or
        `{"type":"non_retryable","error":text,"failure":{…}?}`; `error` is the whole text to store, `retry_after_ms`
        any JSON integer (outside 1..2^64-1 it is ignored, R5)."""
        ...

    def control(self, call: bytes, now: int) -> Control:
        """A host call by the tables of spec 06 as amended (R22-R24, R33, R58). `call` = {"op":…, …}:

        start {spec, input, drive?}, drive, resume_wait {wait_id, early?, drive?}, resume_hook {hook_id, payload,
        drive?}, dispose_hook {hook_id, drive?}, request_cancellation {reason?, drive?}, force_cancel {reason?},
        terminate_for_timeout {deadline, reason?}, terminate_for_host_shutdown {reason?}, record_progress {progress},
        link_child_operation {child}, resume_scheduled_run {now}, resume_due_waits {now}, resume_due_retries {now}.
        `drive` defaults to true where it stands; keys it does not know are ignored. `now` is the clock that direct
        calls judge "due" by. On a run without events only `start` is legal; others raise `RunNotFound`."""
        ...


class View(Reads, Protocol):
    """A read-only overlay of uncommitted drafts on a `Run`. Stale (`InvalidTransition` "stale_view") once the run
    moved on."""

    def append(self, entropy: bytes) -> Batch:
        """All that is staged, as envelopes with the timestamps of their stages; 16 bytes of entropy per event (R13)."""
        ...


class Run(Reads, Protocol):
    """The projection of one run; never holds uncommitted events. Safe to read from any thread."""

    def extend(self, tail: bytes) -> None:
        """Folds the next lines. A refused tail leaves the run as it was (R61)."""
        ...

    def accept(self, batch: Batch) -> None:
        """Adopts the layer that `batch` was made of, after the store acknowledged it."""
        ...


class Kernel(Protocol):
    """One of the two kernels."""

    def new(self, run_id: str, max_event_bytes: int) -> Run:
        """A run without events: only `control` (start), `stage` and reads are meaningful."""
        ...

    def project(self, run_id: str, history: bytes, max_event_bytes: int) -> Run:
        """Folds lines into a run. Raises `RunNotFound` for no events, `Serialization`, `InvalidWorkflow`,
        `InvalidTransition`."""
        ...

    def project_many(
        self, histories: Sequence[tuple[str, bytes]], threads: int, max_event_bytes: int = ...
    ) -> list[Run | Exception]:
        """(run id, lines) → a run or the refusal per item, in order; never raises for one of them."""
        ...

    def retry_delay_ms(self, policy: Policy, run_id: str, step_id: str, failed_attempt: int) -> int:
        """Delay in ms after `failed_attempt` failed (spec 5.3); 0 = at once."""
        ...

    def check_spec(self, spec: bytes) -> None:
        """Raises `Serialization` or `InvalidWorkflow` (spec 1.4, R61)."""
        ...

    def check_run_id(self, run_id: str) -> None:
        """Raises `InvalidRunId` for an empty id or one outside `[A-Za-z0-9_-]+`. The length rule is `control`'s, for
        new runs."""
        ...

    def json_equal(self, left: bytes, right: bytes) -> bool:
        """JSON equality of spec 1.7 and R29. Raises `Serialization` for what is not JSON."""
        ...


_MODULES: Final[dict[str, str]] = {"rust": "perdure._core", "pure": "perdure._pure"}


def load(name: KernelName) -> Kernel:
    """The kernel called `name`. Raises `ValueError` for another name and `ImportError` where the extension is
    missing."""
    try:
        module = _MODULES[name]
    except KeyError:
        raise ValueError(f"kernel {name!r} is unknown; use 'rust' or 'pure'") from None
    return cast(Kernel, import_module(module))
