/* A thread ends itself amidst a call on a connection while another unloads a library, and with it holds the dynamic
 * linker, until it has ended. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static pthread_t receiver;

static void leave(int number)
{
    (void)number;
    pthread_exit(NULL);
}

static void *leave_at_once(void *unused)
{
    pthread_exit(unused);
}

static void *receive(void *fd)
{
    char byte;

    return (void *)recv(*(int *)fd, &byte, 1, 0);
}

void end_and_join(void)
{
    pthread_kill(receiver, SIGUSR1);
    pthread_join(receiver, NULL);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int door = socket(AF_INET, SOCK_STREAM, 0), near = socket(AF_INET, SOCK_STREAM, 0), far;
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;

    alarm(5);
    signal(SIGUSR1, leave);
    if (!library || bind(door, (void *)&address, length) || listen(door, 1) || getsockname(door, (void *)&address, &length) ||
        connect(near, (void *)&address, length) || (far = accept(door, NULL, NULL)) < 0)
        return 1;
    /* With the first the C library finds what unwinds the stack. */
    pthread_create(&receiver, NULL, leave_at_once, NULL);
    pthread_join(receiver, NULL);
    pthread_create(&receiver, NULL, receive, &far);
    usleep(100000);
    dlclose(library);
    puts("left");
    return 0;
}
