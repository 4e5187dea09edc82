/* Descriptors that live otherwise: standard ones, ones that are replaced unseen, listeners; what happens before and
 * after main. */
#include "sets.h"
#include <dirent.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* A connection gets the lowest number even where that is 0; what the library has of its own is out of the way. */
static void standard_numbers_closed(void)
{
    int fd;
    struct stat state;

    close(0);
    close(1);
    close(2);
    fd = join();
    say("number %d", fd);
    for (int number = 0; number < 3; number++)
        if (fstat(number, &state) == 0)
            say("%d: socket %d", number, S_ISSOCK(state.st_mode) != 0);
    BOTH(R(write(fd, "word", 4)); ALL(fd, 4));
    NEAR(R(close(fd)); R(open("/dev/null", O_RDONLY)); R(open("/dev/null", O_RDONLY)));
    FAR(GET(fd, 1, 0));
}

/* As a server does that was made for inetd: its standard streams are the connection. */
static void streams_of_standard_numbers(void)
{
    char line[64];

    if (is_near) {
        R(dup2(s, 0));
        R(dup2(s, 1));
        for (int round = 0; round < 3; round++) {
            say("%s", fgets(line, sizeof line, stdin) ? line : "nothing");
            printf("answer %d\n", round);
            R(fflush(stdout));
        }
        R(close(s));
        R(fclose(stdin));
        R(fclose(stdout));
    } else {
        for (int round = 0; round < 3; round++) {
            send_all(s, "request\n", 8);
            ALL(s, 9);
        }
        GET(s, 1, 0);
    }
    step();
}

/* The same with calls instead of streams. */
static void calls_on_standard_numbers(void)
{
    char bytes[8];

    if (is_near) {
        for (int number = 0; number < 3; number++)
            R(dup2(s, number));
        R(close(s));
        for (int round = 0; round < 3; round++) {
            R(read(0, bytes, 7));
            R(write(round ? 1 : 2, "answer", 6));
        }
        for (int number = 0; number < 3; number++)
            R(close(number));
    } else {
        for (int round = 0; round < 3; round++) {
            send_all(s, "request", 7);
            ALL(s, 6);
        }
        GET(s, 1, 0);
    }
    step();
}

/* Closed where no library sees it, and taken by calls within the C library, which none sees either. */
static void numbers_taken_within_the_library(void)
{
    char bytes[8] = "";
    FILE *stream;
    DIR *directory;

    for (int how = 0; how < 2; how++) {
        int fd = join();
        FAR(R(send(fd, "stale", 5, 0)));
        if (is_near) {
            unseen_call(SYS_close, fd, 0, 0);
            if (how == 0) {
                stream = fopen("/proc/self/comm", "r");
                say("same number %d", fileno(stream) == fd);
                R(read(fd, bytes, 2));
                say("%.2s", bytes);
                R(send(fd, "x", 1, MSG_NOSIGNAL));
                POLL(fd, POLLIN, 0);
                R(fclose(stream));
            } else {
                directory = opendir("/proc/self");
                say("same number %d", dirfd(directory) == fd);
                R(read(fd, bytes, 2));
                R(recv(fd, bytes, 2, MSG_DONTWAIT));
                say("%d", readdir(directory) != NULL);
                R(closedir(directory));
            }
        }
        step();
        FAR(R(close(fd)));
    }
}

/* The connection gets the number of another that went unseen. */
static void numbers_taken_by_connections_unseen(void)
{
    for (int round = 0; round < 3; round++) {
        int fd = join(), other;
        FAR(R(send(fd, "stale", 5, 0)));
        NEAR(unseen_call(SYS_close, fd, 0, 0));
        FAR(R(close(fd)));
        other = join();
        NEAR(say("same number %d", other == fd));
        BOTH(R(send(other, "fresh", 5, 0)); ALL(other, 5); R(close(other)));
    }
}

static void copies_of_a_listener(void)
{
    int port, listening, copy, fd = -1;

    for (int how = 0; how < 2; how++) {
        if (is_near)
            fd = dial(AF_INET, ask());
        else {
            listening = listener(AF_INET, &port);
            copy = how ? fcntl(listening, F_DUPFD_CLOEXEC, 300) : dup(listening);
            R(close(listening));
            tell(port);
            fd = accept(copy, NULL, NULL);
            R(close(copy));
        }
        talk(fd);
    }
}

