/* Repeats what comes, in a process that waits in an epoll set of its parent's: `inheritor PORT HOW [edges]`. HOW:
 *
 *     ends      the parent ends at once
 *     daemon    its child goes on by `daemon`
 *     calling   likewise, and the daemon makes a child that becomes another program, without the set
 *     working   likewise, and makes one that waits in the set as well, and is killed at SIGUSR1
 *     closing   the parent closes the set and lives on
 *     killed    it is killed at SIGUSR1, until then it is stopped
 *     waiting   likewise, and waits in the set as well
 *     sibling   it ends; another child of it, which is killed at SIGUSR1, waits in the set as well
 *     copying   it closes the set, but for a copy
 *     becoming  a child that has become another program has the set; the parent ends
 *     passing   it passes the set to another process, and ends
 *
 * The first process has no set: it sees to the others, and to whoever comes to be its child. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LISTENER = 1, CONNECTION = 2 };

static int listener, set;
static unsigned int edges;
/* Whom SIGUSR1 is for; seen by all. */
static volatile pid_t *victim;

static void check(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "%d: %s: %s\n", getpid(), what, strerror(errno));
    /* Nobody goes on. */
    kill(0, SIGKILL);
}

static void watch(int fd, unsigned int events, unsigned int data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};

    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

/* All that there is to be received, with edges. False at the end. */
static bool repeat(int connection)
{
    static char bytes[1 << 16];

    do {
        ssize_t got = recv(connection, bytes, sizeof bytes, MSG_DONTWAIT);

        if (got == 0)
            return false;
        if (got < 0 && errno == EAGAIN)
            return true;
        check(got > 0, "recv");
        for (ssize_t sent = 0, more; sent < got; sent += more) {
            more = send(connection, bytes + sent, got - sent, 0);
            check(more > 0, "send");
        }
    } while (edges);
    return true;
}

static void serve(void)
{
    int connection = -1;

    for (;;) {
        struct epoll_event event;

        if (epoll_wait(set, &event, 1, -1) != 1)
            continue;
        if (event.data.u64 == LISTENER) {
            connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            check(connection >= 0, "accept");
            watch(connection, EPOLLIN | edges, CONNECTION);
        } else if (event.data.u64 != CONNECTION) {
            check(false, "an event of nobody's");
        } else if (!repeat(connection)) {
            exit(0);
        }
    }
}

/* Is told of what the other process has registered, by level, and leaves it to that. */
static void wait_as_well(void)
{
    for (;;) {
        struct epoll_event event;

        check(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
        check(event.data.u64 == LISTENER || event.data.u64 == CONNECTION, "an event of nobody's");
        usleep(100);
    }
}

/* A child, which is told apart by 0. */
static pid_t begin(void)
{
    pid_t child = fork();

    check(child >= 0, "fork");
    return child;
}

/* To be killed. */
static void begin_another(void)
{
    pid_t child = begin();

    if (child == 0)
        wait_as_well();
    *victim = child;
}

static void become_another(void)
{
    execlp("sleep", "sleep", "1000", NULL);
    check(false, "execlp");
}

static void pass_set(void)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec bytes = {.iov_base = "s", .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int pair[2];

    check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    memcpy(CMSG_DATA(&control.header), &set, sizeof set);
    check(sendmsg(pair[0], &message, 0) == 1, "sendmsg");
    close(pair[0]);
    /* Who has the other end has the set. */
    if (begin() == 0) {
        close(set);
        for (;;)
            pause();
    }
}

static void be_parent(const char *how)
{
    bool is_daemon = !strcmp(how, "daemon") || !strcmp(how, "calling") || !strcmp(how, "working");

    set = epoll_create1(strcmp(how, "becoming") ? EPOLL_CLOEXEC : 0);
    watch(listener, EPOLLIN, LISTENER);
    if (!strcmp(how, "sibling"))
        begin_another();
    else if (!strcmp(how, "becoming") && begin() == 0)
        become_another();
    if (begin() == 0) {
        if (is_daemon)
            check(daemon(1, 1) == 0, "daemon");
        if (!strcmp(how, "calling") && begin() == 0)
            become_another();
        if (!strcmp(how, "working"))
            begin_another();
        serve();
    }
    if (!strcmp(how, "passing"))
        pass_set();
    if (!strcmp(how, "ends") || !strcmp(how, "sibling") || !strcmp(how, "becoming") || !strcmp(how, "passing") ||
        is_daemon)
        _exit(0);
    if (!strcmp(how, "copying"))
        check(fcntl(set, F_DUPFD_CLOEXEC, 0) >= 0, "F_DUPFD");
    if (!strcmp(how, "closing") || !strcmp(how, "copying"))
        close(set);
    else
        *victim = getpid();
    if (!strcmp(how, "waiting"))
        wait_as_well();
    for (;;)
        pause();
}

static void kill_victim(int number)
{
    (void)number;
    if (*victim > 0)
        kill(*victim, SIGKILL);
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sigaction action = {.sa_handler = kill_victim, .sa_flags = SA_RESTART};
    int one = 1;

    if (count < 3)
        return 2;
    edges = count > 3 ? EPOLLET : 0;
    victim = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, "prctl");
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    at.sin_port = htons(atoi(arguments[1]));
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0, "listen");
    if (begin() == 0)
        be_parent(arguments[2]);
    sigaction(SIGUSR1, &action, NULL);
    while (wait(NULL) > 0 || errno == EINTR)
        continue;
    return 0;
}
