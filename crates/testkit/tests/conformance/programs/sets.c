/* epoll: ends, sets shared between processes, many members, fairness, masks. */
#include "sets.h"
#include <sys/eventfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>

static void end_by_level_and_edge(void)
{
    int one = epoll_create1(0), two = epoll_create1(0);

    FAR(R(watch(one, s, EPOLLIN | EPOLLRDHUP)); R(watch(two, s, EPOLLIN | EPOLLRDHUP | EPOLLET)));
    NEAR(R(send(s, "ab", 2, 0)); R(shutdown(s, SHUT_WR)));
    FAR(arrive(s, POLLRDHUP); once(one, 1000); once(two, 1000); ALL(s, 2); once(one, 1000); GET(s, 1, 0); once(one, 1000));
}

static void end_told_to_who_asks_nothing(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, 0)));
    NEAR(R(send(s, "x", 1, 0)); R(shutdown(s, SHUT_WR)));
    FAR(once(set, 10); R(shutdown(s, SHUT_WR)); once(set, 1000));
}

static void reset_in_a_set(void)
{
    struct linger at_once = {1, 0};
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)); once(set, 1000));
    NEAR(R(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once)); R(close(s)));
    FAR(once(set, 1000); GET(s, 1, 0));
}

static void set_shared_across_fork(void)
{
    int set = epoll_create1(0);

    FAR(R(watch(set, s, EPOLLIN)));
    if (is_near) {
        sleep_ms(25);
        R(send(s, "a", 1, 0));
    } else {
        pid_t child = fork();
        if (child == 0) {
            once(set, 1000);
            GET(s, 1, 0);
            exit(0);
        }
        reap(child);
        once(set, 5);
    }
    step();
    NEAR(R(send(s, "b", 1, 0)));
    FAR(once(set, 1000); GET(s, 1, 0));
}

/* What is told of a connection, by the data it is registered with. */
static void told(int set, int ms)
{
    struct epoll_event event;
    int ready = epoll_wait(set, &event, 1, ms);

    say("%d %#x %d", ready, ready == 1 ? event.events : 0, ready == 1 ? (int)event.data.u64 : 0);
}

static int registered(int set, int operation, int fd, unsigned events, int data)
{
    struct epoll_event event = {.events = events, .data.u64 = (unsigned)data};

    return epoll_ctl(set, operation, fd, &event);
}

