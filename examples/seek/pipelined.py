"""Pipelined replies, taken as they are needed.

A client sends requests for a page and its parts on one connection. The server answers in order, like HTTP/1.1 with pipelining: a
head with the length, then the body. The client wants the small style sheet first, which stands behind large pictures. In order it
receives and keeps the pictures to get there; by direct search it walks from head to head, takes the style sheet and
receives the pictures when it needs them.

    python3 pipelined.py
    viaduct run python3 pipelined.py
"""

import resource
import socket
import threading
import time

import viaduct

PARTS = [("picture-1", 400_000), ("picture-2", 400_000), ("picture-3", 100_000), ("style", 2_000), ("picture-4", 90_000)]
HEAD = 64
ROUNDS = 100


def head(name, size):
    return f"200 {name} {size}".encode().ljust(HEAD)


def serve(listener):
    connection, _ = listener.accept()
    with connection:
        while connection.recv(1):
            for name, size in PARTS:
                connection.sendall(head(name, size) + name[-1:].encode() * size)


def parse(text):
    _, name, size = text.split()
    return name.decode(), int(size)


def receive(connection, size, offset=0):
    data = viaduct.seek_recv(connection, size, offset, socket.MSG_WAITALL)
    assert len(data) == size
    return data


def in_order(connection):
    """The time until the style sheet is there; the rest is kept meanwhile."""
    began, kept, style_at = time.perf_counter(), {}, 0.0
    for _ in PARTS:
        name, size = parse(connection.recv(HEAD, socket.MSG_WAITALL))
        kept[name] = connection.recv(size, socket.MSG_WAITALL)
        if name == "style":
            style_at = time.perf_counter() - began
    return style_at


def searching(connection):
    """The same by direct search."""
    began, offset = time.perf_counter(), 0
    while True:
        flags = socket.MSG_PEEK | socket.MSG_WAITALL
        name, size = parse(viaduct.seek_recv(connection, HEAD, offset, flags))
        if name == "style":
            receive(connection, HEAD + size, offset)
            break
        offset += HEAD + size
    style_at = time.perf_counter() - began
    for name, size in PARTS:
        if name != "style":
            assert parse(receive(connection, HEAD)) == (name, size)
            receive(connection, size)
    return style_at


def measure(name, once):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_000_000)
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with socket.create_connection(listener.getsockname()) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_000_000)
            before, times = resource.getrusage(resource.RUSAGE_THREAD), []
            for _ in range(ROUNDS):
                connection.sendall(b"?")
                times.append(once(connection))
            after = resource.getrusage(resource.RUSAGE_THREAD)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    style = sorted(times)[ROUNDS // 2] * 1e6
    print(f"{name:14}  style sheet after {style:5.0f} us, {cpu / ROUNDS * 1e6:5.0f} us of the client's processor a page")


if __name__ == "__main__":
    measure("in order", in_order)
    measure("direct search", searching)
