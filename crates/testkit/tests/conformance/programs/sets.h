/* What cases about epoll sets have in common. */
#ifndef SETS_H
#define SETS_H

#include "play.h"
#include <sys/epoll.h>

static inline int watch(int set, int fd, unsigned events)
{
    struct epoll_event event = {.events = events, .data.u64 = 1};

    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static inline int change(int set, int fd, unsigned events)
{
    struct epoll_event event = {.events = events, .data.u64 = 2};

    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

/* One wait for one event. */
static inline int once(int set, int ms)
{
    struct epoll_event event;
    int ready = epoll_wait(set, &event, 1, ms);

    if (ready == 1)
        show_events("event", event.events & 0xffffff);
    else
        show_result("epoll_wait", ready);
    return ready;
}

#endif
