/* Inboxes that have to keep what their sockets do not hold, and as much as they may. */
#include "check.h"

#include <limits.h>
#include <stdint.h>

enum { kept = 4000, messages = 20 };

static void *send_many(void *argument)
{
    static const char bytes[kept];
    int *fd = argument;

    for (uint32_t tag = 0; tag < messages; tag++)
        viaduct_msg_send(*fd, tag, bytes, sizeof bytes);
    return NULL;
}

/* What a Unix socket sends is kept, as far as the program says. */
static void the_store_has_a_bound(void)
{
    int ends[2];
    viaduct_inbox *inbox = viaduct_inbox_open(kept, 4 * kept);
    struct viaduct_msg info = {0, -1, 0};
    char bytes[kept];
    pthread_t thread;

    EXPECT(inbox && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && viaduct_inbox_add(inbox, ends[1]) == 0);
    thread = in_thread(send_many, &ends[0]);
    EXPECT_ERROR(viaduct_msg_recv(inbox, messages - 1, 0, bytes, kept, 5000, &info), ENOBUFS);
    EXPECT(info.source == 0);
    for (uint32_t tag = 0; tag < messages; tag++)
        EXPECT(viaduct_msg_recv(inbox, VIADUCT_ANY, VIADUCT_ANY, bytes, kept, 5000, &info) == kept && info.tag == tag);
    pthread_join(thread, NULL);
    viaduct_inbox_close(inbox);
    close(ends[0]);
    close(ends[1]);
}

static struct flood {
    int fd;
    size_t len;
    uint32_t count;
} flooding;

static void *send_flood(void *unused)
{
    (void)unused;
    for (uint32_t number = 0; number < flooding.count; number++)
        viaduct_msg_send(flooding.fd, number, "payload", flooding.len);
    viaduct_msg_send(flooding.fd, UINT32_MAX, "last", 4);
    return NULL;
}

/* What is known of messages that stay in the socket counts: empty ones cost their sender twelve bytes. */
static void what_is_known_has_a_bound(void)
{
    enum { count = 3000, most = 1000 };
    struct pair p = connect_pair();
    viaduct_inbox *inbox = viaduct_inbox_open(100, 48 * most);
    struct viaduct_msg info = {0, -1, 0};
    pthread_t thread;

    EXPECT(inbox && viaduct_inbox_add(inbox, p.far) == 0);
    flooding = (struct flood){p.near, 0, count};
    thread = in_thread(send_flood, NULL);
    EXPECT_ERROR(viaduct_msg_probe(inbox, UINT32_MAX, 0, 5000, &info), ENOBUFS);
    EXPECT(info.source == 0);
    /* Some of what is there has been seen. */
    EXPECT(viaduct_msg_recv(inbox, 300, 0, NULL, 0, 0, NULL) == 0);
    EXPECT_ERROR(viaduct_msg_probe(inbox, most, 0, 0, NULL), ENOBUFS);
    for (uint32_t number = 0; number < count; number++)
        if (number != 300)
            EXPECT(viaduct_msg_recv(inbox, VIADUCT_ANY, 0, NULL, 0, 5000, &info) == 0 && info.tag == number);
    EXPECT(viaduct_msg_probe(inbox, UINT32_MAX, 0, 5000, NULL) == 4);
    pthread_join(thread, NULL);
    viaduct_inbox_close(inbox);
    close_pair(p);
}

/* Part of a frame may be the last that fits: of a lane at first, and of one that has grown, or of the kernel's
 * buffer. */
static void frames_lie_across_the_end_of_what_fits(void)
{
    /* So many messages take seconds where others take the processors. */
    alarm(60);
    for (size_t len = 5; len <= 7; len++) {
        struct pair p = connect_pair();
        viaduct_inbox *inbox = viaduct_inbox_open(100, 0);
        char bytes[100];
        pthread_t thread;

        EXPECT(inbox && viaduct_inbox_add(inbox, p.far) == 0);
        EXPECT(fcntl(p.near, F_SETFL, O_NONBLOCK) == 0);
        flooding = (struct flood){p.near, len, len == 5 && !old ? 300000 : 80000};
        thread = in_thread(send_flood, NULL);
        EXPECT(viaduct_msg_recv(inbox, UINT32_MAX, 0, bytes, sizeof bytes, 25000, NULL) == 4 && !memcmp(bytes, "last", 4));
        for (uint32_t number = 0; number < flooding.count; number++) {
            struct viaduct_msg info;

            EXPECT(viaduct_msg_recv(inbox, VIADUCT_ANY, 0, bytes, sizeof bytes, 5000, &info) == (ssize_t)len);
            EXPECT(info.tag == number && !memcmp(bytes, "payload", len));
        }
        pthread_join(thread, NULL);
        viaduct_inbox_close(inbox);
        close_pair(p);
    }
}

