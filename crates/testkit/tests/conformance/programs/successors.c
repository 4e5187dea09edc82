/* Sockets given to other programs and processes: exec, spawn, passing, inherited listeners. */
#include "play.h"
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/epoll.h>

extern char **environ;

enum way { FORKED, SPAWNED, LODGED };

struct successor {
    char *const *arguments, *const *environment;
};

static int become(void *successor)
{
    const struct successor *next = successor;

    dup2(s, 0);
    dup2(s, 1);
    close(s);
    execve(next->arguments[0], next->arguments, next->environment);
    _exit(127);
}

/* Gives the socket to `program` as its standard input and output, and talks to it. */
static void exec_on(char *const arguments[], char *const environment[], bool early, enum way way)
{
    struct successor next = {arguments, environment};
    static char stack[1 << 16];

    if (early)
        NEAR(R(send(s, "before\n", 7, 0)));
    if (is_near) {
        if (early)
            ALL(s, 7);
        for (int round = 0; round < 5; round++) {
            send_all(s, "during\n", 7);
            ALL(s, 7);
        }
        R(shutdown(s, SHUT_WR));
        GET(s, 1, 0);
    } else {
        pid_t child;
        if (way == SPAWNED) {
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, s, 0);
            posix_spawn_file_actions_adddup2(&actions, s, 1);
            posix_spawn_file_actions_addclose(&actions, s);
            R(posix_spawn(&child, arguments[0], &actions, NULL, arguments, environment));
        } else if (way == LODGED) {
            child = clone(become, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &next);
        } else {
            child = fork();
            if (child == 0)
                become(&next);
        }
        close(s);
        reap(child);
    }
    step();
}

static char *const cat[] = {"/bin/cat", NULL};
static char *const nothing[] = {NULL};

static void a_successor(void)
{
    exec_on(cat, environ, true, FORKED);
}

static void a_foreign_successor(void)
{
    exec_on(cat, nothing, true, FORKED);
}

static void a_successor_without_bytes_waiting(void)
{
    exec_on(cat, environ, false, FORKED);
}

static void a_spawned_successor(void)
{
    exec_on(cat, environ, true, SPAWNED);
}

static void a_spawned_foreign_successor(void)
{
    exec_on(cat, nothing, true, SPAWNED);
}

static void a_successor_on_the_same_memory(void)
{
    exec_on(cat, environ, true, LODGED);
}

static void a_foreign_successor_on_the_same_memory(void)
{
    exec_on(cat, nothing, true, LODGED);
}

static char *const shell[] = {"/bin/sh", "-c", "read a; echo got $a; cat", NULL};

/* As inetd does, with everything the program says on the socket. */
static void a_server_of_inetd(void)
{
    if (is_near) {
        R(send(s, "hello\n", 6, 0));
        ALL(s, 10);
        R(send(s, "more\n", 5, 0));
        ALL(s, 5);
        R(shutdown(s, SHUT_WR));
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            for (int fd = 0; fd < 3; fd++)
                dup2(s, fd);
            close(s);
            execv(shell[0], shell);
            _exit(127);
        }
        close(s);
        reap(child);
    }
    step();
}

/* A copy on a standard number is for unseen calls of the C library; but the program reads on by calls of its own. */
static void reads_on_beside_an_idle_peer(void)
{
    enum { COUNT = 600000 };

    NEAR(pour(s, 0, COUNT));
    FAR(R(dup2(s, 0)); drink(s, 0, COUNT / 2); drink(0, COUNT / 2, COUNT / 2));
}

/* The same while the peer is in a send that waits for room. */
static void reads_on_beside_a_busy_peer(void)
{
    enum { COUNT = 12000000 };

    if (is_near) {
        pour(s, 0, COUNT);
        ALL(s, 5);
    } else {
        usleep(20000);
        R(dup2(s, 0));
        drink(s, 0, COUNT / 2);
        drink(0, COUNT / 2, COUNT / 2);
        R(send(s, "heard", 5, 0));
    }
    step();
}

static void an_execvp_that_fails(void)
{
    NEAR(R(send(s, "kept", 4, 0)));
    FAR(R(execlp("/does/not/exist", "x", NULL)); R(execv("/etc/passwd", nothing)); R(execvp("no-such-program", nothing)); ALL(s, 4);
        R(send(s, "still", 5, 0)));
    NEAR(ALL(s, 5));
}

enum sign { NO_SIGN, KEPT_OPEN, COPIED, SPAWNED_OPEN };

/* The descriptor is inherited by number; the successor knows it from its arguments. The parent goes on when the child
 * has become its successor, unless that waits for it. */
