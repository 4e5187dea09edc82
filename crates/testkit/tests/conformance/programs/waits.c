/* poll and select, time-outs, full sockets, low-water marks, other descriptors in the same wait. */
#include "play.h"
#include <limits.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

static void poll_waits_its_time(void)
{
    FAR(TIMED(35, 900, POLL(s, POLLIN, 40)); TIMED(0, 200, POLL(s, POLLIN, 0)));
}

static void poll_wakes(void)
{
    if (is_near) {
        sleep_ms(100);
        R(send(s, "x", 1, 0));
    } else {
        TIMED(15, 900, POLL(s, POLLIN, 1000));
        POLL(s, POLLIN, 0);
        POLL(s, POLLIN, -5);
        GET(s, 1, 0);
        POLL(s, POLLIN, 0);
    }
    step();
}

static void poll_wakes_without_end_of_time(void)
{
    for (int round = 0; round < 5; round++) {
        if (is_near) {
            sleep_ms(5);
            R(send(s, "x", 1, 0));
        } else {
            POLL(s, POLLIN, -1);
            GET(s, 1, 0);
        }
        step();
    }
}

static void poll_of_bad_and_double_descriptors(void)
{
    struct pollfd wait[6] = {{s, POLLIN, 77},  {-1, POLLIN, 77},         {777, POLLIN, 77},
                             {s, POLLOUT, 77}, {s, POLLIN | POLLOUT, 77}, {-s, POLLOUT, 77}};

    NEAR(R(send(s, "x", 1, 0)));
    FAR(arrive(s, POLLIN); R(poll(wait, 6, 1000));
        for (int index = 0; index < 6; index++) show_events("entry", (unsigned)wait[index].revents));
    FAR(R(poll(wait + 1, 1, 5)); R(poll(wait + 2, 1, 1000)); R(poll(NULL, 0, 5)); R(poll((struct pollfd *)8, 1, 5)));
    FAR(R(close(s)); R(poll(wait, 1, 1000)); show_events("closed", (unsigned)wait[0].revents));
}

static void poll_of_all_kinds_of_events(void)
{
    int all = POLLIN | POLLOUT | POLLPRI | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLWRBAND | POLLRDHUP;

    BOTH(POLL(s, all, 0); POLL(s, 0, 5));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(arrive(s, POLLIN); POLL(s, all, 0); POLL(s, POLLRDNORM, 0); POLL(s, 0, 5); POLL(s, POLLWRNORM, 0);
        POLL(s, POLLPRI, 0); POLL(s, POLLRDBAND, 0));
    NEAR(R(close(s)));
    FAR(arrive(s, POLLRDHUP); POLL(s, all, 0); POLL(s, 0, 5); POLL(s, POLLRDHUP, 0));
}

static void poll_of_many(void)
{
    static struct pollfd wait[300];

    for (int index = 0; index < 300; index++)
        wait[index] = (struct pollfd){index == 299 ? s : dup(0), POLLIN, 0};
    for (int index = 0; index < 299; index++)
        wait[index].events = 0;
    FAR(R(poll(wait, 300, 5)));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(R(poll(wait, 300, 1000)); show_events("last", (unsigned)wait[299].revents));
}

static void poll_of_more_than_may_be(void)
{
    struct rlimit limit = {64, 64};
    static struct pollfd wait[100];

    wait[0] = (struct pollfd){s, POLLIN, 0};
    NEAR(R(send(s, "x", 1, 0)));
    if (!is_near) {
        pid_t child = fork();
        if (child == 0) {
            setrlimit(RLIMIT_NOFILE, &limit);
            _exit(poll(wait, 100, 0) == -1 && errno == EINVAL ? 0 : 1);
        }
        reap(child);
    }
    step();
}

