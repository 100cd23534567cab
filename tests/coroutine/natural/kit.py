"""What the natural workflows share: their steps, which really run, and what hooks are answered with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson

from perdure import Flow, RetryPolicy
from perdure.coroutine.workflow import AsyncWorkflow
from perdure.payload import encode

__all__ = [
    "DAY",
    "HOUR",
    "MINUTE",
    "NATURAL",
    "Decision",
    "Line",
    "Natural",
    "OutOfStock",
    "add",
    "answer",
    "charge",
    "cut",
    "fetch",
    "flow",
    "natural",
    "notify",
    "outcome",
    "poll",
    "price",
    "provider",
    "refund",
    "release",
    "remote",
    "reserve",
    "ship",
]

flow = Flow(guard="off")
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class OutOfStock(Exception):
    pass


@dataclass(frozen=True)
class Line:
    sku: str
    count: int = 1


@dataclass(frozen=True)
class Decision:
    approved: bool
    by: str


@dataclass
class Natural:
    """One workflow, the input of its runs, and whether its end depends on what arrives first."""

    workflow: AsyncWorkflow[..., Any]
    input: Any
    any_order: bool
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.workflow.name


NATURAL: list[Natural] = []


def natural(
    input: Any = None, *, any_order: bool = True, fails_on: tuple[type[BaseException], ...] = ()
) -> Callable[[Callable[..., Any]], AsyncWorkflow[..., Any]]:
    """Registers a workflow under its function's name; `any_order=False` for one whose end depends on arrival."""

    def register(function: Callable[..., Any]) -> AsyncWorkflow[..., Any]:
        workflow: Any = flow.workflow(function.__name__, fails_on=fails_on)(function)
        NATURAL.append(Natural(workflow, input, any_order))
        return workflow  # type: ignore[no-any-return]  # the decorator's type is lost with the function's

    return register


# -- steps -----------------------------------------------------------------------------------------------------------


@flow.step(inline=True)
def reserve(item: str) -> str:
    return f"r-{item}"


@flow.step(inline=True)
def release(reservation: str) -> str:
    return reservation


@flow.step(inline=True)
def charge(who: str, cents: int = 100) -> int:
    return cents


@flow.step(inline=True)
def refund(cents: int) -> int:
    return -cents


@flow.step(inline=True)
def ship(line: Line) -> str:
    return f"{line.count} {line.sku}"


@flow.step(inline=True)
def notify(who: str, text: str = "") -> None:
    return None


@flow.step(inline=True)
def price(item: str) -> int:
    return len(item) * 10


@flow.step(inline=True)
def add(a: int, b: int = 1) -> int:
    return a + b


@flow.step(inline=True)
def fetch(page: int) -> dict[str, Any]:
    return {"items": [page * 10, page * 10 + 1], "next": page + 1 if page < 3 else None}


@flow.step(inline=True)
def poll(job: str, turn: int) -> str:
    return "done" if turn >= 3 else "running"


@flow.step(inline=True, retry=RetryPolicy.fixed(2))
def provider(name: str) -> str:
    if name != "third":
        raise ValueError(f"{name} is down")
    return name


@flow.step
def remote(name: str) -> str:
    raise ValueError(f"{name} is far away")


@flow.step(inline=True)
def cut(text: str) -> list[str]:
    return text.split()


_FUNCTIONS = {name: step.function for name, step in flow.steps.items()}
_ANSWERS = {
    "decision": {"approved": True, "by": "ann"},
    "amount": 5,
    "mail-1": "add",
    "mail-2": "add",
    "mail-3": "stop",
    "event-1": "pay",
    "event-2": "ship",
    "event-3": "close",
}


def outcome(name: str, stored: Any) -> Any:
    """The stored output of a step, or raises what it raises."""
    function = _FUNCTIONS[name]
    if isinstance(stored, dict) and "$args" in stored:
        made = function(**stored["$args"])
    elif name == "ship":
        made = function(Line(**stored))
    else:
        made = function(stored)
    return orjson.loads(encode(made))


def answer(hook_id: str) -> Any:
    """What is sent to a hook."""
    return _ANSWERS.get(hook_id.rpartition("/")[2], "yes")
