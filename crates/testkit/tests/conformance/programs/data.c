/* Calls that move bytes: flags, vectors, messages, counts. */
#include "play.h"

static void peeking(void)
{
    NEAR(R(send(s, "abcdef", 6, 0)));
    FAR(GET(s, 3, MSG_PEEK); GET(s, 6, MSG_PEEK | MSG_WAITALL); GET(s, 2, 0); GET(s, 16, MSG_PEEK);
        GET(s, 16, MSG_PEEK | MSG_DONTWAIT); GET(s, 16, 0); GET(s, 1, MSG_PEEK | MSG_DONTWAIT));
}

static void peeking_waits(void)
{
    if (is_near) {
        sleep_ms(100);
        R(send(s, "x", 1, 0));
    } else {
        TIMED(15, 1000, GET(s, 4, MSG_PEEK));
        GET(s, 4, 0);
    }
    step();
}

static void peeking_at_the_end(void)
{
    NEAR(R(send(s, "ab", 2, 0)); R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLRDHUP); GET(s, 8, MSG_PEEK); GET(s, 8, MSG_PEEK | MSG_WAITALL); GET(s, 8, 0);
        GET(s, 8, MSG_PEEK); GET(s, 8, MSG_PEEK | MSG_DONTWAIT); GET(s, 8, 0));
}

static void peeking_all_of_much(void)
{
    static char bytes[20000];

    memset(bytes, 'p', sizeof bytes);
    NEAR(R(send_all(s, bytes, sizeof bytes)));
    FAR(GET(s, 20000, MSG_PEEK | MSG_WAITALL); GET(s, 20000, MSG_WAITALL); GET(s, 1, MSG_DONTWAIT));
}

static void waitall_waits(void)
{
    if (is_near)
        for (int piece = 0; piece < 3; piece++) {
            sleep_ms(50);
            R(send(s, "0123456789", 10, 0));
        }
    else
        TIMED(35, 1000, GET(s, 30, MSG_WAITALL));
    step();
}

static void waitall_is_cut_by_the_end(void)
{
    if (is_near) {
        R(send(s, "tail", 4, 0));
        sleep_ms(20);
        R(close(s));
    } else {
        GET(s, 30, MSG_WAITALL);
        GET(s, 30, MSG_WAITALL);
    }
    step();
}

static void waitall_is_cut_by_a_timeout(void)
{
    struct timeval time = {0, 60000};

    NEAR(R(send(s, "abc", 3, 0)));
    FAR(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
        TIMED(50, 1000, GET(s, 10, MSG_WAITALL)); TIMED(50, 1000, GET(s, 10, MSG_WAITALL)));
}

static void waitall_is_cut_by_a_signal(void)
{
    NEAR(R(send(s, "abc", 3, 0)));
    FAR(count_signals(SIGUSR1, 0); signal_in(100, SIGUSR1); TIMED(30, 1000, GET(s, 10, MSG_WAITALL));
        signal_in(100, SIGUSR1); TIMED(30, 1000, GET(s, 10, MSG_WAITALL)); say("%d signals", signals));
}

static void waitall_with_restart_returns_what_came(void)
{
    NEAR(R(send(s, "abc", 3, 0)));
    FAR(count_signals(SIGUSR1, SA_RESTART); signal_in(100, SIGUSR1); TIMED(30, 1000, GET(s, 10, MSG_WAITALL)));
}

static void waitall_does_not_wait_when_told(void)
{
    NEAR(R(send(s, "abc", 3, 0)));
    FAR(GET(s, 10, MSG_WAITALL | MSG_DONTWAIT); GET(s, 10, MSG_WAITALL | MSG_DONTWAIT);
        R(fcntl(s, F_SETFL, O_NONBLOCK)); GET(s, 10, MSG_WAITALL));
}

