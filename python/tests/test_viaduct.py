"""The Python bindings. Needs the library: VIADUCT_LIBRARY=.../libviaduct.so python -m unittest discover python/tests"""

import asyncio
import socket
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