/* By a program of one thread that registers around messages. */
static void taken_back_and_registered_anew(void)
{
    int set = epoll_create1(0), other = epoll_create1(0), copy, outer;
    struct pollfd entry = {.fd = set, .events = POLLIN};

    NEAR(R(send(s, "abc", 3, 0)));
    FAR(arrive(s, POLLIN); told(set, 0); told(other, 0); R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 1)); told(set, 1000);
        /* For something else. */
        R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(registered(set, EPOLL_CTL_ADD, s, EPOLLOUT, 2)); told(set, 1000);
        R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLET, 3)); told(set, 1000); told(set, 0);
        R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLET, 4)); told(set, 1000); told(set, 0);
        R(registered(set, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLET, 4)); told(set, 1000); told(set, 0);
        R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLONESHOT, 5)); told(set, 1000); told(set, 0);
        R(registered(set, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLONESHOT, 5)); told(set, 1000); told(set, 0);
        /* The same again. */
        R(registered(set, EPOLL_CTL_MOD, s, EPOLLIN, 6)); R(registered(set, EPOLL_CTL_MOD, s, EPOLLIN, 6)); told(set, 1000);
        R(registered(set, EPOLL_CTL_MOD, s, EPOLLIN, 7)); told(set, 1000));
    /* And not, or in vain, or elsewhere. */
    FAR(R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); told(set, 5);
        R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 1)); R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); told(set, 5);
        R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 2)); R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(registered(set, EPOLL_CTL_MOD, s, EPOLLIN, 3)); told(set, 5);
        R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 4)); R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 5)); told(set, 1000);
        R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(registered(other, EPOLL_CTL_ADD, s, EPOLLIN, 6)); told(set, 5); told(other, 1000);
        R(registered(other, EPOLL_CTL_DEL, s, 0, 0)); R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLEXCLUSIVE, 7)); told(set, 1000);
        R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 8)); told(set, 1000);
        R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); copy = dup(s); R(registered(set, EPOLL_CTL_ADD, copy, EPOLLIN, 9)); told(set, 1000);
        R(registered(set, EPOLL_CTL_DEL, copy, 0, 0)); R(close(copy)));
    /* In view of others. The near end is in a call meanwhile, and may be asked to go on without a lane. */
    if (is_near) {
        serve_until_released();
    } else {
        R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 1)); told(set, 1000); R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); R(poll(&entry, 1, 5));
        R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 2)); R(poll(&entry, 1, 1000));
        release();
    }
    step();
    FAR(R(registered(set, EPOLL_CTL_DEL, s, 0, 0)); outer = epoll_create1(0); R(watch(outer, set, EPOLLIN)); told(outer, 5);
        R(registered(other, EPOLL_CTL_ADD, s, EPOLLIN, 3)); told(other, 1000); copy = dup(s); R(registered(other, EPOLL_CTL_DEL, s, 0, 0)); R(close(s)); told(other, 5);
        R(registered(other, EPOLL_CTL_ADD, copy, EPOLLIN, 4)); told(other, 1000); R(registered(other, EPOLL_CTL_DEL, copy, 0, 0));
        pid_t child = fork();
        if (child == 0) {
            told(other, 5);
            exit(0);
        }
        reap(child); told(other, 5));
    /* With a child that has the set too. */
    FAR(R(registered(other, EPOLL_CTL_ADD, copy, EPOLLIN, 6)); pid_t child = fork();
        if (child == 0) {
            R(registered(other, EPOLL_CTL_MOD, copy, EPOLLOUT, 7));
            exit(0);
        }
        reap(child); R(registered(other, EPOLL_CTL_MOD, copy, EPOLLIN, 6)); told(other, 1000); ALL(copy, 3));
}

static void opens_and_closes(int number)
{
    int kept = errno;

    (void)number;
    close(open("/dev/null", O_RDONLY));
    errno = kept;
}

/* By a program of one thread that registers around messages, as above. */
static void handlers_amidst_registrations(void)
{
    struct itimerval often = {.it_interval.tv_usec = 50, .it_value.tv_usec = 50}, never = {0};
    struct epoll_event event;
    int set = epoll_create1(0);

    NEAR(R(send(s, "abc", 3, 0)));
    FAR(arrive(s, POLLIN); R(registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 1)); told(set, 1000);
        int untold = 0, failed = 0; signal(SIGALRM, opens_and_closes); setitimer(ITIMER_REAL, &often, NULL);
        for (int round = 0; round < 30000; round++) {
            failed += registered(set, EPOLL_CTL_DEL, s, 0, 0) != 0;
            failed += registered(set, EPOLL_CTL_ADD, s, EPOLLIN, 1) != 0;
            untold += epoll_wait(set, &event, 1, 0) == 0;
        }
        setitimer(ITIMER_REAL, &never, NULL); signal(SIGALRM, SIG_DFL); alarm(PATIENCE_S); R(untold); R(failed); ALL(s, 3));
    step();
}

static void set_filled_by_a_child(void)
{
    int set = epoll_create1(0);

    if (!is_near) {
        pid_t child = fork();
        if (child == 0) {
            R(watch(set, s, EPOLLIN));
            exit(0);
        }
        reap(child);
    }
    step();
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(set, 1000); GET(s, 1, 0));
}

static void set_of_an_exec_successor_is_gone(void)
{
    int set = epoll_create1(EPOLL_CLOEXEC);

    BOTH(R(watch(set, s, EPOLLIN)); R(fcntl(set, F_GETFD)); R(fcntl(epoll_create(3), F_GETFD)); R(epoll_create(0)));
}

