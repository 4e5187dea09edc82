/* Every flag of sends and receives, alone and together, and sends that move a part of what they are given. */
#include "play.h"
#include <sys/sendfile.h>

/* What has cases of its own: they change the connection. */
static bool is_left_out(unsigned flag)
{
    return flag == MSG_OOB || flag == MSG_FASTOPEN || flag == MSG_ZEROCOPY;
}

static void every_flag_of_sends(void)
{
    for (int bit = 0; bit < 32; bit++) {
        unsigned flag = 1U << bit;
        if (is_left_out(flag))
            continue;
        errno = 0;
        if (is_near) {
            long sent = send(s, "x", 1, (int)(flag | MSG_DONTWAIT | MSG_NOSIGNAL));
            say("flag %x: %ld %s", flag, sent, sent < 0 ? strerrorname_np(errno) : "");
            tell((int)sent);
        } else if (ask() == 1)
            GET(s, 8, 0);
        step();
    }
}

static void every_flag_of_receives(void)
{
    for (int bit = 0; bit < 32; bit++) {
        unsigned flag = 1U << bit;
        if (is_left_out(flag))
            continue;
        NEAR(send_all(s, "abc", 3));
        if (!is_near) {
            char bytes[3] = "";
            struct iovec part = {bytes, 2};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
            long got;
            arrive(s, POLLIN);
            errno = 0;
            got = recvmsg(s, &message, (int)(flag | MSG_DONTWAIT));
            say("flag %x: %ld %s, flags %x", flag, got, got < 0 ? strerrorname_np(errno) : "", (unsigned)message.msg_flags);
            while (recv(s, bytes, 1, MSG_DONTWAIT) == 1)
                say("left %c", bytes[0]);
        }
        step();
    }
}

/* Each receive is given less than there is, as much, and more. */
static void flags_of_receives_together(void)
{
    static const int flags[] = {MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_CMSG_CLOEXEC};

    for (int which = 0; which < 16; which++)
        for (size_t room = 3; room <= 9; room += 3) {
            int together = MSG_DONTWAIT;
            NEAR(send_all(s, "abcdef", 6));
            for (int index = 0; index < 4; index++)
                if (which >> index & 1)
                    together |= flags[index];
            if (!is_near) {
                char bytes[10] = "";
                arrive(s, POLLIN);
                say("flags %x, room %zu", (unsigned)together, room);
                R(recv(s, bytes, room, together));
                if (!(together & MSG_TRUNC))
                    say("%s", bytes);
                while (recv(s, bytes, 1, MSG_DONTWAIT) == 1)
                    say("left %c", bytes[0]);
            }
            step();
        }
}

/* Sends what goes in of one vector of the pattern, from place `at` on. */
static long part_of_a_vector(size_t at, bool by_message)
{
    static unsigned char bytes[300000];
    struct iovec parts[] = {{bytes, 7}, {bytes + 7, 0}, {bytes + 7, 199993}, {bytes + 200000, 100000}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};

    for (size_t index = 0; index < sizeof bytes; index++)
        bytes[index] = pattern(at + index);
    return by_message ? sendmsg(s, &message, MSG_NOSIGNAL) : writev(s, parts, 4);
}

/* Whatever part of its vectors a full connection takes, the stream goes on with the byte after it. */
static void parts_of_vectors(void)
{
    size_t at = 0;
    bool full = false;

    if (is_near) {
        fcntl(s, F_SETFL, O_NONBLOCK);
        for (int round = 0; at < 12000000 || !full; round++) {
            long sent = part_of_a_vector(at, round % 2);
            if (sent < 0 && !full) {
                full = true;
                tell(0);
            }
            if (sent < 0 && (errno != EAGAIN || poll(&(struct pollfd){s, POLLOUT, 0}, 1, 2000) != 1)) {
                R(sent);
                break;
            }
            at += sent > 0 ? (size_t)sent : 0;
        }
        R(shutdown(s, SHUT_WR));
        tell((int)at);
    } else {
        ask();
        drink(s, 0, 12000000);
        at = (size_t)ask();
        for (size_t place = 12000000; place < at; place++) {
            unsigned char byte;
            if (recv(s, &byte, 1, 0) != 1 || byte != pattern(place)) {
                say("wrong byte at %zu", place);
                break;
            }
        }
        GET(s, 1, 0);
    }
    step();
}

