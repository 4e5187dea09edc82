/* What is needed lies further ahead than a lane reaches that has carried little: it grows for who says so. */
#include "check.h"

enum { length = 8 << 20, far = 3 << 20, piece = 1000 };
static unsigned char bytes[length];
static int waits_before_it_sends;

static void *feed(void *near)
{
    static unsigned char all[length];
    int fd = *(int *)near;
    size_t sent = 0;

    for (size_t at = 0; at < length; at++)
        all[at] = pattern(at);
    /* The receiver waits by now. */
    sleep_ms(30);
    while (sent < length) {
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        ssize_t got;

        if (waits_before_it_sends)
            poll(&room, 1, -1);
        got = send(fd, all + sent, length - sent, waits_before_it_sends ? MSG_DONTWAIT : 0);
        if (got < 0 && errno != EAGAIN)
            break;
        sent += got > 0 ? (size_t)got : 0;
    }
    return NULL;
}

static int is_right(size_t from, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (bytes[at] != pattern(from + at))
            return 0;
    return 1;
}

static ssize_t search(int fd)
{
    return viaduct_seek_recv(fd, bytes, piece, MSG_WAITALL, far);
}

static ssize_t search_again_and_again(int fd)
{
    ssize_t got;

    while ((got = viaduct_seek_recv(fd, bytes, piece, MSG_WAITALL | MSG_DONTWAIT, far)) < 0 && errno == EAGAIN)
        sleep_ms(1);
    return got;
}

static ssize_t peek(int fd)
{
    return recv(fd, bytes, far, MSG_PEEK | MSG_WAITALL);
}

static void receive_ahead(ssize_t (*ahead)(int), size_t from, size_t count)
{
    struct pair p = connect_pair();
    pthread_t feeder = in_thread(feed, &p.near);
    size_t hole = from ? count : 0;

    EXPECT(ahead(p.far) == (ssize_t)count && is_right(from, count));
    EXPECT(in_order(p.far, bytes, far, MSG_WAITALL) == far && is_right(0, far));
    EXPECT(in_order(p.far, bytes, length - far - hole, MSG_WAITALL) == (ssize_t)(length - far - hole));
    EXPECT(is_right(far + hole, length - far - hole));
    pthread_join(feeder, NULL);
    /* Whoever counts its changes of path has the time to. */
    sleep_ms(100);
    close_pair(p);
}

static void a_search_ahead(void)
{
    receive_ahead(search, far, piece);
}

static void searches_that_do_not_wait(void)
{
    receive_ahead(search_again_and_again, far, piece);
}

static void a_peek_at_all(void)
{
    receive_ahead(peek, 0, far);
}

static void a_search_ahead_of_who_waits_for_room(void)
{
    waits_before_it_sends = 1;
    receive_ahead(search, far, piece);
}

