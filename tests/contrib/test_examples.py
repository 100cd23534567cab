"""The examples of foreign queues run as their readers run them, each with a worker process of its own."""

from __future__ import annotations

from test_examples import run

from perdure.testing.postgres import shared_server


def test_celery_queue() -> None:
    assert run("queues/celery_queue") == [
        "book: 4 kg, collected",
        "teapot: 6 kg, collected",
        "umbrella: 8 kg, collected",
    ]


def test_procrastinate_queue() -> None:
    lines = run("queues/procrastinate_queue", shared_server().url)
    assert lines == [f"{name}: {name} cake, baked and cooled" for name in ("apple", "cherry", "plum")]
