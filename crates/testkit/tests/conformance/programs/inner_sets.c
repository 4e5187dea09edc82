/* Epoll sets that are looked at from outside, through another set or by poll and select, and whose connections stay on
 * their lanes. */
#include "sets.h"
#include <poll.h>
#include <pthread.h>
#include <sys/select.h>

static int inner, outer;

static void make(unsigned in_inner, unsigned in_outer)
{
    inner = epoll_create1(0);
    outer = epoll_create1(0);
    R(watch(inner, s, in_inner));
    R(watch(outer, inner, in_outer));
}

/* As schedulers of many threads do: who is told asks the inner set, and arms both registrations again. */
static void one_shots_in_a_one_shot(void)
{
    FAR(make(EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLONESHOT); once(outer, 5));
    for (int round = 0; round < 3; round++) {
        NEAR(R(send(s, "a", 1, 0)));
        FAR(once(outer, 1000); once(outer, 5); once(inner, 0); once(inner, 0); GET(s, 8, 0);
            R(change(outer, inner, EPOLLIN | EPOLLONESHOT)); once(outer, 5);
            R(change(inner, s, EPOLLIN | EPOLLONESHOT));
            once(outer, 5));
    }
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(outer, 1000); R(change(outer, inner, EPOLLIN | EPOLLONESHOT)); once(outer, 1000); once(inner, 0);
        R(change(outer, inner, EPOLLIN | EPOLLONESHOT)); once(outer, 5); R(change(inner, s, EPOLLIN | EPOLLONESHOT));
        once(outer, 1000); GET(s, 8, 0));
    prove(s);
}

static void by_level(void)
{
    FAR(make(EPOLLIN, EPOLLIN); once(outer, 5));
    for (int round = 0; round < 3; round++) {
        NEAR(R(send(s, "ab", 2, 0)));
        FAR(once(outer, 1000); once(outer, 5); GET(s, 1, 0); once(outer, 5); once(inner, 0); GET(s, 1, 0);
            once(outer, 5); once(inner, 0));
    }
    prove(s);
}

static void by_edge_in_a_level(void)
{
    FAR(make(EPOLLIN | EPOLLET, EPOLLIN); once(outer, 5));
    for (int round = 0; round < 3; round++) {
        NEAR(R(send(s, "ab", 2, 0)));
        FAR(once(outer, 1000); once(outer, 5); once(inner, 0); once(outer, 5); GET(s, 2, 0); once(outer, 5));
    }
    prove(s);
}

static void *wait_in(void *set)
{
    struct epoll_event event;

    return (void *)(intptr_t)(epoll_wait(*(int *)set, &event, 1, 3000) == 1 ? epoll_wait(inner, &event, 1, 0) : -1);
}

static void show_waiter(pthread_t thread)
{
    void *result;

    pthread_join(thread, &result);
    say("told %ld", (long)(intptr_t)result);
}

/* A thread waits there already when something changes. */
static void changes_while_waited_for(void)
{
    pthread_t thread = 0;

    FAR(inner = epoll_create1(0); outer = epoll_create1(0); R(watch(outer, inner, EPOLLIN));
        thread = in_thread(wait_in, &outer); sleep_ms(30); R(watch(inner, s, EPOLLIN)); sleep_ms(30));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(show_waiter(thread); GET(s, 1, 0); R(change(inner, s, 0)));
    NEAR(R(send(s, "b", 1, 0)));
    FAR(arrive(s, POLLIN); thread = in_thread(wait_in, &outer); sleep_ms(30); R(change(inner, s, EPOLLIN));
        show_waiter(thread); GET(s, 1, 0));
    FAR(R(change(outer, inner, 0)); thread = in_thread(wait_in, &outer); sleep_ms(30));
    NEAR(R(send(s, "c", 1, 0)));
    FAR(sleep_ms(30); R(change(outer, inner, EPOLLIN)); show_waiter(thread); GET(s, 1, 0));
    FAR(R(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL)); thread = in_thread(wait_in, &outer); sleep_ms(30));
    NEAR(R(send(s, "d", 1, 0)));
    FAR(sleep_ms(30); R(watch(outer, inner, EPOLLIN)); show_waiter(thread); GET(s, 1, 0));
    FAR(R(epoll_ctl(inner, EPOLL_CTL_DEL, s, NULL)); thread = in_thread(wait_in, &outer); sleep_ms(30));
    NEAR(R(send(s, "e", 1, 0)));
    FAR(sleep_ms(30); R(watch(inner, s, EPOLLIN)); show_waiter(thread); GET(s, 1, 0));
    prove(s);
}

