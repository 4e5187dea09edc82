// A program that has functions of its own under names of the C library's and says so where somebody calls one. Both
// ends of a connection are its own.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static void called(const char *name) {
    fprintf(stderr, "%s is the program's own\n", name);
    abort();
}

#define OWN(name)                                                                                                      \
    void own_##name(void) __asm__(#name);                                                                              \
    void own_##name(void) { called(#name); }

OWN(accept4)
OWN(close)
OWN(dup)
OWN(dup2)
OWN(epoll_create1)
OWN(epoll_ctl)
OWN(epoll_wait)
OWN(fcntl)
OWN(getsockopt)
OWN(ioctl)
OWN(pipe2)
OWN(poll)
OWN(ppoll)
OWN(prctl)
OWN(read)
OWN(readv)
OWN(recvfrom)
OWN(recvmsg)
OWN(select)
OWN(sendmsg)
OWN(sendto)
OWN(setsockopt)
OWN(socketpair)
OWN(splice)
OWN(write)
OWN(writev)

static void check(int is_true, const char *what) {
    if (!is_true) {
        perror(what);
        exit(1);
    }
}

static struct sockaddr_in address = {.sin_family = AF_INET};

static void *ask(void *ignored) {
    int s = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(s, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    char text[5];
    for (int n = 0; n < 20000; n++) {
        check(send(s, "hello", 5, 0) == 5, "send");
        check(recv(s, text, 5, MSG_WAITALL) == 5, "recv");
    }
    shutdown(s, SHUT_WR);
    check(recv(s, text, 5, 0) == 0, "recv at the end");
    return ignored;
}

int main(int count, char **arguments) {
    check(count == 2, "usage: names PORT");
    address.sin_port = htons(atoi(arguments[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    check(listen(listener, 1) == 0, "listen");
    pthread_t asking;
    check(pthread_create(&asking, NULL, ask, NULL) == 0, "pthread_create");
    int s = accept(listener, NULL, NULL);
    check(s >= 0, "accept");
    long sum = 0;
    char text[64];
    for (ssize_t got; (got = recv(s, text, sizeof text, 0)) > 0; sum += got)
        check(send(s, text, got, 0) == got, "answer");
    shutdown(s, SHUT_WR);
    pthread_join(asking, NULL);
    printf("%ld\n", sum);
    return 0;
}
