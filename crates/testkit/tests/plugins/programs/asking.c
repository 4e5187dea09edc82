/* Asks for a ring, and has a WORD in it by which code is known, or another. */
#include <errno.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

const char word[] = WORD;

int ask(void)
{
    struct io_uring_params parameters = {0};
    long ring = syscall(SYS_io_uring_setup, 4, &parameters);

    if (ring < 0)
        return -errno;
    return close((int)ring);
}
