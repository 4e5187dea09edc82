/* Epoll sets of both ends, and what is around them. */
#include "calls.h"
#include <sys/epoll.h>
#include <sys/select.h>

/* How long a wait is that finds nothing. */
enum { PATIENCE_MS = 2 };

int sets[2], outer;

void make_sets(void)
{
    struct epoll_event event = {.events = EPOLLIN};

    outer = epoll_create1(EPOLL_CLOEXEC);
    for (int which = 0; which < 2; which++)
        sets[which] = epoll_create1(0);
    /* The other is not in another. */
    epoll_ctl(outer, EPOLL_CTL_ADD, sets[1], &event);
}

void close_sets(void)
{
    close(outer);
    for (int which = 0; which < 2; which++)
        close(sets[which]);
}

/* The one that is used most, or the other. */
static int any_set(void)
{
    int which = chance(25);

    say(which ? " other set" : "");
    return sets[which];
}

void call_register(int end)
{
    static const struct {
        unsigned bit, percent;
    } kinds[] = {{EPOLLIN, 75},      {EPOLLOUT, 33},    {EPOLLRDHUP, 33},  {EPOLLPRI, 33},
                 {EPOLLET, 67},      {EPOLLONESHOT, 33}, {EPOLLRDNORM, 33}, {EPOLLEXCLUSIVE, 5}};
    static const char *const names[] = {"add", "delete", "change"};
    int operation = 1 + (int)below(3), fd = any_descriptor(end);
    struct epoll_event event = {.data.u32 = (uint32_t)end * 2 + (fd != ends[end].fd)};

    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        event.events |= chance(kinds[kind].percent) ? kinds[kind].bit : 0;
    if (!told_of_edges_once)
        event.events &= ~(uint32_t)EPOLLET;
    say("epoll %s%s for %x", names[operation - 1], fd != ends[end].fd ? " copy" : "", event.events);
    say_result(epoll_ctl(any_set(), operation, fd, &event));
}

void say_events(const struct epoll_event *events, long count)
{
    unsigned told[4] = {0}, times[4] = {0};

    /* In the order of the registrations: that of the events is the kernel's affair. */
    for (long event = 0; event < count; event++) {
        told[events[event].data.u32 & 3] |= events[event].events;
        times[events[event].data.u32 & 3]++;
    }
    for (int which = 0; which < 4; which++) {
        say(" %x", told[which]);
        if (times[which] > 1)
            say(" %u times", times[which]);
    }
}

void call_wait_in_set(int end)
{
    struct epoll_event events[8];
    int ms = chance(20) ? PATIENCE_MS : 0, ready;

    say("epoll wait%s", ms ? " patiently" : "");
    ready = epoll_wait(any_set(), events, 8, ms);
    say_result(ready);
    say_events(events, ready);
    (void)end;
}

/* Of sets that are polled, or in another, nothing is taken. */
void call_look_at_sets(int end)
{
    struct pollfd entries[2] = {{sets[0], POLLIN, 0}, {sets[1], POLLIN, 0}};
    struct timeval none = {0, 0};
    struct epoll_event event;
    int ms = chance(20) ? PATIENCE_MS : 0;
    unsigned way = below(3);
    fd_set readable;

    switch (way) {
    case 0:
        say("poll sets");
        say_result(poll(entries, 2, ms));
        say(" %x %x", entries[0].revents, entries[1].revents);
        break;
    case 1:
        FD_ZERO(&readable);
        FD_SET(sets[1], &readable);
        say("select set");
        say_result(select(sets[1] + 1, &readable, NULL, NULL, &none));
        break;
    default:
        say("wait outside%s", ms ? " patiently" : "");
        say_result(epoll_wait(outer, &event, 1, ms));
    }
    (void)end;
}