/* A send that blocks and whose time runs out, or that a signal ends, tells exactly how much went in. */
static void parts_of_blocked_sends(void)
{
    static unsigned char bytes[30000000];
    struct timeval time = {0, 150000};

    for (int how = 0; how < 2; how++) {
        s = join();
        if (is_near) {
            for (size_t at = 0; at < sizeof bytes; at++)
                bytes[at] = pattern(at);
            if (how == 0)
                setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
            else {
                count_signals(SIGUSR1, 0);
                signal_in(150, SIGUSR1);
            }
            long sent = send(s, bytes, sizeof bytes, 0);
            say("part %d", sent > 0 && sent < (long)sizeof bytes);
            tell((int)sent);
            R(shutdown(s, SHUT_WR));
        } else {
            int sent = ask();
            for (long at = 0; at < sent;) {
                long got = recv(s, bytes, sizeof bytes, 0);
                for (long index = 0; index < got; index++)
                    if (bytes[index] != pattern((size_t)(at + index))) {
                        say("wrong byte at %ld", at + index);
                        break;
                    }
                if (got <= 0) {
                    R(got);
                    break;
                }
                at += got;
            }
            GET(s, 1, 0);
        }
        step();
    }
}

/* Several messages in one call, of which a full connection takes some whole, one in part, and the rest not. */
static void parts_of_several_messages(void)
{
    static unsigned char bytes[3000000];
    struct iovec parts[10];
    struct mmsghdr messages[10];
    int complete, total = 0;

    if (is_near) {
        for (size_t at = 0; at < sizeof bytes; at++)
            bytes[at] = pattern(at);
        for (int index = 0; index < 10; index++) {
            parts[index] = (struct iovec){bytes + index * 300000, 300000};
            messages[index] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[index], .msg_iovlen = 1}};
        }
        fcntl(s, F_SETFL, O_NONBLOCK);
        for (int round = 0; round < 10; round++) {
            complete = sendmmsg(s, messages, 10, 0);
            for (int index = 0; index < complete; index++)
                total += (int)messages[index].msg_len;
            /* The pattern would have to begin anew. */
            if (complete < 10 || messages[9].msg_len < 300000)
                break;
        }
        say("some %d, not all %d", total > 0, total < 30000000);
        tell(total);
        R(shutdown(s, SHUT_WR));
    } else {
        long left = ask(), at = 0;
        while (left > 0) {
            long got = recv(s, bytes, sizeof bytes, 0);
            if (got <= 0)
                break;
            for (long index = 0; index < got; index++)
                if (bytes[index] != pattern((size_t)((at + index) % (long)sizeof bytes))) {
                    say("wrong byte at %ld", at + index);
                    left = 0;
                    break;
                }
            at += got;
            left -= got;
        }
        say("left %ld", left);
        GET(s, 1, 0);
    }
    step();
}

/* Nothing is sent behind a message of which a part has gone, though room for something short comes meanwhile. */
static void several_messages_of_which_one_is_cut(void)
{
    static unsigned char bytes[40000000];
    struct iovec parts[] = {{"first", 5}, {bytes, sizeof bytes}, {"last", 4}};
    struct mmsghdr messages[3];
    struct timeval soon = {0, 200000};

    if (is_near) {
        for (int index = 0; index < 3; index++)
            messages[index] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[index], .msg_iovlen = 1}, .msg_len = 7777};
        setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
        R(sendmmsg(s, messages, 3, 0));
        say("%d, a part %d, %d", (int)messages[0].msg_len, messages[1].msg_len > 0 && messages[1].msg_len < sizeof bytes,
            (int)messages[2].msg_len);
        tell((int)messages[1].msg_len);
        R(shutdown(s, SHUT_WR));
    } else {
        for (long left = ask() + 5, got = 1; left > 0 && got > 0; left -= got)
            got = recv(s, bytes, left < (long)sizeof bytes ? (size_t)left : sizeof bytes, 0);
        GET(s, 8, 0);
    }
    step();
}

/* More than the kernel sends in one call. */
static void very_many_messages(void)
{
    static char bytes[1500];
    static struct iovec parts[1500];
    static struct mmsghdr messages[1500];

    for (int index = 0; index < 1500; index++) {
        bytes[index] = (char)('a' + index % 26);
        parts[index] = (struct iovec){bytes + index, 1};
        messages[index] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[index], .msg_iovlen = 1}};
    }
    NEAR(R(sendmmsg(s, messages, 1500, 0)); R(sendmmsg(s, messages, 476, 0)));
    FAR(R(recvmmsg(s, messages, 1500, 0, NULL)); show_bytes("bytes", bytes, 1500));
}

static void urgent_among_several_messages(void)
{
    char bytes[3][4];
    struct iovec parts[3];
    struct mmsghdr messages[3] = {0};

    for (int index = 0; index < 3; index++) {
        parts[index] = (struct iovec){bytes[index], 4};
        messages[index].msg_hdr = (struct msghdr){.msg_iov = &parts[index], .msg_iovlen = 1};
    }
    NEAR(R(send(s, "ab!", 3, MSG_OOB)));
    FAR(arrive(s, POLLPRI); R(recvmmsg(s, messages, 3, MSG_OOB, NULL)); say("%u", messages[0].msg_len); GET(s, 4, 0);
        GET(s, 4, MSG_DONTWAIT));
    NEAR(R(send(s, "after", 5, 0)));
    FAR(ALL(s, 5));
}

