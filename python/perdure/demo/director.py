"""The process that places the orders, kills, approves and cancels. It appends and reads, and drives nothing."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from perdure.blocking import BlockingFlowEngine
from perdure.demo.checks import Evidence
from perdure.demo.ledger import Attempt, read_effects
from perdure.demo.orders import (
    APPROVAL,
    CARD,
    PICKUP,
    Order,
    flow,
    order_with_approval,
    order_with_card,
    order_with_pickup,
)
from perdure.demo.record import Row, open_attempts, read_record, rows_of
from perdure.demo.report import Live, say
from perdure.envelope import Envelope
from perdure.kernel import KernelName

__all__ = ["Director", "Stuck"]

DEADLINE_SECONDS: Final = 50.0
_POLL_SECONDS: Final = 0.05
CUT_OFF: Final[Attempt] = (CARD, "charge", 3)


class Stuck(Exception):
    """The demo cannot go on; the text says what it waited for."""


class Director:
    """Plays the demo on one file. Use it as a context manager: its processes end with it, however it ends."""

    def __init__(self, db: Path, effects: Path, kernel: KernelName) -> None:
        self._db, self._effects, self._kernel = db, effects, kernel
        self._engine = BlockingFlowEngine(flow, str(db), kernel=kernel)
        self._live = Live()
        self._worker: subprocess.Popen[bytes] | None = None
        self._exits: dict[str, int] = {}
        self._token = secrets.token_urlsafe(16)
        self._give_up = time.monotonic() + DEADLINE_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
        self._engine.close()

    def play(self) -> Evidence:
        """The whole demo; gives what is to be judged. Raises `Stuck`."""
        self._place_orders()
        self._start("first", CUT_OFF)
        at_kill = self._kill()
        self._let_time_pass()
        self._start("second", None)
        self._say_what_is_cut_off()
        self._approve()
        self._cancel()
        self._wait(self._worker_ended, "the second process to end all runs", alive=False)
        self._engine.close()
        return Evidence(read_record(self._db, self._effects), at_kill, CUT_OFF, self._exits)

    # -- the acts --------------------------------------------------------------------------------------------------

    def _place_orders(self) -> None:
        say("Three orders are placed: each is durable in the store before anything works on it.")
        self._engine.submit(order_with_card, Order(120, declines=2), run_id=CARD)
        self._engine.submit(order_with_approval, {"order": Order(900), "token": self._token}, run_id=APPROVAL)
        self._engine.submit(order_with_pickup, Order(45), run_id=PICKUP)
        self._look()

    def _kill(self) -> dict[str, list[Envelope]]:
        """Kills the worker when the payment is made and not committed, and nothing else is between the two.

        The worker is stopped before it is looked at, so that what is seen is what it dies with.
        """
        self._wait(lambda: any(e.of == CUT_OFF for e in read_effects(self._effects)), "the third payment attempt")
        worker = self._running()
        while True:
            os.kill(worker.pid, signal.SIGSTOP)
            os.waitpid(worker.pid, os.WUNTRACED)  # a signal that was sent has not arrived yet
            if self._only_payment_is_open():
                break
            os.kill(worker.pid, signal.SIGCONT)
            self._wait(self._only_payment_is_open, "the other orders to come to rest")
        at_kill = {run_id: self._engine.history(run_id) for run_id in (CARD, APPROVAL, PICKUP)}
        worker.kill()
        self._exits["first"] = worker.wait()
        self._worker = None
        self._look()
        say(
            f"SIGKILL to the first process (pid {worker.pid}). The bank has paid; the store does not know. "
            "Nobody works on the orders now."
        )
        return at_kill

    def _let_time_pass(self) -> None:
        """Until the reminder is due, so that the second process finds it overdue."""
        if self._waits_for_reminder():
            say(f"Nobody is there when the reminder timer of {APPROVAL} comes due.")
            self._wait(lambda: not self._waits_for_reminder(), "the reminder to come due", alive=False)

    def _say_what_is_cut_off(self) -> None:
        for run_id, step_id, attempt in sorted(open_attempts(self._look())):
            say(
                f"In the history {step_id} of {run_id} is still running at attempt {attempt}: it is delivered again, "
                "under the same key."
            )

    def _approve(self) -> None:
        self._wait(lambda: self._completed(APPROVAL, "remind"), "the reminder to be sent")
        run_id, hook_id = self._engine.resume_hook_by_token(self._token, {"approved": True}, drive=False)
        say(f"Somebody outside approves by token: it belongs to hook {hook_id} of {run_id}. Appended with drive=False.")

    def _cancel(self) -> None:
        self._wait(lambda: self._engine.snapshot(APPROVAL).terminal, f"{APPROVAL} to end")
        self._engine.request_cancellation(PICKUP, "the customer changed their mind", drive=False)
        say(f"{PICKUP} is asked to cancel. It was paid for, so its workflow cleans up first.")

    # -- processes -------------------------------------------------------------------------------------------------

    def _start(self, process: str, hold: Attempt | None) -> None:
        command = [sys.executable, "-m", "perdure.demo", "--worker", process, "--db", str(self._db)]
        command += ["--kernel", self._kernel, *(("--hold", "/".join(map(str, hold))) if hold else ())]
        # A session of its own: Ctrl-C reaches the director only, and the director ends it.
        self._worker = subprocess.Popen(command, start_new_session=True)
        say(f"The {process} process (pid {self._worker.pid}) opens the file and drives what is open.")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._worker is None:
            raise Stuck("no process is running")
        return self._worker

    def _worker_ended(self) -> bool:
        status = self._running().poll()
        if status is not None:
            self._exits["second"] = status
        return status is not None

    # -- looking ---------------------------------------------------------------------------------------------------

    def _look(self) -> list[Row]:
        rows = [row for run_id in (CARD, APPROVAL, PICKUP) for row in rows_of(self._engine.history(run_id))]
        self._live.show(rows, read_effects(self._effects))
        return rows

    def _wait(self, done: Callable[[], bool], what: str, *, alive: bool = True) -> None:
        while True:
            finished = done()
            self._look()
            if finished:
                return
            status = self._worker.poll() if self._worker is not None else None
            if alive and status is not None:
                raise Stuck(f"the process ended with status {status} while the demo waited for {what}")
            if time.monotonic() > self._give_up:
                raise Stuck(f"gave up after {DEADLINE_SECONDS:.0f} s, waiting for {what}")
            time.sleep(_POLL_SECONDS)

    def _only_payment_is_open(self) -> bool:
        at_rest = self._suspended(APPROVAL) and self._suspended(PICKUP)
        return at_rest and open_attempts(self._look()) == {CUT_OFF}

    def _waits_for_reminder(self) -> bool:
        wakeup = self._engine.next_wakeup(datetime.now(UTC))
        return wakeup is not None and "wait" in wakeup and wakeup["wait"]["wait_id"] == "reminder" and not wakeup["due"]

    def _suspended(self, run_id: str) -> bool:
        return self._engine.snapshot(run_id).status == "suspended"

    def _completed(self, run_id: str, step_id: str) -> bool:
        step = self._engine.snapshot(run_id).steps.get(step_id)
        return step is not None and step.status == "completed"
