"""The error tree: drawn as it is, pickled whole, one code each, a text for every rule, and no token in any text."""

from __future__ import annotations

import copy
import pickle
import re
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import errors
from perdure.errors import FlowError, InvalidTransition
from perdure.transition_rules import RULES

ROOT = Path(__file__).resolve().parent.parent
RUST_ERRORS = ROOT / "rust" / "core" / "src" / "error.rs"
TOKEN = "canary-of-the-error-tests"

SAMPLES: list[FlowError] = [
    FlowError("plain"),
    errors.RunNotFound("r"),
    errors.RunTerminal("r"),
    errors.InvalidRunId("r r", "characters"),
    *(errors.RunConflict("r", reason) for reason in ("spec", "input", "request", "pruned", "case")),
    errors.InvalidWorkflow("name"),
    errors.WorkflowNotRegistered("w", "1", (("v", "2"),)),
    errors.WorkflowNotRegistered("w", "1"),
    errors.StepNotRegistered("charge", "s"),
    errors.WorkflowRaised("r", "w", "1", "KeyError: 'x'", "app.py:7"),
    errors.WorkflowRaised("r", "w", "1", "KeyError: 'x'"),
    errors.InvalidTransition("r", "id_unknown", "step", "s", 7, "v"),
    errors.NonDeterministic("r", "step", "s", "input", 3, '{"a":1}', '{"a":2}'),
    errors.ReplayLimitExceeded(8),
    errors.HistoryLimitExceeded("r", 200_000),
    errors.HookTokenNotFound(TOKEN),
    errors.HookTokenConflict(TOKEN, "r", "h"),
    *(errors.HookConflict("r", "h", reason) for reason in ("payload", "received", "disposed", "cancelled")),
    errors.InvalidRuntimeBuildId(" "),
    errors.RuntimeBuildUnavailable("r", "b1", "b2"),
    errors.RuntimeBuildUnavailable("r", None, None),
    errors.RuntimeBuildRouteNotFound("b1"),
    errors.RuntimeBuildRouteNotFound(None),
    errors.InvalidWorkerConfiguration("two routes for build 'b1'; give one"),
    errors.QueueBackpressure(10, 10),
    errors.TaskLeaseLost("x" * 100),
    errors.TaskSetAside("hook_conflict: no"),
    errors.Serialization("shape", 3, "no event"),
    errors.Serialization("malformed"),
    errors.UnsupportedEventSchemaVersion(2, 1, 1),
    errors.PayloadCodecFailed("decode", "input of step 's'", "no key is called 'k1'"),
    errors.PayloadTooLarge("flow.step.created", 2_000_000, 1_048_576),
    errors.StoreRefusal("refused"),
    errors.EventConflict("r", 3, 4),
    errors.LeaseLost("r"),
    errors.LeaseHeld("r"),
    errors.StoreError("sqlite: disk I/O error"),
    errors.StoreUnavailable("sqlite: disk full"),
    errors.OutcomeUnknown("sqlite: commit did not answer"),
    errors.EngineClosed(),
    errors.CallFromOwnStep("r"),
    errors.EngineElsewhere("fork"),
    errors.CallFromLoopThread(),
    errors.StepError("odd"),
    errors.NonRetryable("card stolen"),
    errors.RetryAfter(timedelta(seconds=3), "busy"),
    errors.StepCancelled(),
    errors.StepFailed("s", "charge", 3, "runtime error: no", "app.Broken", True),
    errors.DriveLost("r", 3),
    errors.DuplicateId("r", "step", "charge", "app.py:3 in order", "app.py:3 in order"),
    errors.WorkflowStuck("r", ("step 'a' at app.py:3 in order",)),
    errors.ForeignAwaitError("asyncio.sleep", "app.py:3 in order", "use `await ctx.sleep(delay)`"),
    errors.HookDisposed("approval"),
    errors.WorkflowFailed("out of stock"),
    errors.EndTimedOut("2026-01-02T03:04:05Z", "nobody answered"),
]

sample = pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)


def classes() -> list[type[FlowError]]:
    found = [FlowError]
    for known in found:
        found += [kind for kind in known.__subclasses__() if kind.__module__ == errors.__name__]
    return found


