/* Options of connections, and sockets that are none. */
#include "play.h"
#include <limits.h>
#include <net/if.h>
#include <sys/epoll.h>

static void options_of_a_connection(void)
{
    int on = 1, off = 0;

    BOTH(R(number_of(s, SOL_SOCKET, SO_TYPE)); R(number_of(s, SOL_SOCKET, SO_DOMAIN)); R(number_of(s, SOL_SOCKET, SO_PROTOCOL));
         R(number_of(s, SOL_SOCKET, SO_ERROR)); R(number_of(s, IPPROTO_TCP, TCP_NODELAY));
         R(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)); R(number_of(s, IPPROTO_TCP, TCP_NODELAY));
         R(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &off, sizeof off)); R(number_of(s, IPPROTO_TCP, TCP_NODELAY));
         R(number_of(s, IPPROTO_TCP, TCP_CORK)); R(setsockopt(s, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
         R(number_of(s, IPPROTO_TCP, TCP_CORK)); R(setsockopt(s, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
         R(number_of(s, SOL_SOCKET, SO_KEEPALIVE));
         R(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on)); R(number_of(s, SOL_SOCKET, SO_KEEPALIVE));
         R(setsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on)); R(number_of(s, IPPROTO_TCP, TCP_KEEPIDLE)));
}

static void options_that_are_wrong(void)
{
    int on = 1;
    socklen_t length = 1;
    char byte;

    BOTH(R(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, (socklen_t)-1));
         length = (socklen_t)-1; R(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, &length)); length = 1;
         R(setsockopt(s, 12345, 1, &on, sizeof on)); R(setsockopt(s, SOL_SOCKET, 12345, &on, sizeof on));
         R(setsockopt(s, IPPROTO_TCP, 12345, &on, sizeof on)); R(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, 1));
         R(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (void *)8, sizeof on)); R(getsockopt(s, SOL_SOCKET, SO_ERROR, (void *)8, &length));
         R(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, &byte, &length)); say("%u", length);
         R(getsockopt(s, IPPROTO_TCP, 12345, &on, &length)); R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, (void *)8, sizeof(struct timeval))));
}

/* The kernel takes them for none at all, and tells of them as if they were unlimited. */
static void time_outs_below_zero(void)
{
    struct timeval below = {-1, 0}, far_below = {-(1L << 32), 0}, second = {1, 0}, unlimited = {0, 0}, longest = {LONG_MAX, 0};
    char byte;

    NEAR(R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &below, sizeof below)); R(recv(s, &byte, 1, 0));
         R(setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second)); R(recv(s, &byte, 1, 0));
         R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second)));
    FAR(send_all(s, "a", 1));
    NEAR(GET(s, 1, 0); R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &unlimited, sizeof unlimited)));
    for (int round = 0; round < 2; round++) {
        if (is_near) {
            GET(s, 1, 0);
            R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest));
        } else {
            sleep_ms(20);
            send_all(s, "b", 1);
        }
        step();
    }
    NEAR(R(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &far_below, sizeof far_below)); R(recv(s, &byte, 1, 0)));
}

static void buffers_set(void)
{
    int small = 8192;

    BOTH(R(setsockopt(s, SOL_SOCKET, SO_SNDBUF, &small, sizeof small)); R(number_of(s, SOL_SOCKET, SO_SNDBUF));
         R(setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof small)); R(number_of(s, SOL_SOCKET, SO_RCVBUF)));
    if (is_near)
        pour(s, 0, 500000);
    else
        drink(s, 0, 500000);
    step();
}

static void state_by_option(void)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    BOTH(R(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &length)); say("state %d, segments %d", info.tcpi_state, info.tcpi_snd_mss > 0));
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLRDHUP); R(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &length)); say("state %d", info.tcpi_state));
    NEAR(R(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &length)); say("state %d", info.tcpi_state));
}

/* Receives with so much room for control messages, and says what they tell. */
static void hear(size_t count, size_t room, int flags)
{
    char bytes[64], control[64];
    struct iovec part = {bytes, count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room ? control : NULL, .msg_controllen = room};
    struct cmsghdr *header = (struct cmsghdr *)control;
    int left = -1;

    memset(control, 0x55, sizeof control);
    if (R(recvmsg(s, &message, flags)) < 0)
        return;
    say("flags %#x, %zu of control", (unsigned)message.msg_flags, message.msg_controllen);
    if (room >= sizeof *header && message.msg_controllen > 0) {
        memcpy(&left, CMSG_DATA(header), sizeof left);
        say("level %d, type %d, length %zu: %d", header->cmsg_level, header->cmsg_type, header->cmsg_len, left);
    }
}

