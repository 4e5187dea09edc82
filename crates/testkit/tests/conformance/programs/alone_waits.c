/* Waiting, by one program with both ends. */
#include "check.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>

static volatile sig_atomic_t caught;

static void count_signal(int number)
{
    (void)number;
    caught++;
}

static void on_signal(int flags)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};

    caught = 0;
    sigaction(SIGUSR1, &action, NULL);
}

struct later {
    int fd, ms;
    pthread_t thread;
};

static void *send_later(void *argument)
{
    struct later *later = argument;

    sleep_ms(later->ms);
    send(later->fd, "x", 1, 0);
    return NULL;
}

static void *signal_later(void *argument)
{
    struct later *later = argument;

    sleep_ms(later->ms);
    pthread_kill(later->thread, SIGUSR1);
    return NULL;
}

static void poll_waits_its_time(void)
{
    struct pair p = make_pair();
    struct pollfd wait = {p.far, POLLIN, 0};
    double began = now();

    EXPECT(poll(&wait, 1, 100) == 0);
    EXPECT(now() - began > 0.09 && now() - began < 1);
    EXPECT(poll(&wait, 1, 0) == 0);
    close_pair(p);
}

static void poll_sees_what_comes(void)
{
    struct pair p = make_pair();
    struct later later = {.fd = p.near, .ms = 30};
    pthread_t thread = in_thread(send_later, &later);
    struct pollfd wait[2] = {{p.far, POLLIN, 0}, {-1, POLLIN, 7}};

    EXPECT(poll(wait, 2, 3000) == 1 && wait[0].revents == POLLIN && wait[1].revents == 0);
    /* Level: as long as the byte is there. */
    EXPECT(poll(wait, 2, 0) == 1 && wait[0].revents == POLLIN);
    pthread_join(thread, NULL);
    close_pair(p);
    EXPECT(poll(wait, 1, 0) == 1 && wait[0].revents == POLLNVAL);
}

static void select_sees_what_comes(void)
{
    struct pair p = make_pair();
    struct later later = {.fd = p.near, .ms = 30};
    pthread_t thread = in_thread(send_later, &later);
    struct timeval time = {3, 0};
    struct timespec precise = {0, 50000000};
    fd_set in, out;
    char byte;

    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(p.far, &in);
    EXPECT(select(p.far + 1, &in, &out, NULL, &time) == 1 && FD_ISSET(p.far, &in));
    FD_SET(p.far, &out);
    EXPECT(select(p.far + 1, &in, &out, NULL, NULL) == 2);
    EXPECT(recv(p.far, &byte, 1, 0) == 1);
    FD_ZERO(&out);
    EXPECT(pselect(p.far + 1, &in, &out, NULL, &precise, NULL) == 0 && !FD_ISSET(p.far, &in));
    pthread_join(thread, NULL);
    close_pair(p);
}

