"""Failures inside the shipped suite should read as well as those of the tests here."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("perdure.testing.store_contract", "perdure.testing._stories")
