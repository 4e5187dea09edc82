/* Offsets that recvmsg takes from control messages, on sockets of the type for it; elsewhere there is no such type. */
#include "check.h"

#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <viaduct.h>

union control {
    char bytes[3 * CMSG_SPACE(sizeof(uint64_t))];
    struct cmsghdr header;
};

/* A message of two buffers whose first control message asks for `offset`. */
struct request {
    char bytes[8];
    union control control;
    struct iovec parts[2];
    struct msghdr message;
};

static void ask(struct request *r, uint64_t offset)
{
    memset(r, 0, sizeof *r);
    r->parts[0] = (struct iovec){r->bytes, 2};
    r->parts[1] = (struct iovec){r->bytes + 2, 3};
    r->message.msg_iov = r->parts;
    r->message.msg_iovlen = 2;
    r->message.msg_control = &r->control;
    r->message.msg_controllen = CMSG_SPACE(sizeof offset);
    r->control.header.cmsg_level = SOL_VIADUCT;
    r->control.header.cmsg_type = VIADUCT_SEEK;
    r->control.header.cmsg_len = CMSG_LEN(sizeof offset);
    memcpy(CMSG_DATA(&r->control.header), &offset, sizeof offset);
}

/* Connects without the C library, so that nobody sees it. */
static long connect_unseen(int fd, const struct sockaddr *address, socklen_t size)
{
#ifdef __x86_64__
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_connect), "D"(fd), "S"(address), "d"(size)
                     : "rcx", "r11", "memory");
    return result;
#else
    return connect(fd, address, size);
#endif
}

/* Two sockets of the type, with ten bytes under way to the far one; false where there is no such type. */
static int searched_pair(struct pair *p, int unseen)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_SEEK_STREAM | SOCK_CLOEXEC, 0);

    if (listener < 0) {
        if (getenv("LD_PRELOAD")) {
            perror("socket");
            exit(1);
        }
        return 0;
    }
    bind(listener, (struct sockaddr *)&address, size);
    listen(listener, 8);
    getsockname(listener, (struct sockaddr *)&address, &size);
    p->far = socket(AF_INET, SOCK_SEEK_STREAM | SOCK_CLOEXEC, 0);
    if (unseen ? connect_unseen(p->far, (struct sockaddr *)&address, size)
               : connect(p->far, (struct sockaddr *)&address, size)) {
        perror("connect");
        exit(1);
    }
    p->near = accept(listener, NULL, NULL);
    close(listener);
    if (!unseen)
        warm_up(p->near, p->far);
    if (!send_all(p->near, "0123456789", 10))
        exit(1);
    sleep_ms(20);
    return 1;
}

/* A pair, or the end of the check. */
#define PAIR(p, unseen)                                                                            \
    do {                                                                                           \
        if (!searched_pair(&(p), unseen))                                                          \
            return;                                                                                \
    } while (0)

/* That nothing has been received. */
static int is_untouched(int fd)
{
    char bytes[16];

    return recv(fd, bytes, sizeof bytes, MSG_PEEK) == 10 && !memcmp(bytes, "0123456789", 10);
}

static void requests_that_are_cut_short(void)
{
    static const size_t lengths[] = {0, 1, CMSG_LEN(0), CMSG_LEN(4), CMSG_LEN(7), CMSG_LEN(9), CMSG_LEN(1000), SIZE_MAX};
    struct request r;
    struct pair p;

    PAIR(p, 0);
    for (size_t index = 0; index < sizeof lengths / sizeof *lengths; index++) {
        ask(&r, 4);
        r.control.header.cmsg_len = lengths[index];
        EXPECT_ERROR(recvmsg(p.far, &r.message, 0), EINVAL);
        EXPECT(r.message.msg_controllen == CMSG_SPACE(8));
    }
    /* The room for it is. */
    for (size_t room = sizeof(struct cmsghdr); room < CMSG_LEN(8); room++) {
        ask(&r, 4);
        r.message.msg_controllen = room;
        EXPECT_ERROR(recvmsg(p.far, &r.message, 0), EINVAL);
    }
    EXPECT(is_untouched(p.far));
    /* Too little for a message of any kind. */
    ask(&r, 4);
    r.message.msg_controllen = sizeof(struct cmsghdr) - 1;
    EXPECT(recvmsg(p.far, &r.message, 0) == 5 && !memcmp(r.bytes, "01234", 5));
    close_pair(p);
}

