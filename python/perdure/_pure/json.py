"""JSON text: the strict grammar, where values begin and end, and strings (R27, R29, R30, R61).

Nothing here builds Python values of a payload: a payload is a span of the text. The grammar is written as regular
expressions that cannot backtrack; they match values nested a few levels at C speed, and a loop with an explicit stack
joins them for deeper ones, so neither depth nor length of a text can exhaust the interpreter.
"""

from __future__ import annotations

import json
import re
from typing import Final

from perdure.errors import Serialization

__all__ = [
    "LINE_DEPTH",
    "PART_DEPTH",
    "Span",
    "elements",
    "equal",
    "malformed",
    "members",
    "quote",
    "read_part",
    "read_text",
    "scan_members",
    "shape",
    "string",
    "unescape",
]

Span = tuple[int, int]

LINE_DEPTH: Final = 127
"""Deepest nesting of a whole line (R30)."""
PART_DEPTH: Final = LINE_DEPTH - 1
"""Deepest nesting of a text that becomes part of a line: the envelope adds one level."""

_BLANK: Final = r"[ \t\n\r]*+"
_CHARS: Final = r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_SCALAR: Final = rf'(?>"{_CHARS}"|{_NUMBER}|true|false|null)'
_FLAT_DEPTH: Final = 4


def _value(depth: int) -> str:
    """The grammar of a value nested at most `depth` levels."""
    if depth == 0:
        return _SCALAR
    inner = _value(depth - 1)
    after = rf"{_BLANK}(?:,{_BLANK}(?![\]}}])|(?=[\]}}]))"
    array = rf"\[{_BLANK}(?:{inner}{after})*+\]"
    members = rf'\{{{_BLANK}(?:"{_CHARS}"{_BLANK}:{_BLANK}{inner}{after})*+\}}'
    return rf"(?>{_SCALAR}|{members}|{array})"


_match_blank: Final = re.compile(_BLANK).match
_match_scalar: Final = re.compile(_SCALAR).match
_match_flat: Final = re.compile(_value(_FLAT_DEPTH)).match
_match_key: Final = re.compile(rf'{_BLANK}"({_CHARS})"{_BLANK}:{_BLANK}').match
_match_scalar_member: Final = re.compile(rf'{_BLANK}"({_CHARS})"{_BLANK}:{_BLANK}({_SCALAR}){_BLANK}([,}}])').match
_match_after: Final = re.compile(rf"{_BLANK}([,\]}}])").match
_find_special: Final = re.compile(r'["\\\x00-\x1f]').search
_find_surrogate: Final = re.compile("[\ud800-\udfff]").search
_CLOSER: Final = {"{": "}", "[": "]"}
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def malformed(detail: str) -> Serialization:
    """The refusal of a text that is not JSON; the border adds the line."""
    return Serialization("malformed", None, detail)


def shape(detail: str) -> Serialization:
    """The refusal of JSON that has the wrong form."""
    return Serialization("shape", None, detail)


