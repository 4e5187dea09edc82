/* Epoll sets that several threads sleep in, and connections in several sets, by one program with both ends. */
#include "check.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

enum { MOST = 3 };

static atomic_int awake;

static void *wait_once(void *set)
{
    struct epoll_event event;
    long heard = epoll_wait(*(int *)set, &event, 1, 2000);

    awake++;
    return (void *)heard;
}

static void *wait_shortly(void *set)
{
    struct epoll_event event;

    return (void *)(long)epoll_wait(*(int *)set, &event, 1, 10);
}

/* Has threads sleep in the set. */
static void fall_asleep(pthread_t *threads, int count, int *set)
{
    for (int index = 0; index < count; index++)
        threads[index] = in_thread(wait_once, set);
    sleep_ms(30);
}

/* How many of them have been told of something. */
static int told(const pthread_t *threads, int count)
{
    int sum = 0;

    for (int index = 0; index < count; index++) {
        void *heard;
        pthread_join(threads[index], &heard);
        sum += (int)(long)heard;
    }
    return sum;
}

static void all_sleepers_are_told_by_level(void)
{
    struct pair p = make_pair();
    int set = epoll_create1(0);
    pthread_t threads[MOST];

    EXPECT(watch(set, p.far, EPOLLIN) == 0);
    fall_asleep(threads, MOST, &set);
    EXPECT(send(p.near, "a", 1, 0) == 1);
    EXPECT(told(threads, MOST) == MOST);
    close(set);
    close_pair(p);
}

static void all_sleepers_are_told_of_the_end(void)
{
    struct pair p = make_pair();
    int set = epoll_create1(0);
    pthread_t threads[MOST];

    EXPECT(watch(set, p.far, EPOLLIN) == 0);
    fall_asleep(threads, MOST, &set);
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    EXPECT(told(threads, MOST) == MOST);
    close(set);
    close_pair(p);
}

/* The first sleeper does not come back, and what comes next is for the other. */
static void other_sleepers_are_told_of_the_next_edge(void)
{
    struct pair p = make_pair();
    int set = epoll_create1(0);
    pthread_t threads[2];
    char byte;

    EXPECT(watch(set, p.far, EPOLLIN | EPOLLET) == 0);
    /* What may be told of a new registration. */
    epoll_wait(set, &(struct epoll_event){0}, 1, 10);
    awake = 0;
    fall_asleep(threads, 2, &set);
    for (int round = 0; round < 2; round++) {
        EXPECT(send(p.near, "a", 1, 0) == 1);
        for (int wait = 0; wait < 1000 && awake <= round; wait++)
            sleep_ms(1);
        EXPECT(recv(p.far, &byte, 1, 0) == 1);
        EXPECT_ERROR(recv(p.far, &byte, 1, MSG_DONTWAIT), EAGAIN);
    }
    EXPECT(told(threads, 2) == 2);
    close(set);
    close_pair(p);
}

/* Of two that are ready the first sleeper is told of one, and the other sleeper of the other. */
static void each_sleeper_is_told_of_one(void)
{
    struct pair p = make_pair(), q = make_pair();
    int set = epoll_create1(0);
    pthread_t threads[2];

    EXPECT(watch(set, p.far, EPOLLIN | EPOLLONESHOT) == 0 && watch(set, q.far, EPOLLIN | EPOLLONESHOT) == 0);
    fall_asleep(threads, 2, &set);
    EXPECT(send(p.near, "a", 1, 0) == 1);
    EXPECT(send(q.near, "b", 1, 0) == 1);
    EXPECT(told(threads, 2) == 2);
    close(set);
    close_pair(p);
    close_pair(q);
}

static void each_set_is_told_of_room(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int sets[2] = {epoll_create1(0), epoll_create1(0)};
    size_t total;

    for (int index = 0; index < 2; index++) {
        EXPECT(watch(sets[index], p.near, EPOLLIN | EPOLLOUT | EPOLLET) == 0);
        EXPECT(epoll_wait(sets[index], &event, 1, 1000) == 1 && event.events == EPOLLOUT);
    }
    total = fill(p.near);
    drain(p.far, total);
    for (int index = 0; index < 2; index++)
        EXPECT(epoll_wait(sets[index], &event, 1, 1000) == 1 && event.events == EPOLLOUT);
    close(sets[0]);
    close(sets[1]);
    close_pair(p);
}

static void *send_one(void *fd)
{
    return (void *)send(*(int *)fd, "x", 1, 0);
}

