"""Both type checkers accept the right programs and refuse exactly the marked lines of the wrong ones (R35, R41).

Each checker runs once over both folders, in strict mode.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARK = "# refused"

Place = tuple[str, int]


def marked() -> set[Place]:
    """(file, line) of every line that must be refused."""
    return {
        (path.name, number)
        for path in sorted((HERE / "wrong").glob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.rstrip().endswith(MARK)
    }


def refused_by_mypy() -> dict[Place, str]:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--show-absolute-path", "--no-pretty"]
    programs = [str(path) for folder in ("right", "wrong") for path in sorted((HERE / folder).glob("*.py"))]
    done = subprocess.run([*command, *programs], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.+?\.py):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return {(Path(path).name, int(line)): text for path, line, text in found}


def refused_by_pyright() -> dict[Place, str]:
    project = str(HERE / "pyrightconfig.json")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", project]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1): item["message"]
        for item in found
        if item["severity"] == "error"
    }


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_right_programs_pass_and_each_wrong_line_is_refused(checker: str) -> None:
    refused = refused_by_mypy() if checker == "mypy" else refused_by_pyright()
    assert {place: text for place, text in refused.items() if place not in marked()} == {}
    assert marked() - refused.keys() == set()
