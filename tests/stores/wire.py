"""A wire between a client and the shared server that breaks at a chosen point, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

from scenarios.kit import hurry

from perdure.testing.postgres import shared_server

__all__ = ["FOR_EVER", "Cut", "Wire"]

FOR_EVER: Final = 61.0
"""Seconds after which no store waits for an answer any more, nor for a connection, unless it was told to."""

Cut = Literal["question", "silence", "answer", "half an answer"]
"""Where the wire breaks: before a question reaches the server; after it, with an answer that never comes; with the answer
lost; in the midst of it. Only the silence keeps the connection open; the clock of the loop is set ahead then, so that whoever
waits has waited for ever at once, and nobody who is only slow."""


class Wire:
    """Passes bytes on. `cut` is for the next question, once; that to an answer comes after `passes` answers more."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.passes = 0
        self.refusing = False
        self._passing: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def up(self) -> AsyncIterator[str]:
        """The address that leads to the server over the wire."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres?gssencmode=disable&sslmode=disable"
        server.close()
        self.tear()
        await asyncio.gather(*self._passing)

    def tear(self) -> None:
        """Breaks every connection there is, in whatever state."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        if self.refusing:
            return await hang_up(writer)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", shared_server().port)
        self._writers |= {writer, up_writer}
        with suppress(ExceptionGroup):  # a torn connection
            async with asyncio.TaskGroup() as passing:
                passing.create_task(self._ask(reader, up_writer))
                passing.create_task(self._answer(up_reader, writer))
        self._writers -= {writer, up_writer}
        return None

    async def _ask(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(65536):
            if self.cut == "question":
                self.cut = None
                break
            server.write(data)
        await hang_up(server)

    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while answer := await server.read(65536):
            if self.cut is None or self.passes:
                self.passes = max(self.passes - 1, 0)
                client.write(answer)
                continue
            cut, self.cut = self.cut, None
            if cut == "silence":
                hurry(FOR_EVER)
                await server.read()
            if cut == "half an answer":
                client.write(answer[: len(answer) // 2])
            break
        await hang_up(client)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
