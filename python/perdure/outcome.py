"""What becomes of one attempt, as the `outcome` JSON that the kernel settles (R15, R53)."""

from __future__ import annotations

import os
import sysconfig
import traceback
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final

from perdure.errors import NonRetryable, RetryAfter, Serialization
from perdure.payload import encode
from perdure.wire import Part, ceil_ms, object_json

__all__ = [
    "brief",
    "completed_outcome",
    "failure_outcome",
    "message_of",
    "suggested_ms",
    "timeout_outcome",
    "timeout_text",
    "where_raised",
    "whole",
]

MAX_TRACEBACK_BYTES: Final = 32 * 1024
_PACKAGE: Final = str(Path(__file__).parent) + os.sep
_LIBRARIES: Final = ("<frozen ", *{path + os.sep for name, path in sysconfig.get_paths().items() if "lib" in name})
"""Where the standard library and installed packages are."""


def completed_outcome(output: bytes) -> bytes:
    """The outcome of an attempt that returned, `output` as it is stored."""
    return object_json([("type", b'"completed"'), ("output", output)])


def failure_outcome(error: BaseException, record_traceback: bool) -> bytes:
    """The outcome of an attempt that raised. With `record_traceback` it carries the failure's detail (R53)."""
    final = True
    if isinstance(error, NonRetryable):
        text = f"non-retryable step error: {message_of(error)}"
    elif isinstance(error, Serialization) and error.rule == "payload":
        text = f"serialization error: {error.detail}"
    else:
        final, text = False, f"runtime error: {message_of(error)}"
    parts: list[Part] = [("type", b'"non_retryable"' if final else b'"failed"'), ("error", _text(text))]
    if isinstance(error, RetryAfter) and (delay_ms := suggested_ms(error.delay)) is not None:
        parts.append(("retry_after_ms", b"%d" % delay_ms))
    if record_traceback:
        parts.append(("failure", _failure(error)))
    return object_json(parts)


def timeout_outcome(limit_ms: int) -> bytes:
    """The outcome of an attempt that ran longer than its limit (R53, R54)."""
    text = f"runtime error: attempt {timeout_text(limit_ms)}"
    return object_json([("type", b'"failed"'), ("error", _text(text))])


def timeout_text(limit_ms: int) -> str:
    """What an attempt did that ran longer than its limit."""
    return f"timed out after {limit_ms} ms"


def suggested_ms(delay: object) -> int | None:
    """Milliseconds, rounded up so that no attempt is early; what is out of range is the kernel's to ignore (R5).

    A plain int is milliseconds already, for delays beyond a timedelta; anything else suggests nothing.
    """
    if isinstance(delay, timedelta):
        return ceil_ms(delay)
    return delay if type(delay) is int else None


def message_of(error: BaseException) -> str:
    """What it says, or the name of its class if that is blank or cannot be had (R53)."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 a user's own __str__ may raise anything; the failure still has to be recorded
        text = ""
    return text if text.strip() else type(error).__name__


def brief(error: BaseException) -> str:
    """Its class and the start of what it says, for messages."""
    kind, text = type(error).__name__, message_of(error)
    return kind if text == kind else f"{kind}: {text[:500]}"


def where_raised(error: BaseException) -> str | None:
    """`file:line in function` of the innermost frame of the user's own code; where there is none, of the innermost one that is not
    ours."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [(code, line) for code, line in frames if not code.co_filename.startswith(_PACKAGE)]
    own = [(code, line) for code, line in theirs if not code.co_filename.startswith(_LIBRARIES)]
    if not theirs:
        return None
    code, line = (own or theirs)[-1]
    place = f"{code.co_filename}:{line} in {code.co_name}"
    return place if place.isprintable() else ascii(place)


def _failure(error: BaseException) -> bytes:
    kind = type(error)
    return object_json(
        [
            ("type", _text(f"{kind.__module__}.{kind.__qualname__}")),
            ("message", _text(message_of(error))),
            ("traceback", _text(_traceback(error))),
        ]
    )


def _traceback(error: BaseException) -> str:
    """The formatted traceback from the first frame outside this package; its end, if it is too long."""
    lines = traceback.format_exception(type(error), error, _user_frames(error.__traceback__))
    data = whole("".join(lines)).encode()
    return data[-MAX_TRACEBACK_BYTES:].decode("utf-8", "ignore")


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    at = frames
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        at = at.tb_next
    return at or frames


def _text(text: str) -> bytes:
    return encode(whole(text))


def whole(text: str) -> str:
    """Surrogate pairs joined, unpaired ones replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
