/* Connections that are handed to programs without Viaduct while the peer stands still. */
#include "play.h"
#include <spawn.h>

static void *goes_on(void *pid)
{
    sleep_ms(1500);
    kill((pid_t)(long)pid, SIGCONT);
    return NULL;
}

/* The far end stops the near one, which has told its number, for longer than a hand-over may wait for it. */
static pthread_t stand_still(void)
{
    pid_t pid = ask();

    kill(pid, SIGSTOP);
    return in_thread(goes_on, (void *)(long)pid);
}

/* The near end does not come to a call on the connection before it is stopped. */
static void be_stopped(void)
{
    tell(getpid());
    sleep_ms(300);
}

/* The far end has received and sent, and passes its end on while the near one stands still. */
static void pass_on(void)
{
    pthread_t thread;

    ALL(s, 6);
    R(send(s, "now", 3, 0));
    thread = stand_still();
    pass_to_a_plain_process();
    pthread_join(thread, NULL);
}

/* What is passed on receives `early`, which the near end has sent before it was stopped, and the rest. */
static void passed_beside(const char *early, const char *rest)
{
    if (is_near) {
        R(send(s, "before", 6, 0));
        ALL(s, 3);
        R(send(s, early, strlen(early), 0));
        be_stopped();
        R(send(s, rest, strlen(rest), 0));
        ALL(s, 6);
        GET(s, 1, 0);
    } else {
        pass_on();
    }
    step();
}

static void passed_while_the_peer_stands_still(void)
{
    passed_beside("", "word");
}

static void passed_with_bytes_of_a_peer_that_stands_still(void)
{
    passed_beside("wo", "rd");
}

static void passed_while_the_peer_stands_still_in_a_receive(void)
{
    if (is_near) {
        R(send(s, "before", 6, 0));
        ALL(s, 3);
        R(send(s, "word", 4, 0));
        tell(getpid());
        ALL(s, 6);
        GET(s, 1, 0);
    } else {
        pass_on();
    }
    step();
}

static char *const shell[] = {"/bin/sh", "-c", "read a; echo got $a", NULL}, *const nothing[] = {NULL};

static void spawned_while_the_peer_stands_still(void)
{
    if (is_near) {
        R(send(s, "before", 6, 0));
        ALL(s, 3);
        be_stopped();
        R(send(s, "hello\n", 6, 0));
        ALL(s, 10);
        GET(s, 1, 0);
    } else {
        posix_spawn_file_actions_t actions;
        pid_t child;

        ALL(s, 6);
        R(send(s, "now", 3, 0));
        pthread_t thread = stand_still();
        TIMED(0, 700, {
            posix_spawn_file_actions_init(&actions);
            for (int fd = 0; fd < 3; fd++)
                posix_spawn_file_actions_adddup2(&actions, s, fd);
            R(posix_spawn(&child, shell[0], &actions, NULL, shell, nothing));
        });
        close(s);
        reap(child);
        pthread_join(thread, NULL);
    }
    step();
}

/* None of those that get it is waited for anew, nor is one of ten peers after the other. */
static void passed_again_and_again_while_the_peer_stands_still(void)
{
    enum { MANY = 10 };
    int fds[MANY], channel[2];

    for (int index = 0; index < MANY; index++)
        fds[index] = join();
    if (is_near) {
        be_stopped();
        for (int index = 0; index < MANY; index++)
            R(send(fds[index], "word", 4, 0));
    } else {
        pthread_t thread = stand_still();
        socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
        TIMED(0, 700, {
            for (int round = 0; round < 3; round++)
                for (int index = 0; index < MANY; index++)
                    if (pass_descriptor(channel[0], fds[index]) != 1)
                        say("not passed");
        });
        pthread_join(thread, NULL);
        for (int index = 0; index < MANY; index++)
            ALL(fds[index], 4);
    }
    step();
}

/* What the peer has sent before its end can be sent again by nobody, and nothing is waited for. */
static void passed_after_the_peer_has_ended(void)
{
    int channel[2];

    if (is_near) {
        R(send(s, "bytes", 5, 0));
        R(shutdown(s, SHUT_WR));
        step();
    } else {
        step();
        socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
        TIMED(0, 150, R(pass_descriptor(channel[0], s)));
    }
    step();
}

MAIN(JOINED(passed_while_the_peer_stands_still), JOINED(passed_with_bytes_of_a_peer_that_stands_still),
     JOINED(passed_while_the_peer_stands_still_in_a_receive), JOINED(spawned_while_the_peer_stands_still),
     BARE(passed_again_and_again_while_the_peer_stands_still), JOINED(passed_after_the_peer_has_ended))
