/* Random waits on connections, to find those that sleep on and events that are wrong.
 *
 * `SEED ROUNDS`: in each round the director does something that the seed decides: it sends, fills, receives, registers,
 * has a thread sleep, lets sets go idle. Then every wait that TCP would end must end soon, and what each has been told
 * must be so. `moved` and `young` say what happens to connections meanwhile. `far` is the other process, with
 * `strangers` another user's. */
#include "world.h"
#include <stdarg.h>

enum { LINES = 60, WIDTH = 96 };

static char lines[LINES][WIDTH];
static unsigned long noted;
static uint64_t state;
static unsigned seed, round_now;
bool moved, young, strangers;

unsigned below(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 20) % limit);
}

bool chance(unsigned percent)
{
    return below(100) < percent;
}

void note(const char *format, ...)
{
    va_list arguments;
    char *line = lines[noted++ % LINES];
    int length = snprintf(line, WIDTH, "%u: ", round_now);

    va_start(arguments, format);
    vsnprintf(line + length, WIDTH - (size_t)length, format, arguments);
    va_end(arguments);
}

void fail(const char *format, ...)
{
    va_list arguments;

    for (unsigned long line = noted > LINES ? noted - LINES : 0; line < noted; line++)
        puts(lines[line % LINES]);
    show_ends();
    show_sets();
    show_sleepers();
    printf("seed %u round %u: ", seed, round_now);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    puts("");
    fflush(stdout);
    _exit(1);
}

static void rest(void)
{
    switch (below(8)) {
    case 0:
        sleep_ms(1 + (int)below(4));
        break;
    case 1:
    case 2:
        usleep(below(300));
        break;
    default:
        break;
    }
}

static void send_something(void)
{
    struct end *end = any_end();

    if (end->shut)
        return;
    if (chance(70))
        give(end, 1 + below(200));
    else if (chance(70))
        give(end, 1 + below(200000));
    else
        stuff(end);
}

static void receive_something(void)
{
    struct end *end = any_end();

    if (end->received_by_sleeper)
        return;
    if (chance(70))
        empty(end);
    else
        take(end, 1 + below((unsigned)(unread(end) < 1000000 ? unread(end) + 1 : 1000000)));
}

/* Fills a connection and empties it, with whoever sleeps for room meanwhile. */
static void fill_and_empty(void)
{
    struct end *end = any_near();

    if (end->shut || end->peer->received_by_sleeper)
        return;
    stuff(end);
    settle();
    for (unsigned times = below(3); times > 0; times--) {
        if (chance(50))
            start_sleeper();
        settle();
        if (chance(30))
            give(end, 1 + below(100));
        if (chance(30) && !end->peer->received_by_sleeper)
            take(end->peer, 1 + below(500000));
        settle();
    }
    rest();
    if (!end->peer->received_by_sleeper)
        empty(end->peer);
}

static void copy_something(void)
{
    struct end *end = any_near();

    if (end->copies < 3) {
        end->copy[end->copies++] = fcntl(end->fd, F_DUPFD_CLOEXEC, 0);
        note("end %d: copy %d", end->number, end->copy[end->copies - 1]);
    } else if (!slept_on(end)) {
        int fd = end->copy[--end->copies];
        /* What was registered by it could not be named any more. */
        leave_sets(fd);
        note("end %d: copy %d is closed", end->number, fd);
        close(fd);
    }
}

static void end_something(void)
{
    int link = (int)below(links);
    struct end *pair = &ends[link * 2];

    if (slept_on(&pair[0]) || slept_on(&pair[1]))
        return;
    if (chance(60)) {
        shut(&pair[below(2)]);
        settle();
        rest();
        if (chance(30) && !(slept_on(&pair[0]) || slept_on(&pair[1])))
            for (int side = 0; side < 2; side++)
                if (!pair[side].shut)
                    shut(&pair[side]);
        settle();
    }
    if (slept_on(&pair[0]) || slept_on(&pair[1]))
        return;
    part(link);
    join(link);
}

static void converse(void)
{
    int link = (int)below(links);
    struct end *pair = &ends[link * 2];

    for (unsigned times = below(20); times > 0; times--)
        for (int side = 0; side < 2; side++)
            if (!pair[side].shut && !pair[1 - side].received_by_sleeper) {
                give(&pair[side], 1 + below(100));
                empty(&pair[1 - side]);
            }
}

static void act(void)
{
    unsigned what = below(100);
    int set = any_set();

    if (what < 20)
        send_something();
    else if (what < 30)
        receive_something();
    else if (what < 58)
        start_sleeper();
    else if (what < 70)
        control_something();
    else if (what < 73)
        copy_something();
    else if (what < 79) {
        if (chance(70))
            calm(set);
        settle();
        idle(set);
    } else if (what < 84)
        look(set, chance(50) ? 0 : (int)below(6));
    else if (what < 87)
        stir(set);
    else if (what < 90)
        converse();
    else if (what < 95)
        fill_and_empty();
    else if (what < 97)
        send_blocked(any_near());
    else if (what < 98)
        end_something();
    else if (chance(50)) {
        if (!slept_in(set))
            renew_set(set);
    } else
        sleep_ms((int)below(25));
}

int main(int argc, char **argv)
{
    unsigned rounds;

    if (argc == 3 && strcmp(argv[1], "far") == 0)
        return serve_as_far(atoi(argv[2]));
    if (argc < 3)
        return 2;
    for (int argument = 3; argument < argc; argument++) {
        moved |= strcmp(argv[argument], "moved") == 0;
        young |= strcmp(argv[argument], "young") == 0;
        strangers |= strcmp(argv[argument], "strangers") == 0;
    }
    seed = (unsigned)atoi(argv[1]);
    rounds = (unsigned)atoi(argv[2]);
    state = (seed + 1) * 0x9e3779b97f4a7c15;
    links = 1 + below(LINKS);
    set_count = 1 + below(SETS);
    start_far(argv[0]);
    make_sets();
    for (unsigned link = 0; link < links; link++)
        join((int)link);
    make_sleepers();
    /* Sets of many are treated otherwise. */
    if (seed % 4 == 3)
        for (int copies = 0; copies < COPIES - 10; copies++) {
            ends[0].copy[ends[0].copies++] = fcntl(ends[0].fd, F_DUPFD_CLOEXEC, 0);
            add_to(0, &ends[0], ends[0].copy[copies]);
        }
    for (int times = 0; times < 6; times++)
        control_something();
    for (round_now = 1; round_now <= rounds; round_now++) {
        act();
        rest();
        settle();
    }
    wake_all();
    for (unsigned link = 0; link < links; link++)
        part((int)link);
    close_sets();
    end_sleepers();
    end_far();
    printf("seed %u: %lu waits ended, %lu of them asleep, the slowest after %.0f ms\n", seed, told, woken, slowest * 1e3);
    return 0;
}
