/* A plug-in that echoes: each call finds its function in another way. */
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Calls of its own function. */
static long own_sends;

#ifdef OWN_SEND
enum { HAS_OWN = 1 };

/* Stays the plug-in's own, whatever it finds of the others. */
ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    own_sends++;
    return flags ? -1 : write(fd, bytes, count);
}
#else
enum { HAS_OWN = 0 };
#endif

#ifdef KEEPS_ADDRESS
/* By an address that a constructor has kept. */
static ssize_t (*volatile receive)(int, void *, size_t, int);

__attribute__((constructor)) static void keep(void)
{
    receive = recv;
}
#else
/* By an address in its data. */
ssize_t (*const receive)(int, void *, size_t, int) = recv;
#endif

/* Echoes until the stream ends; answers how many bytes, or -1. */
long echo(int fd)
{
    struct pollfd wait = {fd, POLLIN, 0};
    char bytes[4096];
    long echoed = 0;
    ssize_t got;

    while (poll(&wait, 1, 10000) == 1 && (got = receive(fd, bytes, sizeof bytes, MSG_DONTWAIT)) >= 0) {
        if (got == 0)
            return close(fd) == 0 && (own_sends > 0) == HAS_OWN ? echoed : -1;
        if ((echoed % 2 ? write(fd, bytes, got) : send(fd, bytes, got, 0)) != got)
            return -1;
        echoed += got;
    }
    return -1;
}
