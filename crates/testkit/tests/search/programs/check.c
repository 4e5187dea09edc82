#include "check.h"
#include "old.h"

char failure[512];

int can_check(int has, const char *what)
{
    if (!has && getenv("VIADUCT_TEST_REQUIRE"))
        snprintf(failure, sizeof failure, "needs %s", what);
    else if (!has)
        printf("# skipped: needs %s\n", what);
    return has;
}

int under_viaduct(void)
{
    const char *preloaded = getenv("LD_PRELOAD");

    return preloaded && strstr(preloaded, "viaduct");
}

int on_lane(void)
{
    const char *path = getenv("VIADUCT_PATH");

    return under_viaduct() && !(path && !strcmp(path, "tcp")) && !getenv("WITHOUT_VIADUCTD");
}

ssize_t in_order(int fd, void *bytes, size_t count, int flags)
{
    return under_viaduct() ? recv(fd, bytes, count, flags) : viaduct_seek_recv(fd, bytes, count, flags, 0);
}

long waiting(int fd)
{
    int bytes = -1;

    if (!under_viaduct())
        return viaduct_readable(fd);
    return ioctl(fd, FIONREAD, &bytes) ? -1 : bytes;
}

void settle(void)
{
    sleep_ms(3);
}

int send_digits(int fd)
{
    int sent = send_all(fd, "0123456789", 10);

    settle();
    return sent;
}

struct pair pair_with_digits(void)
{
    struct pair p = connect_pair();

    if (!send_digits(p.near))
        snprintf(failure, sizeof failure, "could not send (errno %d %s)", errno, strerror(errno));
    return p;
}

void reset(int fd)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(fd);
}

/* The letter that the kernel has for what a thread does; 0 if there is none. */
static char state_of(pid_t tid)
{
    char path[64], line[256], *after;
    FILE *file;
    size_t count;

    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
    file = fopen(path, "r");
    if (!file)
        return 0;
    count = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[count] = 0;
    after = strrchr(line, ')');
    return after && after[1] ? after[2] : 0;
}

int falls_asleep(pid_t tid)
{
    /* On its way into a call a thread may sleep for a moment, for a lock. */
    int looks = 0;

    for (double until = now() + 10; looks < 3 && now() < until; sleep_ms(1)) {
        char state = state_of(tid);

        if (!state || state == 'Z' || state == 'X')
            return 0;
        looks = state == 'S' ? looks + 1 : 0;
    }
    return looks == 3;
}

struct work {
    void *(*work)(void *);
    void *argument;
    pid_t tid;
};

static void *with_number(void *argument)
{
    struct work *place = argument, mine = *place;

    /* From here on the place may be gone. */
    __atomic_store_n(&place->tid, gettid(), __ATOMIC_RELEASE);
    return mine.work(mine.argument);
}

pthread_t in_sleeping_thread(void *(*work)(void *), void *argument, pid_t *tid)
{
    struct work place = {work, argument, 0};
    pthread_t thread = in_thread(with_number, &place);

    while (!(*tid = __atomic_load_n(&place.tid, __ATOMIC_ACQUIRE)))
        sleep_ms(1);
    falls_asleep(*tid);
    return thread;
}

int old;

int run_checks(const struct check *checks, size_t count, int argc, char **argv)
{
    int failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    old = argc > 2 && !strcmp(argv[2], "old");
    if (old)
        refuse_peek_offsets();
    for (size_t index = 0; index < count; index++) {
        if (argc > 1 && strcmp(argv[1], checks[index].name))
            continue;
        failure[0] = 0;
        /* A check that hangs ends the program; its name is the last line. */
        printf("check %s\n", checks[index].name);
        alarm(30);
        checks[index].run();
        alarm(0);
        if (failure[0]) {
            printf("not ok %s: %s\n", checks[index].name, failure);
            failed = 1;
        } else {
            printf("ok %s\n", checks[index].name);
        }
    }
    return failed;
}
