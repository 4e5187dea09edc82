/* What only the kernel carries: urgent data, files and pipes, zero copy, options that change what is received. */
#include "play.h"
#include <linux/errqueue.h>
#include <linux/tls.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

static void urgent(void)
{
    int marked = -1;

    NEAR(R(send(s, "ab", 2, 0)); R(send(s, "!", 1, MSG_OOB)); R(send(s, "cd", 2, 0)));
    FAR(arrive(s, POLLIN | POLLPRI); GET(s, 8, 0); R(ioctl(s, SIOCATMARK, &marked)); say("%d", marked); GET(s, 1, MSG_OOB); GET(s, 1, MSG_OOB);
        GET(s, 8, 0));
}

static void urgent_when_there_is_none(void)
{
    BOTH(GET(s, 1, MSG_OOB); POLL(s, POLLPRI, 0));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, MSG_OOB | MSG_DONTWAIT); GET(s, 1, 0));
}

static void urgent_in_line(void)
{
    int on = 1, marked = -1;

    FAR(R(setsockopt(s, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on)));
    NEAR(R(send(s, "ab", 2, 0)); R(send(s, "!", 1, MSG_OOB)); R(send(s, "cd", 2, 0)));
    FAR(arrive(s, POLLPRI); GET(s, 8, 0); R(ioctl(s, SIOCATMARK, &marked)); say("%d", marked); ALL(s, 3); GET(s, 1, MSG_OOB));
}

static void urgent_by_signal(void)
{
    FAR(count_signals(SIGURG, 0); R(fcntl(s, F_SETOWN, getpid())));
    NEAR(R(send(s, "!", 1, MSG_OOB)));
    FAR(for (int round = 0; round < 500 && signals == 0; round++) sleep_ms(1); say("%d", signals > 0); GET(s, 1, MSG_OOB));
}

static void urgent_then_plain(void)
{
    NEAR(R(send(s, "!", 1, MSG_OOB)));
    FAR(arrive(s, POLLPRI); GET(s, 1, MSG_OOB));
    for (int round = 0; round < 3; round++) {
        NEAR(R(send(s, "ping", 4, 0)));
        FAR(ALL(s, 4); R(send(s, "pong", 4, 0)));
        NEAR(ALL(s, 4));
    }
}

