"""The application that the Celery worker process imports; where it works is in its environment."""

from __future__ import annotations

import os

from celery import Celery  # type: ignore[import-untyped]  # Celery ships no types

from contrib.shop import LEASE, flow
from perdure import BlockingFlowEngine
from perdure.contrib.celery import register

folder = os.environ["SHOP_BROKER"]
app = Celery("shop", broker="filesystem://")
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
