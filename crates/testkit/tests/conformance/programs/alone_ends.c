/* How connections end, by one program with both ends. */
#include "check.h"
#include <sys/epoll.h>

static volatile sig_atomic_t caught;

static void count_signal(int number)
{
    (void)number;
    caught++;
}

static void half_closed(void)
{
    struct pair p = make_pair();
    char bytes[8];

    EXPECT(send(p.near, "last", 4, 0) == 4);
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    EXPECT(receive_all(p.far, bytes, 4) && !memcmp(bytes, "last", 4));
    EXPECT(recv(p.far, bytes, 8, 0) == 0);
    EXPECT(recv(p.far, bytes, 8, 0) == 0);
    EXPECT(send(p.far, "answer", 6, 0) == 6);
    EXPECT(receive_all(p.near, bytes, 6) && !memcmp(bytes, "answer", 6));
    EXPECT_ERROR(send(p.near, "x", 1, MSG_NOSIGNAL), EPIPE);
    EXPECT(close(p.far) == 0);
    EXPECT(recv(p.near, bytes, 8, 0) == 0);
    close(p.near);
}

static void all_bytes_before_the_end(void)
{
    struct pair p = make_pair();
    static char bytes[100000], copy[100000];

    for (size_t at = 0; at < sizeof bytes; at++)
        bytes[at] = (char)pattern(at);
    EXPECT(send_all(p.near, bytes, sizeof bytes));
    EXPECT(close(p.near) == 0);
    sleep_ms(20);
    EXPECT(receive_all(p.far, copy, sizeof copy));
    EXPECT(!memcmp(bytes, copy, sizeof copy));
    EXPECT(recv(p.far, copy, 1, 0) == 0);
    close(p.far);
}

/* Until the kernel of this end knows. */
static void await_end(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    while (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == TCP_ESTABLISHED)
        ;
}

/* Also to who has found nothing a moment before, and to waits that have something else to tell. */
static void the_end_is_seen_at_once(void)
{
    char bytes[8];

    for (int round = 0; round < 8; round++) {
        struct pair p = make_pair();
        struct pollfd entry = {p.far, POLLIN | POLLOUT | POLLRDHUP, 0};
        bool polls = round & 1, closes = round & 2;

        EXPECT(fcntl(p.far, F_SETFL, O_NONBLOCK) == 0);
        EXPECT_ERROR(recv(p.far, bytes, 8, 0), EAGAIN);
        EXPECT(!polls || (poll(&entry, 1, 0) == 1 && entry.revents == POLLOUT));
        EXPECT((closes ? close(p.near) : shutdown(p.near, SHUT_WR)) == 0);
        await_end(p.far);
        if (polls)
            EXPECT(poll(&entry, 1, 0) == 1 && entry.revents == (POLLIN | POLLOUT | POLLRDHUP));
        else
            EXPECT(recv(p.far, bytes, 8, 0) == 0);
        close(p.far);
        if (!closes)
            close(p.near);
    }
}

static void reading_shut_down(void)
{
    struct pair p = make_pair();
    char byte;

    EXPECT(shutdown(p.far, SHUT_RD) == 0);
    EXPECT(recv(p.far, &byte, 1, 0) == 0);
    EXPECT(send(p.far, "x", 1, 0) == 1);
    EXPECT(recv(p.near, &byte, 1, 0) == 1);
    close_pair(p);
}

/* The first send may still pass; soon one must fail, and raise the signal unless told not to. */
static void broken_pipe(void)
{
    struct pair p = make_pair();
    ssize_t sent = 1;

    signal(SIGPIPE, count_signal);
    caught = 0;
    close(p.far);
    for (int round = 0; round < 100 && sent == 1; round++) {
        errno = 0;
        sent = send(p.near, "x", 1, MSG_NOSIGNAL);
        if (sent == 1)
            sleep_ms(2);
    }
    EXPECT(sent == -1);
    EXPECT_ERROR(send(p.near, "x", 1, MSG_NOSIGNAL), EPIPE);
    EXPECT(caught == 0);
    EXPECT_ERROR(write(p.near, "x", 1), EPIPE);
    EXPECT(caught == 1);
    EXPECT_ERROR(send(p.near, "x", 1, 0), EPIPE);
    EXPECT(caught == 2);
    close(p.near);
    signal(SIGPIPE, SIG_DFL);
}