/* As many entries as the kernel takes, whether they stand for something or not. */
static void poll_of_as_many_as_may_be(void)
{
    struct rlimit limit = {64, 64};
    static struct pollfd wait[64];

    if (!is_near) {
        pid_t child = fork();
        if (child == 0) {
            int result[3];
            setrlimit(RLIMIT_NOFILE, &limit);
            for (int index = 0; index < 64; index++)
                wait[index] = (struct pollfd){index ? -1 : s, POLLIN, 0};
            result[0] = poll(wait, 64, 20);
            for (int index = 0; index < 64; index++)
                wait[index] = (struct pollfd){s, POLLIN, 0};
            result[1] = poll(wait, 63, 20);
            result[2] = poll(wait, 64, 20);
            _exit(result[0] || result[1] || result[2]);
        }
        reap(child);
    }
    step();
}

static void ppoll_and_its_mask(void)
{
    struct pollfd wait = {s, POLLIN, 0};
    struct timespec time = {0, 20000000}, wrong = {0, 2000000000}, negative = {-1, 0};
    sigset_t blocked, none;

    FAR(count_signals(SIGUSR1, 0); sigemptyset(&none); sigemptyset(&blocked); sigaddset(&blocked, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &blocked, NULL); raise(SIGUSR1); R(poll(&wait, 1, 10)); say("%d signals", signals);
        R(ppoll(&wait, 1, NULL, &none)); say("%d signals", signals); TIMED(18, 900, R(ppoll(&wait, 1, &time, &none)));
        say("time left as it was: %ld", time.tv_nsec); R(ppoll(&wait, 1, &wrong, NULL)); R(ppoll(&wait, 1, &negative, NULL)));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(raise(SIGUSR1); R(ppoll(&wait, 1, &time, NULL)); say("%d signals", signals));
}

static void select_wakes(void)
{
    fd_set in, out, except;
    struct timeval time = {1, 0};

    if (is_near) {
        sleep_ms(100);
        R(send(s, "x", 1, 0));
    } else {
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_ZERO(&except);
        FD_SET(s, &in);
        FD_SET(s, &except);
        R(select(s + 1, &in, &out, &except, &time));
        say("%d %d %d", FD_ISSET(s, &in) != 0, FD_ISSET(s, &out) != 0, FD_ISSET(s, &except) != 0);
        /* Linux tells what is left of the time. */
        say("%d", time.tv_sec == 0 && time.tv_usec > 500000 && time.tv_usec < 990000);
        FD_SET(s, &out);
        R(select(s + 1, &in, &out, NULL, NULL));
        GET(s, 1, 0);
        R(select(s + 1, &in, &out, NULL, NULL));
        say("%d %d", FD_ISSET(s, &in) != 0, FD_ISSET(s, &out) != 0);
    }
    step();
}

/* Who asks for urgent data, or for room, is not told of the end. */
static void select_of_what_does_not_come(void)
{
    struct timeval time = {0, 30000};
    fd_set except;

    BOTH(R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLHUP); FD_ZERO(&except); FD_SET(s, &except); TIMED(25, 900, R(select(s + 1, NULL, NULL, &except, &time)));
        say("%d", FD_ISSET(s, &except) != 0));
}

static void select_waits_its_time(void)
{
    fd_set in;
    struct timeval time = {0, 30000}, none = {0, 0};
    struct timespec precise = {0, 30000000};

    FAR(FD_ZERO(&in); FD_SET(s, &in); TIMED(25, 900, R(select(s + 1, &in, NULL, NULL, &time)));
        say("%d left %ld", FD_ISSET(s, &in) != 0, time.tv_usec); FD_SET(s, &in); R(select(s + 1, &in, NULL, NULL, &none));
        FD_SET(s, &in); TIMED(25, 900, R(pselect(s + 1, &in, NULL, NULL, &precise, NULL))); say("left %ld", precise.tv_nsec);
        time.tv_usec = 20000; TIMED(15, 900, R(select(0, NULL, NULL, NULL, &time))));
}

