/* The life of descriptors: copies, numbers that come back, closing by every way, stdio, flags. */
#include "play.h"
#include <sys/resource.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static void copies(void)
{
    int copy = -1, high = -1;

    NEAR(copy = dup(s); high = fcntl(s, F_DUPFD_CLOEXEC, 100); say("%d", high >= 100); R(send(copy, "ab", 2, 0)); R(close(s));
         R(send(high, "cd", 2, 0)));
    FAR(ALL(s, 4); R(send(s, "efgh", 4, 0)));
    NEAR(ALL(copy, 2); ALL(high, 2); R(close(copy)));
    FAR(GET(s, 1, MSG_DONTWAIT));
    NEAR(R(close(high)); R(close(high)));
    FAR(GET(s, 1, 0));
}

static int early_copy;

static void copy_early(int fd)
{
    if (is_near)
        early_copy = dup(fd);
}

static void copied_before_connecting(void)
{
    int fd = join_by(AF_INET, copy_early);

    for (int round = 0; round < 3; round++) {
        FAR(R(send(fd, "abc", 3, 0)));
        NEAR(GET(early_copy, 2, 0); GET(fd, 1, 0); R(send(early_copy, "d", 1, 0)); R(send(fd, "ef", 2, 0)));
        FAR(ALL(fd, 3));
    }
    NEAR(R(close(fd)); R(send(early_copy, "x", 1, 0)));
    FAR(GET(fd, 2, 0); R(send(fd, "y", 1, 0)));
    NEAR(GET(early_copy, 1, 0); R(close(early_copy)));
    FAR(GET(fd, 1, 0));
}

static void copies_share_their_flags(void)
{
    int copy;

    NEAR(copy = dup(s); R(fcntl(copy, F_SETFL, O_NONBLOCK)); GET(s, 1, 0); R(fcntl(s, F_GETFL) & O_NONBLOCK);
         R(fcntl(s, F_SETFL, 0)); R(fcntl(copy, F_GETFL) & O_NONBLOCK));
}

static void copy_onto_a_socket_closes_it(void)
{
    int other = join();

    NEAR(R(dup2(other, s) == s));
    FAR(GET(s, 1, 0));
    NEAR(R(send(s, "x", 1, 0)); R(dup2(s, s) == s); R(dup3(s, s, O_CLOEXEC)); R(dup2(700, s)); R(dup2(s, -1)));
    FAR(GET(other, 1, 0); R(dup3(other, s, O_CLOEXEC) == s); R(fcntl(s, F_GETFD)); R(close(other)));
    NEAR(R(send(other, "y", 1, 0)));
    FAR(GET(s, 1, 0));
}

static void *receive_one(void *fd)
{
    char byte;
    ssize_t got = recv(*(int *)fd, &byte, 1, 0);

    return (void *)(got < 0 ? -(long)errno : got);
}

/* As the JDK does: a marker over a live descriptor, with a thread inside a call on it. */
static void copy_onto_a_socket_with_a_reader(void)
{
    int ends[2];
    pthread_t thread;
    void *result;

    if (is_near) {
        socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
        shutdown(ends[0], SHUT_RDWR);
        thread = in_thread(receive_one, &s);
        sleep_ms(200);
        /* The kernel keeps the reader inside the old connection until that ends. */
        R(shutdown(s, SHUT_RDWR));
        R(dup2(ends[0], s) == s);
        pthread_join(thread, &result);
        say("%ld", (long)result);
        GET(s, 1, 0);
    } else
        GET(s, 1, 0);
    step();
}

static void close_with_a_reader(void)
{
    pthread_t thread;
    void *result;

    if (is_near) {
        thread = in_thread(receive_one, &s);
        sleep_ms(200);
        R(close(s));
        tell(0);
        pthread_join(thread, &result);
        say("%ld", (long)result);
    } else {
        ask();
        R(send(s, "x", 1, MSG_NOSIGNAL));
    }
    step();
}

