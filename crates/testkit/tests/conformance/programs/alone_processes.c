/* Sockets and processes, by one program with both ends: copies, fork, raw system calls, cancelled threads, jumps. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include "check.h"
#include <setjmp.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
extern char **environ;

static void copies_of_a_descriptor(void)
{
    struct pair p = make_pair();
    int copy = dup(p.near), high = fcntl(p.near, F_DUPFD_CLOEXEC, 100);
    char bytes[8];

    EXPECT(copy > 0 && high >= 100);
    EXPECT(send(copy, "ab", 2, 0) == 2);
    EXPECT(close(p.near) == 0);
    EXPECT(send(high, "cd", 2, 0) == 2);
    EXPECT(receive_all(p.far, bytes, 4) && !memcmp(bytes, "abcd", 4));
    EXPECT(send(p.far, "efgh", 4, 0) == 4);
    EXPECT(receive_all(copy, bytes, 2) && receive_all(high, bytes + 2, 2) && !memcmp(bytes, "efgh", 4));
    close(copy);
    EXPECT_ERROR(recv(p.far, bytes, 1, MSG_DONTWAIT), EAGAIN);
    close(high);
    EXPECT(recv(p.far, bytes, 1, 0) == 0);
    close(p.far);
}

static void a_copy_onto_a_socket_closes_it(void)
{
    struct pair p = make_pair(), other = make_pair();
    char bytes[8];

    EXPECT(dup2(other.near, p.near) == p.near);
    EXPECT(recv(p.far, bytes, 1, 0) == 0);
    EXPECT(send(p.near, "x", 1, 0) == 1);
    EXPECT(receive_all(other.far, bytes, 1) && bytes[0] == 'x');
    EXPECT(dup2(p.near, p.near) == p.near);
    EXPECT(dup3(other.far, p.far, O_CLOEXEC) == p.far);
    EXPECT(send(other.near, "y", 1, 0) == 1);
    EXPECT(receive_all(p.far, bytes, 1) && bytes[0] == 'y');
    close_pair(p);
    close_pair(other);
}

static void nonblocking_by_every_way(void)
{
    struct pair p = make_pair();
    char byte;
    int on = 1, off = 0;

    EXPECT(fcntl(p.far, F_SETFL, fcntl(p.far, F_GETFL) | O_NONBLOCK) == 0);
    EXPECT_ERROR(read(p.far, &byte, 1), EAGAIN);
    EXPECT(fcntl(p.far, F_SETFL, fcntl(p.far, F_GETFL) & ~O_NONBLOCK) == 0);
    EXPECT(ioctl(p.far, FIONBIO, &on) == 0);
    EXPECT(fcntl(p.far, F_GETFL) & O_NONBLOCK);
    EXPECT_ERROR(read(p.far, &byte, 1), EAGAIN);
    EXPECT(ioctl(p.far, FIONBIO, &off) == 0);
    EXPECT(send(p.near, "x", 1, 0) == 1 && read(p.far, &byte, 1) == 1);
    close_pair(p);
}

/* As servers do: the child takes the connection over, the parent closes its copy. */
static void a_child_takes_over(void)
{
    struct pair p = make_pair();
    char bytes[8];
    pid_t child = fork();

    if (child == 0) {
        close(p.near);
        if (!receive_all(p.far, bytes, 4) || memcmp(bytes, "ping", 4) || !send_all(p.far, "pong", 4))
            _exit(1);
        _exit(0);
    }
    close(p.far);
    EXPECT(send(p.near, "ping", 4, 0) == 4);
    EXPECT(receive_all(p.near, bytes, 4) && !memcmp(bytes, "pong", 4));
    EXPECT(recv(p.near, bytes, 1, 0) == 0);
    EXPECT(exited_well(child));
    close(p.near);
}

