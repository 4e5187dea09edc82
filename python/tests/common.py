"""What tests of the bindings share."""

import contextlib
import signal
import socket
import threading
import time


def pair(room=None):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if room:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


class Stop(Exception):
    """What a signal handler raises, as Ctrl-C raises KeyboardInterrupt."""


@contextlib.contextmanager
def signals(raises, count=1):
    """So many signals, one each 50 ms; handlers that raise, or do nothing."""
    caught = []

    def handle(*_):
        caught.append(time.monotonic())
        if len(caught) >= count:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if raises:
            raise Stop

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        yield caught
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def when(true, do, *arguments):
    """Does it in a thread, once that is true."""

    def run():
        until = time.monotonic() + 20
        while not true() and time.monotonic() < until:
            time.sleep(0.005)
        do(*arguments)

    thread = threading.Thread(target=run)
    thread.start()
    return thread
