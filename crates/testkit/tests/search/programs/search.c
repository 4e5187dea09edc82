/* Direct search. Natively libviaduct does it by itself, and every receive goes through it; under Viaduct the ordinary
 * calls mind the holes. */
#include "check.h"
#include <sys/epoll.h>

static void a_hole_is_skipped(void)
{
    struct pair p = pair_with_digits();
    char bytes[16] = {0};

    EXPECT(viaduct_seek_recv(p.far, bytes, 3, 0, 4) == 3 && !memcmp(bytes, "456", 3));
    EXPECT(waiting(p.far) == 7);
    EXPECT(viaduct_seek_recv(p.far, bytes, 2, 0, 3) == 2 && !memcmp(bytes, "37", 2));
    EXPECT(waiting(p.far) == 5);
    EXPECT(viaduct_seek_recv(p.far, bytes, 16, MSG_PEEK, 1) == 4 && !memcmp(bytes, "1289", 4));
    EXPECT(in_order(p.far, bytes, 2, MSG_PEEK) == 2 && !memcmp(bytes, "01", 2));
    EXPECT(in_order(p.far, bytes, 16, 0) == 5 && !memcmp(bytes, "01289", 5));
    EXPECT(waiting(p.far) == 0);
    EXPECT_ERROR(in_order(p.far, bytes, 16, MSG_DONTWAIT), EAGAIN);
    EXPECT(send(p.near, "ab", 2, 0) == 2);
    EXPECT(in_order(p.far, bytes, 16, 0) == 2 && !memcmp(bytes, "ab", 2));
    close_pair(p);
}

static int polls_readable(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};

    return poll(&entry, 1, 0) == 1 && entry.revents & POLLIN;
}

static void readiness_knows_of_unread_bytes_only(void)
{
    struct pair p = connect_pair();
    char bytes[16] = {0};
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};

    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, p.far, &event) == 0);
    EXPECT(!polls_readable(p.far) && epoll_wait(set, &event, 1, 0) == 0);
    EXPECT(send(p.near, "abcdef", 6, 0) == 6);
    settle();
    EXPECT(viaduct_seek_recv(p.far, bytes, 4, 0, 2) == 4 && !memcmp(bytes, "cdef", 4));
    EXPECT(polls_readable(p.far) && epoll_wait(set, &event, 1, 0) == 1);
    EXPECT(in_order(p.far, bytes, 2, 0) == 2 && !memcmp(bytes, "ab", 2));
    EXPECT(!polls_readable(p.far) && epoll_wait(set, &event, 1, 0) == 0);
    EXPECT(send(p.near, "xyz", 3, 0) == 3);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1);
    EXPECT(viaduct_seek_recv(p.far, bytes, 1, 0, 0) == 1 && bytes[0] == 'x');
    EXPECT(polls_readable(p.far) && epoll_wait(set, &event, 1, 0) == 1);
    EXPECT(in_order(p.far, bytes, 16, 0) == 2);
    EXPECT(!polls_readable(p.far) && epoll_wait(set, &event, 1, 0) == 0);
    close(set);
    close_pair(p);
}

static void *in_two_pieces(void *fd)
{
    sleep_ms(30);
    send_all(*(int *)fd, "0123456789", 10);
    sleep_ms(30);
    send_all(*(int *)fd, "abcdefghij", 10);
    return NULL;
}

static void it_waits_for_what_is_not_there(void)
{
    struct pair p = connect_pair();
    char bytes[16] = {0};
    struct timeval time = {.tv_usec = 20000};
    pthread_t thread;
    double began;

    EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 4, MSG_DONTWAIT, 8), EAGAIN);
    began = now();
    thread = in_thread(in_two_pieces, &p.near);
    EXPECT(viaduct_seek_recv(p.far, bytes, 4, MSG_WAITALL, 8) == 4 && !memcmp(bytes, "89ab", 4));
    EXPECT(now() - began > 0.05);
    EXPECT(viaduct_seek_recv(p.far, bytes, 16, 0, 14) == 2 && !memcmp(bytes, "ij", 2));
    pthread_join(thread, NULL);
    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    began = now();
    EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 1, 0, 14), EAGAIN);
    EXPECT(now() - began > 0.015);
    EXPECT(now() - began < 0.5);
    /* What is there of it counts when the time is up. */
    EXPECT(viaduct_seek_recv(p.far, bytes, 16, MSG_DONTWAIT | MSG_WAITALL, 12) == 2 && !memcmp(bytes, "gh", 2));
    close_pair(p);
}

