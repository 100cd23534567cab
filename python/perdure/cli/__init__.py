"""The command `perdure`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command line; without the extra `[cli]` it says how to get it."""
    try:
        from perdure.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write("perdure: the command line needs its extra: pip install 'perdure[cli]'\n")
        return 2
    return run()
