/* Ordinary calls that are never ended, on connections that are never searched: their process is killed in the midst of
 * them, or a handler leaves them, at each of their system calls or many of their instructions. */
#include "steps.h"

/* Unread bytes of a connection that is never searched: raw ones, the lane's, and where the sender has left it raw ones
 * again. */
enum { before = 100, in_lane = 200, behind = 300, all = before + in_lane + behind, received = 30 };
static unsigned char bytes[2 * all];

/* Bytes that have come to `fd` by the kernel (`tcpi_bytes_received`). */
static unsigned long come_by_kernel(int fd)
{
    unsigned long words[17] = {0};
    socklen_t length = sizeof words;

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, words, &length) ? 0 : words[16];
}

/* A connection on which `sent` has been sent up to the end of what the lane has, if there is one: a busy machine may be
 * too slow for it. */
static struct pair pair_with_lane(const unsigned char *sent)
{
    struct pair p = connect_quickly();
    unsigned char echo[100] = {0};
    int on = 1;

    if (setsockopt(p.near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) || !send_all(p.near, sent, before))
        snprintf(failure, sizeof failure, "could not send");
    /* Both ends get the lane. */
    for (int round = 0; round < 30; round++) {
        if (!send_all(p.far, echo, sizeof echo) || !receive_all(p.near, echo, sizeof echo))
            snprintf(failure, sizeof failure, "no echo");
        sleep_ms(1);
    }
    if (!send_all(p.near, sent + before, in_lane))
        snprintf(failure, sizeof failure, "could not send on the lane");
    settle();
    return p;
}

static struct pair pair_of_stretches(int leaves)
{
    unsigned char sent[all];
    struct pair p;
    int least = 2;

    for (size_t at = 0; at < all; at++)
        sent[at] = pattern(at + 1);
    p = pair_with_lane(sent);
    for (int tries = 0; on_lane() && come_by_kernel(p.far) >= before + in_lane; tries++) {
        if (tries == 20) {
            snprintf(failure, sizeof failure, "no lane");
            break;
        }
        close_pair(p);
        p = pair_with_lane(sent);
    }
    if (leaves && (setsockopt(p.near, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) ||
                   !send_all(p.near, sent + before + in_lane, behind)))
        snprintf(failure, sizeof failure, "could not send behind the lane");
    settle();
    return p;
}

static int peeks_at_all(int fd, const struct work *work)
{
    ssize_t got = recv(fd, bytes, all, MSG_PEEK | MSG_DONTWAIT);

    (void)work;
    return got == all || (old && got > 0);
}

static int receives_some(int fd, const struct work *work)
{
    (void)work;
    return recv(fd, bytes, received, MSG_DONTWAIT) == received;
}

/* Ends a peek by the ordinary call after each of its system calls: nothing is received by it. */
static void end_peeks(int jumps)
{
    /* Steps take long on a busy machine. */
    alarm(60);
    for (long after = 0, whole = LONG_MAX; after < whole && !failure[0]; after++) {
        struct pair p = pair_of_stretches(1);
        pid_t child = stopped(p.far, peeks_at_all, NULL, after, &whole);

        EXPECT(child > 0);
        if (jumps && !shared->done) {
            kill(child, SIGUSR1);
            ptrace(PTRACE_DETACH, child, NULL, NULL);
            while (!shared->jumped)
                sched_yield();
        } else {
            finish(child);
        }
        /* What is found first tells of what has come by the lane. */
        for (size_t got = 0; got < all; got++) {
            EXPECT(recv(p.far, bytes, 1, MSG_DONTWAIT) == 1);
            EXPECT(bytes[0] == pattern(got + 1));
        }
        EXPECT_ERROR(recv(p.far, bytes, 1, MSG_DONTWAIT), EAGAIN);
        if (jumps && !shared->done)
            finish(child);
        close_pair(p);
    }
}

static void killed_amid_peeks(void)
{
    end_peeks(0);
}

static void jumps_out_of_peeks(void)
{
    end_peeks(1);
}

static int receives_all(int fd, const struct work *work)
{
    size_t got = 0;

    (void)work;
    for (ssize_t more; got < all && (more = recv(fd, bytes, all, MSG_DONTWAIT)) > 0;)
        got += (size_t)more;
    return got == all;
}

/* Ends receives over several stretches after each of their system calls: what is left is the end of the stream, from
 * where one of them begins. */
