"""Direct search: receiving any message from the middle of a TCP stream.

>>> import socket, viaduct
>>> with socket.create_server(("127.0.0.1", 0)) as listener:
...     near = socket.create_connection(listener.getsockname())
...     far, _ = listener.accept()
>>> near.sendall(b"bulk, bulk, bulk; urgent")
>>> viaduct.seek_recv(far, 6, offset=18, flags=socket.MSG_WAITALL)
b'urgent'
>>> viaduct.seek_recv(far, 100)
b'bulk, bulk, bulk; '
>>> near.close(), far.close()
(None, None)

The bytes received become a hole, which later calls skip. Under ``viaduct run`` the socket's own ``recv`` skips holes too; without it,
receive from a socket that has been received from by :func:`seek_recv` by it only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import select
import socket as _socket
import struct
import threading
import time
from typing import Callable, Iterator, NamedTuple, NoReturn, Optional, TypeVar, Union

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
    "async_send",
    "send",
]

#: Any tag, any source.
ANY = -1

Socket = Union[_socket.socket, int]
_Bytes = Union[bytes, bytearray, memoryview]
_Self = TypeVar("_Self", bound="Inbox")


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


def _fail() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def _wait_time(socket: Socket, flags: int) -> Optional[float]:
    """Seconds that Python's own calls would wait: it keeps the timeout of a socket, and the socket itself does not block."""
    if isinstance(socket, int) or flags & _socket.MSG_DONTWAIT:
        return None
    return socket.gettimeout() or None


def seek_recv_into(socket: Socket, buffer: Union[bytearray, memoryview], offset: int = 0, flags: int = 0) -> int:
    """Receives into ``buffer`` what stands ``offset`` unread bytes after the next byte of the stream.

    Returns how many bytes there were, 0 at the end of the stream. Blocks unless the socket or ``flags`` say otherwise
    (:exc:`BlockingIOError`), at most as long as the socket's timeout (:exc:`TimeoutError`, which has taken nothing).
    ``MSG_WAITALL`` waits until all of it has come (:exc:`OSError` with ``ENOBUFS``: the buffer cannot hold so much). At offset 0 it takes parts
    as they come, as ``recv`` does, and returns what there was when the time is over; an error takes with it what came before. With ``MSG_PEEK``,
    what the buffer can hold.
    """
    if offset < 0:
        raise ValueError("negative offset")
    view = memoryview(buffer).cast("B")
    if view.readonly:
        raise TypeError("the buffer is read-only")
    timeout = _wait_time(socket, flags)
    if timeout is None or isinstance(socket, int):
        return _seek(_fd(socket), view, offset, flags)
    return _seek_in_time(socket, view, offset, flags, timeout)


def _seek(fd: int, view: memoryview, offset: int, flags: int) -> int:
    place = (ctypes.c_char * len(view)).from_buffer(view) if len(view) else None
    while True:
        got: int = _library.viaduct_seek_recv(fd, place, len(view), flags, offset)
        if got >= 0:
            return got
        # As Python's own calls do; a handler that raises has its way between the two.
        if ctypes.get_errno() != errno.EINTR:
            _fail()


