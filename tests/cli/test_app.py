"""The command line as a whole: help, version, and what becomes of errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import typer

from perdure.cli import main
from perdure.cli.app import app, run
from perdure.cli.shared import plain
from perdure.errors import RunNotFound

COMMANDS = ("migrate", "export", "import", "prune", "history-hold")
PERDURE = (sys.executable, "-m", "perdure")


@contextmanager
def command(name: str) -> Iterator[typer.Typer]:
    """Lets a test add a command that is gone afterwards."""
    before = list(app.registered_commands)
    try:
        yield app
    finally:
        app.registered_commands[:] = before


def test_help_lists_the_commands_and_a_bare_call_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    told = capsys.readouterr()
    assert all(name in told.out for name in COMMANDS)
    assert told.err == ""
    assert run([]) == 2


def test_the_version_names_the_build_of_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    out = capsys.readouterr().out
    assert "release build" in out or "debug build" in out


def test_wrong_usage_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["frobnicate"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1 and "frobnicate" in told.err and "--help" in told.err


def test_an_error_of_ours_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with command("lost"):

        @app.command("lost")
        def lost() -> None:
            raise RunNotFound("a\nb\x1b[31m")

        assert run(["lost"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("perdure: run ") and "\x1b" not in err


def test_an_error_of_the_system_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with command("open"):

        @app.command("open")
        def open_it() -> None:
            raise FileNotFoundError(2, "No such file or directory", "/missing")

        assert run(["open"]) == 1
    assert capsys.readouterr().err == "perdure: /missing: No such file or directory\n"


def test_an_error_that_is_a_bug_is_not_hidden() -> None:
    with command("bug"):

        @app.command("bug")
        def bug() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run(["bug"])


def test_ctrl_c_is_one_line_and_status_130(capsys: pytest.CaptureFixture[str]) -> None:
    with command("long"):

        @app.command("long")
        def long() -> None:
            os.kill(os.getpid(), signal.SIGINT)

        assert run(["long"]) == 130
    assert capsys.readouterr().err == "perdure: interrupted\n"


def test_ctrl_c_while_the_command_line_loads_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("perdure.cli.import_module", load)
    assert main() == 130
    assert capsys.readouterr().err == "perdure: interrupted\n"


def test_a_closed_pipe_ends_quietly() -> None:
    with subprocess.Popen([*PERDURE, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


def test_without_the_extra_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name == "typer" or name.startswith(("typer.", "perdure.cli."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main() == 2
    assert "pip install 'perdure[cli]'" in capsys.readouterr().err


def test_importing_perdure_loads_neither_typer_nor_rich() -> None:
    program = "import sys, perdure; perdure.FlowEngine; sys.exit(bool({'typer', 'rich'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_text_from_elsewhere_cannot_steer_a_terminal() -> None:
    assert plain("a\x1b[31m\r\nb\u202e") == "a\\x1b[31m b\\u202e"