static void killed_between_stretches(void)
{
    static const size_t ends[] = {all, all - before, behind, 0};
    size_t seen[4] = {0}, last = all;

    alarm(60);
    for (long after = 0, whole = LONG_MAX; after < whole && !failure[0]; after++) {
        struct pair p = pair_of_stretches(1);
        pid_t child = stopped(p.far, receives_all, NULL, after, &whole);
        size_t got = 0, which = 0;

        EXPECT(child > 0);
        finish(child);
        for (ssize_t more; (more = recv(p.far, bytes + got, sizeof bytes - got, MSG_DONTWAIT)) > 0;)
            got += (size_t)more;
        while (which < 4 && got != ends[which])
            which++;
        /* None comes back, and all are gone at the end. */
        EXPECT(which < 4 && got <= last && (after > 0 || got == all) && (!shared->done || got == 0));
        seen[which]++;
        last = got;
        for (size_t at = 0; at < got; at++)
            EXPECT(bytes[at] == pattern(all - got + at + 1));
        close_pair(p);
    }
    EXPECT(seen[0] && seen[3]);
    EXPECT(on_lane() ? seen[1] && seen[2] : !seen[1] && !seen[2]);
}

/* Ends a receive of raw bytes after each of its system calls. The sender resets the connection then, so that the kernel
 * no longer tells where in the stream it is: the other bytes come, or ECONNRESET, and none that nobody has sent. */
static void killed_before_a_reset(void)
{
    alarm(60);
    for (long after = 0, whole = LONG_MAX; after < whole && !failure[0]; after++) {
        struct pair p = pair_of_stretches(0);
        pid_t child = stopped(p.far, receives_some, NULL, after, &whole);
        size_t got = 0, taken;
        ssize_t more;

        EXPECT(child > 0);
        finish(child);
        reset(p.near);
        settle();
        while ((more = recv(p.far, bytes + got, sizeof bytes - got, MSG_DONTWAIT)) > 0)
            got += (size_t)more;
        EXPECT(more == -1 && got <= all);
        taken = got && bytes[0] == pattern(received + 1) ? received : 0;
        EXPECT(got <= before + in_lane - taken);
        for (size_t at = 0; at < got; at++)
            EXPECT(bytes[at] == pattern(taken + at + 1));
        close(p.far);
    }
}

static int sends_a_byte(int fd, const struct work *work)
{
    (void)work;
    return send(fd, "", 1, MSG_DONTWAIT) == 1;
}

struct sleeper {
    int fd;
    volatile int woken;
};

static void *sleep_until_there(void *argument)
{
    struct sleeper *sleeper = argument;
    char byte;

    recv(sleeper->fd, &byte, 1, 0);
    sleeper->woken = 1;
    return NULL;
}

/* A handler leaves a send, by a jump or the end of its thread, at many of its instructions from the middle on: a
 * receiver that sleeps does not do so beside what has been sent. */
static void leave_sends(void)
{
    struct pair p = connect_pair();

    alarm(60);
    for (long after = LONG_MAX, whole = 0; after == LONG_MAX || after < whole; after = after == LONG_MAX ? whole / 2 : after + 5) {
        struct sleeper sleeper = {p.far, 0};
        pid_t tid, child = traced(p.near, sends_a_byte, NULL);
        pthread_t thread;
        long made;

        EXPECT(child > 0);
        thread = in_sleeping_thread(sleep_until_there, &sleeper, &tid);
        made = go_on(child, PTRACE_SINGLESTEP, after);
        EXPECT(made >= 0);
        if (shared->done) {
            whole = made;
        } else {
            syscall(SYS_tgkill, child, child, SIGUSR1);
            ptrace(PTRACE_DETACH, child, NULL, NULL);
            while (!shared->jumped)
                sched_yield();
        }
        for (double until = now() + 10; waiting(p.far) > 0 && !sleeper.woken && now() < until;)
            sleep_ms(1);
        EXPECT(sleeper.woken || waiting(p.far) == 0);
        /* Where nothing has been sent. */
        EXPECT(sleeper.woken || send_all(p.near, "", 1));
        pthread_join(thread, NULL);
        finish(child);
    }
    close_pair(p);
}

static void jumps_out_of_sends(void)
{
    leave_sends();
}

static void ends_amid_sends(void)
{
    ends_thread = 1;
    leave_sends();
    ends_thread = 0;
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"killed_amid_peeks", killed_amid_peeks},
        {"jumps_out_of_peeks", jumps_out_of_peeks},
        {"killed_between_stretches", killed_between_stretches},
        {"killed_before_a_reset", killed_before_a_reset},
        {"jumps_out_of_sends", jumps_out_of_sends},
        {"ends_amid_sends", ends_amid_sends},
    };

    prepare_steps();
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