/* That another thread has sent meanwhile changes nothing for who was told that the connection is full. */
static void room_is_told_though_another_has_sent(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int set = epoll_create1(0);
    pthread_t thread;
    size_t total;

    EXPECT(watch(set, p.near, EPOLLOUT | EPOLLET) == 0);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLOUT);
    total = fill(p.near);
    thread = in_thread(send_one, &p.near);
    sleep_ms(10);
    drain(p.far, total + 1);
    pthread_join(thread, NULL);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLOUT);
    close(set);
    close_pair(p);
}

/* An event that does not speak of room promises another that does. */
static void room_is_told_after_bytes_without_room(void)
{
    struct pair p = make_pair();
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    int set = epoll_create1(0);
    size_t total = fill(p.near);

    EXPECT(send(p.far, "a", 1, 0) == 1);
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, p.near, &event) == 0);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events & EPOLLIN);
    if (event.events & EPOLLOUT)
        total += fill(p.near);
    drain(p.far, total);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events & EPOLLOUT);
    close(set);
    close_pair(p);
}

/* Who sleeps in the set hears nothing of a full connection while it is added. */
static void full_and_added_exclusively(void)
{
    struct pair p = make_pair();

    fill(p.near);
    for (int round = 0; round < 50; round++) {
        int set = epoll_create1(0);
        pthread_t thread = in_thread(wait_shortly, &set);
        void *heard;

        sleep_ms(1);
        EXPECT(watch(set, p.near, EPOLLOUT | EPOLLEXCLUSIVE) == 0);
        pthread_join(thread, &heard);
        EXPECT((long)heard == 0);
        close(set);
    }
    close_pair(p);
}

static void *send_later(void *fd)
{
    sleep_ms(30);
    return (void *)send(*(int *)fd, "a", 1, 0);
}

/* A one-shot registration that is older than the fast path is told of bytes, whatever was received beside it. */
static void once_registered_before_accepted(void)
{
    struct sockaddr_storage address;
    struct pollfd wait = {.events = POLLIN};
    struct epoll_event event;
    struct pair p;
    int port, listening = listener(AF_INET, &port), set = epoll_create1(0);
    socklen_t length = loopback(AF_INET, port, &address);
    pthread_t thread;
    char byte;

    p.near = wait.fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(connect(p.near, (struct sockaddr *)&address, length) == 0);
    EXPECT(watch(set, p.near, EPOLLIN | EPOLLONESHOT) == 0);
    EXPECT((p.far = accept(listening, NULL, NULL)) >= 0);
    warm_up(p.near, p.far);
    EXPECT_ERROR(recv(p.near, &byte, 1, MSG_DONTWAIT), EAGAIN);
    thread = in_thread(send_later, &p.far);
    EXPECT(poll(&wait, 1, 1000) == 1);
    EXPECT(recv(p.near, &byte, 1, 0) == 1);
    pthread_join(thread, NULL);
    EXPECT(send(p.far, "b", 1, 0) == 1);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLIN);
    EXPECT(recv(p.near, &byte, 1, 0) == 1 && byte == 'b');
    close(set);
    close(listening);
    close_pair(p);
}

/* A set that is older than the first socket of either process that has it. */
struct early {
    int set, told[2], over[2];
};

static int registered(int set, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};

    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0;
}

static int tells_of_it(int set)
{
    struct epoll_event event;

    return epoll_wait(set, &event, 1, 1000) == 1 && event.data.u64 == 1 && event.events == EPOLLIN;
}

static int register_in_the_child(void *argument)
{
    struct early *early = argument;
    struct pair p = make_pair();
    char bytes[2];

    close(early->over[1]);
    EXPECT(registered(early->set, p.far));
    EXPECT(send_all(p.near, "ab", 2));
    write(early->told[1], "t", 1);
    read(early->over[0], bytes, 1);
    EXPECT(receive_all(p.far, bytes, 2) && !memcmp(bytes, "ab", 2));
    return 0;
}

static pid_t by_fork(struct early *early)
{
    pid_t child = fork();

    if (child == 0)
        _exit(register_in_the_child(early));
    return child;
}

static pid_t by_fork_without_handlers(struct early *early)
{
    pid_t child = _Fork();

    if (child == 0)
        _exit(register_in_the_child(early));
    return child;
}

static pid_t by_number(struct early *early)
{
    pid_t child = (pid_t)syscall(SYS_fork);

    if (child == 0)
        _exit(register_in_the_child(early));
    return child;
}

static pid_t by_clone(struct early *early)
{
    static char stack[1 << 16] __attribute__((aligned(16)));

    return clone(register_in_the_child, stack + sizeof stack, SIGCHLD, early);
}

