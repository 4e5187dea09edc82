"""What is for tasks of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket as _socket
from typing import Callable, Iterator, Optional, TypeVar

from . import (
    ANY,
    Cancelled,
    Ended,
    Inbox,
    Message,
    Socket,
    _as_socket,
    _Bytes,
    _fd,
    _Outgoing,
    _try,
    readable,
)

_T = TypeVar("_T")

#: Seconds until a look without news: that the buffer is full no edge tells.
_LONGEST = 0.2


class _Arrivals:
    """Tells tasks that something has come. Unread bytes keep a socket readable all the time, so this looks at edges."""

    def __init__(self) -> None:
        self._set = select.epoll()
        self._waiters: set[asyncio.Future[None]] = set()
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    def add(self, fd: int) -> None:
        self._set.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, fd: int) -> None:
        self._set.unregister(fd)

    def close(self) -> None:
        self._leave()
        self._set.close()

    def _leave(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._set.fileno())

    @contextlib.contextmanager
    def expect(self) -> Iterator[asyncio.Future[None]]:
        """Something that is done once anything comes from now on: so expect first, then look, then wait."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self._loop is None:
            loop.add_reader(self._set.fileno(), self.tell)
            self._loop = loop
        self._waiters.add(future)
        try:
            yield future
        finally:
            self._waiters.discard(future)
            if not self._waiters:
                self._leave()

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


async def async_seek_recv(socket: _socket.socket, size: int, offset: int = 0, flags: int = 0) -> bytes:
    """Receives exactly ``size`` bytes from ``offset`` on, fewer only at the end of the stream, without blocking the event loop.

    ``flags``: ``MSG_PEEK`` leaves them; ``MSG_DONTWAIT`` raises :exc:`BlockingIOError` where they are not all there. Takes nothing if it
    is cancelled. The socket's timeout does not count: use :func:`asyncio.wait_for`. :exc:`OSError` with ``ENOBUFS``: the buffer cannot
    hold so much.
    """
    if size < 0 or offset < 0:
        raise ValueError("negative size or offset")
    view = memoryview(bytearray(size))
    whole = flags | _socket.MSG_WAITALL
    try:
        return bytes(view[: _try(socket, view, offset, whole)])
    except BlockingIOError:
        if flags & _socket.MSG_DONTWAIT:
            raise
    arrivals = _Arrivals()
    try:
        arrivals.add(_fd(socket))
        while True:
            with arrivals.expect() as arrival:
                there = readable(socket)
                try:
                    return bytes(view[: _try(socket, view, offset, whole)])
                except BlockingIOError:
                    await asyncio.wait([arrival], timeout=_LONGEST)
            # That look may have made an edge itself.
            while arrival.done() and readable(socket) == there and not _has_ended(socket):
                with arrivals.expect() as arrival:
                    if readable(socket) == there:
                        await asyncio.wait([arrival], timeout=_LONGEST)
    finally:
        arrivals.close()


def _has_ended(socket: _socket.socket) -> bool:
    end = select.poll()
    end.register(socket, select.POLLRDHUP)
    return bool(end.poll(0))


async def async_send(socket: _socket.socket, tag: int, payload: _Bytes) -> None:
    """As :func:`send`, without blocking the event loop. ``payload`` must not change meanwhile."""
    message = _Outgoing(tag, payload)
    # One with a timeout would wait.
    if not socket.gettimeout() and message.go_on(socket):
        return
    # A descriptor of its own: the loop knows one writer of each, and the program may be another.
    number = os.dup(socket.fileno())
    try:
        with _as_socket(number) as way:
            while not message.go_on(way):
                await _room(number)
    finally:
        os.close(number)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _room(number: int) -> None:
    loop = asyncio.get_running_loop()
    room: asyncio.Future[None] = loop.create_future()
    loop.add_writer(number, _wake, room)
    try:
        await room
    finally:
        loop.remove_writer(number)


class AsyncInbox(Inbox):
    """An inbox for asyncio, used by the tasks of one event loop. What is cancelled takes no message."""

    def __init__(self, longest: int = 0, store: int = 0) -> None:
        self._arrivals = _Arrivals()
        self._sockets: dict[int, int] = {}
        super().__init__(longest, store)
        # Of what the library waits for other than edges. These it does not tell each task: the first that looks takes them.
        self._arrivals.add(self.fileno())

    def close(self) -> None:
        """Gives it up. Tasks that wait now raise :exc:`Cancelled`. The sockets stay open."""
        if not self._closed:
            for source in list(self._sockets):
                os.close(self._sockets.pop(source))
            self._arrivals.tell(Cancelled(os.strerror(errno.ECANCELED)))
            self._arrivals.close()
        super().close()

    def add(self, socket: Socket) -> int:
        with self._open(), contextlib.ExitStack() as undo:
            # One of our own: the caller may close its descriptor.
            own = os.dup(_fd(socket))
            undo.callback(os.close, own)
            source = super().add(socket)
            undo.callback(super().remove, source)
            self._arrivals.add(own)
            undo.pop_all()
            self._sockets[source] = own
        return source

    def remove(self, source: int) -> None:
        super().remove(source)
        own = self._sockets.pop(source)
        # The caller's descriptor would keep it in the set.
        self._arrivals.remove(own)
        os.close(own)
        self._arrivals.tell()

    def cancel(self) -> None:
        super().cancel()
        self._arrivals.tell(Cancelled(os.strerror(errno.ECANCELED)))

    async def receive_async(self, tag: int = ANY, source: int = ANY) -> Message:
        """As :meth:`Inbox.receive`, without blocking the event loop."""
        message = await self._look_async(lambda: self.receive(tag, source, timeout=0))
        # There may be room now for what another task waits for.
        self._arrivals.tell()
        return message

    async def probe_async(self, tag: int = ANY, source: int = ANY) -> tuple[int, int, int]:
        """As :meth:`Inbox.probe`, but it waits, without blocking the event loop."""
        return await self._look_async(lambda: self.probe(tag, source, timeout=0))

    async def _look_async(self, look: Callable[[], _T]) -> _T:
        while True:
            if self._closed:
                raise ValueError("the inbox is closed")
            with self._arrivals.expect() as arrival:
                try:
                    return look()
                except TimeoutError:
                    await arrival

    def __aiter__(self) -> "AsyncInbox":
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive_async()
        except Ended:
            raise StopAsyncIteration from None
