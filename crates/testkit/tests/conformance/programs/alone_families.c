/* Processes that share a connection: what one sets holds for all, and they exclude each other in whatever namespaces
 * they are. */
#include "check.h"
#include <sched.h>
#include <sys/mman.h>

static struct pair p;

/* Does this in a child, and waits for its end. */
#define IN_CHILD(...)                                                                              \
    do {                                                                                           \
        pid_t child_ = fork();                                                                     \
        if (child_ == 0) {                                                                         \
            __VA_ARGS__;                                                                           \
            _exit(0);                                                                              \
        }                                                                                          \
        EXPECT(exited_well(child_));                                                               \
    } while (0)

static void set_time(int fd, int name, long seconds, long microseconds)
{
    struct timeval time = {seconds, microseconds};

    EXPECT(setsockopt(fd, SOL_SOCKET, name, &time, sizeof time) == 0);
}

static void set_number(int fd, int level, int name, int number)
{
    EXPECT(setsockopt(fd, level, name, &number, sizeof number) == 0);
}

/* A receive waits for what comes longer after it than any time-out here. */
static void waits_for_a_byte(void)
{
    char byte;
    pid_t later = fork();

    if (later == 0) {
        sleep_ms(80);
        _exit(!send_all(p.near, "x", 1));
    }
    EXPECT(recv(p.far, &byte, 1, 0) == 1);
    EXPECT(exited_well(later));
}

static void time_outs_of_receives(void)
{
    static const struct timeval times[] = {{0, 30000}, {-1, 0}};
    char byte;

    for (int time = 0; time < 2; time++) {
        p = make_pair();
        IN_CHILD(set_time(p.far, SO_RCVTIMEO, times[time].tv_sec, times[time].tv_usec));
        EXPECT_ERROR(recv(p.far, &byte, 1, 0), EAGAIN);
        IN_CHILD(EXPECT_ERROR(recv(p.far, &byte, 1, 0), EAGAIN));
        IN_CHILD(set_time(p.far, SO_RCVTIMEO, 0, 0));
        waits_for_a_byte();
        close_pair(p);
    }
}

static void time_outs_of_sends(void)
{
    static char much[1 << 20];
    long sent;

    p = make_pair();
    IN_CHILD(set_time(p.near, SO_SNDTIMEO, 0, 30000));
    do
        sent = send(p.near, much, sizeof much, 0);
    while (sent > 0);
    EXPECT(sent == -1);
    close_pair(p);
}

static void told_not_to_block_and_to_block(void)
{
    static char much[1 << 20];
    int on = 1, off = 0;
    long sent;
    char byte;

    p = make_pair();
    IN_CHILD(EXPECT(fcntl(p.far, F_SETFL, O_RDWR | O_NONBLOCK) == 0));
    EXPECT_ERROR(recv(p.far, &byte, 1, 0), EAGAIN);
    IN_CHILD(EXPECT(ioctl(p.far, FIONBIO, &off) == 0));
    waits_for_a_byte();
    IN_CHILD(EXPECT(ioctl(p.near, FIONBIO, &on) == 0));
    do
        sent = send(p.near, much, sizeof much, 0);
    while (sent > 0);
    EXPECT(sent == -1);
    close_pair(p);
}

static void small_messages(void)
{
    p = make_pair();
    int nodelay = number_of(p.near, IPPROTO_TCP, TCP_NODELAY);
    IN_CHILD(set_number(p.near, IPPROTO_TCP, TCP_NODELAY, !nodelay); set_number(p.near, IPPROTO_TCP, TCP_CORK, 1));
    EXPECT(number_of(p.near, IPPROTO_TCP, TCP_NODELAY) == !nodelay);
    EXPECT(number_of(p.near, IPPROTO_TCP, TCP_CORK) == 1);
    set_number(p.near, IPPROTO_TCP, TCP_CORK, 0);
    IN_CHILD(EXPECT(number_of(p.near, IPPROTO_TCP, TCP_CORK) == 0));
    close_pair(p);
}

static void low_water_marks(void)
{
    char bytes[16];

    p = make_pair();
    IN_CHILD(set_number(p.far, SOL_SOCKET, SO_RCVLOWAT, 10));
    pid_t later = fork();
    if (later == 0) {
        bool sent = send_all(p.near, "abc", 3);
        sleep_ms(80);
        _exit(!sent || !send_all(p.near, "0123456789", 10));
    }
    sleep_ms(20);
    EXPECT(recv(p.far, bytes, sizeof bytes, 0) == 13);
    EXPECT(exited_well(later));
    close_pair(p);
}

