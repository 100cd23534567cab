"""The snapshot JSON of a run, byte for byte as R28 says."""

from __future__ import annotations

from perdure._pure.json import quote
from perdure._pure.state import KINDS, State
from perdure.errors import RunNotFound

__all__ = ["snapshot"]


def snapshot(state: State) -> bytes:
    """All fields of spec 2.7, nulls written, maps by key bytes, then `resolutions` and `failures`."""
    if state.spec is None:
        raise RunNotFound(state.run_id)
    steps = state.steps.all()
    waits = state.waits.all()
    hooks = state.hooks.all()
    facts = [fact.value.to_json() for fact in state.progress.all().values()]
    children = {key: fact.value.to_json() for key, fact in state.children.all().items()}
    resolved = [(step.resolved, 0, key) for key, step in steps.items() if step.resolved]
    resolved += [(wait.resolved, 1, key) for key, wait in waits.items() if wait.resolved]
    resolved += [(hook.resolved, 2, key) for key, hook in hooks.items() if hook.resolved]
    resolutions = [f'["{KINDS[kind]}",{quote(key)},{sequence}]' for sequence, kind, key in sorted(resolved)]
    failures = {key: step.failure_text for key, step in steps.items() if step.failure_text is not None}
    text = (
        f'{{"run_id":{quote(state.run_id)},"spec":{state.spec.to_json()},"input":{state.input},'
        f'"status":"{state.derived_status}",'
        f'"steps":{_map({key: step.text() for key, step in steps.items()})},'
        f'"waits":{_map({key: wait.text() for key, wait in waits.items()})},'
        f'"hooks":{_map({key: hook.text() for key, hook in hooks.items()})},'
        f'"cancellation":{state.request.text() if state.request else "null"},'
        f'"progress":[{",".join(facts)}],"child_operations":{_map(children)},'
        f'"output":{"null" if state.output is None else state.output},'
        f'"error":{"null" if state.error is None else quote(state.error)},'
        f'"terminal_outcome":{"null" if state.outcome is None else state.outcome},'
        f'"last_sequence":{state.last_sequence},"resolutions":[{",".join(resolutions)}],"failures":{_map(failures)}}}'
    )
    return text.encode()


def _map(entries: dict[str, str]) -> str:
    # Code point order of str is byte order of UTF-8.
    return "{" + ",".join(f"{quote(key)}:{entries[key]}" for key in sorted(entries)) + "}"