/* Every kind of wait tells of it, also one that asks for nothing else. */
static void urgent_in_every_wait(void)
{
    fd_set in, except;
    struct timeval time = {2, 0};
    struct epoll_event event = {.events = EPOLLPRI};
    int set = epoll_create1(0);

    for (int how = 0; how < 3; how++) {
        if (is_near) {
            sleep_ms(30);
            R(send(s, "!", 1, MSG_OOB));
        } else {
            if (how == 0) {
                FD_ZERO(&in);
                FD_ZERO(&except);
                FD_SET(s, &in);
                FD_SET(s, &except);
                R(select(s + 1, NULL, NULL, &except, &time));
                say("except %d", FD_ISSET(s, &except) != 0);
            } else if (how == 1) {
                R(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
                R(epoll_wait(set, &event, 1, 2000));
                show_events("set", event.events);
            } else
                POLL(s, POLLPRI, 2000);
            GET(s, 1, MSG_PEEK | MSG_OOB);
            GET(s, 1, MSG_OOB);
            POLL(s, POLLPRI | POLLIN, 0);
        }
        step();
        NEAR(R(send(s, "plain", 5, 0)));
        FAR(ALL(s, 5));
    }
}

static int file_of(size_t size)
{
    char name[] = "/tmp/viaduct-case-XXXXXX";
    int file = mkstemp(name);
    unsigned char *bytes = malloc(size);

    unlink(name);
    for (size_t at = 0; at < size; at++)
        bytes[at] = pattern(at);
    if (write(file, bytes, size) != (ssize_t)size)
        say("no file");
    free(bytes);
    return file;
}

static void file_sent(void)
{
    int file = file_of(10000);
    off_t offset = 1000;

    NEAR(R(sendfile(s, file, &offset, 4)); say("%ld %ld", (long)offset, (long)lseek(file, 0, SEEK_CUR)); lseek(file, 0, SEEK_SET);
         R(sendfile(s, file, NULL, 6000)); say("%ld", (long)lseek(file, 0, SEEK_CUR)); R(sendfile(s, file, NULL, 6000));
         R(sendfile(s, file, NULL, 6000)); R(sendfile(s, file, NULL, 0)));
    FAR(drink(s, 1000, 4); drink(s, 0, 10000); GET(s, 1, MSG_DONTWAIT));
}

static void file_sent_in_one_call(void)
{
    int file;
    off_t offset = 0;

    if (is_near) {
        file = file_of(12000000);
        R(sendfile(s, file, &offset, 13000000));
        say("%ld", (long)offset);
    } else
        drink(s, 0, 12000000);
    step();
}

static void file_sent_without_waiting(void)
{
    int file;
    off_t offset = 0;
    long sent;

    if (is_near) {
        file = file_of(40000000);
        fcntl(s, F_SETFL, O_NONBLOCK);
        sent = sendfile(s, file, &offset, 40000000);
        say("part %d, offset %d", sent > 0 && sent < 40000000, offset == sent);
        tell((int)sent);
    } else {
        sent = ask();
        drain(s, (size_t)sent);
        GET(s, 1, MSG_DONTWAIT);
    }
    step();
}

static void file_errors(void)
{
    int file = file_of(100), ends[2];
    off_t far_away = 1000, negative = -1;

    pipe(ends);
    BOTH(R(sendfile(s, file, &far_away, 10)); R(sendfile(s, file, &negative, 10)); R(sendfile(s, 777, NULL, 10));
         R(sendfile(777, file, NULL, 10)); R(sendfile(s, s, NULL, 10)); R(copy_file_range(file, NULL, s, NULL, 10, 0));
         R(copy_file_range(s, NULL, file, NULL, 10, 0)); R(sendfile(s, file, (off_t *)8, 10)));
    NEAR(R(shutdown(s, SHUT_WR)); signal(SIGPIPE, SIG_IGN); lseek(file, 0, SEEK_SET); R(sendfile(s, file, NULL, 10)));
}

static void spliced(void)
{
    int ends[2];
    char bytes[8];

    pipe(ends);
    if (is_near) {
        R(write(ends[1], "through", 7));
        R(splice(ends[0], NULL, s, NULL, 7, 0));
        release();
    } else {
        serve_until_released();
        ALL(s, 7);
    }
    step();
    if (is_near) {
        R(send(s, "andback", 7, 0));
        serve_until_released();
    } else {
        arrive(s, POLLIN);
        R(splice(s, NULL, ends[1], NULL, 7, 0));
        R(read(ends[0], bytes, 7));
        show_bytes("bytes", bytes, 7);
        release();
    }
    step();
    NEAR(R(send(s, "after", 5, 0)));
    FAR(ALL(s, 5));
}

static void spliced_much(void)
{
    int ends[2];
    long left = 1000000;

    pipe(ends);
    if (is_near)
        pour(s, 0, 1000000);
    else {
        unsigned char bytes[4096];
        unsigned long wrong = 0, at = 0;
        while (left > 0) {
            long got = splice(s, NULL, ends[1], NULL, sizeof bytes, 0);
            if (got <= 0) {
                R(got);
                break;
            }
            got = read(ends[0], bytes, sizeof bytes);
            for (long index = 0; index < got; index++)
                wrong += bytes[index] != pattern(at++);
            left -= got;
        }
        say("left %ld, wrong %lu", left, wrong);
    }
    step();
}

static void splice_errors(void)
{
    int ends[2];
    loff_t offset = 0;

    pipe(ends);
    BOTH(fcntl(s, F_SETFL, O_NONBLOCK); R(splice(s, NULL, s, NULL, 10, 0)); R(splice(s, &offset, ends[1], NULL, 10, 0)); R(splice(s, NULL, ends[1], NULL, 10, SPLICE_F_NONBLOCK));
         R(tee(s, ends[1], 10, 0)));
}

/* An empty pipe is told of first, then the error, once. */
static void spliced_after_a_reset(void)
{
    static const struct linger at_once = {1, 0};
    int ends[2];

    signal(SIGPIPE, SIG_IGN);
    pipe2(ends, O_NONBLOCK);
    FAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(arrive(s, POLLHUP); R(splice(ends[0], NULL, s, NULL, 5, 0)); R(write(ends[1], "bytes", 5));
         R(splice(ends[0], NULL, s, NULL, 5, 0)); R(splice(ends[0], NULL, s, NULL, 5, 0)); GET(s, 1, 0));
}

static void low_water_inherited(int fd)
{
    int mark = 4;

    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark);
}

static void low_water_set_before_connecting(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int port, listening;

    if (is_near) {
        length = loopback(AF_INET, ask(), &address);
        s = socket(AF_INET, SOCK_STREAM, 0);
        low_water_inherited(s);
        R(connect(s, (struct sockaddr *)&address, length));
    } else {
        listening = listener(AF_INET, &port);
        low_water_inherited(listening);
        tell(port);
        s = accept(listening, NULL, NULL);
    }
    NEAR(R(send(s, "abc", 3, 0)));
    FAR(POLL(s, POLLIN, 10));
    NEAR(R(send(s, "d", 1, 0)));
    FAR(POLL(s, POLLIN, 1000); ALL(s, 4));
}

