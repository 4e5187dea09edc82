/* Programs that live otherwise: raw system calls, io_uring, other scopes of symbols, sandboxes, other users and
 * roots. */
#include "play.h"
#include <dlfcn.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void calls_by_number(void)
{
    struct iovec part = {"iov", 3};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    char bytes[8];
    struct iovec room = {bytes, 8};
    struct msghdr received = {.msg_iov = &room, .msg_iovlen = 1};
    int copy;

    NEAR(R(syscall(SYS_write, s, "abc", 3)); R(syscall(SYS_sendto, s, "de", 2, 0, NULL, 0)); R(syscall(SYS_writev, s, &part, 1));
         R(syscall(SYS_sendmsg, s, &message, 0)));
    FAR(R(syscall(SYS_read, s, bytes, 3)); show_bytes("read", bytes, 3); R(syscall(SYS_recvfrom, s, bytes, 2, MSG_WAITALL, NULL, NULL));
        show_bytes("recvfrom", bytes, 2); room.iov_len = 3; R(syscall(SYS_readv, s, &room, 1)); show_bytes("readv", bytes, 3);
        R(syscall(SYS_recvmsg, s, &received, 0)); show_bytes("recvmsg", bytes, 3));
    FAR(copy = (int)syscall(SYS_dup, s); R(syscall(SYS_close, s)); R(syscall(SYS_sendto, copy, "x", 1, 0, NULL, 0));
        R(syscall(SYS_close, copy)));
    NEAR(GET(s, 1, 0); GET(s, 1, 0));
}

static void waits_by_number(void)
{
    struct pollfd wait = {s, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int set = (int)syscall(SYS_epoll_create1, 0);
    struct timespec time = {1, 0};

    FAR(GET(s, 1, MSG_DONTWAIT); R(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, s, &event)));
    for (int round = 0; round < 3; round++) {
        if (is_near) {
            sleep_ms(10);
            R(send(s, "x", 1, 0));
        } else {
            R(syscall(SYS_ppoll, &wait, 1, &time, NULL, 0));
            R(syscall(SYS_epoll_pwait, set, &event, 1, 1000, NULL, 0));
            GET(s, 1, 0);
            GET(s, 1, MSG_DONTWAIT);
        }
        step();
    }
}

static void system_calls_of_no_meaning(void)
{
    BOTH(R(syscall(99999)); R(syscall(SYS_getpid) == getpid()); R(syscall(SYS_shutdown, s, 99)); R(syscall(-1)));
    NEAR(R(syscall(SYS_shutdown, s, SHUT_WR)));
    FAR(GET(s, 1, 0));
}

/* A program that has libuv in it, which looks for this variable, is told that there are no rings, and goes its other
 * way, on lanes. */
