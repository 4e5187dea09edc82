/* Servers and clients that register around every message: `registrations SEED SECONDS THREADS
 * [oneshot|edge|again|second|forks|nested|outer|polled]...`
 *
 * THREADS of a server share one set, as many clients connect, send and check what comes back, one to a few messages a
 * connection. So connections begin, come onto their lanes and end while their registrations change. An answer that does
 * not come is reported by the client that waits for it. */
#include "../../programs/ends.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

enum { MOST_THREADS = 8, MOST_MESSAGES = 60, MOST_BYTES = 200, PATIENCE_MS = 10000 };
static const uint64_t MARK = 0xabcdull << 32;

/* Events are armed once each; told once each; taken back and registered again around messages; registered in a second
 * set, too. The server has children, and sets that come and go; its set gets into another; is waited for through
 * another, by one-shot events, or by poll. */
static bool oneshot, edge, again, second, forks, nested, outer, polled;
static bool serves;
static int listener, set, other_set;
static unsigned seed;
static double until;
static atomic_ulong answered, failed;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    atomic_fetch_add(&failed, 1);
    if (serves)
        _exit(1);
}

/* Registers a connection, or changes what it is registered for. */
static void arm(int operation, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = MARK | (unsigned)fd};
    event.events |= (oneshot ? EPOLLONESHOT : 0) | (edge ? EPOLLET : 0);
    if (epoll_ctl(set, operation, fd, &event) == 0)
        return;
    if (operation != EPOLL_CTL_MOD || errno != ENOENT || !again || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        fail("epoll_ctl");
}

static void accept_all(void)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct epoll_event nothing = {.events = 0, .data.u64 = 1};
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (second)
            epoll_ctl(other_set, EPOLL_CTL_ADD, fd, &nothing);
        arm(EPOLL_CTL_ADD, fd);
    }
    if (oneshot) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = MARK | (unsigned)listener};
        epoll_ctl(set, EPOLL_CTL_MOD, listener, &event);
    }
}

/* Sends back what has come. */
static void answer(int fd, unsigned *random)
{
    char bytes[4096];
    bool taken_back = again && rand_r(random) % 4 == 0;
    if (taken_back && epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL))
        fail("take back");
    ssize_t count;
    while ((count = recv(fd, bytes, sizeof bytes, 0)) > 0) {
        send(fd, bytes, (size_t)count, MSG_NOSIGNAL);
        if (!edge)
            break;
    }
    bool over = count == 0 || (count < 0 && errno != EAGAIN);
    /* A child may still have it. */
    if (over && forks && !taken_back && epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL))
        fail("delete");
    if (over)
        close(fd);
    else if (again || oneshot)
        arm(EPOLL_CTL_MOD, fd);
}

/* One message there and back; false if it does not come. */
static bool exchange(int own, int fd, unsigned *random)
{
    unsigned char sent[MOST_BYTES], got[MOST_BYTES];
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    size_t size = 1 + (size_t)rand_r(random) % sizeof sent, have = 0;
    for (size_t at = 0; at < size; at++)
        sent[at] = (unsigned char)rand_r(random);
    if (epoll_wait(own, &event, 1, PATIENCE_MS) != 1)
        return fail("never writable"), false;
    if (send(fd, sent, size, MSG_NOSIGNAL) != (ssize_t)size)
        return fail("send"), false;
    event.events = EPOLLIN;
    epoll_ctl(own, EPOLL_CTL_MOD, fd, &event);
    while (have < size) {
        if (epoll_wait(own, &event, 1, PATIENCE_MS) != 1)
            return fail("no answer"), false;
        ssize_t count = recv(fd, got + have, size - have, 0);
        if (count == 0 || (count < 0 && errno != EAGAIN))
            return fail("recv"), false;
        have += count > 0 ? (size_t)count : 0;
    }
    if (memcmp(sent, got, size))
        return fail("other bytes"), false;
    event.events = EPOLLOUT;
    epoll_ctl(own, EPOLL_CTL_MOD, fd, &event);
    atomic_fetch_add(&answered, 1);
    return true;
}

/* A connection for so many messages. */
static void talk(int own, int messages, unsigned *random)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    getsockname(listener, (struct sockaddr *)&address, &size);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connect(fd, (struct sockaddr *)&address, size) && errno != EINPROGRESS)
        fail("connect");
    struct epoll_event event = {.events = EPOLLOUT, .data.fd = fd};
    epoll_ctl(own, EPOLL_CTL_ADD, fd, &event);
    while (messages-- > 0 && exchange(own, fd, random))
        ;
    if (rand_r(random) % 2)
        epoll_ctl(own, EPOLL_CTL_DEL, fd, NULL);
    close(fd);
}

