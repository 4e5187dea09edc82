/* A program's only thread that cancels itself: its next point of cancellation ends it, though nothing waits there. */
#include "check.h"
#include <sys/epoll.h>

enum { BY_RECEIVE, BY_READ, BY_SEND, BY_WRITE, BY_POLL, BY_WAIT, CALLS };

static void say_so(void *what)
{
    (void)what;
    _exit(7);
}

static void call(int by, int fd, int set)
{
    struct pollfd wait = {fd, POLLIN, 0};
    struct epoll_event event;
    char byte = 'x';

    switch (by) {
    case BY_RECEIVE:
        recv(fd, &byte, 1, 0);
        break;
    case BY_READ:
        read(fd, &byte, 1);
        break;
    case BY_SEND:
        send(fd, &byte, 1, 0);
        break;
    case BY_WRITE:
        write(fd, &byte, 1);
        break;
    case BY_POLL:
        poll(&wait, 1, 0);
        break;
    default:
        epoll_wait(set, &event, 1, 0);
    }
}

/* A child does it, whose connection stays where it is. */
static void cancel_in(struct pair p, int by, int blocking)
{
    int set = epoll_create1(0), status;
    pid_t child;

    EXPECT(watch(set, p.far, EPOLLIN) == 0);
    EXPECT((child = fork()) >= 0);
    if (child == 0) {
        send(p.near, "ab", 2, 0);
        fcntl(p.far, F_SETFL, blocking ? 0 : O_NONBLOCK);
        /* Calls are none of its points before. */
        call(by, p.far, set);
        pthread_cleanup_push(say_so, NULL);
        pthread_cancel(pthread_self());
        watch(set, p.near, EPOLLIN);
        call(by, p.far, set);
        pthread_cleanup_pop(0);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    close(set);
    close_pair(p);
}

static void the_only_thread_cancels_itself(void)
{
    for (int by = 0; by < CALLS; by++)
        for (int blocking = 0; blocking < 2; blocking++) {
            cancel_in(make_pair(), by, blocking);
            /* One that has no lane yet, unless they are waited for. */
            cancel_in(connect_pair(), by, blocking);
        }
}

MAIN(ALONE(the_only_thread_cancels_itself))
