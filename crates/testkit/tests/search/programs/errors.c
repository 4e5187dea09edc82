/* The error numbers of direct search, each where it must come. */
#include "check.h"
#include "../../programs/heap.h"
#include "old.h"
#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/un.h>

/* The program may have forbidden itself most system calls by then, or be in a handler that has interrupted the heap. */
static void a_first_search_asks_for_little(void)
{
    static const unsigned allowed[] = {SYS_recvfrom, SYS_getsockopt, SYS_setsockopt, SYS_fstat,  SYS_fcntl,     SYS_ioctl,
                                       SYS_ppoll,    SYS_mmap,       SYS_munmap,     SYS_getpid, SYS_gettid, SYS_exit_group};
    struct pair p = connect_pair();
    pid_t child;
    int status;

    EXPECT(send(p.near, "01x234", 6, 0) == 6);
    child = fork();
    if (child == 0) {
        char bytes[8];

        asked = 0;
        counts = 1;
        allow_only(allowed, sizeof allowed / sizeof *allowed);
        _exit(viaduct_seek_recv(p.far, bytes, 1, 0, 2) != 1 || bytes[0] != 'x' || viaduct_readable(p.far) != 5 ||
              viaduct_seek_recv(p.far, bytes, 1, MSG_DONTWAIT, 100) != -1 || errno != EAGAIN ||
              in_order(p.far, bytes, 8, 0) != 5 || asked);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(status == 0);
    close_pair(p);
}

/* A search may have interrupted the dynamic linker, or come before the program asks why a look-up has failed. */
static void a_first_wait_looks_nothing_up(void)
{
    struct pair p = connect_pair();
    pid_t child;
    int status;

    child = fork();
    if (child == 0) {
        struct timeval soon = {0, 10000};
        viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
        char byte;

        setsockopt(p.far, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        if (dlopen("/absent.so", RTLD_NOW))
            _exit(1);
        if (viaduct_seek_recv(p.far, &byte, 1, 0, 1) != -1 || errno != EAGAIN)
            _exit(2);
        if (viaduct_inbox_add(inbox, p.far) || viaduct_msg_recv(inbox, 1, 0, &byte, 1, 10, NULL) != -1 || errno != ETIMEDOUT)
            _exit(3);
        _exit(dlerror() ? 0 : 4);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(status == 0);
    close_pair(p);
}

/* Whatever is wrong with a call, at the head as elsewhere, before the first search as after it, the next finds all as
 * it was. */
static void bad_input_changes_nothing(void)
{
    for (int searched = 0; searched < 2; searched++) {
        struct pair p = connect_pair();
        char bytes[16] = {0};
        int udp = socket(AF_INET, SOCK_DGRAM, 0), file[2];

        EXPECT(pipe(file) == 0);
        EXPECT(send(p.near, "01x23456789", 11, 0) == 11);
        settle();
        if (searched)
            EXPECT(viaduct_seek_recv(p.far, bytes, 1, 0, 2) == 1);
        for (size_t offset = 0; offset < 2; offset++) {
            static const int flags[] = {MSG_OOB, MSG_ERRQUEUE, MSG_WAITFORONE, MSG_CONFIRM, MSG_CMSG_CLOEXEC};

            EXPECT_ERROR(viaduct_seek_recv(p.far, NULL, 4, 0, offset), EFAULT);
            EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, SIZE_MAX, 0, offset), EINVAL);
            EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, SIZE_MAX / 2 + 1, MSG_DONTWAIT, offset), EINVAL);
            for (size_t index = 0; index < sizeof flags / sizeof *flags; index++) {
                EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 4, flags[index], offset), EOPNOTSUPP);
                EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 0, flags[index], offset), EOPNOTSUPP);
            }
            EXPECT_ERROR(viaduct_seek_recv(-1, bytes, 4, 0, offset), EBADF);
            EXPECT_ERROR(viaduct_seek_recv(9999, bytes, 4, 0, offset), EBADF);
            EXPECT_ERROR(viaduct_seek_recv(file[0], bytes, 4, 0, offset), ENOTSOCK);
            EXPECT_ERROR(viaduct_seek_recv(udp, bytes, 4, MSG_DONTWAIT, offset), EOPNOTSUPP);
            EXPECT(viaduct_seek_recv(p.far, bytes, 0, 0, offset) == 0);
        }
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 4, 0, SIZE_MAX), EINVAL);
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, SIZE_MAX / 2, 0, 1), EINVAL);
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, SIZE_MAX / 2, 0, SIZE_MAX / 2), EINVAL);
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, (size_t)-1, 0, (size_t)-4), EINVAL);
        EXPECT(viaduct_seek_recv(p.far, bytes, 0, 0, 3) == 0);
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 4, MSG_DONTWAIT, SIZE_MAX / 4), ENOBUFS);
        if (!searched)
            EXPECT(viaduct_seek_recv(p.far, bytes, 1, 0, 2) == 1);
        EXPECT(in_order(p.far, bytes, 16, 0) == 10 && !memcmp(bytes, "0123456789", 10));
        /* No bytes are none at once, even where there are none. */
        EXPECT(viaduct_seek_recv(p.far, bytes, 0, 0, 0) == 0);
        close(udp);
        close(file[0]);
        close(file[1]);
        close_pair(p);
    }
}

