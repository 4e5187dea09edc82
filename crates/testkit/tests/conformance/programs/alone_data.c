/* Calls that move bytes, by one program with both ends. */
#include "check.h"
#include <linux/sockios.h>
#include <sys/sendfile.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/uio.h>

static void peek_shows_what_comes(void)
{
    struct pair p = make_pair();
    char bytes[16] = {0};

    EXPECT(send(p.near, "abcdef", 6, 0) == 6);
    EXPECT(recv(p.far, bytes, 3, MSG_PEEK) == 3 && !memcmp(bytes, "abc", 3));
    EXPECT(recv(p.far, bytes, 6, MSG_PEEK | MSG_WAITALL) == 6 && !memcmp(bytes, "abcdef", 6));
    EXPECT(recv(p.far, bytes, 2, 0) == 2 && !memcmp(bytes, "ab", 2));
    EXPECT(recv(p.far, bytes, 16, MSG_PEEK) == 4 && !memcmp(bytes, "cdef", 4));
    EXPECT(read(p.far, bytes, 16) == 4 && !memcmp(bytes, "cdef", 4));
    close_pair(p);
}

static void *three_pieces(void *fd)
{
    for (int piece = 0; piece < 3; piece++) {
        sleep_ms(20);
        send_all(*(int *)fd, "0123456789", 10);
    }
    return NULL;
}

static void waitall_waits(void)
{
    struct pair p = make_pair();
    char bytes[30];
    pthread_t thread = in_thread(three_pieces, &p.near);

    EXPECT(recv(p.far, bytes, 30, MSG_WAITALL) == 30);
    EXPECT(!memcmp(bytes + 20, "0123456789", 10));
    pthread_join(thread, NULL);
    send_all(p.near, "tail", 4);
    close(p.near);
    EXPECT(recv(p.far, bytes, 30, MSG_WAITALL) == 4);
    EXPECT(recv(p.far, bytes, 30, MSG_WAITALL) == 0);
    close(p.far);
}