static void rings_with_another_way(void)
{
    char parameters[120] = {0};
    long ring = getenv("UV_USE_IO_URING") ? -1 : syscall(SYS_io_uring_setup, 256, parameters);

    if (ring >= 0)
        close((int)ring);
    step();
    prove(s);
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

/* As a host does that loads its plug-ins so: their calls go past the library, and reach the kernel connection as they
 * are. */
static void calls_of_a_deep_scope(void)
{
    ssize_t (*deep_send)(int, const void *, size_t, int);
    ssize_t (*deep_recv)(int, void *, size_t, int);
    char bytes[8] = "";

    FAR(R(send(s, "early", 5, 0)));
    if (is_near) {
        void *scope = dlopen("libc.so.6", RTLD_NOW | RTLD_DEEPBIND);
        deep_send = (ssize_t(*)(int, const void *, size_t, int))dlsym(scope, "send");
        deep_recv = (ssize_t(*)(int, void *, size_t, int))dlsym(scope, "recv");
        for (int round = 0; round < 3; round++) {
            R(deep_recv(s, bytes, 5, MSG_WAITALL));
            say("%s", bytes);
            R(deep_send(s, "deep", 4, 0));
            R(send(s, "seen", 4, 0));
        }
    } else {
        ALL(s, 8);
        for (int round = 0; round < 2; round++) {
            R(send(s, "later", 5, 0));
            ALL(s, 8);
        }
    }
    step();
}

enum { STOPPED = 7 };

/* Answers on several connections to `port` until they end. */
static void answer_on_many(int port)
{
    struct pollfd ends[STOPPED];
    char byte;

    for (int index = 0; index < STOPPED; index++)
        ends[index] = (struct pollfd){dial(AF_INET, port), POLLIN, 0};
    while (poll(ends, STOPPED, 5000) > 0)
        for (int index = 0; index < STOPPED; index++)
            if (ends[index].revents && (recv(ends[index].fd, &byte, 1, 0) != 1 || send(ends[index].fd, &byte, 1, 0) != 1))
                _exit(0);
    _exit(0);
}

/* Ends that do not answer keep the others' connections from nothing. */
static void calls_of_a_deep_scope_beside_stopped_ends(void)
{
    ssize_t (*deep_send)(int, const void *, size_t, int);
    ssize_t (*deep_recv)(int, void *, size_t, int);
    char bytes[8] = "";
    pid_t child = -1;

    if (is_near) {
        int port, listening = listener(AF_INET, &port), ends[STOPPED];
        child = fork();
        if (child == 0)
            answer_on_many(port);
        for (int index = 0; index < STOPPED; index++)
            ends[index] = accept(listening, NULL, NULL);
        for (int round = 0; round < 20; round++) {
            for (int index = 0; index < STOPPED; index++)
                if (!send_all(ends[index], "w", 1) || !receive_all(ends[index], bytes, 1))
                    say("no answer");
            sleep_ms(1);
        }
    }
    int last = join();
    FAR(R(send(last, "early", 5, 0)));
    if (is_near) {
        kill(child, SIGSTOP);
        void *scope = dlopen("libc.so.6", RTLD_NOW | RTLD_DEEPBIND);
        deep_send = (ssize_t(*)(int, const void *, size_t, int))dlsym(scope, "send");
        deep_recv = (ssize_t(*)(int, void *, size_t, int))dlsym(scope, "recv");
        R(deep_recv(last, bytes, 5, MSG_WAITALL));
        say("%s", bytes);
        R(deep_send(last, "deep", 4, 0));
        kill(child, SIGKILL);
        reap(child);
    } else {
        ALL(last, 4);
    }
    step();
}

/* A library of another space has a C library of its own. */
static void calls_of_another_space(void)
{
    ssize_t (*other_send)(int, const void *, size_t, int);

    if (is_near) {
        void *space = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
        other_send = (ssize_t(*)(int, const void *, size_t, int))dlsym(space, "send");
        R(other_send(s, "other", 5, 0));
        R(send(s, "seen", 4, 0));
    } else
        ALL(s, 9);
    step();
}

static void symbols_looked_up_by_name(void)
{
    ssize_t (*found)(int, const void *, size_t, int) = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_DEFAULT, "send");

    NEAR(R(found(s, "abc", 3, 0)));
    FAR(ALL(s, 3));
}