static void listening_without_a_name(void)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int fd;

    if (is_near)
        fd = dial(AF_INET, ask());
    else {
        int listening = socket(AF_INET, SOCK_STREAM, 0);
        R(listen(listening, 1));
        R(getsockname(listening, (struct sockaddr *)&address, &length));
        tell(ntohs(address.sin_port));
        fd = accept(listening, NULL, NULL);
        R(bind(listening, (struct sockaddr *)&address, length));
    }
    talk(fd);
}

static void *poll_for_a_while(void *fd)
{
    struct pollfd wait = {*(int *)fd, POLLIN, 0};
    long ready = poll(&wait, 1, 150);

    return (void *)(ready << 16 | wait.revents);
}

/* The kernel lets a wait go on whose descriptor is closed meanwhile. */
static void closed_under_a_poll(void)
{
    pthread_t thread;
    void *result;

    if (is_near) {
        thread = in_thread(poll_for_a_while, &s);
        sleep_ms(100);
        R(close(s));
        pthread_join(thread, &result);
        say("%lx", (long)result);
    } else
        GET(s, 1, 0);
    step();
}

static int set;

static void *wait_in_a_set(void *unused)
{
    struct epoll_event event;

    (void)unused;
    return (void *)(long)epoll_wait(set, &event, 1, 150);
}

static void closed_under_a_set(void)
{
    pthread_t thread;
    void *result;

    if (is_near) {
        set = epoll_create1(0);
        R(watch(set, s, EPOLLIN));
        thread = in_thread(wait_in_a_set, NULL);
        sleep_ms(40);
        R(close(s));
        pthread_join(thread, &result);
        say("%ld", (long)result);
    } else
        GET(s, 1, 0);
    step();
}

/* A set that has been closed wakes nobody, and its number may be another's. */
static void set_closed_before_its_members(void)
{
    int first = epoll_create1(0), second;

    FAR(R(watch(first, s, EPOLLIN)); R(close(first)); second = epoll_create1(0); R(second == first); once(second, 5);
        R(watch(second, s, EPOLLIN | EPOLLET)));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(once(second, 1000); GET(s, 1, 0); once(second, 5));
}

static int early = -1, early_port = -1;

/* Before main, and perhaps before the library's own beginning. */
__attribute__((constructor)) static void before_main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;

    early = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(early, (struct sockaddr *)&address, length) == 0 && listen(early, 4) == 0 &&
        getsockname(early, (struct sockaddr *)&address, &length) == 0)
        early_port = ntohs(address.sin_port);
}

static void sockets_made_before_main(void)
{
    int fd;

    if (is_near)
        fd = dial(AF_INET, ask());
    else {
        tell(early_port);
        fd = accept(early, NULL, NULL);
    }
    talk(fd);
}

static void send_at_exit(void)
{
    send(s, "at exit", 7, MSG_NOSIGNAL);
}

static void bytes_sent_by_exit_handlers(void)
{
    if (is_near) {
        ALL(s, 7);
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            atexit(send_at_exit);
            exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

static pthread_key_t key;

static void send_at_the_end(void *value)
{
    char byte;

    (void)value;
    send(s, "last", 4, 0);
    recv(s, &byte, 1, 0);
}

static void *end_with_a_key(void *unused)
{
    pthread_setspecific(key, &key);
    return unused;
}

/* The destructors of a thread's own data run in any order, ours among them. */
static void bytes_sent_by_ending_threads(void)
{
    if (is_near)
        for (int round = 0; round < 5; round++) {
            ALL(s, 4);
            sleep_ms(5);
            R(send(s, "x", 1, 0));
        }
    else {
        pthread_key_create(&key, send_at_the_end);
        for (int round = 0; round < 5; round++)
            pthread_join(in_thread(end_with_a_key, NULL), NULL);
    }
    step();
}

MAIN(BARE(standard_numbers_closed), JOINED(streams_of_standard_numbers), JOINED(calls_on_standard_numbers),
     BARE(numbers_taken_within_the_library), BARE(numbers_taken_by_connections_unseen),
     BARE(copies_of_a_listener), BARE(listening_without_a_name), JOINED(closed_under_a_poll), JOINED(closed_under_a_set),
     JOINED(set_closed_before_its_members), BARE(sockets_made_before_main), JOINED(bytes_sent_by_exit_handlers),
     JOINED(bytes_sent_by_ending_threads))
