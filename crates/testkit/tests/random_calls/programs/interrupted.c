/* Calls that signals interrupt, and waits with masks of their own. */
#include "calls.h"
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>

/* When a call that waits is interrupted, again and again. */
enum { INTERRUPTED_AFTER_MS = 4, PATIENCE_MS = 2 };

/* What a handler sends by; -1 for nothing. */
static volatile sig_atomic_t sends_by = -1;
static volatile sig_atomic_t has_sent, handled;

/* Handlers that follow do not have the call go on: what was to end it has not. */
static void ring(int number)
{
    if (sends_by >= 0) {
        has_sent = write(sends_by, "S", 1) == 1;
        sends_by = -1;
        sigaction(number, &(struct sigaction){.sa_handler = ring}, NULL);
    }
}

static void ring_every(int ms)
{
    struct itimerval interval = {{0, ms * 1000}, {0, ms * 1000}};

    setitimer(ITIMER_REAL, &interval, NULL);
}

/* A receive that waits until a signal interrupts it, or until what its handler has sent by the other end is there. */
void call_receive_interrupted(int end)
{
    struct sigaction action = {.sa_handler = ring};
    bool goes_on = ends[end].unread == 0 && ends[!end].fd >= 0 && has_room(!end, 1) && chance(50);
    /* With one it does not go on, unless the signal has come before the call has begun. */
    struct timeval patience = {!goes_on && chance(30), 0};
    int flags = goes_on ? 0 : chance(60) ? MSG_WAITALL : chance(30) ? MSG_PEEK : 0, fd = any_descriptor(end);
    long count = any_size(), received;

    if (goes_on)
        action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    memset(buffer, 0, (size_t)count);
    say("recv %ld flags %x interrupted%s%s", count, flags, patience.tv_sec ? " timed" : "", goes_on ? " to go on" : "");
    set_blocking(end, true);
    has_sent = 0;
    sends_by = goes_on ? ends[!end].fd : -1;
    ring_every(INTERRUPTED_AFTER_MS);
    received = recv(fd, buffer, (size_t)count, flags);
    ring_every(0);
    set_blocking(end, false);
    say_result(received);
    say_sum(buffer, count);
    /* Whether the signal came before the call had ended is a matter of time where it ends at once. */
    if (has_sent)
        was_sent(!end, 1);
    if (!(flags & MSG_PEEK))
        was_received(end, received);
}

static void count(int number)
{
    (void)number;
    handled++;
}

/* A wait that lets a signal in, or keeps it out, which may be there already. */
void call_wait_masked(int end)
{
    static const char *const names[] = {"ppoll", "pselect", "epoll_pwait", "epoll_pwait2"};
    struct timespec time = {0, chance(30) ? PATIENCE_MS * 1000000 : 0};
    struct sigaction action = {.sa_handler = count, .sa_flags = chance(50) ? SA_RESTART : 0};
    struct pollfd entries[2] = {{ends[0].fd, POLLIN | POLLRDHUP, 0}, {ends[1].fd, POLLIN, 0}};
    struct epoll_event events[8];
    unsigned way = below(4);
    bool raised = chance(60), lets_in = chance(70);
    sigset_t mask, pending;
    fd_set readable;
    long ready;

    sigaction(SIGUSR1, &action, NULL);
    sigprocmask(SIG_SETMASK, NULL, &mask);
    if (lets_in)
        sigdelset(&mask, SIGUSR1);
    FD_ZERO(&readable);
    for (int which = 0; which < 2; which++)
        if (ends[which].fd >= 0)
            FD_SET(ends[which].fd, &readable);
    say("%s%s%s%s", names[way], time.tv_nsec ? " patiently" : "", raised ? " raised" : "", lets_in ? " let in" : "");
    handled = 0;
    if (raised)
        kill(getpid(), SIGUSR1);
    switch (way) {
    case 0:
        ready = ppoll(entries, 2, &time, &mask);
        break;
    case 1:
        ready = pselect(FD_SETSIZE, &readable, NULL, NULL, &time, &mask);
        break;
    case 2:
        ready = epoll_pwait(sets[0], events, 8, (int)(time.tv_nsec / 1000000), &mask);
        break;
    default:
        ready = epoll_pwait2(sets[0], events, 8, &time, &mask);
    }
    say_result(ready);
    if (way == 0)
        say(" %x %x", entries[0].revents, entries[1].revents);
    for (int which = 0; which < 2 && way == 1 && ready >= 0; which++)
        say(" %d", ends[which].fd >= 0 && FD_ISSET(ends[which].fd, &readable));
    if (way >= 2)
        say_events(events, ready);
    sigpending(&pending);
    say(" handled %d%s", (int)handled, sigismember(&pending, SIGUSR1) ? ", and left" : "");
    signal(SIGUSR1, SIG_IGN);
    (void)end;
}
