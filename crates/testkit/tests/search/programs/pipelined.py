"""Has the example's client take pages in both of its ways and holds every byte against what the server has sent: `pipelined.py EXAMPLE`."""

import importlib.util
import socket
import sys
import threading

import viaduct

PAGES = 20


class Wire:
    """The stream as it must be; everything that is received is looked up in it."""

    def __init__(self, example):
        self.example, self.left, self.calls = example, b"", []

    def page(self):
        parts = [self.example.head(name, size) + name[-1:].encode() * size for name, size in self.example.PARTS]
        self.left += b"".join(parts)

    def took(self, data, offset, is_peek):
        assert data and data == self.left[offset : offset + len(data)], (offset, len(data), is_peek)
        if not is_peek:
            self.left = self.left[:offset] + self.left[offset + len(data) :]
        self.calls.append((offset, len(data), is_peek))


class InOrder:
    """A connection that is received from in order."""

    def __init__(self, connection, wire):
        self.connection, self.wire = connection, wire

    def recv(self, size, flags):
        data = self.connection.recv(size, flags)
        self.wire.took(data, 0, False)
        return data


def take_pages(example, take, page_is_right):
    wire = Wire(example)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=example.serve, args=(listener,), daemon=True).start()
        with socket.create_connection(listener.getsockname()) as connection:
            for _ in range(PAGES):
                wire.page()
                wire.calls.clear()
                connection.sendall(b"?")
                take(connection, wire)
                assert not wire.left, len(wire.left)
                page_is_right(wire.calls)


def main():
    spec = importlib.util.spec_from_file_location("example", sys.argv[1])
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    sizes = [(example.HEAD, size) for _, size in example.PARTS]
    style = [name for name, _ in example.PARTS].index("style")
    before, (head, size) = sizes[:style], sizes[style]
    # Where each part begins.
    starts = [sum(map(sum, sizes[:part])) for part in range(style + 1)]

    def in_order(calls):
        assert calls == [(0, part, False) for both in sizes for part in both], calls

    def searched(calls):
        # From head to head, then the style sheet from behind pictures of which nothing has been received.
        assert calls[: style + 1] == [(start, head, True) for start in starts], calls
        assert calls[style + 1] == (starts[-1], head + size, False), calls
        copied = sum(taken for _, taken, _ in calls[: style + 2])
        assert 100 * copied < sum(map(sum, before)), copied
        rest = [part for both in before + sizes[style + 1 :] for part in both]
        assert calls[style + 2 :] == [(0, part, False) for part in rest], calls

    take_pages(example, lambda connection, wire: example.in_order(InOrder(connection, wire)), in_order)
    receive = viaduct.seek_recv

    def search(connection, wire):
        def recorded(connection, size, offset=0, flags=0):
            data = receive(connection, size, offset, flags)
            wire.took(data, offset, bool(flags & socket.MSG_PEEK))
            return data

        viaduct.seek_recv = recorded
        example.searching(connection)

    take_pages(example, search, searched)
    print("every byte was right")


main()
