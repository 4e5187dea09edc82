/* Another library, for whose program time stands still. */
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    *time = (struct timespec){.tv_sec = 1600000000};
    return 0;
}
