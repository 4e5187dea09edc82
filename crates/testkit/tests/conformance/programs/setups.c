/* How connections come to be: connect, accept and listen in all their forms and families. */
#include "play.h"
#include <linux/filter.h>
#include <net/if.h>
#include <sys/epoll.h>

static void ipv6(void)
{
    talk(join_by(AF_INET6, NULL));
}

static void ipv6_addresses(void)
{
    int fd = join_by(AF_INET6, NULL);
    struct sockaddr_in6 own, peer;
    socklen_t length = sizeof own;
    char text[64];

    BOTH(R(getsockname(fd, (struct sockaddr *)&own, &length)); R(getpeername(fd, (struct sockaddr *)&peer, &length));
         say("%s %u", inet_ntop(AF_INET6, &own.sin6_addr, text, sizeof text), length);
         say("%s %d", inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof text), own.sin6_port != peer.sin6_port));
}

static void v4_mapped(void)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    socklen_t length = sizeof address;
    char text[64];
    int fd;

    if (is_near) {
        fd = dial(AF_INET, ask());
    } else {
        int listening = socket(AF_INET6, SOCK_STREAM, 0);
        R(bind(listening, (struct sockaddr *)&address, length));
        R(listen(listening, 4));
        getsockname(listening, (struct sockaddr *)&address, &length);
        tell(ntohs(address.sin6_port));
        fd = accept(listening, (struct sockaddr *)&address, &length);
        say("%s", inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text));
    }
    talk(fd);
}

static void v4_mapped_by_the_connector(void)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = {{{[10] = 0xff, 0xff, 127, 0, 0, 1}}}};
    int fd, port;

    if (is_near) {
        address.sin6_port = htons((uint16_t)ask());
        fd = socket(AF_INET6, SOCK_STREAM, 0);
        R(connect(fd, (struct sockaddr *)&address, sizeof address));
    } else {
        int listening = listener(AF_INET, &port);
        tell(port);
        fd = accept(listening, NULL, NULL);
    }
    talk(fd);
}

static void bind_to_loopback_device(int fd)
{
    if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3))
        say("not bound: %s", strerrorname_np(errno));
}

static void bound_to_a_device(void)
{
    char name[IFNAMSIZ] = "";
    socklen_t length = sizeof name;
    int fd = join_by(AF_INET, bind_to_loopback_device);

    BOTH(R(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length)); say("%s", name));
    talk(fd);
}

static void bound_before_connecting(void)
{
    struct sockaddr_storage address;
    struct sockaddr_in own;
    socklen_t length;
    int fd, port;

    if (is_near) {
        port = ask();
        fd = socket(AF_INET, SOCK_STREAM, 0);
        length = loopback(AF_INET, 0, &address);
        ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK + 7);
        R(bind(fd, (struct sockaddr *)&address, length));
        length = loopback(AF_INET, port, &address);
        R(connect(fd, (struct sockaddr *)&address, length));
    } else {
        int listening = listener(AF_INET, &port);
        tell(port);
        length = sizeof own;
        fd = accept(listening, (struct sockaddr *)&own, &length);
        say("%x", ntohl(own.sin_addr.s_addr));
    }
    talk(fd);
}

static void addresses(void)
{
    struct sockaddr_in own, peer;
    socklen_t length = sizeof own, tiny = 4;

    BOTH(R(getsockname(s, (struct sockaddr *)&own, &length)); R(getpeername(s, (struct sockaddr *)&peer, &length));
         say("%u %x %x %d", length, ntohl(own.sin_addr.s_addr), ntohl(peer.sin_addr.s_addr), own.sin_port != peer.sin_port);
         R(getsockname(s, (struct sockaddr *)&own, &tiny)); say("%u", tiny);
         R(bind(s, (struct sockaddr *)&own, sizeof own)); R(connect(s, (struct sockaddr *)&peer, sizeof peer)); R(listen(s, 3));
         R(accept(s, NULL, NULL)));
}

