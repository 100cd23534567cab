"""Readings of a command's JSON that both kernels must share and that no recorded row decides."""

from __future__ import annotations

import pytest

from perdure.errors import Serialization
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel, View

START = (
    b'{"op":"start","spec":{"name":"demo","version":"1","runtime":{"kind":"rust_embedded","entrypoint":"demo",'
    b'"export_name":"main"}},"input":null}'
)
FORMS = {
    "schedule_steps": b'{"type":"schedule_steps","steps":[{"step_id":"a","step_name":"n","input":1}]%b}',
    "schedule_all": b'{"type":"schedule_all","members":[{"type":"step","step_id":"a","step_name":"n","input":1}]%b}',
}


def started(kernel: Kernel) -> View:
    run = kernel.new("r", DEFAULT_MAX_EVENT_BYTES)
    return run.stage(run.control(START, 0).drafts, 0)


@pytest.mark.parametrize("form", FORMS)
def test_a_concurrency_of_null_is_none(kernel: Kernel, form: str) -> None:
    """R61: an optional field given as null reads as absent; this one has no default that null could mean (R16, R26)."""
    view = started(kernel)
    absent = view.decide(FORMS[form] % b"", 0, 0)
    null = view.decide(FORMS[form] % b',"concurrency":null', 0, 0)
    assert (null.drafts, null.concurrency) == (absent.drafts, None)
    with pytest.raises(Serialization):
        view.decide(FORMS[form] % b',"concurrency":0', 0, 0)
