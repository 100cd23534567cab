"""`perdure runs`, `show`, `history`, `hooks`, `resume`, `cancel` and `release`."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    AsyncContext,
    EncryptedPayloads,
    Flow,
    FlowEngine,
    PayloadCodecFailed,
    RetryPolicy,
    RuntimeBuildCompatibility,
    StepContext,
    StepFailed,
    WorkflowRunSnapshot,
    WorkflowSpec,
)
from perdure.cli.app import run
from perdure.owner import make_owner
from perdure.stores import FlowEventStore, open_store

TOKEN = "canary-of-the-command-line"
DECLINED = "declined " * 40

flow = Flow()


@flow.step
def charge(amount: int) -> dict[str, int]:
    return {"paid": amount}


@flow.step
def ship(amount: int) -> None:
    raise ValueError(DECLINED)


@flow.workflow("order", version="2")
async def order(ctx: AsyncContext, amount: int) -> object:
    await ctx.step(charge, amount)
    with suppress(StepFailed):
        await ctx.step(ship, amount)
    approval = ctx.hook(object, id="approval", token=f"{TOKEN}-{amount}", metadata={"desk": 4})
    await ctx.race(approval, ctx.sleep(timedelta(hours=24), id="patience"))
    return approval.result() if approval.done() else "nobody came"


@flow.step(retry=RetryPolicy.fixed(2, timedelta(0)), timeout=timedelta(milliseconds=200))
async def call(number: object, step: StepContext) -> None:
    if step.attempt == 1:
        raise LookupError("a\x1b[31m")
    await asyncio.sleep(3600)


@flow.workflow("caller", version="1")
async def caller(ctx: AsyncContext, number: object) -> None:
    await ctx.step(call, number)


Tell = Callable[..., Any]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with three suspended runs, one of them pinned to a build and one held, and a cancelled one."""
    address = str(tmp_path / "app.db")

    async def fill() -> None:
        async with FlowEngine(flow, address) as engine:
            await engine.start(order, 1, run_id="free")
            await engine.start(order, 2, run_id="stuck")
            await engine.start(order, 9, run_id="gone")
            await engine.force_cancel("gone", "a trial")
        async with FlowEngine(flow, address, builds=RuntimeBuildCompatibility("b7")) as engine:
            await engine.start(WorkflowSpec.python("order", "2", "b7"), 3, run_id="pinned")

    asyncio.run(fill())
    monkeypatch.setenv("PERDURE_STORE", address)
    return address


