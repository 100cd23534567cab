"""What a call of a step stores is what the step is called with, for any signature Python knows (R41)."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.arguments import store_untyped
from perdure.context import StepContext
from perdure.errors import Serialization
from perdure.flow import Flow
from perdure.step import Step

CONTEXT = StepContext("run-1", "s", "f", 1)
KINDS = inspect.Parameter


def step_of(function: Any) -> Step[..., Any]:
    return Flow().step(function)


def stored(function: Any, *args: Any, **named: Any) -> bytes:
    return step_of(function).binding.store(args, named)


# -- the stored form ------------------------------------------------------------------------------------------------


def charge(order: Any, amount: int = 1, *, step: StepContext, note: str = "") -> None: ...
def late(step: StepContext, order: Any, amount: int = 1) -> None: ...
def default(order: int = 5) -> None: ...
def optional(order: int | None = None) -> None: ...
def several(first: Any, *rest: Any, **others: Any) -> None: ...
def nothing(step: StepContext) -> None: ...
def positional(order: Any, /, **others: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "named", "raw"),
    [
        (charge, (7,), {}, b"7"),
        (charge, (), {"order": {"a": 1}}, b'{"a":1}'),
        (charge, ([1], 2), {}, b'{"$args":{"order":[1],"amount":2}}'),
        (charge, (1,), {"note": "n"}, b'{"$args":{"order":1,"note":"n"}}'),
        (late, (7,), {}, b"7"),
        (late, (7, 8), {}, b'{"$args":{"order":7,"amount":8}}'),
        (nothing, (), {}, b"null"),
        (default, (), {}, b"null"),
        (default, (6,), {}, b"6"),
        (default, (None,), {}, b'{"$args":{"order":null}}'),
        (optional, (None,), {}, b"null"),
        (charge, ({"$args": {"order": 1}},), {}, b'{"$args":{"order":{"$args":{"order":1}}}}'),
        (charge, ({"$args": 1},), {}, b'{"$args":1}'),
        (charge, (["$args"],), {}, b'["$args"]'),
        (several, (1, 2, 3), {}, b'{"$args":{"first":1,"rest":[2,3]}}'),
        (several, (1,), {"rest": 2, "x": 3}, b'{"$args":{"first":1,"x":3,"**":{"rest":2}}}'),
        (positional, (1,), {"order": 2}, b'{"$args":{"order":1,"**":{"order":2}}}'),
    ],
)  # fmt: skip
def test_what_is_stored(function: Any, args: tuple[Any, ...], named: dict[str, Any], raw: bytes) -> None:
    assert stored(function, *args, **named) == raw


def test_a_parameter_added_with_a_default_is_no_drift() -> None:
    def before(order: Any, amount: int = 1) -> None: ...
    def after(order: Any, amount: int = 1, express: bool = False, *, tags: tuple[str, ...] = ()) -> None: ...

    assert stored(before, {"id": 1}) == stored(after, {"id": 1})
    assert stored(before, {"id": 1}, 2) == stored(after, {"id": 1}, 2)


@pytest.mark.parametrize(
    ("function", "args", "named", "text"),
    [
        (charge, (), {}, "step 'charge': missing a required argument: 'order'"),
        (charge, (1, 2, 3), {}, "step 'charge': too many positional arguments"),
        (charge, (1,), {"typo": 1}, "step 'charge': got an unexpected keyword argument 'typo'"),
        (charge, (1,), {"step": CONTEXT}, "step 'charge': got an unexpected keyword argument 'step'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_as_python_would(
    function: Any, args: tuple[Any, ...], named: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError) as caught:
        stored(function, *args, **named)
    assert str(caught.value) == text


def test_what_the_engine_fills_cannot_be_given() -> None:
    def f(step: StepContext, **others: Any) -> None: ...

    with pytest.raises(TypeError, match="'step' is filled by the engine"):
        stored(f, step=1)


def test_a_value_that_json_cannot_hold_names_parameter_and_path() -> None:
    with pytest.raises(Serialization) as caught:
        stored(charge, {"items": [{"price": float("nan")}]})
    assert caught.value.detail.startswith("parameter 'order' of step 'charge': $.items[0].price: NaN")
    with pytest.raises(Serialization) as caught:
        stored(several, 1, 2, object())
    assert caught.value.detail.startswith("parameter 'rest' of step 'several': $[1]: type object")


def test_a_step_known_by_name_only() -> None:
    assert store_untyped((), {}) == b"null"
    assert store_untyped(({"a": 1},), {}) == b'{"a":1}'
    assert store_untyped((), {"b": 1, "a": None}) == b'{"$args":{"b":1,"a":null}}'
    for args, named in (((1, 2), {}), ((1,), {"a": 1}), (({"$args": {}},), {})):
        with pytest.raises(TypeError, match="a step known only by name"):
            store_untyped(args, named)


@dataclass
class Order:
    id: int


def test_what_a_call_returns() -> None:
    async def one() -> list[Order]:
        raise NotImplementedError

    def none() -> None: ...
    def untyped():  # type: ignore[no-untyped-def]  # a step without annotations is the case
        ...

    assert step_of(one).binding.returns == list[Order]
    assert step_of(none).binding.returns is type(None)
    assert step_of(untyped).binding.returns is Any


# -- against Python's own binding -----------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d", "e"]
values = st.none() | st.integers(-3, 3) | st.sampled_from([[], {"$args": {}}, {"$args": {"a": 1}}, "x", [1, None]])


@st.composite
def signatures(draw: st.DrawFn) -> str:
    """The parameters of a function as source, a `StepContext` anywhere among them."""
    names = draw(st.permutations(NAMES))[: draw(st.integers(0, 5))]
    counts = [draw(st.integers(0, len(names))) for _ in range(2)]
    positional_only, by_name = min(counts), max(counts)
    context = draw(st.integers(-1, len(names) - 1))
    defaulted = False
    parts: list[str] = []
    for index, name in enumerate(names):
        if index == positional_only and index:
            parts.append("/")
        if index == by_name:
            parts.append(draw(st.sampled_from(["*", "*rest"])))
            defaulted = False
        defaulted = draw(st.booleans()) if index >= by_name else defaulted or draw(st.booleans())
        kind = ": StepContext" if index == context else ""
        parts.append(f"{name}{kind}" + (f" = {draw(st.sampled_from(['None', '1', '[]']))}" if defaulted else ""))
    if positional_only and positional_only == len(names):
        parts.append("/")
    if by_name == len(names) and draw(st.booleans()):
        parts.append("*rest")
    if draw(st.booleans()):
        parts.append("**others")
    return ", ".join(parts)


drawn_names = st.sampled_from([*NAMES, "x", "rest", "others", "**"])


@given(signatures(), st.lists(values, max_size=5), st.dictionaries(drawn_names, values, max_size=4))
def test_any_call_of_any_signature(parameters: str, args: list[Any], named: dict[str, Any]) -> None:
    space: dict[str, Any] = {"StepContext": StepContext}
    source = f"def f({parameters}): return locals()"
    exec(compile(source, "<drawn>", "exec", dont_inherit=True), space)  # noqa: S102 - the only way to any signature
    function = space["f"]
    step = step_of(function)
    context_at = [p for p in inspect.signature(function).parameters.values() if p.annotation is StepContext]
    try:
        expected = called(function, context_at, args, named)
    except TypeError:
        with pytest.raises(TypeError):
            step.binding.store(tuple(args), named)
        return
    raw = step.binding.store(tuple(args), named)
    given_args, given_named = step.binding.arguments(raw, CONTEXT)
    assert listed(function(*given_args, **given_named)) == listed(expected)


def called(function: Any, context_at: list[inspect.Parameter], args: list[Any], named: dict[str, Any]) -> Any:
    """Python's own binding of the same call, the context put where its parameter stands."""
    whole = inspect.signature(function)
    if any(p.name in named for p in context_at):
        raise TypeError
    others = [p for p in whole.parameters.values() if p not in context_at]
    bound = whole.replace(parameters=others).bind(*args, **named)
    bound.apply_defaults()
    return {name: bound.arguments.get(name, CONTEXT) for name in whole.parameters}


def listed(value: Any) -> Any:
    """Arguments with tuples as lists, as JSON has no tuples."""
    return {name: list(member) if isinstance(member, tuple) else member for name, member in value.items()}
