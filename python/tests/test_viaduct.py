"""The Python bindings: searches, and the library itself. Needs the library: PYTHONPATH=python VIADUCT_LIBRARY=.../libviaduct.so python -m unittest discover python/tests"""

import asyncio
import errno
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import unittest
import venv
from unittest import mock

import viaduct
from common import Stop, pair, signals, when


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

    def test_signals_interrupt_and_are_survived(self):
        self.near.sendall(b"0")
        with signals(raises=True), self.assertRaises(Stop):
            viaduct.seek_recv(self.far, 4, offset=1, flags=socket.MSG_WAITALL)
        with signals(raises=False, count=3) as caught:
            sender = when(lambda: len(caught) >= 3, self.near.sendall, b"1234")
            self.assertEqual(viaduct.seek_recv(self.far, 4, offset=1, flags=socket.MSG_WAITALL), b"1234")
        self.assertGreaterEqual(len(caught), 3)
        sender.join()

    def test_timeouts_are_the_sockets(self):
        self.near.sendall(b"01")
        self.far.settimeout(0.1)
        for offset, flags in [(4, 0), (1, socket.MSG_WAITALL), (9, socket.MSG_PEEK)]:
            began, worked = time.monotonic(), time.thread_time()
            with self.assertRaises(TimeoutError if sys.version_info >= (3, 10) else socket.timeout):
                viaduct.seek_recv(self.far, 4, offset=offset, flags=flags)
            self.assertGreaterEqual(time.monotonic() - began, 0.1)
            self.assertLess(time.thread_time() - worked, 0.05)
        with self.assertRaises(BlockingIOError):
            viaduct.seek_recv(self.far, 4, offset=4, flags=socket.MSG_DONTWAIT)
        # Nothing has been taken.
        self.far.settimeout(20)
        sender = threading.Timer(0.05, self.near.sendall, [b"2345"])
        sender.start()
        self.assertEqual(viaduct.seek_recv(self.far, 3, offset=3, flags=socket.MSG_WAITALL), b"345")
        self.assertEqual(viaduct.seek_recv(self.far, 9), b"012")
        sender.join()
        ender = threading.Timer(0.05, self.near.shutdown, [socket.SHUT_WR])
        ender.start()
        self.assertEqual(viaduct.seek_recv(self.far, 3, flags=socket.MSG_WAITALL), b"")
        ender.join()
        self.far.setblocking(False)
        self.assertEqual(viaduct.seek_recv(self.far, 1), b"")

    def test_more_than_the_buffer_holds_comes_with_a_timeout_too(self):
        size = 24 << 20
        sent = bytes(range(256)) * (size // 256)
        self.far.settimeout(20)
        sender = threading.Thread(target=self.near.sendall, args=[sent])
        sender.start()
        held = viaduct.seek_recv(self.far, size, flags=socket.MSG_WAITALL | socket.MSG_PEEK)
        self.assertTrue(0 < len(held) < size and sent.startswith(held))
        buffer = bytearray(size)
        self.assertEqual(viaduct.seek_recv_into(self.far, buffer, flags=socket.MSG_WAITALL), size)
        sender.join()
        self.assertTrue(buffer == sent)
        # Of what does not come, what has.
        self.near.sendall(b"01")
        self.far.settimeout(0.1)
        self.assertEqual(viaduct.seek_recv(self.far, 3, flags=socket.MSG_WAITALL), b"01")
        with self.assertRaises(TimeoutError if sys.version_info >= (3, 10) else socket.timeout):
            viaduct.seek_recv(self.far, 3, flags=socket.MSG_WAITALL)
        self.near.sendall(b"23")
        self.near.shutdown(socket.SHUT_WR)
        self.assertEqual(viaduct.seek_recv(self.far, 3, flags=socket.MSG_WAITALL), b"23")

    def test_asyncio_takes_flags(self):
        async def run():
            self.near.sendall(b"0123")
            worked = time.process_time()
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(viaduct.async_seek_recv(self.far, 4, 20), 0.5)
            self.assertLess(time.process_time() - worked, 0.25)
            self.assertEqual(await viaduct.async_seek_recv(self.far, 2, 1, socket.MSG_PEEK), b"12")
            with self.assertRaises(BlockingIOError):
                await viaduct.async_seek_recv(self.far, 2, 3, flags=socket.MSG_DONTWAIT)
            self.assertEqual(await viaduct.async_seek_recv(self.far, 4), b"0123")

        asyncio.run(run())

    def test_bad_input_is_refused(self):
        with self.assertRaises(ValueError):
            viaduct.seek_recv(self.far, 1, offset=-1)
        with self.assertRaises(ValueError):
            viaduct.seek_recv(self.far, -1)
        with self.assertRaises(TypeError):
            viaduct.seek_recv_into(self.far, memoryview(b"x"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, self.assertRaises(OSError):
            viaduct.seek_recv(udp, 1, offset=1)
        self.near.sendall(b"0123")
        for far, offset, flags in (self.far, 1 << 64, 0), (self.far, 1, 1 << 32), ((1 << 32) + self.far.fileno(), 0, 0):
            with self.assertRaises(OverflowError):
                viaduct.seek_recv(far, 1, offset, flags)
        with self.assertRaises(OSError) as refused:
            viaduct.seek_recv(self.far, 1, 1 << 63)
        self.assertEqual(refused.exception.errno, errno.EINVAL)
        self.assertEqual(viaduct.seek_recv(self.far, 4, flags=socket.MSG_WAITALL), b"0123")
        packets = socket.socketpair(type=socket.SOCK_DGRAM)
        for end in packets:
            self.addCleanup(end.close)
        with self.assertRaises(OSError) as refused:
            viaduct.send(packets[0], 1, b"")
        self.assertEqual(refused.exception.errno, errno.EOPNOTSUPP)
        with self.assertRaises(BlockingIOError):
            packets[1].recv(1, socket.MSG_DONTWAIT)

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


class LibraryTest(unittest.TestCase):
    def test_who_lacks_it_is_told_what_to_do(self):
        for named, advice in [("", ["libviaduct.so.0", "make install", "ldconfig", "VIADUCT_LIBRARY="]), ("/none", ["/none", "names it"])]:
            with mock.patch.dict(os.environ, VIADUCT_LIBRARY=named), mock.patch("ctypes.CDLL", side_effect=OSError("no such file")):
                with self.assertRaises(ImportError) as error:
                    sys.modules["viaduct._library"]._load()
            for words in advice + ["no such file"]:
                self.assertIn(words, str(error.exception))

    @unittest.skipUnless(importlib.util.find_spec("setuptools"), "there is no setuptools")
    def test_a_build_brings_it_along(self):
        with tempfile.TemporaryDirectory() as scratch:
            source, venv_dir = os.path.join(scratch, "python"), os.path.join(scratch, "venv")
            shutil.copytree(os.path.dirname(os.path.dirname(__file__)), source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
            names = {name: os.environ[name] for name in os.environ if name not in ("PYTHONPATH", "LD_LIBRARY_PATH", "VIADUCT_LIBRARY")}
            build = [sys.executable, "setup.py", "-q", "build", "--build-lib", os.path.join(scratch, "built")]
            library = os.path.abspath(viaduct._library._name)
            subprocess.run(build, cwd=source, env={**names, "VIADUCT_LIBRARY": library}, check=True, stderr=subprocess.DEVNULL)
            venv.create(venv_dir, symlinks=True)
            packages = sysconfig.get_path("purelib", "posix_prefix", {"base": venv_dir})
            shutil.copytree(os.path.join(scratch, "built"), packages, dirs_exist_ok=True)
            program = "import viaduct; print(viaduct._library._name); viaduct.Inbox().close()"
            run = [os.path.join(venv_dir, "bin", "python"), "-c", program]
            said = subprocess.run(run, cwd=scratch, env=names, check=True, stdout=subprocess.PIPE).stdout.decode()
            self.assertEqual(said.strip(), os.path.join(os.path.realpath(packages), "viaduct", "libviaduct.so.0"))


if __name__ == "__main__":
    unittest.main()
