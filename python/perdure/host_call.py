"""One call of a host under way: what it asks for, and how far it came (spec 06)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from perdure.codec import Coding
from perdure.errors import Serialization
from perdure.kernel import Reads, Run
from perdure.stores.base import Claimed

__all__ = ["HostCall"]

_OPENING: Final = frozenset({"start", "drive", "resume_scheduled_run", "resume_due_waits", "resume_due_retries"})
_DRIVING: Final = _OPENING | {"resume_wait", "resume_hook", "dispose_hook", "request_cancellation"}


@dataclass(slots=True)
class HostCall:
    """One host call under way. `due`: the instant a scheduled resume was given; `worker`: made for a task, so that a failure
    is counted on the run (R44). `new_spec`: what a run that does not exist yet is started with instead of the call's spec, which
    then only is compared. The rest says how far it came: the run was `found`; the event the call is about is durable
    by whomever (`accepted`), or by this call (`appended`); it `drove`, or `stood_aside` for another owner (R2);
    `own_waits`: those this call completed."""

    run_id: str
    call: Mapping[str, object]
    due: int | None = None
    look: Callable[[Run], None] | None = None
    claimed: Claimed | None = None
    take_over: bool = False
    worker: bool = False
    new_spec: bytes | None = None
    found: bool = False
    accepted: bool = False
    appended: bool = False
    drove: bool = False
    stood_aside: bool = False
    own_waits: list[str] = field(default_factory=list)
    text: bytes = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.text = orjson.dumps(self.call)
        except TypeError as error:
            if "surrogates" not in str(error):
                raise
            raise Serialization("payload", detail="a text of the call holds a lone surrogate, as no JSON can") from None

    def judged(self, run: Reads, coding: Coding | None) -> bytes:
        """The call as the kernel judges it for this run."""
        call = self.call
        if self.new_spec is not None and run.last_sequence == 0:
            call = {**call, "spec": orjson.Fragment(self.new_spec)}
        return orjson.dumps(call) if coding is None else coding.call(call, run)

    @property
    def starts(self) -> bool:
        return self.call["op"] == "start"

    @property
    def drives(self) -> bool:
        return self.call["op"] in _DRIVING and self.call.get("drive") is not False

    @property
    def opens_drive(self) -> bool:
        return self.call["op"] in _OPENING

    @property
    def completes_waits(self) -> bool:
        return self.due is not None and self.call["op"] != "resume_due_retries"
