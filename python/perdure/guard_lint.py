"""The lint of workflow bodies: reads the source of a workflow when it is registered and says what a replay would see
differently. It also reads helper functions of the same module that the workflow calls by name.

A line with the comment `# perdure: allow` is left alone; on a `def` line, the whole function.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import random
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any, Final

from perdure.arguments import underlying
from perdure.guard_names import MISSING, Names, own_nodes
from perdure.guard_rules import MUST_BE_AWAITED, RANDOM, Rule, rule_of
from perdure.step import Step

__all__ = ["ALLOW", "Finding", "findings"]

ALLOW: Final = "# perdure: allow"
_ORDERLESS: Final = frozenset(
    f"builtins.{name}" for name in ("all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum")
)
"""Builtins for which the order of a set makes no difference."""
_SETS: Final = frozenset({"builtins.set", "builtins.frozenset"})
_ORDERING: Final = frozenset(
    f"builtins.{name}" for name in ("list", "tuple", "enumerate", "iter", "zip", "map", "filter")
)
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in workflow code: file, line, the rule's code and what to do about it."""

    file: str
    line: int
    code: str
    text: str


def findings(function: Any) -> list[Finding]:
    """What the lint has to say of a workflow; nothing where its source cannot be found or read."""
    found: list[Finding] = []
    waiting, seen = [underlying(function)], set()
    while waiting:
        current = waiting.pop()
        if not isinstance(current, FunctionType) or current.__code__ in seen:
            continue
        seen.add(current.__code__)
        try:
            lint = _Lint(current, is_first=len(seen) == 1)
            lint.run()
        except (OSError, SyntaxError, ValueError, RecursionError):  # no source, or not the one that runs
            continue
        found += lint.found
        waiting += lint.helpers
    return sorted(found, key=lambda f: (f.file, f.line, f.code))


@lru_cache(maxsize=4)
def _definitions(lines: tuple[str, ...]) -> dict[tuple[str, int], list[_Function]]:
    """The functions of a file by name and first line, that of the first decorator; all lambdas of a line together."""
    found: dict[tuple[str, int], list[_Function]] = {}
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault((node.name, first), []).append(node)
    return found


