/* How connections end: half-close, resets, broken pipes, lingering. */
#include "play.h"
#include <sys/epoll.h>

static void half_close_by_near(void)
{
    NEAR(R(send(s, "last", 4, 0)); R(shutdown(s, SHUT_WR)));
    FAR(ALL(s, 4); GET(s, 8, 0); GET(s, 8, 0); R(send(s, "answer", 6, 0)));
    NEAR(ALL(s, 6); R(send(s, "x", 1, MSG_NOSIGNAL)); R(shutdown(s, SHUT_WR)));
    FAR(R(close(s)));
    NEAR(GET(s, 8, 0); R(close(s)));
}

static void half_close_by_far(void)
{
    FAR(R(send(s, "last", 4, 0)); R(shutdown(s, SHUT_WR)));
    NEAR(ALL(s, 4); GET(s, 8, 0); R(send(s, "answer", 6, 0)); R(shutdown(s, SHUT_WR)));
    FAR(ALL(s, 6); GET(s, 8, 0); R(close(s)));
    NEAR(GET(s, 8, 0); R(close(s)));
}

static void half_close_then_much(void)
{
    if (is_near) {
        R(shutdown(s, SHUT_WR));
        drink(s, 0, 12000000);
        GET(s, 1, 0);
    } else {
        GET(s, 1, 0);
        pour(s, 0, 12000000);
        R(close(s));
    }
    step();
}

static void both_half_close_at_once(void)
{
    BOTH(R(send(s, "bye", 3, 0)); R(shutdown(s, SHUT_WR)));
    BOTH(ALL(s, 3); GET(s, 1, 0); R(close(s)));
}

static void shutdown_of_reading(void)
{
    FAR(R(shutdown(s, SHUT_RD)); GET(s, 1, 0); R(send(s, "x", 1, 0)));
    NEAR(GET(s, 1, 0));
    FAR(POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
}

static void shutdown_of_reading_with_bytes_waiting(void)
{
    NEAR(R(send(s, "abc", 3, 0)));
    FAR(arrive(s, POLLIN); R(shutdown(s, SHUT_RD)); GET(s, 8, 0); GET(s, 8, 0));
}

static void bytes_after_shutdown_of_reading(void)
{
    FAR(R(shutdown(s, SHUT_RD)));
    NEAR(R(send(s, "abc", 3, 0)));
    FAR(GET(s, 8, 0); GET(s, 8, 0));
    NEAR(R(send(s, "def", 3, MSG_NOSIGNAL)));
}

static void shutdown_of_both(void)
{
    NEAR(R(shutdown(s, SHUT_RDWR)); GET(s, 1, 0); R(send(s, "x", 1, MSG_NOSIGNAL));
         POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
    FAR(GET(s, 1, 0); POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
    FAR(R(shutdown(s, SHUT_RDWR)));
    BOTH(R(shutdown(s, SHUT_RDWR)); R(shutdown(s, SHUT_WR)); R(shutdown(s, 7)));
}

static void shutdown_twice(void)
{
    NEAR(R(shutdown(s, SHUT_WR)); R(shutdown(s, SHUT_WR)));
    FAR(GET(s, 1, 0); R(send(s, "x", 1, 0)));
    NEAR(GET(s, 1, 0); R(shutdown(s, SHUT_RD)); R(shutdown(s, SHUT_RD)));
}

static void unread_bytes_before_the_end(void)
{
    NEAR(R(send(s, "one", 3, 0)); R(send(s, "two", 3, 0)); R(close(s)));
    FAR(sleep_ms(10); ALL(s, 6); GET(s, 1, 0); GET(s, 1, 0));
}

static void much_before_the_end(void)
{
    if (is_near) {
        pour(s, 0, 1000000);
        R(close(s));
    } else {
        sleep_ms(10);
        drink(s, 0, 1000000);
        GET(s, 1, 0);
    }
    step();
}

static void exit_instead_of_close(void)
{
    if (is_near) {
        pid_t child = fork();
        if (child == 0) {
            send_all(s, "from the child", 14);
            exit(0);
        }
        close(s);
        reap(child);
    } else {
        ALL(s, 14);
        GET(s, 1, 0);
    }
    step();
}

static void killed_instead_of_close(void)
{
    if (is_near) {
        pid_t child = fork();
        if (child == 0) {
            send_all(s, "from the child", 14);
            raise(SIGKILL);
        }
        close(s);
        reap(child);
    } else {
        ALL(s, 14);
        GET(s, 1, 0);
    }
    step();
}

static void killed_with_bytes_unread(void)
{
    FAR(R(send(s, "unread", 6, 0)));
    if (is_near) {
        leave_unread(s);
    }
    step();
    FAR(arrive(s, POLLHUP); GET(s, 1, 0); GET(s, 1, 0));
}

static void closed_with_bytes_unread(void)
{
    NEAR(R(send(s, "unread", 6, 0)));
    FAR(arrive(s, POLLIN); R(close(s)));
    NEAR(arrive(s, POLLHUP); GET(s, 1, 0); GET(s, 1, 0); R(send(s, "x", 1, MSG_NOSIGNAL)));
}

static void closed_with_bytes_partly_read(void)
{
    NEAR(R(send(s, "unread", 6, 0)));
    FAR(GET(s, 3, 0); R(close(s)));
    NEAR(arrive(s, POLLHUP); GET(s, 1, 0); GET(s, 1, 0));
}

static void bytes_sent_before_a_reset_are_lost(void)
{
    BOTH(R(send(s, "words", 5, 0)));
    FAR(arrive(s, POLLIN); R(close(s)));
    NEAR(arrive(s, POLLHUP); GET(s, 8, 0); GET(s, 8, 0));
}

static const struct linger at_once = {1, 0};

static void reset_by_linger(void)
{
    FAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(arrive(s, POLLHUP); POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0); GET(s, 1, 0); GET(s, 1, 0);
         R(send(s, "x", 1, MSG_NOSIGNAL)));
}

static int error_of(int fd)
{
    int error = -1;
    socklen_t length = sizeof error;

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length))
        return -1;
    return error;
}

