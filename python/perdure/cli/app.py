"""The command line as a whole: what it is made of, and what becomes of an error.

A module of commands has a function `register(app)` and its name in `_MODULES`; that is all there is to adding one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

from perdure.cli.shared import say
from perdure.errors import FlowError
from perdure.kernel import load

__all__ = ["app", "run"]

_MODULES: Final = (
    "worker",
    "scheduler",
    "runs",
    "acting",
    "dead_letters",
    "migrate",
    "exchange",
    "replay",
    "retention",
)
"""The modules of `perdure.cli` with commands, in the order of `perdure --help`."""
_INTERRUPTED: Final = 130  # as a shell reports what Ctrl-C ended

app = typer.Typer(
    name="perdure",
    help="Durable workflows: look after the runs of a store. Every command says with --help what it does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        kernel = load("rust")
        # No rule of the seam, so its protocol does not have them.
        version, profile = (getattr(kernel, name, "unknown") for name in ("__version__", "build_profile"))
        typer.echo(f"perdure {version} (kernel: rust, {profile} build; Python {sys.version.split()[0]})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show version and kernel build.")
    ] = False,
) -> None:
    pass


for _module in _MODULES:
    import_module(f"perdure.cli.{_module}").register(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line with `arguments`, those of the process by default. Gives the exit status: 0 done, 1 refused or
    failed, 2 wrong usage, 130 interrupted. Every failure is one line on stderr."""
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="perdure", standalone_mode=False)
    except FlowError as error:
        return _failed(str(error), 1)
    except BrokenPipeError:
        return _unheard()
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except SystemExit as ended:
        status = ended.code  # how typer answers a closed pipe
    except Exception as error:
        # typer brings its own copy of click or uses the installed one, by its version; this is what both promise.
        if not hasattr(error, "format_message"):
            raise
        return _failed(_usage(error), getattr(error, "exit_code", 2))
    if status == _INTERRUPTED:
        return _failed("interrupted", _INTERRUPTED)
    return status if isinstance(status, int) else 0


def _usage(error: Exception) -> str:
    message: str = error.format_message()  # type: ignore[attr-defined] # seen by the caller
    context = getattr(error, "ctx", None)
    return f"{message} (see '{context.command_path} --help')" if message.strip() and context else message.strip()


def _failed(message: str, status: int) -> int:
    if message:
        say(message)
    return status


def _unheard() -> int:
    """Whoever read our output has left, so nobody is to be told; and the interpreter's last flush must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