static void copy_onto_a_socket_with_a_reader_that_gets_its_byte(void)
{
    pthread_t thread;
    void *result;
    int ends[2];

    /* What is known to hang hangs no longer than this. */
    alarm(2);
    if (is_near) {
        pipe(ends);
        thread = in_thread(receive_one, &s);
        sleep_ms(200);
        R(dup2(ends[0], s) == s);
        tell(0);
        pthread_join(thread, &result);
        say("%ld", (long)result);
        R(write(ends[1], "p", 1));
        R(read(s, &result, 1));
    } else {
        ask();
        R(send(s, "x", 1, MSG_NOSIGNAL));
    }
    step();
}

static void range_closed(void)
{
    int high = -1;

    NEAR(high = fcntl(s, F_DUPFD, 500); R(close(s)); R(close_range(500, 600, 0)); R(fcntl(high, F_GETFD)));
    FAR(GET(s, 1, 0));
}

static void range_closed_by_number(void)
{
    int high = -1;

    NEAR(high = fcntl(s, F_DUPFD, 500); R(close(s)); R(syscall(SYS_close_range, 500, 600, 0)); R(fcntl(high, F_GETFD)));
    FAR(GET(s, 1, 0));
}

static void range_marked_for_exec(void)
{
    NEAR(R(close_range((unsigned)s, (unsigned)s, CLOSE_RANGE_CLOEXEC)); R(fcntl(s, F_GETFD)); R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
    NEAR(R(close_range(9, 8, 0)); R(close_range(600, 700, 77)));
}

/* As daemons do: everything is closed, also what is none of the program's. */
static void all_closed_from_three(void)
{
    if (is_near) {
        pid_t child = fork();
        if (child == 0) {
            closefrom(3);
            for (int fd = 3; fd < 2000; fd++)
                if (fcntl(fd, F_GETFD) >= 0)
                    _exit(fd % 250 + 1);
            _exit(open("/dev/null", O_RDONLY) == 3 ? 0 : 99);
        }
        reap(child);
        R(close(s));
    } else
        GET(s, 1, 0);
    step();
}

static void all_closed_one_by_one(void)
{
    if (is_near) {
        pid_t child = fork();
        if (child == 0) {
            int closed = 0, port, fd;
            for (int number = 3; number < 1024; number++)
                closed += close(number) == 0;
            /* And life goes on. */
            fd = listener(AF_INET, &port);
            _exit(fd == 3 && closed > 0 ? 0 : 1);
        }
        reap(child);
        R(close(s));
    } else
        GET(s, 1, 0);
    step();
}

static void numbers_come_back_as_files(void)
{
    char name[] = "/tmp/viaduct-case-XXXXXX", bytes[8] = "";
    int file, other;

    FAR(R(send(s, "stale", 5, 0)));
    NEAR(R(close(s)); file = mkstemp(name); unlink(name); say("%d", file == s); R(write(file, "file", 4));
         R(lseek(file, 0, SEEK_SET)); R(read(file, bytes, 8)); show_bytes("bytes", bytes, 4); GET(file, 8, 0); R(close(file));
         GET(file, 8, 0));
    other = join();
    FAR(R(send(other, "stale", 5, 0)));
    /* Taken from under the socket, as some runtimes do. */
    NEAR(file = open("/etc/passwd", O_RDONLY); R(dup2(file, other) == other); R(pread(other, bytes, 4, 0));
         R(send(other, "x", 1, 0)); R(close(other)); R(send(other, "x", 1, 0)));
}

static void numbers_come_back_as_pipes(void)
{
    int ends[2];
    char bytes[8];

    FAR(R(send(s, "stale", 5, 0)));
    NEAR(R(close(s)); pipe(ends); say("%d", ends[0] == s); R(write(ends[1], "pipe", 4)); R(read(ends[0], bytes, 8));
         show_bytes("bytes", bytes, 4); GET(ends[0], 1, 0));
}

static void numbers_come_back_as_sets(void)
{
    int set;
    struct epoll_event event;

    FAR(R(send(s, "stale", 5, 0)));
    NEAR(R(close(s)); set = epoll_create1(0); say("%d", set == s); R(epoll_wait(set, &event, 1, 5)); R(read(set, &event, 1)));
}

static void numbers_come_back_as_unix_sockets(void)
{
    int ends[2];

    FAR(R(send(s, "stale", 5, 0)));
    NEAR(R(close(s)); socketpair(AF_UNIX, SOCK_STREAM, 0, ends); say("%d", ends[0] == s); R(send(ends[1], "unix", 4, 0));
         GET(ends[0], 8, 0));
}

static void numbers_come_back_as_connections(void)
{
    int other;

    for (int round = 0; round < 4; round++) {
        FAR(R(send(s, "stale", 5, 0)));
        BOTH(R(close(s)); other = s);
        s = join();
        BOTH(if (is_near) say("%d", s == other); R(send(s, "fresh", 5, 0)); ALL(s, 5));
    }
}

static void numbers_come_back_after_a_raw_close(void)
{
    int ends[2];
    char bytes[8];

    FAR(R(send(s, "stale", 5, 0)));
    /* A close that no library sees. */
    NEAR(R(unseen_call(SYS_close, s, 0, 0)); pipe(ends); say("%d", ends[0] == s); R(write(ends[1], "pipe", 4));
         R(read(ends[0], bytes, 8)));
}

static void streams_of_stdio(void)
{
    FILE *stream;
    char line[64];

    if (is_near) {
        stream = fdopen(s, "r+");
        for (int round = 0; round < 5; round++) {
            R(fprintf(stream, "line %d\n", round));
            R(fflush(stream));
            say("%s", fgets(line, sizeof line, stream) ? line : "nothing");
        }
        R(fclose(stream));
    } else {
        for (int round = 0; round < 5; round++) {
            ALL(s, 7);
            R(send(s, "answer\n", 7, 0));
        }
        GET(s, 1, 0);
    }
    step();
}

static void streams_of_stdio_after_bytes(void)
{
    FILE *stream;
    char line[64];

    FAR(R(send(s, "one\ntwo\nthree\n", 14, 0)));
    if (is_near) {
        GET(s, 4, 0);
        stream = fdopen(s, "r");
        say("%s", fgets(line, sizeof line, stream) ? line : "nothing");
        say("%s", fgets(line, sizeof line, stream) ? line : "nothing");
        release();
        say("%s", fgets(line, sizeof line, stream) ? line : "nothing");
        R(feof(stream) != 0);
        R(fclose(stream));
    } else {
        serve_until_released();
        R(shutdown(s, SHUT_WR));
    }
    step();
}

static void two_streams_on_copies(void)
{
    FILE *in, *out;
    char line[64];

    if (is_near) {
        in = fdopen(s, "r");
        out = fdopen(dup(s), "w");
        setvbuf(out, NULL, _IOLBF, 0);
        for (int round = 0; round < 3; round++) {
            fprintf(out, "ping %d\n", round);
            say("%s", fgets(line, sizeof line, in) ? line : "nothing");
        }
        R(fclose(out));
        R(fclose(in));
    } else {
        for (int round = 0; round < 3; round++) {
            ALL(s, 7);
            R(send(s, "pong\n", 5, 0));
        }
        GET(s, 1, 0);
    }
    step();
}

static void printed_by_number(void)
{
    if (is_near) {
        R(dprintf(s, "%s %d\n", "number", 7));
        release();
    } else {
        serve_until_released();
        ALL(s, 9);
    }
    step();
}

static void nonblocking_by_every_way(void)
{
    int on = 1, off = 0, other;

    FAR(R(fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK)); GET(s, 1, 0); R(fcntl(s, F_SETFL, fcntl(s, F_GETFL) & ~O_NONBLOCK));
        R(ioctl(s, FIONBIO, &on)); R(fcntl(s, F_GETFL) & O_NONBLOCK); GET(s, 1, 0); R(ioctl(s, FIONBIO, &off));
        R(fcntl(s, F_GETFL) & O_NONBLOCK));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0); other = open("/dev/null", O_RDONLY); R(ioctl(other, FIONREAD, &off)); R(ioctl(s, 0xdead, 0)));
}

