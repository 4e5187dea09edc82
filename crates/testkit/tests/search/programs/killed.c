/* Calls that are never ended: their process is killed in the midst of them, or a handler jumps out of them, at each of their system calls and
 * instructions. Whoever shares the socket finds the bytes as they were before the call or as it leaves them, or in between, or ECONNRESET. */
#include "check.h"
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

/* `budget`: instructions that a check steps through, at some 10 us each, so that it ends few calls at each. `last`: but those that take bytes off
 * the front, which comes last, at each of so many. */
enum { most = 150000, budget = 30000, last = 80 };

/* What is sent and what of it is taken beforehand; and what the call takes. Each from an offset on, so many bytes. */
struct work {
    size_t sent;
    struct {
        size_t offset, count;
    } before[2], call;
};

static const struct work works[] = {
    /* Joins two holes. */
    {2000, {{500, 100}, {700, 100}}, {500, 200}},
    /* Comes to a hole. */
    {2000, {{100, 1000}, {0, 0}}, {0, 100}},
    /* Not peeked in bulk. */
    {most, {{0, 0}, {0, 0}}, {1000, 60000}},
    {most, {{60000, 50000}, {0, 0}}, {0, 60000}},
    /* Throws much away that has been received before. */
    {most, {{1, 60000}, {1, 60000}}, {0, 1}},
};
static const struct work *const little_search = &works[0], *const little_receive = &works[1];

static struct {
    volatile int done, jumped;
} *shared;
static unsigned char bytes[most + 1];
/* On which a child receives a byte first: what it needs for itself is made then. */
static struct pair other;
static sigjmp_buf outside;

/* What the handler does: it ends its thread, of which there is another then, or jumps. */
static int ends_thread;

static void *wait_for_ever(void *argument)
{
    for (;;)
        pause();
    return argument;
}

static void jump(int signal)
{
    (void)signal;
    if (ends_thread) {
        shared->jumped = 1;
        pthread_exit(NULL);
    }
    siglongjmp(outside, 1);
}

static ssize_t take(int fd, size_t offset, size_t count)
{
    return offset ? viaduct_seek_recv(fd, bytes, count, MSG_DONTWAIT, offset) : in_order(fd, bytes, count, MSG_DONTWAIT);
}

static int makes_call(int fd, const struct work *work)
{
    return take(fd, work->call.offset, work->call.count) == (ssize_t)work->call.count;
}

/* A child that is about to make the call. */
static pid_t traced(int fd, int (*call)(int fd, const struct work *work), const struct work *work)
{
    int status;
    pid_t child;

    shared->done = shared->jumped = 0;
    if (send(other.near, "", 1, 0) != 1)
        return -1;
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (sigsetjmp(outside, 1) == 0) {
            signal(SIGUSR1, jump);
            if (in_order(other.far, bytes, 1, 0) != 1)
                _exit(1);
            if (ends_thread)
                in_thread(wait_for_ever, NULL);
            if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0)
                raise(SIGSTOP);
            shared->done = call(fd, work) ? 1 : -1;
            raise(SIGSTOP);
        }
        shared->jumped = 1;
        /* The library alone knows of no jump: it has the socket free once the thread has ended. */
        while (under_viaduct())
            pause();
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return -1;
    ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL);
    return child;
}

