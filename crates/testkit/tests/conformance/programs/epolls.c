/* epoll: triggers, one-shot, exclusive, sets of sets, descriptors that go while they are watched. */
#include "sets.h"
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

static void level(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN)); once(set, 15));
    NEAR(R(send(s, "ab", 2, 0)));
    FAR(once(set, 1000); once(set, 1000); GET(s, 1, 0); once(set, 1000); GET(s, 1, 0); once(set, 15));
    FAR(R(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL)));
    NEAR(R(send(s, "c", 1, 0)));
    FAR(once(set, 15); R(watch(set, s, EPOLLIN)); once(set, 1000));
}

static void edge(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN | EPOLLET)));
    for (int round = 0; round < 3; round++) {
        NEAR(R(send(s, "abc", 3, 0)));
        /* No new byte, no new edge, although some are unread. */
        FAR(once(set, 1000); GET(s, 1, 0); once(set, 5));
        NEAR(R(send(s, "d", 1, 0)));
        FAR(once(set, 1000); ALL(s, 3));
    }
    NEAR(R(send(s, "e", 1, 0)));
    FAR(once(set, 1000); R(change(set, s, EPOLLIN | EPOLLET)); once(set, 1000); once(set, 5));
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(once(set, 1000); ALL(s, 1); GET(s, 1, 0); once(set, 5));
}

static void edge_read_until_empty(void)
{
    int set = epoll_create1(0);

    FAR(R(fcntl(s, F_SETFL, O_NONBLOCK)); R(watch(set, s, EPOLLIN | EPOLLET)));
    for (int round = 0; round < 5; round++) {
        NEAR(R(send(s, "abc", 3, 0)));
        FAR(once(set, 1000); ALL(s, 3); GET(s, 1, 0));
    }
}

/* Receives by edges, taking a receive that comes short for the last there is, as epoll(7) allows; says how far it
 * comes. */
static void drink_by_edges(int set, long total, size_t room)
{
    static char bytes[1 << 16];
    struct epoll_event event;
    long done = 0, got = 0;

    while (done < total) {
        int told = epoll_wait(set, &event, 1, 2000);
        if (told != 1)
            break;
        while ((got = recv(s, bytes, room, MSG_DONTWAIT)) > 0) {
            done += got;
            if (got < (long)room)
                break;
        }
    }
    say("%ld bytes by edges", done);
}

static void send_some(int count)
{
    static char bytes[10000];

    while (count-- > 0)
        send_all(s, bytes, sizeof bytes);
}

/* What stands on both sides of a change of path has come before the first event is taken. */
static void edge_read_until_short(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)); once(set, 1000));
    for (int round = 0; round < 4; round++) {
        NEAR(send_some(3); steer(true); send_some(3));
        FAR(drink_by_edges(set, 60000, round % 2 ? 4096 : 1 << 16));
        NEAR(send_some(3); steer(false); send_some(3));
        FAR(drink_by_edges(set, 60000, round % 2 ? 4096 : 1 << 16));
    }
}

static void edge_while_waiting(void)
{
    int set = epoll_create1(0);

    FAR(R(fcntl(s, F_SETFL, O_NONBLOCK)); R(watch(set, s, EPOLLIN | EPOLLET)));
    for (int round = 0; round < 5; round++) {
        if (is_near) {
            sleep_ms(8);
            R(send(s, "abc", 3, 0));
        } else {
            once(set, 1000);
            ALL(s, 3);
            GET(s, 1, 0);
        }
        step();
    }
}

static void edge_for_both(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN | EPOLLOUT | EPOLLET)); once(set, 1000); once(set, 5));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(set, 1000); once(set, 5); GET(s, 1, 0));
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(set, 1000); once(set, 5));
}

static void room(void)
{
    int set = epoll_create1(0);
    size_t total = 0;

    if (is_near) {
        R(watch(set, s, EPOLLOUT | EPOLLET));
        once(set, 1000);
        once(set, 5);
        do
            total += fill(s);
        while (epoll_wait(set, &(struct epoll_event){0}, 1, 10) == 1);
        tell((int)total);
        once(set, 1000);
        R(send(s, "x", 1, MSG_DONTWAIT));
    } else {
        drain(s, (size_t)ask());
        GET(s, 1, 0);
    }
    step();
}

