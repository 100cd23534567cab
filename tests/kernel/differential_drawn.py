"""What the differential tests draw: commands, outcomes, calls, events and plain JSON, mostly sound and sometimes odd."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from perdure.instant import MAX_NS, MIN_NS, format_instant

NOON_NS = 1_796_040_000 * 10**9
SECOND_NS = 10**9
CALENDAR = [MIN_NS, MAX_NS, MAX_NS - 1, NOON_NS, NOON_NS + 1, NOON_NS + SECOND_NS, NOON_NS + 3600 * SECOND_NS]


def texts(*choices: str) -> st.SearchStrategy[str]:
    return st.sampled_from(choices)


def one_of(usual: st.SearchStrategy[str], odd: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Mostly the usual."""
    return st.integers(0, 24).flatmap(lambda dice: odd if dice == 0 else usual)


def quoted(*choices: str) -> st.SearchStrategy[str]:
    return st.sampled_from([json.dumps(choice, ensure_ascii=False) for choice in choices])


def fields(**parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """An object; a part that draws the empty text is left out."""
    return st.fixed_dictionaries(parts).map(
        lambda drawn: "{" + ",".join(f'"{key}":{text}' for key, text in drawn.items() if text) + "}"
    )


ODD_ID = one_of(
    quoted("", " ", "\u2003", "x" * 512, "x" * 513, "a\u0000", "a\u0085b", "ü" * 257), texts("null", "1", r'"\ud800"')
)
AN_ID = one_of(quoted("a", "b", "c", "d", "e"), one_of(quoted("é", "z/1", "\u200b"), ODD_ID))
NAME = one_of(quoted("n"), quoted("m", "", "n\u001f", "n" * 513))
PAYLOAD = one_of(
    texts("{}", "null", "1", '"x"'),
    texts(
        "1.0",
        "-0",
        "1e400",
        '{"a":1,"a":2}',
        '{"b":[1,{"c":"\\u00e9"}],"a":1e2}',
        r'"\ud800"',
        "18446744073709551616",
        "[" * 90 + "]" * 90,
    ),
)
ATTEMPTS = texts("0", "1", "2", "3", "4294967295")
POLICY = one_of(
    texts(
        "",
        '{"max_attempts":1,"delay_ms":0}',
        '{"max_attempts":2,"delay_ms":0}',
        '{"max_attempts":3,"delay_ms":1000}',
        '{"max_attempts":2,"delay_ms":0,"on_exhausted":"continue_workflow"}',
        '{"max_attempts":4,"delay_ms":100,"backoff":"exponential","max_delay_ms":400}',
    ),
    texts(
        '{"max_attempts":0,"delay_ms":0}',
        '{"max_attempts":2,"delay_ms":5,"max_delay_ms":9}',
        '{"max_attempts":2,"delay_ms":0,"backoff":"exponential","max_delay_ms":1}',
        '{"max_attempts":2,"delay_ms":9223372036854775808}',
        '{"max_attempts":2,"delay_ms":18446744073709551615}',
        '{"max_attempts":2,"delay_ms":251600000000000}',
        '{"max_attempts":4294967296,"delay_ms":0}',
        '{"delay_ms":0}',
        '{"max_attempts":2,"delay_ms":0,"backoff":"fixed","on_exhausted":"fail_run"}',
        '{"max_attempts":2,"delay_ms":0,"backoff":null}',
        "null",
    ),
)
INSTANT = one_of(
    st.sampled_from(CALENDAR).map(lambda ns: json.dumps(format_instant(ns))),
    quoted(
        "2026-11-29t23:00:00.5+02:00", "2016-12-31T23:59:60Z", "0000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "soon"
    ),
)
DELAY = one_of(texts("0", "1", "1000"), texts("18446744073709551615", "251600000000000", "-1", "1.0"))
TOKEN = one_of(quoted("canary-1", "canary-2"), quoted("", "\u3000", "canary-\u0000"))
PROGRESS = fields(
    progress_id=AN_ID,
    completed=one_of(texts("0", "1"), texts("18446744073709551615", "-1")),
    total=one_of(texts("", "2"), texts("0", "null")),
    message=texts("", '"m"', "null"),
    details=one_of(texts("", "null"), PAYLOAD),
)
CHILD = fields(
    reference_id=AN_ID,
    kind=one_of(quoted("k"), quoted(" ")),
    operation_id=one_of(quoted("o"), quoted("")),
    flow_run_id=one_of(texts("", '"run-1"', '"run-2"'), quoted(" ")),
    metadata=one_of(texts("", "null"), PAYLOAD),
)
ERROR = one_of(quoted("runtime error: x", 'quote " back \\ tab \t nul \u0000 del \u007f sep \u2028'), quoted("é" * 40))
FAILURE = one_of(texts(""), texts('{"type":"E","message":"m","traceback":"t"}', "{}", '{"a":1,"a":2}', "null", "1"))
REASON = texts("", '"r"', "null")


def tagged(kind: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return fields(type=st.just(json.dumps(kind)), **parts)


STEP = {"step_id": AN_ID, "step_name": NAME, "input": PAYLOAD, "retry": POLICY}
MEMBERS = st.one_of(
    tagged("step", **STEP),
    tagged("wait_until", wait_id=AN_ID, resume_at=INSTANT),
    tagged("wait_for", wait_id=AN_ID, delay_ms=DELAY),
    tagged("hook", hook_id=AN_ID, token=TOKEN, metadata=PAYLOAD),
    tagged("record_progress", progress=PROGRESS),
    tagged("link_child_operation", child=CHILD),
    tagged("dispose_hook", hook_id=AN_ID),
    tagged("close_wait", wait_id=AN_ID),
)


def listed(members: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(members, max_size=4).map(lambda drawn: "[" + ",".join(drawn) + "]")


CONCURRENCY = one_of(texts(""), texts("1", "2", "0", "-1", "null", "18446744073709551616"))
ENDS = st.one_of(
    tagged("complete", output=PAYLOAD),
    tagged("fail", error=ERROR),
    tagged("cancel"),
    tagged("timeout", deadline=INSTANT, reason=REASON),
)
OPENINGS = st.one_of(
    tagged("schedule_step", **STEP),
    tagged("schedule_steps", steps=listed(fields(**STEP)), concurrency=CONCURRENCY),
    tagged("schedule_all", members=listed(MEMBERS), concurrency=CONCURRENCY),
    tagged("wait_until", wait_id=AN_ID, resume_at=INSTANT),
    tagged("wait_for", wait_id=AN_ID, delay_ms=DELAY),
    tagged("create_hook", hook_id=AN_ID, token=TOKEN, metadata=PAYLOAD),
    tagged("dispose_hook", hook_id=AN_ID),
    tagged("close_wait", wait_id=AN_ID),
    tagged("record_progress", progress=PROGRESS),
    tagged("link_child_operation", child=CHILD),
)
NONSENSE = texts(
    "null",
    "[]",
    "{}",
    '{"type":5}',
    '{"type":"zzz"}',
    "{",
    "",
    '{"type":"complete","output":1}}',
    '{"type":"cancel","type":"cancel"}',
)
COMMANDS = one_of(OPENINGS, st.one_of(ENDS, NONSENSE))
LONG_ERROR = one_of(ERROR, quoted("é" * 40_000, "x" + "é" * 32_768, "x" * 65_536, "x" * 65_535 + "é"))
LONG_FAILURE = one_of(
    FAILURE, quoted("m" * 65_537, "é" * 32_769).map(lambda text: f'{{"type":"E", "message":{text},"more":1}}')
)
OUTCOMES = one_of(
    st.one_of(
        tagged("completed", output=PAYLOAD),
        tagged(
            "failed",
            error=LONG_ERROR,
            retry_after_ms=texts("", "", "1", "5000", "0", "-1", "18446744073709551616"),
            failure=LONG_FAILURE,
        ),
        tagged("non_retryable", error=LONG_ERROR, failure=LONG_FAILURE),
    ),
    texts("null", "{}", '{"type":"completed"}', '{"type":"failed"}', '{"type":"later"}'),
)
SPEC = one_of(
    texts('{"name":"demo","version":"1","runtime":{"kind":"rust_embedded","entrypoint":"demo","export_name":"main"}}'),
    texts(
        '{"name":"demo","version":"1","runtime":{"kind":"native_ts","entrypoint":"d","export_name":"m"},"runtime_build_id":"b1",'
        '"patch_markers":["a"],"signal_names":[1.0],"more":1}',
        '{"name":"demo","version":"1","runtime":{"kind":"rust_embedded","entrypoint":" ","export_name":"main"}}',
        '{"name":"demo","version":"1","runtime":{"kind":"rust_embedded","entrypoint":"demo","export_name":"main"},"runtime_build_id":"-"}',
        '{"name":"demo","version":"1","runtime":{"kind":"rust_embedded","entrypoint":"demo","export_name":"main"},"runtime_build_id":null}',
        '{"name":"demo","version":"1","runtime":{"kind":"python","entrypoint":"demo","export_name":"main"}}',
        "{}",
    ),
)


def operation(op: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return fields(op=st.just(json.dumps(op)), **parts)


DRIVE = texts("", "", "true", "false")
CALLS = st.one_of(
    operation("drive"),
    operation("start", spec=SPEC, input=PAYLOAD, drive=DRIVE),
    operation("resume_wait", wait_id=AN_ID, early=texts("", "true", "false"), drive=DRIVE),
    operation("resume_hook", hook_id=AN_ID, payload=PAYLOAD, drive=DRIVE),
    operation("dispose_hook", hook_id=AN_ID, drive=DRIVE),
    one_of(operation("request_cancellation", reason=REASON, drive=DRIVE), operation("force_cancel", reason=REASON)),
    one_of(
        operation("record_progress", progress=PROGRESS),
        operation("terminate_for_timeout", deadline=INSTANT, reason=REASON),
    ),
    one_of(operation("link_child_operation", child=CHILD), operation("terminate_for_host_shutdown", reason=REASON)),
    operation("resume_scheduled_run", now=INSTANT),
    operation("resume_due_waits", now=INSTANT),
    operation("resume_due_retries", now=INSTANT),
    one_of(operation("drive"), texts("null", "{}", '{"op":"later"}', '{"op":"resume_wait"}', "{")),
)
RETRY_AFTER = one_of(texts("null"), INSTANT)
EVENTS = st.one_of(
    tagged("run_created", spec=SPEC, input=PAYLOAD),
    tagged("run_started"),
    tagged("step_created", **STEP),
    tagged("step_started", step_id=AN_ID, attempt=ATTEMPTS),
    tagged("step_completed", step_id=AN_ID, output=PAYLOAD),
    tagged(
        "step_retrying",
        step_id=AN_ID,
        attempt=ATTEMPTS,
        error=ERROR,
        retry_after=RETRY_AFTER,
        suggested_delay_ms=texts("", "7", "null"),
        failure=FAILURE,
    ),
    tagged("step_failed", step_id=AN_ID, attempt=ATTEMPTS, error=ERROR, failure=FAILURE),
    tagged("step_non_retryable", step_id=AN_ID, attempt=ATTEMPTS, error=ERROR, failure=FAILURE),
    tagged("step_cancelled", step_id=AN_ID, attempt=ATTEMPTS, reason=ERROR),
    tagged("wait_created", wait_id=AN_ID, resume_at=INSTANT),
    tagged("wait_completed", wait_id=AN_ID),
    tagged("hook_created", hook_id=AN_ID, token=TOKEN, metadata=PAYLOAD),
    tagged("hook_received", hook_id=AN_ID, payload=PAYLOAD),
    tagged("hook_disposed", hook_id=AN_ID),
    tagged("run_progress_recorded", progress=PROGRESS),
    tagged("child_operation_linked", child=CHILD),
    tagged("run_cancellation_requested", request=fields(reason=REASON)),
    one_of(
        tagged("run_retry_exhausted", step_id=AN_ID, attempt=ATTEMPTS, error=ERROR),
        tagged("run_completed", output=PAYLOAD),
    ),
    one_of(tagged("run_started"), st.one_of(tagged("run_failed", error=ERROR), tagged("run_cancelled", reason=REASON))),
    one_of(tagged("run_started"), tagged("run_timed_out", deadline=INSTANT, reason=REASON)),
    one_of(tagged("run_started"), tagged("run_host_shutdown", reason=REASON)),
)