static void reset_told_by_option(void)
{
    FAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(arrive(s, POLLHUP); say("%s", strerrorname_np(error_of(s))); R(error_of(s)); GET(s, 1, 0);
         POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
}

static void reset_told_to_a_sender(void)
{
    FAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(arrive(s, POLLHUP); R(send(s, "x", 1, MSG_NOSIGNAL)); R(send(s, "x", 1, MSG_NOSIGNAL)); GET(s, 1, 0));
}

static void reset_after_half_close_by_the_reset_end(void)
{
    NEAR(R(shutdown(s, SHUT_WR)));
    FAR(GET(s, 1, 0); R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(arrive(s, POLLHUP); GET(s, 1, 0); GET(s, 1, 0));
}

static void reset_after_half_close_by_the_resetting_end(void)
{
    FAR(R(shutdown(s, SHUT_WR)); R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(arrive(s, POLLHUP); GET(s, 1, 0); GET(s, 1, 0); R(send(s, "x", 1, MSG_NOSIGNAL)));
}

static void reset_with_bytes_unread_at_the_reset_end(void)
{
    FAR(R(send(s, "lost", 4, 0)));
    NEAR(arrive(s, POLLIN));
    FAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(arrive(s, POLLHUP); GET(s, 8, 0); GET(s, 8, 0));
}

static void reset_by_disconnecting(void)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};

    FAR(R(connect(s, &none, sizeof none)); R(send(s, "x", 1, MSG_NOSIGNAL)); GET(s, 1, MSG_DONTWAIT));
    NEAR(arrive(s, POLLHUP); GET(s, 1, 0));
}

static void reset_while_receiving(void)
{
    if (is_near) {
        GET(s, 1, 0);
        GET(s, 1, 0);
    } else {
        sleep_ms(30);
        R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
        R(close(s));
    }
    step();
}

static void reset_while_sending(void)
{
    static char bytes[1 << 20];
    int sent = 1;

    if (is_near) {
        for (int round = 0; round < 100 && sent; round++)
            sent = send_all(s, bytes, sizeof bytes);
        say("sent %d", sent);
        R(send(s, bytes, 1, MSG_NOSIGNAL));
    } else {
        sleep_ms(60);
        R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
        R(close(s));
    }
    step();
}

static void close_while_the_peer_sends(void)
{
    static char bytes[1 << 20];
    int sent = 1;

    if (is_near) {
        for (int round = 0; round < 100 && sent; round++)
            sent = send_all(s, bytes, sizeof bytes);
        say("sent %d", sent);
        R(send(s, bytes, 1, MSG_NOSIGNAL));
    } else {
        sleep_ms(60);
        R(close(s));
    }
    step();
}

static void linger_waits(void)
{
    struct linger some = {1, 2}, asked;
    socklen_t length = sizeof asked;

    NEAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &some, sizeof some)); R(getsockopt(s, SOL_SOCKET, SO_LINGER, &asked, &length));
         say("%d %d", asked.l_onoff, asked.l_linger); R(send(s, "kept", 4, 0)); TIMED(0, 500, R(close(s))));
    FAR(ALL(s, 4); GET(s, 1, 0));
}

