/* Listeners that several processes share, or have been given: groups, sets, activation; sets that are told how a
 * connection begins. */
#include "internal.h"
#include "sets.h"

enum { WORKERS = 3, CLIENTS = 9 };

enum shared { ONE_LISTENER, ONE_LISTENER_IN_SETS, GROUP };

/* A listener of a group on `port`, which is chosen if it is 0. */
static int member(int *port)
{
    struct sockaddr_storage address;
    socklen_t length = loopback(AF_INET, *port, &address);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) || bind(fd, (struct sockaddr *)&address, length) ||
        listen(fd, 16) || getsockname(fd, (struct sockaddr *)&address, &length))
        say("no member: %s", strerrorname_np(errno));
    *port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    return fd;
}

/* Serves one client after another, as long as nobody ends it; tells by `served` of each. */
static void work(int listening, bool in_set, int served)
{
    int set = epoll_create1(0);

    if (in_set) {
        fcntl(listening, F_SETFL, O_NONBLOCK);
        watch(set, listening, EPOLLIN | EPOLLEXCLUSIVE);
    }
    for (;;) {
        struct epoll_event event;
        int fd;
        if (in_set && epoll_wait(set, &event, 1, -1) != 1)
            continue;
        fd = accept(listening, NULL, NULL);
        if (fd < 0)
            continue;
        talk(fd);
        close(fd);
        write(served, "s", 1);
    }
}

static void served_by_several(enum shared how)
{
    pid_t workers[WORKERS];
    int served[2], port = 0;
    char byte;

    if (is_near) {
        port = ask();
        for (int index = 0; index < CLIENTS; index++) {
            int fd = dial(AF_INET, port);
            talk(fd);
            GET(fd, 1, 0);
            close(fd);
        }
    } else {
        int listening = how == GROUP ? member(&port) : listener(AF_INET, &port);
        pipe(served);
        for (int index = 0; index < WORKERS; index++) {
            int own = how == GROUP && index > 0 ? member(&port) : listening;
            workers[index] = fork();
            if (workers[index] == 0)
                work(own, how == ONE_LISTENER_IN_SETS, served[1]);
            if (own != listening)
                close(own);
        }
        close(listening);
        tell(port);
        for (int index = 0; index < CLIENTS; index++)
            read(served[0], &byte, 1);
        for (int index = 0; index < WORKERS; index++) {
            kill(workers[index], SIGTERM);
            reap(workers[index]);
        }
    }
    step();
}

static void one_listener_of_several_processes(void)
{
    served_by_several(ONE_LISTENER);
}

static void one_listener_in_sets_of_several_processes(void)
{
    served_by_several(ONE_LISTENER_IN_SETS);
}

static void group_of_listeners_of_several_processes(void)
{
    served_by_several(GROUP);
}

/* As a service manager does: the program finds its listening socket as descriptor 3 and is told so by its
 * environment. */
static void listener_given_by_activation(void)
{
    static const char program[] = "import os, socket\n"
                                  "assert os.environ['LISTEN_FDS'] == '1'\n"
                                  "c, a = socket.socket(fileno=3).accept()\n"
                                  "while True:\n"
                                  "    b = c.recv(100)\n"
                                  "    if not b: break\n"
                                  "    c.sendall(b.upper())\n";
    char *const arguments[] = {"/usr/bin/python3", "-c", (char *)program, NULL};

    if (is_near) {
        int fd = dial(AF_INET, ask()), wrong = 0;
        double until = now() + 3;
        bool fast = false;
        for (int round = 0; round < 40 || (fast_expected && !fast && now() < until); round++) {
            char bytes[4];
            wrong += !send_all(fd, "word", 4) || !receive_all(fd, bytes, 4) || memcmp(bytes, "WORD", 4) != 0;
            fast |= on_fast_path(fd);
            sleep_ms(round < 10);
        }
        say("#path %s", fast ? "shm" : "tcp");
        say("wrong %d", wrong);
        R(shutdown(fd, SHUT_WR));
        GET(fd, 1, 0);
    } else {
        int port, listening = listener(AF_INET, &port);
        pid_t child = fork();
        if (child == 0) {
            char own[16];
            snprintf(own, sizeof own, "%d", getpid());
            setenv("LISTEN_FDS", "1", 1);
            setenv("LISTEN_PID", own, 1);
            dup2(listening, 3);
            if (listening != 3)
                close(listening);
            execv(arguments[0], arguments);
            _exit(127);
        }
        close(listening);
        tell(port);
        reap(child);
    }
    step();
}

static void sets_told_of_a_refusal(void)
{
    struct sockaddr_storage address;
    socklen_t length;
    int port, fd, listening, set;

    for (int how = 0; how < 2; how++) {
        listening = listener(AF_INET, &port);
        length = loopback(AF_INET, port, &address);
        BOTH(close(listening); set = epoll_create1(0); fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
             if (how == 0) R(watch(set, fd, EPOLLIN | EPOLLOUT | EPOLLET)); R(connect(fd, (struct sockaddr *)&address, length));
             if (how == 1) R(watch(set, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP)); arrive(fd, POLLERR); once(set, 1000);
             say("%s", strerrorname_np(number_of(fd, SOL_SOCKET, SO_ERROR))); close(fd); once(set, 5); close(set));
    }
}

MAIN(BARE(one_listener_of_several_processes), BARE(one_listener_in_sets_of_several_processes),
     BARE(group_of_listeners_of_several_processes), BARE(listener_given_by_activation), BARE(sets_told_of_a_refusal))