static void requests_behind_others(void)
{
    struct request r;
    struct cmsghdr *second;
    struct pair p;

    PAIR(p, 0);
    for (int cut = 1; cut >= 0; cut--) {
        ask(&r, 4);
        second = (struct cmsghdr *)(void *)(r.control.bytes + CMSG_SPACE(4));
        memmove(second, &r.control.header, CMSG_LEN(8));
        r.control.header = (struct cmsghdr){CMSG_LEN(4), SOL_SOCKET, SCM_RIGHTS};
        r.message.msg_controllen = CMSG_SPACE(4) + CMSG_LEN(8) - (size_t)cut;
        if (cut) {
            EXPECT_ERROR(recvmsg(p.far, &r.message, 0), EINVAL);
            EXPECT(is_untouched(p.far));
        } else {
            EXPECT(recvmsg(p.far, &r.message, 0) == 5 && !memcmp(r.bytes, "45678", 5));
        }
    }
    close_pair(p);
}

static void buffers_that_are_nowhere(void)
{
    struct request r;
    struct pair p;

    PAIR(p, 0);
    for (uint64_t offset = 0; offset < 8; offset += 4) {
        ask(&r, offset);
        r.parts[1].iov_base = NULL;
        EXPECT_ERROR(recvmsg(p.far, &r.message, 0), EFAULT);
        ask(&r, offset);
        r.parts[0].iov_base = (void *)16;
        EXPECT_ERROR(recvmsg(p.far, &r.message, 0), EFAULT);
        ask(&r, offset);
        r.message.msg_iovlen = 1025;
        EXPECT_ERROR(recvmsg(p.far, &r.message, 0), EMSGSIZE);
    }
    EXPECT(is_untouched(p.far));
    /* No byte is to go there. */
    ask(&r, 4);
    r.parts[1] = (struct iovec){NULL, 0};
    EXPECT(recvmsg(p.far, &r.message, 0) == 2 && !memcmp(r.bytes, "45", 2));
    close_pair(p);
}

/* The request is gone from the header after a call that received, as recvmsg tells what control messages came. */
static void headers_after_a_call(void)
{
    struct request r;
    struct pair p;

    PAIR(p, 0);
    ask(&r, 4);
    r.message.msg_flags = 77;
    EXPECT(recvmsg(p.far, &r.message, MSG_CMSG_CLOEXEC) == 5 && !memcmp(r.bytes, "45678", 5));
    EXPECT(r.message.msg_controllen == 0 && r.message.msg_flags == MSG_CMSG_CLOEXEC);
    EXPECT(recvmsg(p.far, &r.message, 0) == 5 && !memcmp(r.bytes, "01239", 5));
    EXPECT(r.message.msg_flags == 0);
    ask(&r, 4);
    EXPECT_ERROR(recvmsg(p.far, &r.message, MSG_DONTWAIT), EAGAIN);
    EXPECT(r.message.msg_controllen == CMSG_SPACE(8));
    EXPECT_ERROR(recvmsg(p.far, &r.message, MSG_OOB), EOPNOTSUPP);
    ask(&r, UINT64_MAX);
    EXPECT_ERROR(recvmsg(p.far, &r.message, 0), EINVAL);
    close_pair(p);
}

static void many_messages_at_once(void)
{
    struct request first, second;
    struct mmsghdr messages[2];
    struct pair p;

    PAIR(p, 0);
    ask(&first, 4);
    ask(&second, 1);
    messages[0].msg_hdr = first.message;
    messages[1].msg_hdr = second.message;
    messages[1].msg_hdr.msg_iovlen = 1;
    EXPECT(recvmmsg(p.far, messages, 2, 0, NULL) == 2 && messages[0].msg_len == 5 && messages[1].msg_len == 2);
    EXPECT(!memcmp(first.bytes, "45678", 5) && !memcmp(second.bytes, "12", 2));
    ask(&first, 0);
    EXPECT(recvmsg(p.far, &first.message, 0) == 3 && !memcmp(first.bytes, "039", 3));
    close_pair(p);
}