static void shut_down_by_a_child(void)
{
    char byte;

    p = make_pair();
    IN_CHILD(EXPECT(shutdown(p.near, SHUT_WR) == 0));
    EXPECT_ERROR(send(p.near, "x", 1, MSG_NOSIGNAL), EPIPE);
    EXPECT(recv(p.far, &byte, 1, 0) == 0);
    EXPECT(send(p.far, "y", 1, 0) == 1 && recv(p.near, &byte, 1, 0) == 1);
    close_pair(p);
}

/* One process writes and shuts down, the other reads. */
static void the_end_after_a_child_has_shut_down(void)
{
    char bytes[8];

    p = make_pair();
    EXPECT(send(p.near, "hello", 5, 0) == 5);
    IN_CHILD(EXPECT(shutdown(p.near, SHUT_WR) == 0));
    EXPECT(send(p.far, "data", 4, 0) == 4 && shutdown(p.far, SHUT_WR) == 0);
    EXPECT(recv(p.near, bytes, sizeof bytes, 0) == 4);
    EXPECT(recv(p.near, bytes, sizeof bytes, 0) == 0);
    EXPECT(recv(p.far, bytes, sizeof bytes, 0) == 5);
    EXPECT(recv(p.far, bytes, sizeof bytes, 0) == 0);
    close_pair(p);
}

/* Nobody waits for room behind the end. */
static void room_after_a_child_has_shut_down(void)
{
    static char much[1 << 16];
    struct pollfd entry;

    p = make_pair();
    while (send(p.near, much, sizeof much, MSG_DONTWAIT) > 0)
        ;
    entry = (struct pollfd){p.near, POLLOUT, 0};
    EXPECT(poll(&entry, 1, 0) == 0);
    IN_CHILD(EXPECT(shutdown(p.near, SHUT_WR) == 0));
    EXPECT(poll(&entry, 1, 2000) == 1 && entry.revents == POLLOUT);
    close_pair(p);
}

/* Each shuts one direction down; what the peer sends then is refused. */
static void both_directions_shut_down_by_two(void)
{
    struct pollfd entry;

    p = make_pair();
    IN_CHILD(EXPECT(shutdown(p.near, SHUT_WR) == 0));
    EXPECT(shutdown(p.near, SHUT_RD) == 0);
    EXPECT(send(p.far, "x", 1, 0) == 1);
    sleep_ms(20);
    EXPECT_ERROR(send(p.far, "x", 1, MSG_NOSIGNAL), EPIPE);
    entry = (struct pollfd){p.near, POLLIN | POLLOUT | POLLRDHUP, 0};
    EXPECT(poll(&entry, 1, 0) == 1);
    EXPECT(entry.revents == (POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR));
    close_pair(p);
}

/* A peer that has shut down its sending direction, and is killed with bytes unread that came just after others. */
static void killed_behind_its_end(void)
{
    struct pollfd entry;
    char bytes[8];

    p = make_pair();
    pid_t child = fork();
    if (child == 0) {
        close(p.near);
        shutdown(p.far, SHUT_WR);
        entry = (struct pollfd){p.far, POLLIN, 0};
        poll(&entry, 1, -1);
        recv(p.far, bytes, 1, 0);
        for (int times = 0; times < 50; times++) {
            poll(&entry, 1, 0);
            sleep_ms(1);
        }
        raise(SIGKILL);
    }
    close(p.far);
    EXPECT(recv(p.near, bytes, sizeof bytes, 0) == 0);
    EXPECT(send(p.near, "1", 1, 0) == 1);
    usleep(150);
    EXPECT(send(p.near, "2345678", 7, 0) == 7);
    EXPECT(waitpid(child, NULL, 0) == child);
    entry = (struct pollfd){p.near, 0, 0};
    EXPECT(poll(&entry, 1, 2000) == 1 && entry.revents == (POLLERR | POLLHUP));
    close(p.near);
}

/* The same with nothing unread but the library's marks, if any: an end like any other, and the first bytes after it
 * are taken. */
