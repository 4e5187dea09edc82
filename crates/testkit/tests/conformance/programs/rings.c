/* The kernel moves bytes for rings that liburing made, beside the C library's calls on the same connections. */
#include "play.h"
#include <liburing.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/epoll.h>

/* What the library reads of them. */
_Static_assert(offsetof(struct io_uring, sq.kring_mask) == 16 && offsetof(struct io_uring, sq.sqes) == 56, "layout");
_Static_assert(offsetof(struct io_uring, sq.sqe_head) == 64 && offsetof(struct io_uring, sq.sqe_tail) == 68, "layout");
_Static_assert(offsetof(struct io_uring, flags) == 192 && IORING_SETUP_SQE128 == 1 << 10, "layout");
_Static_assert(offsetof(struct io_uring_sqe, off) == 8 && offsetof(struct io_uring_sqe, splice_fd_in) == 44, "layout");

static struct io_uring ring;

static void begin(unsigned flags)
{
    int result = io_uring_queue_init(8, &ring, flags);

    if (result < 0)
        say("no ring: %s", strerror(-result));
}

/* Hands over what is queued; the peer may have a part in it, and be busy for a moment. */
static void hand_over(void)
{
    int result;

    do
        result = io_uring_submit(&ring);
    while (result == -EAGAIN);
    say("handed over: %d", result);
}

static void finish(const char *what)
{
    struct io_uring_cqe *done;
    struct __kernel_timespec limit = {.tv_sec = 2};
    int result = io_uring_wait_cqe_timeout(&ring, &done, &limit);

    if (result < 0) {
        say("%s: not done: %s", what, strerror(-result));
        return;
    }
    say("%s: %d %s", what, done->res, done->res < 0 ? strerror(-done->res) : "");
    io_uring_cqe_seen(&ring, done);
}

static void end(void) { io_uring_queue_exit(&ring); }

static void ring_receive(int fd, size_t count)
{
    char bytes[64] = "";

    io_uring_prep_recv(io_uring_get_sqe(&ring), fd, bytes, count, MSG_WAITALL);
    hand_over();
    finish("recv");
    show_bytes("bytes", bytes, (long)count);
}

static void ring_send(int fd, const char *text)
{
    io_uring_prep_send(io_uring_get_sqe(&ring), fd, text, strlen(text), 0);
    hand_over();
    finish("send");
}

/* What is unread on the lane comes by the ring, and what both send afterwards by either way. */
static void to_and_fro(void)
{
    NEAR(R(send(s, "early", 5, 0)));
    HANDED(
        arrive(s, POLLIN);
        begin(0);
        GET(s, 2, 0);
        ring_receive(s, 3);
        ring_send(s, "answer");
        R(send(s, " more", 5, 0));
    );
    NEAR(ALL(s, 11); R(send(s, "later", 5, 0)));
    FAR(GET(s, 2, 0); ring_receive(s, 3); end());
}

/* Boost.Asio does so: it tries first, and leaves it to a ring to wait. */
static void tried_first(void)
{
    char bytes[64] = "";
    struct iovec part = {bytes, 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    HANDED(
        begin(0);
        GET(s, 4, MSG_DONTWAIT);
        io_uring_prep_recvmsg(io_uring_get_sqe(&ring), s, &message, 0);
        hand_over();
    );
    NEAR(R(send(s, "come", 4, 0)));
    FAR(finish("recvmsg"); show_bytes("bytes", bytes, 4); end());
}

static void long_entries(void)
{
    NEAR(R(send(s, "abcdef", 6, 0)));
    HANDED(
        arrive(s, POLLIN);
        begin(IORING_SETUP_SQE128);
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        ring_receive(s, 3);
        finish("the other");
        end();
    );
    FAR(GET(s, 3, 0));
}

static void polled(void)
{
    HANDED(
        begin(0);
        io_uring_prep_poll_add(io_uring_get_sqe(&ring), s, POLLIN);
        hand_over();
    );
    NEAR(R(send(s, "x", 1, 0)));
    FAR(finish("poll"); GET(s, 1, 0); end());
}

/* A set that a ring waits for tells it of its members. */
static void polled_by_a_set(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);

    HANDED(
        begin(0);
        R(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
        io_uring_prep_poll_add(io_uring_get_sqe(&ring), set, POLLIN);
        hand_over();
    );
    NEAR(R(send(s, "x", 1, 0)));
    FAR(finish("poll"); GET(s, 1, 0); end());
    close(set);
}

/* And one that a ring has registered a connection in. */
static void registered_in_a_set(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);

    HANDED(
        begin(0);
        io_uring_prep_epoll_ctl(io_uring_get_sqe(&ring), set, s, EPOLL_CTL_ADD, &event);
        hand_over();
        finish("registered");
    );
    NEAR(R(send(s, "x", 1, 0)));
    FAR(R(epoll_wait(set, &event, 1, 2000)); show_events("event", event.events); GET(s, 1, 0); end());
    close(set);
}

