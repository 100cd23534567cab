"""The line that a log names: the user's own, wherever the error was raised."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import msgspec

from perdure.outcome import where_raised


def of(raising: object) -> str | None:
    try:
        raising()  # type: ignore[operator]  # it raises
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return where_raised(error)
    raise AssertionError("it did not raise")


def test_what_the_standard_library_raises_is_told_at_the_users_line() -> None:
    assert (of(lambda: json.loads("{")) or "").startswith(f"{__file__}:")
    with ThreadPoolExecutor() as pool:
        assert (of(lambda: pool.submit(lambda: 1 / 0).result()) or "").startswith(f"{__file__}:")


def test_what_a_package_raises_is_told_at_the_users_line() -> None:
    """Here by one that is installed, through a frame of its own."""

    class Point(msgspec.Struct):
        x: int

        def __post_init__(self) -> None:
            raise ValueError("no")

    assert (of(lambda: Point(1)) or "").endswith(" in __post_init__")
    code = compile("def broken():\n    raise KeyError('x')\n", f"{json.__file__}", "exec")
    space: dict[str, object] = {}
    exec(code, space)  # noqa: S102 - a function that seems to be the library's
    assert (of(space["broken"]) or "").startswith(f"{__file__}:")


def test_where_there_is_no_line_of_the_users_the_innermost_is_told() -> None:
    code = compile("raise KeyError('x')\n", f"{json.__file__}", "exec")
    error: BaseException | None = None
    try:
        exec(code, {})  # noqa: S102 - a module that seems to be the library's
    except KeyError as found:
        error = found.with_traceback(found.__traceback__.tb_next if found.__traceback__ else None)
    assert where_raised(error or KeyError()) == f"{json.__file__}:1 in <module>"
    assert where_raised(KeyError()) is None


def test_a_place_that_would_break_the_line_is_escaped() -> None:
    code = compile("def broken():\n    raise KeyError('x')\n", "a\nrun forged", "exec")
    space: dict[str, object] = {}
    exec(code, space)  # noqa: S102 - code of a file with an odd name
    assert of(space["broken"]) == "'a\\nrun forged:2 in broken'"
