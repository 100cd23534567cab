"""What all tests share: both kernels under every test that asks for one, and how long Hypothesis may look."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from perdure.kernel import Kernel, load

# Failures inside the shipped suite should read as well as those of the tests here. Before any test module imports it.
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

# What starts in the background of a shell ignores Ctrl-C, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the machines that run this are shared and slow, and no verdict may depend on the clock.
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
settings.register_profile("quick", _COMMON, max_examples=100)
settings.register_profile("deep", _COMMON, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(params=["rust", "pure"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Each of the two kernels. A kernel that cannot be imported fails the test: there is no fall-back."""
    return load(request.param)
