"""Where two JSON texts first differ: a leaf that errors may use."""

from __future__ import annotations

import json

__all__ = ["first_difference"]


def first_difference(recorded: str, now: str) -> str:
    """JSON path of the first difference of two JSON texts, `$` where they differ as a whole or cannot be read."""
    try:
        return _walk(json.loads(recorded), json.loads(now), "$")
    except (ValueError, RecursionError):
        return "$"


def _walk(left: object, right: object, path: str) -> str:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(k for k in right if k not in left)]:
            if key not in left or key not in right or not _same(left[key], right[key]):
                return _walk(left.get(key), right.get(key), f"{path}.{key}")
    elif isinstance(left, list) and isinstance(right, list):
        for index, (one, other) in enumerate(zip(left, right, strict=False)):
            if not _same(one, other):
                return _walk(one, other, f"{path}[{index}]")
        if len(left) != len(right):
            return f"{path}[{min(len(left), len(right))}]"
    return path


def _same(left: object, right: object) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))
    return left == right
