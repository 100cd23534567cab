"""Celery: duplicated, delayed and lost deliveries are harmless."""

from __future__ import annotations

import asyncio
import importlib
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scenarios.kit import stored

from contrib.shop import ANSWER, LEASE, calls, flow
from contrib.world import Workers, until
from perdure import (
    BlockingFlowEngine,
    DriveRun,
    Flow,
    FlowEngine,
    FlowScheduler,
    ResumeHook,
    ResumeHookByToken,
    TaskSetAside,
)
from perdure.contrib._tries import Tries
from perdure.contrib.celery import CeleryDispatcher, register
from perdure.tasks import Ack, DeadLetter, Nack, TaskOutcome

RUNS = [f"order-{n}" for n in range(4)]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / "broker").mkdir()
    found = {
        "SHOP_BROKER": str(tmp_path / "broker"),
        "SHOP_STORE": f"sqlite:///{tmp_path / 'runs.db'}",
        "SHOP_LEDGER": str(tmp_path / "ledger"),
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def shop(environment: dict[str, str]) -> Any:
    """The application, as this process sends tasks with it."""
    sys.modules.pop("contrib.celery_app", None)
    return importlib.import_module("contrib.celery_app")


@pytest.fixture
def workers(environment: dict[str, str], tmp_path: Path) -> Workers:
    pool = ["--pool=prefork", "--concurrency=1"]  # the engine is made after a fork, and the kill meets one step
    options = ["--loglevel=WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat", *pool]
    return Workers(["-m", "celery", "-A", "contrib.celery_app", "worker", *options], environment, tmp_path / "log")


async def test_deliveries_twice_late_and_never(shop: Any, workers: Workers, environment: dict[str, str]) -> None:
    """A worker is killed in the middle of a step, and messages are sent twice and lost with it; every run ends once."""
    dispatcher = CeleryDispatcher(shop.tasks)
    with workers:
        async with FlowEngine(flow, environment["SHOP_STORE"], lease_ttl=LEASE) as engine:
            await engine.submit("order", {"seconds": 60}, run_id="slow")
            await dispatcher.dispatch(DriveRun("slow"))  # makes the file of the exchange, before a worker would as well
            workers.start()
            for run_id in RUNS:
                await engine.submit("order", run_id=run_id)
            scheduler = FlowScheduler(engine, dispatcher, redispatch_after=timedelta(seconds=2))
            running = asyncio.create_task(scheduler.run_forever())

            async def slow_begun() -> bool:
                return calls("slow") == 1

            await until(slow_begun)
            workers.kill()  # with the message it had taken
            await engine.force_cancel("slow")
            workers.start()

            async def all_ask() -> bool:
                return (await engine.run_summary()).active_hooks == len(RUNS)

            await until(all_ask)
            for run_id in RUNS:
                for _ in range(2):
                    await dispatcher.dispatch(ResumeHook(run_id, "answer", ANSWER))
                await dispatcher.dispatch(DriveRun(run_id))

            async def all_done() -> bool:
                return (await engine.run_summary()).completed_runs == len(RUNS)

            await until(all_done)
            scheduler.stop()
            await running
            for run_id in RUNS:
                told = await stored(engine.store, run_id)
                assert told.count("hook_received answer") == told.count("wait_completed pause") == 1
                assert told.count("step_completed reserve") == 1
                assert (await engine.snapshot(run_id)).output == ANSWER
                assert calls(run_id) == 1
    assert "canary" not in workers.log.read_text()


# what becomes of a message, without a broker -------------------------------------------------------------------------


def test_tries_travel_with_the_task() -> None:
    task = DriveRun("r")
    assert Tries().after(TaskOutcome(task, disposition=Ack()), 3, 0) is None
    seconds, tries = Tries(1, 4).after(TaskOutcome(task, disposition=Nack("busy")), 3, 0) or (0.0, Tries())
    assert tries == Tries(2, 5)
    assert 0 <= seconds <= 16
    for _ in range(30):  # never counted, never set aside
        again = tries.after(TaskOutcome(task, disposition=Nack("elsewhere", counted=False)), 3, 0)
        assert again is not None
        tries = again[1]
    assert tries == Tries(2, 35)
    with pytest.raises(TaskSetAside, match="busy: it came back 3 times"):
        tries.after(TaskOutcome(task, disposition=Nack("busy")), 3, 0)
    with pytest.raises(TaskSetAside, match="hook_conflict"):
        Tries().after(TaskOutcome(task, disposition=DeadLetter("hook_conflict: no")), 3, 0)
    later = Tries().after(TaskOutcome(task, disposition=Nack("early", not_before=90 * 10**9)), 3, 0)
    assert later is not None
    assert later[0] >= 90


def test_a_message_comes_back_fails_or_is_done(shop: Any, environment: dict[str, str]) -> None:
    """The Celery task itself, run here: what it asks of Celery."""
    asked: list[tuple[Any, dict[str, Any]]] = []

    class Again(Exception):
        pass

    def retry(args: Any, **options: Any) -> Exception:
        asked.append((args, options))
        return Again()

    def run(task: Any, *arguments: Any) -> None:
        task.run.__func__(SimpleNamespace(retry=retry), *arguments)

    with (
        BlockingFlowEngine(flow, environment["SHOP_STORE"]) as engine,
        BlockingFlowEngine(Flow(), environment["SHOP_STORE"]) as stranger,
    ):
        engine.start("order", run_id="r")
        tasks = register(shop.app, lambda: engine, name="here", max_attempts=2)
        strange = register(shop.app, lambda: stranger, name="there")
        run(tasks, DriveRun("r").to_json().decode())
        assert asked == []
        text = DriveRun("r").to_json().decode()
        with pytest.raises(Again):
            run(strange, text, 0, 7)
        ((args, options),) = asked
        assert args == (text, 0, 8)
        assert 0 <= options["countdown"] <= 128
        for bad in ("{}", '{"type":"of_tomorrow"}', ResumeHookByToken("canary-nobody", 1).to_json().decode()):
            with pytest.raises(TaskSetAside) as refused:
                run(tasks, bad)
            assert "canary" not in str(refused.value)


def test_messages_hide_what_they_carry(shop: Any) -> None:
    sent: list[tuple[Any, dict[str, Any]]] = []

    def apply_async(*arguments: Any, **options: Any) -> None:
        sent.append((arguments, options))

    dispatcher = CeleryDispatcher(SimpleNamespace(apply_async=apply_async), queue="v1")
    asyncio.run(dispatcher.dispatch(ResumeHookByToken("canary-x", 1)))
    ((_, options),) = sent
    assert options == {"argsrepr": "(…)", "kwargsrepr": "{…}", "queue": "v1"}
