"""Claims connections that are not its own, in viaductd's own words (docs/control-protocol.md), and says what it is answered.

    claims.py DIR LOCAL REMOTE COOKIE VICTIM REGION   one end of another's connection, in every way there is; then `done`
    claims.py DIR PORT REGION                         both ends of all connections with a port, until it is killed
"""

import errno
import fcntl
import mmap
import os
import socket
import struct
import sys
import time

MAGIC, VERSION = 0x56494144, 3
HELLO, WELCOME, OFFER, WITHDRAW, PAIR, REFUSE, DETACH = range(1, 8)
TICKETS, SAME_USER = 1, 2
HAS_TICKET = 2
SO_COOKIE, SO_NETNS_COOKIE, TCP_REPAIR = 57, 71, 19
REASONS = {12: "ambiguous", 13: "no-ticket"}
MOMENT = 0.3


def address(text):
    ip, port = text.rsplit(":", 1)
    return bytes(10) + b"\xff\xff" + socket.inet_aton(ip) + struct.pack("=HHI", int(port), 0, 0)


def number(end, option):
    return struct.unpack("=Q", end.getsockopt(socket.SOL_SOCKET, option, 8))[0]


class Guest:
    """A connection to viaductd; `pid` is what it says of itself."""

    def __init__(self, directory, region, pid):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(f"{directory}/viaductd.sock")
        counters = os.memfd_create("viaduct-counters", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(counters, region)
        fcntl.fcntl(counters, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        hello = struct.pack("=IIII64s", MAGIC, HELLO, VERSION, pid, b"claims")
        socket.send_fds(self.socket, [hello], [counters])
        _, kind, version, self.mode, self.nonce, _, _ = struct.unpack("=IIIIIIQ", self.socket.recv(256))
        assert (kind, version) == (WELCOME, VERSION), (kind, version)
        self.tickets, self.segments, self.last_segment = 0, [], 0
        # Sockets of its own, with which to be a socket at all.
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own = []

    def ends(self):
        """Both ends of a new connection of its own."""
        opened = socket.create_connection(self.listener.getsockname())
        self.own += [opened, self.listener.accept()[0]]
        return self.own[-2:]

    def ticket(self, end):
        self.tickets = self.tickets % 0xFFFF + 1
        end.getsockopt(0x56410000 | self.tickets, self.nonce, 8)
        return self.tickets

    def send(self, kind, body):
        self.socket.settimeout(None)
        self.socket.send(struct.pack("=II", MAGIC, kind) + body)

    def claim(self, name, local, remote, cookie, netns, ticket=0, flags=0):
        ends = address(local) + address(remote)
        self.send(OFFER, struct.pack("=QQQQ", name, cookie, netns, 0) + ends + struct.pack("=II", ticket, flags))

    def paired_with_itself(self):
        """What may be had: a connection of its own, both ends honestly offered. It shows how segments are named."""
        for name, end in enumerate(self.ends(), 1_000_000):
            local, remote = (f"{ip}:{port}" for ip, port in (end.getsockname(), end.getpeername()))
            self.claim(name, local, remote, number(end, SO_COOKIE), number(end, SO_NETNS_COOKIE), self.ticket(end), HAS_TICKET)
        return sorted([self.answer(), self.answer()])

    def detach_around(self):
        for segment in range(self.last_segment - 50, self.last_segment + 50):
            if segment != self.last_segment:
                self.send(DETACH, struct.pack("=Q", segment))

    def answer(self, patience=MOMENT):
        self.socket.settimeout(patience)
        try:
            packet, fds, _, _ = socket.recv_fds(self.socket, 256, 4)
        except (socket.timeout, BlockingIOError):
            return "nothing"
        if not packet:
            return "hung up"
        kind = struct.unpack("=II", packet[:8])[1]
        if kind == REFUSE:
            offer, reason, _ = struct.unpack("=QII", packet[8:])
            return f"refused {offer} {REASONS.get(reason, reason)}"
        assert kind == PAIR, kind
        self.segments += fds
        self.last_segment = struct.unpack("=Q", packet[16:24])[0]
        return f"paired {struct.unpack('=Q', packet[8:16])[0]}"


def told(what, answer):
    print(f"{what}: {answer}", flush=True)


def error(call):
    try:
        call()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]


def one_end(directory, local, remote, cookie, victim, region):
    """`local` to `remote` is the end that has not been offered, `cookie` its socket's."""
    guest = Guest(directory, int(region), int(victim))
    cookie = int(cookie)
    own = guest.ends()[0]
    netns = number(own, SO_NETNS_COOKIE)
    if guest.mode == SAME_USER:
        guest.claim(1, local, remote, cookie, netns)
        told("the other end", guest.answer())
        guest.claim(2, local, remote, cookie + 1, netns)
        told("another socket", sorted([guest.answer(), guest.answer()]))
        # Its own lies are each other's ends; what it gets is its own, and stays so.
        guest.claim(3, local, remote, cookie, netns)
        guest.claim(4, remote, local, cookie + 1, netns)
        told("both ends", sorted([guest.answer(), guest.answer()]))
        shown = [mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ) for fd in guest.segments[:1]]
        before = [bytes(segment) for segment in shown]
        time.sleep(2 * MOMENT)
        told("its segment", "changed" if before != [bytes(segment) for segment in shown] else f"{len(shown)}, as it was")
    else:
        guest.claim(1, local, remote, cookie, netns)
        told("addresses", guest.answer())
        guest.claim(2, local, remote, cookie, netns, 999, HAS_TICKET)
        told("an invented ticket", guest.answer())
        guest.claim(3, local, remote, cookie, netns, guest.ticket(own), HAS_TICKET)
        told("a ticket of its own", guest.answer())
        guest.claim(4, local, remote, cookie, netns, guest.tickets, HAS_TICKET)
        told("the same again", guest.answer())
        guest.claim(5, remote, local, cookie, netns, guest.ticket(guest.ends()[0]), HAS_TICKET)
        told("in the victim's place", guest.answer())
        others = [nonce for nonce in range(guest.nonce - 500, guest.nonce + 500) if nonce != guest.nonce]
        taken = {error(lambda: own.getsockopt(0x56410005, nonce, 8)) for nonce in others}
        told("other nonces", "taken" if "done" in taken else "refused")
        told("sequence numbers", error(lambda: own.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)))
        told("its own connection", guest.paired_with_itself())
    for name in range(1, 100):
        guest.send(WITHDRAW, struct.pack("=Q", name))
    guest.detach_around()
    told("withdrawn and detached", guest.answer())
    told("done", guest.mode)
    time.sleep(1000)


