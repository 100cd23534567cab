"""What every payload obeys, out and in: the limits, and how a refusal names its place (R29, R30)."""

from __future__ import annotations

import re
import sys
from typing import Final

import msgspec

from perdure.errors import Serialization

__all__ = ["MAX_DEPTH", "MAX_INT", "MIN_INT", "SURROGATE", "is_model", "key_path", "refusal"]

MAX_DEPTH: Final = 100
"""Levels of arrays and objects a new payload may nest (R30)."""
MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**64 - 1
SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def refusal(path: str, reason: str) -> Serialization:
    """The typed error of a payload refused at the door."""
    return Serialization("payload", detail=f"{path}: {reason}")


def key_path(key: object) -> str:
    """One object key as a piece of a JSON path."""
    text = str(key)
    if _PLAIN_KEY.fullmatch(text):
        return f".{text}"
    whole = SURROGATE.sub("\ufffd", text)
    return f"[{msgspec.json.encode(whole).decode()}]"


def is_model(kind: type) -> bool:
    """Whether this is a pydantic model class; pydantic is never imported for the question."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)
