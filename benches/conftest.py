"""What the suites share: the kernels, a refusal to measure a debug build, and rounds that a smoke run can shrink."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from perdure.kernel import Kernel, load

__all__: list[str] = []

KERNELS = ("rust", "pure")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--smoke", action="store_true", help="smallest sizes and one round each: does it run and agree?")


def pytest_sessionstart(session: pytest.Session) -> None:
    from perdure import _core

    if _core.build_profile != "release":
        pytest.exit(
            f"perdure._core is a {_core.build_profile} build, many times slower than a release build; "
            "delete python/perdure/_core*.so and let `make bench` build it",
            returncode=2,
        )


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    return {"rust": load("rust"), "pure": load("pure")}


Measure = Callable[..., None]


def _arguments(setup: Callable[[], Any]) -> tuple[tuple[Any], dict[str, Any]]:
    return (setup(),), {}


@pytest.fixture
def measure(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Measure:
    """`measure(row, engine, function, events=…, setup=…, rounds=…)`: one cell of the table of results.

    `rounds` calls are timed one by one, each with a fresh argument from `setup` if there is one; without `rounds`
    pytest-benchmark calibrates.
    """
    smoke: bool = request.config.getoption("--smoke")

    def run(
        row: str,
        engine: str,
        function: Callable[..., object],
        *,
        events: int | None = None,
        setup: Callable[[], Any] | None = None,
        rounds: int | None = None,
    ) -> None:
        benchmark.group = row
        benchmark.extra_info.update(engine=engine, events=events)
        if rounds is None and not smoke:
            benchmark(function)
        else:
            arguments = partial(_arguments, setup) if setup else None
            benchmark.pedantic(function, setup=arguments, rounds=1 if smoke else rounds, iterations=1)

    return run


@pytest.fixture
def sizes_up_to(request: pytest.FixtureRequest) -> int:
    """The largest history, in events, that this session measures."""
    return 1_000 if request.config.getoption("--smoke") else 100_000