/* As recv does, and on either way of receiving. */
static void what_is_thrown_away_needs_no_buffer(void)
{
    static const char letters[] = "0123456789";
    static char much[200000];
    struct pair p = connect_pair();
    char bytes[16];

    for (int searched = 0; searched < 2; searched++) {
        EXPECT(send_all(p.near, letters, 10));
        settle();
        EXPECT(viaduct_seek_recv(p.far, NULL, 4, MSG_TRUNC | MSG_PEEK, 0) == 4);
        EXPECT(viaduct_seek_recv(p.far, NULL, 2, MSG_TRUNC, 0) == 2);
        EXPECT(viaduct_seek_recv(p.far, NULL, 4, MSG_TRUNC | MSG_PEEK | MSG_WAITALL, 3) == 4);
        EXPECT(viaduct_seek_recv(p.far, NULL, 3, MSG_TRUNC | MSG_WAITALL, 2) == 3);
        EXPECT_ERROR(viaduct_seek_recv(p.far, NULL, 1, MSG_TRUNC | MSG_DONTWAIT, 5), EAGAIN);
        EXPECT(viaduct_seek_recv(p.far, bytes, 16, 0, 0) == 5 && !memcmp(bytes, "23789", 5));
    }
    EXPECT(send_all(p.near, much, sizeof much));
    EXPECT(viaduct_seek_recv(p.far, NULL, 90000, MSG_TRUNC | MSG_WAITALL, 100000) == 90000);
    EXPECT(viaduct_seek_recv(p.far, NULL, 110000, MSG_TRUNC | MSG_WAITALL, 0) == 110000);
    EXPECT_ERROR(viaduct_seek_recv(p.far, NULL, 1, MSG_TRUNC | MSG_DONTWAIT, 0), EAGAIN);
    close_pair(p);
}

static void sockets_that_are_not_connected(void)
{
    int fresh = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    struct epoll_event event = {.events = EPOLLIN};
    struct pair p = connect_pair();
    char bytes[16];
    int local[2], waiting[8], number;

    EXPECT(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 0) == 0);
    EXPECT(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, local) == 0 && send(local[0], "0123", 4, 0) == 4);
    for (size_t offset = 0; offset < 2; offset++) {
        EXPECT_ERROR(viaduct_seek_recv(fresh, bytes, 4, 0, offset), ENOTCONN);
        EXPECT_ERROR(viaduct_seek_recv(listener, bytes, 4, 0, offset), ENOTCONN);
        EXPECT_ERROR(viaduct_seek_recv(local[1], bytes, 4, MSG_DONTWAIT, offset), EOPNOTSUPP);
    }
    EXPECT_ERROR(viaduct_readable(fresh), ENOTCONN);
    EXPECT_ERROR(viaduct_readable(listener), ENOTCONN);
    EXPECT_ERROR(viaduct_readable(local[1]), EOPNOTSUPP);
    EXPECT(recv(local[1], bytes, 16, 0) == 4);
    /* Known to the library by its set. */
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fresh, &event) == 0);
    EXPECT_ERROR(viaduct_seek_recv(fresh, bytes, 4, MSG_WAITALL, 1), ENOTCONN);
    EXPECT_ERROR(viaduct_seek_recv(fresh, bytes, 0, 0, 1), ENOTCONN);
    EXPECT_ERROR(viaduct_readable(fresh), ENOTCONN);
    /* While the listener's queue is full, connections are not made: nothing has come, as the kernel says it too. */
    for (int index = 0; index < 8; index++) {
        waiting[index] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(waiting[index], (struct sockaddr *)&address, len);
    }
    for (size_t offset = 0; offset < 2; offset++)
        EXPECT_ERROR(viaduct_seek_recv(waiting[7], bytes, 4, 0, offset), EAGAIN);
    for (int index = 0; index < 8; index++)
        close(waiting[index]);
    /* Searched once, and closed. */
    number = p.far;
    EXPECT(send(p.near, "0123", 4, 0) == 4);
    EXPECT(viaduct_seek_recv(number, bytes, 2, MSG_WAITALL, 2) == 2);
    close(number);
    for (size_t offset = 0; offset < 2; offset++)
        EXPECT_ERROR(viaduct_seek_recv(number, bytes, 4, 0, offset), EBADF);
    EXPECT_ERROR(viaduct_readable(number), EBADF);
    EXPECT(dup2(fresh, number) == number);
    for (size_t offset = 0; offset < 2; offset++)
        EXPECT_ERROR(viaduct_seek_recv(number, bytes, 4, 0, offset), ENOTCONN);
    EXPECT(dup2(local[1], number) == number);
    for (size_t offset = 0; offset < 2; offset++)
        EXPECT_ERROR(viaduct_seek_recv(number, bytes, 4, MSG_DONTWAIT, offset), EOPNOTSUPP);
    for (int index = 0; index < 2; index++)
        close(local[index]);
    close(number);
    close(listener);
    close(fresh);
    close(set);
    close(p.near);
}

