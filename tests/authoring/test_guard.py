"""The guard: what a replay would not repeat is named with file and line; what is harmless is left alone."""

from __future__ import annotations

import inspect
import linecache
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from authoring import guarded_programs
from perdure.flow import Flow
from perdure.guard import Guard, GuardWarning
from perdure.guard_lint import Finding, findings


def marks(function: Callable[..., Any]) -> list[tuple[int, str]]:
    """(line, code) of each `# !code` comment in a function's source."""
    lines, first = inspect.getsourcelines(function)
    found = []
    for offset, line in enumerate(lines):
        _, _, marked = line.partition("# !")
        found += [(first + offset, code) for code in marked.split()]
    return found


@pytest.mark.parametrize("function", guarded_programs.ALL)
def test_what_is_found_and_what_is_not(function: Callable[..., Any]) -> None:
    found = findings(function)
    assert [(f.line, f.code) for f in found] == marks(function)
    assert {f.file for f in found} <= {guarded_programs.__file__}


def test_helpers_of_the_same_module_are_read_too() -> None:
    (found,) = findings(guarded_programs.calls_a_helper)
    assert (found.file, found.line, found.code) == (guarded_programs.__file__, *marks(guarded_programs.helper)[0])
    assert found.text.startswith("time.time in helper: each replay would see another time")


def test_lambdas_and_closures() -> None:
    module = time
    found = findings(lambda ctx: module.time())
    assert [f.code for f in found] == ["clock"]


# -- where there is no source ---------------------------------------------------------------------------------------


def made(source: str, name: str = "workflow") -> Any:
    space: dict[str, Any] = {"__name__": "made"}
    exec(compile(source, "<made>", "exec"), space)  # noqa: S102 - code without a file is the case
    return space[name]


SOURCE = "import time\ndef workflow(ctx):\n    return time.time()\n"


def test_without_a_source_nothing_is_said() -> None:
    assert findings(made(SOURCE)) == []
    assert findings(len) == []
    assert findings(object()) == []
    assert findings(property()) == []


def test_a_source_that_is_not_the_one_that_runs_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    for text in (
        "def workflow(:\n",
        "\x00",
        "",
        "class workflow: pass\n",
        "\n\ndef workflow(ctx):\n    import time; time.time()\n",
    ):
        path.write_text(text)
        linecache.checkcache(str(path))
        space: dict[str, Any] = {}
        exec(compile(SOURCE, str(path), "exec"), space)  # noqa: S102 - as if it had been imported before the edit
        assert findings(space["workflow"]) == []


# -- warnings -------------------------------------------------------------------------------------------------------


def registered(guard: Guard, function: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        guard.register(function)
    return list(caught)


def test_each_finding_is_a_warning_at_its_line() -> None:
    first, *others = registered(Guard("warn"), guarded_programs.clocks)
    assert len(others) == len(marks(guarded_programs.clocks)) - 1
    assert first.category is GuardWarning
    assert (first.filename, first.lineno) == (guarded_programs.__file__, marks(guarded_programs.clocks)[0][0])
    assert str(first.message) == (
        "[clock] time.time in clocks: each replay would see another time; take it from ctx.now(), or read it in a step"
    )


def test_modes() -> None:
    assert registered(Guard("off"), guarded_programs.clocks) == []
    with pytest.raises(ValueError, match="guard must be 'warn', 'raise' or 'off', not 'loud'"):
        Guard("loud")  # type: ignore[arg-type]  # a wrong mode is the case


def test_findings_are_values() -> None:
    assert Finding("a.py", 1, "clock", "x") == Finding("a.py", 1, "clock", "x")


# -- no false alarms in our own workflows ---------------------------------------------------------------------------


def test_the_examples_are_clean() -> None:
    root = Path(__file__).resolve().parents[2]
    for path in [*(root / "examples").glob("*.py"), *(root / "python/perdure/demo").glob("*.py")]:
        module = ModuleType(f"linted_{path.stem}")
        module.__file__ = str(path)
        if path.stem == "__main__":
            continue
        module.__package__ = "perdure.demo" if "demo" in path.parts else None
        sys.modules[module.__name__] = module
        try:
            exec(compile(path.read_text("utf-8"), str(path), "exec"), vars(module))  # noqa: S102 - our own examples
            for flow in [value for value in vars(module).values() if isinstance(value, Flow)]:
                found = [f for workflow in flow.workflows.values() for f in findings(workflow.function)]
                assert found == []
        finally:
            del sys.modules[module.__name__]