static void taken_out(void)
{
    FAR(make(EPOLLIN, EPOLLIN));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(outer, 1000); R(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL)); once(outer, 5); once(inner, 1000);
        R(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL)); R(change(outer, inner, EPOLLIN));
        R(watch(outer, inner, EPOLLIN)); R(watch(outer, inner, EPOLLIN)); once(outer, 1000);
        R(epoll_ctl(inner, EPOLL_CTL_DEL, s, NULL)); once(outer, 5);
        R(watch(inner, s, EPOLLIN)); once(outer, 1000); R(change(inner, s, 0)); once(outer, 5); GET(s, 1, 0));
    prove(s);
}

static void closed(void)
{
    FAR(make(EPOLLIN, EPOLLIN));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(outer, 1000); R(close(outer)); once(inner, 1000); outer = epoll_create1(0);
        R(watch(outer, inner, EPOLLIN)); once(outer, 1000); R(close(inner)); once(outer, 5); inner = epoll_create1(0);
        R(watch(inner, s, EPOLLIN)); once(outer, 5); R(watch(outer, inner, EPOLLIN)); once(outer, 1000); GET(s, 1, 0));
    prove(s);
}

/* The kernel keeps what nobody can name any more. */
static void closed_but_for_a_copy(void)
{
    int copy = -1;

    FAR(make(EPOLLIN, EPOLLIN); copy = dup(inner); R(close(inner)));
    for (int round = 0; round < 2; round++) {
        NEAR(R(send(s, "a", 1, 0)));
        FAR(once(outer, 1000); once(copy, 0); GET(s, 1, 0); once(outer, 5));
    }
    FAR(R(close(copy)));
    NEAR(R(send(s, "b", 1, 0)));
    FAR(arrive(s, POLLIN); once(outer, 5); GET(s, 1, 0));
}

/* Who looks in between takes no news from who waits. */
static void looked_into_beside_a_waiter(void)
{
    struct epoll_event event;
    struct pollfd look;
    pthread_t thread = 0;

    FAR(make(EPOLLIN, EPOLLIN); look = (struct pollfd){inner, POLLIN, 0});
    for (int round = 0; round < 20; round++) {
        if (!is_near) {
            thread = in_thread(wait_in, &outer);
            tell(0);
            for (double until = now() + 0.02; now() < until;)
                if (poll(&look, 1, 0) < 0 || epoll_wait(outer, &event, 0, 0) > 0)
                    return;
            void *result;
            pthread_join(thread, &result);
            if ((intptr_t)result != 1)
                say("round %d: told %ld", round, (long)(intptr_t)result);
            recv(s, &(char){0}, 1, 0);
        } else {
            ask();
            sleep_ms(5);
            send(s, "a", 1, 0);
        }
        step();
    }
    prove(s);
}

/* The outer set has everything else, too, and events are taken one at a time. */
static void none_is_starved(void)
{
    int other = join(), ends[2];
    unsigned long told[3] = {0};
    struct epoll_event event = {.events = EPOLLIN};

    if (!is_near) {
        pipe(ends);
        inner = epoll_create1(0);
        outer = epoll_create1(0);
        R(watch(inner, s, EPOLLIN));
        int members[] = {inner, other, ends[0]};
        for (unsigned index = 0; index < 3; index++) {
            event.data.u32 = index;
            R(epoll_ctl(outer, EPOLL_CTL_ADD, members[index], &event));
        }
        R(write(ends[1], "p", 1));
    }
    step();
    NEAR(R(send(s, "a", 1, 0)); R(send(other, "a", 1, 0)));
    if (!is_near) {
        arrive(s, POLLIN);
        arrive(other, POLLIN);
        for (int wait = 0; wait < 300; wait++)
            if (epoll_wait(outer, &event, 1, 1000) == 1)
                told[event.data.u32]++;
        say("told %d %d %d", told[0] > 4, told[1] > 4, told[2] > 4);
        GET(s, 1, 0);
        GET(other, 1, 0);
    }
    step();
    prove(s);
}

