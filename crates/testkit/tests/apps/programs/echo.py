"""Echoes frames of random sizes with checksums: `echo.py server|client blocking|selectors|asyncio PORT [FRAMES]`.

A frame is its payload's length and CRC-32, then the payload. The server checks each frame and sends it back; the client
keeps several frames on their way and checks what returns.
"""

import asyncio
import contextlib
import random
import selectors
import socket
import struct
import sys
import threading
import zlib

HEADER = struct.Struct("!II")
ADDRESS = "127.0.0.1"
FRAMES = int(sys.argv[4]) if len(sys.argv) > 4 else 150
CONNECTIONS = 4
SIZES = (1, 20, 300, 5000, 70000, 300000)


def frames(seed):
    numbers = random.Random(seed)
    for _ in range(FRAMES):
        yield numbers.randbytes(numbers.randint(1, numbers.choice(SIZES)))


def encode(payload):
    return HEADER.pack(len(payload), zlib.crc32(payload)) + payload


class Decoder:
    """Cuts a stream into checked payloads."""

    def __init__(self):
        self.data = bytearray()

    def feed(self, piece):
        self.data += piece
        while len(self.data) >= HEADER.size:
            length, crc = HEADER.unpack_from(self.data)
            if len(self.data) < HEADER.size + length:
                return
            payload = bytes(self.data[HEADER.size : HEADER.size + length])
            del self.data[: HEADER.size + length]
            if zlib.crc32(payload) != crc:
                sys.exit("a frame is damaged")
            yield payload


def serve_blocking(listener):
    def serve(connection):
        with connection:
            decoder = Decoder()
            while piece := connection.recv(65536):
                for payload in decoder.feed(piece):
                    connection.sendall(encode(payload))

    while True:
        connection, _ = listener.accept()
        connection.settimeout(20)
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def serve_selectors(listener):
    selector = selectors.DefaultSelector()
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, events in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, (Decoder(), bytearray()))
                continue
            connection, (decoder, waiting) = key.fileobj, key.data
            if events & selectors.EVENT_READ:
                view = bytearray(30000)
                try:
                    count = connection.recv_into(view)
                except BlockingIOError:
                    continue
                if count == 0:
                    selector.unregister(connection)
                    connection.setblocking(True)
                    connection.sendall(waiting)
                    connection.close()
                    continue
                for payload in decoder.feed(view[:count]):
                    waiting += encode(payload)
            if waiting:
                try:
                    del waiting[: connection.send(waiting)]
                except BlockingIOError:
                    pass
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
            if wanted != key.events:
                selector.modify(connection, wanted, key.data)


async def serve_asyncio(listener):
    async def serve(reader, writer):
        decoder = Decoder()
        while piece := await reader.read(65536):
            for payload in decoder.feed(piece):
                writer.write(encode(payload))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, sock=listener)
    await server.serve_forever()


def check(received, expected):
    if received != expected:
        sys.exit(f"{len(received)} bytes came back wrong")


def call_blocking(port, seed):
    with socket.create_connection((ADDRESS, port), timeout=20) as connection:
        expected = list(frames(seed))

        def send():
            for payload in expected:
                connection.sendall(encode(payload))
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        decoder, received = Decoder(), []
        while piece := connection.recv(random.choice((10, 1000, 100000))):
            received.extend(decoder.feed(piece))
        sender.join()
        check(received, expected)


def call_selectors(port):
    selector = selectors.DefaultSelector()
    for seed in range(CONNECTIONS):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((ADDRESS, port))
        expected = list(frames(seed))
        waiting = bytearray(b"".join(encode(payload) for payload in expected))
        state = [Decoder(), [], expected, waiting]
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, state)
    while selector.get_map():
        events = selector.select(20)
        if not events:
            sys.exit("nothing came for 20 seconds")
        for key, ready in events:
            connection, (decoder, received, expected, waiting) = key.fileobj, key.data
            if ready & selectors.EVENT_WRITE and waiting:
                try:
                    del waiting[: connection.send(waiting[:100000])]
                except BlockingIOError:
                    pass
                if not waiting:
                    connection.shutdown(socket.SHUT_WR)
                    selector.modify(connection, selectors.EVENT_READ, key.data)
            if ready & selectors.EVENT_READ:
                piece = connection.recv(65536)
                received.extend(decoder.feed(piece))
                if not piece:
                    check(received, expected)
                    selector.unregister(connection)
                    connection.close()


async def call_asyncio(port):
    async def call(seed):
        reader, writer = await asyncio.open_connection(ADDRESS, port)
        expected = list(frames(seed))

        async def send():
            for payload in expected:
                writer.write(encode(payload))
                await writer.drain()
            writer.write_eof()

        sender = asyncio.create_task(send())
        decoder, received = Decoder(), []
        while piece := await reader.read(65536):
            received.extend(decoder.feed(piece))
        await sender
        check(received, expected)
        writer.close()

    async with asyncio.timeout(20) if hasattr(asyncio, "timeout") else contextlib.nullcontext():
        await asyncio.gather(*(call(seed) for seed in range(CONNECTIONS)))


def main():
    role, how, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "server":
        listener = socket.create_server((ADDRESS, port), backlog=64)
        if how == "blocking":
            serve_blocking(listener)
        elif how == "selectors":
            serve_selectors(listener)
        else:
            asyncio.run(serve_asyncio(listener))
        return
    if how == "blocking":
        failures = []

        def run(seed):
            try:
                call_blocking(port, seed)
            except (OSError, SystemExit) as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            sys.exit(f"{failures}")
    elif how == "selectors":
        call_selectors(port)
    else:
        asyncio.run(call_asyncio(port))
    print("all messages came back")


main()
