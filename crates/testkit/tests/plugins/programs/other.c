/* Another library that stands before the C library's `send`: says with its end how many bytes were sent through it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/socket.h>

static long sent;

ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    ssize_t (*next)(int, const void *, size_t, int) =
        (ssize_t (*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    ssize_t result = next(fd, bytes, count, flags);

    if (result > 0)
        sent += result;
    return result;
}

__attribute__((destructor)) static void end(void)
{
    printf("sent by others: %ld\n", sent);
}