/* Who closes before reading everything resets the connection. */
static void unread_bytes_reset(void)
{
    struct pair p = make_pair();
    char byte;

    EXPECT(send(p.near, "unread", 6, 0) == 6);
    sleep_ms(20);
    EXPECT(close(p.far) == 0);
    sleep_ms(20);
    EXPECT_ERROR(recv(p.near, &byte, 1, 0), ECONNRESET);
    EXPECT(recv(p.near, &byte, 1, 0) == 0);
    close(p.near);
}

static void lingering_zero_resets(void)
{
    struct pair p = make_pair();
    struct linger none = {1, 0};
    struct pollfd wait = {p.near, POLLIN, 0};
    char byte;
    int error = 0;
    socklen_t length = sizeof error;

    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
    EXPECT(close(p.far) == 0);
    EXPECT(poll(&wait, 1, 1000) == 1 && wait.revents & POLLERR && wait.revents & POLLHUP);
    EXPECT(getsockopt(p.near, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == ECONNRESET);
    EXPECT(recv(p.near, &byte, 1, 0) == 0);
    close(p.near);
}

static void *shut_down_later(void *fd)
{
    sleep_ms(50);
    shutdown(*(int *)fd, SHUT_RDWR);
    return NULL;
}

static void shutdown_wakes_a_reader(void)
{
    struct pair p = make_pair();
    double began = now();
    pthread_t thread = in_thread(shut_down_later, &p.far);
    char byte;

    EXPECT(recv(p.far, &byte, 1, 0) == 0);
    EXPECT(now() - began > 0.03 && now() - began < 2);
    pthread_join(thread, NULL);
    EXPECT(recv(p.near, &byte, 1, 0) == 0);
    close_pair(p);
}

static void *close_later(void *fd)
{
    sleep_ms(50);
    close(*(int *)fd);
    return NULL;
}

static void the_end_wakes_every_wait(void)
{
    for (int how = 0; how < 2; how++) {
        struct pair p = make_pair();
        pthread_t thread = in_thread(close_later, &p.far);
        struct pollfd wait = {p.near, POLLIN, 0};
        char byte;

        if (how == 0)
            EXPECT(poll(&wait, 1, 3000) == 1 && wait.revents & POLLIN);
        EXPECT(recv(p.near, &byte, 1, 0) == 0);
        pthread_join(thread, NULL);
        close(p.near);
    }
}

static void what_poll_says_of_ends(void)
{
    struct pair p = make_pair();
    struct pollfd wait = {p.far, POLLIN | POLLOUT | POLLRDHUP, 0};

    EXPECT(poll(&wait, 1, 100) == 1 && wait.revents == POLLOUT);
    EXPECT(send(p.near, "x", 1, 0) == 1);
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    sleep_ms(20);
    EXPECT(poll(&wait, 1, 1000) == 1 && wait.revents == (POLLIN | POLLOUT | POLLRDHUP));
    EXPECT(shutdown(p.far, SHUT_WR) == 0);
    sleep_ms(20);
    EXPECT(poll(&wait, 1, 1000) == 1 && wait.revents & POLLHUP && wait.revents & POLLIN);
    close_pair(p);
}

static void a_blocked_sender_sees_the_end(void)
{
    struct pair p = make_pair();
    static char bytes[1 << 20];
    pthread_t thread = in_thread(close_later, &p.far);
    double began = now();
    int sent = 1;

    for (int round = 0; round < 100 && sent; round++)
        sent = send_all(p.near, bytes, sizeof bytes);
    EXPECT(!sent);
    EXPECT(now() - began < 3);
    pthread_join(thread, NULL);
    close(p.near);
}

static void descriptors_come_back_clean(void)
{
    for (int round = 0; round < 50; round++) {
        struct pair p = make_pair();
        char name[] = "/tmp/viaduct-check-XXXXXX", bytes[8] = {0};
        int near = p.near, file;

        EXPECT(send(p.far, "stale", 5, 0) == 5);
        if (round % 2)
            close(p.near);
        file = mkstemp(name);
        unlink(name);
        /* Half of the time the number is taken from under the socket, as some runtimes do. */
        EXPECT(dup2(file, near) == near && close(file) == 0);
        file = near;
        EXPECT(write(file, "file", 4) == 4);
        EXPECT(pread(file, bytes, 8, 0) == 4 && !memcmp(bytes, "file", 4));
        EXPECT(lseek(file, 0, SEEK_SET) == 0 && read(file, bytes, 8) == 4);
        EXPECT_ERROR(recv(file, bytes, 8, 0), ENOTSOCK);
        close(file);
        close(p.far);
        EXPECT_ERROR(recv(near, bytes, 8, 0), EBADF);
    }
}

/* A child that has read all that came: its kernel may hold what a lane's bytes have announced themselves with. */
static pid_t read_by_a_child(struct pair p)
{
    int done[2];
    char bytes[8];
    pid_t child;

    EXPECT(pipe(done) == 0);
    child = fork();
    if (child == 0) {
        close(p.near);
        for (int round = 0; round < 3; round++) {
            while (recv(p.far, bytes, 4, MSG_DONTWAIT) != 4)
                sleep_ms(5);
            /* By the next look there are bytes, so the kernel is not asked. */
            write(done[1], "x", 1);
            sleep_ms(20);
        }
        pause();
    }
    close(p.far);
    for (int round = 0; round < 3; round++) {
        EXPECT(send(p.near, "ping", 4, 0) == 4);
        EXPECT(read(done[0], bytes, 1) == 1);
    }
    sleep_ms(10);
    return child;
}

static void killed_with_nothing_unread(void)
{
    struct pair p = make_pair();
    struct pollfd wait = {p.near, POLLIN | POLLRDHUP, 0}, nothing = {p.near, 0, 0};
    struct epoll_event event;
    int set = epoll_create1(0);
    char bytes[8];
    pid_t child;

    EXPECT(watch(set, p.near, EPOLLIN | EPOLLRDHUP) == 0);
    child = read_by_a_child(p);
    EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    EXPECT(epoll_wait(set, &event, 1, 1000) == 1 && event.events == (EPOLLIN | EPOLLRDHUP));
    EXPECT(poll(&wait, 1, 1000) == 1 && wait.revents == (POLLIN | POLLRDHUP));
    EXPECT(poll(&nothing, 1, 20) == 0);
    EXPECT(recv(p.near, bytes, 1, 0) == 0);
    EXPECT(number_of(p.near, SOL_SOCKET, SO_ERROR) == 0);
    /* This is what finds nobody. */
    EXPECT(send(p.near, "lost", 4, MSG_NOSIGNAL) == 4);
    EXPECT(poll(&nothing, 1, 1000) == 1 && nothing.revents & POLLHUP);
    EXPECT_ERROR(send(p.near, "x", 1, MSG_NOSIGNAL), EPIPE);
    EXPECT(recv(p.near, bytes, 1, 0) == 0);
    close(set);
    close(p.near);
}

static void killed_behind_a_shutdown(void)
{
    struct pair p = make_pair();
    struct pollfd wait = {p.near, POLLIN | POLLRDHUP, 0};
    pid_t child = read_by_a_child(p);
    char byte;

    EXPECT(shutdown(p.near, SHUT_RDWR) == 0);
    EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    sleep_ms(50);
    EXPECT(poll(&wait, 1, 0) == 1 && wait.revents == (POLLIN | POLLRDHUP | POLLHUP));
    EXPECT(number_of(p.near, SOL_SOCKET, SO_ERROR) == 0);
    EXPECT(recv(p.near, &byte, 1, 0) == 0);
    close(p.near);
}

/* Asks, sends no more, reads so many answers, and tells of each. */
static pid_t asked_by_a_child(struct pair p, int answers, int told[2])
{
    char bytes[4];
    pid_t child;

    EXPECT(pipe(told) == 0);
    child = fork();
    if (child == 0) {
        close(p.near);
        send(p.far, "ask", 4, 0);
        shutdown(p.far, SHUT_WR);
        while (answers-- && recv(p.far, bytes, 4, MSG_WAITALL) == 4)
            write(told[1], "x", 1);
        pause();
    }
    close(p.far);
    return child;
}

/* With all of the answer read, the next bytes are what its kernel refuses; else it has told already. */
static void killed_behind_a_half_close(void)
{
    static const int answers[] = {0, 1, 3};
    static const int on = 1;

    for (int round = 0; round < 36; round++) {
        bool warm = round & 1, unread = round & 2;
        int read_before = answers[round / 4 % 3], told[2];
        struct pair p = warm ? make_pair() : connect_pair();
        struct pollfd wait = {p.near, POLLIN | POLLOUT | POLLRDHUP, 0};
        char bytes[4];
        pid_t child;

        EXPECT(setsockopt(p.near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
        child = asked_by_a_child(p, read_before, told);
        EXPECT(receive_all(p.near, bytes, 4) && recv(p.near, bytes, 4, 0) == 0);
        for (int answer = 0; answer < read_before + 2 * unread; answer++) {
            EXPECT(send(p.near, "answ", 4, 0) == 4);
            EXPECT(answer >= read_before || read(told[0], bytes, 1) == 1);
            /* Some at once, some after a while. */
            sleep_ms(round / 4 % 2);
        }
        sleep_ms(3);
        EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        sleep_ms(20);
        switch (round / 12) {
        case 1:
            EXPECT(poll(&wait, 1, 0) == 1);
            EXPECT(wait.revents == (POLLIN | POLLOUT | POLLRDHUP | (unread ? POLLERR | POLLHUP : 0)));
            break;
        case 2:
            EXPECT(number_of(p.near, SOL_SOCKET, SO_ERROR) == (unread ? EPIPE : 0));
            break;
        }
        if (!unread)
            EXPECT(send(p.near, "lost", 4, MSG_NOSIGNAL) == 4);
        sleep_ms(2);
        EXPECT_ERROR(send(p.near, "x", 1, MSG_NOSIGNAL), EPIPE);
        EXPECT(recv(p.near, bytes, 1, 0) == 0);
        close(p.near);
        close(told[0]);
        close(told[1]);
    }
}

/* The kernel of who is killed holds so much for the other that its end does not show there. */
static void killed_with_both_ways_full(void)
{
    static char bytes[60000];
    struct pair p = make_pair();
    struct pollfd room = {p.near, POLLOUT, 0};
    pid_t child = fork();

    if (child == 0) {
        close(p.near);
        for (;;)
            send(p.far, bytes, sizeof bytes, 0);
    }
    close(p.far);
    do
        while (send(p.near, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
    while (poll(&room, 1, 300) == 1);
    EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    EXPECT(poll(&room, 1, 5000) == 1 && room.revents == (POLLOUT | POLLERR | POLLHUP));
    EXPECT_ERROR(send(p.near, bytes, 1, MSG_NOSIGNAL), ECONNRESET);
    close(p.near);
}

MAIN(ALONE(half_closed), ALONE(all_bytes_before_the_end), ALONE(the_end_is_seen_at_once), ALONE(reading_shut_down), ALONE(broken_pipe),
     ALONE(unread_bytes_reset), ALONE(lingering_zero_resets), ALONE(shutdown_wakes_a_reader),
     ALONE(the_end_wakes_every_wait), ALONE(what_poll_says_of_ends), ALONE(a_blocked_sender_sees_the_end),
     ALONE(descriptors_come_back_clean), ALONE(killed_with_nothing_unread), ALONE(killed_behind_a_shutdown),
     ALONE(killed_behind_a_half_close), ALONE(killed_with_both_ways_full))