static void chrooted(void)
{
    if (is_near) {
        ALL(s, 4);
        R(send(s, "pong", 4, 0));
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            char directory[] = "/tmp/viaduct-case-XXXXXX";
            int fd, port, listening;
            mkdtemp(directory);
            R(chroot(directory));
            R(chdir("/"));
            R(send(s, "ping", 4, 0));
            ALL(s, 4);
            /* New connections do no worse than plain ones. */
            listening = listener(AF_INET, &port);
            fd = dial(AF_INET, port);
            R(send(fd, "x", 1, 0));
            GET(accept(listening, NULL, NULL), 1, 0);
            exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

static void without_privileges(void)
{
    if (is_near) {
        ALL(s, 4);
        R(send(s, "pong", 4, 0));
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            int fd, port, listening;
            R(setgroups(0, NULL));
            R(setgid(65534));
            R(setuid(65534));
            R(send(s, "ping", 4, 0));
            ALL(s, 4);
            listening = listener(AF_INET, &port);
            fd = dial(AF_INET, port);
            R(send(fd, "x", 1, 0));
            GET(accept(listening, NULL, NULL), 1, 0);
            exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

/* From now on every call outside of the list is refused, or kills. */
static int sandbox(unsigned otherwise)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
        ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_close), ALLOW(SYS_recvfrom), ALLOW(SYS_sendto), ALLOW(SYS_ppoll),
#ifdef SYS_poll
        ALLOW(SYS_poll),
#endif
        ALLOW(SYS_exit_group), ALLOW(SYS_rt_sigreturn), ALLOW(SYS_futex), ALLOW(SYS_clock_gettime),
        ALLOW(SYS_clock_nanosleep), ALLOW(SYS_getrandom), ALLOW(SYS_mprotect), ALLOW(SYS_madvise),
        ALLOW(SYS_mmap), ALLOW(SYS_munmap), ALLOW(SYS_brk),
        BPF_STMT(BPF_RET | BPF_K, otherwise),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void sandboxed_with(unsigned otherwise)
{
    if (is_near) {
        for (int round = 0; round < 4; round++) {
            ALL(s, 4);
            R(send(s, "pong", 4, 0));
        }
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            R(sandbox(otherwise));
            for (int round = 0; round < 4; round++) {
                R(send(s, "ping", 4, 0));
                POLL(s, POLLIN, 1000);
                ALL(s, 4);
            }
            _exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

static void sandboxed_refusing(void)
{
    sandboxed_with(SECCOMP_RET_ERRNO | EPERM);
}

static void sandboxed_killing(void)
{
    sandboxed_with(SECCOMP_RET_KILL_PROCESS);
}

/* A sandbox of a process that was never concerned must not notice the library at all. */
static void sandboxed_before_the_first_socket(void)
{
    if (is_near) {
        pid_t child = fork();
        if (child == 0) {
            int ends[2];
            char byte;
            pipe(ends);
            R(sandbox(SECCOMP_RET_KILL_PROCESS));
            R(write(ends[1], "x", 1));
            R(read(ends[0], &byte, 1));
            POLL(ends[0], POLLIN, 5);
            R(close(ends[0]));
            _exit(0);
        }
        reap(child);
    }
    step();
}

static void without_memory_to_spare(void)
{
    struct rlimit limit = {200 << 20, 200 << 20};

    if (!is_near)
        R(setrlimit(RLIMIT_AS, &limit));
    step();
    if (is_near)
        pour(s, 0, 1000000);
    else
        drink(s, 0, 1000000);
    step();
}

static void *tiny(void *port)
{
    int fd = dial(AF_INET, (int)(long)port);
    char bytes[8];

    return (void *)(long)(send(fd, "ping", 4, 0) == 4 && recv(fd, bytes, 4, 0) == 4 && close(fd) == 0);
}

static void connections_in_tiny_stacks(void)
{
    int port, listening;

    if (is_near) {
        pthread_attr_t attributes;
        pthread_t thread;
        void *result;
        port = ask();
        pthread_attr_init(&attributes);
        R(pthread_attr_setstacksize(&attributes, 16384));
        for (int round = 0; round < 3; round++) {
            pthread_create(&thread, &attributes, tiny, (void *)(long)port);
            pthread_join(thread, &result);
            say("%ld", (long)result);
        }
    } else {
        listening = listener(AF_INET, &port);
        tell(port);
        for (int round = 0; round < 3; round++) {
            int fd = accept(listening, NULL, NULL);
            ALL(fd, 4);
            R(send(fd, "pong", 4, 0));
            GET(fd, 1, 0);
            close(fd);
        }
    }
    step();
}

#ifdef __x86_64__
/* A system call that no library sees. */
static long unseen(long number, long first, long second, long third, long fourth)
{
    register long r10 __asm__("r10") = fourth;
    long result;

    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* Level-triggered, and never reading until there is nothing. */
static void sets_made_unseen(void)
{
    int port, fd, set;

    if (is_near) {
        port = ask();
        fd = dial(AF_INET, port);
        for (int round = 0; round < 40; round++) {
            send(fd, "xy", 2, 0);
            receive_all(fd, &(char){0}, 1);
        }
        close(fd);
    } else {
        struct epoll_event event = {.events = EPOLLIN};
        int listening = listener(AF_INET, &port);
        set = (int)unseen(SYS_epoll_create1, 0, 0, 0, 0);
        tell(port);
        fd = accept(listening, NULL, NULL);
        R(unseen(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, (long)&event));
        for (int round = 0; round < 80; round++) {
            R(unseen(SYS_epoll_wait, set, (long)&event, 1, 1000));
            GET(fd, 1, 0);
            if (round % 2)
                send(fd, "z", 1, 0);
        }
        R(unseen(SYS_epoll_wait, set, (long)&event, 1, 1000));
        GET(fd, 1, 0);
    }
    step();
}
#define UNSEEN , BARE(sets_made_unseen)
#else
#define UNSEEN
#endif

MAIN(JOINED(calls_by_number), JOINED(waits_by_number), JOINED(system_calls_of_no_meaning), JOINED(rings_with_another_way),
     JOINED(calls_of_a_deep_scope), JOINED(calls_of_a_deep_scope_beside_stopped_ends), JOINED(calls_of_another_space),
     JOINED(symbols_looked_up_by_name), JOINED(chrooted), JOINED(without_privileges), JOINED(sandboxed_refusing),
     JOINED(sandboxed_killing), BARE(sandboxed_before_the_first_socket), JOINED(without_memory_to_spare),
     BARE(connections_in_tiny_stacks) UNSEEN)