static void flags_of_descriptors(void)
{
    BOTH(R(fcntl(s, F_GETFD)); R(fcntl(s, F_SETFD, FD_CLOEXEC)); R(fcntl(s, F_GETFD)); R(fcntl(dup(s), F_GETFD));
         R(fcntl(s, F_GETFL)); R(fcntl(s, F_SETFL, O_APPEND)); R(fcntl(s, F_GETFL)); R(fcntl(s, F_GETOWN));
         R(fcntl(s, F_GETLK, NULL)); R(fcntl(s, 4242)));
}

static void what_a_socket_is(void)
{
    struct stat state;
    char byte;

    BOTH(R(fstat(s, &state)); R(S_ISSOCK(state.st_mode)); R(lseek(s, 0, SEEK_CUR)); R(pread(s, &byte, 1, 0));
         R(pwrite(s, "x", 1, 0)); R(ftruncate(s, 0)); R(fsync(s)); R(isatty(s)); R(fchmod(s, 0600)));
}

static void bad_descriptors(void)
{
    char byte;

    BOTH(R(send(-1, "x", 1, 0)); R(recv(-1, &byte, 1, 0)); R(read(777, &byte, 1)); R(write(777, "x", 1)); R(close(-1)); R(close(777));
         R(shutdown(777, SHUT_WR)); R(dup(777)); R(fcntl(777, F_GETFL)); R(recv(0, &byte, 1, 0)); R(send(1, "x", 1, 0));
         R(getsockopt(777, SOL_SOCKET, SO_ERROR, &byte, &(socklen_t){1})); R(accept(777, NULL, NULL)); R(dup2(777, 778)));
}

