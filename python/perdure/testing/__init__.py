"""What ships for testing: the contract suite for stores, and the runner of recorded conformance files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.store_contract import StoreContract as StoreContract

__all__ = ["StoreContract"]


def __getattr__(name: str) -> Any:
    """Loads the suite when it is named, so that pytest may rewrite its assertions before."""
    if name != "StoreContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perdure.testing.store_contract import StoreContract

    return StoreContract
