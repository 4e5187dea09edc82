"""One end of a connection on which one end repeats what the other sends, and the process that has it first.

    passer.py serve|ask PORT HOW

`serve` accepts the connection and repeats, `ask` opens it, and sends and checks. HOW:

    itself      the process goes on with it; `lines` likewise, asking for lines
    closing     it passes it to another process, and closes its own
    keeping     likewise, but closes its own when it gets SIGUSR1
    twice       passes it on once more from there
    becoming    becomes that process by exec
    daemon      a child of it goes on by `daemon`
    streaming   becomes one that has it as its standard input alone, and reads it by a stdio stream
    waiting     passes it to one in which one thread waits to receive while another sends
    and what it does to it before it passes it on and closes it: `filtering`, `signalled`, `copyless`
"""
import array
import ctypes
import fcntl
import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
FILTER_ALL = struct.pack('HBBI', 6, 0, 0, 0x40000)


def exact(connection, count):
    got = bytearray()
    while len(got) < count:
        part = connection.recv(count - len(got))
        if not part:
            sys.exit(f'the stream ended after {len(got)} of {count}')
        got += part
    return bytes(got)


def ask(connection, messages, more):
    """Sends each and checks that it comes back; then `more` for as long as it lives."""
    for number, message in enumerate(messages):
        connection.sendall(message)
        assert exact(connection, len(message)) == message, number
    print('checked', flush=True)
    while True:
        connection.sendall(more)
        assert exact(connection, len(more)) == more
        time.sleep(0.001)


def go_on(role, connection):
    if role == 'serve':
        while data := connection.recv(1 << 16):
            connection.sendall(data)
        print('ended', flush=True)
        return
    chance = random.Random(7)
    ask(connection, (chance.randbytes(chance.choice((1, 8, 100, 3000, 20000))) for _ in range(3000)), b'more')


# Reads lines by `fgets`, and answers with `send`.
STREAM = """
import ctypes
libc = ctypes.CDLL(None)
stdin = ctypes.c_void_p.in_dll(libc, 'stdin')
line = ctypes.create_string_buffer(200)
while libc.fgets(line, 200, stdin):
    libc.send(0, line, len(line.value), 0)
"""


def ask_with_two_threads(connection):
    """The one that receives is in a call whenever the other sends."""
    count = 300
    answered = threading.Semaphore(1)

    def receive():
        for number in itertools.count():
            assert exact(connection, 4) == b'%04d' % (number % 10000)
            if number == count:
                print('checked', flush=True)
            answered.release()

    threading.Thread(target=receive, daemon=True).start()
    for number in itertools.count():
        answered.acquire()
        time.sleep(0.005)
        connection.sendall(b'%04d' % (number % 10000))


def prepare(how, connection):
    if how == 'filtering':
        codes = array.array('B', FILTER_ALL)
        program = struct.pack('HxxxxxxP', 1, codes.buffer_info()[0])
        connection.setsockopt(socket.SOL_SOCKET, 26, program)
    elif how == 'signalled':
        flags = fcntl.fcntl(connection, fcntl.F_GETFL)
        fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    elif how == 'copyless':
        connection.setsockopt(socket.SOL_SOCKET, 60, 1)


def another(role, how, far):
    """Another program, whose library does not know what ours does."""
    return subprocess.Popen([sys.executable, __file__, role, 'passed', how, str(far.fileno())], pass_fds=[far.fileno()])


def receive(role, how, near):
    connection = socket.socket(fileno=socket.recv_fds(near, 1, 1)[1][0])
    if how == 'twice':
        pass_on(role, 'closing', connection)
    if how == 'waiting':
        ask_with_two_threads(connection)
    go_on(role, connection)


def pass_on(role, how, connection):
    near, far = socket.socketpair()
    child = another(role, how, far)
    far.close()
    socket.send_fds(near, [b'.'], [connection.fileno()])
    if how == 'keeping':
        signal.sigwait([signal.SIGUSR1])
    connection.close()
    sys.exit(child.wait())


def go_on_as_daemon(role, connection):
    libc = ctypes.CDLL(None)
    # So that it is of this process's family still.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.fork() == 0:
        libc.daemon(1, 1)
        return go_on(role, connection)
    connection.close()
    os.wait()
    os.wait()


def main():
    role, port, how, *more = sys.argv[1:]
    if port == 'passed':
        return receive(role, how, socket.socket(fileno=int(more[0])))
    if port == 'become':
        return go_on(role, socket.socket(fileno=int(more[0])))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    if role == 'serve':
        with socket.create_server(('127.0.0.1', int(port))) as listener:
            connection = listener.accept()[0]
        connection.sendall(exact(connection, 3))
    else:
        connection = socket.create_connection(('127.0.0.1', int(port)))
        connection.sendall(b'one')
        assert exact(connection, 3) == b'one'
    if how == 'itself':
        go_on(role, connection)
    elif how == 'lines':
        ask(connection, (b'%d\n' % number for number in range(3000)), b'more\n')
    elif how == 'streaming':
        os.dup2(connection.fileno(), 0)
        connection.close()
        os.execv(sys.executable, [sys.executable, '-c', STREAM])
    elif how == 'daemon':
        go_on_as_daemon(role, connection)
    elif how == 'becoming':
        connection.set_inheritable(True)
        words = [sys.executable, __file__, role, 'become', how, str(connection.fileno())]
        os.execv(sys.executable, words)
    else:
        prepare(how, connection)
        pass_on(role, how, connection)


main()
