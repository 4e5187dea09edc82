/* A plug-in that has a ring do nothing. Answers 0 if that is done. */
#include <liburing.h>

int ring_once(void)
{
    struct io_uring ring;
    struct io_uring_cqe *done;
    int result = io_uring_queue_init(4, &ring, 0);

    if (result < 0)
        return result;
    io_uring_prep_nop(io_uring_get_sqe(&ring));
    result = io_uring_submit(&ring);
    if (result == 1)
        result = io_uring_wait_cqe(&ring, &done);
    io_uring_queue_exit(&ring);
    return result;
}