static void accepted_with_flags(void)
{
    int fd = -1, port;
    struct sockaddr_in address;
    socklen_t length = sizeof address;

    if (is_near) {
        fd = dial(AF_INET, ask());
        ask();
    } else {
        int listening = listener(AF_INET, &port);
        tell(port);
        fd = accept4(listening, (struct sockaddr *)&address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
        R(accept4(listening, NULL, NULL, 12345));
        fcntl(listening, F_SETFL, O_NONBLOCK);
        R(accept(listening, NULL, NULL));
        say("%d %d %u", fcntl(fd, F_GETFD), fcntl(fd, F_GETFL) & O_NONBLOCK, length);
        GET(fd, 1, 0);
        fcntl(fd, F_SETFL, 0);
        tell(0);
    }
    talk(fd);
}

static void connected_without_waiting(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int fd, port;

    if (is_near) {
        length = loopback(AF_INET, ask(), &address);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        R(connect(fd, (struct sockaddr *)&address, length));
        arrive(fd, POLLOUT);
        R(number_of(fd, SOL_SOCKET, SO_ERROR));
        R(connect(fd, (struct sockaddr *)&address, length));
        R(connect(fd, (struct sockaddr *)&address, length));
        fcntl(fd, F_SETFL, 0);
    } else {
        int listening = listener(AF_INET, &port);
        tell(port);
        fd = accept(listening, NULL, NULL);
    }
    talk(fd);
}

static void refused(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int port, fd, listening = listener(AF_INET, &port);

    BOTH(close(listening); length = loopback(AF_INET, port, &address); fd = socket(AF_INET, SOCK_STREAM, 0);
         R(connect(fd, (struct sockaddr *)&address, length)); GET(fd, 1, 0); R(send(fd, "x", 1, MSG_NOSIGNAL));
         POLL(fd, POLLIN | POLLOUT, 0); R(number_of(fd, SOL_SOCKET, SO_ERROR)); close(fd);
         fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0); R(connect(fd, (struct sockaddr *)&address, length));
         arrive(fd, POLLHUP); POLL(fd, POLLIN | POLLOUT, 0); say("%s", strerrorname_np(number_of(fd, SOL_SOCKET, SO_ERROR)));
         R(number_of(fd, SOL_SOCKET, SO_ERROR)); R(send(fd, "x", 1, MSG_NOSIGNAL)));
}

static void connected_after_a_refusal(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int port, other, fd;

    if (is_near) {
        other = listener(AF_INET, &port);
        close(other);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        length = loopback(AF_INET, port, &address);
        R(connect(fd, (struct sockaddr *)&address, length));
        length = loopback(AF_INET, ask(), &address);
        R(connect(fd, (struct sockaddr *)&address, length));
    } else {
        int listening = listener(AF_INET, &port);
        tell(port);
        fd = accept(listening, NULL, NULL);
    }
    talk(fd);
}

static void calls_on_an_unconnected_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    struct sockaddr_in address;
    socklen_t length = sizeof address;

    BOTH(GET(fd, 1, 0); R(send(fd, "x", 1, MSG_NOSIGNAL)); R(read(fd, &byte, 1)); R(shutdown(fd, SHUT_WR));
         R(getpeername(fd, (struct sockaddr *)&address, &length)); POLL(fd, POLLIN | POLLOUT, 0); R(accept(fd, NULL, NULL)));
}

static void calls_on_a_listener(void)
{
    int port, fd = listener(AF_INET, &port);

    BOTH(GET(fd, 1, 0); R(send(fd, "x", 1, MSG_NOSIGNAL)); POLL(fd, POLLIN | POLLOUT, 0); R(number_of(fd, SOL_SOCKET, SO_ACCEPTCONN));
         R(shutdown(fd, SHUT_RD)); R(accept(fd, NULL, NULL)));
}

