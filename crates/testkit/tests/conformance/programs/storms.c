/* Much at once: forks, execs, signals and threads while bytes go to and fro. */
#include "play.h"
#include <sys/epoll.h>
#include <sys/time.h>

extern char **environ;

static volatile int on;

static void *echo(void *fd)
{
    char bytes[64];
    ssize_t got;

    while ((got = recv(*(int *)fd, bytes, sizeof bytes, 0)) != 0)
        if (got > 0 && !send_all(*(int *)fd, bytes, (size_t)got))
            break;
    return NULL;
}

/* Sends and has it come back until `seconds` are over; then ends the stream. */
static void call_and_answer(double seconds)
{
    int rounds = 0;
    char bytes[33];

    for (double until = now() + seconds; now() < until; rounds++) {
        size_t length = (size_t)(rounds % 32 + 1);
        memset(bytes, rounds, length);
        if (!send_all(s, bytes, length) || !receive_all(s, bytes, length) || bytes[length - 1] != (char)rounds) {
            say("round %d: %s", rounds, strerrorname_np(errno));
            break;
        }
    }
    say("many %d", rounds > 50);
    R(shutdown(s, SHUT_WR));
    GET(s, 1, 0);
}

static void children_come_and_go(void)
{
    if (is_near)
        call_and_answer(0.6);
    else {
        pthread_t thread = in_thread(echo, &s);
        double until = now() + 0.5;
        for (int round = 0; now() < until; round++) {
            pid_t child = fork();
            if (child == 0) {
                if (round % 3 == 0)
                    exit(0);
                if (round % 3 == 1)
                    close(s);
                _exit(0);
            }
            waitpid(child, NULL, 0);
        }
        pthread_join(thread, NULL);
        R(close(s));
    }
    step();
}

static void programs_come_and_go(void)
{
    static char *const program[] = {"/bin/true", NULL};

    if (is_near)
        call_and_answer(0.6);
    else {
        pthread_t thread = in_thread(echo, &s);
        double until = now() + 0.5;
        while (now() < until) {
            pid_t child = vfork();
            if (child == 0) {
                execve(program[0], program, environ);
                _exit(127);
            }
            waitpid(child, NULL, 0);
        }
        pthread_join(thread, NULL);
        R(close(s));
    }
    step();
}

static int other;

static void send_elsewhere(int number)
{
    int saved = errno;

    (void)number;
    send(other, "h", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    errno = saved;
}

static void send_here_too(int number)
{
    char bytes[8];
    int saved = errno;

    (void)number;
    /* Nothing is ever there; the call must not disturb the one that it interrupts. */
    recv(other, bytes, sizeof bytes, MSG_DONTWAIT);
    errno = saved;
}

static void handlers_run_all_the_time(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    char bytes[4096];

    other = join();
    if (is_near) {
        call_and_answer(0.6);
        while (recv(other, bytes, sizeof bytes, 0) > 0)
            ;
    } else {
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &often, NULL);
        echo(&s);
        setitimer(ITIMER_REAL, &never, NULL);
        alarm(PATIENCE_S);
        R(close(s));
        R(close(other));
    }
    step();
}

static void handlers_send_all_the_time(void)
{
    handlers_run_all_the_time(send_elsewhere);
}

static void handlers_receive_all_the_time(void)
{
    handlers_run_all_the_time(send_here_too);
}

static volatile long handled, by_handlers, refused;

static void receive_here(int number)
{
    unsigned char byte;
    int saved = errno;
    ssize_t got = recv(s, &byte, 1, 0);

    (void)number;
    if (got > 0)
        by_handlers += byte;
    handled++;
    refused += got < 0;
    errno = saved;
}

/* Handlers interrupt receives of the stream that they receive from themselves, and wait as these do. Those that come
 * while bytes are being received or looked for may be refused, but not most of them. */
static void handlers_receive_the_same(void)
{
    struct sigaction action = {.sa_handler = receive_here, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    unsigned char byte = 0;
    long sum = 0;

    if (is_near) {
        for (double until = now() + 0.5; now() < until; byte++) {
            sum += byte;
            if (!send_all(s, &byte, 1))
                break;
            /* Soon enough for a receiver that polls. */
            for (double next = now() + byte % 4 * 5e-6; now() < next;)
                ;
        }
        tell((int)sum);
        R(shutdown(s, SHUT_WR));
        GET(s, 1, 0);
    } else {
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &often, NULL);
        while (recv(s, &byte, 1, 0) > 0)
            sum += byte;
        setitimer(ITIMER_REAL, &never, NULL);
        signal(SIGALRM, SIG_DFL);
        alarm(PATIENCE_S);
        say("most refused %d, missing %ld", refused * 4 > handled * 3, (long)ask() - sum - by_handlers);
        R(close(s));
    }
    step();
}