static void room_by_level(void)
{
    int set = epoll_create1(0);
    size_t total = 0;

    if (is_near) {
        R(watch(set, s, EPOLLOUT));
        once(set, 1000);
        once(set, 1000);
        do
            total += fill(s);
        while (epoll_wait(set, &(struct epoll_event){0}, 1, 10) == 1);
        tell((int)total);
        once(set, 1000);
        once(set, 1000);
    } else
        drain(s, (size_t)ask());
    step();
}

static void one_shot(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN | EPOLLONESHOT)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(set, 1000); once(set, 5); GET(s, 1, 0));
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(set, 5); R(change(set, s, EPOLLIN | EPOLLONESHOT)); once(set, 1000); once(set, 5);
        R(change(set, s, EPOLLOUT | EPOLLONESHOT)); once(set, 1000); once(set, 5));
}

static void one_shot_edge(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN | EPOLLONESHOT | EPOLLET)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(set, 1000); R(change(set, s, EPOLLIN | EPOLLONESHOT | EPOLLET)); once(set, 1000); GET(s, 1, 0);
        R(change(set, s, EPOLLIN | EPOLLONESHOT | EPOLLET)); once(set, 5));
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(set, 1000));
}

static void one_shot_at_the_end(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN | EPOLLONESHOT)));
    NEAR(R(close(s)));
    FAR(once(set, 1000); once(set, 5); R(change(set, s, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT)); once(set, 1000));
}

static void *wait_once(void *set)
{
    struct epoll_event event;

    return (void *)(long)epoll_wait(*(int *)set, &event, 1, 300);
}

static void exclusive(void)
{
    int sets[2] = {epoll_create1(0), epoll_create1(0)};
    pthread_t threads[2];
    void *first, *second;

    if (is_near) {
        sleep_ms(25);
        R(send(s, "a", 1, 0));
    } else {
        R(watch(sets[0], s, EPOLLIN | EPOLLEXCLUSIVE));
        R(watch(sets[1], s, EPOLLIN | EPOLLEXCLUSIVE));
        threads[0] = in_thread(wait_once, &sets[0]);
        threads[1] = in_thread(wait_once, &sets[1]);
        pthread_join(threads[0], &first);
        pthread_join(threads[1], &second);
        /* One waiter must be woken; whether the other is too is open. */
        say("somebody %d", first == (void *)1 || second == (void *)1);
        R(change(sets[0], s, EPOLLIN));
        R(watch(sets[0], s, EPOLLIN));
        once(sets[0], 100);
    }
    step();
}

static void waiting_threads_share_a_set(void)
{
    int set = epoll_create1(0);
    pthread_t threads[2];
    void *first, *second;

    if (is_near) {
        sleep_ms(25);
        R(send(s, "a", 1, 0));
    } else {
        R(watch(set, s, EPOLLIN | EPOLLET));
        threads[0] = in_thread(wait_once, &set);
        threads[1] = in_thread(wait_once, &set);
        pthread_join(threads[0], &first);
        pthread_join(threads[1], &second);
        say("woken %ld", (long)first + (long)second);
    }
    step();
}

static void nested(void)
{
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct pollfd wait = {outer, POLLIN, 0};

    if (!is_near) {
        R(watch(inner, s, EPOLLIN));
        R(watch(outer, inner, EPOLLIN));
        once(outer, 10);
    }
    step();
    if (is_near) {
        sleep_ms(20);
        R(send(s, "a", 1, 0));
    } else {
        once(outer, 1000);
        once(inner, 0);
        GET(s, 1, 0);
        once(outer, 0);
    }
    step();
    if (is_near) {
        sleep_ms(20);
        R(send(s, "b", 1, 0));
    } else {
        R(poll(&wait, 1, 1000));
        POLL(inner, POLLIN, 0);
        GET(s, 1, 0);
    }
    step();
}

