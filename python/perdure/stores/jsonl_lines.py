"""What the bytes of a JSONL log mean: which of them count, and how a batch is marked so that it counts as a whole or not at
all (spec 7.3, R12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["Scanned", "events", "is_blank", "marked", "scan", "unmarked"]

_MARK: Final = b" {"
_BLANKS: Final = b" \t\r\n"


class Scanned(NamedTuple):
    """What a log holds. `end`: how many bytes count; what follows is a torn tail. `terminated`: whether they end with a
    newline. `damaged`: the number, from 1, of a line of the tail that no torn write leaves, so that it must not be cut off."""

    end: int
    terminated: bool
    damaged: int | None = None


def marked(lines: bytes) -> bytes:
    """A batch as it is written: every line but the last begins with one space, so that an unfinished batch is seen."""
    inner, newline, last = lines[:-1].rpartition(b"\n")
    if not newline:
        return lines
    return b" " + inner.replace(b"\n", b"\n ") + b"\n" + last + b"\n"


def events(data: bytes) -> bytes:
    """The events in `data`, the bytes of a log that count: one to a line, without marks and blank lines."""
    if data and not data.endswith(b"\n"):
        data += b"\n"
    data = unmarked(data)
    if data.startswith(b"{") + data.count(b"\n{") == data.count(b"\n"):
        return data
    return b"".join(line + b"\n" for line in data.split(b"\n") if line.strip(_BLANKS))


def unmarked(data: bytes) -> bytes:
    """The lines of `data` without marks; line numbers stay."""
    return data.replace(b"\n {", b"\n{")[data.startswith(_MARK) :]


def is_blank(data: bytes) -> bool:
    """Whether there is nothing but blank lines."""
    return not data.strip(_BLANKS)


def scan(data: bytes, is_json: Callable[[bytes], bool]) -> Scanned:
    """Judges the tail of a whole log. What lies before the tail is the kernel's to judge."""
    if _ends_whole(data):
        return Scanned(len(data), True)
    last_start = data.rfind(b"\n") + 1
    last = data[last_start:]
    zeros = _zeros(data, last_start)
    if zeros is not None:
        return _unfinished(data, zeros, is_json)
    if last.strip(_BLANKS) and not last.startswith(_MARK):
        if is_json(last):
            return Scanned(len(data), False)
        if not last.endswith(b"\0") and is_json(last[:-1]):
            # A torn write leaves less than a line. This line is whole, and something else stands where its end was.
            return Scanned(len(data), False, data.count(b"\n") + 1)
    return _unfinished(data, last_start, is_json)


def _ends_whole(data: bytes) -> bool:
    """Whether the last batch is whole at first sight, as that of almost every log is."""
    return data.endswith(b"\n") and data.startswith(b"{", data.rfind(b"\n", 0, -1) + 1) and b"\0" not in data


def _zeros(data: bytes, last_start: int) -> int | None:
    """Start of the first line with a zero byte, which JSON never holds, if that is a block of the last batch which did not
    reach the disk: then no unmarked line but the file's last follows."""
    zero = data.find(b"\0", 0, last_start)
    if zero < 0:
        return None
    end = data.find(b"\n", zero) + 1
    following = [line for line in data[end:].split(b"\n") if line.strip(_BLANKS)]
    if all(line.startswith(_MARK) for line in following[:-1]):
        return data.rfind(b"\n", 0, zero) + 1
    return None


def _unfinished(data: bytes, end: int, is_json: Callable[[bytes], bool]) -> Scanned:
    """A log whose whole lines end at `end`, where marked lines of an unfinished batch may stand."""
    finished, damaged = end, None
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        line = data[start:end]
        if line.startswith(_MARK):
            finished = start
            if not is_json(line):
                # It has its newline, so it was written whole: perhaps it is two lines, the batch's last among them.
                damaged = data.count(b"\n", 0, start) + 1
        elif line.strip(_BLANKS):
            break
        end = start
    return Scanned(finished, True, damaged)
