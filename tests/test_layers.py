"""Who may know what: the table of DESIGN §3, read from the source.

A new module is given a layer in `LAYERS`; nothing here is skipped for what is not listed.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "perdure"
CORE = ROOT / "rust" / "core"
MAX_LINES = 800


@dataclass(frozen=True)
class Layer:
    """One row of the table. `uses` and `types` name layers; what is in `types` may be imported for annotations only."""

    modules: tuple[str, ...]
    uses: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    third_party: tuple[str, ...] = ()
    banned: frozenset[str] = field(default_factory=frozenset)


_WORLD = frozenset(
    "asyncio concurrent io logging multiprocessing os pathlib random secrets select shutil signal socket sqlite3 "
    "subprocess tempfile threading time urllib uuid".split()
)
"""Clocks, randomness, files, threads and logging: what a rule may not touch."""

LAYERS: dict[str, Layer] = {
    "leaf": Layer(("errors", "transition_rules", "difference", "instant", "told"), uses=("leaf",), banned=_WORLD),
    "seam": Layer(("kernel",), uses=("leaf",), banned=_WORLD),
    "pure kernel": Layer(
        ("_pure",),
        uses=("leaf", "pure kernel"),
        types=("seam",),
        third_party=("orjson",),
        banned=_WORLD - {"threading"},  # a run may be read from any thread, so it has a lock
    ),
    "model": Layer(
        # `builds` holds values only, a build id and the set it is compatible with; what acts on them is dispatch.
        (
            *("model", "spec", "policy", "values", "envelope", "snapshot", "commands", "payload", "wire"),
            *("payload_rules", "payload_unions", "payload_encode", "payload_decode", "outcome", "builds", "codec"),
        ),
        uses=("leaf", "model", "seam"),
        third_party=("orjson", "msgspec"),
        banned=frozenset({"asyncio", "sqlite3", "time"}),
    ),
    "authoring": Layer(
        ("context", "step", "arguments", "flow", "coroutine", "guard", "guard_lint", "guard_names", "guard_rules"),
        uses=("leaf", "model", "seam", "authoring", "gates"),
        third_party=("orjson", "msgspec"),
        banned=frozenset({"sqlite3", "time"}),
    ),
    # It wraps what a workflow must not call, and so has to name it; loaded only for `guard="raise"`.
    "gates": Layer(("guard_calls",), uses=("leaf", "authoring")),
    "drive": Layer(
        ("drive", "effects"),
        uses=("leaf", "seam", "model", "authoring", "drive"),
        types=("store protocol",),
        third_party=("orjson",),
        banned=_WORLD,
    ),
    "store protocol": Layer(("stores.base",), uses=("leaf", "model", "seam"), types=("retention",)),
    # Loads a kernel and knows no store: a store that keeps no index on its medium is given index rows by it.
    "rebuild": Layer(("rebuild",), uses=("leaf", "seam")),
    # What pruning may delete, once for all stores.
    "retention": Layer(("retention",), uses=("leaf",), types=("store protocol",)),
    # Histories from one store into another.
    "exchange": Layer(
        ("exchange",),
        uses=("leaf", "seam", "model", "rebuild", "retention", "store protocol", "stores", "exchange"),
    ),
    "stores": Layer(
        ("stores",),
        uses=("leaf", "model", "seam", "store protocol", "rebuild", "retention", "stores"),
        third_party=("psycopg",),
        banned=frozenset({"json"}),
    ),
    "encryption": Layer(("codec_encrypted",), uses=("leaf", "model"), third_party=("msgspec", "cryptography")),
    "shells": Layer(
        (
            *("engine", "session", "asking", "attempts", "threads", "leasing", "owner", "observing", "inspection"),
            *("blocking", "host_call", "keeping", "outage", "replaying"),
        ),
        uses=("leaf", "seam", "model", "authoring", "drive", "store protocol", "stores", "shells"),
        third_party=("orjson",),
    ),
    "dispatch": Layer(
        ("scheduler", "worker", "tasks", "task_kinds", "task_codec", "dispatcher", "routing", "queues"),
        uses=("leaf", "seam", "model", "authoring", "store protocol", "stores", "shells", "dispatch"),
        third_party=("orjson", "msgspec"),
    ),
    "surface": Layer(
        ("",),
        uses=(
            "encryption",
            "gates",
            "retention",
            "exchange",
            "leaf",
            "seam",
            "model",
            "authoring",
            "store protocol",
            "stores",
            "shells",
            "dispatch",
        ),
    ),
    "edges": Layer(
        ("__main__", "demo", "observe", "cli", "web", "testing", "contrib"),
        uses=(
            *("leaf", "seam", "model", "authoring", "drive", "store protocol", "stores", "shells", "dispatch"),
            *("retention", "exchange", "surface", "edges"),
        ),
        third_party=(
            *("orjson", "msgspec", "typer", "rich", "starlette", "uvicorn", "jinja2", "opentelemetry"),
            *("celery", "procrastinate", "pytest", "hypothesis"),
        ),
    ),
}


@dataclass(frozen=True)
class Import:
    module: str  # absolute: "perdure.stores.base", "asyncio"
    name: str | None  # of `from module import name`
    line: int
    type_only: bool


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """Name inside the package: "stores.base", "_pure" for `_pure/__init__.py`, "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str | None:
    """The layer of a module inside the package: its longest listed prefix."""
    found = [
        (len(prefix), name)
        for name, layer in LAYERS.items()
        for prefix in layer.modules
        if module == prefix or (prefix and module.startswith(prefix + "."))
    ]
    return max(found)[1] if found else None


