/* Connections with both ends in one process. */
#include "check.h"
#include "internal.h"
#include <sys/epoll.h>

struct pair make_pair(void)
{
    struct pair pair = connect_pair();

    if (fast_expected) {
        double until = now() + 3;
        bool fast;
        while (!(fast = on_fast_path(pair.near) && on_fast_path(pair.far)) && now() < until)
            warm_up(pair.near, pair.far);
        say("#path %s", fast ? "shm" : "tcp");
    }
    return pair;
}

int watch(int set, int fd, unsigned events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};

    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

int exited_well(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
