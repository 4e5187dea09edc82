/* Random calls on one connection whose ends are both here: `calls FIRST COUNT CALLS [SEED...]`
 *
 * For each of COUNT seeds from FIRST on, and each SEED, a connection is made, CALLS calls are drawn from the seed and
 * made at either end, and printed with what came of them. Whoever runs it compares the lines with those of another run.
 * Before each call what is on its way in the kernel has come, so that they do not depend on time. At last the program
 * says how many bytes it has sent, and waits for SIGTERM, so that its counters can be looked at.
 *
 * Seeds from FAMILIES on are played by two processes, which share both ends; a call of the second has a ' to it. Those
 * from PASSED on by one, which both ends are passed to by another that has made them and is no more. */
#include "calls.h"
#include <sched.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* Calls after which a connection stays on TCP are drawn with some seeds only, or little would happen on lanes. */
enum flavour { ALWAYS, PIPES, URGENT, LOW_WATER, FLAVOURS };

static const struct {
    void (*call)(int end);
    unsigned weight;
    enum flavour flavour;
} calls[] = {
    {call_send, 12, ALWAYS},
    {call_receive, 12, ALWAYS},
    {call_send_messages, 1, ALWAYS},
    {call_receive_messages, 1, ALWAYS},
    {call_send_file, 2, ALWAYS},
    {call_receive_patiently, 1, ALWAYS},
    {call_with_nothing, 2, ALWAYS},
    {call_poll, 6, ALWAYS},
    {call_select, 2, ALWAYS},
    {call_register, 6, ALWAYS},
    {call_wait_in_set, 10, ALWAYS},
    {call_count, 3, ALWAYS},
    {call_error, 2, ALWAYS},
    {call_shut_down, 1, ALWAYS},
    {call_close, 1, ALWAYS},
    {call_copy, 2, ALWAYS},
    {call_fork, 1, ALWAYS},
    {call_linger, 1, ALWAYS},
    {call_look_at_sets, 3, ALWAYS},
    {call_receive_interrupted, 1, ALWAYS},
    {call_wait_masked, 3, ALWAYS},
    {call_set_time_outs, 1, ALWAYS},
    {call_set_nonblocking, 1, ALWAYS},
    {call_ask_who, 1, ALWAYS},
    {call_without_memory, 1, ALWAYS},
    {call_replace, 2, ALWAYS},
    {call_set_low_water, 2, LOW_WATER},
    {call_splice_in, 3, PIPES},
    {call_splice_out, 3, PIPES},
    {call_send_urgent, 2, URGENT},
    {call_receive_urgent, 2, URGENT},
    {call_at_mark, 3, URGENT},
};
enum { KINDS = sizeof calls / sizeof *calls };

/* The first seed of two processes, and of ends that were passed on. */
enum { FAMILIES = 500000000, PASSED = 700000000 };

struct end ends[2];
unsigned char buffer[BUFFER];
int file, pipe_ends[2];
bool told_of_edges_once;
long sent_in_all;
static uint64_t state;

/* What a call goes by and changes, whichever process makes it. */
struct play {
    void (*call)(int end);
    int end;
    uint64_t state;
    struct end ends[2];
    long sent_in_all;
};
/* The second process, while there is one, and what leads to it and back. */
static pid_t second;
static int to_second[2], from_second[2];

/* The start of linux/tcp.h's `struct tcp_info`, up to the segments sent and taken in, which the C library's does not
 * have. */
struct info {
    unsigned char state, others[7];
    uint32_t words[24];
    uint64_t rates_and_bytes[4];
    uint32_t sent, taken;
};
/* When there was nothing on its way. */
static struct info before[2];

unsigned below(unsigned limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % limit;
}

bool chance(unsigned percent)
{
    return below(100) < percent;
}

void say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    fflush(stdout);
}

void say_result(long result)
{
    if (result < 0)
        say(" = %s", strerrorname_np(errno));
    else
        say(" = %ld", result);
}

void say_sum(const unsigned char *bytes, long count)
{
    unsigned sum = 0;

    for (long index = 0; index < count; index++)
        sum = sum * 31 + bytes[index];
    say(" sum %x", sum);
}

int any_descriptor(int end)
{
    return ends[end].copy >= 0 && chance(25) ? ends[end].copy : ends[end].fd;
}

long any_size(void)
{
    static const long sizes[] = {1, 1, 7, 10, 100, 1000, 5000, LONGEST};

    return sizes[below(sizeof sizes / sizeof *sizes)];
}

bool has_room(int end, long count)
{
    return ends[!end].unread + count <= MOST_UNREAD;
}

void was_sent(int end, long count)
{
    if (count > 0) {
        ends[!end].unread += count;
        sent_in_all += count;
    }
}