static void dontwait_does_not_wait(void)
{
    struct pair p = make_pair();
    char bytes[8];

    EXPECT_ERROR(recv(p.far, bytes, 8, MSG_DONTWAIT), EAGAIN);
    EXPECT_ERROR(recv(p.far, bytes, 8, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
    EXPECT(send(p.near, "x", 1, MSG_DONTWAIT) == 1);
    sleep_ms(5);
    EXPECT(recv(p.far, bytes, 8, MSG_DONTWAIT | MSG_WAITALL) == 1);
    close_pair(p);
}

static void trunc_throws_away(void)
{
    struct pair p = make_pair();
    char bytes[8];

    EXPECT(send(p.near, "abcdefgh", 8, 0) == 8);
    sleep_ms(5);
    EXPECT(recv(p.far, NULL, 5, MSG_TRUNC) == 5);
    EXPECT(recv(p.far, bytes, 8, 0) == 3 && !memcmp(bytes, "fgh", 3));
    close_pair(p);
}

static void vectors(void)
{
    struct pair p = make_pair();
    char a[3], b[1], c[20];
    struct iovec out[] = {{"ab", 2}, {"", 0}, {"cdefg", 5}, {"hij", 3}};
    struct iovec in[] = {{a, 3}, {NULL, 0}, {b, 1}, {c, 20}};

    EXPECT(writev(p.near, out, 4) == 10);
    sleep_ms(5);
    EXPECT(readv(p.far, in, 4) == 10);
    EXPECT(!memcmp(a, "abc", 3) && b[0] == 'd' && !memcmp(c, "efghij", 6));
    close_pair(p);
}

static void messages(void)
{
    struct pair p = make_pair();
    char a[4], b[10], control[64], name[64];
    struct iovec out[] = {{"abc", 3}, {"defg", 4}}, in[] = {{a, 4}, {b, 10}};
    struct msghdr sent = {.msg_iov = out, .msg_iovlen = 2};
    struct msghdr received = {.msg_name = name,
                              .msg_namelen = sizeof name,
                              .msg_iov = in,
                              .msg_iovlen = 2,
                              .msg_control = control,
                              .msg_controllen = sizeof control,
                              .msg_flags = 12345};

    EXPECT(sendmsg(p.near, &sent, MSG_NOSIGNAL) == 7);
    sleep_ms(5);
    EXPECT(recvmsg(p.far, &received, 0) == 7);
    EXPECT(!memcmp(a, "abcd", 4) && !memcmp(b, "efg", 3));
    EXPECT(received.msg_flags == 0 && received.msg_controllen == 0 && received.msg_namelen == 0);
    close_pair(p);
}

static void several_messages(void)
{
    struct pair p = make_pair();
    char a[4], b[4];
    struct iovec out[] = {{"abcd", 4}, {"efgh", 4}}, in[] = {{a, 4}, {b, 4}};
    struct mmsghdr sent[2] = {{{.msg_iov = out, .msg_iovlen = 1}, 0},
                              {{.msg_iov = out + 1, .msg_iovlen = 1}, 0}};
    struct mmsghdr received[2] = {{{.msg_iov = in, .msg_iovlen = 1}, 0},
                                  {{.msg_iov = in + 1, .msg_iovlen = 1}, 0}};

    EXPECT(sendmmsg(p.near, sent, 2, 0) == 2 && sent[0].msg_len == 4 && sent[1].msg_len == 4);
    sleep_ms(5);
    EXPECT(recvmmsg(p.far, received, 2, 0, NULL) == 2);
    EXPECT(received[0].msg_len == 4 && received[1].msg_len == 4);
    EXPECT(!memcmp(a, "abcd", 4) && !memcmp(b, "efgh", 4));
    close_pair(p);
}

/* With sizes known and lengths not, a fortified build calls __recv_chk and its kin. */
static void fortified_calls(void)
{
    struct pair p = make_pair();
    char bytes[64];
    struct pollfd wait = {p.far, POLLIN, 0};
    volatile size_t length = 10;
    volatile nfds_t one = 1;

    EXPECT(send(p.near, "0123456789ABCDEFGHIJabcdefghij", 30, 0) == 30);
    EXPECT(poll(&wait, one, 1000) == 1 && wait.revents == POLLIN);
    EXPECT(read(p.far, bytes, length) == 10 && !memcmp(bytes, "0123456789", 10));
    EXPECT(recv(p.far, bytes, length, 0) == 10 && !memcmp(bytes, "ABCDEFGHIJ", 10));
    EXPECT(recvfrom(p.far, bytes, length, 0, NULL, NULL) == 10 && !memcmp(bytes, "abcdefghij", 10));
    close_pair(p);
}

static void counts_of_waiting_bytes(void)
{
    struct pair p = make_pair();
    char bytes[1000] = {0};
    int count = -1;

    EXPECT(ioctl(p.far, FIONREAD, &count) == 0 && count == 0);
    EXPECT(send(p.near, bytes, 1000, 0) == 1000);
    sleep_ms(5);
    EXPECT(ioctl(p.far, FIONREAD, &count) == 0 && count == 1000);
    EXPECT(recv(p.far, bytes, 300, 0) == 300);
    EXPECT(ioctl(p.far, FIONREAD, &count) == 0 && count == 700);
    EXPECT(ioctl(p.near, SIOCOUTQ, &count) == 0 && count >= 0);
    close_pair(p);
}

static void nothing_is_sent_and_received(void)
{
    struct pair p = make_pair();
    char byte;

    EXPECT(send(p.near, "", 0, 0) == 0);
    EXPECT(write(p.near, "", 0) == 0);
    EXPECT_ERROR(recv(p.far, &byte, 1, MSG_DONTWAIT), EAGAIN);
    EXPECT(send(p.near, "a", 1, 0) == 1);
    sleep_ms(5);
    EXPECT(recv(p.far, &byte, 0, 0) == 0);
    EXPECT(recv(p.far, &byte, 1, 0) == 1 && byte == 'a');
    close_pair(p);
}

enum { MUCH = 20000000 };

static void *send_much(void *fd)
{
    unsigned char chunk[70001];

    for (size_t at = 0; at < MUCH;) {
        size_t length = at % 7 ? sizeof chunk : 13;
        if (length > MUCH - at)
            length = MUCH - at;
        for (size_t index = 0; index < length; index++)
            chunk[index] = pattern(at + index);
        if (!send_all(*(int *)fd, chunk, length))
            break;
        at += length;
    }
    return NULL;
}

static int receives_much(int fd)
{
    unsigned char chunk[50000];

    for (size_t at = 0; at < MUCH;) {
        ssize_t count = recv(fd, chunk, sizeof chunk, 0);
        if (count <= 0)
            return 0;
        for (ssize_t index = 0; index < count; index++)
            if (chunk[index] != pattern(at + (size_t)index))
                return 0;
        at += (size_t)count;
    }
    return 1;
}

static void much_both_ways(void)
{
    struct pair p = make_pair();
    pthread_t one = in_thread(send_much, &p.near);

    EXPECT(receives_much(p.far));
    pthread_join(one, NULL);
    one = in_thread(send_much, &p.far);
    EXPECT(receives_much(p.near));
    pthread_join(one, NULL);
    close_pair(p);
}

static void *read_much(void *fd)
{
    return receives_much(*(int *)fd) ? fd : NULL;
}

static void files_are_sent(void)
{
    struct pair p = make_pair();
    char name[] = "/tmp/viaduct-check-XXXXXX";
    int file = mkstemp(name);
    unsigned char *bytes = malloc(MUCH);
    off_t offset = 1000;
    pthread_t reader;
    void *right = NULL;
    char head[4];

    unlink(name);
    for (size_t at = 0; at < MUCH; at++)
        bytes[at] = pattern(at);
    EXPECT(write(file, bytes, MUCH) == MUCH);
    free(bytes);
    EXPECT(sendfile(p.near, file, &offset, 4) == 4 && offset == 1004);
    EXPECT(receive_all(p.far, head, 4) && (unsigned char)head[3] == pattern(1003));
    EXPECT(lseek(file, 0, SEEK_CUR) == MUCH);
    EXPECT(lseek(file, 0, SEEK_SET) == 0);
    reader = in_thread(read_much, &p.far);
    for (size_t sent = 0; sent < MUCH;) {
        ssize_t count = sendfile(p.near, file, NULL, MUCH);
        EXPECT(count > 0);
        sent += (size_t)count;
        EXPECT(lseek(file, 0, SEEK_CUR) == (off_t)sent);
    }
    EXPECT(sendfile(p.near, file, NULL, 10) == 0);
    pthread_join(reader, &right);
    EXPECT(right != NULL);
    close(file);
    close_pair(p);
}

static void splices(void)
{
    struct pair p = make_pair();
    int ends[2];
    char bytes[8];

    EXPECT(pipe(ends) == 0);
    EXPECT(write(ends[1], "through", 7) == 7);
    EXPECT(splice(ends[0], NULL, p.near, NULL, 7, 0) == 7);
    EXPECT(receive_all(p.far, bytes, 7) && !memcmp(bytes, "through", 7));
    EXPECT(send(p.far, "andback", 7, 0) == 7);
    sleep_ms(5);
    EXPECT(splice(p.near, NULL, ends[1], NULL, 7, 0) == 7);
    EXPECT(read(ends[0], bytes, 7) == 7 && !memcmp(bytes, "andback", 7));
    EXPECT(send(p.far, "after", 5, 0) == 5);
    EXPECT(receive_all(p.near, bytes, 5) && !memcmp(bytes, "after", 5));
    close(ends[0]);
    close(ends[1]);
    close_pair(p);
}

static void vectors_with_flags(void)
{
    struct pair p = make_pair();
    char a[4] = "abc", b[8] = "defghij", bytes[10];
    struct iovec out[2] = {{a, 3}, {b, 7}}, in[2] = {{bytes, 4}, {bytes + 4, 6}};

    EXPECT(pwritev2(p.near, out, 2, -1, 0) == 10);
    EXPECT(recv(p.far, bytes, 10, MSG_PEEK | MSG_WAITALL) == 10);
    EXPECT(preadv2(p.far, in, 2, -1, 0) == 10 && !memcmp(bytes, "abcdefghij", 10));
    EXPECT_ERROR(preadv2(p.far, in, 2, -1, RWF_NOWAIT), EAGAIN);
    EXPECT_ERROR(preadv2(p.far, in, 2, 0, 0), ESPIPE);
    EXPECT_ERROR(pwritev2(p.far, out, 2, 5, 0), ESPIPE);
    EXPECT_ERROR(pwritev2(p.far, out, 2, -1, 0x4000000), EOPNOTSUPP);
    EXPECT(pwritev2(p.far, out + 1, 1, -1, RWF_NOWAIT) == 7);
    EXPECT(receive_all(p.near, bytes, 7) && !memcmp(bytes, "defghij", 7));
    EXPECT_ERROR(recv(p.near, bytes, 1, MSG_DONTWAIT), EAGAIN);
    close_pair(p);
}

static int print_list(int (*print)(int, const char *, va_list), int fd, const char *format, ...)
{
    va_list list;
    int printed;

    va_start(list, format);
    printed = print(fd, format, list);
    va_end(list);
    return printed;
}

static int shows(int fd, const char *text)
{
    char bytes[20000];
    size_t length = strlen(text);

    return receive_all(fd, bytes, length) && !memcmp(bytes, text, length) &&
           recv(fd, bytes, 1, MSG_DONTWAIT) == -1;
}

static void text_is_printed(void)
{
    struct pair p = make_pair();
    int (*plain)(int, const char *, ...) = dprintf;
    int (*with_list)(int, const char *, va_list) = vdprintf;
    char text[10001];

    EXPECT(dprintf(p.near, "GET /%s HTTP/1.%d\r\n", "index", 1) == 21);
    EXPECT(shows(p.far, "GET /index HTTP/1.1\r\n"));
    /* More of each kind than there are registers. */
    EXPECT(dprintf(p.near, "%d %g %s %d %g %d %g %g %d %g %g %d %g %g %d %g %g %.1Lf %d", 1, 1.5, "s", 2, 2.5, 3, 3.5,
                   4.5, 4, 5.5, 6.5, 5, 7.5, 8.5, 6, 9.5, 10.5, 11.5L, 7) > 0);
    EXPECT(shows(p.far, "1 1.5 s 2 2.5 3 3.5 4.5 4 5.5 6.5 5 7.5 8.5 6 9.5 10.5 11.5 7"));
    EXPECT(plain(p.far, "%s %ld %d %d %d %d %.2f\n", "a", 1L << 40, 2, 3, 4, 5, 0.25) > 0);
    EXPECT(shows(p.near, "a 1099511627776 2 3 4 5 0.25\n"));
    EXPECT(print_list(with_list, p.near, "%d-%s-%g", 7, "seven", 7.5) == 11);
    EXPECT(shows(p.far, "7-seven-7.5"));
    memset(text, 'x', 10000);
    text[10000] = 0;
    EXPECT(dprintf(p.near, "%s", text) == 10000);
    EXPECT(shows(p.far, text));
    EXPECT(dprintf(p.near, "%s", "") == 0);
    EXPECT(dprintf(-1, "x") == -1);
    close_pair(p);
}

static void urgent_data(void)
{
    struct pair p = make_pair();
    char bytes[8];
    int marked = 0;

    EXPECT(send(p.near, "ab", 2, 0) == 2);
    EXPECT(send(p.near, "!", 1, MSG_OOB) == 1);
    EXPECT(send(p.near, "cd", 2, 0) == 2);
    sleep_ms(20);
    EXPECT(recv(p.far, bytes, 8, 0) == 2 && !memcmp(bytes, "ab", 2));
    EXPECT(ioctl(p.far, SIOCATMARK, &marked) == 0 && marked == 1);
    EXPECT(recv(p.far, bytes, 1, MSG_OOB) == 1 && bytes[0] == '!');
    EXPECT(recv(p.far, bytes, 8, 0) == 2 && !memcmp(bytes, "cd", 2));
    close_pair(p);
}

/* What comes before it is the first that the connection carries, and unread; it is received before or after that. */
static void urgent_data_behind_the_first_bytes(void)
{
    enum { length = 60000 };
    static char all[length], bytes[length];

    for (int index = 0; index < length; index++)
        all[index] = (char)(index * 7);
    for (int round = 0; round < 4; round++) {
        struct pair p = connect_quickly();
        int some = round % 2 ? length : 2, first = round / 2, room = 1 << 20;
        char byte = 0;

        EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
        EXPECT(send_all(p.near, all, some) && send(p.near, "!", 1, MSG_OOB) == 1 && send_all(p.near, all, some));
        sleep_ms(20);
        EXPECT(!first || (recv(p.far, &byte, 1, MSG_OOB) == 1 && byte == '!'));
        EXPECT(receive_all(p.far, bytes, some) && !memcmp(bytes, all, some));
        EXPECT(first || (recv(p.far, &byte, 1, MSG_OOB) == 1 && byte == '!'));
        EXPECT(receive_all(p.far, bytes, some) && !memcmp(bytes, all, some));
        close_pair(p);
    }
}

static void options_and_addresses(void)
{
    struct pair p = make_pair();
    struct tcp_info info = {0};
    struct sockaddr_in near, far;
    socklen_t length = sizeof info;
    int on = 1, value = 0;

    EXPECT(getsockopt(p.near, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    EXPECT(info.tcpi_state == TCP_ESTABLISHED && info.tcpi_snd_mss > 0);
    length = sizeof near;
    EXPECT(getsockname(p.near, (struct sockaddr *)&near, &length) == 0);
    length = sizeof far;
    EXPECT(getpeername(p.far, (struct sockaddr *)&far, &length) == 0);
    EXPECT(near.sin_port == far.sin_port && near.sin_addr.s_addr == far.sin_addr.s_addr);
    EXPECT(setsockopt(p.near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    length = sizeof value;
    EXPECT(getsockopt(p.near, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0 && value);
    on = 0;
    EXPECT(setsockopt(p.near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    length = sizeof value;
    EXPECT(getsockopt(p.near, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0 && !value);
    length = sizeof value;
    EXPECT(getsockopt(p.near, SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == 0);
    length = sizeof value;
    EXPECT(getsockopt(p.near, SOL_SOCKET, SO_TYPE, &value, &length) == 0 && value == SOCK_STREAM);
    EXPECT_ERROR(connect(p.near, (struct sockaddr *)&far, sizeof far), EISCONN);
    close_pair(p);
}

static void *share_a_sender(void *fd)
{
    for (int round = 0; round < 20000; round++)
        if (!send_all(*(int *)fd, "0123456789", 10))
            return NULL;
    return fd;
}

static void threads_share_a_socket(void)
{
    struct pair p = make_pair();
    pthread_t threads[3];
    char bytes[10];

    for (int index = 0; index < 3; index++)
        threads[index] = in_thread(share_a_sender, &p.near);
    /* Sends of one call stay in one piece, whoever else sends. */
    for (int round = 0; round < 60000; round++)
        EXPECT(receive_all(p.far, bytes, 10) && !memcmp(bytes, "0123456789", 10));
    for (int index = 0; index < 3; index++)
        pthread_join(threads[index], NULL);
    close_pair(p);
}

/* A program that asks for little room is told that it is full when little is on its way. */
static void small_buffers_fill_soon(void)
{
    static char bytes[100000];
    struct pair p = make_pair();
    int size = 4096, room = 4096;
    long sent = 0;

    EXPECT(setsockopt(p.near, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
    for (long count; (count = send(p.near, bytes, sizeof bytes, MSG_DONTWAIT)) > 0; sent += count)
        EXPECT(sent < 200000);
    EXPECT_ERROR(send(p.near, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
    EXPECT(sent >= 4096);
    close_pair(p);
}

enum { LONG_RECEIVE = 1 << 20, HALF = LONG_RECEIVE / 2 };

static char *received;
static _Atomic long sent_so_far, sent_at_half, sent_behind_half;

static void *send_counted(void *fd)
{
    static char bytes[1 << 14];

    for (; sent_so_far < 4 * LONG_RECEIVE; sent_so_far += sizeof bytes)
        if (!send_all(*(int *)fd, bytes, sizeof bytes))
            return NULL;
    return fd;
}

/* A receive has come to the second half of its buffer, sooner than a sender gives up a lane on which nothing moves. */
static void halfway(int number)
{
    (void)number;
    sent_at_half = sent_so_far;
    for (int wait = 0; wait < 5 && sent_so_far == sent_at_half; wait++)
        sleep_ms(1);
    sent_behind_half = sent_so_far;
    mprotect(received + HALF, HALF, PROT_READ | PROT_WRITE);
}

/* Whoever is blocked in a send goes on while a long receive copies, not only when that is done. The kernel raises no
 * signal, it receives what it can. */
static void a_long_receive_makes_room_as_it_goes(void)
{
    struct sigaction action = {.sa_handler = halfway};

    received = mmap(NULL, LONG_RECEIVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(received != MAP_FAILED && sigaction(SIGSEGV, &action, NULL) == 0);
    for (int tries = 0; tries < 20 && sent_behind_half == sent_at_half; tries++) {
        struct pair p = make_pair();
        long before = -1, count;
        sent_so_far = 0;
        pthread_t thread = in_thread(send_counted, &p.near);

        for (; sent_so_far != before; sleep_ms(1))
            before = sent_so_far;
        EXPECT(mprotect(received + HALF, HALF, PROT_NONE) == 0);
        for (long total = 0; total < 4 * LONG_RECEIVE; total += count) {
            EXPECT((count = recv(p.far, received, LONG_RECEIVE, 0)) > 0);
            mprotect(received + HALF, HALF, PROT_READ | PROT_WRITE);
        }
        pthread_join(thread, NULL);
        close_pair(p);
    }
    EXPECT(sent_at_half == 0 || sent_behind_half > sent_at_half);
    signal(SIGSEGV, SIG_DFL);
    munmap(received, LONG_RECEIVE);
}

MAIN(ALONE(peek_shows_what_comes), ALONE(waitall_waits), ALONE(dontwait_does_not_wait), ALONE(trunc_throws_away),
     ALONE(vectors), ALONE(messages), ALONE(several_messages), ALONE(fortified_calls), ALONE(counts_of_waiting_bytes),
     ALONE(nothing_is_sent_and_received), ALONE(much_both_ways), ALONE(files_are_sent), ALONE(splices),
     ALONE(vectors_with_flags), ALONE(text_is_printed), ALONE(urgent_data), ALONE(urgent_data_behind_the_first_bytes), ALONE(small_buffers_fill_soon),
     ALONE(a_long_receive_makes_room_as_it_goes),     ALONE(options_and_addresses), ALONE(threads_share_a_socket))