/* Some wait in the set already. */
static void nested_under_waiters(void)
{
    int inner = epoll_create1(0), outer = epoll_create1(0);
    pthread_t threads[2];
    void *first, *second;

    if (is_near) {
        step();
        R(send(s, "a", 1, 0));
    } else {
        R(watch(inner, s, EPOLLIN | EPOLLONESHOT));
        threads[0] = in_thread(wait_once, &inner);
        threads[1] = in_thread(wait_once, &inner);
        sleep_ms(25);
        R(watch(outer, inner, EPOLLIN));
        step();
        pthread_join(threads[0], &first);
        pthread_join(threads[1], &second);
        say("woken %ld", (long)first + (long)second);
    }
    step();
}

static void nested_edge(void)
{
    int inner = epoll_create1(0), outer = epoll_create1(0);

    FAR(R(watch(inner, s, EPOLLIN | EPOLLET)); R(watch(outer, inner, EPOLLIN | EPOLLET)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(outer, 1000); once(outer, 5); once(inner, 0); GET(s, 1, 0));
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(outer, 1000); once(inner, 0));
}

static void nested_exclusive(void)
{
    int inner = epoll_create1(0), outer = epoll_create1(0);

    FAR(R(watch(inner, s, EPOLLIN | EPOLLEXCLUSIVE)); R(watch(outer, inner, EPOLLIN)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(outer, 1000); once(inner, 0); GET(s, 1, 0));
}

static void set_polled_and_selected(void)
{
    int set = epoll_create1(0);
    fd_set in;
    struct timeval time = {1, 0};

    FAR(R(watch(set, s, EPOLLIN)); POLL(set, POLLIN, 5));
    if (is_near) {
        sleep_ms(20);
        R(send(s, "a", 1, 0));
    } else {
        FD_ZERO(&in);
        FD_SET(set, &in);
        R(select(set + 1, &in, NULL, NULL, &time));
        POLL(set, POLLIN, 5);
        once(set, 0);
    }
    step();
}

static void closed_in_a_set(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(R(close(s)); once(set, 15); R(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL)));
}

static void closed_but_for_a_copy(void)
{
    int set = epoll_create1(0), copy = -1;

    FAR(R(watch(set, s, EPOLLIN)); copy = dup(s); R(close(s)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(set, 1000); R(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL)); GET(copy, 1, 0); once(set, 5);
        R(watch(set, copy, EPOLLIN)));
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(set, 1000); R(close(copy)); once(set, 5));
}

static void number_taken_over_by_a_pipe(void)
{
    int set = epoll_create1(0), ends[2];

    FAR(R(watch(set, s, EPOLLIN)); pipe(ends); R(dup2(ends[0], s) == s); once(set, 5); R(watch(set, s, EPOLLIN)); once(set, 5);
        R(write(ends[1], "p", 1)); once(set, 1000));
}

static void copies_in_one_set(void)
{
    int set = epoll_create1(0), copy;
    struct epoll_event events[4];

    FAR(copy = dup(s); R(watch(set, s, EPOLLIN)); R(watch(set, copy, EPOLLIN)); R(watch(set, copy, EPOLLIN)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(R(epoll_wait(set, events, 4, 1000)); R(epoll_ctl(set, EPOLL_CTL_DEL, copy, NULL)); R(epoll_wait(set, events, 4, 1000)));
}

static void in_two_sets(void)
{
    int one = epoll_create1(0), two = epoll_create1(0);

    FAR(R(watch(one, s, EPOLLIN | EPOLLET)); R(watch(two, s, EPOLLIN)));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(one, 1000); once(two, 1000); once(one, 5); once(two, 1000); GET(s, 1, 0); once(two, 5));
}

static void errors_of_control(void)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};

    BOTH(R(change(set, s, EPOLLIN)); R(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL)); R(watch(set, s, EPOLLIN));
         R(watch(set, s, EPOLLIN)); R(watch(set, 777, EPOLLIN)); R(watch(s, s, EPOLLIN)); R(watch(set, set, EPOLLIN));
         R(epoll_ctl(set, 99, s, &event)); R(epoll_ctl(777, EPOLL_CTL_ADD, s, &event));
         R(epoll_ctl(set, EPOLL_CTL_MOD, s, (struct epoll_event *)8)); R(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL));
         R(change(set, s, EPOLLIN | EPOLLEXCLUSIVE)); R(epoll_ctl(set, 99, s, &event)); R(change(set, s, EPOLLIN)));
}

