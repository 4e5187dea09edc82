/* Bytes that travel on several paths one after another, as steered; options that were set before. */
#include "play.h"
#include <sys/resource.h>

/* Without Nagle's algorithm, which would have later bytes wait. */
static void at_once(void)
{
    int on = 1;

    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void peeking_over_the_end_of_a_path(void)
{
    NEAR(at_once(); R(send(s, "lane5", 5, 0)); steer(true); R(send(s, "raw", 3, 0)));
    FAR(arrive(s, POLLIN); sleep_ms(5); GET(s, 20, MSG_PEEK); GET(s, 8, MSG_PEEK | MSG_WAITALL); GET(s, 6, MSG_PEEK);
        GET(s, 20, MSG_PEEK | MSG_TRUNC));
    NEAR(R(send(s, "more", 4, 0)));
    FAR(sleep_ms(5); GET(s, 12, MSG_PEEK | MSG_WAITALL); ALL(s, 12); GET(s, 1, MSG_PEEK | MSG_DONTWAIT));
}

static void peeking_over_the_beginning_of_a_path(void)
{
    int count;
    struct iovec parts[] = {{(char[4]){0}, 4}, {NULL, 0}, {(char[1]){0}, 1}, {(char[10]){0}, 10}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};

    NEAR(at_once(); R(send(s, "lane", 4, 0)); steer(true); R(send(s, "raw", 3, 0)));
    FAR(ALL(s, 7));
    NEAR(R(send(s, "abc", 3, 0)); steer(false); R(send(s, "def", 3, 0)));
    FAR(sleep_ms(5); GET(s, 20, MSG_PEEK); GET(s, 6, MSG_PEEK | MSG_WAITALL); GET(s, 20, MSG_PEEK | MSG_DONTWAIT);
        R(ioctl(s, FIONREAD, &count)); say("%d", count));
    NEAR(steer(true); R(send(s, "ghi", 3, 0)));
    FAR(sleep_ms(5); GET(s, 20, MSG_PEEK); GET(s, 9, MSG_PEEK | MSG_WAITALL); R(recvmsg(s, &message, MSG_PEEK));
        show_bytes("first", parts[0].iov_base, 4); show_bytes("last", parts[3].iov_base, 4); ALL(s, 9));
    NEAR(steer(false); R(send(s, "jkl", 3, 0)));
    FAR(ALL(s, 3));
}

static void peeking_wakes_over_the_end_of_a_path(void)
{
    for (int round = 0; round < 3; round++) {
        if (is_near) {
            steer(false);
            R(send(s, "first", 5, 0));
            sleep_ms(80);
            steer(true);
            R(send(s, "last", 4, 0));
        } else {
            TIMED(10, 1000, GET(s, 9, MSG_PEEK | MSG_WAITALL));
            ALL(s, 9);
        }
        step();
    }
}

static void ends_behind_several_paths(void)
{
    NEAR(at_once(); R(send(s, "lane", 4, 0)); steer(true); R(send(s, "raw", 3, 0)); R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLRDHUP); GET(s, 20, MSG_PEEK); GET(s, 20, MSG_PEEK | MSG_WAITALL); ALL(s, 7); GET(s, 1, MSG_PEEK | MSG_WAITALL);
        GET(s, 1, 0));
}

static void urgent_mark_behind_a_path(void)
{
    int at = -1;

    NEAR(R(send(s, "abc", 3, 0)); R(send(s, "!", 1, MSG_OOB)));
    FAR(arrive(s, POLLPRI); R(sockatmark(s)); R(ioctl(s, SIOCATMARK, &at)); say("%d", at); ALL(s, 3); R(sockatmark(s));
        R(ioctl(s, SIOCATMARK, &at)); say("%d", at));
}

static void corked(int fd)
{
    int on = 1;

    if (is_near)
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
}

