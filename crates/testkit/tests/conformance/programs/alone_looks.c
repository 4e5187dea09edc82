/* Looking, by peeks and by counts, until all of a message is there, and taking nothing before. */
#include "check.h"
#include <sys/epoll.h>

/* How a message is sent: what waits for room, at first or once it has been told that there is none. */
enum { BY_POLL, BY_SEND, BY_EPOLL, BY_LOOKS, BY_SEND_THEN, SENDERS };

struct message {
    int fd, by;
    size_t length;
    unsigned char *bytes;
};

/* Waits until there is room, by a set if there is one: asleep, or looking again and again. */
static int has_room(const struct message *m, int set)
{
    struct epoll_event event;
    struct pollfd full = {m->fd, POLLOUT, 0};
    int count;

    do
        count = set >= 0 ? epoll_wait(set, &event, 1, m->by == BY_LOOKS ? 0 : -1) : poll(&full, 1, -1);
    while (count == 0);
    return count == 1;
}

/* With little room of its own, so that all the rest is for the other end's. */
static void *send_message(void *message)
{
    struct message *m = message;
    int size = 16384, set = m->by == BY_EPOLL || m->by == BY_LOOKS ? epoll_create1(0) : -1;
    struct epoll_event event = {.events = EPOLLOUT};

    if (setsockopt(m->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) ||
        (set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, m->fd, &event)))
        return NULL;
    for (size_t at = 0; at < m->length;) {
        ssize_t count = send(m->fd, m->bytes + at, m->length - at, m->by == BY_SEND ? 0 : MSG_DONTWAIT);
        if (count > 0)
            at += count;
        else if (errno == EAGAIN && m->by == BY_SEND_THEN)
            m->by = BY_SEND;
        else if (errno != EAGAIN || !has_room(m, set))
            return NULL;
    }
    close(set);
    return message;
}

/* Whether all of a message is seen, by peeks or by counts, in a socket with so much room before any of it is
 * received. */
static int is_seen_whole(int room, size_t length, int by, int peeks)
{
    struct pair p = make_pair();
    struct message sent = {p.near, by, length, malloc(length)};
    unsigned char *bytes = malloc(length);
    double until = now() + (room < (int)length ? 0.1 : 5);
    ssize_t seen = 0;
    void *all;
    for (size_t at = 0; at < length; at++)
        sent.bytes[at] = pattern(at);
    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) == 0);
    pthread_t sender = in_thread(send_message, &sent);
    while (seen < (ssize_t)length && now() < until) {
        int count = 0;
        if (peeks && (seen = recv(p.far, bytes, length, MSG_PEEK | MSG_DONTWAIT)) > 0)
            EXPECT(!memcmp(bytes, sent.bytes, seen));
        if (!peeks && ioctl(p.far, FIONREAD, &count) == 0)
            seen = count;
    }
    EXPECT(receive_all(p.far, bytes, length) && !memcmp(bytes, sent.bytes, length));
    EXPECT(pthread_join(sender, &all) == 0 && all);
    free(bytes);
    free(sent.bytes);
    close_pair(p);
    return seen == (ssize_t)length;
}

/* A program that has made room for a message may wait until it is whole before it takes any of it. */
static void looks_see_what_there_is_room_for(void)
{
    for (int way = 0; way < 2 * SENDERS; way++) {
        EXPECT(is_seen_whole(65536, 60000, way % SENDERS, way / SENDERS));
        EXPECT(is_seen_whole(1500000, 1000000, way % SENDERS, way / SENDERS));
        EXPECT(is_seen_whole(5000000, 3000000, way % SENDERS, way / SENDERS));
    }
}

/* The same with a message that no lane ever holds. */
static void looks_see_more_than_a_lane_holds(void)
{
    for (int way = 0; way < 2 * SENDERS; way++)
        EXPECT(is_seen_whole(16000000, 6000000, way % SENDERS, way / SENDERS));
}

/* Without the room it may or may not be whole; whoever gives up looking receives all of it. */
static void looks_in_vain_lose_nothing(void)
{
    for (int way = 0; way < 2 * SENDERS; way++) {
        is_seen_whole(65536, 400000, way % SENDERS, way / SENDERS);
        is_seen_whole(65536, 6000000, way % SENDERS, way / SENDERS);
    }
}

MAIN(ALONE(looks_see_what_there_is_room_for), ALONE(looks_see_more_than_a_lane_holds), ALONE(looks_in_vain_lose_nothing))