@pytest.fixture
def tell(address: str, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Runs a command that must succeed and gives what it printed as JSON."""

    def told(*arguments: str) -> Any:
        capsys.readouterr()
        assert run([*arguments, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return told


def in_store(address: str, act: Callable[[FlowEventStore], Any]) -> Any:
    async def work() -> Any:
        store = open_store(address)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(work())


def hold(address: str, run_id: str) -> None:
    """As a drive that met drift would."""

    async def act(store: FlowEventStore) -> None:
        text = json.dumps({"code": "non_deterministic", "reason": {"id": "charge"}, "builds": []})
        sequence = (await store.lease(run_id)).last_sequence
        assert await store.set_hold(run_id, text, expected_sequence=sequence)

    in_store(address, act)


def driven(address: str, run_id: str) -> WorkflowRunSnapshot:
    """The run after a worker came by."""

    async def work() -> WorkflowRunSnapshot:
        async with FlowEngine(flow, address, builds=RuntimeBuildCompatibility("b7", accept_unpinned=True)) as engine:
            return await engine.drive(run_id)

    return asyncio.run(work())


# runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], ["free", "gone", "pinned", "stuck"]),
        (["--status", "suspended", "--status", "cancelled"], ["free", "gone", "pinned", "stuck"]),
        (["--status", "suspended"], ["free", "pinned", "stuck"]),
        (["--ended"], ["gone"]),
        (["--open"], ["free", "pinned", "stuck"]),
        (["--build", "b7"], ["pinned"]),
        (["--held"], ["stuck"]),
        (["--open", "--not-held"], ["free", "pinned"]),
        (["--workflow", "order", "--version", "1"], []),
        (["--after", "gone"], ["pinned", "stuck"]),
    ],
)
def test_runs_are_listed_by_what_they_are(address: str, tell: Tell, options: list[str], ids: list[str]) -> None:
    hold(address, "stuck")
    (found,) = tell("runs", *options)
    assert [row["run_id"] for row in found["runs"]] == ids
    assert found["next"] is None


def test_a_listing_says_where_it_goes_on(address: str, tell: Tell, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = tell("runs", "--limit", "3")
    assert [row["run_id"] for row in found["runs"]] == ["free", "gone", "pinned"]
    assert found["next"] == "pinned"
    assert run(["runs", "--limit", "3"]) == 0
    assert capsys.readouterr().err == "perdure: there are more: --after pinned, or a larger --limit\n"


def test_the_table_of_runs_shows_holds_and_open_work(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    hold(address, "stuck")
    assert run(["runs"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["free"].split()[:7] == ["free", "order", "2", "-", "suspended", "1", "1"]
    assert "suspended, held: non_deterministic" in rows["stuck"]
    assert rows["pinned"].split()[3] == "b7"


def test_counts_by_build_say_when_a_route_can_go(address: str, tell: Tell) -> None:
    (counts,) = tell("runs", "--counts")
    assert (counts["total_runs"], counts["suspended_runs"], counts["cancelled_runs"]) == (4, 3, 1)
    (builds,) = tell("runs", "--by-build")
    assert {row["build"]: row["non_terminal_runs"] for row in builds} == {None: 2, "b7": 1}


# one run -------------------------------------------------------------------------------------------------------


def test_show_tells_all_of_a_run_but_its_tokens(address: str, tell: Tell, capsys: pytest.CaptureFixture[str]) -> None:
    hold(address, "stuck")
    (found,) = tell("show", "stuck")
    assert found["steps"]["charge"]["output"] == {"paid": 2}
    assert found["hooks"]["approval"]["token"] == "<redacted>"
    assert found["lease"]["hold"]["code"] == "non_deterministic"
    assert run(["show", "stuck"]) == 0
    table = capsys.readouterr().out
    lines = [line.split() for line in table.splitlines()]
    assert ["charge", "charge", "completed", "1", "-", '{"paid":2}'] in lines
    assert ["held,", "code", "non_deterministic"] in lines
    assert TOKEN not in table
    assert found["steps"]["ship"]["error"] == f"runtime error: {DECLINED}"


def test_show_says_which_process_drives_a_run(address: str, tell: Tell, capsys: pytest.CaptureFixture[str]) -> None:
    hold(address, "stuck")
    in_store(address, lambda store: store.claim_held(make_owner(), 1, build="b1", ttl_ns=10**12))
    gc.collect()  # or files that other tests left open might be closed in between
    opened = len(list(Path("/proc/self/fd").iterdir()))
    (found,) = tell("show", "stuck")
    assert (found["lease"]["live"], found["lease"]["process"]) == (True, os.getpid())
    assert run(["show", "stuck"]) == 0
    assert f"epoch {found['lease']['epoch']}, process {os.getpid()}" in capsys.readouterr().out
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


@pytest.mark.parametrize("command", ["show", "history"])
def test_a_pipe_gets_texts_whole_and_a_terminal_wraps_them(
    address: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run([command, "free"]) == 0
    assert f"runtime error: {DECLINED}\n" in capsys.readouterr().out  # unpadded, and on one line
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run([command, "free"]) == 0
    table = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert table.count("declined") >= DECLINED.count("declined")
    assert max(map(len, table.splitlines())) <= 100


def test_what_was_open_when_a_run_ended_is_shown_as_closed(
    address: str, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", "gone"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["approval", "ended", "with", "the", "run", "<redacted>"] in lines
    assert ["patience", "ended", "with", "the", "run"] in [line[:5] for line in lines]
    assert tell("show", "gone")[0]["hooks"]["approval"]["status"] == "active"
    assert run(["show", "free"]) == 0
    assert ["approval", "active", "<redacted>"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_an_error_has_the_type_of_its_exception(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("show", "history"):
        assert run([command, "free"]) == 0
        assert f"ValueError: runtime error: {DECLINED}" in capsys.readouterr().out


def test_tracebacks_are_printed_whole_when_they_are_asked_for(
    address: str, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", "free"]) == 0
    default = capsys.readouterr().out
    (found,) = tell("show", "free")
    traceback = found["failures"]["ship"]["traceback"]
    assert "Traceback (most recent call last)" in traceback
    assert run(["show", "free", "--traceback"]) == 0
    assert capsys.readouterr().out == f"{default}\nstep ship, the newest traceback recorded:\n{traceback}"


def test_an_attempt_that_timed_out_has_no_type_of_an_earlier_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = str(tmp_path / "late.db")

    async def fill() -> None:
        async with FlowEngine(flow, address) as engine:
            await engine.start(caller, 1, run_id="late")

    asyncio.run(fill())
    assert run(["show", "late", "--store", address, "--traceback"]) == 0
    table, traceback = capsys.readouterr().out.split("newest traceback recorded:")
    assert "  runtime error: attempt timed out after 200 ms\n" in table and "LookupError" not in table
    assert "LookupError: a\\x1b[31m\n" in traceback and "\x1b" not in traceback


def test_a_payload_is_cut_on_a_terminal_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, payload = str(tmp_path / "long.db"), "x" * 12_000

    async def fill() -> None:
        async with FlowEngine(flow, address) as engine:
            await engine.submit(caller, payload, run_id="long")

    asyncio.run(fill())
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["show", "long", "--store", address]) == 0
    assert f"input     {payload}\n" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(["show", "long", "--store", address]) == 0
    table = capsys.readouterr().out
    assert 0 < table.count("x") < 500 and "…" in table


def test_tokens_are_shown_when_they_are_asked_for(address: str, tell: Tell) -> None:
    (found,) = tell("show", "free", "--show-tokens")
    assert found["hooks"]["approval"]["token"].endswith("-1")
    assert {row["run_id"]: row["token"][-2:] for row in tell("hooks", "--show-tokens")[0]} == {
        "free": "-1",
        "stuck": "-2",
        "pinned": "-3",
    }


def test_history_is_a_time_line(address: str, tell: Tell, capsys: pytest.CaptureFixture[str]) -> None:
    events = tell("history", "free")
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    created = next(event["event"] for event in events if event["event"]["type"] == "hook_created")
    assert (created["token"], created["metadata"]) == ("<redacted>", {"desk": 4})
    assert [event["sequence"] for event in tell("history", "free", "--after", "2", "--limit", "2")] == [3, 4]
    assert run(["history", "free"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split()[2:] == ["+0.000", "step_created", "step", "charge", "charge"]
    assert all(TOKEN not in line for line in lines)


def test_history_says_why_a_cancellation_was_asked_for(
    address: str, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    tell("cancel", "free", "--reason", "no money")
    assert run(["history", "free"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[3:] == ["run_cancellation_requested", "-", "no", "money"]


def test_hooks_of_one_run_and_of_all(address: str, tell: Tell) -> None:
    assert [row["run_id"] for row in tell("hooks")[0]] == ["free", "pinned", "stuck"]
    assert tell("hooks", "--run", "free") == [
        [{"run_id": "free", "hook_id": "approval", "token": "<redacted>", "metadata": {"desk": 4}}]
    ]
    assert tell("hooks", "--run", "gone") == [[]]


@pytest.mark.parametrize("command", [["show"], ["history"], ["hooks", "--run"], ["cancel"], ["release"]])
def test_an_unknown_run_is_one_line(address: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "nowhere"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "'nowhere'" in line


# acting --------------------------------------------------------------------------------------------------------


def test_resume_answers_a_hook_and_a_worker_goes_on(address: str, tell: Tell) -> None:
    (told,) = tell("resume", "pinned", "--hook", "approval", "--payload", '{"yes": true}')
    assert told["run_id"] == "pinned"
    assert driven(address, "pinned").output == {"yes": True}


def test_a_payload_is_stored_exactly_or_not_at_all(address: str, tell: Tell) -> None:
    assert run(["resume", "free", "--hook", "approval", "--payload", '{"n": 12345678901234567890123}']) == 1
    assert [row["hook_id"] for row in tell("hooks", "--run", "free")[0]] == ["approval"]
    tell("resume", "free", "--hook", "approval", "--payload", '{"n": 9007199254740993, "x": 1.10}')
    assert driven(address, "free").output == {"n": 9007199254740993, "x": 1.1}


@pytest.mark.parametrize(
    "arguments", [["cancel", "free", "--reason", "\udcff"], ["resume", "free", "--hook", "\udcff", "--dispose"]]
)
def test_an_argument_that_is_no_text_is_one_line(
    address: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "a lone surrogate" in line


def test_resume_finds_the_run_by_a_token_from_standard_input(
    address: str, tell: Tell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TOKEN}-2\n"))
    assert tell("resume", "--token", "--payload", '"yes"')[0]["run_id"] == "stuck"
    assert driven(address, "stuck").output == "yes"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TOKEN}-unknown"))
    assert run(["resume", "--token", "--dispose"]) == 1
    assert TOKEN not in capsys.readouterr().err


def test_resume_completes_a_wait_that_is_due_or_early(
    address: str, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["resume", "free", "--wait", "patience"]) == 1
    assert "patience" in capsys.readouterr().err
    tell("resume", "free", "--wait", "patience", "--early")
    assert driven(address, "free").output == "nobody came"


def test_cancel_asks_or_ends(address: str, tell: Tell) -> None:
    assert tell("cancel", "free", "--reason", "no money")[0]["status"] == "cancelling"
    assert driven(address, "free").status == "cancelled"
    assert tell("cancel", "pinned", "--force")[0]["status"] == "cancelled"


def test_release_lets_workers_have_held_runs_again(
    address: str, tell: Tell, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(address, "stuck")
    assert tell("release", "--all", "--workflow", "another")[0]["released"] == []
    assert tell("release", "--all")[0]["released"] == ["stuck"]
    assert tell("runs", "--held")[0]["runs"] == []
    assert run(["release", "stuck"]) == 1
    assert capsys.readouterr().err == "perdure: run 'stuck' was not held\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *(["runs", "--status", "asleep"], ["runs", "--limit", "0"], ["show"], ["history", "free", "--after", "-1"]),
        *(["resume", "free"], ["resume", "free", "--wait", "a", "--hook", "b"], ["resume", "--wait", "patience"]),
        *(["resume", "free", "--wait", "patience", "--payload", "1"], ["resume", "free", "--hook", "approval"]),
        *(["resume", "free", "--hook", "approval", "--payload", "yes"], ["resume", "free", "--token", "--dispose"]),
        *(["resume", "free", "--hook", "approval", "--payload", "1", "--dispose"], ["release"], ["cancel"]),
        *(["resume", "free", "--hook", "h", "--dispose", "--early"], ["release", "free", "--all"]),
    ],
)
def test_wrong_usage_is_one_line_and_changes_nothing(
    address: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = in_store(address, lambda store: store.history("free"))
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("perdure: ") and "--help" in line
    assert in_store(address, lambda store: store.history("free")) == before


def test_encrypted_payloads_are_read_with_their_codec_and_never_answered_without(
    tmp_path: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = str(tmp_path / "secret.db")
    monkeypatch.setenv("PERDURE_STORE", address)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    key = EncryptedPayloads.generate_key()
    (tmp_path / "secrets_of_the_shop.py").write_text(
        f"from perdure import EncryptedPayloads\ncodec = EncryptedPayloads({{'k': {key!r}}})\n"
    )

    async def fill() -> None:
        async with FlowEngine(flow, address, codec=EncryptedPayloads({"k": key})) as engine:
            await engine.start(order, 7, run_id="r")

    asyncio.run(fill())
    codec = ("--codec", "secrets_of_the_shop:codec")
    (found,) = tell("show", "r", *codec)
    assert (found["input"], found["steps"]["charge"]["output"], found["hooks"]["approval"]["metadata"]) == (
        *(7, {"paid": 7}),
        {"desk": 4},
    )
    before = in_store(address, lambda store: store.history("r"))
    assert run(["resume", "r", "--hook", "approval", "--payload", "1"]) == 1
    assert "--codec" in capsys.readouterr().err
    with pytest.raises(PayloadCodecFailed):  # neither does a worker without the codec take ciphertexts for values
        driven(address, "r")
    assert in_store(address, lambda store: store.history("r")) == before
    tell("resume", "r", "--hook", "approval", "--payload", "1", *codec)
