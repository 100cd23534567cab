"""`python -m perdure.demo`: three orders on SQLite, a process killed half-way, and what the store remembers.

* orders.py: the workflows and steps, as an application would write them
* ledger.py: the world outside: every side effect, one line each
* worker.py: the process that drives the runs, and is killed
* director.py: the process that places the orders, kills, approves and cancels; it drives nothing
* record.py: what the store and the ledger say afterwards
* report.py: the timelines and the ledger, printed
* checks.py: what must hold for the demo to succeed
"""
