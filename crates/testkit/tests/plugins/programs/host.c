/*
 * `host PORT PLUGIN first|accepted|later [several|ends]`: echoes by a plug-in that it loads into a scope of symbols of
 * its own, on one connection, then stays, or ends. It loads it first of all, or when it has accepted the connection, or
 * later, when it has echoed half of the messages itself; with several threads if so asked. `host PORT [stays]`: asks,
 * and keeps the connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MESSAGE = 1001, MESSAGES = 1000, OWN = 500 };

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static void *stay(void *nothing)
{
    pause();
    return nothing;
}

static void *load(const char *path)
{
    void *plugin = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);

    if (!plugin)
        fprintf(stderr, "%s\n", dlerror());
    return plugin;
}

static bool echo_here(int fd)
{
    char bytes[MESSAGE];

    for (int round = 0; round < OWN; round++)
        if (recv(fd, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes || send(fd, bytes, sizeof bytes, 0) != sizeof bytes)
            return false;
    return true;
}

static int serve(const struct sockaddr_in *address, const char *path, const char *when, const char *how)
{
    int listening = socket(AF_INET, SOCK_STREAM, 0), fd;
    bool later = !strcmp(when, "later");
    void *plugin = NULL;
    long (*echo)(int);
    pthread_t other;

    if (!strcmp(how, "several") && pthread_create(&other, NULL, stay, NULL))
        return fail("thread");
    if (!strcmp(when, "first") && !(plugin = load(path)))
        return 1;
    if (bind(listening, (const struct sockaddr *)address, sizeof *address) || listen(listening, 1))
        return fail("listen");
    if ((fd = accept(listening, NULL, NULL)) < 0)
        return fail("accept");
    if (later && !echo_here(fd))
        return fail("echo here");
    if (!plugin && !(plugin = load(path)))
        return 1;
    if (!(echo = (long (*)(int))dlsym(plugin, "echo")))
        return fail("dlsym");
    if (echo(fd) != (later ? MESSAGES - OWN : MESSAGES) * MESSAGE || dlclose(plugin))
        return fail("echo");
    return strcmp(how, "ends") ? pause() : 0;
}

static int ask(const struct sockaddr_in *address, bool stays)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char sent[MESSAGE], back[sizeof sent];

    if (connect(fd, (const struct sockaddr *)address, sizeof *address))
        return fail("connect");
    for (int round = 0; round < MESSAGES; round++) {
        memset(sent, 'a' + round % 26, sizeof sent);
        if (send(fd, sent, sizeof sent, 0) != sizeof sent || recv(fd, back, sizeof back, MSG_WAITALL) != sizeof back)
            return fail("echo");
        if (memcmp(sent, back, sizeof sent))
            return 2;
    }
    if (stays) {
        puts("done");
        return fflush(stdout) || pause();
    }
    return shutdown(fd, SHUT_WR) || recv(fd, back, 1, 0) != 0;
}

int main(int count, char **arguments)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((unsigned short)atoi(arguments[1])),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };

    if (count > 3)
        return serve(&address, arguments[2], arguments[3], count > 4 ? arguments[4] : "");
    return ask(&address, count > 2);
}
