/* Answers every second byte: `unseen_waits PORT [greets] [edges] [twice] [late]`. Its set is the C library's, but waited in by system calls that no library
   sees, and it never reads until there is nothing. `greets`: it sends a byte first, before it registers the connection; `twice`: it registers it in a second
   set, and waits in that; `late`: only after some rounds without a set. */
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUNDS_WITHOUT = 100 };

static long wait_unseen(int set, struct epoll_event *event)
{
    register long forever __asm__("r10") = -1;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_epoll_wait), "D"((long)set), "S"(event), "d"(1L), "r"(forever)
                     : "rcx", "r11", "memory");
    return result;
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(EPOLL_CLOEXEC), fd, first, at_once = 1;
    bool greets = false, twice = false, late = false;
    char byte = 'g';

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
    for (int round = 0; round < first; round++)
        if (recv(fd, &byte, 1, 0) != 1 || (round % 2 && send(fd, &byte, 1, 0) != 1))
            return 1;
    if (greets)
        send(fd, &byte, 1, 0);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        return 1;
    if (twice) {
        set = epoll_create1(EPOLL_CLOEXEC);
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
            return 1;
    }
    for (int round = first;; round += at_once) {
        if (wait_unseen(set, &event) != 1 || event.data.u64 != 7)
            return 1;
        for (int read = 0; read < at_once; read++)
            if (recv(fd, &byte, 1, 0) != 1)
                return 0;
        if (at_once == 2 || round % 2)
            send(fd, &byte, 1, 0);
    }
}