static void waitall_in_a_vector(void)
{
    char a[3], b[4], c[5];
    struct iovec parts[] = {{a, 3}, {b, 4}, {c, 5}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};

    if (is_near)
        for (int piece = 0; piece < 3; piece++) {
            R(send(s, "wxyz", 4, 0));
            sleep_ms(10);
        }
    else {
        R(recvmsg(s, &message, MSG_WAITALL));
        show_bytes("a", a, 3);
        show_bytes("b", b, 4);
        show_bytes("c", c, 5);
    }
    step();
}

static void dontwait(void)
{
    FAR(GET(s, 8, MSG_DONTWAIT); R(read(s, NULL, 0)));
    NEAR(R(send(s, "x", 1, MSG_DONTWAIT)));
    FAR(GET(s, 8, MSG_DONTWAIT); GET(s, 8, MSG_DONTWAIT));
}

static void trunc_throws_away(void)
{
    NEAR(R(send(s, "abcdefgh", 8, 0)));
    FAR(R(recv(s, NULL, 5, MSG_TRUNC)); GET(s, 8, 0));
    NEAR(R(send(s, "abc", 3, 0)));
    FAR(R(recv(s, NULL, 100, MSG_TRUNC)); R(recv(s, NULL, 1, MSG_TRUNC | MSG_DONTWAIT)));
}

static void trunc_with_peek_throws_nothing_away(void)
{
    NEAR(R(send(s, "abcdefgh", 8, 0)));
    FAR(R(recv(s, NULL, 5, MSG_TRUNC | MSG_PEEK)); GET(s, 8, 0));
}

static void trunc_of_much(void)
{
    if (is_near) {
        pour(s, 0, 300000);
    } else {
        R(recv(s, NULL, 200000, MSG_TRUNC | MSG_WAITALL));
        drink(s, 200000, 100000);
    }
    step();
}

static void nothing_sent(void)
{
    NEAR(R(send(s, "", 0, 0)); R(write(s, "", 0)); R(send(s, NULL, 0, 0)); R(writev(s, NULL, 0)));
    FAR(GET(s, 1, MSG_DONTWAIT));
    NEAR(R(send(s, "a", 1, 0)));
    FAR(R(recv(s, NULL, 0, 0)); R(read(s, NULL, 0)); R(readv(s, NULL, 0)); GET(s, 1, 0));
}

static void nothing_received(void)
{
    char byte;
    struct iovec empty = {&byte, 0};

    FAR(R(recv(s, &byte, 0, MSG_DONTWAIT)); R(readv(s, &empty, 1)); R(recv(s, &byte, 0, MSG_PEEK | MSG_DONTWAIT)));
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLRDHUP); R(recv(s, &byte, 0, 0)); GET(s, 1, 0));
}

static void vectors_with_empty_parts(void)
{
    char a[3], b[1], c[20];
    struct iovec out[] = {{"ab", 2}, {"", 0}, {"cdefg", 5}, {NULL, 0}, {"hij", 3}};
    struct iovec in[] = {{NULL, 0}, {a, 3}, {NULL, 0}, {b, 1}, {c, 20}};

    NEAR(R(writev(s, out, 5)));
    FAR(R(readv(s, in, 5)); show_bytes("a", a, 3); show_bytes("b", b, 1); show_bytes("c", c, 6));
}

static void vectors_of_many_parts(void)
{
    static char bytes[1025];
    static struct iovec parts[1025];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1024};

    for (int index = 0; index < 1025; index++)
        parts[index] = (struct iovec){&bytes[index], 1};
    NEAR(memset(bytes, 'v', sizeof bytes); R(writev(s, parts, 1024)); R(writev(s, parts, 1025)); R(writev(s, parts, -1)));
    FAR(R(recvmsg(s, &message, MSG_WAITALL)); show_bytes("bytes", bytes, 1024); R(readv(s, parts, 1025)); R(readv(s, parts, -1)));
}