static void cork_set_before_connecting(void)
{
    int on = 0;

    NEAR(R(on));
    if (is_near) {
        struct sockaddr_storage address;
        s = socket(AF_INET, SOCK_STREAM, 0);
        corked(s);
        R(connect(s, (struct sockaddr *)&address, loopback(AF_INET, ask(), &address)));
    } else {
        int port, listening = listener(AF_INET, &port);
        tell(port);
        s = accept(listening, NULL, NULL);
    }
    BOTH(R(number_of(s, IPPROTO_TCP, TCP_CORK)));
    NEAR(R(setsockopt(s, IPPROTO_TCP, TCP_CORK, &on, sizeof on)); R(number_of(s, IPPROTO_TCP, TCP_CORK)));
    prove(s);
    BOTH(R(number_of(s, IPPROTO_TCP, TCP_CORK)));
}

static int stamp;

static void stamped(int fd)
{
    static const int names[] = {SO_TIMESTAMP, SO_TIMESTAMPNS, 63, 64, SO_TIMESTAMPING};
    int on = stamp == 4 ? 1 << 3 | 1 << 4 : 1;

    if (is_near)
        R(setsockopt(fd, SOL_SOCKET, names[stamp], &on, sizeof on));
}

/* Bytes that are to carry a time have one: the connection need not be fast. */
static void time_stamps_set_before_connecting(void)
{
    for (stamp = 0; stamp < 5; stamp++) {
        char bytes[8], control[200];
        struct iovec part = {bytes, sizeof bytes};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        int port, fd;

        if (is_near) {
            struct sockaddr_storage address;
            socklen_t length = loopback(AF_INET, ask(), &address);
            fd = socket(AF_INET, SOCK_STREAM, 0);
            stamped(fd);
            R(connect(fd, (struct sockaddr *)&address, length));
        } else {
            int listening = listener(AF_INET, &port);
            tell(port);
            fd = accept(listening, NULL, NULL);
            close(listening);
        }
        for (int round = 0; round < 40; round++)
            if (is_near ? !send_all(fd, "w", 1) || !receive_all(fd, bytes, 1) : !receive_all(fd, bytes, 1) || !send_all(fd, "w", 1))
                say("no use of it");
        NEAR(await_time_stamps());
        FAR(R(send(fd, "x", 1, 0)));
        NEAR(R(recvmsg(fd, &message, 0)); say("times %d", message.msg_controllen > 0));
        close(fd);
    }
}

/* linux/tcp.h, which does not go together with netinet/tcp.h. */
struct zero_copy {
    uint64_t address;
    uint32_t length, skip, in_queue;
    int32_t error;
    uint64_t copy;
    int32_t copy_length;
    uint32_t flags;
    uint64_t control, control_length;
    uint32_t message_flags, reserved;
};

static void received_without_copies(void)
{
    char bytes[64] = "";
    struct zero_copy wanted = {.copy = (uint64_t)(uintptr_t)bytes, .copy_length = sizeof bytes};
    socklen_t length = sizeof wanted;

    NEAR(R(send(s, "zero", 4, 0)));
    if (is_near)
        serve_until_released();
    else {
        arrive(s, POLLIN);
        R(getsockopt(s, IPPROTO_TCP, 35, &wanted, &length));
        say("%d %s", wanted.copy_length, bytes);
        release();
    }
    BOTH(R(send(s, "on", 2, 0)); ALL(s, 2));
}

/* What is spliced once a connection is back on TCP wakes nobody who sleeps at the other end. */
static void spliced_beside_a_sleeper(void)
{
    int ends[2];
    struct rusage before, after;
    pipe(ends);
    if (is_near) {
        getrusage(RUSAGE_THREAD, &before), ALL(s, 1), getrusage(RUSAGE_THREAD, &after);
        say("woken again and again: %d", after.ru_nvcsw - before.ru_nvcsw > 100);
    } else {
        fcntl(s, F_SETFL, O_NONBLOCK);
        for (int turn = 0; turn < 300; turn++, sleep_ms(1))
            splice(s, NULL, ends[1], NULL, 10, 0);
        R(send(s, "!", 1, 0));
    }
    step();
}

MAIN(JOINED(peeking_over_the_end_of_a_path), JOINED(peeking_over_the_beginning_of_a_path),
     JOINED(peeking_wakes_over_the_end_of_a_path), JOINED(ends_behind_several_paths), JOINED(urgent_mark_behind_a_path),
     BARE(cork_set_before_connecting), BARE(time_stamps_set_before_connecting), JOINED(received_without_copies), JOINED(spliced_beside_a_sleeper))
