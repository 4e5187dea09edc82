/* Epoll sets, and what is due to who waits in them. */
#include "world.h"
#include <sys/eventfd.h>

enum { MEMBERS = 256, NUMBERS = 1 << 16 };

/* A registration. An edge is due from when something comes until it is reported. */
struct member {
    bool used;
    int set, fd;
    struct end *end;
    uint32_t events;
    uint64_t id;
    /* A one-shot registration has been reported. */
    bool fired;
    /* It may have been before it was armed again, by a wait that has not been heard yet. */
    bool unsure;
    bool in_due, out_due;
    /* What it was registered for before, and until when. */
    uint32_t former;
    uint64_t changed_at;
};
static struct member members[MEMBERS];
/* Data of registrations count up; when each ended. */
static uint64_t next_id = 1, ended_at[NUMBERS];

static struct set {
    int fd, copy;
    /* Something that is no connection. */
    int other;
    bool stirred;
    uint64_t stirred_at;
} sets[SETS];
unsigned set_count;

/* Data of the sets' other descriptors. */
#define OTHER ((uint64_t)1 << 40)

static void open_set(unsigned index)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = OTHER | index};

    sets[index] = (struct set){.fd = epoll_create1(EPOLL_CLOEXEC), .other = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    sets[index].copy = dup(sets[index].fd);
    /* Waits in sets of connections only go other ways. */
    if (chance(50) && epoll_ctl(sets[index].fd, EPOLL_CTL_ADD, sets[index].other, &event))
        fail("no set");
}

void make_sets(void)
{
    for (unsigned index = 0; index < set_count; index++)
        open_set(index);
}

static void forget(struct member *member)
{
    member->used = false;
    ended_at[member->id % NUMBERS] = moment;
}

static void close_set(unsigned index)
{
    moment++;
    for (struct member *member = members; member < members + MEMBERS; member++)
        if (member->used && member->set == (int)index)
            forget(member);
    close(sets[index].fd);
    close(sets[index].copy);
    close(sets[index].other);
}

void renew_set(int set)
{
    note("set %d is closed", set);
    close_set((unsigned)set);
    open_set((unsigned)set);
}

void close_sets(void)
{
    for (unsigned index = 0; index < set_count; index++)
        close_set(index);
}

int set_descriptor(int set)
{
    return chance(50) ? sets[set].fd : sets[set].copy;
}

int any_set(void)
{
    return (int)below(set_count);
}

void stir(int set)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = OTHER | (unsigned)set};

    moment++;
    note("set %d is stirred", set);
    epoll_ctl(sets[set].fd, EPOLL_CTL_ADD, sets[set].other, &event);
    sets[set].stirred = true;
    eventfd_write(sets[set].other, 1);
}

static void settle_stirred(int set)
{
    eventfd_t count;

    if (sets[set].stirred)
        eventfd_read(sets[set].other, &count);
    sets[set].stirred = false;
    sets[set].stirred_at = moment;
}

void sets_see_arrival(struct end *end)
{
    for (struct member *member = members; member < members + MEMBERS; member++)
        if (member->used && member->end == end)
            member->in_due = true;
}

void sets_see_full(struct end *end)
{
    for (struct member *member = members; member < members + MEMBERS; member++)
        if (member->used && member->end == end && member->events & EPOLLOUT)
            member->out_due = true;
}

static struct member *member_of(int set, int fd)
{
    for (struct member *member = members; member < members + MEMBERS; member++)
        if (member->used && member->set == set && member->fd == fd)
            return member;
    return NULL;
}

static uint32_t any_events(const struct end *end)
{
    uint32_t events = chance(85) ? EPOLLIN : 0;
    uint32_t mode = chance(50) ? EPOLLET : 0;

    /* By level there is nearly always room. */
    if (end->sent - end->got > 0 ? chance(60) : chance(mode ? 60 : 5))
        events |= EPOLLOUT;
    if (chance(20))
        events |= EPOLLRDHUP;
    return events | mode | (chance(20) ? EPOLLONESHOT : 0);
}