static void peeking_at_offsets(void)
{
    int from = 2, none = -1, value = 0;
    socklen_t length = sizeof value;

    if (is_near)
        serve_until_released();
    else {
        R(getsockopt(s, SOL_SOCKET, SO_PEEK_OFF, &value, &length));
        say("%d", value);
        R(setsockopt(s, SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from));
        release();
    }
    step();
    NEAR(R(send(s, "abcdefgh", 8, 0)));
    FAR(GET(s, 2, MSG_PEEK); GET(s, 2, MSG_PEEK); GET(s, 1, 0); GET(s, 2, MSG_PEEK);
        R(setsockopt(s, SOL_SOCKET, SO_PEEK_OFF, &none, sizeof none)); GET(s, 3, MSG_PEEK); ALL(s, 7));
}

static void time_stamps(void)
{
    int on = 1;
    char bytes[8], control[256];
    struct iovec part = {bytes, 8};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header;

    FAR(R(setsockopt(s, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on)); await_time_stamps());
    if (is_near) {
        sleep_ms(20);
        R(send(s, "abc", 3, 0));
    } else {
        R(recvmsg(s, &message, 0));
        header = CMSG_FIRSTHDR(&message);
        say("%d", header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SO_TIMESTAMP);
    }
    step();
}

/* It is said that there was no room for a time. */
static void time_stamps_without_room(void)
{
    int on = 1;
    char bytes[8];
    struct iovec part = {bytes, 8};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    FAR(R(setsockopt(s, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on)); await_time_stamps());
    for (int round = 0; round < 2; round++) {
        if (is_near) {
            sleep_ms(20);
            R(send(s, "abc", 3, 0));
        } else {
            R(recvmsg(s, &message, 0));
            say("cut %d", (message.msg_flags & MSG_CTRUNC) != 0);
        }
        step();
    }
}

static void zero_copy(void)
{
    int on = 1, value = -1;
    socklen_t length = sizeof value;
    static char bytes[100000];
    char control[256];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};

    if (is_near) {
        R(send(s, bytes, 100, MSG_ZEROCOPY));
        R(setsockopt(s, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
        R(getsockopt(s, SOL_SOCKET, SO_ZEROCOPY, &value, &length));
        say("%d", value);
        R(send(s, bytes, sizeof bytes, MSG_ZEROCOPY));
        arrive(s, POLLERR);
        R(recvmsg(s, &message, MSG_ERRQUEUE));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header) {
            struct sock_extended_err *error = (struct sock_extended_err *)CMSG_DATA(header);
            say("origin %d", error->ee_origin == SO_EE_ORIGIN_ZEROCOPY);
        }
    } else
        drain(s, 100 + sizeof bytes);
    step();
}

static void set_zero_copy(int fd)
{
    int on = 1;

    setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
}

/* Sends of the pattern from place `from` on, each told by a number when the kernel no longer needs its memory, which is
 * left to it. */
static void pour_without_copies(size_t from, size_t count, int flags)
{
    unsigned char *bytes = malloc(count + 1);

    for (size_t at = 0; at < count; at++)
        bytes[at] = pattern(from + at);
    R(send(s, bytes, count, MSG_ZEROCOPY | flags));
}

/* What the kernel tells of `count` sends. */
static void completions(unsigned count)
{
    for (unsigned got = 0; got < count;) {
        char control[256];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        arrive(s, POLLERR);
        if (recvmsg(s, &message, MSG_ERRQUEUE) < 0) {
            say("no completion: %s", strerrorname_np(errno));
            return;
        }
        for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
            struct sock_extended_err error;
            memcpy(&error, CMSG_DATA(header), sizeof error);
            for (unsigned number = error.ee_info; number <= error.ee_data && got < count; number++, got++)
                say("number %u, origin %d, code %d", number, error.ee_origin, error.ee_code);
        }
    }
}

/* What has been sent before stands unread meanwhile. */
static void first_sends_without_copies(void)
{
    if (is_near) {
        pour(s, 0, 100000);
        pour_without_copies(100000, 50000, 0);
        pour_without_copies(150000, 100, MSG_DONTWAIT);
        pour(s, 150100, 20000);
        pour_without_copies(170100, 60000, 0);
    }
    step();
    if (!is_near)
        drink(s, 0, 230100);
    step();
    FAR(pour_without_copies(0, 1000, 0); pour_without_copies(1000, 1000, 0));
    NEAR(drink(s, 0, 2000); completions(3));
    FAR(completions(2));
    BOTH(POLL(s, POLLIN | POLLOUT, 0));
}

