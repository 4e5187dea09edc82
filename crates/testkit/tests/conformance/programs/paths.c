/* The counters of a process: which path a connection is on, and the wish to move it. `layout.h` is written by the
 * harness. */
#include "internal.h"
#include "layout.h"
#include <dirent.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Maps the counters of a process, given its directory of descriptors; NULL if it has none. */
static volatile uint64_t *counters(const char *directory)
{
    DIR *listing = opendir(directory);
    struct dirent *entry;
    void *region = NULL;

    while (listing && region == NULL && (entry = readdir(listing))) {
        char path[512], target[256];
        ssize_t length;
        struct stat state;
        int fd;

        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        length = readlink(path, target, sizeof target - 1);
        if (length <= 0)
            continue;
        target[length] = 0;
        if (strncmp(target, "/memfd:" COUNTERS_NAME, sizeof "/memfd:" COUNTERS_NAME - 1))
            continue;
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        /* Not yet of its size while its process makes it. */
        if (fstat(fd, &state) == 0 && (size_t)state.st_size >= COUNTERS_WORDS * 8)
            region = mmap(NULL, COUNTERS_WORDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (region == MAP_FAILED)
            region = NULL;
    }
    if (listing)
        closedir(listing);
    return region;
}

static volatile uint64_t *slot(volatile uint64_t *region, uint64_t index)
{
    return region + FIRST_SLOT + index * SLOT_WORDS;
}

static bool is_fast(volatile uint64_t *of)
{
    uint64_t state = of[STATE_WORD];

    return of[CONNECTION_WORD] != 0 && (state >> 32 & 0xff) == PATH_SHM && (state >> 40 & 0xff) == PATH_SHM;
}

bool on_fast_path(int fd)
{
    volatile uint64_t *region = counters("/proc/self/fd");
    bool found = false;

    for (uint64_t index = 0; region && index < region[SLOTS_USED] && !found; index++) {
        found = is_fast(slot(region, index)) && (uint32_t)slot(region, index)[STATE_WORD] == (uint32_t)fd;
    }
    if (region)
        munmap((void *)region, COUNTERS_WORDS * 8);
    return found;
}

void steer(bool to_tcp)
{
    volatile uint64_t *region = counters("/proc/self/fd");

    for (uint64_t index = 0; region && index < region[SLOTS_USED]; index++)
        if (slot(region, index)[CONNECTION_WORD])
            slot(region, index)[WANTED_WORD] = to_tcp ? WANT_TCP : WANT_AUTO;
    if (region)
        munmap((void *)region, COUNTERS_WORDS * 8);
}

void storm(pid_t pid, int process, unsigned seed)
{
    static const uint64_t wishes[] = {WANT_TCP, WANT_SHM, WANT_SHM, WANT_AUTO};
    char directory[64];
    volatile uint64_t *region = NULL;
    unsigned long moves = 0, switches = 0;
    bool begun = false;

    snprintf(directory, sizeof directory, "/proc/%d/fd", pid);
    while (rest(process, (int)(rand_r(&seed) % 600))) {
        if (region == NULL)
            region = counters(directory);
        for (uint64_t index = 0; region && index < region[SLOTS_USED] && index < 64; index++) {
            /* Not before there is a fast path to move from. */
            begun |= is_fast(slot(region, index));
            if (!begun || slot(region, index)[CONNECTION_WORD] == 0)
                continue;
            if (slot(region, index)[SWITCHES_WORD] > switches)
                switches = slot(region, index)[SWITCHES_WORD];
            slot(region, index)[WANTED_WORD] = wishes[rand_r(&seed) % 4];
            moves++;
        }
    }
    say("#moves %lu switches %lu", moves, switches);
    if (region)
        munmap((void *)region, COUNTERS_WORDS * 8);
}