static void sent_after_the_close(void)
{
    NEAR(R(close(s)));
    FAR(R(send(s, "x", 1, MSG_NOSIGNAL)); sleep_ms(5); R(send(s, "y", 1, MSG_NOSIGNAL)); GET(s, 8, 0); GET(s, 8, 0));
}

static void received_after_a_send_after_the_close(void)
{
    NEAR(R(close(s)));
    FAR(R(send(s, "x", 1, MSG_NOSIGNAL)); sleep_ms(5); GET(s, 8, 0); GET(s, 8, 0); R(send(s, "y", 1, MSG_NOSIGNAL)));
}

static void asked_after_a_send_after_the_close(void)
{
    NEAR(R(close(s)));
    FAR(R(send(s, "x", 1, MSG_NOSIGNAL)); sleep_ms(5); POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0);
        R(number_of(s, SOL_SOCKET, SO_ERROR)); R(number_of(s, SOL_SOCKET, SO_ERROR)); GET(s, 8, 0));
}

/* Neither end reads, until one closes. */
enum wait { BY_POLL, IN_A_SET, IN_A_SEND };

static void full_and_reset(enum wait wait)
{
    struct pollfd entry = {.fd = s, .events = POLLOUT};
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    int set = epoll_create1(0);

    fcntl(s, F_SETFL, wait == IN_A_SEND ? 0 : O_NONBLOCK);
    fill(s);
    step();
    if (is_near) {
        ask();
        sleep_ms(50);
        close(s);
    } else {
        epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
        fill(s);
        tell(0);
        if (wait != IN_A_SEND) {
            R(wait == IN_A_SET ? epoll_wait(set, &event, 1, 2000) : poll(&entry, 1, 2000));
            POLL(s, POLLOUT, 0);
        }
        R(send(s, "x", 1, MSG_NOSIGNAL));
        R(send(s, "x", 1, MSG_NOSIGNAL));
        GET(s, 8, 0);
    }
    step();
}

static void reset_while_both_are_full(void)
{
    full_and_reset(BY_POLL);
}

static void reset_while_both_are_full_in_a_set(void)
{
    full_and_reset(IN_A_SET);
}

static void reset_while_both_are_full_and_one_sends(void)
{
    full_and_reset(IN_A_SEND);
}

/* The first send may still pass; soon one must fail, and raise the signal unless told not to. */
static void broken_pipe(void)
{
    ssize_t sent = 1;

    FAR(R(close(s)));
    NEAR(count_signals(SIGPIPE, 0);
         for (int round = 0; round < 100 && sent == 1; round++) {
             sent = send(s, "x", 1, MSG_NOSIGNAL);
             sleep_ms(1);
         } R(send(s, "x", 1, MSG_NOSIGNAL)); say("%d signals", signals); R(write(s, "x", 1)); say("%d signals", signals);
         R(send(s, "x", 1, 0)); say("%d signals", signals));
}

static void broken_pipe_kills(void)
{
    FAR(R(close(s)));
    if (is_near) {
        pid_t child = fork();
        if (child == 0) {
            for (int round = 0; round < 100; round++) {
                if (write(s, "x", 1) != 1)
                    break;
                sleep_ms(2);
            }
            _exit(1);
        }
        reap(child);
    }
    step();
}

static void broken_pipe_ignored(void)
{
    ssize_t sent = 1;

    FAR(R(close(s)));
    NEAR(signal(SIGPIPE, SIG_IGN); for (int round = 0; round < 100 && sent == 1; round++) {
        sent = write(s, "x", 1);
        sleep_ms(1);
    } R(write(s, "x", 1)));
}

static void broken_pipe_of_own_making(void)
{
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    NEAR(count_signals(SIGPIPE, 0); R(shutdown(s, SHUT_WR)); R(write(s, "x", 1)); R(writev(s, &part, 1));
         R(sendmsg(s, &message, 0)); R(send(s, "", 0, 0)); R(write(s, "", 0)); say("%d signals", signals));
}

static void *shut_down_later(void *how)
{
    sleep_ms(100);
    shutdown(s, *(int *)how);
    return NULL;
}

