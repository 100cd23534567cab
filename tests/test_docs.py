"""Every block of code in docs/testing.md runs as its reader runs it: two files, a folder of exported histories, and pytest."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "testing.md").read_text("utf-8")
PRODUCTION = """
import asyncio
import shop
from perdure import FlowEngine

class Bank:
    def charge(self, amount, key):
        return "receipt"

    def refund(self, order_id):
        pass

async def main():
    shop.bank = Bank()
    async with FlowEngine(shop.flow, "sqlite:///app.db") as engine:
        for name in ("approved", "refused", "cancelled", "stopped", "open"):
            await engine.start(shop.order, shop.Order(name, 120), run_id=name)
        await engine.resume_hook("approved", "approval", True)
        await engine.resume_hook("refused", "approval", False)
        await engine.request_cancellation("cancelled", "customer left")
        await engine.force_cancel("stopped")
        await engine.submit(shop.order, shop.Order("new", 120), run_id="new")

asyncio.run(main())
"""
"""Runs in every state that a store of production may hold."""


def blocks(language: str) -> list[str]:
    """The blocks of the page in this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    found = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=120, env=found, check=False, cwd=folder
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two files, and what the command of the page exports of a store of production."""
    place = tmp_path_factory.mktemp("testing")
    shop, *tests = blocks("python")
    (place / "shop.py").write_text(shop, "utf-8")
    (place / "test_shop.py").write_text("\n\n".join(tests), "utf-8")
    done = run(place, "-c", PRODUCTION)
    assert done.returncode == 0, done.stderr
    (export,) = blocks("sh")
    program, *arguments = shlex.split(export)
    assert program == "perdure"
    done = run(place, "-m", "perdure", *arguments)
    assert done.returncode == 0, done.stderr
    return place


def outcomes(folder: Path, *options: str) -> tuple[dict[str, str], str]:
    """How each test of the page ended, and all that pytest said."""
    done = run(folder, "-m", "pytest", "-vv", "-rA", "-W", "error", "-p", "no:cacheprovider", *options)
    found = re.findall(r"^(PASSED|FAILED|ERROR) test_shop\.py::(\S+)", done.stdout, re.MULTILINE)
    return {name: outcome for outcome, name in found}, done.stdout + done.stderr


def test_the_page_runs(folder: Path) -> None:
    ended, said = outcomes(folder)
    written = set(re.findall(r"^def (test_\w+)", "\n".join(blocks("python")), re.MULTILINE))
    assert {name.partition("[")[0] for name in ended} == written, said
    assert set(ended.values()) == {"PASSED"}, said
    replayed = {name for name in ended if "[" in name}
    names = ("approved", "refused", "cancelled", "stopped", "open", "new")
    assert replayed == {f"test_recorded_runs_are_replayed[{name}]" for name in names}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('token=f"approval-{order.id}"', 'token=f"agreed-{order.id}"'),
        ("ctx.step(charge, order)", "ctx.step(charge, Order(order.id, order.amount + 1))"),
        ("ctx.race(approval, ctx.sleep(timedelta(days=7)))", "ctx.race(approval)"),
    ],
)
def test_its_replay_tells_changed_code(folder: Path, before: str, after: str) -> None:
    """Of each run that got so far, whether it ended or is open."""
    (shop,) = (block for block in blocks("python") if block.startswith("# shop.py"))
    assert before in shop
    try:
        (folder / "shop.py").write_text(shop.replace(before, after), "utf-8")
        ended, said = outcomes(folder, "-k", "recorded")
    finally:
        (folder / "shop.py").write_text(shop, "utf-8")
    failed = {name.partition("[")[2][:-1] for name, outcome in ended.items() if outcome == "FAILED"}
    assert failed == {"approved", "refused", "cancelled", "stopped", "open"}, said
    assert "NonDeterministic" in said
