/* What viaduct_msg_send(3), viaduct_msg_recv(3) and viaduct_inbox_open(3) say of errors, each of them once. */
#include "check.h"

#include <limits.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <viaduct.h>

/* As large as a number can be, and the least that no slice of memory has. */
static const size_t largest = SIZE_MAX, too_large = (size_t)SSIZE_MAX + 1;

/* A descriptor that was open. */
static int closed_number(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

static void sends_are_refused(void)
{
    struct pair p = connect_pair(), other = connect_pair(), reused = connect_pair();
    int ends[2], unconnected = socket(AF_UNIX, SOCK_STREAM, 0), fresh = socket(AF_INET, SOCK_STREAM, 0);
    int datagrams[2], packets[2], streams[2], udp = socket(AF_INET, SOCK_DGRAM, 0), peer = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    char byte = 'x';

    EXPECT(pipe(ends) == 0 && unconnected >= 0 && fresh >= 0 && udp >= 0 && peer >= 0);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, streams) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams) == 0);
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets) == 0);
    EXPECT(bind(peer, (struct sockaddr *)&address, size) == 0);
    EXPECT(getsockname(peer, (struct sockaddr *)&address, &size) == 0);
    EXPECT_ERROR(viaduct_msg_send(udp, 1, &byte, 1), EOPNOTSUPP);
    EXPECT(connect(udp, (struct sockaddr *)&address, size) == 0);
    /* Each would be cut into packets. */
    EXPECT_ERROR(viaduct_msg_send(udp, 1, &byte, 1), EOPNOTSUPP);
    EXPECT_ERROR(viaduct_msg_send(datagrams[0], 1, &byte, 1), EOPNOTSUPP);
    EXPECT_ERROR(viaduct_msg_send(packets[0], 1, &byte, 1), EOPNOTSUPP);
    /* A number that was a stream's. */
    EXPECT(viaduct_msg_send(reused.near, 1, &byte, 1) == 0 && dup2(udp, reused.near) == reused.near);
    EXPECT_ERROR(viaduct_msg_send(reused.near, 1, &byte, 1), EOPNOTSUPP);
    EXPECT(dup2(streams[0], reused.near) == reused.near);
    for (int times = 0; times < 3; times++)
        EXPECT(viaduct_msg_send(reused.near, 1, &byte, 1) == 0);
    EXPECT_ERROR(recv(peer, &byte, 1, MSG_DONTWAIT), EAGAIN);
    EXPECT_ERROR(recv(datagrams[1], &byte, 1, MSG_DONTWAIT), EAGAIN);
    EXPECT_ERROR(recv(packets[1], &byte, 1, MSG_DONTWAIT), EAGAIN);
    EXPECT_ERROR(viaduct_msg_send(-1, 1, &byte, 1), EBADF);
    EXPECT_ERROR(viaduct_msg_send(closed_number(), 1, &byte, 1), EBADF);
    EXPECT_ERROR(viaduct_msg_send(p.near, 1, NULL, 1), EFAULT);
    EXPECT_ERROR(viaduct_msg_send(p.near, 1, &byte, (size_t)1 << 32), EMSGSIZE);
    EXPECT_ERROR(viaduct_msg_send(p.near, 1, &byte, too_large), EMSGSIZE);
    EXPECT_ERROR(viaduct_msg_send(p.near, 1, &byte, largest), EMSGSIZE);
    EXPECT_ERROR(viaduct_msg_send(ends[1], 1, &byte, 1), ENOTSOCK);
    EXPECT_ERROR(viaduct_msg_send(unconnected, 1, &byte, 1), ENOTCONN);
    EXPECT_ERROR(viaduct_msg_send(fresh, 1, &byte, 1), ENOTCONN);
    /* Nothing of these was sent. */
    EXPECT(viaduct_msg_send(p.near, 1, NULL, 0) == 0);
    settle();
    EXPECT(viaduct_readable(p.far) == 12);
    /* No SIGPIPE, which would end the program. */
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    EXPECT_ERROR(viaduct_msg_send(p.near, 1, &byte, 1), EPIPE);
    reset(other.near);
    settle();
    EXPECT_ERROR(viaduct_msg_send(other.far, 1, &byte, 1), ECONNRESET);
    /* It had a connection. */
    EXPECT_ERROR(viaduct_msg_send(other.far, 1, &byte, 1), EPIPE);
    close(other.far);
    close_pair(p);
    for (int end = 0; end < 2; end++) {
        close(datagrams[end]);
        close(packets[end]);
        close(streams[end]);
    }
    close_pair(reused);
    close(udp);
    close(peer);
    close(ends[0]);
    close(ends[1]);
    close(unconnected);
    close(fresh);
}