static void limits_of_any_size_are_taken(void)
{
    static const size_t sizes[] = {1, SIZE_MAX / 2, SIZE_MAX - 47, SIZE_MAX - 1, SIZE_MAX};
    char bytes[4];

    for (size_t longest = 0; longest < 5; longest++) {
        for (size_t store = 0; store < 5; store++) {
            struct pair p = connect_pair();
            int ends[2];
            viaduct_inbox *inbox = viaduct_inbox_open(sizes[longest], sizes[store]);

            EXPECT(inbox && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
            EXPECT(viaduct_inbox_add(inbox, p.far) == 0 && viaduct_inbox_add(inbox, ends[1]) == 1);
            EXPECT(viaduct_msg_send(p.near, 1, "a", 1) == 0 && viaduct_msg_send(ends[0], 2, "b", 1) == 0);
            EXPECT(viaduct_msg_recv(inbox, 2, 1, bytes, 4, 5000, NULL) == 1 && bytes[0] == 'b');
            EXPECT(viaduct_msg_recv(inbox, 1, 0, bytes, 4, 5000, NULL) == 1 && bytes[0] == 'a');
            viaduct_inbox_close(inbox);
            close_pair(p);
            close(ends[0]);
            close(ends[1]);
        }
    }
}

/* A connection whose receiver never has more room. */
static struct pair pair_with_room(int room)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct pair pair = {socket(AF_INET, SOCK_STREAM, 0), -1};

    if (!setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) && !bind(listener, (struct sockaddr *)&address, size) &&
        !listen(listener, 1) && !getsockname(listener, (struct sockaddr *)&address, &size) &&
        !connect(pair.near, (struct sockaddr *)&address, size))
        pair.far = accept(listener, NULL, NULL);
    close(listener);
    return pair;
}

enum { UNWANTED = 50 };

static void *send_the_wanted_last(void *argument)
{
    static char payload[3000];
    struct pair *pair = argument;

    for (int number = 0; number < UNWANTED; number++)
        if (viaduct_msg_send(pair->near, 1, payload, sizeof payload))
            return NULL;
    viaduct_msg_send(pair->near, 2, payload, 1);
    return NULL;
}

/* That the buffer is full of messages that nobody has asked for is no arrival, and yet is to be acted upon. */
static void an_inbox_that_is_polled_makes_room(void)
{
    struct pair pair = pair_with_room(5000);
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    struct pollfd entry = {viaduct_inbox_fd(inbox), POLLIN, 0};
    int waits = 0;
    pthread_t thread;
    char byte;

    EXPECT(inbox && viaduct_inbox_add(inbox, pair.far) == 0);
    thread = in_thread(send_the_wanted_last, &pair);
    sleep_ms(200);
    while (viaduct_msg_recv(inbox, 2, VIADUCT_ANY, &byte, 1, 0, NULL) != 1) {
        int error = errno;

        EXPECT(error == ETIMEDOUT && poll(&entry, 1, 5000) == 1);
    }
    pthread_join(thread, NULL);
    /* What is left is looked at less and less often. */
    for (double end = now() + 0.5; now() < end; waits++) {
        EXPECT_ERROR(viaduct_msg_recv(inbox, 2, VIADUCT_ANY, &byte, 1, 0, NULL), ETIMEDOUT);
        poll(&entry, 1, 500);
    }
    EXPECT(waits < 100);
    viaduct_inbox_close(inbox);
    close_pair(pair);
}

static void a_call_that_waits_makes_room(void)
{
    struct pair pair = pair_with_room(5000);
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    pthread_t thread;
    char byte;

    EXPECT(inbox && viaduct_inbox_add(inbox, pair.far) == 0);
    thread = in_thread(send_the_wanted_last, &pair);
    sleep_ms(200);
    EXPECT(viaduct_msg_recv(inbox, 2, VIADUCT_ANY, &byte, 1, 10000, NULL) == 1);
    pthread_join(thread, NULL);
    viaduct_inbox_close(inbox);
    close_pair(pair);
}

enum { tiny = 3, frame = 12, step = 7 };

static struct trickle {
    int fd;
    uint32_t count;
    /* Bytes that are missing at the end. */
    size_t cut;
} trickling;

/* Messages that lie across what is sent at once, whose frames lie anywhere. */
static void *send_trickle(void *unused)
{
    static unsigned char bytes[4000 * (frame + tiny)];
    size_t length = trickling.count * (frame + tiny) - trickling.cut;

    (void)unused;
    for (uint32_t number = 0; number < trickling.count; number++) {
        unsigned char *at = bytes + number * (frame + tiny);

        memcpy(at, "VMSG", 4);
        memcpy(at + 4, &number, 4);
        memcpy(at + 8, &(uint32_t){tiny}, 4);
        memcpy(at + frame, "abc", tiny);
    }
    for (size_t at = 0; at < length; at += step)
        if (!send_all(trickling.fd, bytes + at, length - at < step ? length - at : step))
            break;
    shutdown(trickling.fd, SHUT_WR);
    return NULL;
}