def imports(path: Path) -> list[Import]:
    tree = ast.parse(path.read_text("utf-8"))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return [found for node in ast.walk(tree) for found in _imports_of(node, path, id(node) in guarded)]


def _imports_of(node: ast.AST, path: Path, type_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, None, node.lineno, type_only)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = ("perdure." + module_of(path)).rstrip(".").split(".")
            up = node.level - (1 if path.name == "__init__.py" else 0)
            base = ".".join(package[: len(package) - up] + ([node.module] if node.module else []))
        for alias in node.names:
            yield Import(base, alias.name, node.lineno, type_only)


def target_of(imported: Import) -> str | None:
    """The imported module inside the package; None for what is not ours. `from perdure import x` may mean a module."""
    if imported.module != "perdure" and not imported.module.startswith("perdure."):
        return None
    inside = imported.module.removeprefix("perdure").removeprefix(".")
    if imported.name:
        deeper = f"{inside}.{imported.name}".removeprefix(".")
        place = PACKAGE.joinpath(*deeper.split("."))
        if place.with_suffix(".py").exists() or place.is_dir() or place.with_suffix(".pyi").exists():
            return deeper
    return inside


def complaints_of(path: Path) -> Iterator[str]:
    module = module_of(path)
    name = layer_of(module)
    if name is None:
        yield f"{path.relative_to(ROOT)}: module {module!r} has no layer; give it one in LAYERS of tests/test_layers.py"
        return
    layer = LAYERS[name]
    for found in imports(path):
        where = f"{path.relative_to(ROOT)}:{found.line} ({name})"
        target = target_of(found)
        top = found.module.split(".")[0]
        if target is None:
            if top in layer.banned:
                yield f"{where} imports {found.module}, which this layer does without"
            elif top not in sys.stdlib_module_names and top not in layer.third_party and not found.type_only:
                yield f"{where} imports {found.module}, which is no dependency of this layer"
            continue
        theirs = layer_of(target)
        if target.split(".")[0] == "_core" or (theirs == "pure kernel" and name != "pure kernel"):
            yield f"{where} imports {found.module}: a kernel is reached through perdure.kernel.load only"
        elif theirs not in layer.uses and not (found.type_only and theirs in layer.types):
            yield f"{where} imports {found.module} ({theirs}); it may use {', '.join(layer.uses)}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_keep_to_the_layers(path: Path) -> None:
    assert list(complaints_of(path)) == []


def test_every_layer_is_known() -> None:
    for name, layer in LAYERS.items():
        assert {*layer.uses, *layer.types} <= LAYERS.keys(), name


@pytest.mark.parametrize("layer", ["model", "authoring", "stores", "store protocol"])
def test_below_the_drive_the_seam_is_protocols_only(layer: str) -> None:
    """Stores and values name the kernel's shapes; only the drive and what is above it load a kernel."""
    loading = [
        f"{path.relative_to(ROOT)}:{found.line}"
        for path in sources()
        if layer_of(module_of(path)) == layer
        for found in imports(path)
        if target_of(found) == "kernel" and found.name in (None, "load", "*")
    ]
    assert loading == []


def test_rules_read_no_clock() -> None:
    """The layers that hold rules take instants as arguments: no `datetime.now()`, no `open`, no `print`."""
    bad = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {ast.unparse(node.func)}"
        for path in sources()
        if layer_of(module_of(path)) in ("leaf", "seam", "pure kernel", "authoring", "drive")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and re.fullmatch(r"(.*\.)?(datetime|date)\.(now|utcnow|today)|open|print|input", ast.unparse(node.func))
    ]
    assert bad == []


# --- Rust ---


def rust_sources() -> list[Path]:
    """Rust files of the two crates that are not tests."""
    files = [*ROOT.glob("rust/*/src/**/*.rs")]
    return sorted(f for f in files if "tests" not in f.parts and not f.stem.endswith(("tests", "_test")))


def without_tests(text: str) -> str:
    """Rust source with comments, the contents of literals and `#[cfg(test)]` items blanked, line numbers kept."""
    text = re.sub(r"b?'(?:\\.|[^\\'\n])'", "' '", text)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
    while (start := text.find("#[cfg(test)]")) >= 0:
        end = _end_of_item(text, start)
        text = text[:start] + "\n" * text.count("\n", start, end) + text[end:]
    return text


