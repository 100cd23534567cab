"""The command `perdure`."""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["main"]


def main() -> int:
    """Runs the command line; without the extra `[cli]` it says how to get it."""
    try:
        status: int = import_module("perdure.cli.app").run()
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write("perdure: the command line needs its extra: pip install 'perdure[cli]'\n")
        return 2
    except KeyboardInterrupt:  # before there is a command line that could say it
        sys.stderr.write("perdure: interrupted\n")
        return 130
    return status