def _seek_in_time(socket: _socket.socket, view: memoryview, offset: int, flags: int, timeout: float) -> int:
    until = time.monotonic() + timeout
    whole = flags & _socket.MSG_WAITALL
    # In order, parts are taken as they come: the buffer may not hold all of it.
    parts = whole and not offset and not flags & _socket.MSG_PEEK
    if parts:
        flags &= ~_socket.MSG_WAITALL
    taken = 0
    over = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
    # Unread bytes keep the socket readable, so this looks at edges.
    arrivals = select.epoll()
    try:
        arrivals.register(socket, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        while True:
            arrivals.poll(0)
            there = readable(socket)
            try:
                got = _try(socket, view[taken:], offset, flags)
                taken += got
                if not parts or not got or taken == len(view):
                    return taken
                continue
            except BlockingIOError:
                pass
            except OSError as error:
                if offset or not whole or parts or error.errno != errno.ENOBUFS:
                    raise
                # What there is of it: only a peek at the head asks for all.
                return _seek(_fd(socket), view, offset, flags | _socket.MSG_DONTWAIT)
            # That look may have made an edge itself.
            while True:
                left = until - time.monotonic()
                if left <= 0:
                    if taken:
                        return taken
                    raise _socket.timeout("timed out")
                events = arrivals.poll(min(left, 0.2))
                if not events or events[0][1] & over or readable(socket) != there:
                    break
    finally:
        arrivals.close()


def _try(socket: Socket, view: memoryview, offset: int, flags: int) -> int:
    """Without waiting: as much as a call that waits would answer with."""
    fd, now = _fd(socket), flags | _socket.MSG_DONTWAIT
    if flags & _socket.MSG_WAITALL and len(view):
        # Its last byte, or the end of the stream.
        last = _seek(fd, memoryview(bytearray(1)), offset + len(view) - 1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        # While a stream changes its path, bytes may come before those in front of them; unless this is the end, all must be there.
        if last and _seek(fd, view, offset, now | _socket.MSG_PEEK | _socket.MSG_TRUNC) < len(view):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _seek(fd, view, offset, now)


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


class _Outgoing:
    """A message that is being sent."""

    def __init__(self, tag: int, payload: _Bytes) -> None:
        if not 0 <= tag <= 0xFFFFFFFF:
            raise ValueError("a tag has 32 bits")
        body = memoryview(payload).cast("B")
        if len(body) > 0xFFFFFFFF:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        self._parts = [memoryview(struct.pack("<4sII", b"VMSG", tag, len(body))), body]

    def go_on(self, socket: _socket.socket) -> bool:
        """Sends what there is room for, without waiting; whether that was all."""
        if socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_TYPE) != _socket.SOCK_STREAM:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        while self._parts:
            try:
                sent = socket.sendmsg(self._parts, (), _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except _socket.timeout as error:
                # A socket with a timeout has waited as long; the connection's own timeout has a number.
                if error.errno is not None:
                    raise
                return False
            while self._parts and sent >= len(self._parts[0]):
                sent -= len(self._parts.pop(0))
            if self._parts:
                self._parts[0] = self._parts[0][sent:]
        return True


@contextlib.contextmanager
def _as_socket(socket: Socket) -> Iterator[_socket.socket]:
    if not isinstance(socket, int):
        yield socket
        return
    blocking = os.get_blocking(socket)
    borrowed = _socket.socket(fileno=socket)
    try:
        # A default timeout would have changed it.
        borrowed.setblocking(blocking)
        yield borrowed
    finally:
        borrowed.detach()


def send(socket: Socket, tag: int, payload: _Bytes) -> None:
    """Sends a message, all of it; waits for room even where the socket does not block.

    Whoever sends on one socket must take turns. After an exception part of the message may have been sent, and no other can follow.
    """
    message = _Outgoing(tag, payload)
    with _as_socket(socket) as way:
        while not message.go_on(way):
            room = select.poll()
            room.register(way, select.POLLOUT)
            room.poll()


class Inbox:
    """Receives tagged messages from one stream socket or several, in any order. Threads may share it."""

    def __init__(self, longest: int = 0, store: int = 0) -> None:
        """``longest``: bytes of the longest payload it takes; ``store``: bytes it keeps of each source that the source's socket cannot
        hold. 0 is 64 MiB."""
        if longest < 0 or store < 0:
            raise ValueError("negative length")
        # Signal handlers use inboxes too, so a thread must not wait for itself.
        self._lock = threading.RLock()
        self._users = 0
        self._closed = False
        self._cancelled = 0
        self._inbox: Optional[int] = _library.viaduct_inbox_open(longest, store)
        if not self._inbox:
            _fail()

    def close(self) -> None:
        """Gives it up. Calls that other threads make now raise :exc:`Cancelled`. The sockets stay open."""
        with self._lock:
            self._closed = True
            if self._users and self._inbox:
                _library.viaduct_msg_cancel(self._inbox)
        self._give_up()

    def _give_up(self) -> None:
        """Frees a closed inbox that no call uses."""
        with self._lock:
            if self._closed and not self._users:
                inbox, self._inbox = self._inbox, None
                if inbox:
                    _library.viaduct_inbox_close(inbox)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """The library's inbox, which stays while the caller uses it."""
        with self._lock:
            # In this order: a signal handler may close it in between.
            self._users += 1
            inbox = None if self._closed else self._inbox
        try:
            if not inbox:
                raise ValueError("the inbox is closed")
            yield inbox
        finally:
            with self._lock:
                self._users -= 1
            self._give_up()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_inbox", None):
            self.close()

    def add(self, socket: Socket) -> int:
        """Adds a connected stream socket, from which nobody else receives any more; its number among the sources."""
        with self._open() as inbox:
            number: int = _library.viaduct_inbox_add(inbox, _fd(socket))
            if number < 0:
                _fail()
        return number

    def remove(self, source: int) -> None:
        """Takes a source out."""
        with self._open() as inbox:
            if _library.viaduct_inbox_remove(inbox, source) < 0:
                _fail()

    def receive(self, tag: int = ANY, source: int = ANY, timeout: Optional[float] = None) -> Message:
        """The first message that matches; waits for it, at most ``timeout`` seconds (:exc:`TimeoutError`).

        What is wrong with a source is told once, and the others go on; a call that names the source is told each time.
        """
        place = ctypes.create_string_buffer(4096)

        def look(inbox: int, ms: int, info: _Message) -> int:
            nonlocal place
            while True:
                got: int = _library.viaduct_msg_recv(inbox, tag, source, place, len(place), ms, ctypes.byref(info))
                if got >= 0 or ctypes.get_errno() != errno.EMSGSIZE:
                    return got
                # All of it is there.
                place = ctypes.create_string_buffer(info.len)

        info = self._wait(look, timeout)
        return Message(info.tag, info.source, place.raw[: info.len])

    def probe(self, tag: int = ANY, source: int = ANY, timeout: Optional[float] = 0) -> tuple[int, int, int]:
        """Tag, source and length of the first message that matches, without receiving it."""

        def look(inbox: int, ms: int, info: _Message) -> int:
            got: int = _library.viaduct_msg_probe(inbox, tag, source, ms, ctypes.byref(info))
            return got

        info = self._wait(look, timeout)
        return info.tag, info.source, info.len

    def _wait(self, look: Callable[[int, int, _Message], int], timeout: Optional[float]) -> _Message:
        """What the call tells of, made again until ``timeout``: it returns to Python now and then, where signals are handled."""
        info = _Message(source=-1)
        until = None if timeout is None else time.monotonic() + timeout
        with self._open() as inbox:
            cancelled = self._cancelled
            while True:
                ms, last = _slice(until)
                if look(inbox, ms, info) >= 0:
                    return info
                number = ctypes.get_errno()
                again = number == errno.EINTR or number == errno.ETIMEDOUT and info.source < 0 and not last
                if not again:
                    raise _trouble(number, info)
                # The library knows of waits in it only.
                if self._closed or self._cancelled != cancelled:
                    raise Cancelled(os.strerror(errno.ECANCELED))

    def fileno(self) -> int:
        """For ``select`` and its kin: readable when messages may have come since the last call that received or probed. Call with a timeout
        of 0 until :exc:`TimeoutError`, then wait."""
        with self._open() as inbox:
            number: int = _library.viaduct_inbox_fd(inbox)
        return number

    def cancel(self) -> None:
        """Calls that wait now raise :exc:`Cancelled`."""
        with self._open() as inbox:
            with self._lock:
                self._cancelled += 1
            _library.viaduct_msg_cancel(inbox)


def _slice(until: Optional[float]) -> tuple[int, bool]:
    """Milliseconds for one call of a wait that ends at ``until``, and whether it is the last. A signal that comes just before the call ends
    none, so none is long."""
    longest = 200
    if until is None:
        return longest, False
    left = max(0.0, until - time.monotonic()) * 1000
    return (math.ceil(left), True) if left <= longest else (longest, False)


def _trouble(number: int, info: _Message) -> Exception:
    text = os.strerror(number)
    if number == errno.ETIMEDOUT and info.source < 0:
        return TimeoutError(number, text)
    if number not in _ERRORS and info.source < 0:
        return OSError(number, text)
    error = _ERRORS.get(number, Failed)(text)
    error.source = info.source if info.source >= 0 else None
    if isinstance(error, Failed):
        error.__cause__ = OSError(number, text)
    return error


# At the end: it uses what is above.
from ._async import AsyncInbox, async_seek_recv, async_send  # noqa: E402
