/* epoll: which connection of several is told of first. */
#include "play.h"
#include <netinet/tcp.h>
#include <sys/epoll.h>

/* Whose bytes go out at once. */
static int prompt(void)
{
    int fd = join(), one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

/* Takes a byte from each of `count` connections as one set tells of them: how often in another order than that of
 * `turns`; below 0: it failed. */
static int take_in_order(int set, const int *fds, const int *turns, int count, bool busy)
{
    double until = now() + 2;
    int wrong = 0;

    for (int done = 0, told; done < count; done += told) {
        struct epoll_event events[16];

        told = epoll_wait(set, events, 16, busy ? 0 : 2000);
        if (told < 0 || (told == 0 && now() > until))
            return -1;
        for (int index = 0; index < told; index++) {
            char byte;

            wrong += done + index >= count || events[index].data.fd != fds[turns[done + index]];
            if (recv(events[index].data.fd, &byte, 1, MSG_DONTWAIT) != 1)
                return -2;
        }
    }
    return wrong;
}

/* One thread sends on one connection after another; the other end has to hear of them in this order, but for a few,
 * natively too: whoever loses the core between two sends to a server that polls has let it grow cold. */
static void arrivals(int count, int rounds, unsigned edge, bool busy)
{
    int fds[16], turns[16], set = epoll_create1(0), wrong = 0;

    for (int index = 0; index < count; index++) {
        fds[index] = prompt();
        turns[index] = index;
    }
    for (int index = count; !is_near && index-- > 0;) {
        struct epoll_event event = {.events = EPOLLIN | edge, .data.fd = fds[index]};

        if (epoll_ctl(set, EPOLL_CTL_ADD, fds[index], &event) != 0)
            say("epoll_ctl: %s", strerror(errno));
    }
    srand(7);
    for (int round = 0; round < rounds && wrong >= 0; round++) {
        for (int index = count - 1; index > 0; index--) {
            int other = rand() % (index + 1), turn = turns[index];

            turns[index] = turns[other];
            turns[other] = turn;
        }
        if (is_near) {
            /* To one that sleeps, that polls, that is about to. */
            usleep((unsigned)(round % 4 * 30));
            for (int index = 0; index < count; index++)
                send(fds[turns[index]], "x", 1, 0);
        } else {
            struct epoll_event event;
            int others = take_in_order(set, fds, turns, count, busy);

            /* By level the kernel has them in its list until a wait finds nothing. */
            epoll_wait(set, &event, 1, 0);
            wrong = others < 0 ? others : wrong + (others > 0);
        }
        step();
    }
    FAR(say(wrong < 0 ? "failed %d" : wrong <= rounds / 50 ? "in order" : "%d times in another order", wrong));
    for (int index = 0; index < count; index++)
        close(fds[index]);
    close(set);
}

static void sets_tell_in_order_of_arrival(void)
{
    arrivals(6, 400, 0, false);
    arrivals(6, 400, EPOLLET, false);
}

static void busy_sets_tell_in_order_of_arrival(void)
{
    for (int edge = 0; edge < 2; edge++) {
        arrivals(2, 400, edge ? EPOLLET : 0, true);
        arrivals(16, 400, edge ? EPOLLET : 0, true);
    }
}

/* What the near end does on two connections, and which of them is to be told of first. */
static void on_two(const char *what)
{
    int set = epoll_create1(0), told, fds[] = {prompt(), prompt()};
    struct epoll_event events[2], one = {.events = EPOLLIN, .data.u32 = 1}, two = {.events = EPOLLIN, .data.u32 = 2};

    FAR(R(epoll_ctl(set, EPOLL_CTL_ADD, fds[1], &two)); R(epoll_ctl(set, EPOLL_CTL_ADD, fds[0], &one)));
    NEAR(R(send(fds[0], "x", 1, 0)));
    FAR(R(epoll_wait(set, events, 2, 2000)); GET(fds[0], 8, 0); R(epoll_wait(set, events, 2, 0)));
    for (const char *next = what; is_near && *next != 0; next += 2) {
        int fd = fds[next[1] == '2'];

        if (*next == '+')
            R(send(fd, "yz", 2, 0));
        else if (*next == '|')
            R(shutdown(fd, SHUT_WR));
        else
            R(close(fd));
    }
    step();
    FAR(sleep_ms(5); told = epoll_wait(set, events, 2, 2000);
        for (int index = 0; index < told; index++) say("%s: told of %u", what, events[index].data.u32);
        R(close(fds[0])); R(close(fds[1])); R(close(set)));
}

/* By what was there first, whatever follows it. */
static void ends_and_more_do_not_change_the_order_of_arrival(void)
{
    static const char *const all[] = {"+1+2", "+2+1", "+1+2|1", "+1+2-1", "+2|1", "|2+1", "-2+1", "|1+2-1", "+1+2+1", "+2+1+2"};

    for (int index = 0; index < 10; index++)
        on_two(all[index]);
}

MAIN(JOINED(sets_tell_in_order_of_arrival), JOINED(busy_sets_tell_in_order_of_arrival),
     JOINED(ends_and_more_do_not_change_the_order_of_arrival))
