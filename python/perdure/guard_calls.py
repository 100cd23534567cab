"""`guard="raise"`: the calls themselves refuse while a workflow's pass runs.

The functions of `GATED` are wrapped where they stand, once per process, when the first flow asks for it; nothing is imported
anew and no module is replaced. A wrapper looks at a mark of its thread that is set only while a pass runs, which no other
task can interrupt: steps, other threads and other tasks never notice. It also looks at who calls: the standard library may
read the clock for its own ends, such as a log record. A line with `# perdure: allow` may call.

The mark is no context variable, as each chain of an async workflow runs in a context of its own.

What cannot be wrapped is left to the lint: `datetime.now`, `hash` and `id`, which are the interpreter's own, and functions
that a module has taken by `from time import time` before the first flow with this guard was made.
"""

from __future__ import annotations

import builtins
import io
import linecache
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from perdure.errors import FlowError
from perdure.guard_rules import rule_of

__all__ = ["GuardViolation", "install", "watching"]

_INSTALLED = threading.Lock()
_OWN: Final = ("perdure.",)
_EXEMPT: Final = ("logging", "importlib", "linecache", "tokenize", "traceback", "warnings", "zipimport")
"""Parts of the standard library that read clocks and files on behalf of nobody's logic."""

GATED: Final[tuple[tuple[object, str, tuple[str, ...]], ...]] = (
    (
        time,
        "time",
        (
            *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"),
            *("process_time_ns", "thread_time", "sleep"),
        ),
    ),
    (
        random,
        "random",
        (
            *("random", "uniform", "randint", "randrange", "choice", "choices", "sample", "shuffle", "getrandbits"),
            *("randbytes", "gauss", "normalvariate", "expovariate", "betavariate", "triangular", "seed"),
        ),
    ),
    (secrets, "secrets", ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice")),
    (uuid, "uuid", ("uuid1", "uuid4")),
    (os, "os", ("urandom", "getenv")),
    (builtins, "builtins", ("open", "input")),
    (io, "io", ("open",)),
    (socket, "socket", ("create_connection", "getaddrinfo", "gethostbyname")),
)
_METHODS: Final[tuple[tuple[type, str, str], ...]] = (
    (type(os.environ), "__getitem__", "os.environ"),
    (socket.socket, "__init__", "socket.socket"),
    (subprocess.Popen, "__init__", "subprocess.Popen"),
)
_DEEP: Final = frozenset({"os.environ", "socket.socket", "subprocess.Popen", "builtins.open", "io.open"})
"""What is reached through other functions of the standard library, such as `Path.read_text`."""


class GuardViolation(FlowError):
    """A workflow of a `Flow(guard="raise")` called what a replay cannot repeat. The run is left open. `call` is the
    function, `place` file and line of the call."""

    code = "guard_violation"

    def __init__(self, call: str, place: str, advice: str) -> None:
        super().__init__(call, place, advice)
        self.call, self.place, self.advice = call, place, advice

    def __str__(self) -> str:
        return f"{self.place}: {self.call} was called in a workflow: {self.advice}"


class _Pass(threading.local):
    """Of each thread: whether a pass runs on it, and what it called first."""

    runs = False
    violation: GuardViolation | None = None


_PASS: Final = _Pass()


class _Gate:
    """A wrapped function. Not a function itself: as a class attribute it must not become a method, as builtins do not."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__module__, _, self.__name__ = name.rpartition(".")
        self.__qualname__ = self.__name__
        self._name = name

    def __call__(self, *args: Any, **named: Any) -> Any:
        if _PASS.runs:
            _refuse(self._name, sys._getframe(1))
        return self.__wrapped__(*args, **named)

    def __reduce__(self) -> str:
        return self.__qualname__


def install() -> None:
    """Wraps what `guard="raise"` watches; once per process."""
    with _INSTALLED:
        if isinstance(time.time, _Gate):
            return
        for owner, prefix, names in GATED:
            for name in names:
                if (function := getattr(owner, name, None)) is not None:
                    setattr(owner, name, _Gate(function, f"{prefix}.{name}"))
        for kind, method, name in _METHODS:
            setattr(kind, method, _gated_method(getattr(kind, method), name))


def _gated_method(function: Any, name: str) -> Any:
    def gated(self: Any, *args: Any, **named: Any) -> Any:
        if _PASS.runs:
            _refuse(name, sys._getframe(1))
        return function(self, *args, **named)

    gated.__name__, gated.__doc__, gated.__wrapped__ = function.__name__, function.__doc__, function  # type: ignore[attr-defined]  # as functools.wraps does
    return gated


def _refuse(name: str, frame: FrameType | None) -> None:
    """Raises if the call comes from code that is neither ours nor the standard library's own business."""
    caller = frame
    while caller is not None:
        module = str(caller.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if top in _EXEMPT or f"{module}.".startswith(_OWN):
            return
        if top not in sys.stdlib_module_names or top == "__main__":
            break
        if name not in _DEEP:
            return
        caller = caller.f_back
    if caller is None:
        return
    file, line = caller.f_code.co_filename, caller.f_lineno
    if "# perdure: allow" in linecache.getline(file, line, caller.f_globals):
        return
    rule = rule_of(name)
    advice = rule.advice if rule is not None else "a replay would do it again"
    violation = GuardViolation(f"{name.removeprefix('builtins.')}()", f"{file}:{line}", advice)
    if _PASS.violation is None:
        _PASS.violation = violation
    raise violation


def _seen() -> GuardViolation | None:
    return _PASS.violation


@contextmanager
def watching() -> Iterator[None]:
    """While a pass runs. The first violation ends it, also if the workflow caught it."""
    _PASS.runs, _PASS.violation = True, None
    try:
        yield
    except BaseException as error:
        first = _seen()
        if first is None or error is first:
            raise
        raise first from error
    finally:
        _PASS.runs = False
    if (first := _seen()) is not None:
        raise first
