/* Answers every second byte with itself: `unseen_waits PORT [greets] [edges] [twice] [late]`. Its set is the C
 * library's, but waited in by system calls that no library sees, and it never reads until there is nothing. `greets`:
 * it sends a byte first, before it registers the connection; `twice`: it registers it in a second set, and waits in
 * that; `late`: only after some rounds without a set. Each byte must be the next one; the end is answered by how many
 * came. */
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUNDS_WITHOUT = 100 };

static int fd, received, answered;

/* The call's number beside the call, as libraries of system calls have it. */
__attribute__((noinline)) static long wait_unseen(int set, struct epoll_event *event)
{
    register long forever __asm__("r10") = -1;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_epoll_wait), "D"((long)set), "S"(event), "d"(1L), "r"(forever)
                     : "rcx", "r11", "memory");
    return result;
}

static void fail(const char *what)
{
    fprintf(stderr, "%s after %d bytes and %d answers\n", what, received, answered);
    exit(1);
}

static unsigned char receive(void)
{
    unsigned char byte, next = (unsigned char)(received * 31 + received / 256);
    ssize_t got = recv(fd, &byte, 1, 0);

    if (got == 0) {
        printf("%d received, %d answered\n", received, answered);
        exit(0);
    }
    if (got != 1 || byte != next)
        fail("no byte, or another,");
    received++;
    return byte;
}

static void answer(unsigned char byte)
{
    if (send(fd, &byte, 1, 0) != 1)
        fail("not sent");
    answered++;
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(EPOLL_CLOEXEC), first, at_once = 1;
    bool greets = false, twice = false, late = false;
    unsigned char byte = 0;

    if (count < 2)
        return 2;
    for (int place = 2; place < count; place++) {
        greets |= !strcmp(arguments[place], "greets");
        twice |= !strcmp(arguments[place], "twice");
        late |= !strcmp(arguments[place], "late");
        if (!strcmp(arguments[place], "edges")) {
            event.events |= EPOLLET;
            at_once = 2;
        }
    }
    at.sin_port = htons(atoi(arguments[1]));
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1))
        return 1;
    fd = accept(listener, NULL, NULL);
    first = late ? ROUNDS_WITHOUT : 0;
    for (int round = 0; round < first; round++) {
        byte = receive();
        if (round % 2)
            answer(byte);
    }
    if (greets && send(fd, "g", 1, 0) != 1)
        return 1;
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        return 1;
    if (twice) {
        set = epoll_create1(EPOLL_CLOEXEC);
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
            return 1;
    }
    for (int round = first;; round += at_once) {
        if (wait_unseen(set, &event) != 1 || event.data.u64 != 7)
            fail("no event");
        for (int read = 0; read < at_once; read++)
            byte = receive();
        if (at_once == 2 || round % 2)
            answer(byte);
    }
}