static void errors_of_waits(void)
{
    int set = epoll_create1(0);
    struct epoll_event event;

    BOTH(R(watch(set, s, EPOLLIN)); R(epoll_wait(set, &event, 0, 0)); R(epoll_wait(set, &event, -1, 0));
         R(epoll_wait(s, &event, 1, 0)); R(epoll_wait(777, &event, 1, 0)));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(R(epoll_wait(set, (struct epoll_event *)8, 1, 1000)); R(epoll_wait(set, &event, 0x7fffffff, 1000)));
}

static volatile int woken;

/* Not as soon as it might: others come first. */
static void *wait_for_b(void *set)
{
    struct epoll_event event;
    char byte = 0;

    setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
    while (byte != 'e')
        if (epoll_wait(*(int *)set, &event, 1, -1) == 1 && recv(s, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && byte != 'a' &&
            recv(s, &byte, 1, MSG_DONTWAIT) == 1 && byte == 'b')
            woken++;
    return NULL;
}

static void work_for(double seconds)
{
    for (double until = now() + seconds; now() < until;)
        ;
}

static volatile int sending;

static void *send_much(void *unused)
{
    static char bytes[1 << 16];

    while (sending && send_all(s, bytes, sizeof bytes))
        ;
    shutdown(s, SHUT_WR);
    return unused;
}

/* A thread sleeps in a set while another receives what it would wake up for, and looks at all that tells of it. The
 * next byte wakes it. */
static void receive_beside_a_sleeper(int rounds)
{
    int set = epoll_create1(0), go_on = 1;
    struct pollfd look = {s, POLLIN, 0};
    pthread_t thread;
    char byte;

    if (!is_near) {
        watch(set, s, EPOLLIN | EPOLLET);
        thread = in_thread(wait_for_b, &set);
    }
    for (int round = 0; go_on && round < rounds; round++) {
        if (is_near) {
            ask();
            sleep_ms(1);
            send_all(s, "a", 1);
            work_for(0.0002);
            ask();
            send_all(s, "b", 1);
            go_on = ask();
        } else {
            tell(0);
            while (recv(s, &byte, 1, MSG_DONTWAIT) != 1)
                ;
            for (double until = now() + 0.0002; now() < until;)
                poll(&look, 1, 0);
            tell(0);
            for (double until = now() + 1.5; woken <= round && now() < until;)
                usleep(50);
            go_on = woken > round;
            tell(go_on);
        }
    }
    NEAR(send_all(s, "e", 1));
    FAR(say("woken each time %d", woken == rounds); pthread_join(thread, NULL));
}

static void a_receiver_beside_a_sleeper(void)
{
    receive_beside_a_sleeper(100);
}

/* The same where what the sleeper's end sends has filled all there is. */
static void a_receiver_beside_a_sleeper_without_room(void)
{
    pthread_t thread;

    FAR(sending = 1; thread = in_thread(send_much, NULL); sleep_ms(400));
    receive_beside_a_sleeper(50);
    if (is_near) {
        static char bytes[1 << 16];
        while (recv(s, bytes, sizeof bytes, 0) > 0)
            ;
    } else {
        sending = 0;
        pthread_join(thread, NULL);
    }
    step();
}

MAIN(JOINED(level), JOINED(edge), JOINED(edge_read_until_empty), JOINED(edge_read_until_short), JOINED(edge_while_waiting), JOINED(edge_for_both),
     JOINED(room), JOINED(room_by_level), JOINED(one_shot), JOINED(one_shot_edge), JOINED(one_shot_at_the_end),
     JOINED(exclusive), JOINED(waiting_threads_share_a_set), JOINED(nested), JOINED(nested_under_waiters),
     JOINED(nested_edge), JOINED(nested_exclusive),
     JOINED(set_polled_and_selected), JOINED(closed_in_a_set), JOINED(closed_but_for_a_copy),
     JOINED(number_taken_over_by_a_pipe), JOINED(copies_in_one_set), JOINED(in_two_sets), JOINED(errors_of_control),
     JOINED(errors_of_waits), JOINED(a_receiver_beside_a_sleeper),
     JOINED(a_receiver_beside_a_sleeper_without_room))
