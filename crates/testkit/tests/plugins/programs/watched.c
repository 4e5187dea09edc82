/* `host.c` in which nobody may ask for memory while the loader shows its objects: its lock is held then, and an allocator has one of its own. */
#define _GNU_SOURCE
#include <link.h>
#include <stdlib.h>
#include "host.c"

typedef int show(struct dl_phdr_info *, size_t, void *);

extern void *__libc_malloc(size_t size);

static show *shown;
static bool shows;

static int watch(struct dl_phdr_info *object, size_t size, void *data)
{
    shows = true;
    int result = shown(object, size, data);
    shows = false;
    return result;
}

int dl_iterate_phdr(show *callback, void *data)
{
    int (*real)(show *, void *) = (int (*)(show *, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");

    shown = callback;
    return real(watch, data);
}

void *malloc(size_t size)
{
    if (shows)
        abort();
    return __libc_malloc(size);
}
