/* A plug-in that echoes: each call finds its function in another way. */
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef OWN_SEND
/* Stays the plug-in's own, whatever it finds of the others. */
ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    return flags ? -1 : write(fd, bytes, count);
}
#endif

/* By an address in its data. */
ssize_t (*const receive)(int, void *, size_t, int) = recv;

/* Echoes until the stream ends; answers how many bytes, or -1. */
long echo(int fd)
{
    struct pollfd wait = {fd, POLLIN, 0};
    char bytes[4096];
    long echoed = 0;
    ssize_t got;

    while (poll(&wait, 1, 10000) == 1 && (got = receive(fd, bytes, sizeof bytes, MSG_DONTWAIT)) >= 0) {
        if (got == 0)
            return close(fd) == 0 ? echoed : -1;
        if ((echoed % 2 ? write(fd, bytes, got) : send(fd, bytes, got, 0)) != got)
            return -1;
        echoed += got;
    }
    return -1;
}
