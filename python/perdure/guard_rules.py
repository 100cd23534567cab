"""What workflow code must not use, because a replay would see something else, and what to use instead."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["MUST_BE_AWAITED", "RANDOM", "Rule", "rule_of"]


class Rule(NamedTuple):
    """One finding's code and advice."""

    code: str
    advice: str


_CLOCK: Final = Rule("clock", "each replay would see another time; take it from ctx.now(), or read it in a step")
_BLOCKING: Final = Rule("blocking", "it stops every run of this engine and is not durable; use ctx.sleep() or a wait")
RANDOM: Final = Rule(
    "random", "each replay would draw another value; use ctx.random() or ctx.uuid(), or draw it in a step"
)
_ENVIRONMENT: Final = Rule(
    "environment", "another process may have another value; read it in a step, or pass it as input"
)
_FILES: Final = Rule("file", "a replay would read or write again; do it in a step")
_NETWORK: Final = Rule("network", "a replay would call again; do it in a step")
_PROCESS: Final = Rule("process", "a replay would run it again; do it in a step")
_IDENTITY: Final = Rule("identity", "another process gives another number; use the value itself, or hashlib")
_LOOP: Final = Rule(
    "event-loop", "a workflow runs without an event loop; use ctx.sleep, ctx.gather, ctx.race, ctx.timeout"
)

_EXACT: Final[dict[str, Rule]] = {
    **dict.fromkeys(
        (
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"),
            *("time.perf_counter_ns", "time.process_time", "time.process_time_ns", "time.thread_time"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
        ),
        _CLOCK,
    ),
    "time.sleep": _BLOCKING,
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "os.urandom"), RANDOM),
    **dict.fromkeys(("os.environ", "os.environb", "os.getenv", "os.getenvb"), _ENVIRONMENT),
    **dict.fromkeys(("builtins.open", "builtins.input", "io.open", "_io.open"), _FILES),
    **dict.fromkeys(("builtins.hash", "builtins.id"), _IDENTITY),
}
_MODULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("random", "secrets"), RANDOM),
    **dict.fromkeys(
        ("requests", "httpx", "urllib.request", "urllib3", "aiohttp", "socket", "http.client", "smtplib", "ftplib"),
        _NETWORK,
    ),
    "subprocess": _PROCESS,
    **dict.fromkeys(("asyncio", "trio", "anyio"), _LOOP),
}

MUST_BE_AWAITED: Final = frozenset({"step", "sleep", "sleep_until", "gather", "race", "wait_for"})
"""Methods of an `AsyncContext` that do nothing until they are awaited (R35)."""


def rule_of(name: str) -> Rule | None:
    """The rule that a dotted name such as `time.time` or `requests.api.get` breaks."""
    found = _EXACT.get(name)
    while found is None and "." in name:
        name = name.rpartition(".")[0]
        found = _MODULES.get(name)
    return found