static void inboxes_refuse(void)
{
    struct pair p = connect_pair();
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    int ends[2], udp = socket(AF_INET, SOCK_DGRAM, 0), fresh = socket(AF_INET, SOCK_STREAM, 0), packets[2];
    int lonely = socket(AF_UNIX, SOCK_STREAM, 0), left[2];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct rlimit before, none;

    EXPECT(inbox && pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets) == 0);
    EXPECT_ERROR(viaduct_inbox_add(inbox, -1), EBADF);
    EXPECT_ERROR(viaduct_inbox_add(inbox, closed_number()), EBADF);
    EXPECT_ERROR(viaduct_inbox_add(inbox, ends[0]), ENOTSOCK);
    EXPECT_ERROR(viaduct_inbox_add(inbox, fresh), ENOTCONN);
    EXPECT_ERROR(viaduct_inbox_add(inbox, lonely), ENOTCONN);
    EXPECT(bind(lonely, (struct sockaddr *)&address, sizeof(sa_family_t)) == 0 && listen(lonely, 1) == 0);
    EXPECT_ERROR(viaduct_inbox_add(inbox, lonely), ENOTCONN);
    EXPECT_ERROR(viaduct_inbox_add(inbox, udp), EOPNOTSUPP);
    EXPECT_ERROR(viaduct_inbox_add(inbox, packets[0]), EOPNOTSUPP);
    EXPECT_ERROR(viaduct_inbox_add(NULL, p.far), EINVAL);
    EXPECT_ERROR(viaduct_inbox_remove(NULL, 0), EINVAL);
    EXPECT_ERROR(viaduct_inbox_remove(inbox, 0), EINVAL);
    EXPECT_ERROR(viaduct_inbox_remove(inbox, -1), EINVAL);
    EXPECT_ERROR(viaduct_inbox_fd(NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_cancel(NULL), EINVAL);
    /* None of them was added. */
    EXPECT(viaduct_inbox_add(inbox, p.far) == 0);
    EXPECT(viaduct_inbox_remove(inbox, 0) == 0);
    EXPECT_ERROR(viaduct_inbox_remove(inbox, 0), EINVAL);
    EXPECT(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    /* All below are open; a limit of three the kernel would call invalid. */
    none.rlim_cur = 4;
    EXPECT(setrlimit(RLIMIT_NOFILE, &none) == 0);
    EXPECT_ERROR(viaduct_inbox_open(0, 0) ? 0 : -1, EMFILE);
    EXPECT_ERROR(viaduct_inbox_add(inbox, p.far), EMFILE);
    EXPECT(setrlimit(RLIMIT_NOFILE, &before) == 0);
    EXPECT(viaduct_inbox_add(inbox, p.far) == 1);
    /* What came before the end of a connection is to be had after it. */
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, left) == 0 && viaduct_msg_send(left[0], 1, NULL, 0) == 0);
    close(left[0]);
    EXPECT(viaduct_inbox_add(inbox, left[1]) == 2 && viaduct_msg_probe(inbox, 1, 2, 1000, NULL) == 0);
    close(left[1]);
    close(lonely);
    viaduct_inbox_close(inbox);
    viaduct_inbox_close(NULL);
    close_pair(p);
    close(ends[0]);
    close(ends[1]);
    close(udp);
    close(fresh);
    close(packets[0]);
    close(packets[1]);
}

static void *receive_a_byte(void *argument)
{
    char byte;

    return recv(*(int *)argument, &byte, 1, 0) == 1 ? NULL : argument;
}

/* Under `viaduct run`, without a lane: another thread is inside a receive. */
static void busy_sockets_are_refused(void)
{
    const char *path = getenv("VIADUCT_PATH");
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    struct pair p = connect_pair();
    pid_t tid;
    pthread_t thread = in_sleeping_thread(receive_a_byte, &p.far, &tid);
    void *failed;

    EXPECT(inbox);
    if (path && !strcmp(path, "tcp"))
        EXPECT_ERROR(viaduct_inbox_add(inbox, p.far), EBUSY);
    EXPECT(send(p.near, "x", 1, 0) == 1);
    pthread_join(thread, &failed);
    EXPECT(!failed && viaduct_inbox_add(inbox, p.far) == 0);
    viaduct_inbox_close(inbox);
    close_pair(p);
}

