/* Calls by their other names and by number, and calls that are seldom made. */
#include "play.h"
#include <aio.h>
#include <sched.h>
#include <sys/pidfd.h>
#include <sys/select.h>
#include <sys/syscall.h>

ssize_t __read(int, void *, size_t);
ssize_t __write(int, const void *, size_t);
ssize_t __send(int, const void *, size_t, int);
int __connect(int, const struct sockaddr *, socklen_t);
int __close(int);
int __poll(struct pollfd *, nfds_t, int);
int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
int __dup2(int, int);
int __fcntl(int, int, ...);
int __pipe(int *);
int __sigaction(int, const struct sigaction *, struct sigaction *);
FILE *_IO_fdopen(int, const char *);
int _IO_fclose(FILE *);
pid_t _Fork(void);

static void other_names_of_transfers(void)
{
    char bytes[8] = "";
    struct pollfd wait = {s, POLLIN, 0};
    struct timeval time = {1, 0};
    fd_set in;

    NEAR(R(__write(s, "abc", 3)));
    FAR(R(__poll(&wait, 1, 1000)); FD_ZERO(&in); FD_SET(s, &in); R(__select(s + 1, &in, NULL, NULL, &time)); R(__read(s, bytes, 6)); say("%s", bytes));
    NEAR(R(__send(s, "def", 3, 0)));
    FAR(arrive(s, POLLIN); R(__fcntl(s, F_SETFL, O_NONBLOCK)); R(__read(s, bytes, 6)); say("%s", bytes); R(__read(s, bytes, 6)));
}

static void other_names_of_descriptors(void)
{
    char byte;
    int ends[2], copy = dup(0);

    FAR(R(__close(s)); R(__pipe(ends)); R(write(ends[1], "p", 1)); R(read(ends[0], &byte, 1)));
    NEAR(GET(s, 1, 0); R(__dup2(copy, s) == s); R(recv(s, &byte, 1, 0)));
}

static void handler(int number)
{
    (void)number;
    signals++;
}

static void other_names_of_handlers(void)
{
    struct sigaction action = {.sa_handler = handler};

    FAR(__sigaction(SIGUSR1, &action, NULL); signal_in(60, SIGUSR1); GET(s, 1, 0); say("%d", signals));
    if (is_near) {
        sleep_ms(150);
        R(send(s, "x", 1, 0));
    } else {
        ssignal(SIGUSR1, handler);
        signal_in(60, SIGUSR1);
        GET(s, 1, 0);
    }
    step();
}

static void numbers_of_waits(void)
{
    struct timespec soon = {0, 20000000}, later = {2, 0};
    struct pollfd wait = {s, POLLIN, 0};
    sigset_t none;
    struct {
        sigset_t *mask;
        size_t size;
    } mask = {&none, 8};
    fd_set in;

    sigemptyset(&none);
    FAR(FD_ZERO(&in); FD_SET(s, &in); TIMED(15, 900, R(syscall(SYS_pselect6, s + 1, &in, NULL, NULL, &soon, &mask)));
        say("left %ld", soon.tv_nsec); soon.tv_nsec = 20000000; TIMED(15, 900, R(syscall(SYS_ppoll, &wait, 1, &soon, &none, 8)));
        say("left %ld", soon.tv_nsec));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(FD_SET(s, &in); R(syscall(SYS_pselect6, s + 1, &in, NULL, NULL, &later, NULL)); say("set %d, left %d", FD_ISSET(s, &in) != 0, later.tv_sec > 0);
        later.tv_sec = 2; R(syscall(SYS_ppoll, &wait, 1, &later, NULL, 8)); say("left %d", later.tv_sec > 0); GET(s, 1, 0));
}

static void numbers_of_waits_with_bad_times(void)
{
    struct pollfd wait = {s, POLLIN, 0};
    void *volatile nowhere = (void *)8;
    fd_set in;

    BOTH(FD_ZERO(&in); FD_SET(s, &in); R(syscall(SYS_ppoll, &wait, 1, nowhere, NULL, 8)); R(syscall(SYS_select, s + 1, &in, NULL, NULL, nowhere));
         R(syscall(SYS_pselect6, s + 1, &in, NULL, NULL, nowhere, NULL)));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

/* Descriptors that go unseen and whose numbers come back as something else. */
static void numbers_that_make_descriptors(void)
{
    int ends[2], kept[2] = {-1, -1};
    sigset_t blocked;
    char bytes[200];

    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    for (int how = 0; how < 4; how++) {
        int fd = join();
        FAR(R(unseen_call(SYS_close, fd, 0, 0) == 0));
        if (!is_near && how < 3) {
            if (how == 0)
                R(syscall(SYS_pipe, ends));
            else if (how == 1)
                R(syscall(SYS_pipe2, ends, 0));
            else
                R(syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, ends));
            say("same number %d", ends[0] == fd);
            R(write(ends[1], "new", 3));
            R(read(ends[0], bytes, 8));
            kept[0] = ends[1];
        } else if (!is_near) {
            sigprocmask(SIG_BLOCK, &blocked, NULL);
            kept[0] = (int)syscall(SYS_signalfd4, -1, &blocked, 8, 0);
            raise(SIGUSR2);
            say("same number %d", kept[0] == fd);
            R(read(kept[0], bytes, sizeof bytes));
        }
        step();
    }
    say("%d", kept[1]);
}