/* What is left of a frame may be all that a small buffer has room for. */
static void part_of_a_frame_fills_the_buffer(void)
{
    static const size_t stores[] = {0, 100 * 80};

    for (size_t way = 0; way < 2; way++) {
        struct pair p = pair_with_room(20000);
        viaduct_inbox *inbox = viaduct_inbox_open(tiny, stores[way]);
        uint32_t next = 0, last = 2999;
        char bytes[tiny];
        pthread_t thread;
        int refused = 0;

        EXPECT(inbox && viaduct_inbox_add(inbox, p.far) == 0);
        trickling = (struct trickle){p.near, last + 1, 0};
        thread = in_thread(send_trickle, NULL);
        sleep_ms(100);
        while (viaduct_msg_recv(inbox, last, 0, bytes, tiny, 10000, NULL) != tiny) {
            struct viaduct_msg info;
            int error = errno;

            EXPECT(error == ENOBUFS && stores[way]);
            EXPECT(viaduct_msg_recv(inbox, VIADUCT_ANY, 0, bytes, tiny, 0, &info) == tiny && info.tag == next++);
            refused++;
        }
        EXPECT(refused > 1000 || !stores[way]);
        for (; next < last; next++)
            EXPECT(viaduct_msg_recv(inbox, next, 0, bytes, tiny, 0, NULL) == tiny && !memcmp(bytes, "abc", tiny));
        EXPECT_ERROR(viaduct_msg_recv(inbox, VIADUCT_ANY, 0, bytes, tiny, 5000, NULL), ENOTCONN);
        pthread_join(thread, NULL);
        viaduct_inbox_close(inbox);
        close_pair(p);
    }
}

static void a_stream_ends_within_a_frame_behind_a_full_buffer(void)
{
    for (size_t cut = 0; cut < frame + tiny; cut++) {
        struct pair p = pair_with_room(5000);
        viaduct_inbox *inbox = viaduct_inbox_open(tiny, 0);
        uint32_t whole = 400 - (cut > 0);
        pthread_t thread;

        EXPECT(inbox && viaduct_inbox_add(inbox, p.far) == 0);
        trickling = (struct trickle){p.near, 400, cut};
        thread = in_thread(send_trickle, NULL);
        /* Of one whose frame is there it is found out when it is asked for. */
        EXPECT_ERROR(viaduct_msg_probe(inbox, UINT32_MAX, 0, 10000, NULL), cut > tiny ? EPROTO : ENOTCONN);
        for (uint32_t number = 0; number < whole; number++) {
            struct viaduct_msg info;
            char bytes[tiny];

            EXPECT(viaduct_msg_recv(inbox, VIADUCT_ANY, 0, bytes, tiny, 0, &info) == tiny && info.tag == number);
        }
        EXPECT_ERROR(viaduct_msg_probe(inbox, VIADUCT_ANY, 0, 0, NULL), cut ? EPROTO : ENOTCONN);
        pthread_join(thread, NULL);
        viaduct_inbox_close(inbox);
        close_pair(p);
    }
}

/* Also behind bytes that nobody has asked for, which are looked at now and then. */
static void a_wait_ends_in_time(void)
{
    struct pair p = connect_pair();
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);

    EXPECT(inbox && viaduct_inbox_add(inbox, p.far) == 0 && viaduct_msg_send(p.near, 1, "left", 4) == 0);
    for (uint32_t tag = 2; tag < 5; tag++)
        EXPECT_ERROR(viaduct_msg_recv(inbox, tag, 0, NULL, 0, 100, NULL), ETIMEDOUT);
    viaduct_inbox_close(inbox);
    close_pair(p);
}

static const struct check checks[] = {
    {"the_store_has_a_bound", the_store_has_a_bound},
    {"what_is_known_has_a_bound", what_is_known_has_a_bound},
    {"frames_lie_across_the_end_of_what_fits", frames_lie_across_the_end_of_what_fits},
    {"part_of_a_frame_fills_the_buffer", part_of_a_frame_fills_the_buffer},
    {"a_stream_ends_within_a_frame_behind_a_full_buffer", a_stream_ends_within_a_frame_behind_a_full_buffer},
    {"a_wait_ends_in_time", a_wait_ends_in_time},
    {"limits_of_any_size_are_taken", limits_of_any_size_are_taken},
    {"an_inbox_that_is_polled_makes_room", an_inbox_that_is_polled_makes_room},
    {"a_call_that_waits_makes_room", a_call_that_waits_makes_room},
};

int main(int argc, char **argv)
{
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
