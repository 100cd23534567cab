"""Foreign awaits: while workflow code runs, the thread has no event loop but a trap that says so (R64)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

from perdure.errors import ForeignAwaitError

__all__ = ["foreign_yield", "loop_in_loop", "trapped"]

_PACKAGE: Final = str(Path(__file__).parent.parent) + "/"
_STDLIB: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})
_LOGGING: Final = str(Path(logging.__file__).parent)
_INSTALLED: Final = ("site-packages", "dist-packages")

_INSTEAD: Final = {
    "asyncio.sleep": "use `await ctx.sleep(delay)`",
    "asyncio.gather": "use `await ctx.gather(…)`",
    "asyncio.wait": "use `await ctx.race(…)` or `ctx.as_completed(…)`",
    "asyncio.as_completed": "use `ctx.as_completed(…)`",
    "asyncio.wait_for": "use `await ctx.wait_for(awaitable, delay)`",
    "asyncio.timeout": "use `async with ctx.timeout(delay)`",
    "asyncio.timeout_at": "use `async with ctx.timeout(delay)`",
    "asyncio.to_thread": "put the call into a step and use `await ctx.step(…)`",
    "asyncio.create_task": "use `ctx.start(coroutine)`",
    "asyncio.ensure_future": "use `ctx.start(coroutine)`",
    "asyncio.TaskGroup": "use `await ctx.gather(…)` or `ctx.start(coroutine)`",
    "asyncio.Queue": "use `ctx.hook(…)` for what comes from outside, or a plain list",
    "anyio.create_task_group": "use `await ctx.gather(…)` or `ctx.start(coroutine)`",
    "trio.open_nursery": "use `await ctx.gather(…)` or `ctx.start(coroutine)`",
    "anyio.fail_after": "use `async with ctx.timeout(delay)`",
    "anyio.move_on_after": "use `async with ctx.timeout(delay)`",
    "trio.fail_after": "use `async with ctx.timeout(delay)`",
    "trio.move_on_after": "use `async with ctx.timeout(delay)`",
    "anyio.sleep": "use `await ctx.sleep(delay)`",
    "trio.sleep": "use `await ctx.sleep(delay)`",
}
_RUNS: Final = ("run", "_check_running", "setup_runner")
"""Where a loop looks for one that is running already."""
_OTHERWISE: Final = "put the call into a step and use `await ctx.step(…)`"


class _Trap:
    """Stands where the running loop would be. Every use of it is the error, and it cannot be a key either: that is how
    `asyncio.current_task()` meets it."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[BaseException], BaseException]) -> None:
        object.__setattr__(self, "_ended", ended)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)  # what Python itself asks for
        raise _spring(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _spring(self)

    def __hash__(self) -> int:
        raise _spring(self)

    def __bool__(self) -> bool:
        return True


def _spring(trap: _Trap) -> BaseException:
    ended: Callable[[BaseException], BaseException] = object.__getattribute__(trap, "_ended")
    frames = list(_frames(sys._getframe(2)))
    if any(code.co_filename.startswith(_LOGGING) for code, _ in frames):
        return RuntimeError("no running event loop")  # a log record asks for the name of the task, and does without
    return ended(_error(frames))


class _TrioTrap:
    """Stands where trio keeps its runner."""

    def __init__(self, trap: _Trap) -> None:
        object.__setattr__(self, "_trap", trap)

    def __getattribute__(self, name: str) -> NoReturn:
        raise _spring(object.__getattribute__(self, "_trap"))


@contextlib.contextmanager
def trapped(
    generators: Any, finalised: Callable[[Any], None], ended: Callable[[BaseException], BaseException]
) -> Iterator[None]:
    """While the block runs: the running loop is a trap, and async generators that begin are added to `generators` and
    given to `finalised` when they are dropped. `ended` is told of a use of the trap and says what is raised."""
    loop, hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
    trap = _Trap(ended)
    restore_trio = _trap_trio(trap)
    asyncio._set_running_loop(trap)  # type: ignore[arg-type]  # it is none on purpose
    sys.set_asyncgen_hooks(generators.add, finalised)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)
        asyncio._set_running_loop(loop)
        restore_trio()