def read_text(data: bytes, limit: int = LINE_DEPTH) -> str:
    """The one value that `data` holds, without the blanks around it; nested at most `limit` levels."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed(f"not UTF-8 at byte {error.start}") from None
    start = _skip_blank(text, 0)
    end = _value_end(text, start, limit)
    if _skip_blank(text, end) != len(text):
        raise malformed(f"something follows the value at character {end}")
    return text[start:end]


def read_part(data: bytes) -> str:
    """Like `read_text`, for what becomes part of a line: a line feed between its tokens reads as a space.

    The grammar allows none inside strings, so this changes no value, and the line stays one line.
    """
    return read_text(data, PART_DEPTH).replace("\n", " ")


def _skip_blank(text: str, at: int) -> int:
    found = _match_blank(text, at)
    return found.end() if found else at


def _value_end(text: str, at: int, limit: int) -> int:
    """Where the value that begins at `at` ends. Raises for what breaks the grammar or nests over `limit` levels."""
    closers: list[str] = []
    while True:
        flat = len(closers) + _FLAT_DEPTH <= limit
        found = (_match_flat if flat else _match_scalar)(text, at)
        if found is None:
            at, opened = _open(text, at, closers, limit)
            if opened:
                continue
        else:
            at = found.end()
        at = _close(text, at, closers)
        if not closers:
            return at


def _open(text: str, at: int, closers: list[str], limit: int) -> tuple[int, bool]:
    """Steps into the container at `at`; False if it is empty, and so already stepped out of."""
    closer = _CLOSER.get(text[at : at + 1])
    if closer is None:
        raise malformed(f"no JSON value at character {at}")
    if len(closers) >= limit:
        raise malformed(f"nested more than {limit} levels at character {at}")
    inside = _skip_blank(text, at + 1)
    if text[inside : inside + 1] == closer:
        return inside + 1, False
    closers.append(closer)
    return (_key_end(text, inside) if closer == "}" else inside), True


def _close(text: str, at: int, closers: list[str]) -> int:
    """After a value: steps over closing brackets up to the next value, or to the end when none is left open."""
    while closers:
        found = _match_after(text, at)
        if found is None:
            raise malformed(f"expected ',' or a closing bracket at character {at}")
        at = found.end()
        if found[1] == ",":
            return _key_end(text, at) if closers[-1] == "}" else _skip_blank(text, at)
        if found[1] != closers.pop():
            raise malformed(f"a bracket does not match at character {at - 1}")
    return at


def _key_end(text: str, at: int) -> int:
    found = _match_key(text, at)
    if found is None:
        raise malformed(f"expected a key at character {at}")
    return found.end()


def scan_members(text: str, at: int) -> tuple[dict[str, Span], int, str | None]:
    """The members of the object at `at` of a checked text: key → span of the value, where the object ends, and what
    is wrong with its keys (a repeated one, or a lone surrogate in one), if anything. The first of equal keys counts."""
    found: dict[str, Span] = {}
    fault: str | None = None
    after, at = ",", at + 1
    while after == ",":
        member = _match_scalar_member(text, at)
        if member is not None:
            name, after = member[1], member[3]
            span, at = member.span(2), member.end()
        else:
            key = _match_key(text, at)
            if key is None:
                return found, _skip_blank(text, at) + 1, fault
            name, start = key[1], key.end()
            span = (start, _value_end(text, start, LINE_DEPTH))
            at = _skip_blank(text, span[1]) + 1
            after = text[at - 1]
        if "\\" in name:
            name = unescape(name)
            if _find_surrogate(name):
                fault = fault or "a key holds a lone surrogate"
        if name in found:
            fault = fault or "a key stands twice in one object"
        else:
            found[name] = span
    return found, at, fault


def members(text: str, span: Span, what: str) -> dict[str, Span]:
    """The members of a known object; raises `Serialization` for anything else and for a key that stands twice (R61)."""
    if text[span[0]] != "{":
        raise shape(f"{what} is not an object")
    found, _, fault = scan_members(text, span[0])
    if fault is not None:
        raise shape(f"{what}: {fault}")
    return found


def elements(text: str, span: Span, what: str) -> list[Span]:
    """The spans of an array's elements in a checked text."""
    if text[span[0]] != "[":
        raise shape(f"{what} is not a list")
    found: list[Span] = []
    at = _skip_blank(text, span[0] + 1)
    while at < span[1] - 1:
        end = _value_end(text, at, LINE_DEPTH)
        found.append((at, end))
        at = _skip_blank(text, _skip_blank(text, end) + 1)
    return found


def string(text: str, span: Span, what: str) -> str:
    """The unescaped string at `span`; a lone surrogate in it is refused (R30)."""
    start, end = span
    if text[start] != '"':
        raise shape(f"{what} is not a string")
    inner = text[start + 1 : end - 1]
    if "\\" not in inner:
        return inner
    value = unescape(inner)
    if _find_surrogate(value):
        raise shape(f"{what} holds a lone surrogate")
    return value


def unescape(inner: str) -> str:
    """The characters between two quotes with their escapes resolved; unpaired surrogates stay as they are."""
    value: str = json.loads(f'"{inner}"')
    return value


def quote(value: str) -> str:
    """A string as the kernels write it (R27): the short escapes, other controls as `\\u00xx`, nothing else."""
    if not _find_special(value):
        return f'"{value}"'
    return '"' + "".join(_SHORT.get(c) or (c if c >= " " else f"\\u{ord(c):04x}") for c in value) + '"'


def equal(left: str, right: str) -> bool:
    """JSON equality of two checked texts: structure, not spelling; integers and floats differ (spec 1.7, R29)."""
    if left == right:
        return True
    return bool(_decoder.decode(left) == _decoder.decode(right))


def _integer(lexeme: str) -> tuple[str, int | float | str]:
    # A tuple is no other JSON value, so a number never equals a bool (Python: 1 == True) or a string.
    if lexeme == "-0":
        return ("float", 0.0)
    if len(lexeme) > 20:
        return ("lexeme", lexeme)
    value = int(lexeme)
    return ("integer", value) if -(2**63) <= value < 2**64 else ("lexeme", lexeme)


def _float(lexeme: str) -> tuple[str, float | str]:
    value = float(lexeme)
    return ("lexeme", lexeme) if value in (float("inf"), float("-inf")) else ("float", value)


_decoder: Final = json.JSONDecoder(parse_int=_integer, parse_float=_float)
