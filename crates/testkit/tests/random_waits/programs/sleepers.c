/* Threads that sleep until they are woken, in each way there is. */
#include "world.h"
#include <sys/select.h>

enum kind { IN_SET, IN_POLL, IN_SELECT, IN_RECEIVE, IN_PEEK, IN_SEND };
static const char *const NAMES[] = {"epoll", "poll", "select", "receive", "peek", "send"};
enum { ROOM = 1 << 16, PIECES = 40 };
/* As much as one look at a `struct patience` uses up, in seconds. */
#define LATEST 0.2

/* A thread and its wait. What it is to do is written before `busy` is set, what came of it before `done` is. */
static struct sleeper {
    pthread_t thread;
    bool busy, done, ends;
    enum kind kind;
    uint64_t since;
    /* Whether what it waits for was there already. */
    bool at_once;
    double called;

    int set, descriptor, most;
    struct epoll_event events[EVENTS];
    struct pollfd entries[ENTRIES];
    struct end *end[ENTRIES];
    int count;
    size_t size;
    unsigned char *bytes;
    int flags;
    long result;
    int error;
} sleepers[SLEEPERS + 1];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
unsigned long woken, told;
double slowest;

static long wait_in_set(struct sleeper *own)
{
    static const struct timespec long_time = {1000, 0};
    switch (own->since % 3) {
    case 0:
        return epoll_wait(own->descriptor, own->events, own->most, -1);
    case 1:
        return epoll_pwait(own->descriptor, own->events, own->most, 1000000, NULL);
    default:
        return epoll_pwait2(own->descriptor, own->events, own->most, &long_time, NULL);
    }
}

static long wait_in_select(struct sleeper *own)
{
    struct timeval long_time = {1000, 0};
    fd_set in, out;
    int most = -1;
    long result;

    FD_ZERO(&in);
    FD_ZERO(&out);
    for (int index = 0; index < own->count; index++) {
        struct pollfd *entry = &own->entries[index];
        if (entry->events & POLLIN)
            FD_SET(entry->fd, &in);
        if (entry->events & POLLOUT)
            FD_SET(entry->fd, &out);
        most = entry->fd > most ? entry->fd : most;
    }
    result = select(most + 1, &in, &out, NULL, own->since % 2 ? &long_time : NULL);
    for (int index = 0; index < own->count; index++) {
        struct pollfd *entry = &own->entries[index];
        entry->revents = (short)((entry->events & POLLIN && FD_ISSET(entry->fd, &in) ? POLLIN : 0) |
                                 (entry->events & POLLOUT && FD_ISSET(entry->fd, &out) ? POLLOUT : 0));
    }
    return result;
}

static long wait_for(struct sleeper *own)
{
    switch (own->kind) {
    case IN_SET:
        return wait_in_set(own);
    case IN_POLL:
        return poll(own->entries, (nfds_t)own->count, own->since % 2 ? 1000000 : -1);
    case IN_SELECT:
        return wait_in_select(own);
    case IN_SEND:
        return send(own->entries[0].fd, own->bytes, own->size, MSG_NOSIGNAL);
    default:
        return recv(own->entries[0].fd, own->bytes, own->size, own->flags);
    }
}

static void *sleep_on(void *sleeper)
{
    struct sleeper *own = sleeper;

    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!own->busy || own->done)
            pthread_cond_wait(&changed, &mutex);
        pthread_mutex_unlock(&mutex);
        if (own->ends)
            return NULL;
        own->result = wait_for(own);
        own->error = errno;
        pthread_mutex_lock(&mutex);
        own->done = true;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
}

void make_sleepers(void)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    for (int index = 0; index <= SLEEPERS; index++) {
        sleepers[index].bytes = malloc(1 << 23);
        sleepers[index].thread = in_thread(sleep_on, &sleepers[index]);
    }
}

