/*
 * Direct search: receive any message from the middle of a TCP stream. See viaduct_seek_recv(3).
 *
 * Link with `pkg-config --libs viaduct`. The same program works with and without `viaduct run`.
 */
#ifndef VIADUCT_H
#define VIADUCT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Receives up to `len` bytes that stand `offset` unread bytes after the next byte of the stream, without receiving
 * those before. They become a hole, which later calls skip. With offset 0 it is recv. Flags: MSG_PEEK, MSG_DONTWAIT,
 * MSG_WAITALL, MSG_TRUNC.
 *
 * Returns the number of bytes, 0 at the end of the stream, or -1 with errno set.
 */
ssize_t viaduct_seek_recv(int s, void *buf, size_t len, int flags, size_t offset);

/* Bytes that can be received now, holes not counted: FIONREAD for programs that do not run under `viaduct run`. */
ssize_t viaduct_readable(int s);

/*
 * Under `viaduct run`: a socket of this type is a TCP socket on which recvmsg takes an offset, from a control message
 * of level SOL_VIADUCT and type VIADUCT_SEEK that holds a uint64_t. A call that receives sets msg_controllen to 0, so
 * set it before each call. Sockets accepted from it are of the type too. Elsewhere socket(2) fails with EINVAL.
 */
#define SOCK_SEEK_STREAM 13
#define SOL_VIADUCT 0x5641
#define VIADUCT_SEEK 1

/*
 * Tagged messages on stream sockets: frames of a tag and a payload, received in any order. Within a tag of a source
 * they come in the order they were sent. An inbox receives from one socket or several; nobody else may receive from
 * these then. Threads may share it.
 */
typedef struct viaduct_inbox viaduct_inbox;

struct viaduct_msg {
    uint32_t tag;
    int source;
    size_t len;
};

/* Any tag, any source. */
#define VIADUCT_ANY (-1)

/* Sends a message, all of it; 0, or -1 with errno set. Threads that send on one socket must take turns. */
int viaduct_msg_send(int s, uint32_t tag, const void *payload, size_t len);

/*
 * An inbox that takes payloads of at most `longest` bytes and keeps at most `store` bytes of each source that its
 * socket cannot hold (0: 64 MiB); NULL with errno set.
 */
viaduct_inbox *viaduct_inbox_open(size_t longest, size_t store);
void viaduct_inbox_close(viaduct_inbox *inbox);
/* Adds a connected stream socket; its number among the sources, or -1 with errno set. The caller keeps its
 * descriptor. */
int viaduct_inbox_add(viaduct_inbox *inbox, int s);
int viaduct_inbox_remove(viaduct_inbox *inbox, int source);
/*
 * A descriptor for poll and its kin, readable when messages may have come since the last call that received or probed,
 * or a socket may be full of others: call with a timeout of 0 until ETIMEDOUT, then wait. It belongs to the inbox;
 * nothing else is to be done with it. -1 with errno set to EINVAL if `inbox` is NULL.
 */
int viaduct_inbox_fd(const viaduct_inbox *inbox);

/*
 * Receives the first message that matches; waits at most `timeout_ms` for it, for ever if that is negative. Returns the
 * bytes of its payload, or -1 with errno set: EMSGSIZE (it does not fit and is still there; info->len says how long it
 * is), ETIMEDOUT, ECANCELED, EINTR, ENOTCONN (all sources have ended), EINVAL, EFAULT. Of one source, which
 * info->source tells: EBADMSG (not a message), EOVERFLOW (longer than the inbox takes), EPROTO (the stream ended within
 * it), ENOBUFS (no more of it can be kept: receive others of its messages first), and what its socket reports. With
 * VIADUCT_ANY for the source, each is told once, and the others go on. `info` may be NULL.
 *
 * A signal handler that leaves the call by siglongjmp, instead of having it fail with EINTR, leaves the thread's
 * cancellation disabled (pthread_setcancelstate), and the inbox locked if the call did not wait.
 */
ssize_t viaduct_msg_recv(viaduct_inbox *inbox, int64_t tag, int source, void *buf, size_t len, int timeout_ms,
                         struct viaduct_msg *info);
/* The same without receiving it. */
ssize_t viaduct_msg_probe(viaduct_inbox *inbox, int64_t tag, int source, int timeout_ms, struct viaduct_msg *info);
/* Calls that wait on the inbox now fail with ECANCELED. */
int viaduct_msg_cancel(viaduct_inbox *inbox);

/* The call under its short name, for programs that ask for it. */
#ifdef VIADUCT_SHORT_NAMES
#define seek_recv viaduct_seek_recv
#endif

#ifdef __cplusplus
}
#endif

#endif
