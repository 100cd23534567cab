"""Benchmarks: pytest-benchmark suites, and `report` that runs them and writes RESULTS.md."""