static void descriptors_are_handed_out_from_below(void)
{
    int first = open("/dev/null", O_RDONLY), second;

    /* Nothing of anybody else's stands between the numbers that a program gets. */
    BOTH(say("%d", first - s > 0 && first - s < 3); second = dup(first); R(second - first));
    BOTH(R(close(first)); R(join() == first));
    BOTH(R(open("/dev/null", O_RDONLY) - second));
}

static void no_descriptors_left(void)
{
    int fds[2000], count = 0, byte;
    struct rlimit limit = {1000, 1000};

    FAR(R(send(s, "x", 1, 0)));
    NEAR(setrlimit(RLIMIT_NOFILE, &limit); while (count < 2000 && (fds[count] = dup(0)) >= 0) count++; R(dup(s)); R(socket(AF_INET, SOCK_STREAM, 0));
         R(recv(s, &byte, 1, 0)); POLL(s, POLLIN | POLLOUT, 0); R(send(s, "y", 1, 0));
         while (count > 0) close(fds[--count]));
    FAR(GET(s, 1, 0));
}

MAIN(JOINED(copies), BARE(copied_before_connecting), JOINED(copies_share_their_flags), JOINED(copy_onto_a_socket_closes_it),
     JOINED(copy_onto_a_socket_with_a_reader), JOINED(close_with_a_reader),
     JOINED(copy_onto_a_socket_with_a_reader_that_gets_its_byte), JOINED(range_closed), JOINED(range_closed_by_number),
     JOINED(range_marked_for_exec), JOINED(all_closed_from_three), JOINED(all_closed_one_by_one),
     JOINED(numbers_come_back_as_files), JOINED(numbers_come_back_as_pipes), JOINED(numbers_come_back_as_sets),
     JOINED(numbers_come_back_as_unix_sockets), JOINED(numbers_come_back_as_connections),
     JOINED(numbers_come_back_after_a_raw_close), JOINED(streams_of_stdio), JOINED(streams_of_stdio_after_bytes),
     JOINED(two_streams_on_copies), JOINED(printed_by_number), JOINED(nonblocking_by_every_way), JOINED(flags_of_descriptors),
     JOINED(what_a_socket_is), JOINED(bad_descriptors), JOINED(descriptors_are_handed_out_from_below),
     JOINED(no_descriptors_left))
