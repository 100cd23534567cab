"""What the command line says of runs that somebody drives, that nobody drives any more, that keep failing or are held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from perdure import (
    Flow,
    FlowEngine,
    Instant,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    WorkflowContext,
    WorkflowRaised,
)
from perdure.cli.app import run
from perdure.owner import make_owner
from perdure.stores import SqliteEventStore
from perdure.stores.base import LeaseState

HOUR = 3600 * 10**9
TTL = 30 * 10**9
FAR = Instant.parse("2999-01-01T00:00:00Z")

flow = Flow()


@flow.workflow("order", version="1")
def order(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.input == "wait":
        return ctx.wait_until("patience", FAR)
    raise ValueError("a bug")


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = str(tmp_path / "app.db")
    monkeypatch.setenv("PERDURE_STORE", address)
    return address


def failing(address: str, drives: int, *, shift: int = HOUR, max_failures: int = 20) -> LeaseState:
    """Submits run "r" and lets a worker of build b1 fail so often to drive it, by a clock that is `shift` ns ahead of ours."""
    now = time.time_ns() + shift

    async def work() -> LeaseState:
        nonlocal now
        store = SqliteEventStore(address, clock=lambda: now)
        builds = RuntimeBuildCompatibility("b1", accept_unpinned=True)
        async with FlowEngine(flow, store, builds=builds, max_failures=max_failures) as engine:
            await engine.submit("order", run_id="r")
            for _ in range(drives):
                now = max(now, (await store.lease("r")).not_before or 0)
                (claimed,) = await store.claim(engine.owner, 1, ttl_ns=TTL)
                with pytest.raises(WorkflowRaised):
                    await engine.drive_claimed(claimed)
            state = await store.lease("r")
        await store.close()
        return state

    return asyncio.run(work())


def claimed(address: str, owner: str, *, shift: int = 0) -> LeaseState:
    """Submits run "r" and claims it, by a clock that is `shift` ns ahead of ours."""

    async def work() -> LeaseState:
        store = SqliteEventStore(address, clock=lambda: time.time_ns() + shift)
        async with FlowEngine(flow, store) as engine:
            await engine.submit("order", run_id="r")
            await store.claim(owner, 1, ttl_ns=TTL)
            state = await store.lease("r")
        await store.close()
        return state

    return asyncio.run(work())


def taken(address: str, *, shift: int = 0) -> None:
    """Claims the held run "r", as a worker of build b2 does."""

    async def work() -> None:
        store = SqliteEventStore(address, clock=lambda: time.time_ns() + shift)
        assert len(await store.claim_held(make_owner(), 1, build="b2", ttl_ns=TTL)) == 1
        await store.close()

    asyncio.run(work())


def dead_owner() -> str:
    """An owner of this host whose process has ended: ours has its pid, and began at another time."""
    return orjson.dumps(orjson.loads(make_owner()) | {"started": "1"}).decode()


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What `perdure show r` says, name by name."""
    capsys.readouterr()
    assert run(["show", "r"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {name: words for name, _, words in (line.partition("  ") for line in lines)}


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """What a command says on stderr."""
    capsys.readouterr()
    assert run(list(arguments)) == status
    return capsys.readouterr().err


# show ----------------------------------------------------------------------------------------------------------


def test_show_says_when_a_failing_run_is_driven_next(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    state = failing(address, 5)
    facts = shown(capsys)
    assert facts["failed drives"].strip() == "5"
    assert facts["next drive"].strip() == f"at {Instant(state.not_before or 0)}"


def test_show_says_that_a_failing_run_is_driven_now(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing(address, 1, shift=-HOUR)
    assert shown(capsys)["next drive"].strip() == "now, by the next free worker"


def test_show_names_no_next_drive_of_a_held_run(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing(address, 2, max_failures=2)
    facts = shown(capsys)
    assert "next drive" not in facts
    assert facts["held, code"].strip() == "failing"


def test_show_names_no_next_drive_of_a_run_that_is_driven(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing(address, 1, shift=-HOUR)
    assert (claimed(address, make_owner()).failures, "next drive" in shown(capsys)) == (1, False)


def test_show_names_no_next_drive_of_a_held_run_whose_lease_expired(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(address, 1, shift=-HOUR, max_failures=1)
    taken(address, shift=-HOUR)
    facts = shown(capsys)
    assert "was driven by" in facts and "next drive" not in facts


def test_show_says_that_the_driver_is_dead(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    claimed(address, dead_owner())
    assert shown(capsys)["driven by"].strip().endswith(" (dead)")


def test_show_does_not_call_a_living_driver_dead(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    claimed(address, make_owner())
    assert "dead" not in shown(capsys)["driven by"]


@pytest.mark.parametrize(("owner", "dead"), [(make_owner, ""), (dead_owner, " (dead)")])
def test_show_says_when_a_lease_expired(
    address: str, capsys: pytest.CaptureFixture[str], owner: Callable[[], str], dead: str
) -> None:
    state = claimed(address, owner(), shift=-HOUR)
    facts = shown(capsys)
    assert "driven by" not in facts
    at = Instant((state.claim_at or 0) * 1000)
    assert facts["was driven by"].strip().endswith(f"{dead}, lease expired at {at}")


# acting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_cancellation_that_a_hold_keeps_from_being_carried_out_says_so(
    address: str, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    failing(address, 1, max_failures=1)
    assert told(capsys, "cancel", "r", *options) == (
        "perdure: run 'r' is held (failing): until `perdure release r` no worker carries it on, unless one of another build\n"
    )
    assert told(capsys, "release", "r") == ""
    assert "held" not in told(capsys, "cancel", "r", *options)
    assert told(capsys, "cancel", "r", "--force") == ""


def test_a_cancellation_of_a_held_run_that_somebody_drives_is_carried_out(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(address, 1, shift=0, max_failures=1)

    taken(address)
    assert told(capsys, "cancel", "r") == ""


def test_a_resumption_that_a_hold_keeps_from_being_carried_out_says_so(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        store = SqliteEventStore(address)
        async with FlowEngine(flow, store) as engine:
            await engine.start("order", "wait", run_id="r")
            sequence = (await store.lease("r")).last_sequence
            assert await store.set_hold("r", '{"code": "non_deterministic"}', expected_sequence=sequence)
        await store.close()

    asyncio.run(work())
    refused = told(capsys, "resume", "r", "--wait", "patience", status=1)
    assert refused == f"perdure: run 'r': wait 'patience' is not due before {FAR}; --early completes it now\n"
    assert "is held (non_deterministic)" in told(capsys, "resume", "r", "--wait", "patience", "--early")


def test_a_cancellation_says_when_a_failing_run_is_tried_again(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = failing(address, 3)
    at = Instant(state.not_before or 0)
    assert told(capsys, "release", "r", status=1) == (
        f"perdure: run 'r' was not held; its last 3 drives failed; it is tried again at {at}\n"
    )
    again = "perdure: run 'r': its last 3 drives failed; it is tried again now, by the next free worker\n"
    assert told(capsys, "cancel", "r") == again  # an event from outside ends the back-off


def test_a_release_that_releases_nothing_prints_no_table(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing(address, 0)
    assert run(["release", "r", "nowhere"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "perdure: run 'r' was not held\nperdure: run 'nowhere' is not in the store\n"
    assert run(["release", "--all"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "perdure: no such run is held\n")


def test_a_list_shows_which_runs_fail(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing(address, 5)
    assert run(["runs", "--store", address]) == 0
    assert "running, failing: 5 drives" in capsys.readouterr().out
    assert run(["runs", "--store", address, "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["runs"][0]["failures"] == 5


def test_a_list_shows_a_run_that_is_held_for_its_failures_as_held(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(address, 2, max_failures=2)
    assert run(["runs", "--store", address]) == 0
    shown = capsys.readouterr().out
    assert "running, held: failing" in shown and "drives" not in shown
