"""The command `python -m perdure`."""

from __future__ import annotations

import sys

from perdure.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