static void a_mask_is_in_force_while_waiting(void)
{
    struct pair p = make_pair();
    struct pollfd wait = {p.far, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    sigset_t blocked, none;
    int set = epoll_create1(0);

    on_signal(0);
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    epoll_ctl(set, EPOLL_CTL_ADD, p.far, &event);
    raise(SIGUSR1);
    EXPECT(poll(&wait, 1, 20) == 0 && caught == 0);
    EXPECT_ERROR(ppoll(&wait, 1, NULL, &none), EINTR);
    EXPECT(caught == 1);
    raise(SIGUSR1);
    EXPECT_ERROR(epoll_pwait(set, &event, 1, 3000, &none), EINTR);
    EXPECT(caught == 2);
    raise(SIGUSR1);
    EXPECT_ERROR(pselect(0, NULL, NULL, NULL, NULL, &none), EINTR);
    EXPECT(caught == 3);
    pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
    close(set);
    close_pair(p);
}

static void signals_interrupt(void)
{
    struct pair p = make_pair();
    struct later later = {.ms = 50, .thread = pthread_self()}, sender = {.fd = p.near, .ms = 120};
    pthread_t thread = in_thread(signal_later, &later), other;
    struct pollfd wait = {p.far, POLLIN, 0};
    char byte;

    on_signal(0);
    EXPECT_ERROR(recv(p.far, &byte, 1, 0), EINTR);
    pthread_join(thread, NULL);
    thread = in_thread(signal_later, &later);
    EXPECT_ERROR(poll(&wait, 1, 3000), EINTR);
    pthread_join(thread, NULL);
    /* With SA_RESTART a receive goes on. */
    on_signal(SA_RESTART);
    thread = in_thread(signal_later, &later);
    other = in_thread(send_later, &sender);
    EXPECT(recv(p.far, &byte, 1, 0) == 1 && caught == 1);
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    close_pair(p);
}

static void receive_time_out(void)
{
    struct pair p = make_pair();
    struct timeval time = {0, 80000};
    char bytes[10];
    double began;

    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    began = now();
    EXPECT_ERROR(recv(p.far, bytes, 1, 0), EAGAIN);
    EXPECT(now() - began > 0.06 && now() - began < 1);
    EXPECT(send(p.near, "abc", 3, 0) == 3);
    EXPECT(recv(p.far, bytes, 10, MSG_WAITALL) == 3);
    close_pair(p);
}

static int drains(int fd, size_t count)
{
    static char bytes[100000];

    while (count > 0) {
        ssize_t got = recv(fd, bytes, count < sizeof bytes ? count : sizeof bytes, 0);
        if (got <= 0)
            return 0;
        count -= (size_t)got;
    }
    return 1;
}

static void a_full_socket(void)
{
    struct pair p = make_pair();
    struct pollfd wait = {p.near, POLLOUT, 0};
    struct timeval time = {0, 80000};
    size_t total = fill(p.near);
    double began;

    EXPECT(total > 10000);
    EXPECT_ERROR(send(p.near, "x", 1, MSG_DONTWAIT), EAGAIN);
    EXPECT(poll(&wait, 1, 50) == 0);
    EXPECT(setsockopt(p.near, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0);
    began = now();
    EXPECT_ERROR(send(p.near, "x", 1, 0), EAGAIN);
    EXPECT(now() - began > 0.06 && now() - began < 1);
    EXPECT(drains(p.far, total));
    EXPECT(poll(&wait, 1, 1000) == 1 && wait.revents == POLLOUT);
    EXPECT(send(p.near, "x", 1, MSG_DONTWAIT) == 1);
    EXPECT(drains(p.far, 1));
    close_pair(p);
}

static void epoll_by_level(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int set = epoll_create1(0);
    char byte;

    EXPECT(watch(set, p.far, EPOLLIN) == 0);
    EXPECT(epoll_wait(set, &event, 1, 30) == 0);
    EXPECT(send(p.near, "ab", 2, 0) == 2);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLIN);
    EXPECT(recv(p.far, &byte, 1, 0) == 1);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.data.fd == p.far);
    EXPECT(recv(p.far, &byte, 1, 0) == 1);
    EXPECT(epoll_wait(set, &event, 1, 30) == 0);
    EXPECT(epoll_ctl(set, EPOLL_CTL_DEL, p.far, NULL) == 0);
    EXPECT(send(p.near, "c", 1, 0) == 1);
    EXPECT(epoll_wait(set, &event, 1, 30) == 0);
    /* A byte that waits is seen by who asks later. */
    EXPECT(watch(set, p.far, EPOLLIN) == 0);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1);
    close(set);
    close_pair(p);
}

static void epoll_by_edge(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int set = epoll_create1(0);
    char bytes[10];

    EXPECT(watch(set, p.far, EPOLLIN | EPOLLET) == 0);
    for (int round = 0; round < 20; round++) {
        EXPECT(send(p.near, "abc", 3, 0) == 3);
        EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLIN);
        /* No new byte, no new edge, although some are unread. */
        EXPECT(recv(p.far, bytes, 1, 0) == 1);
        EXPECT(epoll_wait(set, &event, 1, 10) == 0);
        EXPECT(send(p.near, "d", 1, 0) == 1);
        EXPECT(epoll_wait(set, &event, 1, 1000) == 1);
        EXPECT(receive_all(p.far, bytes, 3) && !memcmp(bytes, "bcd", 3));
    }
    EXPECT(send(p.near, "e", 1, 0) == 1);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1);
    event.events = EPOLLIN | EPOLLET;
    EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, p.far, &event) == 0);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1);
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events & EPOLLIN);
    close(set);
    close_pair(p);
}