/* Of several sets with exclusive registrations of an end only one is told. */
static bool may_be_exclusive(const struct end *end, uint32_t events)
{
    for (const struct member *member = members; member < members + MEMBERS; member++)
        if (member->used && member->end == end && member->events & EPOLLEXCLUSIVE)
            return false;
    return (events & (EPOLLRDHUP | EPOLLONESHOT)) == 0;
}

static void change(struct member *member, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = member->id};

    /* It cannot be changed. */
    if (operation == EPOLL_CTL_MOD && member->events & EPOLLEXCLUSIVE)
        operation = EPOLL_CTL_DEL;
    moment++;
    note("set %d %s %lu: end %d fd %d events %x", member->set,
         operation == EPOLL_CTL_ADD   ? "adds"
         : operation == EPOLL_CTL_MOD ? "changes"
                                      : "drops",
         member->id, member->end->number, member->fd, events);
    if (epoll_ctl(sets[member->set].fd, operation, member->fd, &event))
        fail("epoll_ctl: %s", strerror(errno));
    if (operation == EPOLL_CTL_DEL) {
        forget(member);
        return;
    }
    member->unsure = operation == EPOLL_CTL_MOD && !(member->events & EPOLLONESHOT && member->fired);
    member->former |= member->events;
    member->changed_at = moment;
    member->events = events;
    member->fired = false;
    member->in_due = true;
    member->out_due = (events & EPOLLOUT) != 0;
}

void add_to(int set, struct end *end, int fd)
{
    for (struct member *member = members; member < members + MEMBERS; member++) {
        if (member->used)
            continue;
        uint32_t events = any_events(end);
        if (may_be_exclusive(end, events) && chance(10))
            events |= EPOLLEXCLUSIVE;
        *member = (struct member){.used = true, .set = set, .fd = fd, .end = end, .id = next_id++};
        change(member, EPOLL_CTL_ADD, events);
        return;
    }
}

void control_something(void)
{
    struct end *end = any_near();
    int set = any_set(), fd = any_descriptor(end);
    struct member *member = member_of(set, fd);

    if (member == NULL)
        add_to(set, end, fd);
    else if (chance(30))
        change(member, EPOLL_CTL_DEL, 0);
    else
        change(member, EPOLL_CTL_MOD, chance(50) ? member->events : any_events(end));
}

void leave_sets(int fd)
{
    for (int set = 0; set < (int)set_count; set++) {
        struct member *member = member_of(set, fd);
        if (member)
            change(member, EPOLL_CTL_DEL, 0);
    }
}

void sets_lose(struct end *end)
{
    moment++;
    for (struct member *member = members; member < members + MEMBERS; member++) {
        if (!member->used || member->end != end)
            continue;
        /* Or left to the kernel. */
        if (chance(30))
            change(member, EPOLL_CTL_DEL, 0);
        else
            forget(member);
    }
}

static bool is_due(const struct member *member)
{
    bool edge = member->events & EPOLLET;

    if (member->events & EPOLLONESHOT && member->fired)
        return false;
    if (!edge || member->in_due) {
        if (member->events & EPOLLIN && surely_readable(member->end))
            return true;
        if (member->events & EPOLLRDHUP && surely_ended(member->end))
            return true;
    }
    return member->events & EPOLLOUT && (!edge || member->out_due) && surely_roomy(member->end);
}

bool set_is_due(int set)
{
    if (sets[set].stirred)
        return true;
    for (const struct member *member = members; member < members + MEMBERS; member++)
        if (member->used && member->set == set && is_due(member))
            return true;
    return false;
}

/* One of the events that a wait has returned, checked against the model. NULL where it is of no use any more. */
static struct member *heard(uint32_t mask, uint64_t id, uint64_t since)
{
    struct member *member = NULL;
    struct end *end;
    uint32_t may;
    bool may_err;