/* Goes on in so many steps, up to the end of the call; how many it took, -1 on any error. */
static long go_on(pid_t child, enum __ptrace_request step, long steps)
{
    long made = 0;
    int status;

    for (; made < steps && !shared->done; made++)
        if (ptrace(step, child, NULL, NULL) || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
            return -1;
    return made;
}

/* A child that has made `after` of the call's system calls; -1 on any error. `whole`: how many there are, once it has made them all. */
static pid_t stopped(int fd, int (*call)(int fd, const struct work *work), const struct work *work, long after, long *whole)
{
    pid_t child = traced(fd, call, work);
    long made = child < 0 ? -1 : go_on(child, PTRACE_SYSCALL, after);

    if (made < 0 || shared->done < 0)
        return -1;
    if (shared->done)
        *whole = made;
    return child;
}

static void finish(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Whether the holes were found damaged. `ended`: the call was not amid its work. */
static int damaged;

static void compare(int fd, const struct work *work, size_t base, int ended)
{
    static size_t unread[most];
    size_t count = 0, drained = 0, taken;
    long counted = waiting(fd);
    ssize_t got;

    for (size_t at = 0; at < work->sent; at++)
        unread[count++] = base + at;
    for (size_t index = 0; index < 2; index++) {
        size_t offset = work->before[index].offset, end = offset + work->before[index].count;

        memmove(unread + offset, unread + end, (count - end) * sizeof *unread);
        count -= end - offset;
    }
    /* First a few, which are peeked. */
    while ((got = in_order(fd, bytes + drained, drained ? sizeof bytes - drained : 10, MSG_DONTWAIT)) > 0)
        drained += (size_t)got;
    damaged = got == -1 && errno == ECONNRESET && drained == 0 && !ended;
    if (damaged) {
        /* It stays so. */
        for (size_t offset = 0; offset < 3; offset++)
            EXPECT_ERROR(viaduct_seek_recv(fd, bytes, 1, MSG_DONTWAIT, offset), ECONNRESET);
        return;
    }
    EXPECT(got == -1 && counted == (long)drained);
    EXPECT(drained <= count);
    taken = count - drained;
    EXPECT(ended ? taken == work->call.count : taken <= work->call.count);
    for (size_t index = 0; index < drained; index++)
        EXPECT(bytes[index] == pattern(unread[index < work->call.offset ? index : index + taken]));
}

/* Ends the call after its steps; how often that has damaged the holes. */
static int end_amid(const struct work *work, enum __ptrace_request step, int jumps)
{
    struct pair p = connect_pair();
    long whole = 0, after = LONG_MAX;
    size_t base = 0;
    int hits = 0, room = 1 << 20;

    /* Steps take long on a busy machine. */
    alarm(30);
    if (setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room))
        return -1;
    do {
        long made;
        pid_t child;

        for (size_t at = 0; at < work->sent; at++)
            bytes[at] = pattern(base + at);
        if (!send_all(p.near, bytes, work->sent))
            return -1;
        while (waiting(p.far) != (long)work->sent)
            sched_yield();
        for (size_t index = 0; index < 2; index++)
            if (work->before[index].count)
                take(p.far, work->before[index].offset, work->before[index].count);
        child = traced(p.far, makes_call, work);
        made = child < 0 ? -1 : go_on(child, step, after);
        if (made < 0 || shared->done < 0) {
            snprintf(failure, sizeof failure, "the call was not made: %ld steps, %d", made, shared->done);
            return -1;
        }
        if (jumps && !shared->done) {
            kill(child, SIGUSR1);
            ptrace(PTRACE_DETACH, child, NULL, NULL);
            while (!shared->jumped)
                sched_yield();
        }
        if (!jumps || shared->done || !under_viaduct())
            finish(child);
        compare(p.far, work, base, shared->done);
        if (jumps && !shared->done && under_viaduct())
            finish(child);
        if (failure[0]) {
            printf("# after %ld steps of %ld\n", after, whole);
            return -1;
        }
        base += work->sent;
        if (damaged) {
            hits++;
            close_pair(p);
            p = connect_pair();
            setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
            base = 0;
        }
        if (after == LONG_MAX) {
            whole = made;
            after = 0;
        }
        after++;
        if (step == PTRACE_SINGLESTEP && (work->call.offset > 0 || whole - after > last))
            after += whole * whole / (2 * budget);
    } while (after < whole);
    close_pair(p);
    printf("# damaged by %d of %ld steps\n", hits, whole);
    return hits;
}

static int end_amid_system_calls(int jumps)
{
    int hits = 0;

    for (size_t index = 0; index < sizeof works / sizeof *works && !failure[0]; index++)
        hits += end_amid(&works[index], PTRACE_SYSCALL, jumps);
    return hits;
}

static void killed_amid_searches(void)
{
    EXPECT(end_amid(little_search, PTRACE_SINGLESTEP, 0) > 0 || failure[0]);
}

static void killed_amid_receives(void)
{
    end_amid(little_receive, PTRACE_SINGLESTEP, 0);
}

/* On a lane few calls are system calls, and on old kernels what the parent has peeked is the child's. */
static void killed_amid_system_calls(void)
{
    EXPECT(end_amid_system_calls(0) > 0 || on_lane() || old || failure[0]);
}

static void jumps_out_of_searches(void)
{
    EXPECT(end_amid(little_search, PTRACE_SINGLESTEP, 1) > 0 || failure[0]);
}

static void jumps_out_of_receives(void)
{
    end_amid(little_receive, PTRACE_SINGLESTEP, 1);
}

static void jumps_out_of_system_calls(void)
{
    EXPECT(end_amid_system_calls(1) > 0 || on_lane() || old || failure[0]);
}

/* A program that knows of no holes: writes what it receives from its descriptor, so much at most. */
static int succeed(int fd, size_t most_bytes)
{
    ssize_t got;

    for (; most_bytes && (got = recv(fd, bytes, most_bytes, MSG_DONTWAIT)) > 0; most_bytes -= (size_t)got)
        for (ssize_t done = 0, more; done < got; done += more)
            if ((more = write(1, bytes + done, (size_t)(got - done))) <= 0)
                return 1;
    return 0;
}

/* What such a program receives from `fd` into `into`, so much at most. */
static size_t receive_by_successor(int fd, unsigned char *into, size_t most_bytes)
{
    size_t count = 0;
    int out[2];
    pid_t child;

    if (pipe(out))
        return 0;
    child = fork();
    if (child == 0) {
        char number[16], limit[32];

        snprintf(number, sizeof number, "%d", fd);
        snprintf(limit, sizeof limit, "%zu", most_bytes);
        unsetenv("LD_PRELOAD");
        dup2(out[1], 1);
        close(out[1]);
        execl("/proc/self/exe", "killed", "--successor", number, limit, NULL);
        _exit(1);
    }
    close(out[1]);
    for (ssize_t got; (got = read(out[0], into + count, most_bytes - count)) > 0;)
        count += (size_t)got;
    close(out[0]);
    waitpid(child, NULL, 0);
    return count;
}

/* Who received what comes before all that is unread was killed as it was thrown away. The successors find all that is unread, and none of it twice. */
static void succeeded_after_searches(void)
{
    const struct work *work = &works[4];
    size_t taken = work->before[0].count + work->before[1].count + work->call.count;

    /* As above. */
    alarm(30);
    /* The library alone sees no program come. */
    for (long after = 0, whole = LONG_MAX; after < whole && under_viaduct() && !on_lane(); after++) {
        struct pair p = connect_pair();
        int room = 1 << 20;
        size_t got, from;
        pid_t child;

        for (size_t at = 0; at < work->sent; at++)
            bytes[at] = pattern(at);
        EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0 && send_all(p.near, bytes, work->sent));
        while (waiting(p.far) != (long)work->sent)
            sched_yield();
        for (size_t index = 0; index < 2; index++)
            take(p.far, work->before[index].offset, work->before[index].count);
        child = stopped(p.far, makes_call, work, after, &whole);
        EXPECT(child > 0);
        finish(child);
        /* Each has the socket handed over anew. */
        got = receive_by_successor(p.far, bytes, 10);
        got += receive_by_successor(p.far, bytes + got, sizeof bytes - got);
        /* The bytes of holes come too where nothing before them has been received. */
        from = work->sent - got;
        EXPECT(from == taken || (from == 0 && !shared->done));
        for (size_t at = 0; at < got; at++)
            EXPECT(bytes[at] == pattern(from + at));
        close_pair(p);
    }
}