def _end_of_item(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"[{};]").finditer(text, start):
        depth += {"{": 1, "}": -1, ";": 0}[match.group()]
        if depth == 0:
            return match.end()
    return len(text)


def test_rust_files_are_found() -> None:
    assert {"core", "bindings"} <= {path.relative_to(ROOT / "rust").parts[0] for path in rust_sources()}


def test_no_panics_and_no_unsafe_in_rust() -> None:
    banned = re.compile(
        r"\.unwrap\(\)|\.expect\(|\.unwrap_err\(\)|\b(?:panic|todo|unimplemented|unreachable)!|\bunsafe\b"
    )
    bad = [
        f"{path.relative_to(ROOT)}:{number} has {match.group()}"
        for path in rust_sources()
        for number, line in enumerate(without_tests(path.read_text("utf-8")).split("\n"), 1)
        for match in banned.finditer(line)
    ]
    assert bad == []


def test_the_core_knows_no_python_and_no_world() -> None:
    manifest = tomllib.loads((CORE / "Cargo.toml").read_text("utf-8"))
    tables = [manifest.get(key, {}) for key in ("dependencies", "build-dependencies", "dev-dependencies")]
    names = {name for table in tables for name in table}
    assert not [name for name in names if name.startswith(("pyo3", "rand", "log", "tracing", "chrono", "uuid"))]
    banned = re.compile(
        r"\bpyo3\b|\bstd::(?:fs|net|process|env|io|thread)\b|\bSystemTime\b|\bInstant::now\b|\be?println!"
    )
    bad = [
        f"{path.relative_to(ROOT)}:{number} has {match.group()}"
        for path in rust_sources()
        if CORE in path.parents
        for number, line in enumerate(without_tests(path.read_text("utf-8")).split("\n"), 1)
        for match in banned.finditer(line)
    ]
    assert bad == []


# --- places ---


def test_no_file_is_too_long() -> None:
    folders = ("python", "rust", "tests", "benches", "examples")
    files = [f for folder in folders for f in (ROOT / folder).rglob("*") if f.suffix in {".py", ".pyi", ".rs"}]
    lengths = {str(f.relative_to(ROOT)): f.read_text("utf-8").count("\n") for f in files if "target" not in f.parts}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


CONCEPTS = ("event", "json", "snapshot", "project", "command", "decide", "settle", "control", "retry", "append")
"""One word each for the Rust file and its twin; how a kernel splits its inner workings beyond them is its own."""

LEAVES = {"time": "instant.py", "error": "errors.py"}
"""Rust concepts whose Python side is a leaf module, because instants and errors are everyone's."""


def twins() -> Iterator[tuple[Path, Path]]:
    """Rust file and Python file of each concept."""
    for name in CONCEPTS:
        yield CORE / "src" / f"{name}.rs", PACKAGE / "_pure" / f"{name}.py"
    for name, leaf in LEAVES.items():
        yield CORE / "src" / f"{name}.rs", PACKAGE / leaf


def test_each_concept_has_a_rust_file_and_a_python_twin() -> None:
    missing = [str(path.relative_to(ROOT)) for pair in twins() for path in pair if not path.exists()]
    assert missing == [], "one word names the Rust file and its Python twin"


def rule_finder() -> list[str]:
    """The rows of ARCHITECTURE.md's table "where is the rule that …?"."""
    page = ROOT / "ARCHITECTURE.md"
    assert page.exists(), "ARCHITECTURE.md is missing; it holds the table that says where each rule is"
    heading = r"^#+[^\n]*where is the rule[^\n]*\n(.*?)(?=^#|\Z)"
    section = re.search(heading, page.read_text("utf-8"), re.IGNORECASE | re.MULTILINE | re.DOTALL)
    assert section, 'ARCHITECTURE.md has no heading "Where is the rule that …?"'
    rows = [line for line in section.group(1).split("\n") if line.startswith("|")][2:]
    assert rows, "the rule finder is empty"
    return rows


def places_of(row: str) -> list[str]:
    """The paths in backticks of a row; a function may follow as `path::name` or `path:name`."""
    quoted = (text.split(":")[0] for text in re.findall(r"`([^`]+)`", row))
    return [text for text in quoted if re.fullmatch(r"[\w./-]+(?:\.(?:py|pyi|rs|md|toml|sql)|/)", text)]


def resolve(place: str) -> Path | None:
    bases = (ROOT, PACKAGE, CORE / "src", ROOT / "rust")
    return next((base / place for base in bases if (base / place).exists()), None)


def test_the_rule_finder_names_places_that_exist() -> None:
    for row in rule_finder():
        places = places_of(row)
        assert places, f"no path in this row of the rule finder: {row}"
        assert [place for place in places if resolve(place) is None] == [], row


def test_the_rule_finder_knows_both_sides_of_every_concept() -> None:
    named = {resolve(place) for row in rule_finder() for place in places_of(row)}
    missing = [str(path.relative_to(ROOT)) for pair in twins() for path in pair if path not in named]
    assert missing == [], "each rule of the kernels has a row in ARCHITECTURE.md's rule finder"
