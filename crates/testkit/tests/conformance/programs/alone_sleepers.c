/* Threads that leave their sleep in an epoll set otherwise than by returning from it, and sleepers whose set has no
 * bell, by one program with both ends. */
#include "check.h"
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/resource.h>

enum { ROUNDS = 4, COOL = 70 };

static int set;
static bool jumps;
static _Thread_local sigjmp_buf out;

/* All on one processor, on which this thread does not take the place of who wakes it: what comes then comes at once. */
static void share_a_processor(int policy)
{
    struct sched_param none = {0};
    cpu_set_t all, one;
    int first = 0;

    EXPECT(sched_getaffinity(0, sizeof all, &all) == 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    EXPECT(sched_setaffinity(0, sizeof one, &one) == 0 && sched_setscheduler(0, policy, &none) == 0);
}

static void jump(int number)
{
    (void)number;
    siglongjmp(out, 1);
}

static long wait_long(void)
{
    struct epoll_event event;

    return epoll_wait(set, &event, 1, 2000);
}

/* As long as it is not cancelled. */
static void *leave(void *unused)
{
    share_a_processor(SCHED_BATCH);
    if (sigsetjmp(out, 1) == 0)
        wait_long();
    else
        sleep_ms(5);
    return unused;
}

static void *leave_and_come_back(void *unused)
{
    (void)unused;
    share_a_processor(SCHED_BATCH);
    sigsetjmp(out, 1);
    return (void *)wait_long();
}

static void *stay(void *unused)
{
    (void)unused;
    return (void *)wait_long();
}

/* Registers it in a new set, in which it has then been quiet for so many waits. */
static void watch_in_a_new_set(int fd, int waits)
{
    struct epoll_event event;

    EXPECT((set = epoll_create1(0)) >= 0 && watch(set, fd, EPOLLIN) == 0);
    while (waits-- > 0)
        epoll_wait(set, &event, 1, 1);
}

/* The thread that is told of it leaves just then: the other is told all the same. */
static void leave_one(int waits)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct pair p = make_pair();
        pthread_t other, leaving;
        void *heard;

        share_a_processor(SCHED_OTHER);
        watch_in_a_new_set(p.far, waits);
        other = in_thread(stay, NULL);
        sleep_ms(10);
        /* Who has fallen asleep last is woken first. */
        leaving = in_thread(leave, NULL);
        sleep_ms(20);
        EXPECT(send(p.near, "a", 1, 0) == 1);
        EXPECT((jumps ? pthread_kill(leaving, SIGUSR1) : pthread_cancel(leaving)) == 0);
        pthread_join(leaving, NULL);
        pthread_join(other, &heard);
        EXPECT((long)heard == 1);
        close(set);
        close_pair(p);
    }
}

static void another_is_cancelled(void)
{
    jumps = false;
    leave_one(1);
    leave_one(COOL);
}

static void another_jumps_out(void)
{
    jumps = true;
    signal(SIGUSR1, jump);
    leave_one(1);
    leave_one(COOL);
}

/* What the kernel has told whoever jumps out of a wait it tells again in the next, by level. */
static void told_again_after_a_jump(void)
{
    signal(SIGUSR1, jump);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        struct pair p = make_pair();
        pthread_t thread;
        void *heard;

        share_a_processor(SCHED_OTHER);
        watch_in_a_new_set(p.far, COOL);
        thread = in_thread(leave_and_come_back, NULL);
        sleep_ms(20);
        EXPECT((round % 2 ? shutdown(p.near, SHUT_WR) + 1 : send(p.near, "a", 1, 0)) == 1);
        EXPECT(pthread_kill(thread, SIGUSR1) == 0);
        pthread_join(thread, &heard);
        EXPECT((long)heard == 1);
        close(set);
        close_pair(p);
    }
}

/* A change of a registration is heard by who sleeps, however many sets there are for the descriptors that there may
 * be. */
static void changed_among_many_sets(void)
{
    enum { SETS = 24 };
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
    struct rlimit few = {256, 256};
    struct pair p, q = make_pair();
    int others[SETS];
    pthread_t thread;
    void *heard;

    EXPECT(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (int index = 0; index < SETS; index++) {
        EXPECT((others[index] = epoll_create1(0)) >= 0 && watch(others[index], q.far, EPOLLIN) == 0);
        EXPECT(epoll_wait(others[index], &event, 1, 0) == 0);
    }
    p = make_pair();
    EXPECT((set = epoll_create1(0)) >= 0 && watch(set, p.far, EPOLLIN | EPOLLONESHOT) == 0);
    EXPECT(send(p.near, "a", 1, 0) == 1);
    for (int round = 0; round < ROUNDS; round++) {
        EXPECT(wait_long() == 1);
        thread = in_thread(stay, NULL);
        sleep_ms(20);
        event.events = EPOLLIN | EPOLLONESHOT;
        EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, p.far, &event) == 0);
        pthread_join(thread, &heard);
        EXPECT((long)heard == 1);
        EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, p.far, &event) == 0);
    }
    close(set);
    for (int index = 0; index < SETS; index++)
        close(others[index]);
    close_pair(p);
    close_pair(q);
}

/* What a set tells of, at most so many at once: the number that it was registered with. */
static int told_of(int ms)
{
    struct epoll_event events[3];
    int count = epoll_wait(set, events, 3, ms);

    return count == 1 ? (int)events[0].data.u64 : -count;
}

static int registered(int fd, unsigned number)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = number};

    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* A registration outlives its descriptor where the socket has another, and the number may go to another connection in
 * the same set. */
static void number_taken_over_by_a_connection(void)
{
    int port, listening = listener(AF_INET, &port), copy;
    struct pair p, q = make_pair();
    char byte;

    EXPECT((set = epoll_create1(0)) >= 0);
    p.near = dial(AF_INET, port);
    EXPECT(registered(p.near, 1) && (copy = dup(p.near)) >= 0);
    EXPECT(dup2(q.near, p.near) == p.near && close(q.near) == 0);
    q.near = p.near;
    EXPECT(registered(q.near, 2));
    EXPECT((p.far = accept(listening, NULL, NULL)) >= 0);
    warm_up(copy, p.far);
    for (int wait = 0; wait < COOL; wait++)
        EXPECT(told_of(1) == 0);
    EXPECT(send(q.far, "a", 1, 0) == 1 && told_of(2000) == 2);
    EXPECT(recv(q.near, &byte, 1, 0) == 1 && told_of(0) == 0);
    EXPECT(send(p.far, "a", 1, 0) == 1 && told_of(2000) == 1);
    EXPECT(recv(copy, &byte, 1, 0) == 1 && told_of(0) == 0);
    EXPECT(shutdown(q.far, SHUT_WR) == 0 && told_of(2000) == 2);
    EXPECT(close(q.near) == 0 && told_of(0) == 0);
    EXPECT(shutdown(p.far, SHUT_WR) == 0 && told_of(2000) == 1);
    close(copy);
    close(listening);
    close(p.far);
    close(q.far);
    close(set);
}

MAIN(ALONE(another_is_cancelled), ALONE(another_jumps_out), ALONE(told_again_after_a_jump),
     ALONE(changed_among_many_sets), ALONE(number_taken_over_by_a_connection))
