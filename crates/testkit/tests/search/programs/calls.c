/* The ordinary calls on a socket that has been searched, whichever of them: under Viaduct all mind the holes. */
#include "check.h"
#include "old.h"
#include "traced.h"
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum way {
    RECV,
    READ,
    READV,
    RECVFROM,
    RECVMSG,
    RECVMMSG,
    PREADV2,
    SPLICE,
    SENDFILE,
    NUMBERED_RECVFROM,
    NUMBERED_RECVMMSG,
    NUMBERED_SPLICE,
    WAYS
};

/* What comes through a pipe. */
static ssize_t piped(ssize_t moved, int ends[2], void *bytes)
{
    ssize_t got = moved > 0 ? read(ends[0], bytes, (size_t)moved) : moved;

    close(ends[0]);
    close(ends[1]);
    return got;
}

static ssize_t receive(enum way way, int fd, void *bytes, size_t count)
{
    struct iovec part = {bytes, count};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    int ends[2], got;

    switch (way) {
    case RECV:
        return recv(fd, bytes, count, 0);
    case READ:
        return read(fd, bytes, count);
    case READV:
        return readv(fd, &part, 1);
    case RECVFROM:
        return recvfrom(fd, bytes, count, 0, (struct sockaddr *)&address, &len);
    case RECVMSG:
        return recvmsg(fd, &messages[0].msg_hdr, 0);
    case RECVMMSG:
        got = recvmmsg(fd, messages, 1, 0, NULL);
        return got == 1 ? (ssize_t)messages[0].msg_len : -1;
    case PREADV2:
        return preadv2(fd, &part, 1, -1, 0);
    case SPLICE:
        return pipe(ends) ? -1 : piped(splice(fd, NULL, ends[1], NULL, count, 0), ends, bytes);
    case SENDFILE:
        return pipe(ends) ? -1 : piped(sendfile(ends[1], fd, NULL, count), ends, bytes);
    case NUMBERED_RECVFROM:
        return syscall(SYS_recvfrom, fd, bytes, count, 0, &address, &len);
    case NUMBERED_RECVMMSG:
        got = (int)syscall(SYS_recvmmsg, fd, messages, 1, 0, NULL);
        return got == 1 ? (ssize_t)messages[0].msg_len : -1;
    case NUMBERED_SPLICE:
        return pipe(ends) ? -1 : piped(syscall(SYS_splice, fd, NULL, ends[1], NULL, count, 0), ends, bytes);
    default:
        return -1;
    }
}

/* Neither bytes of holes come, nor what has been received and still lies in the kernel. */
static void every_call_minds_holes(void)
{
    if (!under_viaduct())
        return;
    for (enum way way = 0; way < WAYS && !failure[0]; way++) {
        struct pair p = connect_pair();
        char bytes[16] = {0};

        EXPECT(send(p.near, "0123456789abcdef", 16, 0) == 16);
        settle();
        EXPECT(viaduct_seek_recv(p.far, bytes, 2, 0, 1) == 2 && !memcmp(bytes, "12", 2));
        EXPECT(viaduct_seek_recv(p.far, bytes, 2, 0, 5) == 2 && !memcmp(bytes, "78", 2));
        /* The head goes over the first hole. */
        EXPECT(recv(p.far, bytes, 2, 0) == 2 && !memcmp(bytes, "03", 2));
        EXPECT(waiting(p.far) == 10);
        for (size_t had = 0; had < 10;) {
            ssize_t got = receive(way, p.far, bytes, had ? sizeof bytes : 2);
            int right = got > 0 && had + (size_t)got <= 10 && !memcmp(bytes, "4569abcdef" + had, (size_t)got);

            if (!right)
                snprintf(failure, sizeof failure, "call %d gave %zd, %.16s", way, got, bytes);
            if (!right)
                return;
            had += (size_t)got;
        }
        EXPECT(waiting(p.far) == 0);
        EXPECT(send_digits(p.near));
        EXPECT(viaduct_seek_recv(p.far, bytes, 2, 0, 4) == 2 && !memcmp(bytes, "45", 2));
        EXPECT(recv(p.far, bytes, 16, 0) == 8 && !memcmp(bytes, "01236789", 8));
        close_pair(p);
    }
}

/* Whatever carries the bytes, they come into a pipe. */
static void pipes_are_filled_from_any_path(void)
{
    for (enum way way = SPLICE; way <= SENDFILE; way++) {
        struct pair p = pair_with_digits();
        char bytes[16] = {0};

        EXPECT(receive(way, p.far, bytes, 4) == 4 && !memcmp(bytes, "0123", 4));
        EXPECT(receive(way, p.far, bytes, 16) == 6 && !memcmp(bytes, "456789", 6));
        EXPECT(send(p.near, "abc", 3, 0) == 3);
        EXPECT(recv(p.far, bytes, 16, 0) == 3 && !memcmp(bytes, "abc", 3));
        EXPECT(shutdown(p.near, SHUT_WR) == 0 && receive(way, p.far, bytes, 4) == 0);
        close_pair(p);
    }
}

