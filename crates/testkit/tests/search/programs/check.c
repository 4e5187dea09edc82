#include "check.h"
#include "old.h"

char failure[512];

int under_viaduct(void)
{
    const char *preloaded = getenv("LD_PRELOAD");

    return preloaded && strstr(preloaded, "viaduct");
}

int on_lane(void)
{
    const char *path = getenv("VIADUCT_PATH");

    return under_viaduct() && !(path && !strcmp(path, "tcp"));
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
        alarm(10);
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