static void *demand(void *number)
{
    unsigned random = seed * 77 + (unsigned)(uintptr_t)number;
    int own = epoll_create1(0);
    do
        talk(own, 1 + rand_r(&random) % MOST_MESSAGES, &random);
    while (now() < until && !atomic_load(&failed));
    close(own);
    return number;
}

/* Sets that come and go. */
static void *pass(void *nothing)
{
    struct epoll_event event = {.events = EPOLLIN};
    for (;;) {
        int passing = epoll_create1(0);
        epoll_ctl(passing, EPOLL_CTL_ADD, listener, &event);
        close(passing);
        sched_yield();
    }
    return nothing;
}

/* Children with a set and a connection of their own. */
static void *fork_often(void *nothing)
{
    int status;
    for (;;) {
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(0);
            alarm(2 * PATIENCE_MS / 1000);
            unsigned random = seed;
            talk(epoll_create1(0), 1, &random);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            fail("a child");
        sleep_ms(2);
    }
    return nothing;
}

static void *nest(void *nothing)
{
    struct epoll_event event = {.events = EPOLLIN};
    sleep_ms(200);
    if (epoll_ctl(other_set, EPOLL_CTL_ADD, set, &event))
        fail("nest");
    return nothing;
}

/* Waits for events of the server's set. */
static int wait_for(struct epoll_event *events, int room)
{
    struct epoll_event whole = {.events = EPOLLIN | EPOLLONESHOT};
    struct pollfd look = {set, POLLIN, 0};
    if (!outer && !polled)
        return epoll_wait(set, events, room, -1);
    if (outer)
        epoll_wait(other_set, &whole, 1, -1);
    else
        poll(&look, 1, -1);
    int count = epoll_wait(set, events, room, 0);
    whole.events = EPOLLIN | EPOLLONESHOT;
    if (outer && epoll_ctl(other_set, EPOLL_CTL_MOD, set, &whole))
        fail("arm the outer set");
    return count;
}

static void *serve(void *number)
{
    unsigned random = seed * 31 + (unsigned)(uintptr_t)number;
    struct epoll_event events[4];
    for (;;) {
        int count = wait_for(events, oneshot ? 4 : 1);
        for (int index = 0; index < count; index++) {
            int fd = (int)events[index].data.u32;
            if ((events[index].data.u64 & ~0xffffffffull) != MARK) {
                errno = 0;
                fail("an event with other data");
            }
            if (fd == listener)
                accept_all();
            else
                answer(fd, &random);
        }
    }
    return number;
}

/* Runs as many at once. */
static void run(void *(*work)(void *), int count)
{
    pthread_t thread[MOST_THREADS];
    for (int index = 1; index < count; index++)
        thread[index] = in_thread(work, (void *)(uintptr_t)index);
    work((void *)0);
    for (int index = 1; index < count; index++)
        pthread_join(thread[index], NULL);
}

int main(int count, char **arguments)
{
    seed = (unsigned)atoi(arguments[1]);
    int threads = atoi(arguments[3]);
    for (int index = 4; index < count; index++) {
        oneshot |= !strcmp(arguments[index], "oneshot");
        edge |= !strcmp(arguments[index], "edge");
        again |= !strcmp(arguments[index], "again");
        forks |= !strcmp(arguments[index], "forks");
        nested |= !strcmp(arguments[index], "nested");
        outer |= !strcmp(arguments[index], "outer");
        polled |= !strcmp(arguments[index], "polled");
        second |= !strcmp(arguments[index], "second");
    }
    /* Without it, two threads would be told of one message. */
    if (threads > MOST_THREADS || (threads > 1 && !oneshot))
        return 2;
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 512))
        return perror("listen"), 1;
    pid_t server = fork();
    if (server < 0)
        return perror("fork"), 1;
    if (server == 0) {
        serves = true;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        set = epoll_create1(0);
        other_set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN | (oneshot ? EPOLLONESHOT : 0), .data.u64 = MARK | (unsigned)listener};
        epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
        event.events = EPOLLIN | EPOLLONESHOT;
        if (outer && epoll_ctl(other_set, EPOLL_CTL_ADD, set, &event))
            fail("put into the outer set");
        if (nested)
            in_thread(nest, NULL);
        if (forks) {
            in_thread(pass, NULL);
            in_thread(fork_often, NULL);
        }
        run(serve, threads);
    }
    until = now() + atof(arguments[2]);
    run(demand, threads);
    printf("%lu messages answered\n", (unsigned long)answered);
    if (waitpid(server, NULL, WNOHANG) != 0)
        return 1;
    kill(server, SIGKILL);
    return failed ? 1 : 0;
}
