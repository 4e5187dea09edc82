/* Answers every second byte. Its set is the C library's, but waited in by system calls that no library sees; level-triggered, and never
   reading until there is nothing. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

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
    int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(EPOLL_CLOEXEC), fd;
    char byte;

    if (count < 2)
        return 2;
    at.sin_port = htons(atoi(arguments[1]));
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1))
        return 1;
    fd = accept(listener, NULL, NULL);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        return 1;
    for (int round = 0;; round++) {
        if (wait_unseen(set, &event) != 1 || event.data.u64 != 7)
            return 1;
        if (recv(fd, &byte, 1, 0) != 1)
            return 0;
        if (round % 2)
            send(fd, &byte, 1, 0);
    }
}