static void epoll_when_room_comes(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int set = epoll_create1(0);
    size_t total;

    EXPECT(watch(set, p.near, EPOLLOUT | EPOLLET) == 0);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLOUT);
    EXPECT(epoll_wait(set, &event, 1, 10) == 0);
    total = fill(p.near);
    while (epoll_wait(set, &event, 1, 10) == 1)
        total += fill(p.near);
    EXPECT(drains(p.far, total));
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLOUT);
    EXPECT(send(p.near, "x", 1, MSG_DONTWAIT) == 1);
    close(set);
    close_pair(p);
}

static void epoll_for_room_after_idling(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int set = epoll_create1(0);
    size_t total;
    int wait;

    EXPECT(watch(set, p.near, EPOLLIN | EPOLLOUT | EPOLLET) == 0);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLOUT);
    for (wait = 0; wait < 100; wait++)
        EXPECT(epoll_wait(set, &event, 1, 1) == 0);
    total = fill(p.near);
    EXPECT(drains(p.far, total));
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == EPOLLOUT);
    close(set);
    close_pair(p);
}

static void epoll_once(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int set = epoll_create1(0);
    char byte;

    EXPECT(watch(set, p.far, EPOLLIN | EPOLLONESHOT) == 0);
    EXPECT(send(p.near, "a", 1, 0) == 1);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1);
    EXPECT(epoll_wait(set, &event, 1, 10) == 0);
    EXPECT(recv(p.far, &byte, 1, 0) == 1);
    EXPECT(send(p.near, "b", 1, 0) == 1);
    EXPECT(epoll_wait(set, &event, 1, 10) == 0);
    event.events = EPOLLIN | EPOLLONESHOT;
    EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, p.far, &event) == 0);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1);
    close(set);
    close_pair(p);
}

/* What a thread that waits in a set hears until nothing comes for a while. */
static void *count_events(void *set)
{
    struct epoll_event events[4];
    long heard = 0;

    for (int count; (count = epoll_wait(*(int *)set, events, 4, heard ? 5 : 1000)) > 0;)
        heard += count;
    return (void *)heard;
}

/* A one-shot event is given once to a thread that waits already when the socket, which is readable, is added. */
static void epoll_adds_while_others_wait(void)
{
    struct pair p = make_pair();

    send_all(p.near, "x", 1);
    for (int round = 0; round < 100; round++) {
        int set = epoll_create1(0);
        void *heard;
        pthread_t thread = in_thread(count_events, &set);

        sleep_ms(1);
        EXPECT(watch(set, p.far, EPOLLIN | EPOLLONESHOT) == 0);
        pthread_join(thread, &heard);
        EXPECT((long)heard == 1);
        close(set);
    }
    close_pair(p);
}

static void epoll_in_epoll(void)
{
    struct pair p = make_pair();
    struct epoll_event event;
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct later later = {.fd = p.near, .ms = 40};
    struct pollfd wait = {outer, POLLIN, 0};
    pthread_t thread;
    char byte;

    EXPECT(watch(inner, p.far, EPOLLIN) == 0);
    EXPECT(watch(outer, inner, EPOLLIN) == 0);
    EXPECT(epoll_wait(outer, &event, 1, 20) == 0);
    thread = in_thread(send_later, &later);
    EXPECT(epoll_wait(outer, &event, 1, 3000) == 1 && event.data.fd == inner);
    EXPECT(epoll_wait(inner, &event, 1, 0) == 1 && event.data.fd == p.far);
    EXPECT(recv(p.far, &byte, 1, 0) == 1);
    EXPECT(epoll_wait(outer, &event, 1, 0) == 0);
    pthread_join(thread, NULL);
    thread = in_thread(send_later, &later);
    EXPECT(poll(&wait, 1, 3000) == 1);
    pthread_join(thread, NULL);
    close(inner);
    close(outer);
    close_pair(p);
}

