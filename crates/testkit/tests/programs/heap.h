/* Counts what is asked of the heap, while it counts. For programs of one file; where they define WHEN_ASKED, that comes
   before each answer. */
#ifndef HEAP_H
#define HEAP_H

#include <errno.h>
#include <stddef.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *place, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *place);
static int counts, asked;

static void note_request(void)
{
    asked += counts;
#ifdef WHEN_ASKED
    WHEN_ASKED;
#endif
}

/* Whatever takes the heap's lock, to give memory back too. Mappings are the kernel's. */
void *malloc(size_t size)
{
    note_request();
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    note_request();
    return __libc_calloc(count, size);
}

void *realloc(void *place, size_t size)
{
    note_request();
    return __libc_realloc(place, size);
}

void *memalign(size_t alignment, size_t size)
{
    note_request();
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **place, size_t alignment, size_t size)
{
    *place = memalign(alignment, size);
    return *place ? 0 : ENOMEM;
}

void free(void *place)
{
    note_request();
    __libc_free(place);
}

#endif