static void messages_of_too_many_parts(void)
{
    static char bytes[1025];
    static struct iovec parts[1025];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1025};

    for (int index = 0; index < 1025; index++)
        parts[index] = (struct iovec){&bytes[index], 1};
    BOTH(R(sendmsg(s, &message, 0)); R(recvmsg(s, &message, MSG_DONTWAIT)));
    BOTH(message.msg_iovlen = 0; R(sendmsg(s, &message, 0)); R(recvmsg(s, &message, MSG_DONTWAIT)));
}

static char *const nowhere = (char *)8;

static void bad_addresses_to_send(void)
{
    struct iovec parts[] = {{"good", 4}, {nowhere, 10}};
    char *volatile bad = nowhere;

    NEAR(R(send(s, bad, 10, 0)); R(write(s, bad, 10)); R(writev(s, parts + 1, 1)); R(sendmsg(s, (void *)bad, 0)));
    NEAR(R(send(s, "fine", 4, 0)));
    FAR(GET(s, 4, 0); GET(s, 4, MSG_DONTWAIT));
}

static void bad_addresses_to_receive(void)
{
    char *volatile bad = nowhere;
    struct iovec part = {nowhere, 10};

    NEAR(R(send(s, "kept", 4, 0)));
    FAR(R(read(s, bad, 4)); R(recv(s, bad, 4, 0)); R(readv(s, &part, 1)); R(recvmsg(s, (void *)bad, 0)); GET(s, 4, 0));
}

/* Whether a connection is over, or there is nothing, comes first. */
static void bad_addresses_behind_the_end(void)
{
    struct iovec part = {nowhere, 10};
    char *volatile bad = nowhere;

    FAR(R(recv(s, bad, 4, MSG_DONTWAIT)); R(recv(s, bad, 4, MSG_PEEK | MSG_DONTWAIT)));
    step();
    NEAR(R(send(s, "last", 4, 0)); R(shutdown(s, SHUT_WR)); R(send(s, bad, 10, MSG_NOSIGNAL));
         R(sendto(s, bad, 10, MSG_NOSIGNAL, NULL, 0)));
    FAR(R(recv(s, bad, 4, 0)); ALL(s, 4); R(recv(s, bad, 4, 0)); R(readv(s, &part, 1)); R(recv(s, bad, 4, MSG_PEEK)));
    step();
    FAR(R(send(s, bad, 10, MSG_NOSIGNAL)); R(shutdown(s, SHUT_WR)); R(send(s, bad, 10, MSG_NOSIGNAL)));
    NEAR(GET(s, 4, 0); R(recv(s, bad, 4, 0)));
}

static void messages(void)
{
    char a[4], b[10], control[64], name[64];
    struct iovec out[] = {{"abc", 3}, {"defg", 4}}, in[] = {{a, 4}, {b, 10}};
    struct msghdr sent = {.msg_iov = out, .msg_iovlen = 2};
    struct msghdr received = {.msg_name = name, .msg_namelen = sizeof name, .msg_iov = in, .msg_iovlen = 2,
                              .msg_control = control, .msg_controllen = sizeof control, .msg_flags = 12345};

    NEAR(R(sendmsg(s, &sent, MSG_NOSIGNAL)));
    FAR(R(recvmsg(s, &received, 0)); show_bytes("a", a, 4); show_bytes("b", b, 3);
        say("flags %x control %zu name %u", (unsigned)received.msg_flags, received.msg_controllen, received.msg_namelen));
    FAR(received.msg_flags = 7; received.msg_namelen = 9; R(recvmsg(s, &received, MSG_DONTWAIT));
        say("flags %x name %u", (unsigned)received.msg_flags, received.msg_namelen));
}

