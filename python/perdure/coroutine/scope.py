"""What `ctx.scope` puts before ids (R35)."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final

__all__ = ["SCOPE", "Scope"]

SCOPE: Final[ContextVar[str]] = ContextVar("perdure_scope", default="")
"""The prefix; each chain has its own copy of it."""


class Scope:
    """`with ctx.scope(name):` puts `name/` before the ids of what is asked for inside."""

    __slots__ = ("_name", "_token")

    def __init__(self, name: Any) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"a scope has a name, and {name!r} is none")
        self._name = name
        self._token: Token[str] | None = None

    def __enter__(self) -> None:
        self._token = SCOPE.set(f"{SCOPE.get()}{self._name}/")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._token is not None:
            with suppress(ValueError):  # a coroutine that is collected, in nobody's context
                SCOPE.reset(self._token)
