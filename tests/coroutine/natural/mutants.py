"""Changed versions of a workflow: statements removed, doubled, swapped or put in; steps, ids, arguments, delays, policies
changed; members of groups swapped."""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from perdure import Flow, RetryPolicy
from perdure.coroutine.workflow import AsyncWorkflow
from perdure.step import Step

__all__ = ["Mutant", "mutants", "unchanged"]

_new = Flow(guard="off")


@_new.step
def new_step(item: Any = None) -> Any:
    return item


@_new.step
def other_step(
    a: Any = None, b: Any = None, *, cents: Any = None, text: Any = None, turn: Any = None, job: Any = None
) -> Any:
    return a


_ADDED = {"new_step": new_step, "other_step": other_step, "other_policy": RetryPolicy.fixed(7)}
_Change = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """What was changed, and the flow and workflow that hold the change, under the old name and version."""

    label: str
    flow: Flow
    workflow: AsyncWorkflow[..., Any]


def unchanged(original: AsyncWorkflow[..., Any]) -> Mutant:
    """The same code, compiled anew."""
    return _compiled(original, _tree(original), "unchanged")


def mutants(original: AsyncWorkflow[..., Any]) -> list[Mutant]:
    """Every change of one place. Left out are loops that would turn without an await, which nothing ends, and generators
    that would be none any more, which nobody would await."""
    tree = _tree(original)
    found = []
    for number, node in enumerate(ast.walk(tree)):
        for label, change in _changes(node, original.function.__globals__):
            copy = deepcopy(tree)
            change(list(ast.walk(copy))[number])
            if _turns_with_an_await(copy) and _generators(copy) == _generators(tree):
                found.append(_compiled(original, copy, f"{label} (line {getattr(node, 'lineno', 0)})"))
    return found


def _tree(original: AsyncWorkflow[..., Any]) -> ast.Module:
    tree = ast.parse(textwrap.dedent(inspect.getsource(original.function)))
    function = tree.body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    function.decorator_list = []
    _mark_async(function, True)
    return tree


def _mark_async(node: ast.AST, may_await: bool) -> None:
    """Notes at each node whether an `await` may stand there."""
    for child in ast.iter_child_nodes(node):
        inside = may_await
        if isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            inside = False
        elif isinstance(child, ast.AsyncFunctionDef):
            inside = True
        _mark_async(child, inside)
    node.may_await = may_await  # type: ignore[attr-defined]  # ours


def _compiled(original: AsyncWorkflow[..., Any], tree: ast.Module, label: str) -> Mutant:
    ast.fix_missing_locations(tree)
    names = {**original.function.__globals__, **_ADDED}
    code = compile(tree, "<mutant>", "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    exec(code, names)  # noqa: S102  # our own source, changed by us
    flow = Flow(guard="off")
    register: Any = flow.workflow(original.name, version=original.version, fails_on=original.fails_on)
    return Mutant(label, flow, register(names[original.function.__name__]))


def _turns_with_an_await(tree: ast.AST) -> bool:
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    return all(any(isinstance(inner, ast.Await | ast.AsyncFor) for inner in ast.walk(loop)) for loop in loops)


def _generators(tree: ast.AST) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    return sorted({f.name for f in functions if any(isinstance(inner, ast.Yield) for inner in ast.walk(f))})


# -- changes -----------------------------------------------------------------------------------------------------------


def _changes(node: ast.AST, names: dict[str, Any]) -> Iterator[tuple[str, _Change]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list) and not isinstance(node, ast.Module):
            yield from _of_block(block, field, getattr(block[0], "may_await", False) if block else False)
    if isinstance(node, ast.Call):
        yield from _of_call(node, names)


def _of_block(block: list[ast.stmt], field: str, may_await: bool) -> Iterator[tuple[str, _Change]]:
    for index, statement in enumerate(block):
        where = f"{field}[{index}] {type(statement).__name__}"
        yield f"remove {where}", _removing(field, index)
        if not isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"double {where}", _doubling(field, index)
        if index + 1 < len(block):
            yield f"swap {where}", _swapping(field, index)
        if may_await:
            yield f"insert a step before {where}", _inserting(field, index, 'await ctx.step(new_step, "new")')
            yield f"start a step before {where}", _inserting(field, index, 'ctx.start(new_step, "new")')


def _removing(field: str, index: int) -> _Change:
    def change(node: ast.AST) -> None:
        block = getattr(node, field)
        block[index : index + 1] = [] if len(block) > 1 else [ast.Pass()]

    return change


def _doubling(field: str, index: int) -> _Change:
    return lambda node: getattr(node, field).insert(index, deepcopy(getattr(node, field)[index]))


def _swapping(field: str, index: int) -> _Change:
    def change(node: ast.AST) -> None:
        block = getattr(node, field)
        block[index], block[index + 1] = block[index + 1], block[index]

    return change


def _inserting(field: str, index: int, source: str) -> _Change:
    return lambda node: getattr(node, field).insert(index, ast.parse(source).body[0])


_DELAYED = {"sleep": 0, "timer": 0, "timeout": 0, "wait_for": 1}


def _of_call(call: ast.Call, names: dict[str, Any]) -> Iterator[tuple[str, _Change]]:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return
    name = function.attr
    for index, keyword in enumerate(call.keywords):
        if keyword.arg in ("id", "token"):
            yield f"another {keyword.arg} of {name}", _argument("keywords", index, '_ + "-renamed"')
        elif keyword.arg in ("metadata", "text", "cents"):
            yield f"another {keyword.arg} of {name}", _argument("keywords", index, '(_, "changed")[1]')
        elif keyword.arg == "retry":
            yield f"another policy of {name}", _argument("keywords", index, "other_policy")
    if name in ("step", "start") and call.args and isinstance(call.args[0], ast.Name):
        if isinstance(names.get(call.args[0].id), Step):
            yield f"another step in {name}", _argument("args", 0, "other_step")
            yield f"a policy in {name}", _argument("args", 0, "_.options(retry=other_policy)")
            yield f"an id in {name}", _argument("args", 0, '_.options(id="renamed")')
        for index in range(1, len(call.args)):
            if not isinstance(call.args[index], ast.Starred):
                yield f"another argument {index} of {name}", _argument("args", index, '(_, "changed")[1]')
    elif name in _DELAYED and len(call.args) > _DELAYED[name]:
        yield f"another delay of {name}", _argument("args", _DELAYED[name], "_ * 2")
    elif name == "sleep_until" and isinstance(call.args[0], ast.Constant):
        yield f"another date of {name}", _argument("args", 0, '"2028-01-01T00:00:00Z"')
    elif name in ("gather", "race", "as_completed"):
        for index in range(len(call.args) - 1):
            if not any(isinstance(arg, ast.Starred) for arg in call.args[index : index + 2]):
                yield f"swap members {index} of {name}", _members(index)


def _argument(field: str, index: int, source: str) -> _Change:
    """Replaces an argument; `_` in the source is the old one."""

    def change(node: ast.AST) -> None:
        found = getattr(node, field)
        old = found[index].value if field == "keywords" else found[index]

        class Put(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.AST:
                return old if name.id == "_" else name

        made = Put().visit(ast.parse(source, mode="eval").body)
        if field == "keywords":
            found[index].value = made
        else:
            found[index] = made

    return change


def _members(index: int) -> _Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Call)
        node.args[index], node.args[index + 1] = node.args[index + 1], node.args[index]

    return change
