/* Calls that tell how a connection is. */
#include "calls.h"
#include <linux/sockios.h>
#include <sys/select.h>

/* How long a wait is that finds nothing. */
enum { PATIENCE_MS = 2 };

void call_poll(int end)
{
    static const short kinds[] = {POLLIN, POLLOUT, POLLRDHUP, POLLPRI, POLLRDNORM, POLLWRNORM};
    int fd = any_descriptor(end), ready, ms = chance(20) ? PATIENCE_MS : 0;
    struct pollfd entries[3];
    short events = 0;

    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        events |= chance(50) ? kinds[kind] : 0;
    entries[0] = (struct pollfd){fd, events, 0};
    entries[1] = (struct pollfd){ends[!end].fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    entries[2] = (struct pollfd){fd, events & (POLLRDHUP | POLLIN), 0};
    say("poll for %x%s", events, ms ? " patiently" : "");
    ready = poll(entries, 3, ms);
    say_result(ready);
    say(" %x %x %x", entries[0].revents, entries[1].revents, entries[2].revents);
}

void call_select(int end)
{
    struct timeval time = {0, chance(20) ? PATIENCE_MS * 1000 : 0};
    unsigned asked = 1 + below(7);
    fd_set sets[3];
    int ready, last = 0;

    for (int kind = 0; kind < 3; kind++) {
        FD_ZERO(&sets[kind]);
        for (int which = 0; which < 2; which++)
            if (ends[which].fd >= 0 && (asked >> kind & 1)) {
                FD_SET(ends[which].fd, &sets[kind]);
                last = ends[which].fd > last ? ends[which].fd : last;
            }
    }
    say("select for %x%s", asked, time.tv_usec ? " patiently" : "");
    ready = select(last + 1, &sets[0], &sets[1], &sets[2], &time);
    say_result(ready);
    for (int which = 0; which < 2; which++)
        if (ends[which].fd >= 0)
            say(" %c %d%d%d", 'a' + which, FD_ISSET(ends[which].fd, &sets[0]) != 0,
                FD_ISSET(ends[which].fd, &sets[1]) != 0, FD_ISSET(ends[which].fd, &sets[2]) != 0);
    (void)end;
}

void call_count(int end)
{
    int count = -1;

    say("FIONREAD");
    say_result(ioctl(any_descriptor(end), FIONREAD, &count));
    say(" %d", count);
}

void call_error(int end)
{
    int error = -1;
    socklen_t length = sizeof error;

    say("SO_ERROR");
    say_result(getsockopt(any_descriptor(end), SOL_SOCKET, SO_ERROR, &error, &length));
    say(" %s", error > 0 ? strerrorname_np(error) : error == 0 ? "none" : "unknown");
}

void call_at_mark(int end)
{
    int at = -1;

    say("SIOCATMARK");
    say_result(ioctl(any_descriptor(end), SIOCATMARK, &at));
    say(" %d", at);
}
