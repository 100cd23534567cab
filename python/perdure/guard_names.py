"""What a name in a function's source stands for, without running any of it: `dt.now` of `from datetime import datetime as
dt` is `datetime.datetime.now`."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import random
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Final, cast

from perdure.guard_rules import rule_of

__all__ = ["MISSING", "Names", "bound_names", "own_nodes"]

MISSING: Final = object()
_NAMED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_PUBLIC: Final = {"posix": "os", "nt": "os", "_io": "io", "_socket": "socket"}
"""Where the functions of these modules are known from."""
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Names:
    """The names a function sees: its closure, the globals of its module, the builtins; and what it imports itself."""

    def __init__(self, function: FunctionType) -> None:
        self._globals = function.__globals__
        self._closure: dict[str, Any] = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._closure[name] = cell.cell_contents
            except ValueError:  # assigned further down
                self._closure[name] = MISSING
        self._scopes: list[tuple[set[str], dict[str, str]]] = []

    def enter(self, node: ast.AST) -> None:
        """The names of this function, lambda or comprehension hide those outside."""
        self._scopes.append((bound_names(node), _imports(node)))

    def leave(self) -> None:
        self._scopes.pop()

    def resolve(self, node: ast.expr) -> tuple[str | None, Any]:
        """The dotted name of a name or attribute, and the object it is; None and MISSING where that is not known."""
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if not isinstance(node, ast.Attribute):
            return None, MISSING
        name, owner = self.resolve(node.value)
        if name is None:
            return None, MISSING
        member = MISSING
        if isinstance(owner, ModuleType):
            member = vars(owner).get(node.attr, MISSING)
        elif isinstance(owner, type):
            member = inspect.getattr_static(owner, node.attr, MISSING)
        return self._called(f"{name}.{node.attr}", member), member

    def _name(self, name: str) -> tuple[str | None, Any]:
        for bound, imported in reversed(self._scopes):
            if name in imported:
                return imported[name], MISSING
            if name in bound:
                return None, MISSING
        for space in (self._closure, self._globals, vars(builtins)):
            if name in space:
                value = space[name]
                return self._called(f"builtins.{name}" if space is vars(builtins) else None, value), value
        return None, MISSING

    @staticmethod
    def _called(default: str | None, value: object) -> str | None:
        """An object's own dotted name, whatever it is called here."""
        if isinstance(value, ModuleType):
            return value.__name__
        if type(value).__module__ == "perdure.guard_calls":  # wrapped by guard="raise"
            value = cast(Any, value).__wrapped__
        owner = getattr(value, "__self__", None) if inspect.isroutine(value) else None
        if isinstance(owner, random.Random):
            return f"random.{getattr(value, '__name__', '')}"
        if inspect.isclass(value) or (inspect.isroutine(value) and not isinstance(owner, type)):
            module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
            if isinstance(module, str) and isinstance(qualname, str) and "<" not in qualname:
                return f"{_PUBLIC.get(module, module)}.{qualname}"
        if value is os.environ:
            return "os.environ"
        kind = type(value)
        of_kind = f"{kind.__module__}.{kind.__qualname__}"  # a client or a generator that was made outside
        return of_kind if default is None and rule_of(of_kind) is not None else default


def bound_names(scope: ast.AST) -> set[str]:
    """The names a scope binds by itself: parameters, assignments, loops, imports, definitions; not what it declares
    global or nonlocal."""
    found: set[str] = set()
    outside: set[str] = set()
    if isinstance(scope, Scope):
        arguments = scope.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        found |= {argument.arg for argument in every if argument is not None}
    for node in own_nodes(scope):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, _NAMED):
            found.add(node.name or "")
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outside |= set(node.names)
    return found - outside


def _imports(scope: ast.AST) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in own_nodes(scope):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    return found


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope but not of the functions, classes and lambdas inside it."""
    waiting = list(_parts(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Scope | ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            waiting += ast.iter_child_nodes(node)


def _parts(scope: ast.AST) -> Iterator[ast.AST]:
    if isinstance(scope, ast.Lambda):
        yield scope.body
    elif isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from scope.body
    else:
        yield from ast.iter_child_nodes(scope)