void was_received(int end, long count)
{
    if (count > 0)
        ends[end].unread -= count;
}

void set_blocking(int end, bool blocking)
{
    int flags = fcntl(ends[end].fd, F_GETFL);

    fcntl(ends[end].fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

bool is_over(int end)
{
    struct pollfd entry = {ends[end].fd, POLLRDHUP, 0};

    return ends[!end].fd < 0 || poll(&entry, 1, 0) != 0;
}

static struct info told_by_kernel(int end)
{
    struct info info = {0};
    socklen_t length = sizeof info;

    getsockopt(ends[end].fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    return info;
}

/* Whether an end that is left alone has heard of it, and of what its bytes have met. */
static bool knows_end(int end)
{
    unsigned char state = told_by_kernel(end).state;
    bool has_sent = ends[!end].unread > 0;

    return state == TCP_CLOSE || state == TCP_TIME_WAIT || (state == TCP_CLOSE_WAIT && !has_sent);
}

/* Whether no end's FIN is still to be acknowledged, which is an event to it: by the kernel's timer, or together with
 * bytes. One that is the second has not even come as long as that, where as many segments as may be are on their way
 * unacknowledged. */
static bool is_acknowledged(void)
{
    int one = 1;

    for (int end = 0; end < 2; end++) {
        unsigned char state = told_by_kernel(end).state;
        if (ends[0].fd >= 0 && ends[1].fd >= 0 &&
            (state == TCP_FIN_WAIT1 || state == TCP_CLOSING || state == TCP_LAST_ACK)) {
            /* At once, if the other end has nothing unread. */
            setsockopt(ends[!end].fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
            return false;
        }
    }
    return true;
}

/* Whether nothing is on its way in the kernel. */
static bool is_quiet(void)
{
    struct info info[2];

    for (int end = 0; end < 2; end++)
        if (ends[end].fd < 0)
            return ends[!end].fd < 0 || knows_end(!end);
    for (int end = 0; end < 2; end++)
        info[end] = told_by_kernel(end);
    /* Of a reset one end counts nothing. */
    if (info[0].state == TCP_CLOSE && info[1].state == TCP_CLOSE)
        return true;
    for (int end = 0; end < 2; end++)
        if (info[end].sent - before[end].sent != info[!end].taken - before[!end].taken)
            return false;
    return true;
}

/* Waits for what may never be, for so many seconds, in which time does not count for which the machine stood still. */
static void wait_until(bool (*is_so)(void), double left)
{
    double looked = now(), at;

    for (; left > 0 && !is_so(); looked = at) {
        sched_yield();
        at = now();
        left -= at - looked < 0.004 ? at - looked : 0.004;
    }
}

static void settle(void)
{
    /* What never comes, since the kernel has dropped it, does not come in other runs either. */
    wait_until(is_quiet, 0.02);
    wait_until(is_acknowledged, 0.1);
}

/* Remembers where the kernel's counts stand once they stand still. */
static void begin_counts(void)
{
    for (int same = 0; same < 20; same++) {
        for (int end = 0; end < 2; end++) {
            struct info info = told_by_kernel(end);
            if (info.sent != before[end].sent || info.taken != before[end].taken)
                same = 0;
            before[end] = info;
        }
        sched_yield();
    }
}

static void (*any_call(enum flavour flavour))(int)
{
    unsigned all = 0, drawn;

    for (int kind = 0; kind < KINDS; kind++)
        if (calls[kind].flavour == ALWAYS || calls[kind].flavour == flavour)
            all += calls[kind].weight;
    drawn = below(all);
    for (int kind = 0; kind < KINDS; kind++)
        if (calls[kind].flavour == ALWAYS || calls[kind].flavour == flavour) {
            if (drawn < calls[kind].weight)
                return calls[kind].call;
            drawn -= calls[kind].weight;
        }
    return call_poll;
}

/* What is left is received. */
static void drain(int end)
{
    long all = 0, received;

    settle();
    say("%c drain", 'a' + end);
    while ((received = read(ends[end].fd, buffer, sizeof buffer)) > 0)
        all += received;
    say(" %ld", all);
    say_result(received);
    say("\n");
}

/* Takes over what another process has left, but for its descriptors. */
static void take_over(const struct play *play)
{
    state = play->state;
    sent_in_all = play->sent_in_all;
    for (int end = 0; end < 2; end++) {
        struct end own = ends[end];
        ends[end] = play->ends[end];
        ends[end].fd = own.fd;
        ends[end].copy = own.copy;
        if (play->ends[end].fd < 0)
            close_end(end);
    }
}

static struct play as_it_stands(void (*call)(int), int end)
{
    return (struct play){call, end, state, {ends[0], ends[1]}, sent_in_all};
}

/* What the second process does: waits in a set of its own, until it is killed or told to end. */
static void be_second(void)
{
    struct play play;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to_second[1]);
    close(from_second[0]);
    make_sets();
    while (read(to_second[0], &play, sizeof play) == sizeof play && play.call) {
        take_over(&play);
        play.call(play.end);
        play = as_it_stands(NULL, 0);
        write(from_second[1], &play, sizeof play);
    }
    _exit(0);
}

static void start_second(void)
{
    if (pipe(to_second) || pipe(from_second)) {
        perror("pipe");
        exit(1);
    }
    second = fork();
    if (second == 0)
        be_second();
    close(to_second[0]);
    close(from_second[1]);
}

static void call_in_second(void (*call)(int), int end)
{
    struct play play = as_it_stands(call, end);

    write(to_second[1], &play, sizeof play);
    if (read(from_second[0], &play, sizeof play) != sizeof play) {
        say("the second process is gone\n");
        exit(1);
    }
    take_over(&play);
}

static void end_second(bool kills)
{
    struct play end = {0};
    int status = 0;

    if (second == 0)
        return;
    if (kills)
        kill(second, SIGKILL);
    else
        write(to_second[1], &end, sizeof end);
    waitpid(second, &status, 0);
    if (!kills && status != 0)
        say("the second process has failed: %x\n", status);
    second = 0;
    close(to_second[1]);
    close(from_second[0]);
}

/* An end that is closed in one process is closed in the other. */
static void close_in_second(void)
{
    for (int end = 0; end < 2; end++)
        if (ends[end].fd < 0 && second)
            call_in_second(leave, end);
}

static void play(unsigned seed, int count)
{
    int last_of_two = -1;

    state = seed * 7919u + 1;
    for (int skipped = 0; skipped < 5; skipped++)
        below(2);
    memset(buffer, 0, sizeof buffer);
    say("seed %u\n", seed);
    if (seed >= PASSED)
        be_passed();
    else
        meet();
    warm_up_ends(seed >= PASSED);
    make_sets();
    set_blocking(0, false);
    set_blocking(1, false);
    begin_counts();
    enum flavour flavour = seed % FLAVOURS;
    told_of_edges_once = flavour != URGENT;
    /* Those that have shown faults when all were out of line still are. */
    for (int end = 0, in_line = seed / FLAVOURS % 9 < 6; end < 2 && flavour == URGENT; end++)
        setsockopt(ends[end].fd, SOL_SOCKET, SO_OOBINLINE, &in_line, sizeof in_line);
    if (seed >= FAMILIES && seed < PASSED) {
        last_of_two = count / 4 + (int)below((unsigned)count);
        start_second();
    }
    for (int call = 0; call < count; call++) {
        int end = (int)below(2);
        if (ends[end].fd < 0)
            end = !end;
        if (ends[end].fd < 0)
            break;
        settle();
        if (call == last_of_two) {
            say("the second process ends\n");
            end_second(false);
            settle();
        }
        bool elsewhere = second && chance(50);
        say("%d %c%s ", call, 'a' + end, elsewhere ? "'" : "");
        errno = 0;
        void (*chosen)(int) = any_call(flavour);
        if (elsewhere)
            call_in_second(chosen, end);
        else
            chosen(end);
        say("\n");
        close_in_second();
    }
    /* A known limit: who closes after another has been killed, and leaves something unread, sends no RST. So it is
     * killed when nothing is closed any more before it has been read. */
    end_second(chance(50));
    for (int end = 0; end < 2; end++)
        if (ends[end].fd >= 0)
            drain(end);
    close_all();
    close_sets();
}

int main(int count, char **arguments)
{
    sigset_t end;
    int signal_number;

    if (count < 4) {
        fprintf(stderr, "usage: calls FIRST COUNT CALLS [SEED...]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigaddset(&end, SIGUSR1);
    sigprocmask(SIG_BLOCK, &end, NULL);
    file = memfd_create("file", 0);
    for (int at = 0; at < FILE_SIZE; at++)
        buffer[at] = pattern((size_t)at);
    if (file < 0 || write(file, buffer, FILE_SIZE) != FILE_SIZE || pipe2(pipe_ends, O_NONBLOCK)) {
        perror("file");
        return 1;
    }
    for (unsigned seed = (unsigned)atoi(arguments[1]), last = seed + (unsigned)atoi(arguments[2]); seed < last; seed++)
        play(seed, atoi(arguments[3]));
    for (int other = 4; other < count; other++)
        play((unsigned)atoi(arguments[other]), atoi(arguments[3]));
    say("sent %ld\n", sent_in_all);
    sigdelset(&end, SIGUSR1);
    sigwait(&end, &signal_number);
    return 0;
}