static void many_messages_at_once(void)
{
    struct pair p = connect_pair();
    char bytes[3][4] = {{0}};
    struct iovec parts[] = {{bytes[0], 3}, {bytes[1], 4}, {bytes[2], 4}};
    struct mmsghdr messages[3] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = &parts[2], .msg_iovlen = 1}}};

    if (!under_viaduct()) {
        close_pair(p);
        return;
    }
    EXPECT(send_digits(p.near));
    EXPECT(viaduct_seek_recv(p.far, bytes[0], 1, 0, 2) == 1 && bytes[0][0] == '2');
    EXPECT(recvmmsg(p.far, messages, 3, MSG_DONTWAIT, NULL) == 3);
    EXPECT(messages[0].msg_len == 3 && messages[1].msg_len == 4 && messages[2].msg_len == 2);
    EXPECT(!memcmp(bytes[0], "013", 3) && !memcmp(bytes[1], "4567", 4) && !memcmp(bytes[2], "89", 2));
    EXPECT_ERROR(recvmmsg(p.far, messages, 3, MSG_DONTWAIT, NULL), EAGAIN);
    close_pair(p);
}

/* Room for one control message that asks for an offset. */
union control {
    char bytes[CMSG_SPACE(sizeof(uint64_t))];
    struct cmsghdr header;
};

static void ask(struct msghdr *message, union control *control, uint64_t offset)
{
    control->header.cmsg_level = SOL_VIADUCT;
    control->header.cmsg_type = VIADUCT_SEEK;
    control->header.cmsg_len = CMSG_LEN(sizeof offset);
    memcpy(CMSG_DATA(&control->header), &offset, sizeof offset);
    message->msg_control = control;
    message->msg_controllen = sizeof *control;
}

