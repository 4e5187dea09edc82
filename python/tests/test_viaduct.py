"""The Python bindings. Needs the library: VIADUCT_LIBRARY=.../libviaduct.so python -m unittest discover python/tests"""

import asyncio
import contextlib
import errno
import selectors
import socket
import struct
import threading
import time
import unittest

import viaduct


def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


class SeekTest(unittest.TestCase):
    def setUp(self):
        self.near, self.far = pair()
        self.addCleanup(self.near.close)
        self.addCleanup(self.far.close)

    def test_bytes_come_from_the_middle(self):
        self.near.sendall(b"0123456789")
        self.assertEqual(viaduct.seek_recv(self.far, 3, offset=4, flags=socket.MSG_WAITALL), b"456")
        self.assertEqual(viaduct.readable(self.far), 7)
        self.assertEqual(viaduct.seek_recv(self.far, 2, offset=3), b"37")
        buffer = bytearray(10)
        self.assertEqual(viaduct.seek_recv_into(self.far, buffer), 5)
        self.assertEqual(buffer[:5], b"01289")
        with self.assertRaises(BlockingIOError):
            viaduct.seek_recv(self.far, 1, flags=socket.MSG_DONTWAIT)

    def test_bad_input_is_refused(self):
        with self.assertRaises(ValueError):
            viaduct.seek_recv(self.far, 1, offset=-1)
        with self.assertRaises(ValueError):
            viaduct.seek_recv(self.far, -1)
        with self.assertRaises(TypeError):
            viaduct.seek_recv_into(self.far, memoryview(b"x"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, self.assertRaises(OSError):
            viaduct.seek_recv(udp, 1, offset=1)

    def test_asyncio(self):
        async def run():
            late = asyncio.get_running_loop().call_later(0.02, self.near.sendall, b"89")
            self.near.sendall(b"01234567")
            self.assertEqual(await viaduct.async_seek_recv(self.far, 4, 6), b"6789")
            self.assertEqual(await viaduct.async_seek_recv(self.far, 6), b"012345")
            self.near.shutdown(socket.SHUT_WR)
            self.assertEqual(await viaduct.async_seek_recv(self.far, 6), b"")
            late.cancel()

        asyncio.run(run())


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
