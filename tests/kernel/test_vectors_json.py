"""The table of inputs on which JSON parsers disagree: one verdict, both kernels (style.md, rulings R29-R31)."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import Serialization
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel

FILES = sorted((Path(__file__).parents[1] / "data" / "json").glob("[yni]_*"))
CREATED = (
    b'{"run_id":"odd","sequence":1,"event_id":"6f0c1c3e-1111-4222-8333-444455556666","timestamp":"2026-08-15T00:00:01Z",'
    b'"event":{"type":"run_created","spec":{"name":"demo","version":"1","runtime":{"kind":"rust_embedded",'
    b'"entrypoint":"demo","export_name":"main"}},"input":null}}\n'
)
ENDED = (
    b'{"run_id":"odd","sequence":2,"event_id":"6f0c1c3e-1111-4222-8333-444455556666","timestamp":"2026-08-15T00:00:01Z",'
    b'"event":{"type":"run_completed","output":%b}}'
)


def _line(file: Path) -> bytes:
    content = file.read_bytes()
    return (content if file.suffix == ".line" else ENDED % content) + b"\n"


def test_there_are_files_of_each_verdict() -> None:
    assert {file.name[:2] for file in FILES} == {"y_", "n_", "i_"}
    assert all(file.name.startswith("i_accept_") for file in FILES if file.name[0] == "i")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_verdict_holds(kernel: Kernel, file: Path) -> None:
    line = _line(file)
    if file.name.startswith("n_"):
        with pytest.raises(Serialization) as refused:
            kernel.project("odd", CREATED + line, DEFAULT_MAX_EVENT_BYTES)
        assert refused.value.line == 2
        return
    assert kernel.project("odd", CREATED + line, DEFAULT_MAX_EVENT_BYTES).last_sequence == 2


@pytest.mark.parametrize(
    "file", [f for f in FILES if f.suffix == ".payload" and f.name[0] != "n"], ids=lambda f: f.name
)
def test_an_accepted_payload_is_kept_byte_for_byte(kernel: Kernel, file: Path) -> None:
    run = kernel.project("odd", CREATED + _line(file), DEFAULT_MAX_EVENT_BYTES)
    assert run.output == file.read_bytes()
    assert b'"output":' + file.read_bytes() + b',"error"' in run.snapshot()


@pytest.mark.parametrize("file", [f for f in FILES if f.name[0] == "n"], ids=lambda file: file.name)
def test_a_refused_tail_leaves_the_run_as_it_was(kernel: Kernel, file: Path) -> None:
    run = kernel.project("odd", CREATED, DEFAULT_MAX_EVENT_BYTES)
    before = run.snapshot()
    with pytest.raises(Serialization):
        run.extend(_line(file))
    assert (run.snapshot(), run.last_sequence) == (before, 1)