def established(port):
    """Both addresses of the connections with this port, as everybody may know them."""
    def spelled(text):
        ip, number = text.split(":")
        return f"{socket.inet_ntoa(struct.pack('=I', int(ip, 16)))}:{int(number, 16)}"

    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    ends = [(spelled(row[1]), spelled(row[2])) for row in rows if row[3] == "01"]
    return [end for end in ends if any(text.endswith(f":{port}") for text in end)]


def all_ends(directory, port, region):
    guest = Guest(directory, int(region), os.getpid())
    own = guest.ends()[0]
    cookie, netns = number(own, SO_COOKIE), number(own, SO_NETNS_COOKIE)
    told("its own connection", guest.paired_with_itself())
    claims = 0
    while True:
        for local, remote in established(port):
            claims += 1
            # Every other time with the kernel's word, for a connection of its own.
            ticket = guest.ticket(own) if claims % 2 else 0
            guest.claim(claims, local, remote, cookie, netns, ticket, HAS_TICKET if ticket else 0)
            guest.detach_around()
        while (answer := guest.answer(0)) != "nothing":
            assert answer.startswith("refused") and answer.endswith("no-ticket"), answer
        if claims:
            told("claimed", claims)
        time.sleep(0.005)


(all_ends if len(sys.argv) == 4 else one_end)(*sys.argv[1:])
