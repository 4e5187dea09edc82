/* `errors PLUGIN`: says what `dlerror` tells of libraries in scopes of symbols of their own, also after calls that have
 * nothing to do with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { DEEP = RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND };

static void tell(const char *when, const void *found)
{
    const char *error = dlerror();

    printf("%s: %s, %s\n", when, found ? "there" : "missing", error ? error : "no error");
}

/* Each fails or does nothing; most are the first of their kind. */
static void call_others(void)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct mmsghdr message = {0};
    struct epoll_event event = {0};
    int set = epoll_create1(0);

    epoll_ctl(set, EPOLL_CTL_DEL, 0, &event);
    epoll_wait(set, &event, 1, 0);
    close(set);
    if (read(-1, &byte, 1) + readv(-1, &part, 1) + writev(-1, &part, 1) + sendfile(-1, -1, NULL, 1) != -4
        || recvmmsg(-1, &message, 1, 0, NULL) + sendmmsg(-1, &message, 1, 0) + accept4(-1, NULL, NULL, 0) != -3)
        abort();
    fclose(fopen("/dev/null", "r"));
    close(eventfd(0, 0));
    poll(NULL, 0, 0);
}

int main(int count, char **arguments)
{
    const char *path = arguments[count - 1];
    void *plugin, *again;

    dlopen("/absent/plugin.so", DEEP);
    call_others();
    tell("absent", NULL);
    dlopen("absent.so", DEEP);
    tell("absent name", NULL);
    dlopen("/dev/null", DEEP);
    tell("no library", NULL);
    dlopen("/absent/plugin.so", DEEP);
    plugin = dlopen(path, DEEP);
    tell("plug-in", plugin);
    tell("function", dlsym(plugin, "echo"));
    tell("no function", dlsym(plugin, "nothing"));
    dlsym(plugin, "nothing");
    again = dlopen(path, DEEP);
    tell("again", again);
    dlsym(plugin, "nothing");
    call_others();
    tell("no function", NULL);
    again = dlopen(path, DEEP | RTLD_NOLOAD);
    tell("loaded", again);
    return dlclose(plugin);
}
