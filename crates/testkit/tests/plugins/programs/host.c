/* `host PORT PLUGIN`: echoes by a plug-in that it loads into a scope of symbols of its own, on one connection, then stays; `host PORT`: asks. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int serve(const struct sockaddr_in *address, const char *path)
{
    long (*echo)(int);
    int listening = socket(AF_INET, SOCK_STREAM, 0), fd;

    if (bind(listening, (const struct sockaddr *)address, sizeof *address) || listen(listening, 1))
        return fail("listen");
    if ((fd = accept(listening, NULL, NULL)) < 0)
        return fail("accept");
    void *plugin = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!plugin || !(echo = (long (*)(int))dlsym(plugin, "echo"))) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (echo(fd) != 300300 || dlclose(plugin))
        return fail("echo");
    return pause();
}

static int ask(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char sent[1001], back[sizeof sent];

    if (connect(fd, (const struct sockaddr *)address, sizeof *address))
        return fail("connect");
    for (int round = 0; round < 300; round++) {
        memset(sent, 'a' + round % 26, sizeof sent);
        if (send(fd, sent, sizeof sent, 0) != sizeof sent || recv(fd, back, sizeof back, MSG_WAITALL) != sizeof back)
            return fail("echo");
        if (memcmp(sent, back, sizeof sent))
            return 2;
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

    return count > 2 ? serve(&address, arguments[2]) : ask(&address);
}
