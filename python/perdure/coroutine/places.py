"""Where in the user's code something happened: file, line and function, for messages."""

from __future__ import annotations

from itertools import islice
from types import CodeType, FrameType

__all__ = ["Place", "line_of", "place_of", "tell"]

Place = tuple[CodeType, int]
"""A code object and the offset of an instruction in it: cheap to take, and it keeps no frame alive."""


def place_of(frame: FrameType) -> Place:
    """Where this frame is."""
    return frame.f_code, frame.f_lasti


def line_of(place: Place) -> int:
    """The line number."""
    code, offset = place
    position = next(islice(code.co_positions(), max(offset, 0) // 2, None), (None,))
    return position[0] or code.co_firstlineno


def tell(place: Place) -> str:
    """`file:line in function`."""
    return f"{place[0].co_filename}:{line_of(place)} in {place[0].co_name}"
