"""Runtime builds: the grammar of ids and who may drive what (spec 08 §8.5)."""

from __future__ import annotations

import pytest

from perdure.builds import RuntimeBuildCompatibility, admit, check_build_id
from perdure.errors import InvalidRuntimeBuildId, RuntimeBuildUnavailable


@pytest.mark.parametrize("value", ["a", "7", "v1.2.3+build/5@host:x_y-z", "a" * 128])
def test_build_ids(value: str) -> None:
    assert check_build_id(value) == value


@pytest.mark.parametrize("value", ["", "-a", "a-", "a b", "é", "a" * 129, ".", "a\n", "a\u0660"])
def test_other_build_ids_are_refused(value: str) -> None:
    with pytest.raises(InvalidRuntimeBuildId) as caught:
        check_build_id(value)
    assert caught.value.value == value
    with pytest.raises(InvalidRuntimeBuildId):
        RuntimeBuildCompatibility(value)
    with pytest.raises(InvalidRuntimeBuildId):
        RuntimeBuildCompatibility("a", {value})


STRICT = RuntimeBuildCompatibility("b2", {"b1"})
OPEN = RuntimeBuildCompatibility("b2", ["b1"], accept_unpinned=True)


@pytest.mark.parametrize(
    ("builds", "build", "admitted"),
    [
        *((None, None, True), (None, "b1", False)),
        *((STRICT, None, False), (STRICT, "b1", True), (STRICT, "b2", True), (STRICT, "b3", False)),
        *((OPEN, None, True), (OPEN, "b1", True), (OPEN, "b3", False)),
    ],
)
def test_admission(builds: RuntimeBuildCompatibility | None, build: str | None, admitted: bool) -> None:
    if admitted:
        admit(builds, "r", build)
        return
    with pytest.raises(RuntimeBuildUnavailable) as caught:
        admit(builds, "r", build)
    assert caught.value.args == ("r", build, "b2" if builds else None)


def test_one_text_is_no_collection_of_builds() -> None:
    with pytest.raises(TypeError):
        RuntimeBuildCompatibility("b2", "b1")
