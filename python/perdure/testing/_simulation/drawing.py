"""Draws plans, and what their steps do, from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final, Literal

from perdure.errors import NonRetryable, RetryAfter
from perdure.instant import format_instant
from perdure.testing._simulation.programs import INLINE, LIMITED, PLAIN, Member, Phase, Plan, Trouble

__all__ = ["Behaviour", "behaviour", "draw_plan"]

How = Literal["ok", "error", "fatal", "later", "nan", "big"]
_MS: Final = 1_000_000
_HOW: Final[tuple[How, ...]] = ("ok", "error", "fatal", "later", "nan", "big")
_TROUBLES: Final[tuple[Trouble, ...]] = (
    *("blank", "twice", "resolved", "unknown_run", "raises", "own_token", "drift", "cancel"),
)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one attempt of a step does: how long it takes, and how it ends."""

    ms: int
    how: How
    later_ms: int = 0
    lingers_ms: int = 0
    """How long it goes on when it is cancelled."""

    def end(self, step_id: str, attempt: int) -> Any:
        """The value, or the exception the step raises."""
        match self.how:
            case "error":
                raise RuntimeError(f"attempt {attempt} failed")
            case "fatal":
                raise NonRetryable(f"attempt {attempt} is hopeless")
            case "later":
                raise RetryAfter(timedelta(milliseconds=self.later_ms))
            case "nan":
                return float("nan")
            case "big":
                return "x" * 5_000
        return {"step": step_id, "attempt": attempt}


def behaviour(seed: int, run_id: str, step_id: str, attempt: int) -> Behaviour:
    """What an attempt does is a function of who it is, so that a repetition of it does the same."""
    random = Random(f"{seed}/{run_id}/{step_id}/{attempt}")
    ms = random.choice((0, 0, 1, random.randrange(300), random.randrange(300), random.randrange(4_000), 25_000))
    how = random.choices(_HOW, (60, 28, 3, 5, 2, 2))[0]
    return Behaviour(ms, how, random.choice((-5, 0, 1, 700, 20_000)), random.choice((0, 0, 0, 300, 9_000)))


@dataclass(slots=True)
class _Drawer:
    random: Random
    start_ns: int
    run_ids: tuple[str, ...]
    prefix: str = ""
    made: int = 0
    shares: bool = False
    """Whether a hook of the plan has a token that other runs use too; a second one would wait for the first for ever."""

    def chance(self, percent: float) -> bool:
        return self.random.random() * 100 < percent

    def new_id(self, kind: str) -> str:
        self.made += 1
        return f"{self.prefix}{kind}{self.made}"

    def step(self) -> Member:
        step_id = self.new_id("s")
        name = self.random.choices((PLAIN, LIMITED, INLINE), (7, 2, 1))[0]
        body: dict[str, Any] = {"type": "schedule_step", "step_id": step_id, "step_name": name, "input": self.made}
        if self.chance(85):
            body["retry"] = self.policy()
        return Member("step", step_id, body)

    def policy(self) -> dict[str, Any]:
        policy: dict[str, Any] = {"max_attempts": self.random.choice((1, 2, 3, 3, 5)), "delay_ms": 0}
        how = self.random.random()
        if how < 0.3:
            policy["delay_ms"] = self.random.choice((1, 400, 3_000, 15_000))
        elif how < 0.55:
            policy |= {"delay_ms": 500, "backoff": "exponential", "max_delay_ms": 8_000}
        if self.chance(60):
            policy["on_exhausted"] = "continue_workflow"
        return policy

    def wait(self) -> Member:
        wait_id = self.new_id("w")
        if self.chance(70):
            delay = self.random.choice((0, 1, self.random.randrange(2_000), 6_000, 45_000))
            return Member("wait", wait_id, {"type": "wait_for", "wait_id": wait_id, "delay_ms": delay})
        at = self.start_ns + self.random.randrange(-1_000, 40_000) * _MS
        return Member("wait", wait_id, {"type": "wait_until", "wait_id": wait_id, "resume_at": format_instant(at)})

    def hook(self) -> Member:
        hook_id = self.new_id("h")
        token = f"canary-{self.run_ids[0]}-{hook_id}"
        if not self.shares and self.chance(30):
            self.shares, token = True, f"canary-shared-{self.random.randrange(2)}"
        body = {"type": "create_hook", "hook_id": hook_id, "token": token, "metadata": {"asked": hook_id}}
        return Member("hook", hook_id, body)

    def progress(self) -> Member:
        progress_id = self.new_id("p")
        body = {"type": "record_progress", "progress": {"progress_id": progress_id, "completed": 1}}
        return Member("progress", progress_id, body)

    def child(self) -> Member:
        reference_id = self.new_id("c")
        child = {"reference_id": reference_id, "kind": "job", "operation_id": reference_id}
        if self.chance(50):
            child["flow_run_id"] = self.random.choice(self.run_ids)
        return Member("child", reference_id, {"type": "link_child_operation", "child": child})

    def member(self) -> Member:
        kinds = (self.step, self.wait, self.hook, self.progress, self.child)
        return self.random.choices(kinds, (55, 20, 14, 6, 5))[0]()

    def phases(self, count: int) -> list[Phase]:
        phases: list[Phase] = []
        for _ in range(count):
            members = tuple(self.member() for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 4))))
            slow = sum(m.kind in ("step", "wait", "hook") for m in members)
            need: Literal["all", "any"] = "any" if slow > 1 and self.chance(30) else "all"
            limit = self.random.choice((1, 2)) if self.chance(20) else None
            style: Literal["group", "single"] = "single" if need == "all" and self.chance(35) else "group"
            phases.append(Phase(members, need, limit, style))
            if need == "any" and self.chance(60):
                phases.append(Phase(members, "closed"))
        return phases


def draw_plan(name: str, random: Random, start_ns: int, run_ids: tuple[str, ...]) -> Plan:
    """A plan of up to four phases. `run_ids`: the run itself, then those it may link."""
    drawer = _Drawer(random, start_ns, run_ids)
    phases = drawer.phases(random.choice((1, 2, 2, 3, 4)))
    if drawer.chance(12):
        at = random.randrange(len(phases) + 1)
        steps = tuple(m for phase in phases[:at] for m in phase.members if m.kind == "step")
        phases.insert(at, Phase(steps, trouble=random.choice(_TROUBLES)))
    drawer.prefix = "x-"
    cleanup = drawer.phases(random.choice((0, 1, 1, 2)))
    ends: Literal["complete", "fail", "timeout"] = random.choices(("complete", "fail", "timeout"), (86, 7, 7))[0]
    cleans_up: Literal["cancel", "fail", "timeout"] = random.choices(("cancel", "fail", "timeout"), (80, 10, 10))[0]
    return Plan(name, tuple(phases), tuple(cleanup), ends, cleans_up)
