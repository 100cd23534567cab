"""Failures inside the shipped suite should read as well as those of the tests here."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"perdure.testing.{name}"
        for name in (
            "store_contract",
            "_lease_contract",
            "_retention_contract",
            "_runnable_contract",
            "_store_suite",
            "_stories",
        )
    )
)