/* A small buffer is what may be on its way, not what the receiver may hold. */
static void a_search_ahead_of_a_small_send_buffer(void)
{
    struct pair p = connect_pair();
    int small = 8192;
    pthread_t feeder;

    waits_before_it_sends = 1;
    EXPECT(setsockopt(p.near, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    feeder = in_thread(feed, &p.near);
    EXPECT(viaduct_seek_recv(p.far, bytes, piece, MSG_WAITALL, 100000) == piece && is_right(100000, piece));
    EXPECT(in_order(p.far, bytes, 100000, MSG_WAITALL) == 100000 && is_right(0, 100000));
    EXPECT(in_order(p.far, bytes, length - 100000 - piece, MSG_WAITALL) == length - 100000 - piece);
    EXPECT(is_right(100000 + piece, length - 100000 - piece));
    pthread_join(feeder, NULL);
    sleep_ms(100);
    close_pair(p);
}

/* Whoever looks again and again, and takes nothing before there is enough. */
static void looks_ahead_of_a_small_send_buffer(ssize_t (*look)(int), size_t count)
{
    struct pair p = connect_pair();
    int small = 8192;
    pthread_t feeder;

    waits_before_it_sends = 1;
    EXPECT(setsockopt(p.near, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    feeder = in_thread(feed, &p.near);
    for (int looks = 0; look(p.far) < (ssize_t)count; looks++) {
        EXPECT(looks < 10000);
        sleep_ms(1);
    }
    EXPECT(receive_all(p.far, bytes, length) && is_right(0, length));
    pthread_join(feeder, NULL);
    sleep_ms(100);
    close_pair(p);
}

static ssize_t glimpse(int fd)
{
    return recv(fd, bytes, 50000, MSG_PEEK);
}

static ssize_t glimpse_with_much_room(int fd)
{
    return recv(fd, bytes, sizeof bytes, MSG_PEEK);
}

static ssize_t counted(int fd)
{
    return (ssize_t)waiting(fd);
}

static void glimpses_ahead_of_a_small_send_buffer(void)
{
    looks_ahead_of_a_small_send_buffer(glimpse, 50000);
}

static void glimpses_with_much_room_ahead_of_a_small_send_buffer(void)
{
    looks_ahead_of_a_small_send_buffer(glimpse_with_much_room, 50000);
}

static void counts_ahead_of_a_small_send_buffer(void)
{
    looks_ahead_of_a_small_send_buffer(counted, 50000);
}

/* A sender that waits until a third of the lane is free, and a receiver that frees less before it needs more. */
static void a_search_just_behind_a_full_lane(void)
{
    struct pair p = connect_pair();
    size_t there = 0, head = 0;
    pthread_t feeder;

    waits_before_it_sends = 1;
    feeder = in_thread(feed, &p.near);
    sleep_ms(60);
    while (head + (there = (size_t)waiting(p.far)) + piece < length) {
        EXPECT(in_order(p.far, bytes, there / 5, MSG_WAITALL) == (ssize_t)(there / 5) && is_right(head, there / 5));
        head += there / 5;
        sleep_ms(5);
        there = (size_t)waiting(p.far);
        /* All of it may have come meanwhile. */
        if (head + there + piece >= length)
            break;
        ssize_t got = viaduct_seek_recv(p.far, bytes, piece, MSG_WAITALL | MSG_PEEK, there);
        /* The sender has filled it again. */
        if (got == -1 && errno == ENOBUFS)
            continue;
        EXPECT(got > 0 && is_right(head + there, 1));
    }
    pthread_join(feeder, NULL);
    EXPECT(in_order(p.far, bytes, length - head, MSG_WAITALL) == (ssize_t)(length - head) && is_right(head, length - head));
    sleep_ms(100);
    close_pair(p);
}

/* Bytes that came by the kernel stand before those that are waited for in the lane. */
static void peek_behind_raw_bytes(int send_buffer, size_t count)
{
    struct pair p = connect_quickly();
    char echo[100] = {0};
    pthread_t feeder;

    EXPECT(send_all(p.near, echo, sizeof echo));
    if (send_buffer)
        EXPECT(setsockopt(p.near, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer) == 0);
    for (int round = 0; round < 40; round++) {
        EXPECT(send_all(p.far, echo, sizeof echo) && receive_all(p.near, echo, sizeof echo));
        sleep_ms(1);
    }
    waits_before_it_sends = 1;
    feeder = in_thread(feed, &p.near);
    EXPECT(recv(p.far, bytes, count, MSG_PEEK | MSG_WAITALL) == (ssize_t)count);
    memmove(bytes, bytes + sizeof echo, count - sizeof echo);
    EXPECT(is_right(0, count - sizeof echo));
    EXPECT(receive_all(p.far, echo, sizeof echo) && receive_all(p.far, bytes, length) && is_right(0, length));
    pthread_join(feeder, NULL);
    sleep_ms(100);
    close_pair(p);
}

static void a_peek_behind_raw_bytes(void)
{
    peek_behind_raw_bytes(0, 2000000);
}

static void a_peek_behind_raw_bytes_of_a_small_send_buffer(void)
{
    peek_behind_raw_bytes(8192, 30000);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"a_search_ahead", a_search_ahead},
        {"searches_that_do_not_wait", searches_that_do_not_wait},
        {"a_peek_at_all", a_peek_at_all},
        {"a_search_ahead_of_who_waits_for_room", a_search_ahead_of_who_waits_for_room},
        {"a_search_ahead_of_a_small_send_buffer", a_search_ahead_of_a_small_send_buffer},
        {"glimpses_ahead_of_a_small_send_buffer", glimpses_ahead_of_a_small_send_buffer},
        {"glimpses_with_much_room_ahead_of_a_small_send_buffer", glimpses_with_much_room_ahead_of_a_small_send_buffer},
        {"counts_ahead_of_a_small_send_buffer", counts_ahead_of_a_small_send_buffer},
        {"a_search_just_behind_a_full_lane", a_search_just_behind_a_full_lane},
        {"a_peek_behind_raw_bytes", a_peek_behind_raw_bytes},
        {"a_peek_behind_raw_bytes_of_a_small_send_buffer", a_peek_behind_raw_bytes_of_a_small_send_buffer},
    };
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
