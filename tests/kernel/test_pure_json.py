"""The scanner against the standard parser made strict: same verdicts, and spans that end where values end (R27, R30)."""

from __future__ import annotations

import json
from typing import NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure._pure import json as scanner
from perdure.errors import Serialization

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=25,
)
PIECES = st.sampled_from(
    [*'{}[]:,"\\ -+.0123eEtrufalsn\t\r\n/b\x00\x1f\x7f', "null", "true", '"a":', "\\ud800", "1e5", "é", "\xa0"]
)


def strict(text: str) -> bool:
    """The verdict of the standard parser, without the constants that it adds to JSON."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except ValueError:
        return False
    return True


def accepted(text: str, limit: int = scanner.LINE_DEPTH) -> bool:
    try:
        scanner.read_text(text.encode(), limit)
    except Serialization:
        return False
    return True


@given(VALUES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_every_json_text_is_accepted_without_its_outer_blanks(
    value: object, indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert scanner.read_text(f" \r\n{text}\t".encode()) == text


@given(VALUES, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2), PIECES), min_size=1, max_size=3))
def test_a_mutated_text_gets_the_verdict_of_the_standard_parser(
    value: object, edits: list[tuple[int, int, str]]
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    for place, cut, piece in edits:
        at = place % (len(text) + 1)
        text = text[:at] + piece + text[at + cut :]
    assert accepted(text) == strict(text)


@given(st.lists(PIECES, max_size=14).map("".join))
@example("[1}")
@example("[[[[[[1}]]]]]")
@example('{"a":[{"b":[[{"c":1]}]]}]}')
@example("[1,]")
@example("-01")
def test_arbitrary_text_gets_the_verdict_of_the_standard_parser(text: str) -> None:
    assert accepted(text) == strict(text)


@pytest.mark.parametrize("pair", ["[]", '{"k":}'])
@pytest.mark.parametrize("inner", ["", "1", "[]", "{}"])
def test_the_nesting_limit_counts_every_level(pair: str, inner: str) -> None:
    opener, closer = pair[:-1], pair[-1]
    if not inner and pair != "[]":
        inner = "0"
    own = 1 if inner in ("[]", "{}") else 0
    for limit in (1, 2, 3, 4, 5, 6, 126, 127):
        levels = limit - own
        assert accepted(opener * levels + inner + closer * levels, limit)
        assert not accepted(opener * (levels + 1) + inner + closer * (levels + 1), limit)


def test_length_does_not_matter() -> None:
    wide = "[" + ",".join(['{"a":[1,"x"]}'] * 50_000) + "]"
    assert accepted(wide) and not accepted(wide[:-1]) and not accepted(wide + "]")
    assert not accepted("[" * 1_000_000)
    assert accepted("9" * 100_000) and accepted('"' + "\\n" * 100_000 + '"')


@pytest.mark.parametrize("data", [b"\xff", b'"\xc3"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf1", "1".encode("utf-16")])
def test_bytes_that_are_not_plain_utf_8_are_malformed(data: bytes) -> None:
    with pytest.raises(Serialization) as info:
        scanner.read_text(data)
    assert info.value.rule == "malformed"


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=5), st.sampled_from([None, 1]))
def test_members_give_the_span_of_each_value(value: dict[str, object], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    found, end, fault = scanner.scan_members(text, 0)
    assert (end, fault) == (len(text), None)
    assert {key: json.loads(text[start:stop]) for key, (start, stop) in found.items()} == value


@given(st.lists(VALUES, max_size=5), st.sampled_from([None, 1]))
def test_elements_give_the_span_of_each_value(value: list[object], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    spans = scanner.elements(text, (0, len(text)), "the list")
    assert [json.loads(text[start:stop]) for start, stop in spans] == value


@given(st.text())
def test_written_strings_read_back(value: str) -> None:
    written = scanner.quote(value)
    assert scanner.string(written, (0, len(written)), "it") == json.loads(written) == value
    assert written == json.dumps(value, ensure_ascii=False)


@given(VALUES, VALUES)
def test_equality_is_that_of_the_values(left: object, right: object) -> None:
    def equal(one: object, other: object) -> bool:
        return scanner.equal(json.dumps(one), json.dumps(other))

    assert equal(left, json.loads(json.dumps(left)))
    assert equal(left, right) == equal(right, left) == equal([left], [right])
