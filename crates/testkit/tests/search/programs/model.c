/* Direct search against a model: the list of the positions that are unread. Random scripts of arrivals, searches,
 * receives, peeks, waits of another thread, and ends of all kinds; after each step the bytes, the result, the count of
 * unread bytes and the readiness are as the model has them.
 *
 * `model SEED CALLS [old]`: connections with seeds from SEED on until so many calls have been made. `old`: as on Linux
 * before 6.9. */
#include "check.h"
#include "old.h"
#include <sys/uio.h>

enum { MOST = 100000, SOME = 30000, FEW = 6000, HOLES = 2047, STEPS = 6000 };

static struct {
    struct pair pair;
    unsigned seed;
    uint64_t random;
    /* Positions of the bytes that have come and have not been received. */
    unsigned unread[2 * MOST];
    size_t count, sent, most;
    /* `waited_for`: readiness says whether what a thread waits for has come. */
    int searched, nonblocking, waited_for;
    /* The stream has ended: 0 is an answer; the reset has not been told yet; nothing more can be sent. */
    int ended, untold, closed;
} m;
static unsigned long calls, refused, waits;
static unsigned char bytes[2 * MOST], sent[2 * MOST];

static unsigned draw(size_t below)
{
    m.random = m.random * 6364136223846793005u + 1442695040888963407u;
    return below ? (unsigned)((m.random >> 33) % below) : 0;
}

/* Differs from stream to stream, so that bytes of another one are found out. */
static unsigned char byte_at(size_t position)
{
    return (unsigned char)(pattern(position) ^ (m.seed * 37));
}

static size_t head(void)
{
    return m.count ? m.unread[0] : m.sent;
}

/* Holes beyond the head, and whether there is one that a piece from `from` to `to` touches. */
static size_t holes(size_t from, size_t to, int *touched)
{
    size_t number = 0;

    *touched = from == head();
    for (size_t index = 0; index < m.count; index++) {
        size_t begin = m.unread[index] + 1, end = index + 1 < m.count ? m.unread[index + 1] : m.sent;

        number += end > begin;
        *touched |= end > begin && begin <= to && end >= from;
    }
    return number;
}

static void wrong(const char *what, ssize_t got, int error, size_t offset, size_t len, int flags)
{
    printf("not ok model: seed %u, call %lu: %s: %zd, errno %d; offset %zu, %zu bytes, flags %#x; %zu unread of %zu, head %zu, "
           "readable %ld%s%s%s\n",
           m.seed, calls, what, got, error, offset, len, flags, m.count, m.sent, head(), waiting(m.pair.far),
           m.ended ? ", ended" : "", m.untold ? ", reset" : "", m.nonblocking ? ", nonblocking" : "");
    /* Another thread may wait for ever. */
    exit(1);
}

static int readiness(short events)
{
    struct pollfd entry = {.fd = m.pair.far, .events = events};

    return poll(&entry, 1, 0) == 1 ? entry.revents : 0;
}

/* Fails unless the socket tells the same as the model, soon. */
static void compare(void)
{
    double until = 0;
    char byte = 0;

    while (waiting(m.pair.far) != (long)m.count) {
        until = until > 0 ? until : now() + 10;
        if (waiting(m.pair.far) > (long)m.count || now() > until)
            return wrong("count", -1, 0, 0, 0, 0);
        /* The sender may have to hear first that earlier bytes have come, which goes with bytes the other way. */
        if (!m.closed && send(m.pair.far, &byte, 1, 0) == 1)
            recv(m.pair.near, &byte, 1, MSG_DONTWAIT);
        sched_yield();
    }
    if (!m.waited_for && !(readiness(POLLIN) & POLLIN) != !(m.count > 0 || m.ended))
        wrong("readiness", readiness(POLLIN), 0, 0, 0, 0);
}

static void send_bytes(size_t count)
{
    if (m.sent + count - head() > m.most || m.closed)
        return;
    for (size_t index = 0; index < count; index++) {
        sent[index] = byte_at(m.sent);
        m.unread[m.count++] = (unsigned)m.sent++;
    }
    if (!send_all(m.pair.near, sent, count))
        wrong("send", -1, errno, 0, count, 0);
}

static void arrive(size_t count)
{
    send_bytes(count);
    compare();
}

static void take(size_t offset, size_t count)
{
    memmove(m.unread + offset, m.unread + offset + count, (m.count - offset - count) * sizeof *m.unread);
    m.count -= count;
}