def _trap_trio(trap: _Trap) -> Callable[[], None]:
    """Trio does not ask asyncio: its runner is looked up in a thread-local of its own, which is replaced if it is
    there."""
    local = getattr(sys.modules.get("trio._core._run"), "GLOBAL_RUN_CONTEXT", None)
    if local is None:
        return lambda: None
    before = local.__dict__.copy()
    local.runner = local.task = _TrioTrap(trap)

    def restore() -> None:
        local.__dict__.clear()
        local.__dict__.update(before)

    return restore


def foreign_yield(coroutine: Any, yielded: object) -> ForeignAwaitError:
    """The error for something that is not ours and reached the driver."""
    frames = [(frame.f_code, frame.f_lineno) for frame in _suspended(coroutine)]
    error = _error(list(reversed(frames)))
    if error.function == "an awaitable":
        return ForeignAwaitError(f"an awaitable ({type(yielded).__name__})", error.where, error.instead)
    return error


def loop_in_loop(error: BaseException) -> ForeignAwaitError | None:
    """The error for a loop that the workflow wanted to run by itself, such as by `asyncio.run`: it finds the trap where its
    own loop would be and says that one is running, which is of no help."""
    if not isinstance(error, RuntimeError):
        return None
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if (
        not frames
        or frames[-1][0].co_name not in _RUNS
        or _package(frames[-1][0].co_filename) not in ("asyncio", "trio")
    ):
        return None
    return _error(frames[::-1])


def _suspended(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of what it awaits, outermost first."""
    at = coroutine
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None)
        if frame is not None:
            yield frame
        for name in ("cr_await", "gi_yieldfrom", "ag_await"):
            if inspect.getattr_static(type(at), name, None) is not None:
                at = getattr(at, name)
                break
        else:
            at = None


def _frames(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    """The frames from here outwards, up to the driver."""
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _error(frames: list[tuple[CodeType, int]]) -> ForeignAwaitError:
    """From the innermost frame outwards: libraries first, then the line of the workflow that called them."""
    frames = [frame for frame in frames if not frame[0].co_filename.startswith(_PACKAGE)]
    users = [index for index, (code, _) in enumerate(frames) if not _is_library(code)]
    if not users:
        users = [index for index, (code, _) in enumerate(frames) if not code.co_filename.startswith(_STDLIB)]
    at = users[0] if users else len(frames)
    function = _name([code for code, _ in frames[:at]])
    where = f"{frames[at][0].co_filename}:{frames[at][1]} in {frames[at][0].co_name}" if users else "an unknown line"
    return ForeignAwaitError(function, where, _instead(function))


def _is_library(code: CodeType) -> bool:
    file = code.co_filename
    return file.startswith((*_STDLIB, "<frozen")) or any(f"/{name}/" in file for name in _INSTALLED)


def _name(libraries: list[CodeType]) -> str:
    """The outermost library function on the way, as the user knows it, such as `asyncio.sleep`."""
    if not libraries:
        return "an awaitable"
    code = next((code for code in reversed(libraries) if code.co_filename != contextlib.__file__), libraries[-1])
    return f"{_package(code.co_filename)}.{_qualified(code)}"


def _qualified(code: CodeType) -> str:
    name = code.co_qualname.replace(".<locals>", "")
    return name.removesuffix(".__aenter__").removesuffix(".__init__").removesuffix(".__new__")


def _package(file: str) -> str:
    for name in _INSTALLED:
        if f"/{name}/" in file:
            return file.rsplit(f"/{name}/", maxsplit=1)[-1].split("/", maxsplit=1)[0].removesuffix(".py")
    for root in _STDLIB:
        if file.startswith(root):
            return file.removeprefix(root).split("/")[0].removesuffix(".py")
    return Path(file).stem


def _instead(function: str) -> str:
    for known, instead in _INSTEAD.items():
        if function == known or function.startswith(f"{known}."):
            return instead
    return _OTHERWISE