static void socket_passed_in(void)
{
    int set = epoll_create1(0), channel[2], passed = -1;

    if (is_near)
        serve_until_released();
    else {
        socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
        R(pass_descriptor(channel[0], s));
        passed = take_descriptor(channel[1]);
        R(close(s));
        R(watch(set, passed, EPOLLIN));
        once(set, 5);
        release();
    }
    step();
    NEAR(R(send(s, "a", 1, 0)));
    FAR(once(set, 1000); GET(passed, 1, 0));
}

static void set_registered_before_connecting(void)
{
    int set = epoll_create1(0), port, fd, listening;
    struct sockaddr_storage address;
    struct epoll_event event = {0};
    socklen_t length;

    if (is_near) {
        length = loopback(AF_INET, ask(), &address);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        R(watch(set, fd, EPOLLIN | EPOLLOUT | EPOLLET));
        once(set, 10);
        R(connect(fd, (struct sockaddr *)&address, length));
        once(set, 1000);
        R(fcntl(fd, F_SETFL, 0));
        R(send(fd, "hello", 5, 0));
        /* That there is room may be told once more. */
        if (epoll_wait(set, &event, 1, 1000) == 1 && !(event.events & EPOLLIN))
            epoll_wait(set, &event, 1, 1000);
        show_events("event", event.events);
        ALL(fd, 3);
    } else {
        listening = listener(AF_INET, &port);
        R(watch(set, listening, EPOLLIN | EPOLLET));
        tell(port);
        once(set, 1000);
        fd = accept(listening, NULL, NULL);
        ALL(fd, 5);
        sleep_ms(15);
        R(send(fd, "you", 3, 0));
    }
    step();
}

/* A set, and what the near end registers its socket for before it connects it. */
static int early;
static unsigned wanted;

static void register_early(int fd)
{
    if (is_near)
        R(watch(early, fd, wanted));
}

/* The near end sleeps when bytes come, and takes each of them but asks for no more. */
static void sleep_for_each(int fd)
{
    struct epoll_event event;

    while (is_near && epoll_wait(early, &event, 1, 0) > 0 && wanted & EPOLLET)
        ;
    for (int round = 0; round < 5; round++) {
        step();
        if (is_near) {
            once(early, 1000);
            GET(fd, 3, 0);
        } else {
            sleep_ms(15);
            R(send(fd, "abc", 3, 0));
        }
        step();
    }
}

static void registered_early_by_level(void)
{
    early = epoll_create1(0);
    wanted = EPOLLIN;
    sleep_for_each(join_by(AF_INET, register_early));
}

static void registered_early_by_edge(void)
{
    early = epoll_create1(0);
    wanted = EPOLLIN | EPOLLET;
    sleep_for_each(join_by(AF_INET, register_early));
}

static void registered_early_and_changed(void)
{
    int fd;

    early = epoll_create1(0);
    wanted = 0;
    fd = join_by(AF_INET, register_early);
    NEAR(R(change(early, fd, wanted = EPOLLIN | EPOLLRDHUP)));
    sleep_for_each(fd);
    FAR(R(shutdown(fd, SHUT_WR)));
    NEAR(once(early, 1000); R(epoll_ctl(early, EPOLL_CTL_DEL, fd, NULL)); once(early, 5));
}

static int beside;

static void *register_beside(void *fd)
{
    return (void *)(long)watch(early, *(int *)fd, EPOLLIN);
}

static pthread_t registrar;

static void have_it_registered(int fd)
{
    beside = fd;
    if (is_near)
        registrar = in_thread(register_beside, &beside);
}

/* By another thread, while the socket is being connected. */
static void registered_beside_connecting(void)
{
    for (int round = 0; round < 4; round++) {
        int fd;
        void *failed = NULL;

        early = epoll_create1(0);
        wanted = EPOLLIN;
        fd = join_by(AF_INET, have_it_registered);
        NEAR(pthread_join(registrar, &failed); say("registered %d", !failed));
        sleep_for_each(fd);
        BOTH(R(close(fd)); R(close(early)));
    }
}

