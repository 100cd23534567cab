"""`perdure replay`: the runs of a store, or of an export, against the code that is to be deployed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perdure import BlockingFlowEngine, NonDeterministic, replay_history
from perdure.cli.app import run
from perdure.cli.target import resolve_flow
from perdure.stores import open_store

SHOP = """
from perdure import AsyncContext, Flow
flow = Flow()

@flow.step
async def ship(price: int) -> None: ...

@flow.workflow("order", version="{version}")
async def order(ctx: AsyncContext, item: str) -> str:
    await ctx.step(ship, {price})
    await ctx.hook(bool, id="paid")
    return "{output}"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Code as it is, and as it is after a change; with a store of three runs of the first, one of which has ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for name, version, price, output in (
        ("shop_now", 1, 5, "done"),
        ("shop_dear", 1, 6, "done"),
        ("shop_other_end", 1, 5, "delivered"),
        ("shop_next", 2, 5, "done"),
    ):
        (tmp_path / f"{name}.py").write_text(SHOP.format(version=version, price=price, output=output))
    with BlockingFlowEngine(resolve_flow("shop_now:flow"), "sqlite:///app.db") as engine:
        for run_id in ("a", "b", "c"):
            engine.start("order", "tea", run_id=run_id)
        engine.resume_hook("b", "paid", True)
    return tmp_path


def replayed(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> tuple[str, str]:
    capsys.readouterr()
    assert run(["replay", *arguments]) == status
    out, err = capsys.readouterr()
    return out, err


STORE = ("--store", "sqlite:///app.db")


def test_code_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(capsys, 0, "shop_now:flow", *STORE) == (
        "workflow  version  runs that fit\norder     1        2\n",
        "",
    )
    out, _ = replayed(capsys, 0, "shop_now:flow", *STORE, "--ended", "--json")
    assert json.loads(out) == {"replayed": 3, "events": 19, "misfits": []}


def test_code_that_changed_under_open_runs(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = replayed(capsys, 1, "shop_dear:flow", *STORE)
    assert out.splitlines() == [
        "run  what does not fit",
        *(f"{run_id}    non_deterministic: step 'ship' of event 3 has another input now, at $" for run_id in "ac"),
    ]
    assert err == "perdure: 2 of 2 runs do not fit this code\n"
    out, _ = replayed(capsys, 1, "shop_dear:flow", *STORE, "--run-id", "a", "--details")
    assert "run 'a': step 'ship' came back with another input than event 3 recorded" in out
    assert "  recorded: 5\n  now:      6\n" in out
    out, _ = replayed(capsys, 1, "shop_next:flow", *STORE, "--run-id", "a", "--json")
    (misfit,) = json.loads(out)["misfits"]
    assert (misfit["run_id"], misfit["code"]) == ("a", "workflow_not_registered")


def test_code_that_would_have_ended_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    replayed(capsys, 0, "shop_other_end:flow", *STORE)
    out, _ = replayed(capsys, 1, "shop_other_end:flow", *STORE, "--ended")
    assert "b    non_deterministic: workflow 'order' of event 8 has another end now, at $.output" in out


def test_exported_histories(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["export", *STORE, "--out", "histories"]) == 0
    monkeypatch.setenv("PERDURE_STORE", "sqlite:///elsewhere.db")  # which is not asked for
    out, _ = replayed(capsys, 0, "shop_now:flow", "--histories", "histories", "--json")
    assert json.loads(out)["replayed"] == 3
    _, err = replayed(capsys, 1, "shop_other_end:flow", "--histories", "histories")
    assert err == "perdure: 1 of 3 runs do not fit this code\n"
    for path in Path("histories").iterdir():
        if path.stem == "a":
            with pytest.raises(NonDeterministic):
                replay_history(resolve_flow("shop_dear:flow"), path.read_bytes())


def test_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    async def histories() -> dict[str, bytes]:
        store = open_store("sqlite:///app.db")
        found = {run_id: await store.history(run_id) for run_id in "abc"}
        await store.close()
        return found

    before = asyncio.run(histories())
    replayed(capsys, 0, "shop_now:flow", *STORE, "--ended")
    replayed(capsys, 1, "shop_dear:flow", *STORE, "--ended")
    assert asyncio.run(histories()) == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "say where the runs are: --store or --histories"),
        (("--histories", ".", "--workflow", "order"), "all runs of a folder are replayed"),
        (("--histories", "nowhere"), "nowhere"),
        ((*STORE, "--status", "lost"), "no run has the status 'lost'"),
        ((*STORE, "--codec", "shop_now:flow"), "not a codec with encode and decode"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str) -> None:
    assert told in replayed(capsys, 2, "shop_now:flow", *arguments)[1]