static void tell_the_number(enum sign sign, bool waits, bool closes)
{
    int number = sign == COPIED ? 9 : s, begun[2];
    char command[64];

    snprintf(command, sizeof command, "read a <&%d; echo got $a >&%d", number, number);
    if (is_near) {
        R(send(s, "hello\n", 6, 0));
        ALL(s, 10);
        GET(s, 1, 0);
    } else {
        char *const arguments[] = {"/bin/sh", "-c", command, NULL};
        pipe2(begun, O_CLOEXEC);
        if (sign == KEPT_OPEN || sign == SPAWNED_OPEN)
            fcntl(s, F_SETFD, FD_CLOEXEC);
        pid_t child;
        if (sign == SPAWNED_OPEN) {
            fcntl(s, F_SETFD, 0);
            R(posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ));
        } else {
            child = fork();
        }
        if (child == 0) {
            if (waits)
                sleep_ms(25);
            if (sign == KEPT_OPEN)
                fcntl(s, F_SETFD, 0);
            if (sign == COPIED) {
                dup2(s, number);
                fcntl(s, F_SETFD, FD_CLOEXEC);
            }
            execve(arguments[0], arguments, environ);
            _exit(127);
        }
        close(begun[1]);
        if (!waits)
            read(begun[0], command, 1);
        if (closes)
            close(s);
        reap(child);
        if (!closes)
            close(s);
    }
    step();
}

static void a_successor_that_is_told_the_number(void)
{
    tell_the_number(NO_SIGN, true, true);
}

static void a_successor_that_is_meant_by_a_flag(void)
{
    tell_the_number(KEPT_OPEN, false, true);
}

static void a_successor_that_is_meant_by_a_copy(void)
{
    tell_the_number(COPIED, false, false);
}

static void a_spawned_successor_that_is_meant_by_a_flag(void)
{
    tell_the_number(SPAWNED_OPEN, false, true);
}

static void closed_by_exec(void)
{
    if (is_near) {
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        char *const arguments[] = {"/bin/true", NULL};
        if (child == 0) {
            fcntl(s, F_SETFD, FD_CLOEXEC);
            execv(arguments[0], arguments);
            _exit(127);
        }
        close(s);
        reap(child);
    }
    step();
}

static void exec_by_the_only_process(void)
{
    if (is_near) {
        ALL(s, 5);
        R(send(s, "x\n", 2, 0));
        GET(s, 1, 0);
    } else {
        R(send(s, "first", 5, 0));
        pid_t child = fork();
        if (child == 0) {
            dup2(s, 0);
            close(s);
            execl("/bin/sh", "sh", "-c", "read a && exit 5", NULL);
            _exit(127);
        }
        close(s);
        reap(child);
    }
    step();
}

/* Has a child receive and answer by the socket that it is passed. */
static void pass_to_a_child(void)
{
    int channel[2];
    pid_t child;

    socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
    child = fork();
    if (child == 0) {
        close(s);
        char told;
        int fd = take_descriptor(channel[1]);
        read(channel[1], &told, 1);
        ALL(fd, 2);
        R(send(fd, "pong", 4, 0));
        ALL(fd, 2);
        exit(0);
    }
    R(pass_descriptor(channel[0], s));
    /* Or the child might say something first. */
    write(channel[0], "", 1);
    close(s);
    reap(child);
}

static void passed_to_a_child(void)
{
    if (is_near) {
        R(send(s, "pi", 2, 0));
        ALL(s, 4);
        R(send(s, "ng", 2, 0));
        GET(s, 1, 0);
    } else {
        pass_to_a_child();
    }
    step();
}