static void message_flags_by_what_was_asked(void)
{
    char bytes[8];
    struct iovec in = {bytes, 8};
    struct msghdr received = {.msg_iov = &in, .msg_iovlen = 1};

    NEAR(R(send(s, "abcd", 4, MSG_EOR)));
    FAR(R(recvmsg(s, &received, MSG_PEEK)); say("flags %x", (unsigned)received.msg_flags);
        R(recvmsg(s, &received, MSG_CMSG_CLOEXEC)); say("flags %x", (unsigned)received.msg_flags));
    NEAR(R(send(s, "abcd", 4, MSG_EOR)));
    FAR(in.iov_len = 2; R(recvmsg(s, &received, MSG_TRUNC)); say("flags %x", (unsigned)received.msg_flags); ALL(s, 2));
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(R(recvmsg(s, &received, 0)); say("flags %x", (unsigned)received.msg_flags));
}

static void several_messages(void)
{
    char a[4] = "", b[4] = "";
    struct iovec out[] = {{"abcd", 4}, {"efgh", 4}}, in[] = {{a, 4}, {b, 4}};
    struct mmsghdr sent[2] = {{{.msg_iov = out, .msg_iovlen = 1}, 0}, {{.msg_iov = out + 1, .msg_iovlen = 1}, 0}};
    struct mmsghdr received[2] = {{{.msg_iov = in, .msg_iovlen = 1}, 0}, {{.msg_iov = in + 1, .msg_iovlen = 1}, 0}};

    NEAR(R(sendmmsg(s, sent, 2, 0)); say("%u %u", sent[0].msg_len, sent[1].msg_len); R(sendmmsg(s, sent, 0, 0)));
    FAR(R(recvmmsg(s, received, 2, MSG_WAITALL, NULL)); say("%u %u", received[0].msg_len, received[1].msg_len);
        show_bytes("a", a, 4); show_bytes("b", b, 4); R(recvmmsg(s, received, 2, MSG_DONTWAIT, NULL));
        R(recvmmsg(s, received, 0, MSG_DONTWAIT, NULL)));
}

static void several_messages_wait_for_one(void)
{
    char a[4], b[4];
    struct iovec in[] = {{a, 4}, {b, 4}};
    struct mmsghdr received[2] = {{{.msg_iov = in, .msg_iovlen = 1}, 0}, {{.msg_iov = in + 1, .msg_iovlen = 1}, 0}};
    struct timespec time = {0, 30000000};

    NEAR(R(send(s, "abcd", 4, 0)));
    FAR(R(recvmmsg(s, received, 2, MSG_WAITFORONE, NULL)); say("%u", received[0].msg_len));
    if (is_near) {
        sleep_ms(120);
        R(send(s, "efgh", 4, 0));
    } else
        TIMED(50, 1000, R(recvmmsg(s, received, 2, 0, &time)));
    step();
}

static void several_messages_until_the_end(void)
{
    char a[4], b[4], c[4];
    struct iovec in[] = {{a, 4}, {b, 4}, {c, 4}};
    struct mmsghdr received[3] = {{{.msg_iov = in, .msg_iovlen = 1}, 0},
                                  {{.msg_iov = in + 1, .msg_iovlen = 1}, 0},
                                  {{.msg_iov = in + 2, .msg_iovlen = 1}, 0}};

    NEAR(R(send(s, "abcd", 4, 0)); R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLRDHUP); R(recvmmsg(s, received, 3, 0, NULL));
        say("%u %u", received[0].msg_len, received[1].msg_len));
}

static void addresses_with_bytes(void)
{
    struct sockaddr_storage address;
    socklen_t length = loopback(AF_INET, 9, &address);
    char bytes[4];

    NEAR(R(sendto(s, "abcd", 4, 0, (struct sockaddr *)&address, length)));
    FAR(length = sizeof address; R(recvfrom(s, bytes, 4, 0, (struct sockaddr *)&address, &length)); say("length %u", length));
    NEAR(R(sendto(s, "abcd", 4, 0, NULL, 0)));
    FAR(R(recvfrom(s, bytes, 4, 0, NULL, NULL)));
}