static void messages_carry_an_offset(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_SEEK_STREAM | SOCK_CLOEXEC, 0), far, other;
    struct pair p;
    char bytes[8] = {0}, rest[8] = {0};
    union control controls[2];
    struct iovec parts[] = {{bytes, 2}, {rest, 3}}, nowhere = {NULL, 4};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr messages[2];

    if (!under_viaduct()) {
        EXPECT(listener < 0);
        return;
    }
    EXPECT(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 8) == 0);
    EXPECT(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    p.near = socket(AF_INET, SOCK_SEEK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(connect(p.near, (struct sockaddr *)&address, size) == 0);
    p.far = accept(listener, NULL, NULL);
    EXPECT(p.far >= 0);
    warm_up(p.near, p.far);
    EXPECT(send_digits(p.near));
    far = p.far;
    for (uint64_t offset = 0; offset < 2; offset++) {
        message.msg_iov = &nowhere;
        message.msg_iovlen = 1;
        ask(&message, controls, offset);
        EXPECT_ERROR(recvmsg(far, &message, 0), EFAULT);
    }
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    ask(&message, controls, 4);
    EXPECT(recvmsg(far, &message, MSG_CMSG_CLOEXEC) == 5 && !memcmp(bytes, "45", 2) && !memcmp(rest, "678", 3));
    EXPECT(message.msg_controllen == 0 && recvmsg(far, &message, 0) == 5);
    EXPECT(!memcmp(bytes, "01", 2) && !memcmp(rest, "239", 3));
    /* Several at once, each with its own. */
    EXPECT(send_digits(p.near));
    memset(messages, 0, sizeof messages);
    for (int index = 0; index < 2; index++) {
        messages[index].msg_hdr.msg_iov = &parts[index];
        messages[index].msg_hdr.msg_iovlen = 1;
        ask(&messages[index].msg_hdr, &controls[index], index ? 1 : 6);
    }
    EXPECT(recvmmsg(far, messages, 2, 0, NULL) == 2 && messages[0].msg_len == 2 && messages[1].msg_len == 3);
    EXPECT(!memcmp(bytes, "67", 2) && !memcmp(rest, "123", 3));
    EXPECT(recv(far, rest, 8, 0) == 5 && !memcmp(rest, "04589", 5));
    /* The type goes with the socket, not with the number. */
    close(far);
    EXPECT((other = socket(AF_INET, SOCK_STREAM, 0)) == far);
    close(other);
    close(p.near);
    close(listener);
    EXPECT_ERROR(socket(AF_UNIX, SOCK_SEEK_STREAM, 0), ESOCKTNOSUPPORT);
}

/* A connection of which "0123" have been received, partly by search, and "456789" not; no hole is left. */
static struct pair half_received(void)
{
    struct pair p = connect_pair();
    char bytes[4];

    if (!send_all(p.near, "0123456789", 10) || viaduct_seek_recv(p.far, bytes, 1, MSG_WAITALL, 2) != 1 ||
        recv(p.far, bytes, 3, MSG_WAITALL) != 3 || memcmp(bytes, "013", 3))
        snprintf(failure, sizeof failure, "could not receive %.4s", bytes);
    return p;
}

static void stdio_goes_on_where_it_was(void)
{
    struct pair p;
    char bytes[16] = {0};
    FILE *stream;

    if (!under_viaduct())
        return;
    p = half_received();
    EXPECT(!failure[0]);
    stream = fdopen(p.far, "r");
    EXPECT(stream && fread(bytes, 1, 6, stream) == 6 && !memcmp(bytes, "456789", 6));
    fclose(stream);
    close(p.near);
}

/* Without Viaduct. A lane that both programs have is handed over as standard input only. */
static void another_program_goes_on_where_it_was(void)
{
    for (int standard = on_lane(); standard < 2; standard++) {
        struct pair p;
        char bytes[16] = {0}, from[32];
        int output[2], status = 1;
        pid_t child;

        if (!under_viaduct())
            return;
        p = half_received();
        EXPECT(!failure[0] && pipe(output) == 0);
        snprintf(from, sizeof from, "head -c 6 <&%d", standard ? 0 : p.far);
        child = fork();
        if (child == 0) {
            unsetenv("LD_PRELOAD");
            dup2(output[1], 1);
            if (standard)
                dup2(p.far, 0);
            execl("/bin/sh", "sh", "-c", from, (char *)NULL);
            _exit(1);
        }
        close(output[1]);
        EXPECT(read(output[0], bytes, sizeof bytes) == 6 && !memcmp(bytes, "456789", 6));
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        close(output[0]);
        close_pair(p);
    }
}

/* Urgent data stands apart from the stream: a search finds bytes before it, and refuses those behind it until it is
 * next. */
static void searches_stop_at_urgent_data(void)
{
    enum { before = 60000, behind = 60000, large = 50000 };
    static unsigned char sent[before + behind], bytes[large];

    for (size_t index = 0; index < sizeof sent; index++)
        sent[index] = pattern(index);
    for (int round = 0; round < 8; round++) {
        struct pair p = connect_quickly();
        size_t len = round % 2 ? large : 10;
        int flags = round % 4 / 2 ? MSG_WAITALL : 0, room = 1 << 20;

        EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
        EXPECT(send_all(p.near, sent, before) && send(p.near, "!", 1, MSG_OOB) == 1);
        EXPECT(send_all(p.near, sent + before, behind));
        settle();
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, len, flags | (round / 4 ? MSG_DONTWAIT : 0), before + 5), EOPNOTSUPP);
        EXPECT(viaduct_seek_recv(p.far, bytes, len, flags, 500) == (ssize_t)len && !memcmp(bytes, sent + 500, len));
        for (size_t at = 0; at < before;) {
            size_t most = at < 500 ? 500 - at : before - at;
            ssize_t got = in_order(p.far, bytes, most < large ? most : large, 0);

            EXPECT(got > 0 && !memcmp(bytes, sent + at, (size_t)got));
            at += (size_t)got;
            at += at == 500 ? len : 0;
        }
        EXPECT(in_order(p.far, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, sent + before, 5));
        EXPECT(viaduct_seek_recv(p.far, bytes, len, flags, 100) == (ssize_t)len && !memcmp(bytes, sent + before + 105, len));
        close_pair(p);
    }
}

static void *send_four_later(void *fd)
{
    sleep_ms(400);
    send(*(int *)fd, "0123", 4, 0);
    return NULL;
}