/* Of several sets each is told of, however few events are taken at a time. */
static void several_in_one(void)
{
    enum { MANY = 4 };
    int fds[MANY], sets[MANY];
    bool seen[MANY] = {false};
    struct epoll_event event = {.events = EPOLLIN};

    for (int index = 0; index < MANY; index++)
        fds[index] = join();
    if (!is_near) {
        outer = epoll_create1(0);
        for (int index = 0; index < MANY; index++) {
            sets[index] = epoll_create1(0);
            R(watch(sets[index], fds[index], EPOLLIN));
            event.data.u32 = (unsigned)index;
            R(epoll_ctl(outer, EPOLL_CTL_ADD, sets[index], &event));
        }
        R(watch(outer, s, 0));
    }
    step();
    if (is_near)
        for (int index = 0; index < MANY; index++)
            R(send(fds[index], "a", 1, 0));
    step();
    if (!is_near) {
        for (int index = 0; index < MANY; index++)
            arrive(fds[index], POLLIN);
        for (int told = 0; told < 3 * MANY; told++)
            if (epoll_wait(outer, &event, 1, 1000) == 1)
                seen[event.data.u32] = true;
        for (int index = 0; index < MANY; index++)
            say("%d told %d", index, seen[index]);
    }
    step();
    for (int index = 0; index < MANY; index++) {
        FAR(GET(fds[index], 1, 0));
        prove(fds[index]);
    }
    prove(s);
}

/* The outer set has a connection of its own, too. */
static void beside_another(void)
{
    int other = join();
    struct epoll_event events[4];

    FAR(make(EPOLLIN, EPOLLIN); R(watch(outer, other, EPOLLIN)); once(outer, 5));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(R(epoll_wait(outer, events, 4, 1000)); GET(s, 1, 0));
    NEAR(R(send(other, "b", 1, 0)));
    FAR(R(epoll_wait(outer, events, 4, 1000)); GET(other, 1, 0));
    NEAR(R(send(other, "b", 1, 0)); R(send(s, "a", 1, 0)));
    FAR(arrive(s, POLLIN); arrive(other, POLLIN); R(epoll_wait(outer, events, 4, 1000)); GET(s, 1, 0); GET(other, 1, 0);
        once(outer, 5));
    prove(s);
    prove(other);
}

static void room(void)
{
    if (is_near) {
        drain(s, (size_t)ask());
    } else {
        R(fcntl(s, F_SETFL, O_NONBLOCK));
        make(EPOLLOUT, EPOLLIN);
        once(outer, 1000);
        size_t much = fill(s);
        once(outer, 5);
        tell((int)much);
        once(outer, 3000);
        once(inner, 0);
    }
    step();
    FAR(R(change(inner, s, EPOLLIN)); once(outer, 5); R(fcntl(s, F_SETFL, 0)));
}

static void end(void)
{
    FAR(make(EPOLLIN | EPOLLRDHUP, EPOLLIN));
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(once(outer, 1000); once(inner, 0); GET(s, 1, 0); R(change(inner, s, EPOLLIN | EPOLLRDHUP | EPOLLET));
        once(outer, 1000); once(inner, 0); once(outer, 5));
}

static void *poll_set(void *set)
{
    struct pollfd wait = {*(int *)set, POLLIN, 0};

    return (void *)(intptr_t)poll(&wait, 1, 3000);
}

static void *select_set(void *set)
{
    struct timeval time = {3, 0};
    fd_set in;

    FD_ZERO(&in);
    FD_SET(*(int *)set, &in);
    return (void *)(intptr_t)select(*(int *)set + 1, &in, NULL, NULL, &time);
}