/* What a file gives to a connection that is nearly full goes on from the offset that the call has told. */
static void parts_of_files(void)
{
    static unsigned char bytes[1000000];
    char name[] = "/tmp/viaduct-case-XXXXXX";
    off_t offset = 0;
    bool full = false;

    if (is_near) {
        int file = mkstemp(name);
        unlink(name);
        for (size_t at = 0; at < 6000000; at += sizeof bytes) {
            for (size_t index = 0; index < sizeof bytes; index++)
                bytes[index] = pattern(at + index);
            write(file, bytes, sizeof bytes);
        }
        fcntl(s, F_SETFL, O_NONBLOCK);
        while (offset < 6000000) {
            off_t before = offset;
            long sent = sendfile(s, file, &offset, 6000000);
            if (sent < 0 && !full) {
                full = true;
                tell(0);
            }
            if (sent < 0 && (errno != EAGAIN || poll(&(struct pollfd){s, POLLOUT, 0}, 1, 2000) != 1)) {
                R(sent);
                break;
            }
            if (offset - before != (sent > 0 ? sent : 0))
                say("sent %ld, but the offset moved by %ld", sent, (long)(offset - before));
        }
        if (!full)
            tell(0);
        R(close(s));
    } else {
        ask();
        drink(s, 0, 6000000);
        GET(s, 1, 0);
    }
    step();
}

/* Files of which the kernel reads aligned pieces only, and what is no file, or too much of one. */
static void files_read_past_the_cache(void)
{
    char name[] = "/tmp/viaduct-case-XXXXXX";
    void *bytes;
    off_t offset = 0, odd = 3;
    int ends[2];

    if (is_near) {
        int file = mkostemp(name, O_DIRECT);
        int place = open("/tmp", O_RDONLY);
        posix_memalign(&bytes, 4096, 40960);
        for (size_t at = 0; at < 40960; at++)
            ((unsigned char *)bytes)[at] = pattern(at);
        R(write(file, bytes, 40960));
        R(ftruncate(file, 40000));
        unlink(name);
        R(sendfile(s, file, &offset, 40960));
        say("%ld", (long)offset);
        offset = 0;
        R(sendfile(s, file, &odd, 40000));
        pipe(ends);
        R(sendfile(s, ends[0], &offset, 10));
        R(sendfile(s, ends[0], NULL, 10));
        R(sendfile(s, place, &offset, 10));
        R(sendfile(s, place, NULL, 10));
        R(sendfile(s, 777, &offset, 0));
        R(sendfile(s, file, &offset, 0));
        R(sendfile(s, file, &offset, (size_t)-1));
    }
    step();
    FAR(drink(s, 0, 40000));
}

/* Flags for files, which sockets take as well, and some that no kernel knows. */
static void flags_of_vectors(void)
{
    char bytes[8] = "append";
    struct iovec part = {bytes, 6};

    NEAR(R(pwritev2(s, &part, 1, -1, RWF_APPEND)); R(pwritev2(s, &part, 1, -1, RWF_APPEND | RWF_HIPRI | RWF_SYNC | RWF_DSYNC)));
    FAR(arrive(s, POLLIN); R(preadv2(s, &part, 1, -1, RWF_APPEND)); ALL(s, 6); R(preadv2(s, &part, 1, -1, RWF_APPEND | RWF_NOWAIT)));
    NEAR(R(pwritev2(s, &part, 1, -1, 0x4000000)); R(preadv2(s, &part, 1, -1, 0x4000000)); R(pwritev2(s, &part, 1, 7, RWF_APPEND)));
    FAR(R(preadv2(s, &part, 1, -1, 0x4000000)); R(send(s, "back", 4, 0)));
    NEAR(ALL(s, 4); R(pwritev2(s, &part, 1, -1, 0)));
    FAR(ALL(s, 6));
}

MAIN(JOINED(every_flag_of_sends), JOINED(every_flag_of_receives), JOINED(flags_of_receives_together), JOINED(parts_of_vectors),
     BARE(parts_of_blocked_sends), JOINED(parts_of_several_messages), JOINED(parts_of_files), JOINED(flags_of_vectors),
     JOINED(several_messages_of_which_one_is_cut), JOINED(very_many_messages), JOINED(urgent_among_several_messages),
     JOINED(files_read_past_the_cache))
