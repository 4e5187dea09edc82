/* Calls that are never ended: their process is killed in the midst of them, or a handler jumps out of them, at each of
 * their system calls and instructions. Whoever shares the socket finds the bytes as they were before the call or as it
 * leaves them, or in between, or ECONNRESET. */
#include "steps.h"

/* `budget`: instructions that a check steps through, at some 10 us each, so that it ends few calls at each. `last`: but
 * those that take bytes off the front, which comes last, at each of so many. */
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

static unsigned char bytes[most + 1];

static ssize_t take(int fd, size_t offset, size_t count)
{
    return offset ? viaduct_seek_recv(fd, bytes, count, MSG_DONTWAIT, offset) : in_order(fd, bytes, count, MSG_DONTWAIT);
}

static int makes_call(int fd, const struct work *work)
{
    return take(fd, work->call.offset, work->call.count) == (ssize_t)work->call.count;
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
    alarm(60);
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

/* Who received what comes before all that is unread was killed as it was thrown away. The successors find all that is
 * unread, and none of it twice. */
static void succeeded_after_searches(void)
{
    const struct work *work = &works[4];
    size_t taken = work->before[0].count + work->before[1].count + work->call.count;

    /* As above. */
    alarm(60);
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
    };

    if (argc == 4 && !strcmp(argv[1], "--successor"))
        return succeed(atoi(argv[2]), (size_t)atol(argv[3]));
    prepare_steps();
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