static void select_errors(void)
{
    fd_set in;
    struct timeval time = {0, 5000}, wrong = {-1, 0};

    BOTH(FD_ZERO(&in); FD_SET(s, &in); FD_SET(777, &in); R(select(778, &in, NULL, NULL, &time)); R(select(-1, &in, NULL, NULL, &time));
         FD_ZERO(&in); FD_SET(s, &in); R(select(s + 1, &in, NULL, NULL, &wrong));
         R(select(s + 1, (fd_set *)8, NULL, NULL, &time)));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(arrive(s, POLLIN); FD_ZERO(&in); FD_SET(s, &in); FD_SET(777, &in); R(select(778, &in, NULL, NULL, NULL));
        say("set %d and %d", FD_ISSET(s, &in) != 0, FD_ISSET(777, &in) != 0));
    BOTH(FD_ZERO(&in); FD_SET(s, &in); R(close(s)); R(select(s + 1, &in, NULL, NULL, &time)));
}

/* Past the checks of a fortified build, which count to FD_SETSIZE. */
static int (*volatile unchecked_select)(int, fd_set *, fd_set *, fd_set *, struct timeval *) = select;

static void select_above_1024(void)
{
    struct rlimit limit = {4096, 4096};
    fd_set *in = calloc(1, 4096 / 8);
    int high = -1;
    struct timeval time = {1, 0};

    FAR(setrlimit(RLIMIT_NOFILE, &limit); high = fcntl(s, F_DUPFD, 2000); say("%d", high));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(((char *)in)[high / 8] |= (char)(1 << high % 8); R(unchecked_select(high + 1, in, NULL, NULL, &time));
        say("%d", (((char *)in)[high / 8] >> high % 8) & 1); GET(high, 1, 0); POLL(high, POLLIN | POLLOUT, 0));
}

/* As programs do that say getdtablesize() descriptors of sets that have no more than 1024. */
static void select_of_more_than_the_sets_hold(void)
{
    struct rlimit limit = {60000, 60000};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fd_set *in = (fd_set *)(void *)(pages + page - sizeof *in);
    struct timeval time = {1, 0};
    struct timespec precise = {1, 0};

    BOTH(setrlimit(RLIMIT_NOFILE, &limit); mprotect(pages + page, page, PROT_NONE));
    s = join();
    FAR(time.tv_sec = 0; FD_SET(s, in); R(select(getdtablesize(), in, NULL, NULL, &time)); time.tv_sec = 1);
    NEAR(R(send(s, "x", 1, 0)));
    FAR(FD_SET(s, in); R(select(getdtablesize(), in, NULL, NULL, &time)); say("%d", FD_ISSET(s, in) != 0);
        R(pselect(getdtablesize(), in, NULL, NULL, &precise, NULL)); R(select(INT_MAX, in, NULL, NULL, &time)); GET(s, 1, 0));
}

static void masks_of_waits_that_do_not_wait(void)
{
    struct pollfd wait = {s, POLLIN, 0};
    struct timespec none_left = {0, 0};
    struct epoll_event event = {.events = EPOLLIN};
    sigset_t blocked, none;
    fd_set in;
    int set = epoll_create1(0);

    FAR(count_signals(SIGUSR1, 0); sigemptyset(&none); sigemptyset(&blocked); sigaddset(&blocked, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &blocked, NULL); FD_ZERO(&in); FD_SET(s, &in); epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
        R(ppoll(&wait, 1, &none_left, &none)); raise(SIGUSR1); R(ppoll(&wait, 1, &none_left, &none)); say("%d signals", signals);
        raise(SIGUSR1); R(pselect(s + 1, &in, NULL, NULL, &none_left, &none)); say("%d signals", signals);
        raise(SIGUSR1); R(epoll_pwait(set, &event, 1, 0, &none)); say("%d signals", signals));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(arrive(s, POLLIN); raise(SIGUSR1); R(ppoll(&wait, 1, &none_left, &none)); R(pselect(s + 1, &in, NULL, NULL, &none_left, &none));
        R(epoll_pwait(set, &event, 1, 0, &none)); say("%d signals", signals));
}

