"""Where in the user's code something happened: file, line and function, for messages."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import NamedTuple

__all__ = ["Place", "place_of"]


class Place(NamedTuple):
    """A line of code. Holds no frame, so that nothing is kept alive by it."""

    code: CodeType
    line: int

    @property
    def file(self) -> str:
        return self.code.co_filename

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.code.co_name}"


def place_of(frame: FrameType) -> Place:
    """The line that this frame is at."""
    return Place(frame.f_code, frame.f_lineno)
