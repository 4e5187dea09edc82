/* Calls that move bytes. */
#include "calls.h"
#include <sys/sendfile.h>
#include <sys/uio.h>

/* Fills in the next bytes that the end sends. */
static void fill(int end, unsigned char *bytes, long count)
{
    for (long index = 0; index < count; index++)
        bytes[index] = (unsigned char)(ends[end].next + index);
}

/* The buffer in several parts, some of them empty. */
static void in_parts(struct iovec parts[5], unsigned char *bytes, long count)
{
    size_t half = (size_t)count / 2;

    parts[0] = (struct iovec){bytes, 0};
    parts[1] = (struct iovec){bytes, half};
    parts[2] = (struct iovec){bytes + half, 0};
    parts[3] = (struct iovec){bytes + half, (size_t)count - half};
    parts[4] = (struct iovec){NULL, 0};
}

void call_send(int end)
{
    static const char *const names[] = {"write", "send", "writev", "sendmsg", "pwritev2", "sendto", "dprintf"};
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = 1};
    struct iovec parts[5];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 5};
    long count = any_size(), sent;
    unsigned way = below(7);
    int flags = MSG_NOSIGNAL | (chance(20) ? MSG_DONTWAIT : 0) | (chance(10) ? MSG_EOR : 0), fd = any_descriptor(end);

    /* It goes in several pieces where it is long. */
    if (way == 6)
        count = count < 1000 ? count : 1000;
    if (!has_room(end, count))
        return;
    fill(end, buffer, count);
    in_parts(parts, buffer, count);
    say("%s %ld", names[way], count);
    switch (way) {
    case 0:
        sent = write(fd, buffer, (size_t)count);
        break;
    case 1:
        sent = send(fd, buffer, (size_t)count, flags);
        break;
    case 2:
        sent = writev(fd, parts, 5);
        break;
    case 3:
        sent = sendmsg(fd, &message, flags);
        break;
    case 4:
        sent = pwritev2(fd, parts, 5, -1, 0);
        break;
    case 5:
        sent = sendto(fd, buffer, (size_t)count, flags, (struct sockaddr *)&nobody, sizeof nobody);
        break;
    default:
        memset(buffer, 'a' + ends[end].next % 16, (size_t)count);
        sent = dprintf(fd, "%.*s", (int)count, (char *)buffer);
    }
    say_result(sent);
    was_sent(end, sent);
    ends[end].next += (unsigned char)(sent > 0 ? sent : 0);
}

void call_receive(int end)
{
    static const char *const names[] = {"read", "recv", "readv", "recvmsg", "preadv2", "recvfrom"};
    static const int all_flags[] = {0,
                                    0,
                                    0,
                                    MSG_PEEK,
                                    MSG_TRUNC,
                                    MSG_PEEK | MSG_TRUNC,
                                    MSG_WAITALL,
                                    MSG_PEEK | MSG_WAITALL,
                                    MSG_DONTWAIT | MSG_WAITALL,
                                    MSG_PEEK | MSG_WAITALL | MSG_TRUNC,
                                    MSG_ERRQUEUE,
                                    MSG_CMSG_CLOEXEC | MSG_NOSIGNAL | MSG_WAITFORONE};
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    struct iovec parts[5];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 5};
    long count = any_size(), received;
    unsigned way = below(6);
    int flags = all_flags[below(sizeof all_flags / sizeof *all_flags)], fd = any_descriptor(end);

    if (way % 2 == 0)
        flags = 0;
    memset(buffer, 0, (size_t)count);
    in_parts(parts, buffer, count);
    say("%s %ld", names[way], count);
    if (flags)
        say(" flags %x", flags);
    switch (way) {
    case 0:
        received = read(fd, buffer, (size_t)count);
        break;
    case 1:
        received = recv(fd, buffer, (size_t)count, flags);
        break;
    case 2:
        received = readv(fd, parts, 5);
        break;
    case 3:
        received = recvmsg(fd, &message, flags);
        break;
    case 4:
        received = preadv2(fd, parts, 5, -1, 0);
        break;
    default:
        received = recvfrom(fd, buffer, (size_t)count, flags, (struct sockaddr *)&address, &length);
    }
    say_result(received);
    say_sum(buffer, count);
    if (way == 3)
        say(" tells %x", message.msg_flags);
    if (way == 5)
        say(" from %u", (unsigned)length);
    if (!(flags & MSG_PEEK))
        was_received(end, received);
}

/* So many messages, each in its own third of the buffer. */
static unsigned any_messages(struct mmsghdr *messages, struct iovec *parts, long *all)
{
    unsigned count = 1 + below(3);

    *all = 0;
    for (unsigned number = 0; number < count; number++) {
        parts[number] = (struct iovec){buffer + number * LONGEST, (size_t)any_size()};
        messages[number] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[number], .msg_iovlen = 1}};
        *all += (long)parts[number].iov_len;
    }
    return count;
}

void call_send_messages(int end)
{
    struct mmsghdr messages[3];
    struct iovec parts[3];
    long all;
    unsigned count = any_messages(messages, parts, &all);
    int fd = any_descriptor(end), sent;

    if (!has_room(end, all))
        return;
    for (unsigned number = 0; number < count; number++)
        fill(end, parts[number].iov_base, (long)parts[number].iov_len);
    say("sendmmsg %u", count);
    sent = sendmmsg(fd, messages, count, MSG_NOSIGNAL);
    say_result(sent);
    for (int number = 0; number < sent; number++) {
        say(" %u", messages[number].msg_len);
        was_sent(end, messages[number].msg_len);
    }
}

