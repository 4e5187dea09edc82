/* Random waits on connections, to find those that sleep on and events that are wrong.
 *
 * `SEED ROUNDS`: in each round the director does something that the seed decides: it sends, fills, receives, registers, has a thread sleep, lets
 * sets go idle. Then every wait that TCP would end must end soon, and what each has been told must be so. `moved`: connections are moved
 * between paths meanwhile. `far` is the other process. */
#include "world.h"
#include <stdarg.h>

enum { LINES = 60, WIDTH = 96 };

static char lines[LINES][WIDTH];
static unsigned long noted;
static uint64_t state;
static unsigned seed, round_now;
bool moved;

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
    struct end *end = &ends[below(ENDS)];

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
    struct end *end = &ends[below(ENDS)];

    if (end->received_by_sleeper || unread(end) == 0)
        return;
    if (chance(70))
        empty(end);
    else
        take(end, 1 + below((unsigned)(unread(end) < 1000000 ? unread(end) : 1000000)));
}

static void copy_something(void)
{
    struct end *end = any_near();

    if (end == NULL)
        return;
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
    int link = (int)below(LINKS);
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
    for (int side = 0; side < 2; side++)
        if (!pair[side].far)
            add_to((int)below(SETS), &pair[side], pair[side].fd);
}

static void converse(void)
{
    int link = (int)below(LINKS);
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
    int set = (int)below(SETS);
    struct end *near = any_near();

    if (what < 22)
        send_something();
    else if (what < 34)
        receive_something();
    else if (what < 60)
        start_sleeper();
    else if (what < 72)
        control_something();
    else if (what < 76)
        copy_something();
    else if (what < 82) {
        if (chance(70))
            calm(set);
        settle();
        idle(set);
    } else if (what < 87)
        look(set, chance(50) ? 0 : (int)below(6));
    else if (what < 91)
        stir(set);
    else if (what < 95)
        converse();
    else if (what < 97 && near)
        send_blocked(near);
    else if (what < 98)
        end_something();
    else
        sleep_ms(25);
}

int main(int argc, char **argv)
{
    unsigned rounds;

    if (argc == 3 && strcmp(argv[1], "far") == 0)
        return serve_as_far(atoi(argv[2]));
    if (argc < 3)
        return 2;
    moved = argc > 3 && strcmp(argv[3], "moved") == 0;
    seed = (unsigned)atoi(argv[1]);
    rounds = (unsigned)atoi(argv[2]);
    state = (seed + 1) * 0x9e3779b97f4a7c15;
    start_far(argv[0]);
    make_sets();
    for (int link = 0; link < LINKS; link++)
        join(link);
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
    for (int link = 0; link < LINKS; link++)
        part(link);
    close_sets();
    end_sleepers();
    end_far();
    printf("seed %u: %lu waits ended, %lu of them asleep, the slowest after %.0f ms\n", seed, told, woken, slowest * 1e3);
    return 0;
}
