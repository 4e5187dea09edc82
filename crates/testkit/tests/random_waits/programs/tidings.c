/* What waits tell of connections that have just begun, and of such as end: `tidings SEED SECONDS echoes|ends`
 *
 * echoes: a thread sends while another waits and takes what comes back, without waiting in the call that takes it. What
 * poll and select call readable must be: bytes or the end. ends:   a server waits, level-triggered, for bytes, room and
 * the end, while its client and often itself close their directions. The end is readable, so it is never told of
 * without EPOLLIN. */
#include "../../programs/ends.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>

enum { CLIENTS = 6, PIECES = 60, PIECE = 50000, WORDS = 20, PATIENCE_MS = 10000 };

static bool ends;
static int listener;
static struct sockaddr_in address;
static unsigned seed;
static double until;
static atomic_ulong connections, failed;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    atomic_fetch_add(&failed, 1);
}

/* Sends back all that comes. */
static void *echo(void *argument)
{
    int fd = (int)(intptr_t)argument;
    static _Thread_local char bytes[70000];
    ssize_t taken;
    while ((taken = recv(fd, bytes, sizeof bytes, 0)) > 0)
        if (!send_all(fd, bytes, (size_t)taken))
            break;
    close(fd);
    return NULL;
}

/* Waits until the connection ends, and checks each thing that it is told. */
static void watch(int fd, bool closes)
{
    char bytes[65536];
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT, .data.fd = fd};
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    for (;;) {
        if (epoll_wait(set, &event, 1, PATIENCE_MS) != 1) {
            fail("no event");
            break;
        }
        if (event.events & (EPOLLRDHUP | EPOLLHUP) && !(event.events & EPOLLIN)) {
            fprintf(stderr, "events %#x without EPOLLIN\n", event.events);
            atomic_fetch_add(&failed, 1);
        }
        if (closes)
            shutdown(fd, SHUT_WR);
        closes = false;
        if (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) == 0)
            break;
    }
    close(set);
    close(fd);
}

static void serve(void)
{
    int one = 1;
    for (unsigned number = seed;; number++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (ends)
            watch(fd, number % 2);
        else
            pthread_detach(in_thread(echo, (void *)(intptr_t)fd));
        if (failed)
            _exit(1);
    }
}

static int connected(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void *send_pieces(void *argument)
{
    int fd = (int)(intptr_t)argument;
    static const char bytes[PIECE];
    for (int piece = 0; piece < PIECES; piece++)
        if (!send_all(fd, bytes, sizeof bytes))
            fail("send");
    shutdown(fd, SHUT_WR);
    return NULL;
}

static bool is_readable(int fd, bool by_poll)
{
    if (by_poll) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        return poll(&entry, 1, PATIENCE_MS) == 1;
    }
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval time = {.tv_sec = PATIENCE_MS / 1000};
    return select(fd + 1, &set, NULL, NULL, &time) == 1;
}

/* Has its bytes come back. */
static void ask_for_echoes(bool by_poll)
{
    static _Thread_local char bytes[65536];
    int fd = connected();
    pthread_t sender = in_thread(send_pieces, (void *)(intptr_t)fd);
    size_t received = 0;
    for (ssize_t taken = 1; taken != 0; received += (size_t)taken) {
        if (!is_readable(fd, by_poll)) {
            fail("nothing comes");
            break;
        }
        taken = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (taken < 0) {
            fail(by_poll ? "recv after poll" : "recv after select");
            taken = 0;
            break;
        }
    }
    pthread_join(sender, NULL);
    if (received != (size_t)PIECES * PIECE)
        fail("the echo's length");
    close(fd);
}

/* Sends a few words, closes its direction, and waits for the end. */
static void say_words(unsigned *random)
{
    char bytes[64];
    int fd = connected();
    for (int word = 0; word < WORDS; word++) {
        send(fd, "hello", 5, MSG_NOSIGNAL);
        double next = now() + (double)(rand_r(random) % 30) * 1e-6;
        while (now() < next)
            ;
    }
    send(fd, "last", 4, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        ;
    close(fd);
}

static void *demand(void *argument)
{
    unsigned random = seed + (unsigned)(uintptr_t)argument;
    while (now() < until && !failed) {
        unsigned long number = atomic_fetch_add(&connections, 1);
        if (ends)
            say_words(&random);
        else
            ask_for_echoes(number % 2);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    seed = (unsigned)atoi(arguments[1]);
    ends = !strcmp(arguments[3], "ends");
    signal(SIGPIPE, SIG_IGN);
    socklen_t length = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 512)
        || getsockname(listener, (struct sockaddr *)&address, &length))
        return perror("listen"), 1;
    pid_t server = fork();
    if (server < 0)
        return perror("fork"), 1;
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve();
    }
    until = now() + atof(arguments[2]);
    pthread_t thread[CLIENTS];
    int clients = ends ? 1 : CLIENTS;
    for (int index = 0; index < clients; index++)
        thread[index] = in_thread(demand, (void *)(uintptr_t)index);
    for (int index = 0; index < clients; index++)
        pthread_join(thread[index], NULL);
    printf("%lu connections\n", (unsigned long)connections);
    if (waitpid(server, NULL, WNOHANG) != 0)
        return fprintf(stderr, "the server has failed\n"), 1;
    kill(server, SIGKILL);
    return failed ? 1 : 0;
}