/* What a search would set too, or what tells more than bytes, set beforehand. */
static void options_that_rule_searches_out(void)
{
    static const int names[] = {SO_RCVLOWAT, SO_OOBINLINE, SO_TIMESTAMP, SO_PEEK_OFF};

    for (size_t index = 0; index < sizeof names / sizeof *names - (size_t)old; index++) {
        for (int warm = 0; warm < 2; warm++) {
            struct pair p = warm ? connect_pair() : connect_quickly();
            int value = names[index] == SO_RCVLOWAT ? 3 : 1, now = -1;
            socklen_t len = sizeof now;
            char bytes[16] = {0};

            EXPECT(setsockopt(p.far, SOL_SOCKET, names[index], &value, sizeof value) == 0);
            EXPECT(send_digits(p.near));
            for (int round = 0; round < 2; round++)
                if (viaduct_seek_recv(p.far, bytes, 1, MSG_DONTWAIT, 4) != -1 || errno != EOPNOTSUPP)
                    snprintf(failure, sizeof failure, "option %d, %s: no EOPNOTSUPP", names[index], warm ? "warm" : "fresh");
            EXPECT(getsockopt(p.far, SOL_SOCKET, names[index], &now, &len) == 0 && now == value);
            EXPECT(recv(p.far, bytes, 16, 0) == 10 && !memcmp(bytes, "0123456789", 10));
            close_pair(p);
            if (failure[0])
                return;
        }
    }
}

static void *receive_five(void *fd)
{
    char bytes[5];

    return (void *)recv(*(int *)fd, bytes, 5, MSG_WAITALL);
}

/* No first search beside a receive that is inside the kernel; where a lane is, none is. */
static void a_receive_in_the_kernel_keeps_searches_out(void)
{
    struct pair p;
    char bytes[16] = {0};
    pthread_t thread;
    pid_t tid;
    void *got;

    if (!under_viaduct())
        return;
    p = connect_pair();
    thread = in_sleeping_thread(receive_five, &p.far, &tid);
    for (int round = 0; round < 3; round++) {
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 2, MSG_DONTWAIT, 3), on_lane() ? EAGAIN : EBUSY);
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 2, 0, 3 + (size_t)on_lane() * 100000000), on_lane() ? ENOBUFS : EBUSY);
    }
    EXPECT(send(p.near, "0123456789", 10, 0) == 10);
    EXPECT(pthread_join(thread, &got) == 0 && (ssize_t)got == 5);
    EXPECT(viaduct_seek_recv(p.far, bytes, 2, 0, 3) == 2 && !memcmp(bytes, "89", 2));
    EXPECT(in_order(p.far, bytes, 16, 0) == 3 && !memcmp(bytes, "567", 3));
    close_pair(p);
}

static pthread_t waiter;
static int signals;
static volatile int returned;
static volatile sig_atomic_t handled;

static void note(int signal)
{
    handled = signal;
}

static void *interrupt(void *fd)
{
    /* One that comes between one sleep of the call and the next interrupts nothing. */
    for (int sent = 0; sent < signals && !returned && falls_asleep(getpid()); sent++)
        pthread_kill(waiter, SIGUSR1);
    falls_asleep(getpid());
    send(*(int *)fd, "0123456789", 10, 0);
    return NULL;
}

