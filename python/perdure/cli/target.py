"""What `module:attribute` on a command line means: the user's flow."""

from __future__ import annotations

import importlib
import sys
import traceback
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from perdure.cli.shared import plain
from perdure.codec import PayloadCodec
from perdure.flow import Flow, FlowRuntime

__all__ = ["resolve", "resolve_codec", "resolve_flow"]


def resolve_flow(target: str) -> FlowRuntime:
    """The flow, or other runtime, that `target` names, such as `shop.orders:flow`. Modules are looked for in the working
    folder first. Raises a usage error that says what is wrong with it."""
    module, found = resolve(target, "flow", "shop.orders:flow")
    if callable(getattr(found, "run_workflow", None)) and callable(getattr(found, "run_step", None)):
        return found  # type: ignore[no-any-return]  # it has what the protocol asks for
    kind = type(found).__name__
    raise _refused(f"{target!r} is of type {kind}, not a Flow{_those_of(module)}")


def resolve_codec(target: str) -> PayloadCodec:
    """The codec that `target` names, such as `shop.secrets:codec`. Raises a usage error."""
    _, found = resolve(target, "codec", "shop.secrets:codec")
    if callable(getattr(found, "encode", None)) and callable(getattr(found, "decode", None)):
        return found  # type: ignore[no-any-return]  # it has what the protocol asks for
    raise _refused(f"{target!r} is of type {type(found).__name__}, not a codec with encode and decode")


def resolve(target: str, what: str, example: str) -> tuple[ModuleType, Any]:
    """The module, and the object in it, that `target` names. Raises a usage error."""
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise _refused(f"{target!r} names no {what}; write module:attribute, such as {example}")
    module = _import(module_name)
    try:
        return module, reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise _refused(f"module {module_name!r} has no {attribute!r}{_those_of(module)}") from None


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _refused(f"there is no module {error.name!r} in {folder} or on the path of Python") from None
        raise _refused(f"importing {name!r} failed: {error}{_place(error)}") from None
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything, and one line has to say what
        raise _refused(f"importing {name!r} failed: {type(error).__name__}: {error}{_place(error)}") from None


def _place(error: Exception) -> str:
    """The line of the user's code that raised, past the machinery of imports."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""


def _those_of(module: ModuleType) -> str:
    flows = sorted(name for name, value in vars(module).items() if isinstance(value, Flow))
    return f"; its flows: {', '.join(flows)}" if flows else ""


def _refused(message: str) -> typer.BadParameter:
    return typer.BadParameter(plain(message), param_hint="TARGET")