static void flags_without_effect(void)
{
    NEAR(R(send(s, "a", 1, MSG_EOR)); R(send(s, "b", 1, MSG_CONFIRM)); R(send(s, "c", 1, MSG_DONTROUTE));
         R(send(s, "d", 1, MSG_NOSIGNAL)); R(send(s, "e", 1, MSG_MORE)); R(send(s, "f", 1, 0));
         R(send(s, "g", 1, MSG_WAITALL)); R(send(s, "h", 1, MSG_TRUNC)); R(send(s, "i", 1, MSG_CTRUNC)));
    FAR(ALL(s, 9); GET(s, 1, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); GET(s, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        GET(s, 1, MSG_DONTWAIT | MSG_ERRQUEUE));
}

static void corked_bytes_come_when_flushed(void)
{
    int on = 1, off = 0;

    NEAR(R(setsockopt(s, IPPROTO_TCP, TCP_CORK, &on, sizeof on)); R(send(s, "ab", 2, 0)); R(send(s, "cd", 2, MSG_MORE));
         R(setsockopt(s, IPPROTO_TCP, TCP_CORK, &off, sizeof off)));
    FAR(ALL(s, 4));
    NEAR(R(send(s, "ef", 2, MSG_MORE)); R(send(s, "gh", 2, 0)));
    FAR(ALL(s, 4));
}

static void counts_of_waiting_bytes(void)
{
    static char bytes[1000];
    int count = -1;

    FAR(R(ioctl(s, FIONREAD, &count)); say("%d", count));
    NEAR(R(send(s, bytes, 1000, 0)));
    FAR(R(ioctl(s, FIONREAD, &count)); say("%d", count); R(recv(s, bytes, 300, 0)); R(ioctl(s, FIONREAD, &count));
        say("%d", count));
    FAR(R(recv(s, bytes, 1000, 0)); R(ioctl(s, FIONREAD, &count)); say("%d", count));
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLRDHUP); R(ioctl(s, FIONREAD, &count)); say("%d", count));
}

static void counts_of_unsent_bytes(void)
{
    int count = -1;

    /* Some wait for this before they have their peer receive anything. */
    NEAR(R(send(s, "abc", 3, 0)); sleep_ms(60); R(ioctl(s, TIOCOUTQ, &count)); say("%d", count));
    FAR(GET(s, 3, 0));
    NEAR(sleep_ms(60); R(ioctl(s, TIOCOUTQ, &count)); say("%d", count));
}

MAIN(JOINED(peeking), JOINED(peeking_waits), JOINED(peeking_at_the_end), JOINED(peeking_all_of_much),
     JOINED(waitall_waits), JOINED(waitall_is_cut_by_the_end), JOINED(waitall_is_cut_by_a_timeout),
     JOINED(waitall_is_cut_by_a_signal), JOINED(waitall_with_restart_returns_what_came),
     JOINED(waitall_does_not_wait_when_told), JOINED(waitall_in_a_vector), JOINED(dontwait),
     JOINED(trunc_throws_away), JOINED(trunc_with_peek_throws_nothing_away), JOINED(trunc_of_much),
     JOINED(nothing_sent), JOINED(nothing_received), JOINED(vectors_with_empty_parts), JOINED(vectors_of_many_parts),
     JOINED(messages_of_too_many_parts), JOINED(bad_addresses_to_send), JOINED(bad_addresses_to_receive),
     JOINED(bad_addresses_behind_the_end),
     JOINED(messages), JOINED(message_flags_by_what_was_asked), JOINED(several_messages),
     JOINED(several_messages_wait_for_one), JOINED(several_messages_until_the_end), JOINED(addresses_with_bytes),
     JOINED(flags_without_effect), JOINED(corked_bytes_come_when_flushed), JOINED(counts_of_waiting_bytes),
     JOINED(counts_of_unsent_bytes))