static void child_talks(void)
{
    if (send(s, "child", 5, 0) != 5 || recv(s, (char[1]){0}, 1, 0) != 1)
        _exit(1);
    _exit(0);
}

static int cloned(void *unused)
{
    (void)unused;
    child_talks();
    return 0;
}

static pid_t make_child(int how)
{
    static char stack[1 << 18] __attribute__((aligned(16)));
    struct {
        uint64_t flags, pidfd, child, parent, exit_signal, stack, size, tls, set, set_size, group;
    } wanted = {.exit_signal = SIGCHLD};
    pid_t child;

    switch (how) {
    case 0:
        child = _Fork();
        break;
    case 1:
        return clone(cloned, stack + sizeof stack, SIGCHLD, NULL);
    case 2:
        child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        break;
    case 3:
        child = (pid_t)syscall(SYS_clone3, &wanted, sizeof wanted);
        break;
#ifdef SYS_fork
    case 4:
        child = (pid_t)syscall(SYS_fork);
        break;
#endif
    default:
        child = fork();
    }
    if (child == 0)
        child_talks();
    return child;
}

static void children_by_every_call(void)
{
    for (int how = 0; how < 5; how++) {
        if (is_near) {
            ALL(s, 5);
            R(send(s, "x", 1, 0));
            ALL(s, 6);
        } else {
            pid_t child = make_child(how);
            reap(child);
            R(send(s, "parent", 6, 0));
        }
        step();
    }
}

static int ends_at_once(void *unused)
{
    (void)unused;
    _exit(0);
}