static void check_bytes(const unsigned char *got, size_t offset, size_t count, int flags)
{
    for (size_t index = 0; index < count; index++)
        if (got[index] != (flags & MSG_TRUNC ? 0xa5 : byte_at(m.unread[offset + index])))
            return wrong("bytes", (ssize_t)index, 0, offset, count, flags);
}

static ssize_t receive(size_t offset, size_t len, int flags)
{
    struct iovec parts[2] = {{bytes, len / 3}, {bytes + len / 3, len - len / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    /* The ordinary calls, where they mind holes. */
    if (offset > 0 || !under_viaduct() || draw(3) == 0)
        return viaduct_seek_recv(m.pair.far, bytes, len, flags, offset);
    return draw(4) ? recv(m.pair.far, bytes, len, flags) : recvmsg(m.pair.far, &message, flags);
}

/* One call that does not wait for what has not come, and what it must answer. */
static void call(size_t offset, size_t len, int flags)
{
    size_t there = m.count > offset ? m.count - offset : 0, most = there < len ? there : len;
    int error, touched;
    ssize_t got;

    if (!m.ended && !m.nonblocking && (there == 0 || (flags & MSG_WAITALL && there < len)))
        flags |= MSG_DONTWAIT;
    if (flags & MSG_TRUNC)
        memset(bytes, 0xa5, len);
    errno = 0;
    got = receive(offset, len, flags);
    error = errno;
    calls++;
    m.searched |= offset > 0;
    if (got == -1 && error == ECONNRESET && m.untold && there < len) {
        m.untold = 0;
    } else if (got == -1 && error == ENOBUFS && offset > 0 && there == 0 && !m.ended) {
        /* The buffer is full of what surrounds small pieces. */
        refused++;
    } else if (got == -1 && error == ENOBUFS && offset > 0 && !(flags & MSG_PEEK)) {
        size_t last = there < len ? m.sent + len - there : m.unread[offset + len - 1] + 1;

        if (there == 0 || holes(m.unread[offset], last, &touched) < HOLES || touched)
            return wrong("refused", got, error, offset, len, flags);
        refused++;
        flags = 0;
        return call(0, 1 + draw(m.count), 0);
    } else if (there == 0) {
        if (m.ended ? got != 0 || m.untold : got != -1 || error != EAGAIN)
            return wrong("nothing there", got, error, offset, len, flags);
    } else {
        /* Where the path changes, a receive may end that does not wait for all. */
        int waits_for_all = flags & MSG_WAITALL && !(flags & MSG_DONTWAIT) && !m.nonblocking;
        int may_end = on_lane() && !(waits_for_all && there >= len);

        if (got != (ssize_t)most && !(may_end && got > 0 && got < (ssize_t)most))
            return wrong("result", got, error, offset, len, flags);
        check_bytes(bytes, offset, (size_t)got, flags);
        if (!(flags & MSG_PEEK))
            take(offset, (size_t)got);
    }
    compare();
}

struct wait {
    size_t offset, len;
    ssize_t got;
    unsigned char bytes[512];
};

static void *wait_in_thread(void *argument)
{
    struct wait *wait = argument;

    wait->got = viaduct_seek_recv(m.pair.far, wait->bytes, wait->len, MSG_WAITALL, wait->offset);
    return NULL;
}

/* Another thread waits for what has not come while this one receives at the head and sends it. */
static void call_that_waits(void)
{
    struct wait wait = {m.count + draw(300) + 1, 1 + draw(sizeof wait.bytes), 0, {0}};
    size_t taken = draw(2) ? draw(m.count) : 0, lacking = wait.offset + wait.len + taken - m.count;
    pthread_t thread;

    if (m.ended || m.nonblocking || m.sent + lacking - head() > m.most)
        return;
    /* The first search does not go with a receive that is inside the kernel. */
    if (!m.searched)
        call(m.count + 1, 1, MSG_DONTWAIT);
    m.waited_for = 1;
    thread = in_thread(wait_in_thread, &wait);
    if (draw(2))
        sleep_ms(1);
    if (taken > 0)
        call(0, taken, 0);
    for (size_t left = lacking; left > 0;) {
        size_t part = draw(3) ? left : 1 + draw(left);

        send_bytes(part);
        left -= part;
    }
    pthread_join(thread, NULL);
    m.waited_for = 0;
    waits++;
    if (wait.got != (ssize_t)wait.len)
        return wrong("wait", wait.got, 0, wait.offset, wait.len, 0);
    check_bytes(wait.bytes, wait.offset, wait.len, 0);
    take(wait.offset, wait.len);
    compare();
}

static void await(short events)
{
    for (double until = now() + 10; !(readiness(events) & events);)
        if (now() > until)
            return wrong("end", -1, 0, 0, 0, events);
}

static void end(void)
{
    switch (draw(4)) {
    case 0:
        m.closed = 1;
        reset(m.pair.near);
        m.pair.near = -1;
        m.untold = 1;
        await(POLLERR | POLLHUP);
        break;
    case 1:
        /* What comes later is received all the same. */
        if (shutdown(m.pair.far, SHUT_RD))
            wrong("shutdown", -1, errno, 0, 0, 0);
        break;
    default:
        m.closed = 1;
        if (shutdown(m.pair.near, SHUT_WR))
            wrong("shutdown", -1, errno, 0, 0, 0);
        await(POLLRDHUP);
    }
    m.ended = 1;
}

static size_t drawn_offset(void)
{
    switch (draw(8)) {
    case 0:
        return draw(m.count + 200);
    case 1:
        return m.count + draw(3);
    case 2:
        return draw(m.count);
    default:
        return 1 + draw(300);
    }
}

static int drawn_flags(void)
{
    static const int flags[] = {0, 0, 0, 0, MSG_WAITALL, MSG_WAITALL, MSG_DONTWAIT, MSG_PEEK, MSG_PEEK, MSG_TRUNC,
                                MSG_PEEK | MSG_WAITALL, MSG_TRUNC | MSG_WAITALL, MSG_PEEK | MSG_TRUNC};

    return flags[draw(sizeof flags / sizeof *flags)];
}

static void step(int tiny)
{
    size_t len = 1 + (tiny ? draw(3) : draw(8) ? draw(m.most / 50) : draw(m.most));

    switch (draw(16)) {
    case 0 ... 3:
        return arrive(1 + (draw(8) ? draw(m.most / 10) : draw(m.most)));
    case 4:
        return arrive(1 + draw(20));
    case 5 ... 7:
        return call(0, len, drawn_flags());
    case 8:
        /* Deep in the stream holes add up. */
        return call(0, 1 + draw(draw(20) ? 100 : m.most), drawn_flags());
    default:
        return call(drawn_offset(), len, drawn_flags());
    }
}

static void run_script(unsigned seed)
{
    int room = 200000, on = 1, plain, tiny, many, length;

    memset(&m, 0, sizeof m);
    m.seed = seed;
    m.random = seed;
    m.pair = under_viaduct() && draw(4) ? connect_pair() : connect_quickly();
    many = draw(16) == 0;
    /* On a lane many blocks, since they are given back one by one. */
    m.most = draw(10) && !many ? on_lane() && draw(2) ? SOME : FEW : MOST;
    if (m.most == MOST && setsockopt(m.pair.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room))
        wrong("room", -1, errno, 0, 0, 0);
    setsockopt(m.pair.near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    m.nonblocking = draw(4) == 0;
    if (m.nonblocking)
        fcntl(m.pair.far, F_SETFL, O_NONBLOCK);
    /* Many holes; or received in order for a while. */
    plain = draw(2) ? 0 : (int)draw(20);
    tiny = draw(3) == 0;
    length = (int)draw(draw(4) && (many || m.most < MOST) ? STEPS : 100);
    for (int at = 0; at < length; at++) {
        if (many)
            m.count < 20000 ? arrive(30000) : call(draw(m.count), 1 + draw(2), draw(9) ? 0 : MSG_WAITALL);
        else if (at < plain)
            draw(2) ? arrive(1 + draw(500)) : call(0, 1 + draw(500), drawn_flags());
        else
            step(tiny);
        if (draw(300) == 0)
            call_that_waits();
    }
    if (draw(4))
        end();
    for (int at = 0; at < (int)draw(200); at++)
        step(tiny);
    while ((m.count > 0 || draw(2)))
        call(draw(3) ? 0 : drawn_offset(), 1 + draw(m.count), drawn_flags() & ~MSG_PEEK);
    close_pair(m.pair);
}

int main(int argc, char **argv)
{
    unsigned seed = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
    unsigned long most = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;

    if (argc > 3)
        refuse_peek_offsets();
    printf("check model\n");
    for (; calls < most; seed++) {
        /* One that hangs ends the program; its seed is the last line. */
        printf("seed %u\n", seed);
        fflush(stdout);
        alarm(40);
        run_script(seed);
    }
    printf("ok model: %lu calls, %lu refused, %lu waits\n", calls, refused, waits);
    return 0;
}