static void receives_are_refused(void)
{
    struct pair p = connect_pair();
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    struct viaduct_msg info = {9, 9, 9};
    char bytes[8] = "";

    EXPECT(inbox);
    EXPECT_ERROR(viaduct_msg_recv(inbox, VIADUCT_ANY, VIADUCT_ANY, bytes, 8, 1000, NULL), ENOTCONN);
    EXPECT(viaduct_inbox_add(inbox, p.far) == 0 && viaduct_msg_send(p.near, 7, "payload", 7) == 0);
    EXPECT_ERROR(viaduct_msg_recv(NULL, 7, 0, bytes, 8, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_probe(NULL, 7, 0, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_recv(inbox, -2, 0, bytes, 8, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_recv(inbox, (int64_t)1 << 32, 0, bytes, 8, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_probe(inbox, INT64_MIN, 0, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 7, -2, bytes, 8, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 7, 1, bytes, 8, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_probe(inbox, 7, INT32_MAX, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 7, 0, NULL, 8, 1000, NULL), EFAULT);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 7, 0, bytes, too_large, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 7, 0, bytes, largest, 1000, NULL), EINVAL);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 7, 0, bytes, 6, 1000, &info), EMSGSIZE);
    EXPECT(info.len == 7 && info.source == -1);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 7, 0, NULL, 0, 1000, &info), EMSGSIZE);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 8, 0, bytes, 8, 10, &info), ETIMEDOUT);
    EXPECT(info.source == -1 && info.len == 0);
    EXPECT_ERROR(viaduct_msg_probe(inbox, 8, 0, 0, NULL), ETIMEDOUT);
    /* It is still there. */
    EXPECT(viaduct_msg_probe(inbox, 7, VIADUCT_ANY, 1000, &info) == 7);
    EXPECT(info.tag == 7 && info.source == 0 && info.len == 7);
    EXPECT(viaduct_msg_recv(inbox, 7, 0, bytes, 7, 1000, NULL) == 7 && !memcmp(bytes, "payload", 8));
    shutdown(p.near, SHUT_WR);
    EXPECT_ERROR(viaduct_msg_recv(inbox, VIADUCT_ANY, 0, bytes, 8, 1000, NULL), ENOTCONN);
    viaduct_inbox_close(inbox);
    close_pair(p);
}

/* A call that waits for a message that never comes. */
struct waiter {
    viaduct_inbox *inbox;
    volatile int error;
    struct viaduct_msg info;
};

static void *wait_for_nothing(void *argument)
{
    struct waiter *waiter = argument;
    ssize_t got = viaduct_msg_recv(waiter->inbox, 99, VIADUCT_ANY, NULL, 0, -1, &waiter->info);

    waiter->error = got < 0 ? errno : -1;
    return NULL;
}

static volatile sig_atomic_t caught;

static void catch(int number)
{
    (void)number;
    caught++;
}

static void waits_end(void)
{
    struct pair p = connect_pair();
    struct waiter waiter = {viaduct_inbox_open(0, 0), 0, {0, 0, 0}};
    struct sigaction action = {.sa_handler = catch, .sa_flags = SA_RESTART};
    pthread_t thread;
    pid_t tid;

    EXPECT(waiter.inbox && viaduct_inbox_add(waiter.inbox, p.far) == 0);
    thread = in_sleeping_thread(wait_for_nothing, &waiter, &tid);
    EXPECT(viaduct_msg_cancel(waiter.inbox) == 0);
    pthread_join(thread, NULL);
    EXPECT(waiter.error == ECANCELED && waiter.info.source == -1);
    /* A handler that asks for calls to be restarted, too: the program may want to act on what it did. */
    sigaction(SIGUSR1, &action, NULL);
    waiter.error = 0;
    thread = in_sleeping_thread(wait_for_nothing, &waiter, &tid);
    /* It sleeps, but for moments between one sleep and the next. */
    for (int tries = 0; tries < 20 && !waiter.error; tries++) {
        EXPECT(pthread_kill(thread, SIGUSR1) == 0);
        falls_asleep(tid);
    }
    pthread_join(thread, NULL);
    EXPECT(caught > 0 && caught < 4 && waiter.error == EINTR && waiter.info.source == -1);
    /* A source that is taken out is none to wait for. */
    thread = in_sleeping_thread(wait_for_nothing, &waiter, &tid);
    EXPECT(viaduct_inbox_remove(waiter.inbox, 0) == 0);
    pthread_join(thread, NULL);
    EXPECT(waiter.error == ENOTCONN);
    viaduct_inbox_close(waiter.inbox);
    close_pair(p);
}

/* What is wrong with a source: `bytes` come, and perhaps the end of the stream. */
static int told(const void *bytes, size_t count, int ends, size_t *len)
{
    struct pair p = connect_pair(), other = connect_pair();
    viaduct_inbox *inbox = viaduct_inbox_open(1000, 0);
    struct viaduct_msg info = {0, -1, 0};
    int error = 0;

    viaduct_inbox_add(inbox, other.far);
    viaduct_inbox_add(inbox, p.far);
    send_all(p.near, bytes, count);
    if (ends)
        shutdown(p.near, SHUT_WR);
    if (viaduct_msg_recv(inbox, VIADUCT_ANY, VIADUCT_ANY, NULL, 0, 5000, &info) < 0 && info.source == 1)
        error = errno;
    *len = info.len;
    /* Told once to those who want any, and each time to those who want this one; the other goes on. */
    if (viaduct_msg_recv(inbox, VIADUCT_ANY, VIADUCT_ANY, NULL, 0, 10, NULL) >= 0 || errno != ETIMEDOUT)
        error = -1;
    for (int times = 0; times < 2; times++)
        if (viaduct_msg_probe(inbox, 5, 1, 5000, NULL) >= 0 || errno != error)
            error = -1;
    viaduct_msg_send(other.near, 5, NULL, 0);
    if (viaduct_msg_recv(inbox, 5, VIADUCT_ANY, NULL, 0, 5000, &info) != 0 || info.source != 0)
        error = -1;
    viaduct_inbox_close(inbox);
    close_pair(p);
    close_pair(other);
    return error;
}

