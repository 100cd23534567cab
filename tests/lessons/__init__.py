"""Bugs that the reference engine once had and fixed; each that concerns what exists has a test that names it (spec 11 §11.3).

Not here, because what they are about belongs to later work:
4, 5 (JSONL: tails without an end or a newline), 12 (retention of linked runs), 19 (back-filling migrations of older
databases). Of 15 the PostgreSQL part, of 14 the processes of a network database. In `tests/dispatch` are 9, 10, 21, 23 (task
leases and queue cut-offs), 20, 31 (scheduler and build router), and of 30 the worker's task. 38 is about a panic inside the kernel's host language.
"""