    for (struct member *one = members; one < members + MEMBERS; one++)
        if (one->used && one->id == id)
            member = one;
    if (member == NULL) {
        if (id >= next_id || ended_at[id % NUMBERS] < since)
            fail("event %x of %lu, which is in no set", mask, id);
        return NULL;
    }
    end = member->end;
    may_err = young && member->events & EPOLLONESHOT;
    may = member->events | (since <= member->changed_at ? member->former : 0) | EPOLLHUP;
    if (mask == 0 || mask & ~may)
        fail("event %x of %lu, registered for %x", mask, id, may);
    if (member->events & EPOLLONESHOT && member->fired && !member->unsure)
        fail("event %x of %lu, which was told before", mask, id);
    if (mask & EPOLLIN && !readable(end) && end->readable_at < since && !may_err)
        fail("event %x of %lu: end %d has nothing to receive", mask, id, end->number);
    if (mask & EPOLLRDHUP && !end->peer->shut)
        fail("event %x of %lu: the stream to end %d goes on", mask, id, end->number);
    if (mask & EPOLLHUP && !(end->shut && end->peer->shut))
        fail("event %x of %lu: end %d has not ended", mask, id, end->number);
    member->fired = true;
    if (mask & (EPOLLIN | EPOLLRDHUP))
        member->in_due = false;
    if (mask & EPOLLOUT) {
        member->out_due = false;
        if (!may_err)
            must_have_room(end, since);
    }
    return member;
}

void attend(struct end *end)
{
    if (end->received_by_sleeper || unread(end) == 0 || chance(10))
        return;
    if (chance(75))
        empty(end);
    else
        take(end, 1 + below((unsigned)(unread(end) < 100000 ? unread(end) : 100000)));
}

static void respond(struct member *member, uint32_t mask)
{
    if (mask & EPOLLIN)
        attend(member->end);
    if (mask & EPOLLOUT && !(member->events & EPOLLET) && chance(80))
        change(member, EPOLL_CTL_MOD, (member->events & ~(uint32_t)EPOLLOUT) | EPOLLIN);
    else if (member->events & EPOLLONESHOT && chance(60))
        change(member, EPOLL_CTL_MOD, member->events);
}

void hear(int set, const struct epoll_event *events, int count, uint64_t since, bool react)
{
    for (int index = 0; index < count; index++) {
        uint32_t mask = events[index].events;
        uint64_t id = events[index].data.u64;
        struct member *member;

        note("set %d tells %x of %lu", set, mask, id);
        if (id & OTHER) {
            if (!sets[id & 0xff].stirred && sets[id & 0xff].stirred_at < since)
                fail("the other descriptor of set %d is not ready", set);
            settle_stirred((int)(id & 0xff));
            continue;
        }
        member = heard(mask, id, since);
        if (member && react)
            respond(member, mask);
    }
}

void calm(int set)
{
    moment++;
    settle_stirred(set);
    for (struct member *member = members; member < members + MEMBERS; member++) {
        if (!member->used || member->set != set)
            continue;
        if (member->events & EPOLLIN && !member->end->received_by_sleeper && unread(member->end) > 0)
            empty(member->end);
        if (member->events & EPOLLOUT && !(member->events & EPOLLET) && surely_roomy(member->end))
            change(member, EPOLL_CTL_MOD, EPOLLIN | EPOLLET | EPOLLOUT);
    }
}

void show_sets(void)
{
    for (const struct member *member = members; member < members + MEMBERS; member++)
        if (member->used)
            printf("set %d member %lu: end %d fd %d events %x%s%s%s%s\n", member->set, member->id, member->end->number,
                   member->fd, member->events, member->fired && member->events & EPOLLONESHOT ? " fired" : "",
                   member->in_due ? " in due" : "", member->out_due ? " out due" : "", is_due(member) ? " DUE" : "");
    for (int set = 0; set < (int)set_count; set++)
        if (sets[set].stirred)
            printf("set %d is stirred\n", set);
}
