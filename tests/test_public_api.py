"""The public surface: `__all__` is exactly what is public, and importing it stays light."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import perdure

EXTRAS = (
    *("psycopg", "psycopg_pool", "typer", "rich", "starlette", "uvicorn", "jinja2", "opentelemetry"),
    *("celery", "procrastinate", "pydantic", "cryptography", "pytest", "hypothesis"),
)
"""What `pip install perdure` does not bring along, or brings for tests only: loaded when used, never by the import."""

LATE = ("perdure.demo", "perdure.testing", "perdure._pure", "perdure.observe", "perdure.cli", "perdure.web")
"""Our own parts that a plain import leaves alone."""


def loaded_after(statement: str) -> set[str]:
    """The modules a fresh interpreter holds after `statement`."""
    script = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_all_is_exactly_what_is_public() -> None:
    for name in perdure.__all__:
        assert getattr(perdure, name) is not None  # loads it: names come when they are first used
    public = {
        name
        for name, value in vars(perdure).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("perdure")
    }
    assert public - {"PostgresEventStore"} == {name for name in perdure.__all__ if not name.startswith("_")}


def test_everything_can_be_looked_at_without_the_extras() -> None:
    """A star import, `dir` and `help` need nothing that was not installed; a name that does says what."""
    script = """
import sys
sys.modules["psycopg"] = sys.modules["cryptography"] = sys.modules["celery"] = None
from perdure import *
import perdure
for name in dir(perdure):
    getattr(perdure, name)
try:
    from perdure import PostgresEventStore
except perdure.StoreError as error:
    assert "perdure[postgres]" in str(error)
else:
    raise AssertionError("it needs psycopg")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_is_sorted_and_without_repeats() -> None:
    assert list(perdure.__all__) == sorted(set(perdure.__all__))


def test_every_name_is_importable_and_documented() -> None:
    undocumented = [
        name
        for name in perdure.__all__
        if isinstance(value := getattr(perdure, name), type) and not (value.__doc__ or "").strip()
    ]
    assert undocumented == []


def test_the_errors_are_all_public_and_the_same_objects() -> None:
    errors = importlib.import_module("perdure.errors")
    assert [name for name in errors.__all__ if getattr(perdure, name, None) is not getattr(errors, name)] == []


def test_public_names_say_where_they_live() -> None:
    """A class's module is ours and importable, so that it pickles and its documentation is found."""
    for name in perdure.__all__:
        value = getattr(perdure, name)
        if isinstance(value, type):
            assert getattr(importlib.import_module(value.__module__), value.__qualname__) is value, name


def test_import_pulls_in_no_extra() -> None:
    loaded = loaded_after("import perdure")
    assert sorted(name for name in EXTRAS if name in loaded) == []
    assert sorted(name for name in loaded if name.startswith(LATE)) == []


def test_cargo_has_the_one_version() -> None:
    manifest = tomllib.loads((Path(__file__).parent.parent / "Cargo.toml").read_text("utf-8"))
    core = importlib.import_module("perdure._core")
    assert core.__version__ == manifest["workspace"]["package"]["version"] == metadata.version("perdure")