static void the_end_of_the_stream(void)
{
    struct pair p = pair_with_digits();
    char bytes[16] = {0};

    EXPECT(viaduct_seek_recv(p.far, bytes, 2, 0, 8) == 2 && !memcmp(bytes, "89", 2));
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    EXPECT(viaduct_seek_recv(p.far, bytes, 4, 0, 8) == 0);
    EXPECT(viaduct_seek_recv(p.far, bytes, 4, MSG_WAITALL, 6) == 2 && !memcmp(bytes, "67", 2));
    EXPECT(in_order(p.far, bytes, 16, MSG_WAITALL) == 6 && !memcmp(bytes, "012345", 6));
    EXPECT(in_order(p.far, bytes, 16, 0) == 0);
    EXPECT(viaduct_seek_recv(p.far, bytes, 4, 0, 3) == 0);
    /* The other direction is as it was. */
    EXPECT(send(p.far, "back", 4, 0) == 4);
    EXPECT(recv(p.near, bytes, 16, 0) == 4);
    close_pair(p);
}

static void large_pieces(void)
{
    enum { size = 60000, count = 4 };
    struct pair p = connect_pair();
    static char sent[size * count], bytes[size * count];
    int room = 2 * size * count;

    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
    for (size_t at = 0; at < sizeof sent; at++)
        sent[at] = (char)pattern(at);
    EXPECT(send_all(p.near, sent, sizeof sent));
    EXPECT(viaduct_seek_recv(p.far, bytes, size, MSG_WAITALL, 2 * size) == size);
    EXPECT(!memcmp(bytes, sent + 2 * size, size));
    EXPECT(viaduct_seek_recv(p.far, bytes, 100, MSG_WAITALL, size) == 100 && !memcmp(bytes, sent + size, 100));
    /* Over a hole. */
    EXPECT(viaduct_seek_recv(p.far, bytes, size, MSG_WAITALL, 2 * size - 1100) == size);
    EXPECT(!memcmp(bytes, sent + 2 * size - 1000, 1000));
    EXPECT(!memcmp(bytes + 1000, sent + 3 * size, size - 1000));
    EXPECT(in_order(p.far, bytes, 2 * size - 1100, MSG_WAITALL) == 2 * size - 1100);
    EXPECT(!memcmp(bytes, sent, size) && !memcmp(bytes + size, sent + size + 100, size - 1100));
    EXPECT(in_order(p.far, bytes, sizeof bytes, 0) == 1000 && !memcmp(bytes, sent + 4 * size - 1000, 1000));
    close_pair(p);
}