static void masks_of_pselect(void)
{
    sigset_t blocked, none;
    fd_set in;

    FAR(count_signals(SIGUSR1, 0); sigemptyset(&none); sigemptyset(&blocked); sigaddset(&blocked, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &blocked, NULL); raise(SIGUSR1); FD_ZERO(&in); FD_SET(s, &in);
        R(pselect(s + 1, &in, NULL, NULL, NULL, &none)); say("%d signals", signals));
}

static void waits_with_other_kinds(void)
{
    int counter = eventfd(0, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0), ends[2], signalled;
    struct itimerspec soon = {.it_value = {0, 15000000}};
    sigset_t blocked;
    uint64_t one = 1;
    char bytes[200];

    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    signalled = signalfd(-1, &blocked, 0);
    pipe(ends);
    struct pollfd wait[] = {{s, POLLIN, 0}, {counter, POLLIN, 0}, {timer, POLLIN, 0}, {ends[0], POLLIN, 0}, {signalled, POLLIN, 0}};
    FAR(R(poll(wait, 5, 5)); timerfd_settime(timer, 0, &soon, NULL); R(poll(wait, 5, 1000)); R(read(timer, &one, 8));
        R(write(counter, &one, 8)); R(poll(wait, 5, 1000)); R(read(counter, &one, 8)); raise(SIGUSR2); R(poll(wait, 5, 1000));
        R(read(signalled, bytes, sizeof bytes)); R(write(ends[1], "p", 1)); R(poll(wait, 5, 1000)); R(read(ends[0], bytes, 1)));
    if (is_near) {
        sleep_ms(10);
        R(send(s, "x", 1, 0));
    } else {
        R(poll(wait, 5, 1000));
        show_events("socket", (unsigned)wait[0].revents);
    }
    step();
}

static void unseen_waits_wake(void)
{
    struct pollfd wait = {s, POLLIN, 0};

    for (int round = 0; round < 6; round++) {
        if (is_near) {
            ask();
            sleep_ms(8);
            R(send(s, "x", 1, 0));
        } else {
            GET(s, 1, MSG_DONTWAIT);
            tell(0);
#ifdef SYS_poll
            R(unseen_call(SYS_poll, (long)&wait, 1, 1000));
#else
            R(poll(&wait, 1, 1000));
#endif
            GET(s, 1, 0);
        }
        step();
    }
}

static void receive_time_out(void)
{
    struct timeval time = {0, 300000}, asked, wrong = {0, 2000000};
    socklen_t length = sizeof asked;

    FAR(R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time)); R(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &asked, &length));
        say("%ld %ld %u", asked.tv_sec, asked.tv_usec, length); TIMED(290, 900, GET(s, 1, 0)); TIMED(290, 900, R(read(s, &asked, 1)));
        TIMED(0, 200, GET(s, 1, MSG_DONTWAIT)); R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wrong, sizeof wrong));
        R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, 3)); TIMED(290, 900, GET(s, 1, 0)));
    if (is_near) {
        sleep_ms(20);
        R(send(s, "x", 1, 0));
    } else
        GET(s, 1, 0);
    step();
}

static void time_outs_set_before_connecting(int fd)
{
    struct timeval time = {0, 50000};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

static void receive_time_out_inherited(void)
{
    s = join_by(AF_INET, time_outs_set_before_connecting);
    BOTH(TIMED(40, 900, GET(s, 1, 0)));
}

static void send_time_out(void)
{
    struct timeval time = {0, 60000};
    static char bytes[1 << 20];
    long sent = 0;

    NEAR(R(setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time)); fill(s); POLL(s, POLLOUT, 5);
         TIMED(50, 900, sent = send(s, bytes, sizeof bytes, 0)); say("all %d", sent == sizeof bytes);
         TIMED(50, 900, sent = send(s, bytes, sizeof bytes, 0)); say("all %d", sent == sizeof bytes));
}