static bool is_due(const struct sleeper *sleeper)
{
    if (sleeper->kind == IN_SET)
        return set_is_due(sleeper->set);
    if (sleeper->kind == IN_RECEIVE || sleeper->kind == IN_PEEK) {
        const struct end *end = sleeper->end[0];
        return unread(end) >= (end->received_in_part ? sleeper->size : 1) || end->peer->shut;
    }
    for (int index = 0; index < sleeper->count; index++) {
        const struct end *end = sleeper->end[index];
        short events = sleeper->entries[index].events;
        if ((events & POLLIN && surely_readable(end)) || (events & POLLOUT && surely_roomy(end)) ||
            (events & POLLRDHUP && surely_ended(end)))
            return true;
    }
    return false;
}

static void go(struct sleeper *sleeper)
{
    pthread_mutex_lock(&mutex);
    sleeper->busy = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void fill_entries(struct sleeper *sleeper)
{
    sleeper->count = 1 + (int)below(ENTRIES);
    for (int index = 0; index < sleeper->count; index++) {
        struct end *end = any_near();
        short events = index == 0 || chance(70) ? POLLIN : 0;
        if (end->sent > end->got && chance(60))
            events |= POLLOUT;
        if (sleeper->kind == IN_POLL && chance(20))
            events |= POLLRDHUP;
        sleeper->end[index] = end;
        sleeper->entries[index] = (struct pollfd){any_descriptor(end), events, 0};
        /* For select it would be one. */
        for (int other = 0; sleeper->kind == IN_SELECT && other < index; other++)
            if (sleeper->entries[other].fd == sleeper->entries[index].fd)
                sleeper->count = index;
    }
}

void start_sleeper(void)
{
    struct sleeper *sleeper = &sleepers[below(SLEEPERS)];
    unsigned kind = below(100);

    if (sleeper->busy)
        return;
    sleeper->since = ++moment;
    sleeper->kind = kind < 50 ? IN_SET : kind < 65 ? IN_POLL : kind < 75 ? IN_SELECT : kind < 92 ? IN_RECEIVE : IN_PEEK;
    if (sleeper->kind == IN_SET) {
        sleeper->set = any_set();
        sleeper->descriptor = set_descriptor(sleeper->set);
        sleeper->most = chance(40) ? 1 : EVENTS;
        note("sleeper %d: set %d, at most %d", (int)(sleeper - sleepers), sleeper->set, sleeper->most);
    } else if (sleeper->kind == IN_POLL || sleeper->kind == IN_SELECT) {
        fill_entries(sleeper);
        note("sleeper %d: %s of %d", (int)(sleeper - sleepers), NAMES[sleeper->kind], sleeper->count);
    } else {
        struct end *end = any_near();
        if (end->received_by_sleeper)
            return;
        sleeper->end[0] = end;
        sleeper->count = 1;
        sleeper->entries[0].fd = any_descriptor(end);
        sleeper->size = chance(50) ? 1 + below(64) : 1 + below(ROOM);
        sleeper->flags = sleeper->kind == IN_PEEK ? MSG_PEEK : chance(25) ? MSG_WAITALL : 0;
        if (sleeper->flags & MSG_WAITALL)
            sleeper->size = 1 + below(2000);
        end->received_by_sleeper = true;
        end->received_in_part = sleeper->flags & MSG_WAITALL;
        note("sleeper %d: %s at end %d of %lu, flags %x", (int)(sleeper - sleepers), NAMES[sleeper->kind],
             end->number, sleeper->size, (unsigned)sleeper->flags);
    }
    sleeper->at_once = is_due(sleeper);
    go(sleeper);
}

static void hear_entries(struct sleeper *sleeper)
{
    int ready = 0;

    for (int index = 0; index < sleeper->count; index++) {
        struct pollfd *entry = &sleeper->entries[index];
        struct end *end = sleeper->end[index];
        short events = entry->revents;

        ready += events != 0;
        if (sleeper->kind == IN_SELECT)
            ready += events == (POLLIN | POLLOUT);
        if (events & ~(entry->events | POLLHUP))
            fail("%s says %x of end %d, asked for %x", NAMES[sleeper->kind], (unsigned)events, end->number,
                 (unsigned)entry->events);
        if (events & POLLIN && !readable(end) && end->readable_at < sleeper->since)
            fail("%s says %x: end %d has nothing to receive", NAMES[sleeper->kind], (unsigned)events, end->number);
        if (events & POLLRDHUP && !end->peer->shut)
            fail("%s says %x: the stream to end %d goes on", NAMES[sleeper->kind], (unsigned)events, end->number);
        if (events & POLLHUP && !(end->shut && end->peer->shut))
            fail("%s says %x: end %d has not ended", NAMES[sleeper->kind], (unsigned)events, end->number);
        if (events & POLLOUT)
            must_have_room(end, sleeper->since);
    }
    if (ready != sleeper->result)
        fail("%s returned %ld with %d ready", NAMES[sleeper->kind], sleeper->result, ready);
    for (int index = 0; index < sleeper->count; index++)
        if (sleeper->entries[index].revents & POLLIN)
            attend(sleeper->end[index]);
}

/* What a wait has returned is checked, and the thread is there for another. */
static void hear_sleeper(struct sleeper *sleeper)
{
    struct end *end = sleeper->end[0];
    size_t size = sleeper->size;

    note("sleeper %d: %s returns %ld", (int)(sleeper - sleepers), NAMES[sleeper->kind], sleeper->result);
    told++;
    woken += !sleeper->at_once;
    sleeper->busy = sleeper->done = false;
    if (sleeper->result < 0 || (sleeper->result == 0 && sleeper->kind <= IN_SELECT))
        fail("%s returned %ld: %s", NAMES[sleeper->kind], sleeper->result, strerror(sleeper->error));
    switch (sleeper->kind) {
    case IN_SET:
        hear(sleeper->set, sleeper->events, (int)sleeper->result, sleeper->since, true);
        break;
    case IN_POLL:
    case IN_SELECT:
        hear_entries(sleeper);
        break;
    case IN_RECEIVE:
    case IN_PEEK:
        end->received_by_sleeper = end->received_in_part = false;
        if ((sleeper->result == 0 || (sleeper->flags & MSG_WAITALL && (size_t)sleeper->result < size)) &&
            !end->peer->shut)
            fail("a receive of %lu returned %ld though the stream goes on", size, sleeper->result);
        taken_by_sleeper(end, sleeper->bytes, (uint64_t)sleeper->result, sleeper->kind == IN_PEEK);
        break;
    case IN_SEND:
        break;
    }
}

/* Waits until a wait has returned, as long as so many pieces of time; NULL: none has. A machine that stands still, as
 * virtual ones do, lets one piece go by, however long that is. */
static struct sleeper *next_done(int pieces)
{
    struct sleeper *found = NULL;

    pthread_mutex_lock(&mutex);
    for (; found == NULL && pieces >= 0; pieces--) {
        double until = now() + (pieces > 0 ? PATIENCE / PIECES : 0);
        struct timespec time = {(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};
        int late = 0;

        while (found == NULL && !late) {
            for (int index = 0; index < SLEEPERS; index++)
                if (sleepers[index].busy && sleepers[index].done)
                    found = &sleepers[index];
            if (found == NULL)
                late = pthread_cond_timedwait(&changed, &mutex, &time);
        }
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

static bool any_due(void)
{
    for (int index = 0; index < SLEEPERS; index++)
        if (sleepers[index].busy && is_due(&sleepers[index]))
            return true;
    return false;
}

void settle(void)
{
    for (;;) {
        double began = now(), took;
        struct sleeper *sleeper = next_done(any_due() ? PIECES : 0);

        if (sleeper == NULL && !any_due())
            return;
        if (sleeper == NULL)
            fail("a wait sleeps on, %s", next_done(PIECES) ? "and ends late" : "for ever");
        took = now() - began;
        slowest = took > slowest ? took : slowest;
        hear_sleeper(sleeper);
    }
}

bool slept_on(const struct end *end)
{
    for (int index = 0; index < SLEEPERS; index++) {
        const struct sleeper *sleeper = &sleepers[index];
        for (int entry = 0; sleeper->busy && sleeper->kind != IN_SET && entry < sleeper->count; entry++)
            if (sleeper->end[entry] == end)
                return true;
    }
    return false;
}

bool slept_in(int set)
{
    for (int index = 0; index < SLEEPERS; index++)
        if (sleepers[index].busy && sleepers[index].kind == IN_SET && sleepers[index].set == set)
            return true;
    return false;
}

struct patience patience_of(double seconds)
{
    return (struct patience){seconds, now()};
}

bool is_over(struct patience *patience)
{
    double at = now(), passed = at - patience->looked;

    patience->looked = at;
    patience->left -= passed < LATEST ? passed : LATEST;
    return patience->left <= 0;
}

void send_blocked(struct end *end)
{
    struct sleeper *sender = &sleepers[SLEEPERS];
    struct end *peer = end->peer;
    struct patience patience;

    if (peer->received_by_sleeper || end->shut)
        return;
    stuff(end);
    sender->kind = IN_SEND;
    sender->entries[0].fd = any_descriptor(end);
    sender->size = 1 + below(1 << 20);
    note("end %d sends %lu and waits", end->number, sender->size);
    fill_in(end, sender->bytes, end->sent, sender->size);
    sender->since = ++moment;
    go(sender);
    sleep_ms((int)below(3));
    /* From here on these bytes may have been sent. */
    end->sent += sender->size;
    patience = patience_of(2 * PATIENCE);
    while (unread(peer) > 0) {
        if (is_over(&patience))
            fail("a blocked sender at end %d sleeps on", end->number);
        if (take(peer, 1 + below(1 << 19)) == 0)
            sleep_ms(1);
    }
    pthread_mutex_lock(&mutex);
    while (!sender->done)
        pthread_cond_wait(&changed, &mutex);
    sender->busy = sender->done = false;
    pthread_mutex_unlock(&mutex);
    if (sender->result != (long)sender->size)
        fail("a blocked send of %lu returned %ld", sender->size, sender->result);
    moment++;
    end->full_at = peer->readable_at = moment;
}

void wake_all(void)
{
    settle();
    for (int index = 0; index < SLEEPERS; index++) {
        struct sleeper *sleeper = &sleepers[index];

        while (sleeper->busy) {
            if (sleeper->kind == IN_SET)
                stir(sleeper->set);
            else
                give(sleeper->end[0]->peer, 2000);
            settle();
        }
    }
}

void end_sleepers(void)
{
    for (int index = 0; index <= SLEEPERS; index++) {
        sleepers[index].ends = true;
        go(&sleepers[index]);
        pthread_join(sleepers[index].thread, NULL);
    }
}

void idle(int set)
{
    static const struct timespec short_time = {0, 20000};
    struct epoll_event events[EVENTS];
    int waits = 5 + (int)below(100), count;
    uint64_t since = ++moment;

    note("set %d is idle for %d waits", set, waits);
    while (waits-- > 0) {
        count = epoll_pwait2(set_descriptor(set), events, EVENTS, &short_time, NULL);
        if (count < 0)
            fail("epoll_pwait2: %s", strerror(errno));
        if (count > 0) {
            hear(set, events, count, since, true);
            return;
        }
    }
}

void look(int set, int ms)
{
    struct epoll_event events[EVENTS];
    uint64_t since = ++moment;
    double began = now(), took;
    int count = epoll_wait(set_descriptor(set), events, chance(50) ? 1 : EVENTS, ms);

    took = now() - began;
    note("a wait in set %d for %d ms returns %d", set, ms, count);
    if (count < 0)
        fail("epoll_wait: %s", strerror(errno));
    if (count == 0 && took < ms / 1e3 - 1e-3)
        fail("a wait of %d ms took %f", ms, took);
    hear(set, events, count, since, true);
}

void show_sleepers(void)
{
    for (int index = 0; index < SLEEPERS; index++) {
        const struct sleeper *sleeper = &sleepers[index];

        if (!sleeper->busy)
            continue;
        printf("sleeper %d since %lu: %s", index, sleeper->since, NAMES[sleeper->kind]);
        if (sleeper->kind == IN_SET)
            printf(" in set %d, at most %d", sleeper->set, sleeper->most);
        for (int entry = 0; sleeper->kind != IN_SET && entry < sleeper->count; entry++)
            printf(" end %d fd %d for %x", sleeper->end[entry]->number, sleeper->entries[entry].fd,
                   (unsigned)sleeper->entries[entry].events);
        printf("%s%s\n", sleeper->done ? ", returned" : "", is_due(sleeper) ? ", DUE" : "");
    }
}