static void gone_before_accepted(void)
{
    struct linger at_once = {1, 0};
    int port, fd, listening;

    if (is_near) {
        fd = dial(AF_INET, ask());
        R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
        R(close(fd));
        tell(0);
    } else {
        listening = listener(AF_INET, &port);
        tell(port);
        ask();
        fd = accept(listening, NULL, NULL);
        say("%d", fd >= 0);
        GET(fd, 1, 0);
    }
    step();
}

static void bytes_before_accepted(void)
{
    int port, fd, listening;

    if (is_near) {
        fd = dial(AF_INET, ask());
        R(send(fd, "early", 5, 0));
        R(shutdown(fd, SHUT_WR));
        tell(0);
        GET(fd, 1, 0);
    } else {
        listening = listener(AF_INET, &port);
        tell(port);
        ask();
        fd = accept(listening, NULL, NULL);
        ALL(fd, 5);
        GET(fd, 1, 0);
        R(close(fd));
    }
    step();
}

static void accept_wakes(void)
{
    int port, fd = -1, listening;
    struct pollfd wait;

    if (is_near) {
        port = ask();
        sleep_ms(20);
        fd = dial(AF_INET, port);
    } else {
        listening = listener(AF_INET, &port);
        wait = (struct pollfd){listening, POLLIN, 0};
        POLL(listening, POLLIN, 0);
        tell(port);
        R(poll(&wait, 1, 1000));
        fd = accept(listening, NULL, NULL);
        POLL(listening, POLLIN, 0);
    }
    talk(fd);
}

static void reuse_port_group(void)
{
    struct sockaddr_storage address;
    socklen_t length = loopback(AF_INET, 0, &address);
    int on = 1, fds[3], taken = 0;

    if (is_near) {
        int port = ask();
        for (int index = 0; index < 8; index++) {
            int fd = dial(AF_INET, port);
            char byte;
            taken += send_all(fd, "x", 1) && receive_all(fd, &byte, 1);
            close(fd);
        }
    } else {
        struct pollfd wait[3];
        for (int index = 0; index < 3; index++) {
            fds[index] = socket(AF_INET, SOCK_STREAM, 0);
            R(setsockopt(fds[index], SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
            R(bind(fds[index], (struct sockaddr *)&address, length));
            R(listen(fds[index], 8));
            getsockname(fds[index], (struct sockaddr *)&address, &length);
            wait[index] = (struct pollfd){fds[index], POLLIN, 0};
        }
        tell(ntohs(((struct sockaddr_in *)&address)->sin_port));
        while (taken < 8 && poll(wait, 3, 2000) > 0)
            for (int index = 0; index < 3; index++)
                if (wait[index].revents) {
                    char byte;
                    int fd = accept(fds[index], NULL, NULL);
                    taken += receive_all(fd, &byte, 1) && send_all(fd, &byte, 1);
                    close(fd);
                }
    }
    say("%d", taken);
    step();
}

static void fast_open(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int fd, port, queue = 5, listening;

    if (is_near) {
        length = loopback(AF_INET, ask(), &address);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        R(sendto(fd, "first", 5, MSG_FASTOPEN, (struct sockaddr *)&address, length));
        ALL(fd, 5);
    } else {
        listening = listener(AF_INET, &port);
        R(setsockopt(listening, IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof queue));
        tell(port);
        fd = accept(listening, NULL, NULL);
        ALL(fd, 5);
        R(send(fd, "reply", 5, 0));
    }
    BOTH(R(send(fd, "again", 5, 0)); ALL(fd, 5));
}

static void fast_open_by_connect(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int fd, port, on = 1, queue = 5, listening;

    if (is_near) {
        length = loopback(AF_INET, ask(), &address);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        R(setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on));
        R(connect(fd, (struct sockaddr *)&address, length));
        R(send(fd, "first", 5, 0));
        ALL(fd, 5);
    } else {
        listening = listener(AF_INET, &port);
        R(setsockopt(listening, IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof queue));
        tell(port);
        fd = accept(listening, NULL, NULL);
        ALL(fd, 5);
        R(send(fd, "reply", 5, 0));
    }
    BOTH(R(send(fd, "again", 5, 0)); ALL(fd, 5));
}

static void deferred_accept(void)
{
    int fd, port, seconds = 2, listening;

    if (is_near) {
        fd = dial(AF_INET, ask());
        sleep_ms(20);
        R(send(fd, "first", 5, 0));
        ALL(fd, 5);
    } else {
        listening = listener(AF_INET, &port);
        R(setsockopt(listening, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds));
        tell(port);
        fd = accept(listening, NULL, NULL);
        GET(fd, 5, MSG_DONTWAIT);
        R(send(fd, "reply", 5, 0));
    }
    BOTH(R(send(fd, "again", 5, 0)); ALL(fd, 5));
}

/* Both ends connect to each other, and nobody listens. The near end is made deaf to the answer that its attempt comes
 * too early. */
static void simultaneous_open(void)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog deaf = {1, &nothing};
    struct sockaddr_storage own, peer;
    socklen_t length = loopback(AF_INET, 0, &own);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    bind(fd, (struct sockaddr *)&own, length);
    getsockname(fd, (struct sockaddr *)&own, &length);
    tell(ntohs(((struct sockaddr_in *)&own)->sin_port));
    length = loopback(AF_INET, ask(), &peer);
    NEAR(R(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &deaf, sizeof deaf)); fcntl(fd, F_SETFL, O_NONBLOCK);
         R(connect(fd, (struct sockaddr *)&peer, length)); R(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &deaf, sizeof deaf)));
    FAR(R(connect(fd, (struct sockaddr *)&peer, length)));
    NEAR(arrive(fd, POLLOUT); R(number_of(fd, SOL_SOCKET, SO_ERROR)); fcntl(fd, F_SETFL, 0));
    BOTH(R(send(fd, "word", 4, 0)); ALL(fd, 4));
}

