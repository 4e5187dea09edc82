"""Direct search: receiving any message from the middle of a TCP stream.

>>> import socket, viaduct
>>> near, far = connected_pair()                              # doctest: +SKIP
>>> near.sendall(b"bulk, bulk, bulk; urgent")                 # doctest: +SKIP
>>> viaduct.seek_recv(far, 6, offset=18, flags=socket.MSG_WAITALL)  # doctest: +SKIP
b'urgent'

The bytes received become a hole, which later calls skip. Under ``viaduct run`` the socket's own ``recv`` skips holes too; without it,
receive from a socket that has holes by :func:`seek_recv` only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import math
import os
import select
import socket as _socket
import time
from typing import Iterator, NamedTuple, NoReturn, Optional, Union

from ._library import Message as _Message
from ._library import library as _library

__all__ = [
    "ANY",
    "AsyncInbox",
    "Cancelled",
    "Ended",
    "Failed",
    "Full",
    "Inbox",
    "Malformed",
    "Message",
    "MessageError",
    "TooLong",
    "Truncated",
    "readable",
    "seek_recv",
    "seek_recv_into",
    "async_seek_recv",
    "send",
]

#: Any tag, any source.
ANY = -1

Socket = Union[_socket.socket, int]


class MessageError(Exception):
    """A message could not be received."""

    #: The source it tells of, if it does of one.
    source: Optional[int] = None


class Malformed(MessageError):
    """What came is no message."""


class TooLong(MessageError):
    """A message is longer than the inbox takes."""


class Truncated(MessageError):
    """The stream ended within a message."""


class Full(MessageError):
    """No more of a source can be kept; goes on once others of its messages are received, the first of which always can be."""


class Failed(MessageError):
    """A call on a source's socket failed; its ``__cause__`` says why."""


class Ended(MessageError):
    """No source is left that could send such a message."""


class Cancelled(MessageError):
    """:meth:`Inbox.cancel` was called."""


_ERRORS = {
    errno.EBADMSG: Malformed,
    errno.EOVERFLOW: TooLong,
    errno.EPROTO: Truncated,
    errno.ENOBUFS: Full,
    errno.ENOTCONN: Ended,
    errno.ECANCELED: Cancelled,
}


class Message(NamedTuple):
    """A message."""

    tag: int
    source: int
    payload: bytes


def _fd(socket: Socket) -> int:
    return socket if isinstance(socket, int) else socket.fileno()


def _milliseconds(until: Optional[float]) -> int:
    """How long a call may wait; -1: for ever, which a wait of weeks stands for too."""
    if until is None:
        return -1
    left = max(0.0, until - time.monotonic()) * 1000
    return math.ceil(left) if left < 0x7FFFFFFF else -1


def _fail() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def seek_recv_into(socket: Socket, buffer: Union[bytearray, memoryview], offset: int = 0, flags: int = 0) -> int:
    """Receives into ``buffer`` what stands ``offset`` unread bytes after the next byte of the stream.

    Returns how many bytes there were, 0 at the end of the stream. Blocks unless the socket or ``flags`` say otherwise; a Python
    timeout makes the socket non-blocking.
    """
    if offset < 0:
        raise ValueError("negative offset")
    view = memoryview(buffer).cast("B")
    if view.readonly:
        raise TypeError("the buffer is read-only")
    place = (ctypes.c_char * len(view)).from_buffer(view) if len(view) else None
    got: int = _library.viaduct_seek_recv(_fd(socket), place, len(view), flags, offset)
    if got < 0:
        _fail()
    return got


def seek_recv(socket: Socket, size: int, offset: int = 0, flags: int = 0) -> bytes:
    """Receives at most ``size`` bytes, as :func:`seek_recv_into` does."""
    if size < 0:
        raise ValueError("negative size")
    buffer = bytearray(size)
    return bytes(memoryview(buffer)[: seek_recv_into(socket, buffer, offset, flags)])


def readable(socket: Socket) -> int:
    """Bytes that can be received now, holes not counted."""
    count: int = _library.viaduct_readable(_fd(socket))
    if count < 0:
        _fail()
    return count