static void sources_break(void)
{
    struct pair p;
    viaduct_inbox *inbox;
    struct viaduct_msg info = {0, -1, 0};
    size_t len;

    EXPECT(told("GET / HTTP/1.1\r\n", 16, 0, &len) == EBADMSG && len == 0);
    EXPECT(told("VMSG\1\0\0\0\351\3\0\0", 12, 0, &len) == EOVERFLOW && len == 1001);
    EXPECT(told("VMSG\1\0\0\0\5\0\0\0abc", 15, 1, &len) == EPROTO && len == 0);
    EXPECT(told("VMSG\1\0", 6, 1, &len) == EPROTO);
    p = connect_pair();
    inbox = viaduct_inbox_open(0, 0);
    EXPECT(inbox && viaduct_inbox_add(inbox, p.far) == 0);
    reset(p.near);
    EXPECT_ERROR(viaduct_msg_recv(inbox, VIADUCT_ANY, VIADUCT_ANY, NULL, 0, 5000, &info), ECONNRESET);
    EXPECT(info.source == 0);
    viaduct_inbox_close(inbox);
    close(p.far);
}

/* What is taken out of an inbox stays in its socket, frames and all. */
static void a_removed_source_keeps_its_bytes(void)
{
    struct pair p = connect_pair();
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    char bytes[64];

    EXPECT(inbox && viaduct_inbox_add(inbox, p.far) == 0);
    EXPECT(viaduct_msg_send(p.near, 1, "one", 3) == 0 && viaduct_msg_send(p.near, 2, "two", 3) == 0);
    EXPECT(viaduct_msg_recv(inbox, 2, 0, bytes, sizeof bytes, 5000, NULL) == 3 && !memcmp(bytes, "two", 3));
    EXPECT(viaduct_inbox_remove(inbox, 0) == 0);
    EXPECT_ERROR(viaduct_msg_recv(inbox, 1, 0, bytes, sizeof bytes, 1000, NULL), EINVAL);
    EXPECT(viaduct_seek_recv(p.far, bytes, sizeof bytes, 0, 0) == 15);
    EXPECT(!memcmp(bytes, "VMSG\1\0\0\0\3\0\0\0one", 15));
    /* Numbers are not used again. */
    EXPECT(viaduct_inbox_add(inbox, p.far) == 1);
    viaduct_inbox_close(inbox);
    close_pair(p);
}

/* 2048 connections can be searched at a time. */
static void too_many_sources_are_refused(void)
{
    enum { most = 2048 };
    static struct pair pairs[most + 1];
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    struct rlimit limit;

    EXPECT(inbox && getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_max < 4 * most) {
        printf("# no more than %lu descriptors\n", (unsigned long)limit.rlim_max);
        return;
    }
    limit.rlim_cur = limit.rlim_max < 8 * most ? limit.rlim_max : 8 * most;
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 8) == 0);
    EXPECT(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    for (int index = 0; index <= most; index++) {
        struct pair *p = &pairs[index];

        p->near = socket(AF_INET, SOCK_STREAM, 0);
        EXPECT(connect(p->near, (struct sockaddr *)&address, size) == 0);
        EXPECT((p->far = accept(listener, NULL, NULL)) >= 0);
        if (index < most)
            EXPECT(viaduct_inbox_add(inbox, p->far) == index);
    }
    EXPECT_ERROR(viaduct_inbox_add(inbox, pairs[most].far), ENOBUFS);
    viaduct_inbox_close(inbox);
    for (int index = 0; index <= most; index++)
        close_pair(pairs[index]);
    close(listener);
}

static const struct check checks[] = {
    {"sends_are_refused", sends_are_refused},
    {"inboxes_refuse", inboxes_refuse},
    {"busy_sockets_are_refused", busy_sockets_are_refused},
    {"receives_are_refused", receives_are_refused},
    {"waits_end", waits_end},
    {"sources_break", sources_break},
    {"a_removed_source_keeps_its_bytes", a_removed_source_keeps_its_bytes},
    {"too_many_sources_are_refused", too_many_sources_are_refused},
};

int main(int argc, char **argv)
{
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