def drawn_tree() -> dict[str, str]:
    """Class → parent, read from the drawing at the top of errors.py."""
    drawing = (errors.__doc__ or "").split("\n\n")[1].split("\n")
    parents: dict[str, str] = {}
    path = [drawing[0].strip()]
    for line in drawing[1:]:
        indent, names = re.fullmatch(r"    ((?:[│ ]   )*)[├└]── (.+)", line).groups()  # type: ignore[union-attr]  # a line of another form fails here
        depth = len(indent) // 4 + 1
        path[depth:] = names.split()[-1:]
        parents |= dict.fromkeys(names.split(), path[depth - 1])
    return parents


def test_the_drawing_is_the_tree() -> None:
    assert drawn_tree() == {kind.__name__: kind.__mro__[1].__name__ for kind in classes() if kind is not FlowError}


def test_all_is_the_tree() -> None:
    assert set(errors.__all__) == {kind.__name__ for kind in classes()}


def test_every_class_has_a_sample() -> None:
    assert {type(error) for error in SAMPLES} == set(classes())


def test_codes_are_unique_and_snake_case() -> None:
    codes = {kind.__name__: kind.__dict__.get("code") for kind in classes()}
    assert [name for name, code in codes.items() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", code or "")] == []
    assert len(set(codes.values())) == len(codes)


@sample
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_whole(error: FlowError, protocol: int) -> None:
    error.run_id = "run-of-the-engine"
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (again.args, again.__dict__, str(again)) == (error.args, error.__dict__, str(error))
    assert copy.copy(error).args == error.args


@sample
def test_args_build_an_equal_error(error: FlowError) -> None:
    """Two errors compare by type and args, so args must be the fields, all of them, in order."""
    assert type(error)(*error.args).args == error.args


@sample
def test_has_a_text(error: FlowError) -> None:
    assert "None" not in str(error)
    assert str(error)
    assert repr(error) == f"<{type(error).__name__}: {error}>"


@sample
def test_tokens_stay_out_of_texts(error: FlowError) -> None:
    assert TOKEN not in f"{error!s} {error!r}"


def test_tokens_stay_readable_as_attributes() -> None:
    assert errors.HookTokenNotFound(TOKEN).token == TOKEN
    assert errors.HookTokenConflict(TOKEN, "r", "h").token == TOKEN


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_renders(rule: str) -> None:
    text = str(InvalidTransition("r", rule, "step", "s", 7, "v"))
    assert text.startswith("run 'r', event 7: ")
    assert "{" not in text
    bare = str(InvalidTransition("r", rule))
    assert bare.startswith("run 'r': ")


def test_rule_codes_and_class_codes_do_not_collide() -> None:
    assert RULES.keys() & {kind.code for kind in classes()} == set()


def rust_codes() -> set[str]:
    """The codes of the `rules!` table in error.rs."""
    table = re.search(r"^rules! \{$(.*?)^\}$", RUST_ERRORS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert table, f"no `rules! {{ … }}` table in {RUST_ERRORS.relative_to(ROOT)}"
    return set(re.findall(r'\w+ "([a-z_]+)"', table.group(1)))


def host_codes() -> set[str]:
    """The codes that Python code above the kernels names."""
    files = [f for f in (ROOT / "python" / "perdure").rglob("*.py") if f.name != "errors.py" and "_pure" not in f.parts]
    quoted = {code for file in files for code in re.findall(r'"([a-z]+(?:_[a-z]+)+)"', file.read_text("utf-8"))}
    return quoted & RULES.keys()


def test_rust_and_python_have_the_same_rule_codes() -> None:
    here, there = RULES.keys(), rust_codes()
    fix = [f"add {code!r} to RULES in python/perdure/errors.py, or drop it from error.rs" for code in there - here]
    fix += [f"nobody raises {code!r}: drop it from RULES in errors.py" for code in here - there - host_codes()]
    assert not fix, "\n".join(sorted(fix))


@pytest.mark.parametrize(
    ("part", "way_out"), [("input", "as a new workflow version; in the command"), ("retry", "step.options(retry=...)")]
)
def test_drift_says_the_way_out(part: str, way_out: str) -> None:
    assert way_out in str(errors.NonDeterministic("r", "step", "s", part, 3, "{}", "[]"))