class _Arrivals:
    """Tells tasks that something has come. Unread bytes keep a socket readable all the time, so this looks at edges."""

    def __init__(self) -> None:
        self._set = select.epoll()
        self._waiters: set[asyncio.Future[None]] = set()

    def add(self, fd: int) -> None:
        self._set.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def close(self) -> None:
        self._set.close()

    @contextlib.contextmanager
    def expect(self) -> Iterator[asyncio.Future[None]]:
        """Something that is done once anything comes from now on: so expect first, then look, then wait."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self._waiters:
            loop.add_reader(self._set.fileno(), self.tell)
        self._waiters.add(future)
        try:
            yield future
        finally:
            self._waiters.discard(future)
            if not self._waiters:
                loop.remove_reader(self._set.fileno())

    def tell(self, error: Optional[Exception] = None) -> None:
        """Has every task that waits look again, or raise."""
        self._set.poll(0)
        for future in self._waiters:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


async def async_seek_recv(socket: _socket.socket, size: int, offset: int = 0) -> bytes:
    """Receives exactly ``size`` bytes from ``offset`` on, fewer only at the end of the stream, without blocking the event loop.

    Takes nothing if it is cancelled. :exc:`OSError` with ``ENOBUFS``: the buffer cannot hold so much.
    """
    if size == 0:
        return seek_recv(socket, size, offset)
    got = _try_whole(socket, size, offset)
    if got is not None:
        return got
    arrivals = _Arrivals()
    try:
        arrivals.add(_fd(socket))
        while True:
            with arrivals.expect() as arrival:
                got = _try_whole(socket, size, offset)
                if got is not None:
                    return got
                await arrival
    finally:
        arrivals.close()


def _try_whole(socket: Socket, size: int, offset: int) -> Optional[bytes]:
    if size < 0 or offset < 0:
        raise ValueError("negative size or offset")
    try:
        # The last byte tells of all before it, and so does the end of the stream.
        seek_recv(socket, 1, offset + size - 1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        return seek_recv(socket, size, offset, _socket.MSG_WAITALL | _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None


def send(socket: Socket, tag: int, payload: bytes) -> None:
    """Sends a message, all of it."""
    if not 0 <= tag <= 0xFFFFFFFF:
        raise ValueError("a tag has 32 bits")
    if _library.viaduct_msg_send(_fd(socket), tag, bytes(payload), len(payload)) != 0:
        _fail()


class Inbox:
    """Receives tagged messages from one stream socket or several, in any order. Threads may share it."""

    def __init__(self, longest: int = 0, store: int = 0) -> None:
        """``longest``: bytes of the longest payload it takes; ``store``: bytes it keeps of each source that the source's socket cannot
        hold. 0 is 64 MiB."""
        if longest < 0 or store < 0:
            raise ValueError("negative length")
        self._inbox: Optional[int] = _library.viaduct_inbox_open(longest, store)
        if not self._inbox:
            _fail()

    def close(self) -> None:
        """Gives it up. The sockets stay open."""
        inbox, self._inbox = self._inbox, None
        if inbox:
            _library.viaduct_inbox_close(inbox)

    def __enter__(self) -> "Inbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_inbox", None):
            self.close()

    def add(self, socket: Socket) -> int:
        """Adds a connected stream socket, from which nobody else receives any more; its number among the sources."""
        number: int = _library.viaduct_inbox_add(self._open(), _fd(socket))
        if number < 0:
            _fail()
        return number

    def remove(self, source: int) -> None:
        """Takes a source out."""
        if _library.viaduct_inbox_remove(self._open(), source) < 0:
            _fail()

    def receive(self, tag: int = ANY, source: int = ANY, timeout: Optional[float] = None) -> Message:
        """The first message that matches; waits for it, at most ``timeout`` seconds (:exc:`TimeoutError`).

        What is wrong with a source is told once, and the others go on; a call that names the source is told each time.
        """
        info = _Message(source=-1)
        room = 4096
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            buffer = ctypes.create_string_buffer(room)
            got = _library.viaduct_msg_recv(
                self._open(), tag, source, buffer, room, _milliseconds(until), ctypes.byref(info)
            )
            if got < 0 and ctypes.get_errno() == errno.EMSGSIZE:
                room = info.len
                continue
            self._check(got, info)
            return Message(info.tag, info.source, buffer.raw[:got])

    def probe(self, tag: int = ANY, source: int = ANY, timeout: Optional[float] = 0) -> tuple[int, int, int]:
        """Tag, source and length of the first message that matches, without receiving it."""
        info = _Message(source=-1)
        until = None if timeout is None else time.monotonic() + timeout
        self._check(
            _library.viaduct_msg_probe(self._open(), tag, source, _milliseconds(until), ctypes.byref(info)), info
        )
        return info.tag, info.source, info.len

    def fileno(self) -> int:
        """For ``select`` and its kin: readable when messages may have come since the last call that received or probed. Call with a timeout
        of 0 until :exc:`TimeoutError`, then wait."""
        number: int = _library.viaduct_inbox_fd(self._open())
        return number

    def cancel(self) -> None:
        """Calls that wait now raise :exc:`Cancelled`."""
        if _library.viaduct_msg_cancel(self._open()) < 0:
            _fail()

    def _open(self) -> int:
        if not self._inbox:
            raise ValueError("the inbox is closed")
        return self._inbox

    @staticmethod
    def _check(result: int, info: _Message) -> None:
        if result >= 0:
            return
        number = ctypes.get_errno()
        text = os.strerror(number)
        if number == errno.ETIMEDOUT and info.source < 0:
            raise TimeoutError(number, text)
        if number not in _ERRORS and info.source < 0:
            raise OSError(number, text)
        error = _ERRORS.get(number, Failed)(text)
        error.source = info.source if info.source >= 0 else None
        raise error from (OSError(number, text) if isinstance(error, Failed) else None)


class AsyncInbox(Inbox):
    """An inbox for asyncio, used by the tasks of one event loop. What is cancelled takes no message."""

    def __init__(self, longest: int = 0, store: int = 0) -> None:
        super().__init__(longest, store)
        self._arrivals = _Arrivals()
        self._sockets: dict[int, int] = {}

    def close(self) -> None:
        if self._inbox:
            for source in list(self._sockets):
                os.close(self._sockets.pop(source))
            self._arrivals.close()
        super().close()

    def add(self, socket: Socket) -> int:
        source = super().add(socket)
        # One of our own: the caller may close its descriptor.
        self._sockets[source] = os.dup(_fd(socket))
        self._arrivals.add(self._sockets[source])
        return source

    def remove(self, source: int) -> None:
        super().remove(source)
        os.close(self._sockets.pop(source))
        self._arrivals.tell()

    def cancel(self) -> None:
        super().cancel()
        self._arrivals.tell(Cancelled(os.strerror(errno.ECANCELED)))

    async def receive_async(self, tag: int = ANY, source: int = ANY) -> Message:
        """As :meth:`Inbox.receive`, without blocking the event loop."""
        while True:
            with self._arrivals.expect() as arrival:
                try:
                    message = self.receive(tag, source, timeout=0)
                except TimeoutError:
                    await arrival
                    continue
            # There may be room now for what another task waits for.
            self._arrivals.tell()
            return message

    def __aiter__(self) -> "AsyncInbox":
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive_async()
        except Ended:
            raise StopAsyncIteration from None
