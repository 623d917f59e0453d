"""A network between one participant and the server, which can be cut, and a server that can be killed and started again."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from pathlib import Path
from typing import Any

#: The size of one read, in bytes: more than any datagram.
READ = 64 * 1024

PARTS = Path(__file__).parents[4] / "scripts/parts"

#: A candidate of the server, with its port.
CANDIDATE = re.compile(rb" 127\.0\.0\.1 (\d{5}) typ host")


class Relay(asyncio.DatagramProtocol):
    """A participant that joins at `url` sends everything through this, in an ``async with`` statement.

    It replaces the port in the server's candidates. Those for TCP then lead nowhere, so that no packet goes another way.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: dict[Any, socket.socket] = {}

    async def __aenter__(self) -> Relay:
        loop = asyncio.get_running_loop()
        self._server_udp = int(os.environ["LIVEKIT_UDP_PORT"])
        self._server_port = int(os.environ["LIVEKIT_URL"].rpartition(":")[2])
        self._nowhere = bound(socket.SOCK_STREAM)  # it does not listen
        self._udp = bound(socket.SOCK_DGRAM)
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=self._udp)
        self._signaling = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._signaling.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._signaling.close()
        self._transport.close()
        self._nowhere.close()
        for task in self._tasks:
            task.cancel()
        for way in self._ways.values():
            asyncio.get_running_loop().remove_reader(way.fileno())
            way.close()

    def cut(self) -> None:
        """From now on nothing passes. The signaling waits, and datagrams are lost."""
        self._open.clear()

    def restore(self) -> None:
        self._open.set()

    async def outage(self, seconds: float) -> None:
        self.cut()
        await asyncio.sleep(seconds)
        self.restore()

    # Signaling: a WebSocket.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        for work in (self._forward(reader, to_server), self._backward(from_server, writer)):
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(READ):
                await self._open.wait()
                writer.write(data)
        except OSError:
            pass
        writer.close()

    async def _backward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The head of the response, and then frames, which a server does not mask."""
        try:
            writer.write(await reader.readuntil(b"\r\n\r\n"))
            while True:
                head = await reader.readexactly(2)
                size = head[1]
                if size >= 126:
                    more = await reader.readexactly(2 if size == 126 else 8)
                    head, size = head + more, int.from_bytes(more, "big")
                data = await reader.readexactly(size)
                await self._open.wait()
                writer.write(head + CANDIDATE.sub(self._replace, data))
        except (OSError, asyncio.IncompleteReadError):
            await self._open.wait()
        writer.close()

    def _replace(self, found: re.Match[bytes]) -> bytes:
        ours = self._udp if int(found[1]) == self._server_udp else self._nowhere
        return b" 127.0.0.1 %d typ host" % ours.getsockname()[1]

    # Media: datagrams.

    def datagram_received(self, data: bytes, address: Any) -> None:
        if not self._open.is_set():
            return
        way = self._ways.get(address)
        if way is None:
            way = self._ways[address] = bound(socket.SOCK_DGRAM)
            way.connect(("127.0.0.1", self._server_udp))
            asyncio.get_running_loop().add_reader(way.fileno(), self._from_server, way, address)
        try:
            way.send(data)
        except OSError:
            pass  # the server is not there

    def _from_server(self, way: socket.socket, address: Any) -> None:
        try:
            while True:
                data = way.recv(READ)
                if self._open.is_set():
                    self._transport.sendto(data, address)
        except OSError:
            pass  # nothing more


def bound(kind: socket.SocketKind) -> socket.socket:
    """A socket at a port with five digits, as the server's ports have."""
    while True:
        made = socket.socket(socket.AF_INET, kind)
        made.setblocking(False)
        made.bind(("127.0.0.1", 0))
        if made.getsockname()[1] >= 10_000:
            return made
        made.close()


class Server:
    """A server of its own, in an ``async with`` statement."""

    async def __aenter__(self) -> Server:
        with bound(socket.SOCK_STREAM) as port, bound(socket.SOCK_DGRAM) as udp:
            ports = {"PORT": str(port.getsockname()[1]), "UDP_PORT": str(udp.getsockname()[1])}
        self._environment = {**os.environ, **ports}
        self.url = f"ws://127.0.0.1:{ports['PORT']}"
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def restart(self) -> None:
        await self.kill()
        await self._start()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def _start(self) -> None:
        null = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            PARTS, "livekit-server", "run", env=self._environment, stdin=null, stdout=null, stderr=null
        )
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", int(self._environment["PORT"]))
                writer.close()
                return
            except OSError:
                await asyncio.sleep(0.05)  # until it listens