static void threads_and_children_share_holes(void)
{
    struct pair p = pair_with_digits();
    char bytes[16] = {0};
    int status = 1;
    pid_t child;

    EXPECT(viaduct_seek_recv(p.far, bytes, 2, 0, 2) == 2);
    child = fork();
    if (child == 0) {
        int right = viaduct_seek_recv(p.far, bytes, 2, 0, 4) == 2 && !memcmp(bytes, "67", 2) &&
                    in_order(p.far, bytes, 1, 0) == 1 && bytes[0] == '0';
        _exit(!right);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(in_order(p.far, bytes, 16, 0) == 5 && !memcmp(bytes, "14589", 5));
    /* Searched for the first time in the child. */
    close_pair(p);
    p = pair_with_digits();
    child = fork();
    if (child == 0)
        _exit(!(viaduct_seek_recv(p.far, bytes, 2, 0, 4) == 2 && !memcmp(bytes, "45", 2)));
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(in_order(p.far, bytes, 16, 0) == 8 && !memcmp(bytes, "01236789", 8));
    close_pair(p);
}

/* The first check: of processes that are made before any has searched. */
static void processes_search_first_at_once(void)
{
    for (int round = 0; round < 20; round++) {
        struct pair p = pair_with_digits();
        char bytes[16] = {0};
        int status = 1;
        pid_t child;

        child = fork();
        if (child == 0)
            _exit(!(viaduct_seek_recv(p.far, bytes, 1, 0, 1) == 1 && (bytes[0] == '1' || bytes[0] == '2')));
        EXPECT(viaduct_seek_recv(p.far, bytes, 1, 0, 1) == 1 && (bytes[0] == '1' || bytes[0] == '2'));
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        EXPECT(in_order(p.far, bytes, 16, 0) == 8 && !memcmp(bytes, "03456789", 8));
        close_pair(p);
    }
}

static void a_new_socket_has_no_holes(void)
{
    char bytes[16] = {0};

    for (int round = 0; round < 40; round++) {
        struct pair p = pair_with_digits();
        EXPECT(viaduct_seek_recv(p.far, bytes, 1, 0, 1 + round % 8) == 1);
        close_pair(p);
    }
}

static void too_many_holes_are_refused(void)
{
    struct pair p = connect_pair();
    static char sent[12000], bytes[12000];
    int taken = 0;

    for (size_t at = 0; at < sizeof sent; at++)
        sent[at] = (char)pattern(at);
    EXPECT(send_all(p.near, sent, sizeof sent));
    settle();
    while (viaduct_seek_recv(p.far, bytes, 1, 0, (size_t)(2 * taken + 1)) == 1) {
        EXPECT(bytes[0] == sent[3 * taken + 1]);
        taken++;
    }
    EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 1, 0, (size_t)(2 * taken + 1)), ENOBUFS);
    EXPECT(taken >= 1000 && waiting(p.far) == (long)sizeof sent - taken);
    /* Data comes off the head, and there is room again. */
    EXPECT(in_order(p.far, bytes, 9, MSG_WAITALL) == 9);
    EXPECT(bytes[2] == sent[3] && bytes[8] == sent[12]);
    EXPECT(viaduct_seek_recv(p.far, bytes, 1, 0, (size_t)(2 * taken - 8)) == 1 && bytes[0] == sent[3 * taken + 1]);
    close_pair(p);
}

static void *flood(void *fd)
{
    static unsigned char block[65536];

    for (size_t round = 0; round < 160; round++) {
        for (size_t at = 0; at < sizeof block; at++)
            block[at] = pattern(round * sizeof block + at);
        send_all(*(int *)fd, block, sizeof block);
    }
    return NULL;
}

static void *flood_after_a_while(void *fd)
{
    sleep_ms(20);
    return flood(fd);
}

static void holes_let_the_sender_go_on(void)
{
    /* The first KiB stays unread while ten MiB behind it are taken away, as far as the sender may go on: of a lane of 4
     * MiB twice as far. */
    struct pair p = connect_pair();
    static unsigned char bytes[65536];
    size_t taken = 0, least = on_lane() ? 7 << 20 : old ? 200 << 10 : 1500 << 10;
    pthread_t thread;

    if (!under_viaduct()) {
        /* The kernel keeps what is behind an unread byte. */
        close_pair(p);
        return;
    }
    thread = in_thread(flood, &p.near);
    while (taken < 160 * sizeof bytes - 1024) {
        ssize_t got = viaduct_seek_recv(p.far, bytes, sizeof bytes, 0, 1024);
        if (got < 0 && errno == ENOBUFS && taken > least)
            break;
        EXPECT(got > 0);
        /* Blocks that were given back too early have been filled anew. */
        for (ssize_t at = 0; at < got; at++)
            EXPECT(bytes[at] == pattern(1024 + taken + (size_t)at));
        taken += (size_t)got;
    }
    EXPECT(taken > least);
    /* The program recovers by taking data off the head. */
    for (size_t left = 160 * sizeof bytes - taken; left > 0;) {
        ssize_t got = in_order(p.far, bytes, sizeof bytes, 0);
        size_t at = 160 * sizeof bytes - left;

        EXPECT(got > 0 && (size_t)got <= left);
        for (ssize_t index = 0; index < got; index++, at++)
            EXPECT(bytes[index] == pattern(at < 1024 + taken && at >= taken ? at - taken : at));
        left -= (size_t)got;
    }
    pthread_join(thread, NULL);
    close_pair(p);
}