static void close_other(int number)
{
    (void)number;
    close(other);
}

/* A handler closes the connection that the call it interrupts waits for. It may come while that call has something of
 * the library's in its hands, which then looks like a reset. */
static void handlers_close_under_receives(void)
{
    struct sigaction action = {.sa_handler = close_other, .sa_flags = SA_RESTART}, before;
    struct itimerval soon = {{0, 0}, {0, 0}};
    int wrong = 0;
    char byte;

    for (int round = 0; round < 30; round++) {
        int fd = other = join();
        if (is_near) {
            ssize_t got = recv(fd, &byte, 1, 0);
            wrong += got != 0 && !(got == -1 && errno == ECONNRESET);
            close(fd);
        } else {
            sigaction(SIGALRM, &action, &before);
            soon.it_value.tv_usec = 10 + round * 7;
            setitimer(ITIMER_REAL, &soon, NULL);
            wrong += recv(fd, &byte, 1, 0) != -1 || errno != EBADF;
            sigaction(SIGALRM, &before, NULL);
            alarm(PATIENCE_S);
        }
        step();
    }
    say("wrong %d", wrong);
    step();
}

enum { POOL = 3, CONNECTIONS = 6, ROUNDS = 200 };

static int set;

static void *serve_from_pool(void *unused)
{
    struct epoll_event event;
    char byte;

    while (on) {
        if (epoll_wait(set, &event, 1, 20) != 1)
            continue;
        while (recv(event.data.fd, &byte, 1, MSG_DONTWAIT) == 1)
            send_all(event.data.fd, &byte, 1);
        event.events = EPOLLIN | EPOLLONESHOT;
        epoll_ctl(set, EPOLL_CTL_MOD, event.data.fd, &event);
    }
    return unused;
}

/* Threads of a pool take turns in serving connections, each event going to one of them. */
static void pool_of_threads(void)
{
    int fds[CONNECTIONS], wrong = 0;
    pthread_t threads[POOL];
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
    char byte;

    for (int index = 0; index < CONNECTIONS; index++)
        fds[index] = join();
    if (!is_near) {
        set = epoll_create1(0);
        for (int index = 0; index < CONNECTIONS; index++) {
            event.data.fd = fds[index];
            epoll_ctl(set, EPOLL_CTL_ADD, fds[index], &event);
        }
        on = 1;
        for (int index = 0; index < POOL; index++)
            threads[index] = in_thread(serve_from_pool, NULL);
    }
    NEAR(for (int round = 0; round < ROUNDS; round++) {
        for (int index = 0; index < CONNECTIONS; index++)
            wrong += !send_all(fds[index], &(char){(char)(round + index)}, 1);
        for (int index = 0; index < CONNECTIONS; index++)
            wrong += !receive_all(fds[index], &byte, 1) || byte != (char)(round + index);
    });
    if (!is_near) {
        on = 0;
        for (int index = 0; index < POOL; index++)
            pthread_join(threads[index], NULL);
    }
    say("wrong %d", wrong);
    step();
}

static void *cancel_me(void *fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd wait = {*(int *)fd, POLLIN, 0};
    char byte;

    for (int round = 0;; round++) {
        if (round % 3 == 0)
            epoll_wait(set, &event, 1, 1);
        else if (round % 3 == 1)
            poll(&wait, 1, 1);
        else
            recv(*(int *)fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    }
    return NULL;
}

/* Threads that only look are cancelled in whatever they do; who serves the connection goes on. */
static void lookers_come_and_go(void)
{
    if (is_near)
        call_and_answer(0.6);
    else {
        struct epoll_event event = {.events = EPOLLIN};
        pthread_t thread = in_thread(echo, &s);
        double until = now() + 0.5;
        int ended = 0;
        set = epoll_create1(0);
        epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
        for (int round = 0; now() < until; round++) {
            pthread_t looker = in_thread(cancel_me, &s);
            void *result;
            usleep((useconds_t)(round % 7 * 300));
            pthread_cancel(looker);
            pthread_join(looker, &result);
            ended += result == PTHREAD_CANCELED;
        }
        say("cancelled %d", ended > 10);
        pthread_join(thread, NULL);
        R(close(s));
    }
    step();
}

MAIN(JOINED(children_come_and_go), JOINED(programs_come_and_go), JOINED(handlers_send_all_the_time),
     JOINED(handlers_receive_all_the_time), JOINED(handlers_receive_the_same), BARE(handlers_close_under_receives),
     BARE(pool_of_threads), JOINED(lookers_come_and_go))
