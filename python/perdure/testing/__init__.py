"""What ships for testing.

`perdure.testing.virtual_time` runs a test of a workflow in virtual time (docs/testing.md), `perdure.testing.postgres` brings a
PostgreSQL server for it. `StoreContract` is the contract suite for stores of your own, `python -m perdure.testing.conformance`
checks a kernel and a store against recorded runs, and `python -m perdure.testing.simulation` runs seeded worlds in which
everything fails.
"""

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
