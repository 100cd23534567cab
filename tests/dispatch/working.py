"""A process with nothing but a `TaskWorker`: `python -m dispatch.working STORE`."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from dispatch.shop import flow
from perdure import DurableTaskQueue, FlowEngine, TaskWorker, open_store

TTL = timedelta(seconds=1)


async def main(address: str) -> None:
    store = open_store(address)
    async with FlowEngine(flow, store, lease_ttl=TTL) as engine:
        await TaskWorker(engine, DurableTaskQueue(store, lease_ttl=TTL)).run_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