/* An offset is minded on a socket whose connection began unseen. */
static void connections_nobody_saw(void)
{
    struct request r;
    struct mmsghdr message;
    struct pair p;

    PAIR(p, 1);
    ask(&r, 4);
    EXPECT(recvmsg(p.far, &r.message, 0) == 5 && !memcmp(r.bytes, "45678", 5));
    EXPECT(recv(p.far, r.bytes, 8, 0) == 5 && !memcmp(r.bytes, "01239", 5));
    close_pair(p);
    PAIR(p, 1);
    ask(&r, 4);
    message.msg_hdr = r.message;
    EXPECT(recvmmsg(p.far, &message, 1, 0, NULL) == 1 && message.msg_len == 5 && !memcmp(r.bytes, "45678", 5));
    close_pair(p);
}

static void sockets_without_a_connection(void)
{
    int fd = socket(AF_INET, SOCK_SEEK_STREAM, 0);
    struct request r;

    if (fd < 0) {
        EXPECT_ERROR(socket(AF_INET, SOCK_SEEK_STREAM, 0), EINVAL);
        return;
    }
    ask(&r, 4);
    EXPECT_ERROR(recvmsg(fd, &r.message, 0), ENOTCONN);
    close(fd);
    EXPECT_ERROR(recvmsg(fd, &r.message, 0), EBADF);
}

/* Of sockets that are no TCP sockets the kernel reads the header. */
static void headers_that_nobody_can_read(void)
{
    struct msghdr *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int udp = socket(AF_INET, SOCK_DGRAM, 0);

    EXPECT(nowhere != MAP_FAILED);
    EXPECT_ERROR(recvmsg(udp, nowhere, 0), EFAULT);
    munmap(nowhere, 4096);
    close(udp);
}

/* What the manual page says of options that a socket has when it is first searched. */
static void options_that_refuse_a_search(void)
{
    static const struct {
        int name, value;
    } options[] = {
        {SO_RCVLOWAT, 2},  {SO_OOBINLINE, 1},   {SO_PEEK_OFF, 3},
        {SO_TIMESTAMP, 1}, {SO_TIMESTAMPNS, 1}, {SO_TIMESTAMPING, 8},
    };
    const char *path = getenv("VIADUCT_PATH");
    int native = !getenv("LD_PRELOAD"), without_lane = path && !strcmp(path, "tcp");
    char bytes[4] = "";

    for (size_t index = 0; index < sizeof options / sizeof *options; index++) {
        int name = options[index].name;
        struct pair p = connect_pair();
        int set = setsockopt(p.far, SOL_SOCKET, name, &options[index].value, sizeof(int)) == 0;

        if (!set && name == SO_PEEK_OFF && errno == EOPNOTSUPP) {
            /* As before Linux 6.9. */
            close_pair(p);
            continue;
        }
        EXPECT(set);
        EXPECT(send_all(p.near, "0123456789", 10));
        sleep_ms(20);
        if (without_lane || native)
            EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 3, MSG_DONTWAIT, 4), EOPNOTSUPP);
        else {
            ssize_t got = viaduct_seek_recv(p.far, bytes, 3, MSG_DONTWAIT, 4);
            /* These options end a lane, if not at once. */
            int error = errno;
            EXPECT((got == 3 && !memcmp(bytes, "456", 3)) || (got == -1 && error == EOPNOTSUPP));
        }
        close_pair(p);
        p = connect_pair();
        EXPECT(send_all(p.near, "0123456789", 10));
        EXPECT(viaduct_seek_recv(p.far, bytes, 1, MSG_WAITALL, 9) == 1 && bytes[0] == '9');
        EXPECT(setsockopt(p.far, SOL_SOCKET, name, &options[index].value, sizeof(int)) == 0);
        EXPECT(viaduct_seek_recv(p.far, bytes, 3, MSG_DONTWAIT, 4) == 3 && !memcmp(bytes, "456", 3));
        close_pair(p);
    }
}

static const struct check checks[] = {
    {"headers_that_nobody_can_read", headers_that_nobody_can_read},
    {"options_that_refuse_a_search", options_that_refuse_a_search},
    {"requests_that_are_cut_short", requests_that_are_cut_short},
    {"requests_behind_others", requests_behind_others},
    {"buffers_that_are_nowhere", buffers_that_are_nowhere},
    {"headers_after_a_call", headers_after_a_call},
    {"many_messages_at_once", many_messages_at_once},
    {"connections_nobody_saw", connections_nobody_saw},
    {"sockets_without_a_connection", sockets_without_a_connection},
};

int main(int argc, char **argv)
{
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