class _Lint(ast.NodeVisitor):
    def __init__(self, function: FunctionType, is_first: bool) -> None:
        self._file = function.__code__.co_filename
        self._lines = linecache.getlines(self._file, function.__globals__)
        self._names = Names(function)
        self._function = function
        self._contexts = [self._context_of(function)] if is_first else []
        self._sets: list[set[str]] = []
        self._statement: tuple[int, int] | None = None  # the lines of the statement under way, if it has no body
        self._orderless: set[int] = set()
        self.found: list[Finding] = []
        self.helpers: list[FunctionType] = []

    @staticmethod
    def _context_of(function: FunctionType) -> str:
        code = function.__code__
        return code.co_varnames[0] if code.co_argcount else ""

    def run(self) -> None:
        code = self._function.__code__
        for node in _definitions(tuple(self._lines)).get((code.co_name, code.co_firstlineno), ()):
            self._scope(node)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            simple = not isinstance(node, ast.ExceptHandler) and not hasattr(node, "body")
            self._statement = (node.lineno, node.end_lineno or node.lineno) if simple else None
        super().visit(node)

    # -- scopes --------------------------------------------------------------------------------------------------

    def _scope(self, node: _Function) -> None:
        if self._is_allowed(node.lineno, node.lineno):
            return
        given = len(self._contexts)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self._contexts += [
            a.arg for a in arguments if a.annotation is not None and _last_name(a.annotation) == "AsyncContext"
        ]
        self._names.enter(node)
        self._sets.append(self._set_names(node))
        for part in [node.body] if isinstance(node, ast.Lambda) else node.body:
            self.visit(part)
        self._sets.pop()
        self._names.leave()
        del self._contexts[given:]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._scope(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._scope(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._scope(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    # -- names ---------------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        self._check_name(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._check_name(node):
            self.visit(node.value)

    def _check_name(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether the name is known, so that nothing below it needs a look."""
        name, value = self._names.resolve(node)
        if name is None or not isinstance(node.ctx, ast.Load):
            return False
        rule = rule_of(name)
        if rule is not None and not _is_harmless(name, value):
            self._report(node, rule, name.removeprefix("builtins."))
            return True
        return False

    # -- calls ---------------------------------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call) and not self._lacks_await(call):
            name, value = self._names.resolve(call.func)
            if name is not None and inspect.iscoroutinefunction(value):
                self._report(
                    call, Rule("await", "it does nothing until it is awaited"), f"{name.rpartition('.')[2]}(…)"
                )
        self.generic_visit(node)

    def _lacks_await(self, call: ast.Call) -> bool:
        func = call.func
        if not (isinstance(func, ast.Attribute) and func.attr in MUST_BE_AWAITED and isinstance(func.value, ast.Name)):
            return False
        if func.value.id not in self._contexts or not inspect.iscoroutinefunction(self._function):
            return False
        self._report(call, Rule("await", "it does nothing until it is awaited"), f"{func.value.id}.{func.attr}(…)")
        return True

    def visit_Call(self, node: ast.Call) -> None:
        name, value = self._names.resolve(node.func)
        if isinstance(value, Step):
            advice = "called like this it runs inside the workflow, on every replay; give it to ctx.step or ctx.schedule_step"
            self._report(node, Rule("step-call", advice), f"step {value.name!r}")
        elif isinstance(value, FunctionType) and value.__globals__ is self._function.__globals__:
            self.helpers.append(value)
        if name in _ORDERLESS:
            self._orderless |= {id(argument) for argument in node.args}
        elif name in _ORDERING or (isinstance(node.func, ast.Attribute) and node.func.attr == "join"):
            for argument in node.args:
                self._check_order(argument)
        if name == "random.Random" and value is random.Random and not node.args:  # seeded, it repeats its numbers
            self._report(node, RANDOM, "random.Random()")
        self.generic_visit(node)

    # -- the order of sets ---------------------------------------------------------------------------------------

    def _set_names(self, scope: _Function) -> set[str]:
        """The names that only ever hold sets in this scope."""
        sets: set[str] = set()
        others: set[str] = set()
        for node in own_nodes(scope):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {target.id for target in targets if isinstance(target, ast.Name)}
                is_set = self._is_set(node.value) or (
                    isinstance(node, ast.AnnAssign) and _last_name(node.annotation) in ("set", "frozenset")
                )
                (sets if is_set else others).update(names)
        return sets - others

    def _is_set(self, node: ast.expr | None) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Call):
            return self._names.resolve(node.func)[0] in _SETS
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
            return self._is_set(node.left) or self._is_set(node.right)
        return isinstance(node, ast.Name) and any(node.id in names for names in self._sets)

    def _check_order(self, node: ast.expr) -> None:
        if self._is_set(node):
            advice = "a set has another order in another process; iterate over sorted(…)"
            self._report(node, Rule("set-order", advice), "iteration over a set")

    def visit_For(self, node: ast.For) -> None:
        self._check_order(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        if isinstance(node.ctx, ast.Load):
            self._check_order(node.value)
        self.generic_visit(node)

    def _visit_comprehension(self, node: _Comprehension) -> None:
        if not isinstance(node, ast.SetComp) and id(node) not in self._orderless:
            for generator in node.generators:
                self._check_order(generator.iter)
        self._names.enter(node)
        self.generic_visit(node)
        self._names.leave()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815 - the visitor's own names

    # -- handlers ------------------------------------------------------------------------------------------------

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        catches_all = node.type is None or self._names.resolve(node.type)[0] == "builtins.BaseException"
        last = node.body[-1]
        if catches_all and not (isinstance(last, ast.Raise) and last.exc is None):
            what = "a bare except" if node.type is None else "except BaseException"
            advice = (
                "it also catches what ends the pass, such as WorkflowCancelled; catch Exception, or end it with raise"
            )
            self._report(node, Rule("bare-except", advice), what)
        self.generic_visit(node)

    # -- reports -------------------------------------------------------------------------------------------------

    def _report(self, node: ast.expr | ast.ExceptHandler, rule: Rule, what: str) -> None:
        last = node.lineno if isinstance(node, ast.ExceptHandler) else node.end_lineno or node.lineno
        first, last = self._statement or (node.lineno, last)
        if not self._is_allowed(first, last):
            where = f"in {self._function.__qualname__}"
            self.found.append(Finding(self._file, node.lineno, rule.code, f"{what} {where}: {rule.advice}"))

    def _is_allowed(self, first: int, last: int) -> bool:
        return any(ALLOW in line for line in self._lines[first - 1 : last])


def _last_name(node: ast.expr) -> str:
    """The last part of an annotation's name, of the origin for `set[int]`, also if it is written as text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.partition("[")[0].rpartition(".")[2].strip()
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_harmless(name: str, value: object) -> bool:
    """Exceptions to catch, classes to name, and modules on the way to something else."""
    if name.startswith("asyncio.") or name == "random.SystemRandom":
        return False
    return (isinstance(value, type) and (issubclass(value, BaseException) or name == "random.Random")) or _is_module(
        value
    )


def _is_module(value: object) -> bool:
    return value is not MISSING and inspect.ismodule(value)