/* A child that runs on its parent's memory ends nothing of its parent's. */
static void ends_on_memory_of_another(void)
{
    static char stack[1 << 18] __attribute__((aligned(16)));
    int fd;

    if (!is_near) {
        pid_t child = clone(ends_at_once, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
        reap(child);
    }
    step();
    fd = join();
    for (int round = 0; round < 3; round++) {
        NEAR(R(send(s, "old", 3, 0)); R(send(fd, "new", 3, 0)));
        FAR(ALL(s, 3); ALL(fd, 3); R(send(s, "back", 4, 0)));
        NEAR(ALL(s, 4));
    }
    BOTH(R(close(fd)));
}

/* What a process has read is not unread when it ends, however it does. */
static void ends_by_every_call(void)
{
    for (int how = 0; how < 5; how++) {
        int fd = join();
        if (is_near) {
            R(send(fd, "last", 4, 0));
            GET(fd, 1, 0);
            R(close(fd));
        } else {
            pid_t child = fork();
            if (child == 0) {
                char bytes[8];
                close(s);
                ssize_t got = recv(fd, bytes, sizeof bytes, 0);
                sleep_ms(5);
                if (how == 0)
                    _exit(got == 4 ? 0 : 1);
                if (how == 1)
                    _Exit(got == 4 ? 0 : 1);
                if (how == 2)
                    quick_exit(got == 4 ? 0 : 1);
                if (how == 3)
                    syscall(SYS_exit_group, got == 4 ? 0 : 1);
                exit(got == 4 ? 0 : 1);
            }
            close(fd);
            reap(child);
        }
        step();
    }
}

static void streams_reopened(void)
{
    char bytes[8];

    FAR(R(dup2(s, 0)); R(freopen("/dev/null", "r", stdin) == stdin); R(read(0, bytes, 8)); R(send(s, "still", 5, 0)));
    NEAR(ALL(s, 5); R(dup2(s, 0)); R(close(s)); R(freopen("/dev/zero", "r", stdin) == stdin); R(read(0, bytes, 8)));
    FAR(GET(s, 1, 0));
}

static void streams_by_other_names(void)
{
    char line[16] = "";
    FILE *stream;

    NEAR(R(send(s, "line\n", 5, 0)));
    if (is_near)
        serve_until_released();
    else {
        stream = _IO_fdopen(s, "r+");
        say("%s", fgets(line, sizeof line, stream));
        R(fputs("back\n", stream) >= 0);
        R(_IO_fclose(stream));
        release();
    }
    NEAR(ALL(s, 5); GET(s, 1, 0));
}

static void fetched_from_this_process(void)
{
    int process = pidfd_open(getpid(), 0), copy;

    FAR(copy = pidfd_getfd(process, s, 0); say("%d", copy >= 0); R(send(copy, "by copy", 7, 0)); R(close(s)));
    NEAR(ALL(s, 7); R(send(s, "x", 1, 0)));
    FAR(GET(copy, 1, 0); R(close(copy)));
    NEAR(GET(s, 1, 0));
}

static void in_the_background(void)
{
    char bytes[8] = "";
    struct aiocb request = {.aio_fildes = s, .aio_buf = bytes, .aio_nbytes = 5};
    const struct aiocb *list[] = {&request};

    NEAR(R(send(s, "early", 5, 0)));
    if (is_near)
        serve_until_released();
    else {
        arrive(s, POLLIN);
        R(aio_read(&request));
        R(aio_suspend(list, 1, NULL));
        R(aio_error(&request));
        R(aio_return(&request));
        say("%s", bytes);
        memcpy(bytes, "later", 5);
        R(aio_write(&request));
        R(aio_suspend(list, 1, NULL));
        R(aio_return(&request));
        release();
    }
    NEAR(ALL(s, 5));
}

static void copies_that_are_refused(void)
{
    char byte;
    int copy = dup(0);

    BOTH(R(dup3(copy, s, 12345)); R(dup3(copy, s, O_NONBLOCK)); R(dup3(777, s, 0)); R(dup2(777, s)); R(dup3(s, s, 0)); R(dup2(s, s) == s);
         R(dup2(s, -1)); R(dup2(s, 1 << 30)); R(send(s, "x", 1, 0)); R(recv(s, &byte, 1, 0)));
}

/* Past the checks of a fortified build. */
static ssize_t (*volatile unchecked_read)(int, void *, size_t) = read;

static void vectors_of_nothing(void)
{
    struct iovec nothing[2] = {{NULL, 0}, {(char[1]){0}, 0}}, negative[2] = {{(char[4]){0}, 4}, {(char[1]){0}, (size_t)-1}};
    struct msghdr message = {.msg_iov = negative, .msg_iovlen = 2};
    volatile size_t most = (size_t)-1;

    BOTH(R(readv(s, nothing, 2)); R(readv(s, nothing, 0)); R(preadv2(s, nothing, 2, -1, 0)); R(preadv2(s, NULL, 0, -1, 0)); R(writev(s, nothing, 2));
         R(pwritev2(s, nothing, 2, -1, 0)); R(readv(s, negative, 2)); R(writev(s, negative, 2)); R(recvmsg(s, &message, 0));
         R(sendmsg(s, &message, 0)); R(read(s, NULL, 0)); R(unchecked_read(s, &message, most)); R(write(s, &message, most)));
}

static void error_between_messages(void)
{
    struct linger none = {1, 0};
    char bytes[2][4];
    struct iovec parts[2] = {{bytes[0], 4}, {bytes[1], 4}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};

    if (is_near) {
        R(send(s, "four", 4, 0));
        sleep_ms(200);
        setsockopt(s, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        R(close(s));
    } else {
        R(recvmmsg(s, messages, 2, 0, NULL));
        R(recvmmsg(s, messages, 2, 0, NULL));
        R(recvmmsg(s, messages, 2, 0, NULL));
    }
    step();
}

static int flags_from_then_on;

static void change_itself(int number)
{
    sigaction(number, &(struct sigaction){.sa_handler = change_itself, .sa_flags = flags_from_then_on}, NULL);
}

/* What counts is what the handler was installed with as it was called. */
static void handlers_that_change_themselves(void)
{
    for (int restarts = 0; restarts < 2; restarts++) {
        if (is_near) {
            sleep_ms(200);
            R(send(s, "x", 1, 0));
        } else {
            struct sigaction action = {.sa_handler = change_itself, .sa_flags = restarts ? SA_RESTART : 0};

            flags_from_then_on = restarts ? 0 : SA_RESTART;
            sigaction(SIGUSR1, &action, NULL);
            signal_in(60, SIGUSR1);
            TIMED(40, 900, GET(s, 1, 0));
            ALL(s, !restarts);
        }
        step();
    }
}

MAIN(JOINED(other_names_of_transfers), JOINED(other_names_of_descriptors), JOINED(other_names_of_handlers), JOINED(numbers_of_waits),
     JOINED(numbers_of_waits_with_bad_times), JOINED(ends_on_memory_of_another),
     BARE(numbers_that_make_descriptors), JOINED(children_by_every_call), JOINED(ends_by_every_call), JOINED(streams_reopened),
     JOINED(streams_by_other_names), JOINED(fetched_from_this_process), JOINED(in_the_background), JOINED(copies_that_are_refused),
     JOINED(vectors_of_nothing), JOINED(error_between_messages),
     JOINED(handlers_that_change_themselves))
