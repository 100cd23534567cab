"""The application that the Celery worker process imports; where it works is in its environment."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-untyped]  # Celery ships no types
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

from contrib.shop import LEASE, flow
from perdure import BlockingFlowEngine
from perdure.contrib.celery import register


class WholeMessages(filesystem.Channel):
    """Kombu's own makes a message's file first and writes it then; a worker that reads it in between ends for good."""

    def _put(self, queue: str, payload: object, **_: Any) -> None:  # type: ignore[override]  # its bases differ
        path = Path(self.data_folder_out) / f"{time.monotonic_ns()}_{uuid.uuid4()}.{queue}.msg"
        unread = path.with_suffix(".part")
        unread.write_text(dumps(payload))  # type: ignore[no-untyped-call]  # Kombu has few types
        unread.rename(path)


class Transport(filesystem.Transport):
    """The broker in a folder, with messages that are whole from the first."""

    Channel = WholeMessages


TRANSPORT_ALIASES["folder"] = f"{__name__}:Transport"
folder = os.environ["SHOP_BROKER"]
app = Celery("shop", broker="folder://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": f"{folder}-control",
        "polling_interval": 0.05,
    },
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
tasks = register(app, lambda: BlockingFlowEngine(flow, os.environ["SHOP_STORE"], lease_ttl=LEASE), name="shop.flow")
