/* Calls that change how others go, or say of an end what it is. */
#include "calls.h"
#include <sys/uio.h>

void call_set_time_outs(int end)
{
    static const int options[] = {SO_RCVTIMEO, SO_SNDTIMEO};
    static const struct timeval values[] = {{0, 0}, {0, 2000}, {0, 4000}, {2, 0}};
    struct timeval value = values[below(4)], left = {-1, -1};
    socklen_t length = sizeof left;
    int option = (int)below(2), fd = any_descriptor(end);

    say("%s %ld", option ? "SO_SNDTIMEO" : "SO_RCVTIMEO", (long)value.tv_sec * 1000000 + value.tv_usec);
    say_result(setsockopt(fd, SOL_SOCKET, options[option], &value, sizeof value));
    getsockopt(ends[end].fd, SOL_SOCKET, options[option], &left, &length);
    say(" is %ld", (long)left.tv_sec * 1000000 + left.tv_usec);
}

/* By one descriptor and one way, and looked at by another. */
void call_set_nonblocking(int end)
{
    int by = any_descriptor(end), of = any_descriptor(end), blocks = 0, not = 1;
    bool by_ioctl = chance(50);

    say("blocking by %s", by_ioctl ? "FIONBIO" : "F_SETFL");
    if (by_ioctl)
        say_result(ioctl(by, FIONBIO, &blocks));
    else
        say_result(fcntl(by, F_SETFL, fcntl(by, F_GETFL) & ~O_NONBLOCK));
    say(" %d", (fcntl(of, F_GETFL) & O_NONBLOCK) != 0);
    /* It does not wait all the same. */
    say_result(recv(of, buffer, 1, MSG_DONTWAIT | MSG_PEEK));
    ioctl(by, FIONBIO, &not);
    say(" %d", (fcntl(of, F_GETFL) & O_NONBLOCK) != 0);
    say_result(read(of, buffer, 1) == 1 ? (was_received(end, 1), 1) : -1);
}

void call_ask_who(int end)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int fd = any_descriptor(end), value = -1;

    say("getpeername");
    say_result(getpeername(fd, (struct sockaddr *)&address, &length));
    say(", getsockname");
    length = sizeof address;
    say_result(getsockname(fd, (struct sockaddr *)&address, &length));
    say(", accept");
    say_result(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
    say(", SO_ACCEPTCONN");
    length = sizeof value;
    say_result(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &length));
    say(" %d, lseek", value);
    say_result(lseek(fd, 0, SEEK_CUR));
}

/* Only where there are no bytes, of which fewer are told all the same, a known limit, and no end, which natively is
 * told once more. */
void call_set_low_water(int end)
{
    static const int values[] = {1, 2, 100, 3000};
    int value = values[below(4)], is = -1;
    socklen_t length = sizeof is;

    if (ends[end].unread > 0 || is_over(end))
        return;
    say("SO_RCVLOWAT %d", value);
    say_result(setsockopt(any_descriptor(end), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value));
    getsockopt(ends[end].fd, SOL_SOCKET, SO_RCVLOWAT, &is, &length);
    say(" is %d", is);
}

/* Where no byte may be put, or got from. */
void call_without_memory(int end)
{
    struct iovec parts[2] = {{buffer, 0}, {(void *)8, 10}};
    int flags = chance(50) ? MSG_PEEK : 0, fd = any_descriptor(end);
    unsigned way = below(4);

    say("nowhere %u flags %x", way, flags);
    switch (way) {
    case 0:
        say_result(recv(fd, (void *)8, 10, flags));
        break;
    case 1:
        say_result(readv(fd, parts, 2));
        break;
    case 2:
        say_result(send(fd, (void *)8, 10, MSG_NOSIGNAL));
        break;
    default:
        say_result(writev(fd, parts, 2));
    }
}
