/* Runs cases: the near process connects to the far one by a Unix socket for each case, and both fork a child to play
 * it. */
#include "internal.h"
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* Who only sleeps and wakes later than this does so on a machine that stands still, as virtual ones do, and the case
 * perhaps as well. One that is busy is no excuse. */
enum { LATE_MS = 200 };

bool is_near;
int s = -1;
volatile sig_atomic_t signals;
bool fast_expected;
/* Out of the way of numbers that cases expect. */
static int transcript = -1, other_end = -1;

void say(const char *format, ...)
{
    char line[4096];
    va_list arguments;
    int length, saved = errno;

    va_start(arguments, format);
    length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    if (write(transcript, line, (size_t)length) != length)
        _exit(9);
    errno = saved;
}

static void give_up(void)
{
    say("the other end is gone");
    _exit(8);
}

static void put(const void *bytes, size_t count)
{
    ssize_t done;

    do
        done = send(other_end, bytes, count, MSG_NOSIGNAL);
    while (done < 0 && errno == EINTR);
    if (done != (ssize_t)count)
        give_up();
}

static void get(void *bytes, size_t count)
{
    ssize_t done;

    do
        done = recv(other_end, bytes, count, MSG_WAITALL);
    while (done < 0 && errno == EINTR);
    if (done != (ssize_t)count)
        give_up();
}

void tell(int number)
{
    put(&number, sizeof number);
}

int ask(void)
{
    int number;

    get(&number, sizeof number);
    return number;
}

void step(void)
{
    tell(-12345);
    if (ask() != -12345) {
        say("the ends are out of step");
        _exit(7);
    }
}

void serve_until_released(void)
{
    struct pollfd wait[] = {{s, 0, 0}, {other_end, POLLIN, 0}};

    do
        poll(wait, 2, 5);
    while (wait[1].revents == 0);
    ask();
}

void release(void)
{
    tell(0);
}

static int out_of_the_way(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 900);

    close(fd);
    return high;
}

static void child(const struct scenario *which)
{
    alarm(PATIENCE_S);
    if (which->joined)
        s = join();
    if (!which->alone || is_near)
        which->play();
    if (which->alone)
        say("done");
    exit(0);
}

static double latest_ms;

bool rest(int process, int us)
{
    struct pollfd end = {process, POLLIN, 0};
    struct timespec time = {0, us * 1000L};
    double began = now(), late_ms;
    bool ended = ppoll(&end, 1, &time, NULL) == 1;

    late_ms = (now() - began) * 1000 - us / 1000.0;
    if (late_ms > latest_ms)
        latest_ms = late_ms;
    return !ended;
}

/* Waits for the child's end, moving its connections between paths meanwhile if that is wanted. Tells whether the
 * machine stood still, so that what the case saw may be due to that. */
static void watch(const struct scenario *which, pid_t pid, unsigned seed)
{
    int status, process = (int)syscall(SYS_pidfd_open, pid, 0);

    latest_ms = 0;
    if (seed != 0)
        storm(pid, process, seed);
    while (rest(process, 5000))
        ;
    close(process);
    if (latest_ms > LATE_MS)
        say("#held up for %.0f ms", latest_ms);
    if (waitpid(pid, &status, 0) != pid)
        say("lost");
    else if (WIFSIGNALED(status))
        say("end %s: killed by %s", which->name, sigabbrev_np(WTERMSIG(status)));
    else
        say("end %s: %d", which->name, WEXITSTATUS(status));
}

static void play_one(const struct scenario *which, int channel, unsigned seed)
{
    pid_t pid;

    other_end = channel;
    say("case %s", which->name);
    pid = fork();
    if (pid == 0)
        child(which);
    close(channel);
    watch(which, pid, seed);
}

static int meet(const char *path, bool first)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (!first) {
        if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 8))
            return -1;
        return out_of_the_way(fd);
    }
    for (int attempt = 0; attempt < 1000; attempt++) {
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return out_of_the_way(fd);
        sleep_ms(10);
    }
    return -1;
}

/* `near PATH` or `far PATH`, then `fast` if both ends are to be on the fast path, `storm=SEED` to move connections
 * between paths while cases run, and `only=NAME`, any number of times, to run these alone. `far` ends when `near`
 * does. */
int play(const struct scenario *all, size_t count, int argc, char **argv)
{
    unsigned seed = 0;
    int only = 0, listening;

    if (argc < 3)
        return 2;
    is_near = strcmp(argv[1], "near") == 0;
    for (int index = 3; index < argc; index++) {
        if (strcmp(argv[index], "fast") == 0)
            fast_expected = true;
        else if (strncmp(argv[index], "storm=", 6) == 0)
            seed = (unsigned)atoi(argv[index] + 6);
        else if (strncmp(argv[index], "only=", 5) == 0)
            only = 1;
    }
    transcript = fcntl(1, F_DUPFD_CLOEXEC, 901);
    if (!is_near) {
        listening = meet(argv[2], false);
        if (listening < 0)
            return 3;
        for (;;) {
            int channel = out_of_the_way(accept4(listening, NULL, NULL, SOCK_CLOEXEC)), index;
            if (recv(channel, &index, sizeof index, MSG_WAITALL) != sizeof index)
                return 4;
            if (index < 0)
                return 0;
            play_one(&all[index], channel, seed ? seed + (unsigned)index : 0);
        }
    }
    for (int index = 0; index < (int)count; index++) {
        bool wanted = !only;
        int channel;
        for (int argument = 3; argument < argc; argument++)
            if (strncmp(argv[argument], "only=", 5) == 0 && !strcmp(argv[argument] + 5, all[index].name))
                wanted = true;
        if (!wanted)
            continue;
        channel = meet(argv[2], true);
        if (channel < 0 || send(channel, &index, sizeof index, 0) != sizeof index)
            return 5;
        play_one(&all[index], channel, seed ? seed * 31 + (unsigned)index : 0);
    }
    tell((other_end = meet(argv[2], true), -1));
    return 0;
}