static void full_and_empty_again(void)
{
    long total = 0;

    if (is_near) {
        total = (long)fill(s);
        say("much %d", total > 10000);
        POLL(s, POLLIN | POLLOUT, 5);
        tell((int)total);
        POLL(s, POLLOUT, 2000);
        ask();
        R(send(s, "x", 1, MSG_DONTWAIT));
    } else {
        drain(s, (size_t)ask());
        tell(0);
        GET(s, 1, 0);
    }
    step();
}

static void low_water_mark(void)
{
    int mark = 10, asked = 0;
    socklen_t length = sizeof asked;

    FAR(R(setsockopt(s, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark)); R(getsockopt(s, SOL_SOCKET, SO_RCVLOWAT, &asked, &length));
        say("%d", asked));
    NEAR(R(send(s, "12345", 5, 0)));
    FAR(POLL(s, POLLIN, 15));
    NEAR(R(send(s, "67890", 5, 0)));
    FAR(POLL(s, POLLIN, 1000); GET(s, 20, 0));
    /* In one piece: the kernel forgets to wake a reader that has received less than the mark. */
    if (is_near) {
        sleep_ms(100);
        R(send(s, "abcabcabcabc", 12, 0));
    } else
        TIMED(10, 900, GET(s, 20, 0));
    step();
}

static void signal_driven(void)
{
    FAR(count_signals(SIGIO, 0); R(fcntl(s, F_SETOWN, getpid())); R(fcntl(s, F_SETFL, O_ASYNC | O_NONBLOCK)));
    NEAR(sleep_ms(5); R(send(s, "x", 1, 0)));
    FAR(for (int round = 0; round < 500 && signals == 0; round++) sleep_ms(1); say("signalled %d", signals > 0); GET(s, 1, 0));
}

static void *poll_in_thread(void *events)
{
    struct pollfd wait = {s, (short)(long)events, 0};

    poll(&wait, 1, 1000);
    return (void *)(long)wait.revents;
}

static void several_threads_poll_one_socket(void)
{
    pthread_t threads[3];
    void *result;

    if (is_near) {
        sleep_ms(25);
        R(send(s, "x", 1, 0));
    } else {
        for (int index = 0; index < 3; index++)
            threads[index] = in_thread(poll_in_thread, (void *)(long)POLLIN);
        for (int index = 0; index < 3; index++) {
            pthread_join(threads[index], &result);
            show_events("thread", (unsigned)(long)result);
        }
    }
    step();
}

static void both_ends_in_one_wait(void)
{
    int other = join();
    struct pollfd wait[] = {{s, POLLIN, 0}, {other, POLLIN, 0}};

    FAR(R(poll(wait, 2, 5)));
    NEAR(R(send(other, "x", 1, 0)));
    FAR(R(poll(wait, 2, 1000)); show_events("first", (unsigned)wait[0].revents); show_events("second", (unsigned)wait[1].revents));
    NEAR(R(send(s, "y", 1, 0)));
    FAR(arrive(s, POLLIN); R(poll(wait, 2, 1000)));
}

MAIN(JOINED(poll_waits_its_time), JOINED(poll_wakes), JOINED(poll_wakes_without_end_of_time),
     JOINED(poll_of_bad_and_double_descriptors), JOINED(poll_of_all_kinds_of_events), JOINED(poll_of_many),
     JOINED(poll_of_more_than_may_be), JOINED(poll_of_as_many_as_may_be), JOINED(ppoll_and_its_mask), JOINED(select_wakes), JOINED(select_waits_its_time), JOINED(select_of_what_does_not_come),
     JOINED(select_errors), JOINED(select_above_1024), BARE(select_of_more_than_the_sets_hold), JOINED(masks_of_waits_that_do_not_wait), JOINED(masks_of_pselect), JOINED(waits_with_other_kinds),
     JOINED(unseen_waits_wake), JOINED(receive_time_out), BARE(receive_time_out_inherited), JOINED(send_time_out),
     JOINED(full_and_empty_again), JOINED(low_water_mark), JOINED(signal_driven), JOINED(several_threads_poll_one_socket),
     JOINED(both_ends_in_one_wait))