/* That what was sent without a copy has gone is told as an error, and is none: streams go on. */
static void completions_are_no_end(void)
{
    struct pair p;
    struct pollfd entry = {-1, 0, 0};
    static char sent[20000];
    viaduct_inbox *inbox;
    char bytes[10];
    int on = 1;
    pthread_t thread;

    p = connect_pair();
    entry.fd = p.far;
    inbox = viaduct_inbox_open(0, 0);
    if (!can_check(setsockopt(p.far, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0, "SO_ZEROCOPY"))
        return;
    EXPECT(send(p.far, sent, sizeof sent, MSG_ZEROCOPY) == sizeof sent);
    EXPECT(recv(p.near, sent, sizeof sent, MSG_WAITALL) == sizeof sent);
    EXPECT(poll(&entry, 1, 2000) == 1 && entry.revents == POLLERR);
    thread = in_thread(send_four_later, &p.near);
    EXPECT(viaduct_seek_recv(p.far, bytes, 2, MSG_WAITALL, 2) == 2 && !memcmp(bytes, "23", 2));
    pthread_join(thread, NULL);
    EXPECT(viaduct_seek_recv(p.far, bytes, 10, 0, 0) == 2);
    EXPECT(viaduct_inbox_add(inbox, p.far) >= 0);
    /* Half of a frame. */
    EXPECT(send(p.near, "VMSG\1\0\0\0\3\0", 10, 0) == 10);
    EXPECT_ERROR(viaduct_msg_recv(inbox, -1, -1, bytes, sizeof bytes, 100, NULL), ETIMEDOUT);
    viaduct_inbox_close(inbox);
    close(p.near);
}

enum { far_away = 120000, piece = 60000, in_all = far_away + 2 * piece };

static void *send_in_all(void *fd)
{
    static unsigned char sent[in_all];

    for (size_t index = 0; index < in_all; index++)
        sent[index] = pattern(index);
    send_all(*(int *)fd, sent, in_all);
    return NULL;
}

static unsigned char received[in_all];

static int piece_far_away(int fd)
{
    return viaduct_seek_recv(fd, received, piece, MSG_WAITALL, far_away) == piece && received[0] == pattern(far_away);
}

static int little_far_away(int fd)
{
    return viaduct_seek_recv(fd, received, 100, MSG_WAITALL, far_away) == 100 && received[0] == pattern(far_away);
}

static int piece_and_then_all(int fd)
{
    ssize_t before, got;

    if (!piece_far_away(fd))
        return 0;
    for (before = 0; before < in_all - piece; before += got) {
        size_t at = (size_t)before + (before < far_away ? 0 : piece);
        size_t most = before < far_away ? (size_t)(far_away - before) : (size_t)(in_all - piece - before);

        got = in_order(fd, received, most < piece ? most : piece, MSG_WAITALL);
        if (got <= 0 || received[0] != pattern(at) || received[got - 1] != pattern(at + (size_t)got - 1))
            return 0;
    }
    return 1;
}

/* Of what a search passes over the kernel copies nothing, and what is received later once. */
static void what_is_passed_over_is_not_copied(void)
{
    static const struct {
        int (*work)(int fd);
        long wanted;
    } works[] = {{piece_far_away, piece}, {little_far_away, 100}, {piece_and_then_all, in_all}};

    for (size_t index = 0; index < sizeof works / sizeof *works; index++) {
        struct pair p = connect_pair();
        pthread_t sender = in_thread(send_in_all, &p.near);
        long copied = copied_in(works[index].work, p.far), wanted = works[index].wanted;

        printf("# %ld of %ld bytes copied\n", copied, wanted);
        EXPECT(copied >= 0);
        /* Before Linux 6.9 all of it is copied, which proves the count. Else there are some looks at a byte or two.
         * What comes by a lane, as all of it may, is no kernel's. */
        if (old)
            EXPECT(on_lane() || copied > far_away);
        else
            EXPECT(copied < wanted + 1000 && (on_lane() || copied >= wanted));
        shutdown(p.far, SHUT_RDWR);
        pthread_join(sender, NULL);
        close_pair(p);
    }
}

/* Where nobody knows what a number stands for each send asks the kernel. */
static void a_stream_is_asked_for_once(void)
{
    struct pair p = connect_pair();
    pid_t child = fork();
    int status;

    if (child == 0) {
        if (viaduct_msg_send(p.near, 1, "a", 1))
            _exit(1);
        if (under_viaduct())
            refuse_option(SO_TYPE);
        _exit(viaduct_msg_send(p.near, 1, "b", 1) ? 2 : 0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    close_pair(p);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"every_call_minds_holes", every_call_minds_holes},
        {"pipes_are_filled_from_any_path", pipes_are_filled_from_any_path},
        {"many_messages_at_once", many_messages_at_once},
        {"messages_carry_an_offset", messages_carry_an_offset},
        {"stdio_goes_on_where_it_was", stdio_goes_on_where_it_was},
        {"another_program_goes_on_where_it_was", another_program_goes_on_where_it_was},
        {"searches_stop_at_urgent_data", searches_stop_at_urgent_data},
        {"completions_are_no_end", completions_are_no_end},
        {"what_is_passed_over_is_not_copied", what_is_passed_over_is_not_copied},
        {"a_stream_is_asked_for_once", a_stream_is_asked_for_once},
    };

    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
