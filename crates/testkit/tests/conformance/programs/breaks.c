/* Waits of every kind that a reset or an end finds, processes that end in the middle of calls, waits that others
 * share. */
#include "sets.h"
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/time.h>
#include <spawn.h>
#include <setjmp.h>

extern char **environ;

static const struct linger at_once = {1, 0};

/* A wait of the kind `how`, until something happens. */
static void wait_by(int how)
{
    fd_set in, except;
    struct timeval time = {2, 0};
    int one;

    switch (how) {
    case 0:
        POLL(s, POLLIN | POLLRDHUP, 2000);
        break;
    case 1:
        FD_ZERO(&in);
        FD_ZERO(&except);
        FD_SET(s, &in);
        FD_SET(s, &except);
        R(select(s + 1, &in, NULL, &except, &time));
        say("in %d, except %d", FD_ISSET(s, &in) != 0, FD_ISSET(s, &except) != 0);
        break;
    case 2:
        one = epoll_create1(0);
        R(watch(one, s, EPOLLIN | EPOLLRDHUP));
        once(one, 2000);
        break;
    case 3:
        one = epoll_create1(0);
        R(watch(one, s, EPOLLIN | EPOLLOUT | EPOLLET));
        once(one, 1000);
        once(one, 2000);
        break;
    case 4:
        GET(s, 4, MSG_PEEK);
        break;
    default:
        GET(s, 4, MSG_WAITALL);
    }
}

static void broken_off_in_every_wait(bool by_reset)
{
    for (int how = 0; how < 6; how++) {
        s = join();
        if (is_near) {
            TIMED(20, 1500, wait_by(how));
            GET(s, 4, 0);
            GET(s, 4, 0);
        } else {
            sleep_ms(100);
            if (by_reset)
                setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            R(close(s));
        }
        step();
    }
}

static void resets_in_every_wait(void)
{
    broken_off_in_every_wait(true);
}

static void ends_in_every_wait(void)
{
    broken_off_in_every_wait(false);
}

static void reset_cuts_a_waitall(void)
{
    if (is_near) {
        GET(s, 10, MSG_WAITALL);
        GET(s, 10, MSG_WAITALL);
        GET(s, 10, 0);
    } else {
        R(send(s, "abc", 3, 0));
        sleep_ms(40);
        setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        R(close(s));
    }
    step();
}

