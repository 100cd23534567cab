"""The registry, and the runtime it is: look-up, arguments of steps, answers of workflows (R41, R54, R56, R57)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Any, cast

import pytest

from authoring.fakes import ask, attempt, wire
from perdure.blocking import BlockingFlowEngine
from perdure.commands import RawCommand, RuntimeCommand
from perdure.context import StepContext, WorkflowContext
from perdure.errors import Serialization, StepNotRegistered, WorkflowNotRegistered
from perdure.flow import Flow, FlowRuntime, SpecSource, StepPlan, StepPlanner
from perdure.model import RetryPolicy, WorkflowSpec


@dataclass
class Order:
    id: int
    note: str = ""


@pytest.fixture
def flow() -> Flow:
    return Flow()


# -- registration -----------------------------------------------------------------------------------------------------


def test_a_step_stays_callable_and_keeps_its_name(flow: Flow) -> None:
    @flow.step
    def double(value: int) -> int:
        """Twice."""
        return 2 * value

    assert double(4) == 8
    assert (double.name, double.__doc__, double.__name__) == ("double", "Twice.", "double")  # type: ignore[attr-defined]  # set by update_wrapper
    assert flow.find_step("double") is double
    assert "test_flow.py" in repr(double)


def test_plans(flow: Flow) -> None:
    policy = RetryPolicy.fixed(2)

    @flow.step
    def plain() -> None: ...

    @flow.step(name="other", retry=policy, timeout=timedelta(seconds=2))
    async def waits() -> None: ...

    @flow.step(inline=True)
    def here() -> None: ...

    assert flow.plan_step("plain") == StepPlan("thread", None, None)
    assert flow.plan_step("other") == StepPlan("async", 2000, policy)
    assert flow.plan_step("here") == StepPlan("inline", None, None)
    assert set(flow.steps) == {"plain", "other", "here"}
    with pytest.raises(StepNotRegistered) as caught:
        flow.plan_step("waits")
    assert caught.value.step_name == "waits"


def test_a_name_is_registered_once(flow: Flow) -> None:
    @flow.step
    def same() -> None: ...

    with pytest.raises(
        ValueError, match=r"'same' is registered twice: at .*test_flow.py:\d+ and at .*test_flow.py:\d+"
    ):
        flow.step(name="same")(lambda: None)

    @flow.workflow("w", version="1")
    def first(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(1)

    with pytest.raises(ValueError, match=r"'w' version '1' is registered twice: at .*test_flow.py:\d+ and at"):
        flow.workflow("w")(first.function)


def test_what_cannot_run_is_refused_where_it_is_declared(flow: Flow) -> None:
    async def waits() -> None: ...

    with pytest.raises(ValueError, match="is an async def and so cannot run inline"):
        flow.step(inline=True)(waits)
    with pytest.raises(ValueError, match="has a timeout and so cannot run inline"):
        flow.step(inline=True, timeout=timedelta(1))(lambda: None)
    with pytest.raises(ValueError, match="timeout must be at least 1 ms"):
        flow.step(timeout=timedelta(0))(lambda: None)
    with pytest.raises(TypeError, match="is no async def, so fails_on means nothing to it"):
        flow.workflow("w", fails_on=(ValueError,))(lambda ctx: ctx.complete(1))

    async def yields(ctx: Any) -> Any:
        yield 1

    with pytest.raises(TypeError, match="yields; an async workflow returns its output"):
        flow.workflow("w")(yields)
    with pytest.raises(TypeError, match=r"workflow 'w' at .*test_flow.py:\d+ has no parameter for its context"):
        flow.workflow("w")(cast(Any, lambda *, order: None))
    with pytest.raises(TypeError, match="fails_on of workflow 'w' is a tuple of exception classes"):
        flow.workflow("w", fails_on=cast(Any, ValueError))
    with pytest.raises(TypeError, match="parameter 'bad' of step 'odd' has a type that JSON cannot become"):

        @flow.step
        def odd(bad: list[int] | set[int]) -> None: ...


def test_look_up_by_name_and_version(flow: Flow) -> None:
    @flow.workflow("w", version="1")
    def one(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(1)

    assert flow.spec_of("w") == flow.spec_of(one) == flow.spec_of(one.function) == WorkflowSpec.python("w", "1")

    @flow.workflow("w", version="2")
    def two(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(2)

    assert [wire(flow.run_workflow(ask("w", v))) for v in "12"] == [wire(one(cast(Any, WC))), wire(two(cast(Any, WC)))]
    assert set(flow.workflows) == {("w", "1"), ("w", "2")}
    assert flow.spec_of(two).version == "2"
    spec = WorkflowSpec.python("elsewhere")
    assert flow.spec_of(spec) is spec
    with pytest.raises(ValueError, match="means several workflows"):
        flow.spec_of("w")
    with pytest.raises(WorkflowNotRegistered):
        flow.spec_of("v")
    with pytest.raises(WorkflowNotRegistered) as caught:
        flow.run_workflow(ask("w", "3"))
    assert caught.value.args == ("w", "3", (("w", "1"), ("w", "2")))


WC = WorkflowContext(cast(Any, None), list)


def test_a_flow_is_a_runtime(flow: Flow) -> None:
    roles: tuple[FlowRuntime, StepPlanner, SpecSource] = (flow, flow, flow)
    assert all(role is flow for role in roles)


# -- asking workflows -------------------------------------------------------------------------------------------------


def test_what_a_workflow_raises_passes_through(flow: Flow) -> None:
    @flow.workflow("w", version="7")
    def broken(ctx: WorkflowContext) -> RuntimeCommand:
        raise KeyError("price")

    with pytest.raises(KeyError, match="price"):
        flow.run_workflow(ask("w", "7"))


def test_a_raw_command_is_a_command(flow: Flow) -> None:
    flow.workflow("w")(lambda ctx: RawCommand(b"7"))
    assert flow.run_workflow(ask("w")).to_json() == b"7"


# -- calling steps ----------------------------------------------------------------------------------------------------


def register(flow: Flow) -> None:
    @flow.step
    def nothing() -> str:
        return "called"

    @flow.step
    def one(order: Order) -> Any:
        return order

    @flow.step
    def untyped(value):  # type: ignore[no-untyped-def]  # a step without annotations is the case
        return value

    @flow.step
    def optional(value: int | None) -> Any:
        return value

    @flow.step
    def default(value: int = 5, other: str = "o") -> Any:
        return value, other

    @flow.step
    def several(order: Order, /, ctx: StepContext, count: int = 1, *, tags: tuple[str, ...] = ()) -> Any:
        return order, ctx.attempt, count, tags

    @flow.step
    def around(ctx: StepContext | None = None) -> Any:
        return ctx and ctx.step_id

    @flow.step
    def anything(**values: int) -> Any:
        return values


@pytest.mark.parametrize(
    ("step", "raw", "result"),
    [
        ("nothing", b"null", "called"),
        ("nothing", b' null ', "called"),
        ("nothing", b'{"$args":{}}', "called"),
        ("one", b'{"id":1}', Order(1)),
        ("one", b'{"$args":{"order":{"id":1,"note":"n"}}}', Order(1, "n")),
        ("untyped", b'{"a":18446744073709551616}', {"a": 2**64}),
        ("untyped", b'{"$args":{"value":{"$args":{}}}}', {"$args": {}}),
        ("untyped", b'{"$args":{},"other":1}', {"$args": {}, "other": 1}),
        ("untyped", b'["$args"]', ["$args"]),
        ("untyped", b'{"$args":7}', {"$args": 7}),
        ("optional", b"null", None),
        ("optional", b"3", 3),
        ("default", b"null", (5, "o")),
        ("default", b"6", (6, "o")),
        ("default", b'{"$args":{"other":"p"}}', (5, "p")),
        ("several", b'{"id":1}', (Order(1), 3, 1, ())),
        ("several", b'{"$args":{"tags":["x"],"order":{"id":1},"count":2}}', (Order(1), 3, 2, ("x",))),
        ("around", b"null", "s"),
        ("anything", b'{"$args":{"a":1,"b":2}}', {"a": 1, "b": 2}),
    ],
)  # fmt: skip
def test_stored_input_becomes_arguments(flow: Flow, step: str, raw: bytes, result: object) -> None:
    register(flow)
    assert flow.run_step(attempt(step, raw, 3)) == result


@pytest.mark.parametrize(
    ("step", "raw", "detail"),
    [
        ("nothing", b"{}", "$: step 'nothing' takes no input"),
        ("nothing", b'{"$args":{"a":1}}', "$: step 'nothing' has no parameter 'a'"),
        ("one", b"null", "parameter 'order' of step 'one': $: Expected `object`, got `null`, decoding Order"),
        ("one", b'{"id":"canary"}', "parameter 'order' of step 'one': $.id: Expected `int`, got `str`"),
        ("one", b'{"$args":{}}', "$: step 'one' needs 'order'"),
        ("default", b'{"$args":{"value":1,"typo":2}}', "$: step 'default' has no parameter 'typo'"),
        ("around", b"1", "$: step 'around' takes no input"),
        ("untyped", b"1e400", "parameter 'value' of step 'untyped': $: a number is beyond"),
        ("anything", b'{"$args":{"a":"canary"}}', "parameter 'a' of step 'anything': $: Expected `int`, got `str`"),
    ],
)
def test_stored_input_that_does_not_fit_is_a_typed_error(flow: Flow, step: str, raw: bytes, detail: str) -> None:
    register(flow)
    with pytest.raises(Serialization) as caught:
        flow.run_step(attempt(step, raw))
    assert caught.value.rule == "payload"
    assert caught.value.detail.startswith(detail)
    assert "canary" not in str(caught.value)


def test_an_async_step_gives_an_awaitable(flow: Flow) -> None:
    @flow.step
    async def later(value: int) -> int:
        return value

    pending = cast(Any, flow.run_step(attempt("later", b"4")))
    with pytest.raises(StopIteration) as caught:
        pending.send(None)
    assert caught.value.value == 4


class Adder:
    def __init__(self, base: int) -> None:
        self.base = base

    def __call__(self, order: Order) -> int:
        return self.base + order.id

    async def later(self, order: Order) -> int:
        return self.base + order.id


class AsyncAdder(Adder):
    async def __call__(self, order: Order) -> int:  # type: ignore[override]  # the async twin is the case
        return self.base + order.id


def add(base: int, order: Order) -> int:
    return base + order.id


def test_partials_methods_and_callable_objects_can_be_steps(flow: Flow) -> None:
    flow.step(name="object")(Adder(1))
    flow.step(name="partial")(partial(add, 2))
    flow.step(name="async object")(AsyncAdder(3))
    flow.step(Adder(4).later)
    assert [flow.run_step(attempt(name, b'{"id":1}')) for name in ("object", "partial")] == [2, 3]
    assert [flow.plan_step(name).mode for name in ("object", "partial", "async object", "later")] == [
        *("thread", "thread", "async", "async")
    ]
    with pytest.raises(ValueError, match="give the step one by name="):
        flow.step(Adder(5))


def test_attributes_of_the_function_do_not_touch_the_step(flow: Flow) -> None:
    def marked() -> int:
        return 1

    marked.name, marked.plan = "other", None  # type: ignore[attr-defined]  # what a user may hang on a function
    step = flow.step(marked)
    assert (step.name, step.plan.mode) == ("marked", "thread")


def test_a_step_can_have_a_second_name(flow: Flow) -> None:
    @flow.step
    def one(order: Order) -> int:
        return order.id

    flow.step(name="two")(one)
    assert flow.run_step(attempt("two", b'{"id":1}')) == 1


def test_a_decorated_step_is_what_it_wraps(flow: Flow) -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **named: Any) -> Any:
            return function(*args, **named)

        return wrapper

    @flow.step
    @logged
    async def later(order: Order, ctx: StepContext) -> int:
        return order.id

    assert flow.plan_step("later").mode == "async"
    pending = cast(Any, flow.run_step(attempt("later", b'{"id":1}')))
    with pytest.raises(StopIteration) as caught:
        pending.send(None)
    assert caught.value.value == 1


def test_annotations_of_an_enclosing_function_are_found(flow: Flow) -> None:
    @dataclass
    class Local:
        a: int

    @flow.step
    def takes(value: Local) -> Any:
        return value

    @flow.step()
    def takes_too(value: Local) -> Any:
        return value

    for name in ("takes", "takes_too"):
        assert flow.run_step(attempt(name, b'{"a":1}')) == Local(1)


def test_annotations_may_name_what_is_defined_further_down(flow: Flow) -> None:
    flow.step(uses_later)
    assert flow.run_step(attempt("uses_later", b'{"a":1}')) == Later(1)


def uses_later(value: Later) -> Any:
    return value


@dataclass
class Later:
    a: int


def test_an_annotation_that_names_nothing_is_an_error_before_the_attempt(flow: Flow) -> None:
    def lost(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 that it names nothing is the case

    flow.step(lost)
    with pytest.raises(TypeError, match=r"step 'lost' at .*: an annotation cannot be resolved: name 'Nowhere'"):
        flow.plan_step("lost")


def test_a_step_not_registered(flow: Flow) -> None:
    with pytest.raises(StepNotRegistered):
        flow.run_step(attempt("none"))


def test_an_input_of_several_arguments_is_made_by_the_step(flow: Flow) -> None:
    """For the command form, whose commands hold one value."""

    @flow.step
    def add(a: int, b: int = 5) -> int:
        return a + b

    assert (add.input(1), add.input(1, b=2)) == (1, {"$args": {"a": 1, "b": 2}})
    with pytest.raises(TypeError, match="step 'add': missing a required argument: 'a'"):
        add.input()  # type: ignore[call-arg]  # what is tested
    with BlockingFlowEngine(flow) as engine:

        @flow.workflow("sum")
        def sum_up(ctx: WorkflowContext) -> RuntimeCommand:
            if not ctx.step_completed("add"):
                return ctx.schedule_step("add", add, add.input(1, b=2))
            return ctx.complete(ctx.step_output("add"))

        assert engine.run("sum").output == 3
