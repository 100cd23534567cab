"""A Procrastinate worker process; where it works is in its environment."""

from __future__ import annotations

import asyncio
import os

from procrastinate import App, PsycopgConnector

from contrib.shop import LEASE, flow
from perdure import FlowEngine
from perdure.contrib.procrastinate import register
from perdure.stores.postgres import PostgresEventStore

__all__ = ["open_app"]


def open_app() -> App:
    """The application, in the schema that the environment names."""
    options = f"-c search_path={os.environ['SHOP_SCHEMA']}"
    return App(connector=PsycopgConnector(conninfo=os.environ["SHOP_DATABASE"], kwargs={"options": options}))


async def main() -> None:
    app = open_app()
    store = PostgresEventStore(os.environ["SHOP_DATABASE"], schema=f"{os.environ['SHOP_SCHEMA']} runs")
    async with app.open_async(), FlowEngine(flow, store, lease_ttl=LEASE) as engine:
        register(app, engine, name="shop.flow")
        await app.run_worker_async(queues=["perdure"], concurrency=8, fetch_job_polling_interval=0.1)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