/* After both directions have ended there is nothing left to reset. */
static void reset_after_both_half_closes(void)
{
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(GET(s, 1, 0); R(shutdown(s, SHUT_WR)));
    NEAR(GET(s, 1, 0));
    FAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(sleep_ms(20); GET(s, 1, 0); R(number_of(s, SOL_SOCKET, SO_ERROR)); R(send(s, "x", 1, MSG_NOSIGNAL));
         POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
}

/* The error is told once, to a send as well, and then that nothing can be sent. */
static void reset_told_to_a_sender_that_has_ended(void)
{
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(GET(s, 1, 0); R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(sleep_ms(20); R(send(s, "x", 1, MSG_NOSIGNAL)); R(send(s, "x", 1, MSG_NOSIGNAL)); GET(s, 1, 0));
}

/* The other order of the ends: who ends first reads last. */
static void half_closed_and_then_reset_by_unread_bytes(void)
{
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(GET(s, 1, 0); R(send(s, "unread", 6, 0)));
    NEAR(arrive(s, POLLIN); R(close(s)));
    FAR(arrive(s, POLLHUP); POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0); GET(s, 1, 0); R(send(s, "x", 1, MSG_NOSIGNAL)));
}

static void *receive_one(void *fd)
{
    char byte;

    recv(*(int *)fd, &byte, 1, 0);
    return NULL;
}

static void *poll_for_ever(void *fd)
{
    struct pollfd wait = {*(int *)fd, POLLIN, 0};

    poll(&wait, 1, -1);
    return NULL;
}

static void *send_for_ever(void *fd)
{
    static char bytes[1 << 16];

    while (send(*(int *)fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

/* A process ends while threads of it are in calls; its connections end as if it had been alone. */
static void exits_with_threads_in_calls(void)
{
    static char bytes[1 << 16];

    for (int how = 0; how < 4; how++) {
        void *(*const work[])(void *) = {receive_one, poll_for_ever, send_for_ever, receive_one};
        int fd = join();
        if (is_near) {
            long got;
            while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
                ;
            R(got);
        } else {
            pid_t child = fork();
            if (child == 0) {
                in_thread(work[how], &fd);
                sleep_ms(30);
                if (how == 3)
                    _exit(0);
                exit(0);
            }
            close(fd);
            reap(child);
        }
        close(fd);
        step();
    }
}

/* A socket that a spawned program has been left by oversight is open until that ends. */
static void left_to_a_spawned_program(void)
{
    static char *const program[] = {"/bin/sleep", "0.5", NULL};

    for (int how = 0; how < 2; how++) {
        int fd = join();
        if (is_near) {
            GET(fd, 4, 0);
            TIMED(how ? 0 : 250, how ? 400 : 2500, GET(fd, 1, 0));
        } else {
            pid_t child;
            if (how)
                fcntl(fd, F_SETFD, FD_CLOEXEC);
            R(posix_spawn(&child, program[0], NULL, NULL, program, environ));
            R(send(fd, "word", 4, 0));
            R(close(fd));
            reap(child);
        }
        step();
    }
}

/* Whoever waits beside a thread that receives is woken by what that leaves. */
static int kind_of_wait;

static void *wait_again_and_again(void *fd)
{
    struct pollfd wait = {*(int *)fd, POLLIN, 0};
    struct epoll_event event;
    int one = epoll_create1(0);
    fd_set in;
    char byte = 0;

    watch(one, *(int *)fd, EPOLLIN);
    FD_ZERO(&in);
    FD_SET(*(int *)fd, &in);
    while (byte != 'e') {
        int ready = kind_of_wait == 0   ? poll(&wait, 1, -1)
                    : kind_of_wait == 1 ? select(*(int *)fd + 1, &in, NULL, NULL, NULL)
                                        : epoll_wait(one, &event, 1, -1);
        if (ready != 1)
            say("a wait ended by itself");
        if (recv(*(int *)fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1)
            byte = 0;
        if (byte == 'p') {
            recv(*(int *)fd, &byte, 1, MSG_DONTWAIT);
            send_all(*(int *)fd, "p", 1);
        }
    }
    close(one);
    return NULL;
}

static void receive_and_answer(bool in_set)
{
    struct epoll_event event;
    int one = epoll_create1(0);
    char byte = 0;

    if (in_set)
        watch(one, s, EPOLLIN);
    while (byte != 'r' && (!in_set || epoll_wait(one, &event, 1, -1) == 1) && receive_all(s, &byte, 1))
        send_all(s, &byte, 1);
    close(one);
}

static void waits_beside_receives(int kind)
{
    char byte;

    kind_of_wait = kind;
    for (int round = 0; round < 60; round++) {
        if (is_near) {
            for (int turn = 0; turn < 9; turn++) {
                send_all(s, "x", 1);
                receive_all(s, &byte, 1);
                if (turn % 3 == 0)
                    sleep_ms(1);
            }
            send_all(s, "r", 1);
            receive_all(s, &byte, 1);
            /* The receiver is gone, and only the waiter is there. */
            send_all(s, "p", 1);
            if (!receive_all(s, &byte, 1) || byte != 'p')
                say("round %d: no answer", round);
            send_all(s, "e", 1);
        } else {
            pthread_t waiter = in_thread(wait_again_and_again, &s);
            receive_and_answer(kind == 3);
            pthread_join(waiter, NULL);
            receive_all(s, &byte, 1);
        }
        step();
    }
    say("answered");
}

static void polls_beside_receives(void)
{
    waits_beside_receives(0);
}

static void selects_beside_receives(void)
{
    waits_beside_receives(1);
}

static void sets_beside_receives(void)
{
    waits_beside_receives(2);
}

static void sets_beside_sets(void)
{
    waits_beside_receives(3);
}

/* A socket that always has bytes hides no other descriptor from a wait that shows all. */
static void others_are_seen_beside_a_busy_socket(void)
{
    static char bytes[512];
    int ends[2], missed = 0;
    struct pollfd wait[4];
    struct itimerspec once_soon = {.it_value = {0, 1}};
    sigset_t blocked;
    fd_set in;

    if (is_near) {
        while (send(s, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
            ;
    } else {
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGUSR2);
        sigprocmask(SIG_BLOCK, &blocked, NULL);
        pipe(ends);
        write(ends[1], "p", 1);
        raise(SIGUSR2);
        wait[0] = (struct pollfd){s, POLLIN, 0};
        wait[1] = (struct pollfd){ends[0], POLLIN, 0};
        wait[2] = (struct pollfd){timerfd_create(CLOCK_MONOTONIC, 0), POLLIN, 0};
        wait[3] = (struct pollfd){signalfd(-1, &blocked, 0), POLLIN, 0};
        timerfd_settime(wait[2].fd, 0, &once_soon, NULL);
        sleep_ms(5);
        for (int round = 0; round < 500; round++) {
            poll(wait, 4, 1000);
            for (int index = 1; index < 4; index++)
                missed += wait[index].revents != POLLIN;
            FD_ZERO(&in);
            for (int index = 0; index < 4; index++)
                FD_SET(wait[index].fd, &in);
            select(wait[3].fd + 1, &in, NULL, NULL, NULL);
            for (int index = 1; index < 4; index++)
                missed += !FD_ISSET(wait[index].fd, &in);
            recv(s, bytes, sizeof bytes, 0);
        }
        say("missed %d", missed);
        R(close(s));
    }
    step();
}

/* A signal that is to be read wakes whoever waits in a set with a busy socket. */
static void signals_are_read_beside_a_busy_socket(void)
{
    static char bytes[512];
    struct signalfd_siginfo info;
    struct epoll_event event = {.events = EPOLLIN};
    int one, signalled, seen = 0;
    sigset_t blocked;

    if (is_near) {
        while (send(s, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
            ;
    } else {
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGUSR2);
        sigprocmask(SIG_BLOCK, &blocked, NULL);
        signalled = signalfd(-1, &blocked, SFD_NONBLOCK);
        one = epoll_create1(0);
        event.data.fd = s;
        epoll_ctl(one, EPOLL_CTL_ADD, s, &event);
        event.data.fd = signalled;
        epoll_ctl(one, EPOLL_CTL_ADD, signalled, &event);
        for (int round = 0; round < 2000; round++) {
            if (round % 100 == 0)
                kill(getpid(), SIGUSR2);
            if (epoll_wait(one, &event, 1, 1000) != 1)
                break;
            if (event.data.fd == s)
                recv(s, bytes, sizeof bytes, 0);
            else
                seen += read(signalled, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR2;
        }
        say("seen %d", seen == 20);
        R(close(s));
    }
    step();
}

static sigjmp_buf jump;
static volatile int may_jump, sending;

static void *send_while_wanted(void *fd)
{
    static char bytes[1 << 16];

    while (sending && send_all(*(int *)fd, bytes, sizeof bytes))
        ;
    return NULL;
}

static void jump_out(int number)
{
    if (may_jump)
        siglongjmp(jump, number);
}

/* As old programs make their time-outs: out of whatever a call is doing by a jump, a thousand times. */
static void jumps_out_of_busy_receives(void)
{
    static char bytes[1 << 16];
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    static volatile int jumps;
    static double until;
    long got;

    if (is_near) {
        pthread_t thread;
        sending = 1;
        thread = in_thread(send_while_wanted, &s);
        ask();
        sending = 0;
        pthread_join(thread, NULL);
        R(shutdown(s, SHUT_WR));
    } else {
        signal(SIGALRM, jump_out);
        until = now() + 0.5;
        for (jumps = 0; now() < until; jumps++) {
            may_jump = 0;
            setitimer(ITIMER_REAL, &often, NULL);
            if (sigsetjmp(jump, 1) == 0) {
                may_jump = 1;
                for (;;)
                    recv(s, bytes, sizeof bytes, 0);
            }
            may_jump = 0;
            setitimer(ITIMER_REAL, &never, NULL);
        }
        tell(0);
        signal(SIGALRM, SIG_DFL);
        alarm(PATIENCE_S);
        say("jumped %d", jumps > 50);
        while ((got = recv(s, bytes, sizeof bytes, 0)) > 0)
            ;
        R(got);
    }
    step();
}

/* The stream has ended, and is not broken, as long as who shut it down keeps the socket. */
static void shut_down_both_ways_with_bytes_unread(void)
{
    NEAR(R(send(s, "unread", 6, 0)));
    FAR(arrive(s, POLLIN); R(send(s, "last", 4, 0)); R(shutdown(s, SHUT_RDWR)));
    NEAR(arrive(s, POLLRDHUP); ALL(s, 4); GET(s, 8, 0); POLL(s, POLLIN | POLLRDHUP, 0); R(send(s, "x", 1, MSG_NOSIGNAL)));
}

/* Told in a set, after which a program that only sends must hear what it is. It has sent few messages, and long
 * ones. */
static void a_reset_finds_who_waits_for_room(void)
{
    static char bytes[1 << 20];
    int set = epoll_create1(0);

    NEAR(fcntl(s, F_SETFL, O_NONBLOCK); R(watch(set, s, EPOLLOUT)); while (send(s, bytes, sizeof bytes, 0) > 0););
    FAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(once(set, 2000); R(send(s, "x", 1, MSG_NOSIGNAL)); R(send(s, "x", 1, MSG_NOSIGNAL)); GET(s, 8, 0));
}

/* The first poll tells all that there is to tell, and a reset that has been told is over. */
static void polls_of_a_killed_peer(void)
{
    FAR(R(send(s, "unread", 6, 0)));
    if (is_near) {
        leave_unread(s);
    } else {
        POLL(s, POLLIN, 2000);
    }
    step();
    FAR(GET(s, 1, 0); POLL(s, POLLIN, 0); say("%d", number_of(s, SOL_SOCKET, SO_ERROR)); GET(s, 1, 0));
}

MAIN(JOINED(polls_of_a_killed_peer), JOINED(a_reset_finds_who_waits_for_room), BARE(resets_in_every_wait), BARE(ends_in_every_wait), JOINED(reset_cuts_a_waitall), JOINED(reset_after_both_half_closes),
     JOINED(reset_told_to_a_sender_that_has_ended),
     JOINED(half_closed_and_then_reset_by_unread_bytes), BARE(exits_with_threads_in_calls), BARE(left_to_a_spawned_program),
     JOINED(polls_beside_receives), JOINED(selects_beside_receives), JOINED(sets_beside_receives), JOINED(sets_beside_sets), JOINED(others_are_seen_beside_a_busy_socket), JOINED(signals_are_read_beside_a_busy_socket),
     JOINED(jumps_out_of_busy_receives), JOINED(shut_down_both_ways_with_bytes_unread))