void call_receive_messages(int end)
{
    struct timespec patience = {1, 1000};
    struct mmsghdr messages[3];
    struct iovec parts[3];
    long all;
    unsigned count = any_messages(messages, parts, &all);
    int flags = chance(50) ? MSG_WAITFORONE : chance(50) ? MSG_PEEK : 0, fd = any_descriptor(end), received;
    bool timed = chance(50);

    memset(buffer, 0, sizeof buffer);
    say("recvmmsg %u of %ld flags %x%s", count, all, flags, timed ? " timed" : "");
    received = recvmmsg(fd, messages, count, flags, timed ? &patience : NULL);
    say_result(received);
    for (int number = 0; number < received; number++) {
        say(" %u tells %x", messages[number].msg_len, messages[number].msg_hdr.msg_flags);
        say_sum(parts[number].iov_base, messages[number].msg_len);
        if (!(flags & MSG_PEEK))
            was_received(end, messages[number].msg_len);
    }
}

void call_send_file(int end)
{
    off_t from = below(FILE_SIZE - 1000), at = from;
    size_t count = below(3000);
    bool given = chance(50);
    int fd = any_descriptor(end);
    long sent;

    if (!has_room(end, (long)count))
        return;
    lseek(file, from, SEEK_SET);
    say("sendfile %zu from %ld%s", count, (long)from, given ? "" : " where it stands");
    sent = sendfile(fd, file, given ? &at : NULL, count);
    say_result(sent);
    say(" moved %ld", (long)((given ? at : lseek(file, 0, SEEK_CUR)) - from));
    was_sent(end, sent);
}

/* A receive that waits for a moment. */
void call_receive_patiently(int end)
{
    struct timeval patience = {0, 3000};
    int flags = chance(50) ? MSG_WAITALL : chance(50) ? MSG_WAITALL | MSG_PEEK : 0, fd = any_descriptor(end);
    long count = any_size(), received;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    set_blocking(end, true);
    memset(buffer, 0, (size_t)count);
    say("recv %ld flags %x patiently", count, flags);
    received = recv(fd, buffer, (size_t)count, flags);
    say_result(received);
    say_sum(buffer, count);
    if (!(flags & MSG_PEEK))
        was_received(end, received);
    set_blocking(end, false);
}

void call_with_nothing(int end)
{
    int flags = chance(50) ? MSG_PEEK : 0, fd = any_descriptor(end);

    say("recv nothing flags %x", flags);
    say_result(recv(fd, NULL, 0, flags));
    say(", send nothing");
    say_result(send(fd, NULL, 0, MSG_NOSIGNAL));
}

/* What stands in the pipe is taken out, so that the next splice finds it empty. */
static long empty_pipe(void)
{
    long all = 0, some;

    while (all < BUFFER && (some = read(pipe_ends[0], buffer + all, (size_t)(BUFFER - all))) > 0)
        all += some;
    return all;
}

/* Until as much has come as was asked for, or no more does: how much a pipe takes at once is the kernel's affair. */
void call_splice_in(int end)
{
    long count = any_size(), all = 0, moved;
    int flags = chance(50) ? SPLICE_F_NONBLOCK : 0, fd = any_descriptor(end);

    say("splice %ld in flags %x", count, flags);
    do {
        moved = splice(fd, NULL, pipe_ends[1], NULL, (size_t)(count - all), (unsigned)flags);
        was_received(end, moved);
        if (moved > 0 && read(pipe_ends[0], buffer + all, (size_t)moved) != moved)
            say(" lost in the pipe");
        all += moved > 0 ? moved : 0;
    } while (moved > 0 && all < count);
    say_result(moved > 0 ? 0 : moved);
    say(" %ld", all);
    say_sum(buffer, all);
}

void call_splice_out(int end)
{
    long count = (long)below(3) * 500, moved;
    int flags = chance(50) ? SPLICE_F_NONBLOCK : 0, fd = any_descriptor(end);

    if (!has_room(end, count))
        return;
    fill(end, buffer, count);
    if (count > 0 && write(pipe_ends[1], buffer, (size_t)count) != count)
        say("the pipe is full ");
    say("splice %ld out flags %x", count, flags);
    moved = splice(pipe_ends[0], NULL, fd, NULL, 5000, (unsigned)flags);
    say_result(moved);
    was_sent(end, moved);
    say(" left %ld", empty_pipe());
}

void call_send_urgent(int end)
{
    long sent;

    /* A known limit: the kernel may drop a byte of urgent data for a second one that comes before it has been
     * passed. */
    if (ends[end].urgent)
        return;
    say("send urgent");
    sent = send(any_descriptor(end), "!", 1, MSG_OOB | MSG_NOSIGNAL);
    say_result(sent);
    ends[end].urgent = sent > 0;
    was_sent(end, sent);
}

void call_receive_urgent(int end)
{
    unsigned char byte = 0;
    int flags = MSG_OOB | (chance(30) ? MSG_PEEK : 0);

    say("recv urgent flags %x", flags);
    say_result(recv(any_descriptor(end), &byte, 1, flags));
    say(" byte %x", byte);
}