static void shutdown_wakes_a_reader(void)
{
    int how = SHUT_RDWR;

    if (is_near) {
        pthread_t thread = in_thread(shut_down_later, &how);
        TIMED(25, 1000, GET(s, 1, 0));
        pthread_join(thread, NULL);
    } else
        GET(s, 1, 0);
    step();
}

static void shutdown_of_reading_wakes_a_reader(void)
{
    int how = SHUT_RD;

    if (is_near) {
        pthread_t thread = in_thread(shut_down_later, &how);
        TIMED(25, 1000, GET(s, 1, 0));
        pthread_join(thread, NULL);
        R(send(s, "x", 1, 0));
    } else
        GET(s, 1, 0);
    step();
}

static void shutdown_wakes_a_poller(void)
{
    int how = SHUT_RDWR;

    if (is_near) {
        pthread_t thread = in_thread(shut_down_later, &how);
        TIMED(25, 1000, POLL(s, POLLIN, 2000));
        pthread_join(thread, NULL);
    } else
        POLL(s, POLLIN, 2000);
    step();
}

static void shutdown_wakes_a_sender(void)
{
    int how = SHUT_RDWR;
    static char bytes[1 << 20];

    if (is_near) {
        pthread_t thread = in_thread(shut_down_later, &how);
        int sent = 1;
        for (int round = 0; round < 100 && sent; round++)
            sent = send_all(s, bytes, sizeof bytes);
        R(send(s, bytes, 1, MSG_NOSIGNAL));
        pthread_join(thread, NULL);
    }
    step();
}

static void the_end_wakes_a_poller(void)
{
    if (is_near) {
        TIMED(25, 1000, POLL(s, POLLIN | POLLRDHUP, 2000));
        GET(s, 1, 0);
    } else {
        sleep_ms(100);
        R(close(s));
    }
    step();
}

static void events_of_half_closes(void)
{
    BOTH(POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
    NEAR(R(send(s, "x", 1, 0)); R(shutdown(s, SHUT_WR)); POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
    FAR(arrive(s, POLLRDHUP); POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0); GET(s, 1, 0);
        POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0); R(shutdown(s, SHUT_WR)); POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
    NEAR(arrive(s, POLLHUP); POLL(s, POLLIN | POLLOUT | POLLRDHUP, 0));
}

static void receive_calls_after_a_reset(void)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    FAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    NEAR(arrive(s, POLLHUP); R(recvmsg(s, &message, MSG_PEEK)); R(recvmsg(s, &message, 0)); R(read(s, &byte, 1));
         R(shutdown(s, SHUT_WR)); R(shutdown(s, SHUT_RD)));
}

MAIN(JOINED(half_close_by_near), JOINED(half_close_by_far), JOINED(half_close_then_much), JOINED(both_half_close_at_once),
     JOINED(shutdown_of_reading), JOINED(shutdown_of_reading_with_bytes_waiting), JOINED(bytes_after_shutdown_of_reading),
     JOINED(shutdown_of_both), JOINED(shutdown_twice), JOINED(unread_bytes_before_the_end), JOINED(much_before_the_end),
     JOINED(exit_instead_of_close), JOINED(killed_instead_of_close), JOINED(killed_with_bytes_unread),
     JOINED(closed_with_bytes_unread), JOINED(closed_with_bytes_partly_read), JOINED(bytes_sent_before_a_reset_are_lost),
     JOINED(reset_by_linger), JOINED(reset_told_by_option), JOINED(reset_told_to_a_sender),
     JOINED(reset_after_half_close_by_the_reset_end), JOINED(reset_after_half_close_by_the_resetting_end),
     JOINED(reset_with_bytes_unread_at_the_reset_end), JOINED(reset_by_disconnecting), JOINED(reset_while_receiving),
     JOINED(reset_while_sending), JOINED(close_while_the_peer_sends), JOINED(linger_waits), JOINED(broken_pipe),
     JOINED(broken_pipe_kills), JOINED(broken_pipe_ignored), JOINED(broken_pipe_of_own_making),
     JOINED(shutdown_wakes_a_reader), JOINED(shutdown_of_reading_wakes_a_reader), JOINED(shutdown_wakes_a_poller),
     JOINED(shutdown_wakes_a_sender), JOINED(the_end_wakes_a_poller), JOINED(events_of_half_closes),
     JOINED(receive_calls_after_a_reset), JOINED(sent_after_the_close),
     JOINED(received_after_a_send_after_the_close), JOINED(asked_after_a_send_after_the_close),
     JOINED(reset_while_both_are_full), JOINED(reset_while_both_are_full_in_a_set),
     JOINED(reset_while_both_are_full_and_one_sends))