static void passed_while_the_peer_waits_for_events(void)
{
    if (is_near) {
        struct epoll_event event = {.events = EPOLLIN};
        struct pollfd entry = {.fd = s, .events = POLLIN};
        int set = epoll_create1(0);

        R(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
        R(send(s, "pi", 2, 0));
        R(epoll_wait(set, &event, 1, -1));
        ALL(s, 4);
        R(send(s, "ng", 2, 0));
        R(poll(&entry, 1, -1));
        GET(s, 1, 0);
    } else {
        pass_to_a_child();
    }
    step();
}

static void passed_to_oneself(void)
{
    int channel[2], passed = -1;

    if (is_near) {
        serve_until_released();
    } else {
        socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
        R(pass_descriptor(channel[0], s));
        passed = take_descriptor(channel[1]);
        R(send(passed, "by copy", 7, 0));
        R(close(s));
        release();
    }
    step();
    NEAR(ALL(s, 7); R(send(s, "answer", 6, 0)));
    FAR(ALL(passed, 6); R(close(passed)));
    NEAR(GET(s, 1, 0));
}

static void passed_to_a_plain_process(void)
{
    if (is_near) {
        R(send(s, "word", 4, 0));
        ALL(s, 6);
        GET(s, 1, 0);
    } else {
        pass_to_a_plain_process();
    }
    step();
}

/* The peer takes its part later than a hand-over waits that could be taken back. */
static void passed_while_the_peer_is_busy(void)
{
    if (is_near) {
        R(send(s, "early", 5, 0));
        ALL(s, 3);
        sleep_ms(500);
        R(send(s, "word", 4, 0));
        ALL(s, 6);
        GET(s, 1, 0);
    } else {
        ALL(s, 5);
        R(send(s, "now", 3, 0));
        pass_to_a_plain_process();
    }
    step();
}

/* As a service manager does: the listening socket is there before the program, as descriptor 3. */
static void a_listener_inherited(void)
{
    int port, listening;

    if (is_near) {
        int fd = dial(AF_INET, ask());
        R(send(fd, "hello\n", 6, 0));
        ALL(fd, 10);
        GET(fd, 1, 0);
    } else {
        listening = listener(AF_INET, &port);
        pid_t child = fork();
        if (child == 0) {
            int fd;
            dup2(listening, 3);
            fd = accept(3, NULL, NULL);
            dup2(fd, 0);
            dup2(fd, 1);
            execl("/bin/sh", "sh", "-c", "read a; echo got $a", NULL);
            _exit(127);
        }
        close(listening);
        tell(port);
        reap(child);
    }
    step();
}

/* Processes that share one listener, as prefork servers do. */
static void several_accept(void)
{
    enum { WORKERS = 3, CLIENTS = 9 };
    int port, listening;
    pid_t workers[WORKERS];

    if (is_near) {
        port = ask();
        for (int index = 0; index < CLIENTS; index++) {
            int fd = dial(AF_INET, port);
            R(send(fd, "echo", 4, 0));
            ALL(fd, 4);
            GET(fd, 1, 0);
            close(fd);
        }
        tell(0);
    } else {
        listening = listener(AF_INET, &port);
        for (int index = 0; index < WORKERS; index++) {
            workers[index] = fork();
            if (workers[index] == 0)
                for (;;) {
                    char bytes[4];
                    int fd = accept(listening, NULL, NULL);
                    if (receive_all(fd, bytes, 4))
                        send_all(fd, bytes, 4);
                    close(fd);
                }
        }
        close(listening);
        tell(port);
        ask();
        for (int index = 0; index < WORKERS; index++) {
            kill(workers[index], SIGTERM);
            reap(workers[index]);
        }
    }
    step();
}

static void deep_families(void)
{
    if (is_near) {
        ALL(s, 3);
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            pid_t grandchild = fork();
            if (grandchild == 0) {
                send_all(s, "two", 3);
                exit(0);
            }
            close(s);
            reap(grandchild);
            exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

static void connections_of_children(void)
{
    int port, listening;

    if (is_near) {
        port = ask();
        pid_t child = fork();
        if (child == 0) {
            int fd = dial(AF_INET, port);
            R(send(fd, "child", 5, 0));
            GET(fd, 1, 0);
            exit(0);
        }
        reap(child);
        R(send(s, "parent", 6, 0));
    } else {
        listening = listener(AF_INET, &port);
        tell(port);
        int fd = accept(listening, NULL, NULL);
        ALL(fd, 5);
        R(close(fd));
        ALL(s, 6);
    }
    step();
}

MAIN(JOINED(a_successor), JOINED(a_foreign_successor), JOINED(a_successor_without_bytes_waiting),
     JOINED(a_spawned_successor), JOINED(a_spawned_foreign_successor),
     JOINED(a_successor_on_the_same_memory), JOINED(a_foreign_successor_on_the_same_memory), JOINED(a_server_of_inetd),
     JOINED(reads_on_beside_an_idle_peer), JOINED(reads_on_beside_a_busy_peer), JOINED(an_execvp_that_fails),
     JOINED(a_successor_that_is_told_the_number),
     JOINED(a_successor_that_is_meant_by_a_flag), JOINED(a_successor_that_is_meant_by_a_copy),
     JOINED(a_spawned_successor_that_is_meant_by_a_flag), JOINED(closed_by_exec),
     JOINED(exec_by_the_only_process),
     JOINED(passed_to_a_child), JOINED(passed_while_the_peer_waits_for_events), JOINED(passed_to_oneself), JOINED(passed_to_a_plain_process), JOINED(passed_while_the_peer_is_busy),
     BARE(a_listener_inherited), BARE(several_accept), JOINED(deep_families), JOINED(connections_of_children))
