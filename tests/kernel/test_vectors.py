"""The golden files, on both kernels: retry delays, event ids, equality, histories, and the snapshot at every prefix."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.kernel import KernelName
from perdure.testing.conformance import run_files

DATA = Path(__file__).parents[1] / "data"
FILES = {
    "retry_jitter.json": 48,
    "ours/event_ids.jsonl": 4,
    "ours/equality.jsonl": 80,
    "ours/projection.jsonl": 756,
    "ours/cases.jsonl": 224,
    "reference/projection.jsonl": 700,
    "reference/decode.jsonl": 121,
    "reference/cases.jsonl": 79,
}


@pytest.mark.parametrize("name", ["rust", "pure"])
@pytest.mark.parametrize("file", FILES)
def test_every_row_holds(file: str, name: KernelName) -> None:
    report = run_files([DATA / file], kernels=[name], stores=[])
    assert [str(failure) for failure in report.failures] == []
    assert report.passed.total() == FILES[file]
    assert report.left_out == []
