/* Much data, full connections, threads that share a socket, calls by other names and within the C library. */
#include "play.h"
#include <netdb.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

enum { MUCH = 6000000 };

static void *pour_much(void *fd)
{
    char *bytes = calloc(1, MUCH);

    for (size_t at = 0; at < MUCH; at++)
        bytes[at] = (char)pattern(at);
    if (!send_all(*(int *)fd, bytes, MUCH))
        say("not all sent");
    free(bytes);
    return NULL;
}

static void much_one_way(void)
{
    if (is_near)
        pour(s, 0, MUCH);
    else
        drink(s, 0, MUCH);
    step();
}

static void much_both_ways_at_once(void)
{
    pthread_t thread = in_thread(pour_much, &s);

    drink(s, 0, MUCH);
    pthread_join(thread, NULL);
    step();
}

static void one_call_sends_it_all(void)
{
    static char bytes[5000000];
    size_t room = sizeof bytes;

    if (is_near) {
        memset(bytes, 'z', room);
        R(send(s, bytes, room, 0));
        R(write(s, bytes, room));
    } else {
        drain(s, room);
        drain(s, room);
        GET(s, 1, MSG_DONTWAIT);
    }
    step();
}

static void part_of_it_goes_in(void)
{
    static char bytes[30000000];
    long sent;

    /* How much a full connection holds is nobody's promise; that what went in comes out is. */
    if (is_near) {
        R(fcntl(s, F_SETFL, O_NONBLOCK));
        sent = send(s, bytes, sizeof bytes, 0);
        say("%s", sent < 0 ? strerrorname_np(errno) : sent < 30000000 ? "part" : "all");
        sent += (long)fill(s);
        say("full %d", send(s, bytes, sizeof bytes, 0) < 30000000);
        R(shutdown(s, SHUT_WR));
    }
    step();
    if (!is_near) {
        for (sent = 0; recv(s, bytes, 1, MSG_PEEK) == 1;)
            sent += recv(s, bytes, sizeof bytes, 0);
        say("came %d", sent > 0);
    }
    step();
}

static void *send_records(void *fd)
{
    for (int round = 0; round < 4000; round++)
        if (!send_all(*(int *)fd, "0123456789", 10))
            return NULL;
    return fd;
}

static void threads_share_a_sender(void)
{
    pthread_t threads[3];
    char bytes[10];
    int whole = 0;

    if (is_near) {
        for (int index = 0; index < 3; index++)
            threads[index] = in_thread(send_records, &s);
        for (int index = 0; index < 3; index++)
            pthread_join(threads[index], NULL);
    } else
        for (int round = 0; round < 12000; round++)
            whole += receive_all(s, bytes, 10) && !memcmp(bytes, "0123456789", 10);
    say("%d records", whole);
    step();
}

static void *receive_records(void *sum)
{
    char byte;

    while (recv(s, &byte, 1, 0) == 1)
        __atomic_add_fetch((long *)sum, byte, __ATOMIC_RELAXED);
    return NULL;
}

static void threads_share_a_receiver(void)
{
    pthread_t threads[3];
    long sum = 0;

    if (is_near) {
        for (int index = 0; index < 3000; index++)
            sum += send_all(s, "\5", 1);
        R(shutdown(s, SHUT_WR));
    } else {
        for (int index = 0; index < 3; index++)
            threads[index] = in_thread(receive_records, &sum);
        for (int index = 0; index < 3; index++)
            pthread_join(threads[index], NULL);
    }
    say("sum %ld", sum);
    step();
}

/* With sizes known and lengths not, a fortified build calls __read_chk and its kin. */
static void fortified_calls(void)
{
    char bytes[64];
    volatile size_t length = 10;
    volatile nfds_t one = 1;
    struct pollfd wait = {s, POLLIN, 0};
    struct timespec time = {1, 0};

    NEAR(R(send(s, "0123456789ABCDEFGHIJabcdefghij", 30, 0)));
    FAR(R(poll(&wait, one, 1000)); R(ppoll(&wait, one, &time, NULL)); R(read(s, bytes, length)); show_bytes("read", bytes, 10);
        R(recv(s, bytes, length, 0)); show_bytes("recv", bytes, 10); R(recvfrom(s, bytes, length, 0, NULL, NULL));
        show_bytes("recvfrom", bytes, 10));
}

/* The names that programs with large files use. */
static void calls_with_large_offsets(void)
{
    int file = memfd_create("file", 0);
    off64_t offset = 2;

    R(write(file, "0123456789", 10));
    NEAR(R(sendfile64(s, file, &offset, 5)); say("%ld", (long)offset));
    FAR(ALL(s, 5); R(fcntl64(s, F_SETFL, O_NONBLOCK)); GET(s, 1, 0));
    close(file);
}

static void resolve(void)
{
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};

    R(getaddrinfo("localhost", "80", &hints, &found));
    freeaddrinfo(found);
}

/* The resolver opens and closes sockets of its own, whose numbers were and become a program's. */
static void names_resolved_between_connections(void)
{
    for (int round = 0; round < 3; round++) {
        BOTH(resolve());
        int fd = join();
        BOTH(resolve());
        talk(fd);
        close(fd);
    }
    talk(s);
}

static void sent_in_any_way(void)
{
    struct iovec part = {"c", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    NEAR(R(write(s, "a", 1)); R(send(s, "b", 1, 0)); R(writev(s, &part, 1)); R(sendmsg(s, &message, 0));
         R(sendto(s, "d", 1, 0, NULL, 0)));
    FAR(ALL(s, 5));
}

/* How many they are depends on buffers. */
static void unsent_bytes_of_a_full_connection(void)
{
    static char bytes[100000];
    long sent = 0, got;
    int count = 0;

    if (is_near) {
        for (fcntl(s, F_SETFL, O_NONBLOCK); (got = send(s, bytes, sizeof bytes, 0)) > 0;)
            sent += got;
        R(ioctl(s, TIOCOUTQ, &count));
        say("some unsent: %d", count > 0 && count <= sent);
        shutdown(s, SHUT_WR);
    }
    step();
    if (!is_near)
        while (recv(s, bytes, sizeof bytes, 0) > 0)
            ;
    step();
    if (is_near)
        for (int wait = 0; wait < 2000 && ioctl(s, TIOCOUTQ, &count) == 0 && count > 0; wait++)
            sleep_ms(1);
    NEAR(say("unsent: %d", count));
}

MAIN(JOINED(unsent_bytes_of_a_full_connection), JOINED(much_one_way), JOINED(much_both_ways_at_once), JOINED(one_call_sends_it_all), JOINED(part_of_it_goes_in),
     JOINED(threads_share_a_sender), JOINED(threads_share_a_receiver), JOINED(fortified_calls),
     JOINED(calls_with_large_offsets), JOINED(names_resolved_between_connections), JOINED(sent_in_any_way))