static void watch_and_take_out(int set)
{
    struct epoll_event event = {.events = EPOLLIN};

    R(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
    R(epoll_wait(set, &event, 1, 0));
    R(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL));
}

/* What has been taken out of a set is out of it for whoever else waits there, or registers it. */
static void taken_out_before(void)
{
    struct io_uring_cqe *done;
    int set = epoll_create1(0);

    HANDED(
        begin(0);
        watch_and_take_out(set);
        io_uring_prep_poll_add(io_uring_get_sqe(&ring), set, POLLIN);
        hand_over();
    );
    NEAR(R(send(s, "x", 1, 0)));
    FAR(arrive(s, POLLIN); sleep_ms(20); say("told: %d", io_uring_peek_cqe(&ring, &done)); GET(s, 1, 0); end());
    close(set);
}

static void registered_again(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);

    HANDED(
        begin(0);
        watch_and_take_out(set);
        io_uring_prep_epoll_ctl(io_uring_get_sqe(&ring), set, s, EPOLL_CTL_ADD, &event);
        hand_over();
        finish("registered");
        end();
    );
    close(set);
}

/* By its number among those registered with the ring. */
static void by_number(void)
{
    NEAR(R(send(s, "early", 5, 0)));
    HANDED(
        char bytes[8] = "";
        struct io_uring_sqe *entry;
        int result;

        arrive(s, POLLIN);
        begin(0);
        do
            result = io_uring_register_files(&ring, &s, 1);
        while (result == -EAGAIN);
        say("registered: %d", result);
        entry = io_uring_get_sqe(&ring);
        io_uring_prep_recv(entry, 0, bytes, 5, MSG_WAITALL);
        entry->flags |= IOSQE_FIXED_FILE;
        hand_over();
        finish("recv");
        show_bytes("bytes", bytes, 5);
    );
    FAR(end(); R(send(s, "!", 1, 0)));
    NEAR(GET(s, 1, 0));
}

static void several_at_once(void)
{
    char bytes[8] = "";

    NEAR(R(send(s, "abc", 3, 0)));
    HANDED(
        struct io_uring_cqe *done;

        arrive(s, POLLIN);
        begin(0);
        for (int i = 0; i < 3; i++) {
            struct io_uring_sqe *entry = io_uring_get_sqe(&ring);

            io_uring_prep_recv(entry, s, bytes + i, 1, 0);
            entry->flags |= IOSQE_IO_LINK;
        }
        io_uring_prep_send(io_uring_get_sqe(&ring), s, "done", 4, 0);
        while (io_uring_submit_and_wait(&ring, 4) == -EAGAIN)
            ;
        for (int i = 0; i < 4; i++) {
            io_uring_wait_cqe(&ring, &done);
            say("%d", done->res);
            io_uring_cqe_seen(&ring, done);
        }
        show_bytes("bytes", bytes, 3);
        end();
    );
    NEAR(ALL(s, 4));
}

/* What a ring closes is closed, with all that was sent before; its number may be another connection's next. */
static void closed(void)
{
    NEAR(R(send(s, "unread", 6, 0)); R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLIN); ALL(s, 6); GET(s, 1, 0); R(send(s, "last", 4, 0)); begin(0); io_uring_prep_close(io_uring_get_sqe(&ring), s); hand_over();
        finish("close"); end(); R(send(s, "x", 1, 0)));
    NEAR(ALL(s, 4); GET(s, 1, 0); R(close(s)));
    s = join();
    NEAR(R(send(s, "next", 4, 0)));
    FAR(ALL(s, 4));
}