/* Who is killed closes nothing: what its end means it has said before. */
static void killed_with_a_linger_of(int resets)
{
    struct pair p = make_pair();
    struct linger linger = {1, 0};
    char bytes[4];
    pid_t child = fork();

    if (child == 0) {
        close(p.near);
        if (!receive_all(p.far, bytes, 4) || setsockopt(p.far, SOL_SOCKET, SO_LINGER, &linger, sizeof linger))
            _exit(1);
        linger.l_onoff = resets;
        if (setsockopt(p.far, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) || !send_all(p.far, "pong", 4))
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    close(p.far);
    EXPECT(send(p.near, "ping", 4, 0) == 4 && receive_all(p.near, bytes, 4));
    EXPECT(waitpid(child, NULL, 0) == child);
    if (resets)
        EXPECT_ERROR(recv(p.near, bytes, 1, 0), ECONNRESET);
    EXPECT(recv(p.near, bytes, 1, 0) == 0);
    close(p.near);
}

static void killed_while_lingering_zero(void)
{
    killed_with_a_linger_of(1);
    killed_with_a_linger_of(0);
}

/* As Redis does for a snapshot: the child has copies of everything, touches nothing, and exits. */
static void a_child_that_only_exits(void)
{
    struct pair p = make_pair();
    char bytes[8];
    pid_t child = fork();

    if (child == 0) {
        sleep_ms(50);
        exit(0);
    }
    for (int round = 0; round < 30; round++) {
        EXPECT(send(p.near, "abcd", 4, 0) == 4);
        EXPECT(receive_all(p.far, bytes, 4));
        EXPECT(send(p.far, "efgh", 4, 0) == 4);
        EXPECT(receive_all(p.near, bytes, 4) && !memcmp(bytes, "efgh", 4));
        sleep_ms(3);
    }
    EXPECT(exited_well(child));
    close(p.near);
    EXPECT(recv(p.far, bytes, 1, 0) == 0);
    close(p.far);
}

static void parent_and_child_share(void)
{
    struct pair p = make_pair();
    unsigned char bytes[10];
    size_t mine = 0, childs = 0;
    int report[2];
    pid_t child;

    EXPECT(pipe(report) == 0);
    child = fork();
    if (child == 0) {
        close(p.near);
        while (recv(p.far, bytes, sizeof bytes, 0) > 0)
            childs += 1;
        if (write(report[1], &childs, sizeof childs) != sizeof childs)
            _exit(1);
        _exit(0);
    }
    close(p.far);
    for (int round = 0; round < 300; round++) {
        EXPECT(send(p.near, "0123456789", 10, 0) == 10);
        mine++;
        if (round % 50 == 0)
            sleep_ms(2);
    }
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    EXPECT(read(report[0], &childs, sizeof childs) == sizeof childs);
    EXPECT(childs >= 1 && childs <= mine);
    EXPECT(exited_well(child));
    close(p.near);
    close(report[0]);
    close(report[1]);
}

/* Two readers of one end, in two processes: every byte arrives once. */
static void two_processes_read_one_end(void)
{
    struct pair p = make_pair();
    enum { ROUNDS = 2000 };
    long totals[2] = {0, 0};
    int report[2];
    pid_t child;
    unsigned char byte;

    EXPECT(pipe(report) == 0);
    child = fork();
    if (child == 0) {
        pid_t grandchild;
        long sum = 0;
        close(p.near);
        grandchild = fork();
        while (recv(p.far, &byte, 1, 0) == 1)
            sum += byte;
        if (write(report[1], &sum, sizeof sum) != sizeof sum)
            _exit(1);
        if (grandchild == 0)
            _exit(0);
        _exit(exited_well(grandchild) ? 0 : 1);
    }
    close(p.far);
    for (int round = 0; round < ROUNDS; round++) {
        byte = (unsigned char)(round % 200);
        EXPECT(send(p.near, &byte, 1, 0) == 1);
    }
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    EXPECT(read(report[0], &totals[0], sizeof(long)) == sizeof(long));
    EXPECT(read(report[0], &totals[1], sizeof(long)) == sizeof(long));
    EXPECT(totals[0] + totals[1] == ROUNDS / 200 * (199 * 200 / 2));
    EXPECT(exited_well(child));
    close(p.near);
    close(report[0]);
    close(report[1]);
}

static void closed_by_range(void)
{
    struct pair p = make_pair();
    char byte;
    int high = fcntl(p.near, F_DUPFD, 500);

    EXPECT(close(p.near) == 0);
    EXPECT(syscall(SYS_close_range, 500, 600, 0) == 0 && high >= 500);
    EXPECT(recv(p.far, &byte, 1, 0) == 0);
    close(p.far);
    p = make_pair();
    high = fcntl(p.near, F_DUPFD, 500);
    EXPECT(close(p.near) == 0);
    EXPECT(close_range(500, 600, 0) == 0);
    EXPECT(recv(p.far, &byte, 1, 0) == 0);
    close(p.far);
}

static void streams_of_the_c_library(void)
{
    struct pair p = make_pair();
    FILE *out = fdopen(p.near, "r+"), *in = fdopen(dup(p.far), "r");
    char line[64];

    EXPECT(out && in);
    for (int round = 0; round < 50; round++) {
        EXPECT(fprintf(out, "line %d\n", round) > 0 && fflush(out) == 0);
        EXPECT(fgets(line, sizeof line, in) && atoi(line + 5) == round);
    }
    EXPECT(send(p.far, "back\n", 5, 0) == 5);
    EXPECT(fgets(line, sizeof line, out) && !strcmp(line, "back\n"));
    EXPECT(fclose(out) == 0);
    EXPECT(fgetc(in) == EOF);
    fclose(in);
    close(p.far);
}

static void calls_by_number(void)
{
    struct pair p = make_pair();
    char bytes[8];

    EXPECT(syscall(SYS_write, p.near, "abc", 3) == 3);
    EXPECT(receive_all(p.far, bytes, 3) && !memcmp(bytes, "abc", 3));
    EXPECT(send(p.near, "defg", 4, 0) == 4);
    EXPECT(syscall(SYS_read, p.far, bytes, 2) == 2 && !memcmp(bytes, "de", 2));
    EXPECT(syscall(SYS_recvfrom, p.far, bytes, 2, 0, NULL, NULL) == 2 && !memcmp(bytes, "fg", 2));
    EXPECT(syscall(SYS_sendto, p.far, "hi", 2, 0, NULL, 0) == 2);
    EXPECT(receive_all(p.near, bytes, 2) && !memcmp(bytes, "hi", 2));
    EXPECT(syscall(SYS_close, p.near) == 0);
    EXPECT(recv(p.far, bytes, 1, 0) == 0);
    close(p.far);
}

/* A connection whose whole life passes in raw system calls. */
static void a_life_by_number(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0), near, far, copy, set, waiting = -1, on = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 9}, found = {0};
    struct iovec parts[2];
    struct mmsghdr message = {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}};
    struct pollfd entry = {.events = POLLIN};
    char bytes[8];

    EXPECT(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 8) == 0);
    EXPECT(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    near = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    EXPECT(syscall(SYS_connect, near, &address, length) == 0);
    far = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
    EXPECT(far >= 0 && close(listener) == 0);
    warm_up(near, far);
    EXPECT(syscall(SYS_setsockopt, near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    set = (int)syscall(SYS_epoll_create1, 0);
    EXPECT(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, far, &event) == 0);
    EXPECT(syscall(SYS_epoll_wait, set, &found, 1, 0) == 0);
    parts[0] = (struct iovec){"ab", 2};
    parts[1] = (struct iovec){"cd", 2};
    EXPECT(syscall(SYS_sendmmsg, near, &message, 1, 0) == 1 && message.msg_len == 4);
    EXPECT(syscall(SYS_epoll_wait, set, &found, 1, 1000) == 1 && found.data.u32 == 9);
    entry.fd = far;
    EXPECT(syscall(SYS_poll, &entry, 1, 1000) == 1 && entry.revents == POLLIN);
    EXPECT(syscall(SYS_ioctl, far, FIONREAD, &waiting) == 0 && waiting == 4);
    parts[0] = (struct iovec){bytes, 1};
    parts[1] = (struct iovec){bytes + 1, 3};
    EXPECT(syscall(SYS_preadv2, far, parts, 2, -1L, -1L, 0) == 4 && !memcmp(bytes, "abcd", 4));
    EXPECT(syscall(SYS_fcntl, far, F_SETFL, O_NONBLOCK) == 0);
    EXPECT_ERROR(syscall(SYS_read, far, bytes, 1), EAGAIN);
    EXPECT(syscall(SYS_dup2, near, 400) == 400 && syscall(SYS_close, near) == 0);
    copy = (int)syscall(SYS_dup, 400);
    EXPECT(syscall(SYS_write, copy, "e", 1) == 1 && syscall(SYS_shutdown, 400, SHUT_WR) == 0);
    EXPECT(syscall(SYS_epoll_wait, set, &found, 1, 1000) == 1);
    EXPECT(syscall(SYS_fcntl, far, F_SETFL, 0) == 0);
    EXPECT(receive_all(far, bytes, 1) && bytes[0] == 'e' && recv(far, bytes, 1, 0) == 0);
    close(copy);
    close(400);
    close(set);
    close(far);
}

static void *receive_one(void *fd)
{
    char byte;

    recv(*(int *)fd, &byte, 1, 0);
    return NULL;
}

static void cancelled_threads_leave_nothing_locked(void)
{
    struct pair p = make_pair();
    char byte;

    for (int round = 0; round < 5; round++) {
        pthread_t thread = in_thread(receive_one, &p.far);
        void *result = NULL;
        sleep_ms(20);
        EXPECT(pthread_cancel(thread) == 0);
        EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        EXPECT(send(p.near, "x", 1, 0) == 1);
        EXPECT(recv(p.far, &byte, 1, 0) == 1 && byte == 'x');
    }
    close_pair(p);
}

static sigjmp_buf jump;

static void jump_out(int number)
{
    siglongjmp(jump, number);
}

static void *interrupt_later(void *thread)
{
    sleep_ms(40);
    pthread_kill(*(pthread_t *)thread, SIGUSR2);
    return NULL;
}

static void *send_later(void *fd)
{
    sleep_ms(80);
    send_all(*(int *)fd, "l", 1);
    return NULL;
}

/* As iperf3 does: out of a blocked call by a jump from the signal's handler. */
static void jumps_leave_nothing_locked(void)
{
    struct pair p = make_pair();
    pthread_t self = pthread_self(), thread;
    char byte;

    signal(SIGUSR2, jump_out);
    thread = in_thread(interrupt_later, &self);
    if (sigsetjmp(jump, 1) == 0) {
        recv(p.far, &byte, 1, 0);
        EXPECT(!"the receive went on");
    }
    pthread_join(thread, NULL);
    EXPECT(send(p.near, "x", 1, 0) == 1);
    EXPECT(recv(p.far, &byte, 1, 0) == 1 && byte == 'x');
    close_pair(p);
}

static void note_signal(int number)
{
    (void)number;
}

/* A call goes on after a handler installed by signal(), unless siginterrupt() says otherwise. */
static void interrupted_as_asked(void)
{
    struct pair p = make_pair();
    pthread_t self = pthread_self(), thread, sender;
    char byte;

    signal(SIGUSR2, note_signal);
    EXPECT(siginterrupt(SIGUSR2, 1) == 0);
    thread = in_thread(interrupt_later, &self);
    EXPECT_ERROR(recv(p.far, &byte, 1, 0), EINTR);
    pthread_join(thread, NULL);
    EXPECT(siginterrupt(SIGUSR2, 0) == 0);
    thread = in_thread(interrupt_later, &self);
    sender = in_thread(send_later, &p.near);
    EXPECT(recv(p.far, &byte, 1, 0) == 1 && byte == 'l');
    pthread_join(thread, NULL);
    pthread_join(sender, NULL);
    close_pair(p);
}

static void shell_commands_meanwhile(void)
{
    struct pair p = make_pair();
    char bytes[8];
    FILE *command;

    EXPECT(system("exit 3") == 3 << 8);
    command = popen("echo word", "r");
    EXPECT(command && fgets(bytes, sizeof bytes, command) && !strcmp(bytes, "word\n"));
    EXPECT(pclose(command) == 0);
    EXPECT(send(p.near, "x", 1, 0) == 1 && recv(p.far, bytes, 1, 0) == 1);
    close_pair(p);
}

/* A connection made in a parent that then turns into a daemon. */
static void the_parent_leaves(void)
{
    struct pair p = make_pair();
    char bytes[8];
    pid_t child = fork();

    if (child == 0) {
        pid_t own = fork();
        if (own > 0)
            _exit(0);
        setsid();
        close(p.near);
        for (int round = 0; round < 100 && receive_all(p.far, bytes, 4); round++)
            send_all(p.far, bytes, 4);
        _exit(0);
    }
    close(p.far);
    EXPECT(exited_well(child));
    for (int round = 0; round < 100; round++) {
        EXPECT(send(p.near, "echo", 4, 0) == 4);
        EXPECT(receive_all(p.near, bytes, 4) && !memcmp(bytes, "echo", 4));
    }
    EXPECT(recv(p.near, bytes, 1, 0) == 0);
    close(p.near);
}

/* Descriptors above the limit stay open, and so do those of a library's own among them. */
static void closed_above_a_lowered_limit(void)
{
    struct pair p = make_pair();
    struct rlimit usual, low;
    int near = fcntl(p.near, F_DUPFD, 300), far = fcntl(p.far, F_DUPFD, 500);
    char bytes[4];

    EXPECT(getrlimit(RLIMIT_NOFILE, &usual) == 0 && near >= 0 && far >= 0);
    low = (struct rlimit){64, usual.rlim_max};
    EXPECT(setrlimit(RLIMIT_NOFILE, &low) == 0);
    close_pair(p);
    for (int round = 0; round < 3; round++) {
        EXPECT(send_all(near, "to", 2) && receive_all(far, bytes, 2));
        EXPECT(send_all(far, "fro", 3) && receive_all(near, bytes, 3) && !memcmp(bytes, "fro", 3));
    }
    EXPECT(close_range(400, 880, 0) == 0);
    EXPECT(recv(near, bytes, 1, 0) == 0);
    EXPECT(close_range(200, 880, 0) == 0);
    EXPECT_ERROR(recv(near, bytes, 1, 0), EBADF);
    EXPECT(setrlimit(RLIMIT_NOFILE, &usual) == 0);
    p = make_pair();
    EXPECT(send_all(p.near, "to", 2) && receive_all(p.far, bytes, 2));
    close_pair(p);
}

static void becomes_a_daemon(void)
{
    struct pair p = make_pair();
    int told[2], result = -2;
    char byte;
    pid_t child;

    EXPECT(pipe(told) == 0 && (child = fork()) >= 0);
    if (child == 0) {
        dup2(p.far, 0);
        close_pair(p);
        if (daemon(1, 0) == 0) {
            result = (int)read(0, &byte, 1);
            write(told[1], &result, sizeof result);
        }
        _exit(0);
    }
    close(told[1]);
    close(p.far);
    EXPECT(exited_well(child));
    EXPECT(read(told[0], &result, sizeof result) == sizeof result && result == 0);
    EXPECT(recv(p.near, &byte, 1, 0) == 0);
    close(told[0]);
    close(p.near);
}

MAIN(ALONE(copies_of_a_descriptor), ALONE(a_copy_onto_a_socket_closes_it), ALONE(nonblocking_by_every_way),
     ALONE(a_child_takes_over), ALONE(killed_while_lingering_zero), ALONE(a_child_that_only_exits), ALONE(parent_and_child_share),
     ALONE(two_processes_read_one_end), ALONE(closed_by_range), ALONE(streams_of_the_c_library),
     ALONE(calls_by_number), ALONE(a_life_by_number), ALONE(interrupted_as_asked),
     ALONE(cancelled_threads_leave_nothing_locked), ALONE(jumps_leave_nothing_locked),
     ALONE(shell_commands_meanwhile), ALONE(the_parent_leaves),
     ALONE(closed_above_a_lowered_limit), ALONE(becomes_a_daemon))
