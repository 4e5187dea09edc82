/* What liburing 2.0 and 2.1 show of themselves: rings that they ask for by the C library, and a version of their
 * symbols. */
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

const char version[] = "LIBURING_2.0";

int io_uring_queue_init(unsigned entries)
{
    struct io_uring_params parameters = {0};

    return (int)syscall(SYS_io_uring_setup, entries, &parameters);
}