/* The option alone, which a listener hands on, changes nothing. */
static void zero_copy_set_before(void)
{
    s = join_by(AF_INET, set_zero_copy);
    BOTH(say("%d", number_of(s, SOL_SOCKET, SO_ZEROCOPY)); R(send(s, "word", 4, 0)); ALL(s, 4));
    prove(s);
    first_sends_without_copies();
}

static void zero_copy_set_on_a_connection(void)
{
    BOTH(set_zero_copy(s));
    prove(s);
    BOTH(say("%d", number_of(s, SOL_SOCKET, SO_ZEROCOPY)));
    first_sends_without_copies();
}

/* The flag means nothing where the option is not set, nor without bytes. */
static void zero_copy_without_the_option(void)
{
    NEAR(pour_without_copies(0, 50000, 0); pour_without_copies(50000, 100, MSG_DONTWAIT));
    FAR(drink(s, 0, 50100));
    BOTH(POLL(s, POLLIN | POLLOUT, 0));
    prove(s);
    BOTH(set_zero_copy(s); pour_without_copies(0, 0, 0); POLL(s, POLLIN | POLLOUT, 0));
    prove(s);
}

static void kernel_tls_without_keys(void)
{
    BOTH(R(setsockopt(s, SOL_TCP, TCP_ULP, "nonsense", 9)));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

static void control_messages_of_no_use(void)
{
    char control[CMSG_SPACE(4)] = {0};
    struct iovec part = {"abc", 3};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = 12345, .cmsg_len = CMSG_LEN(4)};
    NEAR(R(sendmsg(s, &message, 0)); header->cmsg_level = 4242; R(sendmsg(s, &message, 0)); header->cmsg_len = 3; R(sendmsg(s, &message, 0)));
    FAR(ALL(s, 3); GET(s, 1, MSG_DONTWAIT));
}

static void read_and_written_at_offsets(void)
{
    char bytes[4];
    struct iovec part = {bytes, 4}, out = {"abcd", 4};

    if (is_near) {
        R(pwritev2(s, &out, 1, -1, 0));
        R(pwritev(s, &out, 1, 0));
        release();
        ALL(s, 4);
    } else {
        serve_until_released();
        R(preadv2(s, &part, 1, -1, 0));
        show_bytes("bytes", bytes, 4);
        R(preadv(s, &part, 1, 0));
        R(send(s, "done", 4, 0));
    }
    step();
}

/* What only the kernel could carry is refused at once behind the end of this direction, and after a reset, as anything
 * else is. */
static void carried_behind_the_end(void)
{
    int ends[2];

    signal(SIGPIPE, SIG_IGN);
    pipe(ends);
    write(ends[1], "12345", 5);
    NEAR(R(shutdown(s, SHUT_WR)); TIMED(0, 100, R(send(s, "!", 1, MSG_OOB)));
         TIMED(0, 100, R(splice(ends[0], NULL, s, NULL, 5, 0))));
}

static void urgent_after_a_reset(void)
{
    NEAR(R(send(s, "unread", 6, 0)));
    FAR(arrive(s, POLLIN); R(close(s)));
    NEAR(sleep_ms(20); R(send(s, "!", 1, MSG_OOB | MSG_NOSIGNAL)); R(send(s, "!", 1, MSG_OOB | MSG_NOSIGNAL)));
}

MAIN(JOINED(urgent), JOINED(carried_behind_the_end), JOINED(urgent_after_a_reset), JOINED(urgent_when_there_is_none), JOINED(urgent_in_line), JOINED(urgent_by_signal), JOINED(urgent_then_plain), JOINED(urgent_in_every_wait),
     JOINED(file_sent), JOINED(file_sent_in_one_call), JOINED(file_sent_without_waiting), JOINED(file_errors), JOINED(spliced),
     JOINED(spliced_much), JOINED(splice_errors), JOINED(spliced_after_a_reset), BARE(low_water_set_before_connecting), JOINED(peeking_at_offsets), JOINED(time_stamps),
     JOINED(time_stamps_without_room),
     JOINED(zero_copy), BARE(zero_copy_set_before), JOINED(zero_copy_set_on_a_connection), JOINED(zero_copy_without_the_option), JOINED(kernel_tls_without_keys), JOINED(control_messages_of_no_use), JOINED(read_and_written_at_offsets))