static void what_is_left_is_told(void)
{
    int on = 1, off = 0, wrong = 2;

    FAR(R(setsockopt(s, IPPROTO_TCP, TCP_INQ, &on, sizeof on)); R(setsockopt(s, IPPROTO_TCP, TCP_INQ, &wrong, sizeof wrong));
        R(number_of(s, IPPROTO_TCP, TCP_INQ)));
    prove(s);
    NEAR(R(send(s, "0123456789abcdef", 16, 0)));
    FAR(arrive(s, POLLIN); hear(4, 64, 0); hear(2, 64, MSG_PEEK); hear(0, 64, 0); hear(2, 0, 0); hear(2, 8, 0); hear(2, sizeof(struct cmsghdr), 0);
        hear(2, CMSG_LEN(2), 0); hear(2, CMSG_LEN(4), 0); hear(2, CMSG_SPACE(4), 0); hear(1, 64, MSG_DONTWAIT));
    NEAR(R(send(s, "gh", 2, 0)));
    FAR(arrive(s, POLLIN); R(setsockopt(s, IPPROTO_TCP, TCP_INQ, &off, sizeof off)); hear(1, 64, 0);
        R(setsockopt(s, IPPROTO_TCP, TCP_INQ, &on, sizeof on)); hear(1, 64, 0));
    NEAR(R(send(s, "ijk", 3, 0)); R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLRDHUP); hear(2, 64, 0); hear(2, 64, 0); hear(2, 64, 0));
}

static void take_in_line(int fd)
{
    int on = 1;

    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on);
}

static void tell_mark(void)
{
    int at = -1;

    R(ioctl(s, SIOCATMARK, &at));
    say("%d", at);
}

/* What goes before the urgent byte stands unread meanwhile, and no receive goes over the mark. */
static void urgent_words_in_line(void)
{
    NEAR(pour(s, 0, 100000); R(send(s, "!", 1, MSG_OOB)); R(send(s, "cd", 2, 0)));
    FAR(arrive(s, POLLPRI); tell_mark(); drink(s, 0, 99995); GET(s, 8, MSG_PEEK | MSG_WAITALL); GET(s, 8, MSG_WAITALL); tell_mark(); GET(s, 1, MSG_PEEK);
        GET(s, 1, MSG_OOB); ALL(s, 3); tell_mark(); GET(s, 1, MSG_DONTWAIT));
    FAR(R(send(s, "ef", 2, 0)); R(send(s, "?", 1, MSG_OOB)));
    NEAR(arrive(s, POLLPRI); GET(s, 8, MSG_PEEK); ALL(s, 2); tell_mark(); GET(s, 8, 0); tell_mark());
    NEAR(R(send(s, "g", 1, 0)); R(send(s, ".", 1, MSG_OOB)); R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLPRI | POLLRDHUP); GET(s, 8, 0); GET(s, 8, 0); GET(s, 8, 0));
}

/* The option alone, which a listener hands on, changes nothing. */
static void urgent_in_line_set_before(void)
{
    s = join_by(AF_INET, take_in_line);
    BOTH(say("%d", number_of(s, SOL_SOCKET, SO_OOBINLINE)); R(send(s, "word", 4, 0)); ALL(s, 4));
    prove(s);
    urgent_words_in_line();
}

static void urgent_in_line_set_on_a_connection(void)
{
    BOTH(take_in_line(s));
    prove(s);
    BOTH(say("%d", number_of(s, SOL_SOCKET, SO_OOBINLINE)));
    urgent_words_in_line();
}

static void not_stream_sockets(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int one = socket(AF_INET, SOCK_DGRAM, 0), two = socket(AF_INET, SOCK_DGRAM, 0), ends[2];

    BOTH(length = loopback(AF_INET, 0, &address); R(bind(one, (struct sockaddr *)&address, length));
         getsockname(one, (struct sockaddr *)&address, &length); R(connect(two, (struct sockaddr *)&address, length));
         R(send(two, "abc", 3, 0)); R(send(two, "", 0, 0)); GET(one, 2, 0); R(recv(one, ends, 8, 0));
         /* A datagram has a sender even on a socket that is connected. */
         length = sizeof address; getsockname(two, (struct sockaddr *)&address, &length);
         R(sendto(one, "de", 2, 0, (struct sockaddr *)&address, length));
         memset(&address, 0, sizeof address); length = sizeof address;
         R(recvfrom(two, ends, 8, MSG_PEEK, (struct sockaddr *)&address, &length)); R(length); R(address.ss_family);
         memset(&address, 0, sizeof address);
         R(recvfrom(two, ends, 8, 0, (struct sockaddr *)&address, &length)); R(length); R(address.ss_family);
         socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends); R(send(ends[0], "abc", 3, 0)); GET(ends[1], 2, 0));
}

MAIN(JOINED(options_of_a_connection), JOINED(options_that_are_wrong), JOINED(buffers_set), JOINED(state_by_option),
     JOINED(what_is_left_is_told), BARE(not_stream_sockets), JOINED(time_outs_below_zero),
     BARE(urgent_in_line_set_before), JOINED(urgent_in_line_set_on_a_connection))
