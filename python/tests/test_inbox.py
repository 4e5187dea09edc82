"""The Python bindings: messages and inboxes. Needs the library: PYTHONPATH=python VIADUCT_LIBRARY=.../libviaduct.so python -m unittest discover python/tests"""

import asyncio
import contextlib
import errno
import gc
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import unittest
from unittest import mock

import viaduct
from common import Stop, pair, signals, when


class InboxTest(unittest.TestCase):
    def setUp(self):
        self.near, self.far = pair()
        self.addCleanup(self.near.close)
        self.addCleanup(self.far.close)

    def test_messages_come_by_tag(self):
        with viaduct.Inbox() as inbox:
            self.assertEqual(inbox.add(self.far), 0)
            viaduct.send(self.near, 1, b"first")
            viaduct.send(self.near, 2, b"x" * 10_000)
            viaduct.send(self.near, 1, b"third")
            self.assertEqual(inbox.receive(tag=2, timeout=5), (2, 0, b"x" * 10_000))
            self.assertEqual(inbox.probe(timeout=5), (1, 0, 5))
            self.assertEqual([inbox.receive(timeout=5).payload for _ in range(2)], [b"first", b"third"])
            with self.assertRaises(TimeoutError):
                inbox.receive(timeout=0.01)
            self.near.sendall(b"what is this")
            with self.assertRaises(viaduct.Malformed):
                inbox.receive(timeout=5)
        with self.assertRaises(ValueError):
            inbox.receive()

    def test_numbers_that_do_not_fit_are_refused(self):
        for kind in viaduct.Inbox, viaduct.AsyncInbox:
            with kind() as inbox:
                inbox.add(self.far)
                viaduct.send(self.near, 1, b"first")
                for wanted in {"tag": (1 << 64) - 1}, {"tag": (1 << 64) + 1}, {"source": 1 << 32}, {"source": (1 << 32) - 1}:
                    for call in inbox.receive, inbox.probe:
                        with self.assertRaises(OverflowError):
                            call(timeout=0, **wanted)
                for call, number in (inbox.remove, 1 << 32), (inbox.add, (1 << 32) + self.far.fileno()):
                    with self.assertRaises(OverflowError):
                        call(number)
                self.assertEqual(inbox.receive(timeout=5), (1, 0, b"first"))
                with self.assertRaises(OverflowError):
                    kind(longest=1 << 64)

    def test_signals_interrupt_waits(self):
        with viaduct.Inbox() as inbox:
            inbox.add(self.far)
            for wait in (inbox.receive, lambda: inbox.probe(timeout=None), lambda: inbox.receive(timeout=60)):
                began = time.monotonic()
                with signals(raises=True), self.assertRaises(Stop):
                    wait()
                self.assertLess(time.monotonic() - began, 30)
            with signals(raises=False, count=3) as caught:
                sender = when(lambda: len(caught) >= 3, viaduct.send, self.near, 1, b"late")
                self.assertEqual(inbox.receive(), (1, 0, b"late"))
            self.assertGreaterEqual(len(caught), 3)
            sender.join()
            # Time runs on meanwhile: it does not begin anew with each of them.
            began = time.monotonic()
            with signals(raises=False, count=200) as caught, self.assertRaises(TimeoutError):
                inbox.receive(timeout=0.5)
            self.assertGreaterEqual(time.monotonic() - began, 0.5)
            self.assertLess(len(caught), 200)

    def test_signals_that_other_threads_catch_interrupt_waits(self):
        # Nothing ends the call itself: Python runs handlers in its first thread only.
        def handle(*_):
            raise Stop

        before = signal.signal(signal.SIGUSR1, handle)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        with viaduct.Inbox() as inbox:
            inbox.add(self.far)
            catcher = threading.Timer(
                0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            )
            catcher.start()
            with self.assertRaises(Stop):
                inbox.receive()
            catcher.join()

    def test_signals_interrupt_sends(self):
        with signals(raises=True), self.assertRaises(Stop):
            viaduct.send(self.near, 1, b"x" * 50_000_000)

    def test_sends_wait_for_room(self):
        for blocks in (True, False):
            for way in (lambda near: near, lambda near: near.fileno()):
                near, far = pair()
                with near, far, viaduct.Inbox() as inbox:
                    near.setblocking(blocks)
                    inbox.add(far)
                    sender = threading.Thread(target=viaduct.send, args=(way(near), 7, b"y" * 20_000_000))
                    sender.start()
                    time.sleep(0.05)
                    self.assertEqual(inbox.receive(timeout=20), (7, 0, b"y" * 20_000_000))
                    sender.join()
                    self.assertEqual(near.getblocking(), blocks)
        with self.assertRaises(ValueError):
            viaduct.send(self.near, -1, b"")
        self.near.shutdown(socket.SHUT_WR)
        with self.assertRaises(BrokenPipeError):
            viaduct.send(self.near, 1, b"")

    def test_a_cancelled_wait_ends_between_slices_too(self):
        # Cancelled from a handler, at a time at which no call is in the library.
        with viaduct.Inbox() as inbox:
            inbox.add(self.far)
            before = signal.signal(signal.SIGALRM, lambda *_: inbox.cancel())
            self.addCleanup(signal.signal, signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with self.assertRaises(viaduct.Cancelled):
                inbox.receive(timeout=20)

    def test_it_can_be_closed_while_threads_use_it(self):
        for turn in range(20):
            inbox = viaduct.Inbox()
            inbox.add(self.far)
            ends = []

            def use(wait):
                try:
                    while True:
                        with contextlib.suppress(TimeoutError):
                            wait()
                except (viaduct.Cancelled, ValueError) as error:
                    ends.append(type(error))

            waits = [inbox.receive, inbox.receive, lambda: inbox.probe(timeout=0.01), inbox.fileno]
            threads = [threading.Thread(target=use, args=(wait,)) for wait in waits]
            for thread in threads:
                thread.start()
            time.sleep(0.005 * (turn % 5))
            inbox.close()
            for thread in threads:
                thread.join(5)
                self.assertFalse(thread.is_alive())
            self.assertEqual(len(ends), 4)
            with self.assertRaises(ValueError):
                inbox.cancel()
        # From a handler, in the thread that waits.
        inbox = viaduct.Inbox()
        inbox.add(self.far)
        before = signal.signal(signal.SIGALRM, lambda *_: inbox.close())
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with self.assertRaises(viaduct.Cancelled):
            inbox.receive(timeout=20)

    def test_waits_can_be_cancelled(self):
        with viaduct.Inbox() as inbox:
            inbox.add(self.far)
            outcome = []

            def wait():
                try:
                    inbox.receive()
                except viaduct.Cancelled as error:
                    outcome.append(error)

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.05)
            inbox.cancel()
            thread.join(5)
            self.assertEqual(len(outcome), 1)

    def test_it_can_be_selected(self):
        with viaduct.Inbox() as inbox, selectors.DefaultSelector() as selector:
            inbox.add(self.far)
            selector.register(inbox, selectors.EVENT_READ)
            sender = threading.Timer(0.05, viaduct.send, (self.near, 3, b"late"))
            sender.start()
            got = []
            while not got:
                self.assertTrue(selector.select(5))
                with contextlib.suppress(TimeoutError):
                    while True:
                        got.append(inbox.receive(timeout=0))
            self.assertEqual(got, [(3, 0, b"late")])
            sender.join()
            selector.unregister(inbox)
        with self.assertRaises(ValueError):
            inbox.fileno()

    def test_ends(self):
        with viaduct.Inbox(longest=10) as inbox:
            inbox.add(self.far)
            viaduct.send(self.near, 1, b"x" * 11)
            with self.assertRaises(viaduct.TooLong):
                inbox.receive(timeout=5)
        near, far = pair()
        with near, far, viaduct.Inbox() as inbox:
            inbox.add(far)
            near.close()
            with self.assertRaises(viaduct.Ended):
                inbox.receive(timeout=5)

    def test_a_stream_may_end_within_a_message(self):
        for part in (b"VMSG\1\0\0", b"VMSG\1\0\0\0\5\0\0\0abc"):
            near, far = pair()
            with near, far, viaduct.Inbox() as inbox:
                inbox.add(far)
                viaduct.send(near, 1, b"whole")
                near.sendall(part)
                near.shutdown(socket.SHUT_WR)
                self.assertEqual(inbox.receive(timeout=5).payload, b"whole")
                with self.assertRaises(viaduct.Truncated) as told:
                    inbox.receive(timeout=5)
                self.assertEqual(told.exception.source, 0)

    def test_a_full_buffer_does_not_stop_it(self):
        # More than buffers and lanes hold, in small messages and in one.
        def send():
            for _ in range(300):
                viaduct.send(self.near, 1, b"a" * 40_000)
            viaduct.send(self.near, 2, b"b" * 12_000_000)
            viaduct.send(self.near, 3, b"c")

        with viaduct.Inbox() as inbox:
            inbox.add(self.far)
            thread = threading.Thread(target=send)
            thread.start()
            self.assertEqual(inbox.receive(tag=3, timeout=30).payload, b"c")
            self.assertEqual(inbox.receive(tag=2, timeout=30).payload, b"b" * 12_000_000)
            for _ in range(300):
                self.assertEqual(inbox.receive(timeout=30).payload, b"a" * 40_000)
            thread.join()

    def test_a_full_buffer_stops_no_task(self):
        near, far = pair(room=5000)

        def send():
            for _ in range(50):
                viaduct.send(near, 1, b"a" * 3000)
            viaduct.send(near, 2, b"wanted")

        async def run():
            with viaduct.AsyncInbox() as inbox:
                inbox.add(far)
                message = await asyncio.wait_for(inbox.receive_async(tag=2), 20)
                self.assertEqual(message.payload, b"wanted")

        thread = threading.Thread(target=send)
        with near, far:
            thread.start()
            time.sleep(0.2)
            asyncio.run(run())
            thread.join()

    def test_a_full_store_is_told(self):
        near, far = socket.socketpair()
        with near, far, viaduct.Inbox(longest=40_000, store=100_000) as inbox:
            inbox.add(self.far)
            inbox.add(far)
            thread = threading.Thread(target=lambda: [viaduct.send(near, tag, b"x" * 40_000) for tag in range(20)])
            thread.start()
            with self.assertRaises(viaduct.Full) as told:
                inbox.receive(tag=19, timeout=5)
            self.assertEqual(told.exception.source, 1)
            # Told once: the other source goes on.
            viaduct.send(self.near, 19, b"other")
            self.assertEqual(inbox.receive(tag=19, timeout=5), (19, 0, b"other"))
            self.assertEqual([inbox.receive(timeout=5).tag for _ in range(20)], list(range(20)))
            thread.join()

    def test_a_broken_source_is_told_once(self):
        near, far = pair()
        with near, far, viaduct.Inbox() as inbox:
            inbox.add(far)
            inbox.add(self.far)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.close()
            with self.assertRaises(viaduct.Failed) as told:
                inbox.receive(timeout=5)
            self.assertEqual(told.exception.source, 0)
            self.assertEqual(told.exception.__cause__.errno, errno.ECONNRESET)
            viaduct.send(self.near, 1, b"on")
            self.assertEqual(inbox.receive(timeout=5), (1, 1, b"on"))
            with self.assertRaises(viaduct.Failed):
                inbox.receive(source=0)
            with self.assertRaises(TimeoutError):
                inbox.receive(timeout=0.01)
            with self.assertRaises(OSError):
                inbox.receive(tag=-7)
            self.near.close()
            with self.assertRaises(viaduct.Ended):
                inbox.receive(timeout=1e20)

    def test_sending_does_not_block_the_loop(self):
        async def run(timeout):
            near, far = pair()
            near.settimeout(timeout)
            with near, far, viaduct.Inbox() as inbox:
                inbox.add(far)
                # Shorter than what fits, and longer.
                await viaduct.async_send(near, 1, b"short")
                long = asyncio.create_task(viaduct.async_send(near, 2, b"z" * 30_000_000))
                ticks = 0
                while ticks < 20:
                    await asyncio.sleep(0.005)
                    ticks += 1
                self.assertFalse(long.done())
                loop = asyncio.get_running_loop()
                got = await loop.run_in_executor(None, lambda: inbox.receive(tag=2, timeout=20))
                self.assertEqual(got, (2, 0, b"z" * 30_000_000))
                await asyncio.wait_for(long, 5)
                self.assertEqual(near.gettimeout(), timeout)
                # The program may have a writer of its own, which stays.
                called = asyncio.Event()
                loop.add_writer(near, called.set)
                await viaduct.async_send(near, 3, bytearray(b"view"))
                await asyncio.wait_for(called.wait(), 5)
                loop.remove_writer(near)
                self.assertEqual(inbox.receive(tag=3, timeout=5).payload, b"view")
                with self.assertRaises(ValueError):
                    await viaduct.async_send(near, 1 << 32, b"")
                far.close()

        for timeout in (None, 0, 60):
            began = time.monotonic()
            asyncio.run(run(timeout))
            self.assertLess(time.monotonic() - began, 30)

    def test_tasks_probe_and_closing_ends_them(self):
        async def run():
            inbox = viaduct.AsyncInbox()
            inbox.add(self.far)
            asyncio.get_running_loop().call_later(0.02, viaduct.send, self.near, 4, b"four")
            self.assertEqual(await asyncio.wait_for(inbox.probe_async(tag=4), 5), (4, 0, 4))
            self.assertEqual((await inbox.receive_async()).payload, b"four")
            tasks = [asyncio.create_task(wait) for wait in (inbox.receive_async(), inbox.probe_async(tag=9))]
            await asyncio.sleep(0.02)
            inbox.close()
            for task in tasks:
                with self.assertRaises(viaduct.Cancelled):
                    await asyncio.wait_for(task, 5)
            for wait in (inbox.receive_async, inbox.probe_async):
                with self.assertRaisesRegex(ValueError, "the inbox is closed"):
                    await wait()
            for call in (lambda: inbox.add(self.far), lambda: inbox.remove(0), inbox.cancel):
                with self.assertRaisesRegex(ValueError, "the inbox is closed"):
                    call()
            inbox.close()

        asyncio.run(run())

    def test_a_cancelled_task_of_a_closed_inbox_leaves_nothing_to_say(self):
        async def run():
            said = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
            for end in viaduct.AsyncInbox.close, viaduct.AsyncInbox.cancel:
                inbox = viaduct.AsyncInbox()
                inbox.add(self.far)
                task = asyncio.create_task(inbox.receive_async())
                await asyncio.sleep(0.01)
                end(inbox)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                del task
                inbox.close()
            gc.collect()
            self.assertEqual(said, [])

        asyncio.run(run())

    def test_what_cannot_be_watched_is_not_added(self):
        async def run():
            inbox = viaduct.AsyncInbox()
            before = os.listdir("/proc/self/fd")
            with mock.patch.object(inbox._arrivals, "add", side_effect=OSError(errno.ENOSPC, "no room")):
                with self.assertRaisesRegex(OSError, "no room"):
                    inbox.add(self.far)
            self.assertEqual(os.listdir("/proc/self/fd"), before)
            with mock.patch("os.dup", side_effect=OSError(errno.EMFILE, "no number")):
                with self.assertRaisesRegex(OSError, "no number"):
                    inbox.add(self.far)
            with self.assertRaises(viaduct.Ended):
                await inbox.receive_async()
            # Nor is one that is taken out watched any more, and it can be added again.
            for turn in range(3):
                source = inbox.add(self.far)
                viaduct.send(self.near, turn, b"")
                self.assertEqual(await asyncio.wait_for(inbox.receive_async(), 10), (turn, source, b""))
                inbox.remove(source)
                self.assertEqual(os.listdir("/proc/self/fd"), before)
            inbox.close()

        asyncio.run(run())

    def test_an_inbox_that_cannot_be_made_leaves_nothing(self):
        complaints = []
        with mock.patch("sys.unraisablehook", complaints.append):
            with mock.patch("select.epoll", side_effect=OSError(errno.EMFILE, "no number")):
                with self.assertRaisesRegex(OSError, "no number"):
                    viaduct.AsyncInbox()
            with self.assertRaises(ValueError):
                viaduct.AsyncInbox(longest=-1)
            gc.collect()
        self.assertEqual(complaints, [])

    def test_tasks_wait_side_by_side(self):
        async def run():
            inbox = viaduct.AsyncInbox()
            inbox.add(self.far)
            tasks = [asyncio.create_task(inbox.receive_async(tag=tag)) for tag in range(20)]
            await asyncio.sleep(0.01)
            for tag in reversed(range(20)):
                viaduct.send(self.near, tag, b"x" * tag)
                await asyncio.sleep(0.001 * (tag % 3))
            messages = await asyncio.wait_for(asyncio.gather(*tasks), 10)
            self.assertEqual([len(message.payload) for message in messages], list(range(20)))
            late = asyncio.create_task(inbox.receive_async())
            await asyncio.sleep(0.01)
            inbox.cancel()
            with self.assertRaises(viaduct.Cancelled):
                await asyncio.wait_for(late, 10)
            # Waiting costs nothing.
            before = time.process_time()
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(inbox.receive_async(), 0.5)
            self.assertLess(time.process_time() - before, 0.05)
            inbox.close()

        asyncio.run(run())

    def test_asyncio(self):
        async def run():
            inbox = viaduct.AsyncInbox()
            inbox.add(self.far)

            async def later():
                await asyncio.sleep(0.02)
                viaduct.send(self.near, 5, b"five")
                viaduct.send(self.near, 6, b"six")
                self.near.shutdown(socket.SHUT_WR)

            task = asyncio.create_task(later())
            self.assertEqual((await inbox.receive_async(tag=6)).payload, b"six")
            self.assertEqual([message.payload async for message in inbox], [b"five"])
            await task
            inbox.close()

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