static void killed_behind_its_end_with_all_received(void)
{
    struct pollfd entry;
    char bytes[8];

    for (int round = 0; round < 4; round++) {
        p = make_pair();
        pid_t child = fork();
        if (child == 0) {
            close(p.near);
            shutdown(p.far, SHUT_WR);
            for (int times = 0; times < 20; times++)
                recv(p.far, bytes, sizeof bytes, MSG_WAITALL);
            recv(p.far, bytes, sizeof bytes, MSG_DONTWAIT);
            raise(SIGKILL);
        }
        close(p.far);
        EXPECT(recv(p.near, bytes, sizeof bytes, 0) == 0);
        for (int times = 0; times < 20; times++) {
            EXPECT(send(p.near, "goodbye!", 8, 0) == 8);
            usleep(times % 2 ? 1000 : 100);
        }
        EXPECT(waitpid(child, NULL, 0) == child);
        entry = (struct pollfd){p.near, POLLIN | POLLOUT, 0};
        EXPECT(poll(&entry, 1, 0) == 1 && entry.revents == (POLLIN | POLLOUT));
        EXPECT(recv(p.near, bytes, sizeof bytes, 0) == 0);
        EXPECT(send(p.near, "goodbye!", 8, MSG_NOSIGNAL) == 8);
        EXPECT_ERROR(send(p.near, "goodbye!", 8, MSG_NOSIGNAL), EPIPE);
        close(p.near);
    }
}

/* The next child is the first process of a namespace of its own. */
static void begin_a_namespace(void)
{
    EXPECT(unshare(CLONE_NEWPID) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0);
}

/* A parent and its child in another namespace send at once; every byte comes once. */
static void senders_in_two_namespaces(void)
{
    enum { ROUNDS = 200000 };

    p = make_pair();
    pid_t reader = fork();
    if (reader == 0) {
        static char bytes[1 << 14];
        long counts[2] = {0, 0}, got;
        close(p.near);
        while ((got = recv(p.far, bytes, sizeof bytes, 0)) > 0)
            for (long at = 0; at < got; at++)
                counts[bytes[at] == 'c']++;
        _exit(counts[0] != 8 * ROUNDS || counts[1] != 8 * ROUNDS);
    }
    close(p.far);
    begin_a_namespace();
    pid_t child = fork();
    if (child == 0 && (getpid() != 1 || getppid() != 0))
        _exit(1);
    for (int round = 0; round < ROUNDS; round++)
        if (!send_all(p.near, child == 0 ? "cccccccc" : "pppppppp", 8))
            _exit(1);
    if (child == 0)
        _exit(0);
    EXPECT(exited_well(child));
    close(p.near);
    EXPECT(exited_well(reader));
}

/* One of the two is killed in the midst of its sends; the other goes on. */
static void killed_in_two_namespaces(void)
{
    /* As the parent knows it, and whether it sends. */
    volatile pid_t *child = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static char bytes[1 << 14];

    for (int round = 0; round < 20; round++) {
        long received = 0;
        p = make_pair();
        child[0] = child[1] = 0;
        pid_t parent = fork();
        if (parent == 0) {
            signal(SIGPIPE, SIG_IGN);
            close(p.far);
            begin_a_namespace();
            pid_t made = fork();
            if (made > 0)
                child[0] = made;
            while (send(p.near, bytes, 1000, 0) > 0)
                child[1] |= made == 0;
            _exit(0);
        }
        close(p.near);
        while (received < 300000 || child[0] == 0 || child[1] == 0)
            received += recv(p.far, bytes, sizeof bytes, 0);
        kill(round % 2 ? *child : parent, SIGKILL);
        while (received < 1000000)
            received += recv(p.far, bytes, sizeof bytes, 0);
        close(p.far);
        if (round % 2 == 0)
            kill(*child, SIGKILL);
        EXPECT(waitpid(parent, NULL, 0) == parent);
    }
}

MAIN(ALONE(time_outs_of_receives), ALONE(time_outs_of_sends), ALONE(told_not_to_block_and_to_block), ALONE(small_messages),
     ALONE(low_water_marks), ALONE(shut_down_by_a_child),
     ALONE(the_end_after_a_child_has_shut_down), ALONE(room_after_a_child_has_shut_down),
     ALONE(both_directions_shut_down_by_two), ALONE(killed_behind_its_end),
     ALONE(killed_behind_its_end_with_all_received), ALONE(senders_in_two_namespaces), ALONE(killed_in_two_namespaces))
