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
import ctypes
import errno
import os
import socket as _socket
from typing import NamedTuple, NoReturn, Optional, Union

from ._library import Message as _Message
from ._library import library as _library

__all__ = [
    "ANY",
    "AsyncInbox",
    "Cancelled",
    "Ended",
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


class Malformed(MessageError):
    """What came is no message."""


class TooLong(MessageError):
    """A message is longer than the inbox takes."""


class Truncated(MessageError):
    """The stream ended within a message."""


class Ended(MessageError):
    """No source is left that could send such a message."""


class Cancelled(MessageError):
    """:meth:`Inbox.cancel` was called."""


_ERRORS = {
    errno.EBADMSG: Malformed,
    errno.EOVERFLOW: TooLong,
    errno.EPROTO: Truncated,
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


async def async_seek_recv(socket: _socket.socket, size: int, offset: int = 0) -> bytes:
    """Receives exactly ``size`` bytes from ``offset`` on, fewer only at the end of the stream, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    wait = 0.0005
    while True:
        got = await loop.run_in_executor(None, _try_whole, socket, size, offset)
        if got is not None:
            return got
        # Unread bytes before the offset keep the socket readable, so its readiness says nothing.
        await asyncio.sleep(wait)
        wait = min(wait * 2, 0.01)


def _try_whole(socket: _socket.socket, size: int, offset: int) -> Optional[bytes]:
    try:
        there = seek_recv(socket, size, offset, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        if 0 < len(there) < size and not _has_ended(socket, offset + len(there)):
            return None
        return seek_recv(socket, size, offset, _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None


def _has_ended(socket: _socket.socket, offset: int) -> bool:
    try:
        return not seek_recv(socket, 1, offset, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def send(socket: Socket, tag: int, payload: bytes) -> None:
    """Sends a message, all of it."""
    if not 0 <= tag <= 0xFFFFFFFF:
        raise ValueError("a tag has 32 bits")
    if _library.viaduct_msg_send(_fd(socket), tag, bytes(payload), len(payload)) != 0:
        _fail()


class Inbox:
    """Receives tagged messages from one stream socket or several, in any order. Threads may share it."""

    def __init__(self, longest: int = 0) -> None:
        """``longest``: bytes of the longest payload it takes; 0 is 64 MiB."""
        if longest < 0:
            raise ValueError("negative length")
        self._inbox: Optional[int] = _library.viaduct_inbox_open(longest)
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
        return self._check(_library.viaduct_inbox_add(self._open(), _fd(socket)))

    def remove(self, source: int) -> None:
        """Takes a source out."""
        self._check(_library.viaduct_inbox_remove(self._open(), source))

    def receive(self, tag: int = ANY, source: int = ANY, timeout: Optional[float] = None) -> Message:
        """The first message that matches; waits for it, at most ``timeout`` seconds (:exc:`TimeoutError`)."""
        info = _Message()
        room = 4096
        while True:
            buffer = ctypes.create_string_buffer(room)
            limit = -1 if timeout is None else max(0, int(timeout * 1000))
            got = _library.viaduct_msg_recv(self._open(), tag, source, buffer, room, limit, ctypes.byref(info))
            if got < 0 and ctypes.get_errno() == errno.EMSGSIZE:
                room = info.len
                continue
            self._check(got)
            return Message(info.tag, info.source, buffer.raw[:got])

    def probe(self, tag: int = ANY, source: int = ANY, timeout: Optional[float] = 0) -> tuple[int, int, int]:
        """Tag, source and length of the first message that matches, without receiving it."""
        info = _Message()
        limit = -1 if timeout is None else max(0, int(timeout * 1000))
        self._check(_library.viaduct_msg_probe(self._open(), tag, source, limit, ctypes.byref(info)))
        return info.tag, info.source, info.len

    def cancel(self) -> None:
        """Calls that wait now raise :exc:`Cancelled`."""
        self._check(_library.viaduct_msg_cancel(self._open()))

    def _open(self) -> int:
        if not self._inbox:
            raise ValueError("the inbox is closed")
        return self._inbox

    @staticmethod
    def _check(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            if number in _ERRORS:
                raise _ERRORS[number](os.strerror(number))
            if number == errno.ETIMEDOUT:
                raise TimeoutError(number, os.strerror(number))
            _fail()
        return result


class AsyncInbox(Inbox):
    """An inbox for asyncio. What is cancelled takes no message."""

    async def receive_async(self, tag: int = ANY, source: int = ANY) -> Message:
        """As :meth:`Inbox.receive`, without blocking the event loop."""
        wait = 0.0005
        while True:
            try:
                # Without waiting, so that no thread is left behind by a task that is cancelled.
                return self.receive(tag, source, timeout=0)
            except TimeoutError:
                await asyncio.sleep(wait)
                wait = min(wait * 2, 0.01)

    def __aiter__(self) -> "AsyncInbox":
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive_async()
        except Ended:
            raise StopAsyncIteration from None
