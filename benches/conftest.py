"""What the suites share: the kernels, a refusal to measure a debug build, and rounds that a smoke run can shrink."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benches.stores import Told
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


Tell = Callable[[str, str, Callable[[], Any], Callable[[Any], Told]], None]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as made:
        yield Path(made)


@pytest.fixture
def tell(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Tell:
    """`tell(row, column, setup, function)`: a cell of the table of stores, over rounds that each begin anew.

    `setup` gives the argument of `function`, which says what it did and how long that took."""
    rounds = 1 if request.config.getoption("--smoke") else 3

    def run(row: str, column: str, setup: Callable[[], Any], function: Callable[[Any], Told]) -> None:
        found: list[Told] = []
        benchmark.group = row

        def arguments() -> tuple[tuple[Any], dict[str, Any]]:
            return (setup(),), {}

        benchmark.pedantic(lambda argument: found.append(function(argument)), setup=arguments, rounds=rounds)
        latencies = sorted(latency for told in found for latency in told.latencies)
        groups = [told.group for told in found if told.group is not None]
        benchmark.extra_info.update(
            table="stores",
            column=column,
            events_a_second=statistics.median(told.events / told.seconds for told in found),
            p50=latencies[len(latencies) // 2],
            p99=latencies[len(latencies) * 99 // 100],
            group=statistics.median(groups) if groups else None,
        )

    return run