static void filled_by_a_child_made(pid_t (*make)(struct early *), int copied)
{
    struct early early = {.set = epoll_create1(0)};
    pid_t child;
    char byte;

    EXPECT(pipe(early.told) == 0 && pipe(early.over) == 0);
    if (copied)
        EXPECT((early.set = dup(early.set)) >= 0);
    child = make(&early);
    close(early.told[1]);
    EXPECT(read(early.told[0], &byte, 1) == 1);
    for (int round = 0; round < 3; round++)
        EXPECT(tells_of_it(early.set));
    close(early.over[1]);
    EXPECT(exited_well(child));
}

static void early_set_filled_by_a_child(void)
{
    filled_by_a_child_made(by_fork, 0);
    filled_by_a_child_made(by_fork, 1);
    filled_by_a_child_made(by_fork_without_handlers, 0);
}

static void early_set_filled_by_a_child_by_number(void)
{
    filled_by_a_child_made(by_number, 0);
}

static void early_set_filled_by_a_cloned_child(void)
{
    filled_by_a_child_made(by_clone, 0);
}

/* In the process that it was passed to a set tells of the program's registrations, and of no others. */
static void set_passed_to_another_process(void)
{
    int channel[2], set;
    char bytes[2];
    struct pair p;
    pid_t child;

    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0);
    child = fork();
    if (child == 0) {
        set = take_descriptor(channel[1]);
        recv(channel[1], bytes, 1, 0);
        _exit(tells_of_it(set) && tells_of_it(set) ? 0 : 1);
    }
    EXPECT((set = epoll_create1(0)) >= 0);
    pass_descriptor(channel[0], set);
    p = make_pair();
    EXPECT(registered(set, p.far));
    EXPECT(send_all(p.near, "ab", 2));
    EXPECT(send(channel[0], "g", 1, 0) == 1);
    EXPECT(exited_well(child));
    EXPECT(tells_of_it(set));
    EXPECT(receive_all(p.far, bytes, 2) && !memcmp(bytes, "ab", 2));
}

/* Whoever may have so many clients only hears of those that have gone before it hears of the next. */
static void ends_are_told_before_newcomers(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int set = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0);

    EXPECT(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 9) == 0);
    EXPECT(getsockname(listener, (struct sockaddr *)&address, &length) == 0 && watch(set, listener, EPOLLIN) == 0);
    for (int round = 0; round < 9; round++) {
        struct pair p[MOST];
        struct epoll_event events[MOST + 2];
        int newcomer = socket(AF_INET, SOCK_STREAM, 0), ends = 0, told = 0;

        for (int index = 0; index < MOST; index++) {
            p[index] = make_pair();
            EXPECT(watch(set, p[index].far, EPOLLIN) == 0);
        }
        EXPECT(epoll_wait(set, events, MOST + 2, 5) == 0);
        for (int index = 0; index < MOST; index++)
            close(p[index].near);
        EXPECT(connect(newcomer, (struct sockaddr *)&address, sizeof address) == 0);
        while (!told) {
            int count = epoll_wait(set, events, MOST + 2, 2000);

            EXPECT(count > 0);
            for (int index = 0; index < count && !told; index++) {
                told = events[index].data.fd == listener;
                ends += !told;
            }
        }
        EXPECT(ends == MOST);
        for (int index = 0; index < MOST; index++)
            close(p[index].far);
        close(accept(listener, NULL, NULL));
        close(newcomer);
    }
}

/* Bytes that follow urgent data are news, though what came before is still to be received. */
static void edges_behind_urgent_data(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int set = epoll_create1(0);

    EXPECT(watch(set, p.far, EPOLLIN | EPOLLET) == 0);
    for (int round = 0; round < 4; round++) {
        EXPECT(send(p.near, "a", 1, round == 1 ? MSG_OOB : 0) == 1);
        EXPECT(epoll_wait(set, &event, 1, 2000) == 1 && event.events == EPOLLIN);
        EXPECT(epoll_wait(set, &event, 1, 5) == 0);
    }
    close(set);
    close_pair(p);
}

MAIN(ALONE(all_sleepers_are_told_by_level), ALONE(all_sleepers_are_told_of_the_end),
     ALONE(other_sleepers_are_told_of_the_next_edge), ALONE(each_sleeper_is_told_of_one),
     ALONE(each_set_is_told_of_room), ALONE(room_is_told_though_another_has_sent),
     ALONE(room_is_told_after_bytes_without_room), ALONE(full_and_added_exclusively),
     ALONE(once_registered_before_accepted), ALONE(early_set_filled_by_a_child),
     ALONE(early_set_filled_by_a_child_by_number), ALONE(early_set_filled_by_a_cloned_child), ALONE(set_passed_to_another_process),
     ALONE(ends_are_told_before_newcomers), ALONE(edges_behind_urgent_data))
