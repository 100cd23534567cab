"""The async form: `async def` workflows, driven without an event loop (R35 to R41, R63 to R65).

`context` is what a workflow is given, `replay` feeds one run's coroutine its history, `handles`, `groups`, `chain` and
`scopes` are what it can await, `ending` turns a pass into a command.
"""