/* Of more than can be held, a peek at the head shows what is. */
static void a_peek_may_ask_for_more_than_can_be_held(void)
{
    struct pair p = connect_pair();
    static unsigned char bytes[160 * 65536];
    /* What the kernel's buffer holds beside what surrounds the bytes, or a lane. */
    int small = 256 << 10, least = on_lane() ? 4000 << 10 : 100 << 10;
    pthread_t thread;
    ssize_t got;

    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    thread = in_thread(flood_after_a_while, &p.near);
    got = viaduct_seek_recv(p.far, bytes, sizeof bytes, MSG_WAITALL | MSG_PEEK, 0);
    EXPECT(got >= least && (size_t)got < sizeof bytes);
    for (ssize_t at = 0; at < got; at++)
        EXPECT(bytes[at] == pattern((size_t)at));
    EXPECT(in_order(p.far, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
    for (size_t at = 0; at < sizeof bytes; at++)
        EXPECT(bytes[at] == pattern(at));
    pthread_join(thread, NULL);
    close_pair(p);
}

/* A stream of `pattern` bytes sent in random pieces, received in random order. */
enum { length = 3000000, window = 50000 };
struct sender {
    int fd;
    unsigned seed;
};

static unsigned draw(unsigned *seed, unsigned below)
{
    *seed = *seed * 1103515245 + 12345;
    return (*seed >> 8) % below;
}

static void *send_pattern(void *argument)
{
    struct sender *sender = argument;
    static char bytes[40000];

    for (size_t at = 0; at < length;) {
        size_t count = 1 + draw(&sender->seed, draw(&sender->seed, 8) ? 3000 : sizeof bytes);
        count = count < length - at ? count : length - at;
        for (size_t i = 0; i < count; i++)
            bytes[i] = (char)pattern(at + i);
        if (!send_all(sender->fd, bytes, count))
            break;
        at += count;
        if (draw(&sender->seed, 40) == 0)
            sleep_ms(1);
    }
    shutdown(sender->fd, SHUT_WR);
    return NULL;
}

static void receive_in_random_order(unsigned seed)
{
    struct pair p = connect_pair();
    struct sender sender = {p.near, seed * 7 + 1};
    static unsigned char taken[length], bytes[window];
    size_t head = 0, missing = length;
    pthread_t thread = in_thread(send_pattern, &sender);

    memset(taken, 0, sizeof taken);
    while (missing > 0) {
        size_t offset = draw(&seed, 3) ? draw(&seed, draw(&seed, 4) ? 3000 : window) : 0;
        size_t want = 1 + draw(&seed, draw(&seed, 6) ? 2000 : window);
        static const int kinds[] = {0, MSG_WAITALL, MSG_DONTWAIT, MSG_PEEK, MSG_PEEK | MSG_DONTWAIT, MSG_TRUNC};
        int flags = kinds[draw(&seed, 6)];
        size_t at = head;
        ssize_t got;

        if (offset == 0 && flags != MSG_TRUNC)
            got = in_order(p.far, bytes, want, flags);
        else
            got = viaduct_seek_recv(p.far, bytes, want, flags, offset);
        if (got < 0) {
            int error = errno;
            /* A full buffer is emptied by the calls in order that come now and then. */
            if ((error == EAGAIN && flags & MSG_DONTWAIT) || (error == ENOBUFS && offset > 0))
                continue;
            snprintf(failure, sizeof failure, "errno %d at %zu + %zu, %zu bytes, flags %d", error, head, offset, want,
                     flags);
            return;
        }
        EXPECT((size_t)got <= want);
        /* The model: unread bytes counted one by one. */
        for (size_t pass = offset; pass > 0 && at < length; at++)
            pass -= !taken[at];
        for (ssize_t i = 0; i < got; at++) {
            EXPECT(at < length);
            if (taken[at])
                continue;
            EXPECT(flags == MSG_TRUNC || bytes[i] == pattern(at));
            if (!(flags & MSG_PEEK)) {
                taken[at] = 1;
                missing--;
            }
            i++;
        }
        if (got == 0 || (flags & MSG_WAITALL && (size_t)got < want)) {
            /* Only the end of the stream is a reason. */
            size_t rest = 0;
            for (; at < length; at++)
                rest += !taken[at];
            EXPECT(rest == 0);
        }
        while (head < length && taken[head])
            head++;
    }
    EXPECT(in_order(p.far, bytes, 1, 0) == 0);
    pthread_join(thread, NULL);
    close_pair(p);
}

static void random_order(void)
{
    for (unsigned seed = 1; seed < 4 && !failure[0]; seed++)
        receive_in_random_order(seed);
}

static void *take_some(void *argument)
{
    int fd = *(int *)argument;
    static __thread char bytes[512];
    size_t taken = 0;

    for (unsigned seed = (unsigned)fd;;) {
        size_t offset = draw(&seed, 2) ? draw(&seed, 5000) : 0;
        ssize_t got = offset ? viaduct_seek_recv(fd, bytes, sizeof bytes, 0, offset) : in_order(fd, bytes, sizeof bytes, 0);
        if (got <= 0 && offset == 0)
            break;
        taken += got > 0 ? (size_t)got : 0;
    }
    return (void *)taken;
}

static void threads_take_each_byte_once(void)
{
    struct pair p = connect_pair();
    struct sender sender = {p.near, 5};
    pthread_t threads[3], thread = in_thread(send_pattern, &sender);
    size_t sum = 0;

    for (int index = 0; index < 3; index++)
        threads[index] = in_thread(take_some, &p.far);
    for (int index = 0; index < 3; index++) {
        void *taken;
        pthread_join(threads[index], &taken);
        sum += (size_t)taken;
    }
    pthread_join(thread, NULL);
    EXPECT(sum == length);
    close_pair(p);
}

/* Raw bytes for which the receiver has no room stand before what has come on the lane. */
static void counted_before_what_has_come(void)
{
    enum { raw = 100000, behind = 60000, taken = 50000 };
    static unsigned char sent[raw + behind], got[raw + behind];
    struct pair p = connect_quickly();
    struct pollfd entry = {.fd = p.far, .events = POLLIN};
    int small = 4096, large = 1 << 20;
    char echo[100] = {0};
    ssize_t searched;

    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    EXPECT(setsockopt(p.near, SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0);
    for (size_t at = 0; at < sizeof sent; at++)
        sent[at] = pattern(at);
    EXPECT(send_all(p.near, sent, raw));
    for (int round = 0; round < 40; round++) {
        EXPECT(send_all(p.far, echo, sizeof echo) && receive_all(p.near, echo, sizeof echo));
        sleep_ms(1);
    }
    EXPECT(send_all(p.near, sent + raw, behind));
    settle();
    searched = viaduct_seek_recv(p.far, got, taken, MSG_WAITALL | MSG_DONTWAIT, raw);
    EXPECT(searched == taken ? on_lane() && !memcmp(got, sent + raw, taken) : searched == -1);
    EXPECT(poll(&entry, 1, 0) == 1 && waiting(p.far) > 0 && waiting(p.far) < raw);
    for (size_t at = 0, end = sizeof sent - (searched > 0 ? taken : 0); at < end;) {
        ssize_t some = in_order(p.far, got, sizeof got, 0);

        EXPECT(some > 0);
        for (ssize_t index = 0; index < some; index++, at++)
            EXPECT(got[index] == pattern(at < raw || searched < 0 ? at : at + taken));
    }
    EXPECT(waiting(p.far) == 0);
    close_pair(p);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"processes_search_first_at_once", processes_search_first_at_once},
        {"a_hole_is_skipped", a_hole_is_skipped},
        {"readiness_knows_of_unread_bytes_only", readiness_knows_of_unread_bytes_only},
        {"it_waits_for_what_is_not_there", it_waits_for_what_is_not_there},
        {"the_end_of_the_stream", the_end_of_the_stream},
        {"large_pieces", large_pieces},
        {"threads_and_children_share_holes", threads_and_children_share_holes},
        {"a_new_socket_has_no_holes", a_new_socket_has_no_holes},
        {"too_many_holes_are_refused", too_many_holes_are_refused},
        {"holes_let_the_sender_go_on", holes_let_the_sender_go_on},
        {"a_peek_may_ask_for_more_than_can_be_held", a_peek_may_ask_for_more_than_can_be_held},
        {"counted_before_what_has_come", counted_before_what_has_come},
        {"random_order", random_order},
        {"threads_take_each_byte_once", threads_take_each_byte_once},
    };
    if (argc > 2 && !strcmp(argv[1], "--for")) {
        double until = now() + atof(argv[2]);
        setvbuf(stdout, NULL, _IOLBF, 0);
        printf("check storm\n");
        for (unsigned seed = 1; now() < until && !failure[0]; seed++) {
            receive_in_random_order(seed);
            printf("%s %u: %s\n", failure[0] ? "not ok" : "ok", seed, failure);
        }
        return failure[0] != 0;
    }
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
