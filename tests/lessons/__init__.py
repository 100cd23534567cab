"""Bugs that the reference engine once had and fixed; each that concerns what exists has a test that names it (spec 11 §11.3).

Elsewhere: 4, 5 (tails of JSONL) in `tests/stores/test_jsonl_tails.py`; 9, 10, 21, 23 (task leases, queue cut-offs), 20, 31
(scheduler, router) and of 30 the worker's task in `tests/dispatch`; 12 (retention of linked runs) in
`perdure.testing._retention_contract`; 19 (migrations of older databases) in `tests/upgrades`; 14 and 15 on PostgreSQL in
`tests/stores`. 38 is about a panic inside the kernel's host language.
"""