/* Unread bytes of a connection that is never searched: raw ones, the lane's, and where the sender has left it raw ones again. */
enum { before = 100, in_lane = 200, behind = 300, all = before + in_lane + behind, received = 30 };

/* Bytes that have come to `fd` by the kernel (`tcpi_bytes_received`). */
static unsigned long come_by_kernel(int fd)
{
    unsigned long words[17] = {0};
    socklen_t length = sizeof words;

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, words, &length) ? 0 : words[16];
}

/* A connection on which `sent` has been sent up to the end of what the lane has, if there is one: a busy machine may be too slow for it. */
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
    /* As above. */
    alarm(30);
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

/* Ends receives over several stretches after each of their system calls: what is left is the end of the stream, from where one of them begins. */
static void killed_between_stretches(void)
{
    static const size_t ends[] = {all, all - before, behind, 0};
    size_t seen[4] = {0}, last = all;

    alarm(30);
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

/* Ends a receive of raw bytes after each of its system calls. The sender resets the connection then, so that the kernel no longer tells where in the
 * stream it is: the other bytes come, or ECONNRESET, and none that nobody has sent. */
static void killed_before_a_reset(void)
{
    /* As above. */
    alarm(30);
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

/* A handler leaves a send, by a jump or the end of its thread, at many of its instructions from the middle on: a receiver that sleeps does not do so
 * beside what has been sent. */
static void leave_sends(void)
{
    struct pair p = connect_pair();

    alarm(30);
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
        for (double until = now() + 2; waiting(p.far) > 0 && !sleeper.woken && now() < until;)
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
        {"killed_amid_searches", killed_amid_searches},
        {"killed_amid_receives", killed_amid_receives},
        {"killed_amid_system_calls", killed_amid_system_calls},
        {"jumps_out_of_searches", jumps_out_of_searches},
        {"jumps_out_of_receives", jumps_out_of_receives},
        {"jumps_out_of_system_calls", jumps_out_of_system_calls},
        {"succeeded_after_searches", succeeded_after_searches},
        {"killed_amid_peeks", killed_amid_peeks},
        {"jumps_out_of_peeks", jumps_out_of_peeks},
        {"killed_between_stretches", killed_between_stretches},
        {"killed_before_a_reset", killed_before_a_reset},
        {"jumps_out_of_sends", jumps_out_of_sends},
        {"ends_amid_sends", ends_amid_sends},
    };

    if (argc == 4 && !strcmp(argv[1], "--successor"))
        return succeed(atoi(argv[2]), (size_t)atol(argv[3]));
    other = connect_pair();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