static void signals_interrupt_waits(void)
{
    for (int restarts = 0; restarts < 2; restarts++) {
        for (size_t offset = 0; offset < 9; offset += 8) {
            struct pair p = connect_pair();
            struct sigaction action = {.sa_handler = note, .sa_flags = restarts ? SA_RESTART : 0};
            char bytes[16] = {0};
            pthread_t thread;
            ssize_t got;
            int error;

            EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
            EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 2, MSG_DONTWAIT, 8), EAGAIN);
            waiter = pthread_self();
            signals = restarts && under_viaduct() ? 3 : 200;
            handled = returned = 0;
            thread = in_thread(interrupt, &p.near);
            errno = 0;
            got = viaduct_seek_recv(p.far, bytes, 2, MSG_WAITALL, offset);
            error = errno;
            returned = 1;
            EXPECT(handled == SIGUSR1);
            if (restarts && under_viaduct())
                EXPECT(got == 2 && !memcmp(bytes, offset ? "89" : "01", 2));
            else
                EXPECT(got == -1 && error == EINTR);
            pthread_join(thread, NULL);
            settle();
            EXPECT(waiting(p.far) == 10 - (got > 0 ? got : 0));
            close_pair(p);
        }
    }
}

static void *reset_later(void *fd)
{
    sleep_ms(30);
    reset(*(int *)fd);
    return NULL;
}

static void a_reset_is_told(void)
{
    for (int waits = 0; waits < 2; waits++) {
        struct pair p = pair_with_digits();
        char bytes[16] = {0};
        pthread_t thread;

        EXPECT(viaduct_seek_recv(p.far, bytes, 2, 0, 3) == 2 && !memcmp(bytes, "34", 2));
        thread = in_thread(reset_later, &p.near);
        if (!waits)
            pthread_join(thread, NULL);
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 2, MSG_WAITALL, 20), ECONNRESET);
        if (waits)
            pthread_join(thread, NULL);
        /* Once, as the kernel does. */
        EXPECT(viaduct_seek_recv(p.far, bytes, 2, MSG_DONTWAIT, 20) == 0);
        close(p.far);
    }
}

/* Old kernels do not reach all of it at once, which is no error of the socket's. */
static void much_that_has_left_the_lane(void)
{
    enum { much = 400000 };
    static unsigned char sent[much], got[much];
    struct pair p = connect_pair();
    int mark = much, one = 1, error = -1;
    socklen_t len = sizeof error;
    struct pollfd entry = {.fd = p.far, .events = POLLIN};

    /* The kernel makes room for so much, and the lane is left. */
    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0);
    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one) == 0);
    warm_up(p.near, p.far);
    for (size_t at = 0; at < much; at++)
        sent[at] = pattern(at);
    EXPECT(send_all(p.near, sent, much));
    for (double until = now() + 10; waiting(p.far) < much; sched_yield())
        EXPECT(now() < until);
    EXPECT(viaduct_seek_recv(p.far, got, 1, 0, 100) == 1 && got[0] == sent[100]);
    for (size_t at = 0; at < much;) {
        ssize_t some = in_order(p.far, got, much, 0);

        EXPECT(some > 0);
        for (ssize_t index = 0; index < some; index++, at++) {
            at += at == 100;
            EXPECT(got[index] == sent[at]);
        }
        EXPECT(poll(&entry, 1, 0) == (at < much) && !(entry.revents & POLLERR));
        EXPECT(getsockopt(p.far, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
    }
    close(p.near);
    EXPECT(in_order(p.far, got, much, 0) == 0);
    close(p.far);
}

static void only_so_many_sockets_can_be_searched(void)
{
    enum { most = 2048, more = 8 };
    struct rlimit limit;
    static struct pair pairs[most + more];
    int refused = 0;
    char byte;

    /* The memory of so many lanes is another limit. */
    if (on_lane())
        return;
    EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    if (!can_check(limit.rlim_max >= 2 * (most + more) + 20 || !geteuid(), "more descriptors"))
        return;
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int index = 0; index < most + more; index++) {
        pairs[index] = connect_quickly();
        EXPECT(send(pairs[index].near, "0123", 4, 0) == 4);
        ssize_t got = viaduct_seek_recv(pairs[index].far, &byte, 1, MSG_WAITALL, 2);
        int error = errno;
        EXPECT(index < most ? got == 1 && byte == '2' : got == -1 && error == ENOBUFS);
        refused += got == -1;
    }
    EXPECT(refused == more);
    /* Those that are searched go on, those that are refused have lost nothing, and there is room for one once another
     * is closed. */
    EXPECT(viaduct_seek_recv(pairs[7].far, &byte, 1, 0, 2) == 1 && byte == '3');
    close_pair(pairs[9]);
    EXPECT(viaduct_seek_recv(pairs[most].far, &byte, 1, 0, 2) == 1 && byte == '2');
    EXPECT_ERROR(viaduct_seek_recv(pairs[most + 1].far, &byte, 1, 0, 2), ENOBUFS);
    EXPECT(recv(pairs[most + 1].far, &byte, 1, 0) == 1 && byte == '0');
    for (int index = 0; index < most + more; index++)
        if (index != 9)
            close_pair(pairs[index]);
}