static void prepare_in_vain(int fd)
{
    int two = 2, one = 1;

    if (is_near) {
        R(watch(early, fd, wanted));
        GET(fd, 1, 0);
        R(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two));
        R(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one));
        R(execl("/nowhere", "nowhere", NULL));
    }
}

/* Calls before the connection stands do not keep it from its lane. */
static void registered_early_and_used_in_vain(void)
{
    early = epoll_create1(0);
    wanted = EPOLLIN;
    sleep_for_each(join_by(AF_INET, prepare_in_vain));
}

/* A socket that leaves its connection for another keeps its registration and its copies. */
static void connected_again_in_a_set(void)
{
    int fd, listening, port, copy = -1;
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    struct sockaddr_storage address;

    early = epoll_create1(0);
    wanted = EPOLLIN;
    if (is_near) {
        socklen_t length = loopback(AF_INET, ask(), &address);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        R(watch(early, fd, wanted));
        R(connect(fd, (struct sockaddr *)&address, length));
        prove(fd);
        copy = dup(fd);
        step();
        R(connect(fd, &nobody, sizeof nobody));
        R(connect(fd, (struct sockaddr *)&address, length));
    } else {
        int first;
        listening = listener(AF_INET, &port);
        tell(port);
        first = accept(listening, NULL, NULL);
        prove(first);
        step();
        fd = accept(listening, NULL, NULL);
        R(close(first));
    }
    sleep_for_each(fd);
    NEAR(R(send(copy, "x", 1, 0)));
    FAR(GET(fd, 1, 0); R(send(fd, "y", 1, 0)));
    NEAR(once(early, 1000); GET(copy, 1, 0));
}

static void others_are_not_starved(void)
{
    int set = epoll_create1(0), counter, timer, ends[2], seen[3] = {0};
    struct itimerspec often = {{0, 1000000}, {0, 1000000}};
    struct epoll_event event;
    char bytes[512];
    uint64_t one = 1;

    if (is_near) {
        while (send(s, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
            ;
    } else {
        counter = eventfd(0, EFD_NONBLOCK);
        timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        pipe(ends);
        timerfd_settime(timer, 0, &often, NULL);
        write(counter, &one, sizeof one);
        write(ends[1], "x", 1);
        // It is never read, so it stays ready: 4000 rounds may well be over within its first millisecond.
        arrive(timer, POLLIN);
        for (int index = 0; index < 4; index++) {
            int fds[] = {s, counter, timer, ends[0]};
            event = (struct epoll_event){.events = EPOLLIN, .data.fd = index};
            epoll_ctl(set, EPOLL_CTL_ADD, fds[index], &event);
        }
        for (int round = 0; round < 4000; round++) {
            if (epoll_wait(set, &event, 1, 1000) != 1)
                break;
            if (event.data.fd == 0)
                recv(s, bytes, sizeof bytes, 0);
            else
                seen[event.data.fd - 1]++;
        }
        say("%d %d %d", seen[0] > 10, seen[1] > 10, seen[2] > 10);
        R(close(s));
    }
    step();
}

static void many_connections_in_one_set(void)
{
    enum { MANY = 12 };
    int set = epoll_create1(0), fds[MANY], ready = 0;
    struct epoll_event events[MANY];

    for (int index = 0; index < MANY; index++) {
        fds[index] = join();
        if (!is_near)
            watch(set, fds[index], EPOLLIN);
    }
    step();
    NEAR(for (int index = 0; index < MANY; index += 2) send_all(fds[index], "x", 1));
    FAR(ready = epoll_wait(set, events, MANY, 1000); say("%d ready", ready); R(epoll_wait(set, events, 3, 1000)));
    NEAR(for (int index = 0; index < MANY; index++) close(fds[index]));
    FAR(arrive(fds[MANY - 1], POLLIN); R(epoll_wait(set, events, MANY, 1000)));
}

static void masks_of_waits(void)
{
    int set = epoll_create1(0);
    struct epoll_event event;
    struct timespec time = {0, 20000000}, wrong = {0, 2000000000};
    sigset_t blocked, none;

    FAR(count_signals(SIGUSR1, 0); sigemptyset(&none); sigemptyset(&blocked); sigaddset(&blocked, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &blocked, NULL); R(watch(set, s, EPOLLIN)); raise(SIGUSR1);
        R(epoll_wait(set, &event, 1, 10)); R(epoll_pwait(set, &event, 1, 1000, &none)); say("%d signals", signals);
        raise(SIGUSR1); R(epoll_pwait2(set, &event, 1, NULL, &none)); say("%d signals", signals);
        TIMED(18, 900, R(epoll_pwait2(set, &event, 1, &time, NULL))); R(epoll_pwait2(set, &event, 1, &wrong, NULL)));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(R(epoll_pwait2(set, &event, 1, &time, &none)); R(epoll_pwait(set, &event, 1, -1, &none)));
}

/* Over before a moment of polling is. */
static void masks_of_short_waits(void)
{
    int set = epoll_create1(0), interrupted = 0;
    struct timespec time = {0, 1000};
    struct epoll_event event;
    sigset_t blocked, none;

    FAR(count_signals(SIGUSR1, 0); sigemptyset(&none); sigemptyset(&blocked); sigaddset(&blocked, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &blocked, NULL); R(watch(set, s, EPOLLIN));
        for (int round = 0; round < 40; round++)
            raise(SIGUSR1), interrupted += epoll_pwait2(set, &event, 1, &time, &none) < 0 && errno == EINTR;
        say("%d interrupted, %d signals", interrupted, signals));
}

/* A set gives few events at a time: everyone gets a turn. */
static void small_waits_with_others_ready(void)
{
    int set = epoll_create1(0), ends[2], seen[3] = {0};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};

    NEAR(R(send(s, "x", 1, 0)));
    FAR(arrive(s, POLLIN); pipe(ends); R(write(ends[1], "p", 1)); epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event);
        event.data.u64 = 2; epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
        for (int round = 0; round < 300; round++) {
            if (epoll_wait(set, &event, 1, round % 2 ? 0 : 1000) == 1)
                seen[event.data.u64]++;
            else
                seen[0]++;
        } say("none %d, pipe %d, socket %d", seen[0], seen[1] > 50, seen[2] > 50));
}