static void poll_by(void *(*wait)(void *))
{
    pthread_t thread = 0;

    FAR(inner = epoll_create1(0); R(watch(inner, s, EPOLLIN)); POLL(inner, POLLIN, 5));
    for (int round = 0; round < 3; round++) {
        FAR(thread = in_thread(wait, &inner); sleep_ms(20));
        NEAR(R(send(s, "a", 1, 0)));
        FAR(show_waiter(thread); POLL(inner, POLLIN | POLLOUT, 5); once(inner, 0); GET(s, 1, 0);
            POLL(inner, POLLIN, 5));
    }
    FAR(R(change(inner, s, 0)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(arrive(s, POLLIN); POLL(inner, POLLIN, 5); thread = in_thread(wait, &inner); sleep_ms(20);
        R(change(inner, s, EPOLLIN)); show_waiter(thread); GET(s, 1, 0));
    prove(s);
}

static void polled(void) { poll_by(poll_set); }

static void selected(void) { poll_by(select_set); }

/* A set, one around it, and a connection in one call. */
static void polled_together(void)
{
    int other = join();
    struct pollfd waits[3];

    FAR(make(EPOLLIN, EPOLLIN));
    for (int round = 0; round < 3; round++) {
        NEAR(sleep_ms(20); R(send(round == 1 ? other : s, "a", 1, 0)));
        FAR(waits[0] = (struct pollfd){outer, POLLIN, 0}; waits[1] = (struct pollfd){other, POLLIN, 0};
            waits[2] = (struct pollfd){inner, POLLIN | POLLPRI, 0}; R(poll(waits, 3, 1000));
            say("%d %d %d", waits[0].revents, waits[1].revents, waits[2].revents); GET(round == 1 ? other : s, 1, 0);
            R(poll(waits, 3, 5)));
    }
    prove(s);
    prove(other);
}

/* What is not looked into still tells. */
static void three_deep(void)
{
    int outermost = epoll_create1(0);

    FAR(make(EPOLLIN, EPOLLIN); R(watch(outermost, outer, EPOLLIN)); once(outermost, 5));
    for (int round = 0; round < 2; round++) {
        NEAR(R(send(s, "a", 1, 0)));
        FAR(once(outermost, 1000); once(outer, 0); once(inner, 0); GET(s, 1, 0); once(outermost, 5));
    }
}

static void in_two(void)
{
    int second = epoll_create1(0);

    FAR(make(EPOLLIN, EPOLLIN); R(watch(second, inner, EPOLLIN)));
    for (int round = 0; round < 2; round++) {
        NEAR(R(send(s, "a", 1, 0)));
        FAR(once(second, 1000); once(outer, 1000); GET(s, 1, 0); once(outer, 5); once(second, 5));
    }
}

static void by_edge_at_last(void)
{
    FAR(make(EPOLLIN, EPOLLIN));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(outer, 1000); GET(s, 1, 0); R(change(outer, inner, EPOLLIN | EPOLLET)); once(outer, 5));
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(outer, 1000); once(inner, 0); GET(s, 1, 0); R(change(outer, inner, EPOLLIN)); once(outer, 5));
}

static void shared_with_a_child(void)
{
    pid_t child = 0;

    FAR(make(EPOLLIN, EPOLLIN));
    NEAR(R(send(s, "a", 1, 0)));
    if (!is_near) {
        once(outer, 1000);
        child = fork();
        if (child == 0)
            _exit(once(outer, 1000) == 1 && once(inner, 0) == 1 && recv(s, &(char){0}, 1, 0) == 1 ? 0 : 1);
        reap(child);
        once(outer, 5);
    }
    step();
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(outer, 1000); once(inner, 0); GET(s, 1, 0); once(outer, 5));
    prove(s);
}

static void moved(void)
{
    FAR(make(EPOLLIN, EPOLLIN));
    for (int round = 0; round < 4; round++) {
        BOTH(steer(round % 2 == 0));
        NEAR(R(send(s, "a", 1, 0)));
        FAR(once(outer, 1000); once(inner, 0); GET(s, 1, 0));
        FAR(R(send(s, "b", 1, 0)));
        NEAR(GET(s, 1, 0));
    }
    prove(s);
}

MAIN(JOINED(one_shots_in_a_one_shot), JOINED(by_level), JOINED(by_edge_in_a_level), JOINED(changes_while_waited_for),
     JOINED(taken_out), JOINED(closed), JOINED(closed_but_for_a_copy), JOINED(looked_into_beside_a_waiter),
     JOINED(none_is_starved), JOINED(several_in_one), JOINED(beside_another), JOINED(room), JOINED(end),
     JOINED(polled), JOINED(selected), JOINED(polled_together), JOINED(three_deep), JOINED(in_two),
     JOINED(by_edge_at_last), JOINED(shared_with_a_child), JOINED(moved))