enum { far_away = 6 << 20, behind = 1000 };

static void *send_far(void *fd)
{
    static unsigned char bytes[65536];

    for (size_t at = 0; at < far_away + behind;) {
        size_t count = far_away + behind - at < sizeof bytes ? far_away + behind - at : sizeof bytes;

        for (size_t index = 0; index < count; index++)
            bytes[index] = pattern(at + index);
        if (!send_all(*(int *)fd, bytes, count))
            break;
        at += count;
    }
    return NULL;
}

/* What no lane holds the kernel does, if the program has made room for it there. */
static void a_larger_buffer_reaches_further(void)
{
    for (int asks = 1; asks >= 0; asks--) {
        struct pair p = connect_pair();
        /* Without peek offsets nothing does. */
        int room = 16 << 20, reaches = asks && !old;
        static unsigned char bytes[65536];
        pthread_t thread;

        /* The kernel may enlarge a buffer as far by itself; and not everybody may force it to. */
        if (asks ? setsockopt(p.far, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) && errno == EPERM : !on_lane()) {
            close_pair(p);
            continue;
        }
        thread = in_thread(send_far, &p.near);
        if (reaches) {
            EXPECT(viaduct_seek_recv(p.far, bytes, behind, MSG_WAITALL, far_away) == behind);
            for (size_t index = 0; index < behind; index++)
                EXPECT(bytes[index] == pattern(far_away + index));
            EXPECT(waiting(p.far) == far_away);
        } else {
            EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, behind, MSG_WAITALL, far_away), ENOBUFS);
        }
        for (size_t at = 0; at < far_away + (reaches ? 0 : behind);) {
            ssize_t got = in_order(p.far, bytes, sizeof bytes, 0);

            EXPECT(got > 0);
            for (ssize_t index = 0; index < got; index++, at++)
                EXPECT(bytes[index] == pattern(at));
        }
        pthread_join(thread, NULL);
        EXPECT(waiting(p.far) == 0);
        close_pair(p);
    }
}

static void *send_much(void *fd)
{
    static char sent[4 << 20];

    send_all(*(int *)fd, sent, sizeof sent);
    return NULL;
}

/* A buffer that is full of what has been received, but for a little, has room for what is not. */
static void received_bytes_take_no_room(void)
{
    static char bytes[60000];
    struct pair p = connect_quickly();
    int room = 120000, full = 0, before;
    pthread_t thread;
    double until;

    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
    thread = in_thread(send_much, &p.near);
    until = now() + 10;
    do {
        before = full;
        sleep_ms(50);
        EXPECT(ioctl(p.far, FIONREAD, &full) == 0);
        EXPECT(now() < until || !"the buffer is full");
    } while (full == 0 || full != before);
    while (waiting(p.far) > 20000 && full > 0) {
        EXPECT(viaduct_seek_recv(p.far, bytes, 4000, MSG_WAITALL, 0) == 4000);
        full -= 4000;
    }
    EXPECT(viaduct_seek_recv(p.far, bytes, sizeof bytes, MSG_WAITALL, 10000) == sizeof bytes);
    shutdown(p.far, SHUT_RDWR);
    pthread_join(thread, NULL);
    close_pair(p);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"a_first_search_asks_for_little", a_first_search_asks_for_little},
        {"a_first_wait_looks_nothing_up", a_first_wait_looks_nothing_up},
        {"bad_input_changes_nothing", bad_input_changes_nothing},
        {"what_is_thrown_away_needs_no_buffer", what_is_thrown_away_needs_no_buffer},
        {"sockets_that_are_not_connected", sockets_that_are_not_connected},
        {"options_that_rule_searches_out", options_that_rule_searches_out},
        {"a_receive_in_the_kernel_keeps_searches_out", a_receive_in_the_kernel_keeps_searches_out},
        {"signals_interrupt_waits", signals_interrupt_waits},
        {"a_reset_is_told", a_reset_is_told},
        {"much_that_has_left_the_lane", much_that_has_left_the_lane},
        {"only_so_many_sockets_can_be_searched", only_so_many_sockets_can_be_searched},
        {"a_larger_buffer_reaches_further", a_larger_buffer_reaches_further},
        {"received_bytes_take_no_room", received_bytes_take_no_room},
    };

    signal(SIGPIPE, SIG_IGN);
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