/* What is to be closed after something that fails stays open, with what is unread. */
static void closed_in_vain(void)
{
    NEAR(R(send(s, "early", 5, 0)));
    HANDED(
        struct io_uring_sqe *entry;

        arrive(s, POLLIN);
        begin(0);
        entry = io_uring_get_sqe(&ring);
        io_uring_prep_read(entry, -1, NULL, 0, 0);
        entry->flags |= IOSQE_IO_LINK;
        io_uring_prep_close(io_uring_get_sqe(&ring), s);
        hand_over();
        finish("read");
        finish("close");
        end();
        GET(s, 5, MSG_DONTWAIT);
        R(send(s, "back", 4, 0));
    );
    NEAR(ALL(s, 4));
}

/* Connects `first` to this program itself, after `before`, and has both ends used for a while. */
static int connect_here(int first, void (*before)(int fd))
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), other;

    bind(listener, (struct sockaddr *)&at, sizeof at);
    listen(listener, 1);
    getsockname(listener, (struct sockaddr *)&at, &len);
    if (before)
        before(first);
    R(connect(first, (struct sockaddr *)&at, sizeof at));
    other = accept(listener, NULL, NULL);
    close(listener);
    for (int i = 0; i < 300; i++) {
        char byte = 'a';

        send(other, &byte, 1, 0);
        recv(first, &byte, 1, 0);
        send(first, &byte, 1, 0);
        recv(other, &byte, 1, 0);
        usleep(1000);
    }
    R(send(other, "bytes", 5, 0));
    return other;
}

/* A ring that closes the first of those registered says 0 for the descriptor, which here is a connection's. */
static void closed_by_number(void)
{
    if (!is_near) {
        int kept = dup(0), file = open("/dev/null", O_RDONLY), first, other;

        close(0);
        first = socket(AF_INET, SOCK_STREAM, 0);
        say("first: %d", first);
        other = connect_here(first, NULL);
        begin(0);
        say("registered: %d", io_uring_register_files(&ring, &file, 1));
        io_uring_prep_close_direct(io_uring_get_sqe(&ring), 0);
        hand_over();
        finish("close");
        end();
        GET(first, 5, 0);
        close(other);
        dup2(kept, 0);
        close(kept);
        close(file);
    }
    step();
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

static void register_it(int fd)
{
    begin(0);
    say("registered: %d", io_uring_register_files(&ring, &fd, 1));
}

/* Registered before it is connected. */
static void registered_first(void)
{
    if (!is_near) {
        char bytes[8] = "";
        int first = socket(AF_INET, SOCK_STREAM, 0), other = connect_here(first, register_it);
        struct io_uring_sqe *entry = io_uring_get_sqe(&ring);

        io_uring_prep_recv(entry, 0, bytes, 5, 0);
        entry->flags |= IOSQE_FIXED_FILE;
        hand_over();
        finish("recv");
        show_bytes("bytes", bytes, 5);
        end();
        close(first);
        close(other);
    }
    step();
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

/* Rings for files leave connections alone. */
static void of_files(void)
{
    char bytes[8] = "";
    FILE *file = tmpfile();

    begin(0);
    io_uring_prep_write(io_uring_get_sqe(&ring), fileno(file), "in file", 7, 0);
    hand_over();
    finish("write");
    io_uring_prep_read(io_uring_get_sqe(&ring), fileno(file), bytes, 7, 0);
    hand_over();
    finish("read");
    show_bytes("bytes", bytes, 7);
    end();
    step();
    prove(s);
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

MAIN(JOINED(to_and_fro), JOINED(tried_first), JOINED(long_entries), JOINED(polled), JOINED(polled_by_a_set), JOINED(registered_in_a_set), JOINED(taken_out_before), JOINED(registered_again), JOINED(by_number),
     JOINED(several_at_once), JOINED(closed), JOINED(closed_in_vain), JOINED(closed_by_number), JOINED(registered_first), JOINED(of_files))
