/* Signals: interrupted calls, restarts, handlers that use the socket. */
#include "play.h"
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>

static void answer_nothing(int number)
{
    (void)number;
}

static void interrupted_receive(void)
{
    FAR(count_signals(SIGUSR1, 0); signal_in(60, SIGUSR1); TIMED(15, 900, GET(s, 1, 0)); say("%d signals", signals));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

static void restarted_receive(void)
{
    if (is_near) {
        sleep_ms(200);
        R(send(s, "x", 1, 0));
    } else {
        count_signals(SIGUSR1, SA_RESTART);
        signal_in(60, SIGUSR1);
        TIMED(40, 900, GET(s, 1, 0));
        say("%d signals", signals);
    }
    step();
}

static void restart_by_other_names(void)
{
    for (int how = 0; how < 3; how++) {
        if (is_near) {
            sleep_ms(120);
            R(send(s, "x", 1, 0));
        } else {
            count_signals(SIGUSR1, 0);
            if (how == 0)
                siginterrupt(SIGUSR1, 0);
            else if (how == 1)
                signal(SIGUSR1, SIG_IGN);
            else
                signal(SIGUSR1, SIG_DFL), signal(SIGUSR1, SIG_IGN);
            signal_in(60, SIGUSR1);
            GET(s, 1, 0);
        }
        step();
    }
}

static void no_restart_by_other_names(void)
{
    FAR(count_signals(SIGUSR1, SA_RESTART); siginterrupt(SIGUSR1, 1); signal_in(60, SIGUSR1); GET(s, 1, 0));
    FAR(sysv_signal(SIGUSR1, (__sighandler_t)(void *)sleep_ms); signal_in(60, SIGUSR1); GET(s, 1, 0));
    NEAR(sleep_ms(1); R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

static void no_restart_with_a_time_out(void)
{
    struct timeval time = {2, 0};

    FAR(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time); count_signals(SIGUSR1, SA_RESTART); signal_in(60, SIGUSR1);
        TIMED(15, 900, GET(s, 1, 0)); say("%d signals", signals));
}

static void other_handlers_do_not_matter(void)
{
    struct sigaction quick = {.sa_handler = SIG_IGN};

    if (is_near) {
        sleep_ms(200);
        R(send(s, "x", 1, 0));
    } else {
        quick.sa_handler = (void (*)(int))(void *)sleep_ms;
        /* A handler without SA_RESTART for a signal that does not come. */
        sigaction(SIGUSR2, &quick, NULL);
        count_signals(SIGUSR1, SA_RESTART);
        signal_in(60, SIGUSR1);
        GET(s, 1, 0);
    }
    step();
}

static volatile int changing;

static void *change_handlers(void *unused)
{
    struct sigaction quick = {.sa_handler = answer_nothing}, none = {.sa_handler = SIG_IGN};

    while (changing) {
        sigaction(SIGUSR2, &quick, NULL);
        sigaction(SIGUSR2, &none, NULL);
    }
    return unused;
}

/* With handlers of both kinds a receive may have to sleep in another way than with one; it must not lose its waker over
 * that. */
static void handlers_change_while_receives_wait(void)
{
    char byte = 'x';
    int rounds = 0;
    pthread_t thread;

    count_signals(SIGUSR1, SA_RESTART);
    changing = 1;
    thread = in_thread(change_handlers, NULL);
    for (double until = now() + 0.5; is_near ? now() < until : 1; rounds++) {
        if (is_near && (!send_all(s, &byte, 1) || !receive_all(s, &byte, 1)))
            break;
        if (!is_near && (!receive_all(s, &byte, 1) || byte == 'e' || !send_all(s, &byte, 1)))
            break;
    }
    if (is_near)
        send_all(s, "e", 1);
    changing = 0;
    pthread_join(thread, NULL);
    say("to and fro %d", rounds > 100);
    step();
}

static void interrupted_waits(void)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd wait = {s, POLLIN, 0};
    fd_set in;

    FAR(FD_ZERO(&in); FD_SET(s, &in); epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
    for (int flags = 0; flags < 2; flags++) {
        FAR(count_signals(SIGUSR1, flags ? SA_RESTART : 0); signal_in(60, SIGUSR1); R(poll(&wait, 1, 1000));
            signal_in(60, SIGUSR1); R(poll(&wait, 1, -1)); signal_in(60, SIGUSR1); R(ppoll(&wait, 1, NULL, NULL));
            signal_in(60, SIGUSR1); R(select(s + 1, &in, NULL, NULL, NULL)); signal_in(60, SIGUSR1);
            R(pselect(s + 1, &in, NULL, NULL, NULL, NULL)); signal_in(60, SIGUSR1); R(epoll_wait(set, &event, 1, -1));
            signal_in(60, SIGUSR1); R(epoll_pwait(set, &event, 1, 1000, NULL)); say("%d signals", signals));
    }
}

static void interrupted_send(void)
{
    static char bytes[1 << 22];

    NEAR(count_signals(SIGUSR1, 0); fill(s); signal_in(60, SIGUSR1); errno = 0;
         long sent = send(s, bytes, sizeof bytes, 0); fill(s); signal_in(60, SIGUSR1); sent = sent < (long)sizeof bytes;
         say("whole %d, %d signals", !sent, signals));
}

static void restarted_send(void)
{
    static char bytes[100];
    long total;

    if (is_near) {
        count_signals(SIGUSR1, SA_RESTART);
        total = (long)fill(s);
        tell((int)total);
        signal_in(60, SIGUSR1);
        R(send(s, bytes, sizeof bytes, 0));
        /* The kernel may have found room after all: then the signal comes now. */
        sleep_ms(100);
        say("%d signals", signals);
    } else {
        total = ask();
        sleep_ms(200);
        drain(s, (size_t)total);
        drain(s, sizeof bytes);
    }
    step();
}

static void interrupted_accept_and_connect(void)
{
    int port, listening = listener(AF_INET, &port);

    BOTH(count_signals(SIGUSR1, 0); signal_in(60, SIGUSR1); R(accept(listening, NULL, NULL)); say("%d signals", signals));
    BOTH(count_signals(SIGUSR1, SA_RESTART); signal_in(60, SIGUSR1); int made = dial(AF_INET, port);
         R(send(made, "x", 1, 0)); signal_in(5, SIGUSR1); int got = accept(listening, NULL, NULL); GET(got, 1, 0);
         sleep_ms(150); say("%d signals", signals));
}

static void masked_signals_wait(void)
{
    sigset_t blocked, pending;

    if (is_near) {
        sleep_ms(200);
        R(send(s, "x", 1, 0));
    } else {
        count_signals(SIGUSR1, 0);
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGUSR1);
        sigprocmask(SIG_BLOCK, &blocked, NULL);
        signal_in(60, SIGUSR1);
        GET(s, 1, 0);
        sigpending(&pending);
        say("%d signals, pending %d", signals, sigismember(&pending, SIGUSR1));
        sigprocmask(SIG_UNBLOCK, &blocked, NULL);
        say("%d signals", signals);
    }
    step();
}

static void stop_and_continue(void)
{
    if (is_near) {
        sleep_ms(200);
        R(send(s, "x", 1, 0));
    } else {
        pid_t self = getpid(), child = fork();
        if (child == 0) {
            sleep_ms(15);
            kill(self, SIGSTOP);
            sleep_ms(15);
            kill(self, SIGCONT);
            _exit(0);
        }
        GET(s, 1, 0);
        reap(child);
    }
    step();
}

static void stopped_meanwhile(void)
{
    if (is_near) {
        drink(s, 0, 12000000);
    } else {
        pid_t child = fork();
        if (child == 0) {
            pour(s, 0, 12000000);
            exit(0);
        }
        for (int round = 0; round < 3; round++) {
            kill(child, SIGSTOP);
            sleep_ms(10);
            kill(child, SIGCONT);
            sleep_ms(2);
        }
        reap(child);
    }
    step();
}

static void children_end_meanwhile(void)
{
    if (is_near) {
        sleep_ms(200);
        R(send(s, "x", 1, 0));
    } else {
        pid_t child = fork();
        if (child == 0) {
            sleep_ms(15);
            _exit(0);
        }
        GET(s, 1, 0);
        reap(child);
    }
    step();
}

static void answer_in_handler(int number)
{
    int saved = errno;

    (void)number;
    send(s, "handler", 7, MSG_DONTWAIT);
    errno = saved;
}

static void handlers_send(void)
{
    if (is_near) {
        ALL(s, 7);
        R(send(s, "x", 1, 0));
    } else {
        struct sigaction action = {.sa_handler = answer_in_handler, .sa_flags = SA_RESTART};
        sigaction(SIGUSR1, &action, NULL);
        signal_in(60, SIGUSR1);
        GET(s, 1, 0);
    }
    step();
}

static volatile long got_in_handler;

static void receive_in_handler(int number)
{
    char bytes[8];

    (void)number;
    got_in_handler = recv(s, bytes, 8, MSG_DONTWAIT);
}

static void handlers_receive(void)
{
    char byte;

    if (is_near) {
        sleep_ms(10);
        R(send(s, "x", 1, 0));
    } else {
        struct sigaction action = {.sa_handler = receive_in_handler};
        sigaction(SIGUSR1, &action, NULL);
        GET(s, 1, 0);
        signal_in(60, SIGUSR1);
        R(recv(s, &byte, 1, 0));
        say("%ld", got_in_handler);
    }
    step();
}

static void close_in_handler_now(int number)
{
    (void)number;
    close(s);
}

static void handlers_close(void)
{
    if (is_near) {
        GET(s, 1, 0);
    } else {
        struct sigaction action = {.sa_handler = close_in_handler_now};
        sigaction(SIGUSR1, &action, NULL);
        signal_in(60, SIGUSR1);
        GET(s, 1, 0);
        GET(s, 1, 0);
    }
    step();
}

static void jump_within(int number)
{
    sigjmp_buf inside;

    if (sigsetjmp(inside, 1) == 0)
        siglongjmp(inside, number);
    /* Long enough for others to believe that what this thread was about is given up. */
    sleep_ms(5);
}

static volatile int sending;

static void *send_letters(void *letter)
{
    char letters[10];
    long sent = 0;

    memset(letters, *(char *)letter, sizeof letters);
    while (sending && send_all(s, letters, sizeof letters))
        sent += (long)sizeof letters;
    return (void *)sent;
}

/* Receives until the end, and counts both letters. */
static void count_letters(long counts[2])
{
    char bytes[4096];

    for (long got; (got = recv(s, bytes, sizeof bytes, 0)) > 0;)
        for (long index = 0; index < got; index++)
            counts[bytes[index] == 'b']++;
}

/* A handler that jumps about in its own functions leaves alone what it has interrupted. */
static void handlers_jump_within_themselves(void)
{
    struct sigaction action = {.sa_handler = jump_within, .sa_flags = SA_RESTART};
    long counts[2] = {0, 0};

    if (is_near) {
        pthread_t threads[2];
        void *sent[2];
        sigaction(SIGUSR2, &action, NULL);
        sending = 1;
        for (int index = 0; index < 2; index++)
            threads[index] = in_thread(send_letters, (void *)&"ab"[index]);
        for (int round = 0; round < 60; round++) {
            pthread_kill(threads[round % 2], SIGUSR2);
            sleep_ms(7);
        }
        sending = 0;
        for (int index = 0; index < 2; index++)
            pthread_join(threads[index], &sent[index]);
        shutdown(s, SHUT_WR);
        tell((int)(long)sent[0]);
        tell((int)(long)sent[1]);
    } else {
        count_letters(counts);
        int a = ask(), b = ask();
        say("right %d %d", counts[0] == a, counts[1] == b);
    }
    step();
}

static void *within_handlers(void *stack)
{
    stack_t apart = {.ss_sp = stack, .ss_size = 1 << 16};

    sigaltstack(&apart, NULL);
    return send_letters("a");
}

/* The same where handlers have a stack of their own, above and below the thread's. */
static void handlers_jump_on_stacks_of_their_own(void)
{
    struct sigaction action = {.sa_handler = jump_within, .sa_flags = SA_RESTART | SA_ONSTACK};
    long counts[2] = {0, 0};

    if (is_near) {
        static char low[1 << 16];
        pthread_t thread, other;
        void *sent, *others;
        sigaction(SIGUSR2, &action, NULL);
        sending = 1;
        /* What is on this function's stack is above that of its threads. */
        char high[1 << 16];
        thread = in_thread(within_handlers, high);
        other = in_thread(send_letters, "b");
        for (int round = 0; round < 30; round++) {
            pthread_kill(thread, SIGUSR2);
            sleep_ms(7);
        }
        sending = 0;
        pthread_join(thread, &sent);
        sending = 1;
        pthread_t below = in_thread(within_handlers, low);
        for (int round = 0; round < 30; round++) {
            pthread_kill(below, SIGUSR2);
            sleep_ms(7);
        }
        sending = 0;
        void *more;
        pthread_join(below, &more);
        pthread_join(other, &others);
        shutdown(s, SHUT_WR);
        tell((int)((long)sent + (long)more));
        tell((int)(long)others);
    } else {
        count_letters(counts);
        int a = ask(), b = ask();
        say("right %d %d", counts[0] == a, counts[1] == b);
    }
    step();
}

static sigjmp_buf out;

static void jump_out(int number)
{
    siglongjmp(out, number);
}

static volatile pthread_t jumper;
static volatile int jumps;

static void *interrupt_often(void *unused)
{
    for (int round = 0; round < 200; round++) {
        pthread_kill(jumper, SIGUSR2);
        usleep(500);
    }
    sending = 0;
    return unused;
}

/* Whoever jumps out of a send while others send leaves nothing owned, and takes nothing from them. */
static void jumps_out_of_busy_sends(void)
{
    long counts[2] = {0, 0};

    if (is_near) {
        pthread_t thread, interrupter;
        void *sent;
        struct sigaction action = {.sa_handler = jump_out};
        sigaction(SIGUSR2, &action, NULL);
        jumper = pthread_self();
        sending = 1;
        thread = in_thread(send_letters, "b");
        jumps = -1;
        sigsetjmp(out, 1);
        if (++jumps == 0)
            interrupter = in_thread(interrupt_often, NULL);
        while (sending)
            send(s, "a", 1, 0);
        signal(SIGUSR2, SIG_IGN);
        pthread_join(interrupter, NULL);
        pthread_join(thread, &sent);
        shutdown(s, SHUT_WR);
        tell((int)(long)sent);
        say("jumped %d", jumps > 0);
    } else {
        count_letters(counts);
        int b = ask();
        say("right %d", counts[1] == b);
    }
    step();
}

MAIN(JOINED(interrupted_receive), JOINED(restarted_receive), JOINED(restart_by_other_names),
     JOINED(no_restart_by_other_names), JOINED(no_restart_with_a_time_out), JOINED(other_handlers_do_not_matter),
     JOINED(handlers_change_while_receives_wait), JOINED(interrupted_waits), JOINED(interrupted_send), JOINED(restarted_send),
     BARE(interrupted_accept_and_connect), JOINED(masked_signals_wait), JOINED(stop_and_continue),
     JOINED(stopped_meanwhile), JOINED(children_end_meanwhile), JOINED(handlers_send), JOINED(handlers_receive),
     JOINED(handlers_close), JOINED(handlers_jump_within_themselves),
     JOINED(handlers_jump_on_stacks_of_their_own), JOINED(jumps_out_of_busy_sends))