/* What the library has to be told by the kernel must not stand in a ready descriptor's way. */
static void small_waits_with_others_coming(void)
{
    int set = epoll_create1(0), ends[2], missed = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
    char bytes[1000];

    for (int round = 0; round < 50; round++) {
        if (is_near)
            send_all(s, "x", 1);
        else {
            if (round == 0) {
                pipe(ends);
                write(ends[1], "p", 1);
                epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event);
                epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
            }
            missed += epoll_wait(set, &event, 1, 0) != 1;
            recv(s, bytes, sizeof bytes, MSG_DONTWAIT);
            missed += epoll_wait(set, &event, 1, 0) != 1;
        }
        if (round % 10 == 0)
            step();
    }
    say("missed %d", missed);
    step();
}

MAIN(JOINED(small_waits_with_others_ready), JOINED(small_waits_with_others_coming),
     JOINED(end_by_level_and_edge), JOINED(end_told_to_who_asks_nothing), JOINED(reset_in_a_set),
     JOINED(set_shared_across_fork), JOINED(taken_back_and_registered_anew), JOINED(handlers_amidst_registrations),
     JOINED(set_filled_by_a_child), JOINED(set_of_an_exec_successor_is_gone),
     JOINED(socket_passed_in), BARE(set_registered_before_connecting), BARE(registered_early_by_level),
     BARE(registered_early_by_edge), BARE(registered_early_and_changed), BARE(registered_beside_connecting),
     BARE(registered_early_and_used_in_vain), BARE(connected_again_in_a_set), JOINED(others_are_not_starved),
     BARE(many_connections_in_one_set), JOINED(masks_of_waits), JOINED(masks_of_short_waits))