static void connected_to_oneself(void)
{
    struct sockaddr_storage own;
    socklen_t length = loopback(AF_INET, 0, &own);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    BOTH(R(bind(fd, (struct sockaddr *)&own, length)); getsockname(fd, (struct sockaddr *)&own, &length);
         R(connect(fd, (struct sockaddr *)&own, length)); R(send(fd, "self", 4, 0)); ALL(fd, 4); R(shutdown(fd, SHUT_WR));
         GET(fd, 1, 0));
}

static void both_ends_in_one_process(void)
{
    int port, listening = listener(AF_INET, &port), fd, other;

    BOTH(fd = dial(AF_INET, port); other = accept(listening, NULL, NULL); for (int round = 0; round < 30; round++) {
        char bytes[8];
        send_all(fd, "to", 2);
        receive_all(other, bytes, 2);
        send_all(other, "fro", 3);
        receive_all(fd, bytes, 3);
        sleep_ms(1);
    } R(send(fd, "word", 4, 0)); ALL(other, 4); R(close(fd)); GET(other, 1, 0));
}

MAIN(BARE(ipv6), BARE(ipv6_addresses), BARE(v4_mapped), BARE(v4_mapped_by_the_connector), BARE(bound_to_a_device),
     BARE(bound_before_connecting), JOINED(addresses), BARE(accepted_with_flags), BARE(connected_without_waiting),
     BARE(refused), BARE(connected_after_a_refusal), BARE(calls_on_an_unconnected_socket), BARE(calls_on_a_listener),
     BARE(gone_before_accepted), BARE(bytes_before_accepted), BARE(accept_wakes), BARE(reuse_port_group),
     BARE(fast_open), BARE(fast_open_by_connect), BARE(deferred_accept), BARE(simultaneous_open),
     BARE(connected_to_oneself), BARE(both_ends_in_one_process))
