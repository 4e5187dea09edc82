/* Rings that are asked for by number, and of which nothing is seen: no library is between the program and the
 * kernel. */
#include "play.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static int ring;
static unsigned *queued, *order, *finished, *taken;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *results;

/* Maps part of the ring. */
static char *part(size_t length, off_t which)
{
    return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, ring, which);
}

static void begin(void)
{
    struct io_uring_params parameters = {0};
    char *queue, *completions;

    /* The peers of connections that there are have a part in it. */
    do
        ring = (int)syscall(SYS_io_uring_setup, 1, &parameters);
    while (ring < 0 && errno == EAGAIN);
    if (ring < 0) {
        say("no ring: %s", strerror(errno));
        exit(1);
    }
    queue = part(4096, IORING_OFF_SQ_RING);
    completions = part(4096, IORING_OFF_CQ_RING);
    entries = (struct io_uring_sqe *)part(sizeof *entries, IORING_OFF_SQES);
    queued = (unsigned *)(queue + parameters.sq_off.tail);
    order = (unsigned *)(queue + parameters.sq_off.array);
    taken = (unsigned *)(completions + parameters.cq_off.head);
    finished = (unsigned *)(completions + parameters.cq_off.tail);
    results = (struct io_uring_cqe *)(completions + parameters.cq_off.cqes);
}

/* Has the kernel do one thing, and waits until it is done. */
static int have_done(int code, int fd, const void *bytes, size_t count, unsigned flags)
{
    struct io_uring_sqe entry = {.opcode = (__u8)code, .fd = fd, .addr = (__u64)bytes, .len = (__u32)count, .msg_flags = flags};
    unsigned next;
    int result;

    entries[0] = entry;
    order[0] = 0;
    __atomic_store_n(queued, *queued + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
        return -errno;
    next = *taken;
    if (__atomic_load_n(finished, __ATOMIC_ACQUIRE) == next)
        return -ETIME;
    result = results[next % 2].res;
    __atomic_store_n(taken, next + 1, __ATOMIC_RELEASE);
    return result;
}

static void receive(int fd, size_t count)
{
    char bytes[64] = "";

    say("recv: %d", have_done(IORING_OP_RECV, fd, bytes, count, MSG_WAITALL));
    show_bytes("bytes", bytes, (long)count);
}

/* What there is on lanes goes back before there is a ring. */
static void to_and_fro(void)
{
    NEAR(R(send(s, "early", 5, 0)));
    HANDED(
        arrive(s, POLLIN);
        GET(s, 2, 0);
        begin();
        receive(s, 3);
        say("send: %d", have_done(IORING_OP_SEND, s, "answer", 6, 0));
        R(send(s, " more", 5, 0));
    );
    NEAR(ALL(s, 11); R(send(s, "later", 5, 0)));
    FAR(GET(s, 2, 0); receive(s, 3));
}

/* What is no ring costs no lanes. */
static void refused_by_the_kernel(void)
{
    struct io_uring_params parameters = {.flags = ~0U};

    FAR(R(syscall(SYS_io_uring_setup, 1, &parameters)); R(syscall(SYS_io_uring_setup, 1, NULL)));
    prove(s);
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

static void beside_a_busy_peer(void)
{
    NEAR(R(send(s, "early", 5, 0)));
    if (is_near)
        sleep_ms(600);
    HANDED(
        arrive(s, POLLIN);
        begin();
        receive(s, 5);
    );
    FAR(R(send(s, "later", 5, 0)));
    NEAR(ALL(s, 5));
}

static bool ask_it(int fd)
{
    char bytes[8];

    return send(fd, "question", 8, 0) == 8 && recv(fd, bytes, 8, MSG_WAITALL) == 8 && !memcmp(bytes, "answered", 8);
}

static bool answer(int fd, bool by_ring)
{
    char bytes[8];
    long received = by_ring ? have_done(IORING_OP_RECV, fd, bytes, 8, MSG_WAITALL) : recv(fd, bytes, 8, MSG_WAITALL);

    if (received != 8 || memcmp(bytes, "question", 8))
        return false;
    return (by_ring ? have_done(IORING_OP_SEND, fd, "answered", 8, 0) : send(fd, "answered", 8, 0)) == 8;
}

/* Connections that come afterwards: one that the ring accepts and serves, one that the C library accepts and both
 * serve. */
static void of_later_connections(void)
{
    int port = 0, here = is_near ? -1 : listener(AF_INET, &port);

    HANDED(begin(););
    if (is_near)
        port = ask();
    else
        tell(port);
    for (int way = 0; way < 2; way++) {
        int fd, rounds = 0;

        if (is_near)
            fd = dial(AF_INET, port);
        else
            fd = way == 0 ? have_done(IORING_OP_ACCEPT, here, NULL, 0, 0) : accept(here, NULL, NULL);
        while (rounds < 300 && (is_near ? ask_it(fd) : answer(fd, way == 0 || rounds % 2)))
            rounds++;
        say("rounds: %d", rounds);
        step();
        close(fd);
    }
}

MAIN(JOINED(to_and_fro), JOINED(refused_by_the_kernel), JOINED(beside_a_busy_peer), JOINED(of_later_connections))