static void *keep_sending(void *fd)
{
    char bytes[100] = {0};

    while (send(*(int *)fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

static void others_get_their_turn(void)
{
    struct pair p = make_pair();
    int set = epoll_create1(0), event_fd = eventfd(0, EFD_NONBLOCK), seen = 0;
    pthread_t thread = in_thread(keep_sending, &p.near);
    struct epoll_event event;
    char bytes[64];
    uint64_t one = 1;

    EXPECT(watch(set, p.far, EPOLLIN) == 0 && watch(set, event_fd, EPOLLIN) == 0);
    /* One event at a time and a socket that always has bytes: the other must be seen soon all the same. */
    for (int round = 0; round < 2000; round++) {
        if (round == 1000)
            EXPECT(write(event_fd, &one, sizeof one) == sizeof one);
        EXPECT(epoll_wait(set, &event, 1, 1000) == 1);
        if (event.data.fd == event_fd)
            seen++;
        else
            EXPECT(recv(p.far, bytes, sizeof bytes, 0) > 0);
    }
    EXPECT(seen > 10);
    shutdown(p.far, SHUT_RDWR);
    close(p.far);
    pthread_join(thread, NULL);
    close(p.near);
    close(set);
    close(event_fd);
}

/* A wait that no library can see. */
static long raw_poll(struct pollfd *wait, long count, long timeout)
{
#if defined(__x86_64__)
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_poll), "D"(wait), "S"(count), "d"(timeout)
                     : "rcx", "r11", "memory");
    return result;
#else
    struct timespec time = {timeout / 1000, timeout % 1000 * 1000000};
    return syscall(SYS_ppoll, wait, count, &time, NULL, 0);
#endif
}

static void unseen_waits_wake(void)
{
    struct pair p = make_pair();
    struct pollfd wait = {p.far, POLLIN, 0};
    char byte;

    for (int round = 0; round < 10; round++) {
        struct later later = {.fd = p.near, .ms = 20};
        pthread_t thread = in_thread(send_later, &later);
        double began = now();
        EXPECT(raw_poll(&wait, 1, 3000) == 1);
        EXPECT(now() - began < 1);
        pthread_join(thread, NULL);
        EXPECT(recv(p.far, &byte, 1, 0) == 1);
        EXPECT_ERROR(recv(p.far, &byte, 1, MSG_DONTWAIT), EAGAIN);
    }
    close_pair(p);
}

static void low_water_mark(void)
{
    struct pair p = make_pair();
    struct pollfd wait = {p.far, POLLIN, 0};
    int mark = 10;
    char bytes[20];

    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0);
    EXPECT(send(p.near, "12345", 5, 0) == 5);
    EXPECT(poll(&wait, 1, 30) == 0);
    EXPECT(send(p.near, "67890", 5, 0) == 5);
    EXPECT(poll(&wait, 1, 1000) == 1);
    EXPECT(recv(p.far, bytes, 20, 0) == 10);
    close_pair(p);
}

/* A wait that always finds something tells of the others, too: of an end, and of what comes by TCP after a lane. */
static void others_are_seen_beside_room(void)
{
    for (int how = 0; how < 2; how++) {
        struct pair roomy = make_pair(), other = make_pair();
        struct pollfd wait[2] = {{roomy.near, POLLOUT, 0}, {other.near, POLLIN, 0}};
        double began = now();
        int ends[2];

        EXPECT(poll(wait, 2, 1000) == 1);
        if (how == 0) {
            close(other.far);
        } else {
            EXPECT(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
            if (splice(ends[0], NULL, other.far, NULL, 1, 0) != 1)
                EXPECT(send(other.far, "x", 1, 0) == 1);
        }
        while (wait[1].revents == 0 && now() - began < 1)
            EXPECT(poll(wait, 2, 1000) >= 1);
        EXPECT(wait[1].revents == POLLIN);
        close_pair(roomy);
        close(other.near);
    }
}

MAIN(ALONE(poll_waits_its_time), ALONE(poll_sees_what_comes), ALONE(select_sees_what_comes),
     ALONE(a_mask_is_in_force_while_waiting), ALONE(signals_interrupt), ALONE(receive_time_out), ALONE(a_full_socket),
     ALONE(epoll_by_level), ALONE(epoll_by_edge), ALONE(epoll_when_room_comes),
     ALONE(epoll_for_room_after_idling), ALONE(epoll_once),
     ALONE(epoll_adds_while_others_wait), ALONE(epoll_in_epoll), ALONE(others_get_their_turn), ALONE(others_are_seen_beside_room),
     ALONE(unseen_waits_wake), ALONE(low_water_mark))
