/* Sockets given to others, by one program with both ends: exec, spawn, passing. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include "check.h"
#include <setjmp.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
extern char **environ;

/* Gives the far end to `program` as its standard input and output, and talks to it. */
static void successor(char *const arguments[], char *const environment[], int with_spawn)
{
    struct pair p = make_pair();
    posix_spawn_file_actions_t actions;
    char bytes[10];
    pid_t child;

    EXPECT(send(p.near, "before\n", 7, 0) == 7);
    if (with_spawn) {
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, p.far, 0);
        posix_spawn_file_actions_adddup2(&actions, p.far, 1);
        posix_spawn_file_actions_addclose(&actions, p.near);
        posix_spawn_file_actions_addclose(&actions, p.far);
        EXPECT(posix_spawn(&child, arguments[0], &actions, NULL, arguments, environment) == 0);
        posix_spawn_file_actions_destroy(&actions);
    } else {
        child = fork();
        if (child == 0) {
            dup2(p.far, 0);
            dup2(p.far, 1);
            close(p.near);
            close(p.far);
            execve(arguments[0], arguments, environment);
            _exit(127);
        }
    }
    close(p.far);
    EXPECT(receive_all(p.near, bytes, 7) && !memcmp(bytes, "before\n", 7));
    for (int round = 0; round < 20; round++) {
        EXPECT(send(p.near, "during\n", 7, 0) == 7);
        EXPECT(receive_all(p.near, bytes, 7) && !memcmp(bytes, "during\n", 7));
    }
    EXPECT(shutdown(p.near, SHUT_WR) == 0);
    EXPECT(recv(p.near, bytes, 1, 0) == 0);
    EXPECT(exited_well(child));
    close(p.near);
}

static char *const cat[] = {"/bin/cat", NULL};
static char *const nothing[] = {NULL};

static void a_successor_under_viaduct(void)
{
    successor(cat, environ, 0);
}

static void a_foreign_successor(void)
{
    successor(cat, nothing, 0);
}

static void a_spawned_successor(void)
{
    successor(cat, environ, 1);
}

static void a_spawned_foreign_successor(void)
{
    successor(cat, nothing, 1);
}

/* The same by every call that turns a process into another program. */
static void turn(int how)
{
    int file;

    switch (how) {
    case 0:
        execl("/bin/cat", "cat", (char *)NULL);
        break;
    case 1:
        execlp("cat", "cat", "-", (char *)NULL);
        break;
    case 2:
        execle("/bin/cat", "cat", (char *)NULL, nothing);
        break;
    case 3:
        execle("/bin/sh", "sh", "-c", "test \"$*:$WORD\" = 'a b c d e f g h i:w' && exec /bin/cat", "name", "a", "b", "c",
               "d", "e", "f", "g", "h", "i", (char *)NULL, (char *const[]){"WORD=w", NULL});
        break;
    case 4:
        execl("/bin/sh", "sh", "-c", "test \"$*\" = 'a b c d e f g h i' && exec /bin/cat", "name", "a", "b", "c", "d", "e",
              "f", "g", "h", "i", (char *)NULL);
        break;
    case 5:
        file = open("/bin/cat", O_RDONLY | O_CLOEXEC);
        fexecve(file, cat, nothing);
        break;
    case 6:
        execveat(AT_FDCWD, "/bin/cat", cat, nothing, 0);
        break;
    case 7:
        syscall(SYS_execve, "/bin/cat", cat, nothing);
        break;
    }
    _exit(127);
}

static void successors_by_every_call(void)
{
    for (int how = 0; how < 8; how++) {
        struct pair p = make_pair();
        char bytes[10];
        pid_t child;

        EXPECT(send(p.near, "before\n", 7, 0) == 7);
        child = fork();
        if (child == 0) {
            dup2(p.far, 0);
            dup2(p.far, 1);
            close(p.near);
            close(p.far);
            turn(how);
        }
        close(p.far);
        EXPECT(receive_all(p.near, bytes, 7) && !memcmp(bytes, "before\n", 7));
        EXPECT(send(p.near, "during\n", 7, 0) == 7);
        EXPECT(receive_all(p.near, bytes, 7) && !memcmp(bytes, "during\n", 7));
        EXPECT(shutdown(p.near, SHUT_WR) == 0);
        EXPECT(recv(p.near, bytes, 1, 0) == 0);
        EXPECT(exited_well(child));
        close(p.near);
    }
}

static volatile int connecting = 1;

static void *connect_again_and_again(void *unused)
{
    while (connecting)
        close_pair(make_pair());
    return unused;
}

/* Threads have connections matched while another one forks: a child must never find such work half done. */
static void forks_beside_new_connections(void)
{
    pthread_t threads[2];

    connecting = 1;
    for (int index = 0; index < 2; index++)
        threads[index] = in_thread(connect_again_and_again, NULL);
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();
        if (child == 0) {
            char byte;
            struct pair p = make_pair();
            _exit(send(p.near, "x", 1, 0) == 1 && recv(p.far, &byte, 1, 0) == 1 ? 0 : 1);
        }
        EXPECT(exited_well(child));
    }
    connecting = 0;
    for (int index = 0; index < 2; index++)
        pthread_join(threads[index], NULL);
}

static struct pair amidst;
static int begins_amidst, jumps_amidst;
static jmp_buf out;

static void before_a_fork(void)
{
    if (begins_amidst)
        amidst = connect_pair();
    begins_amidst = 0;
    if (jumps_amidst)
        longjmp(out, 1);
}

/* Earlier than any connection: handlers run in the reverse order, so that this one comes last before the fork. */
__attribute__((constructor)) static void ask_for_forks(void)
{
    pthread_atfork(before_a_fork, NULL, NULL);
}

static int exchanges(struct pair p)
{
    char bytes[4];
    return send(p.near, "ping", 4, 0) == 4 && receive_all(p.far, bytes, 4) && !memcmp(bytes, "ping", 4) &&
           send(p.far, "pong", 4, 0) == 4 && receive_all(p.near, bytes, 4) && !memcmp(bytes, "pong", 4);
}

/* A connection that is there only when everything is ready for a fork is its child's as well. */
static void connection_begun_amidst_a_fork(void)
{
    char byte;

    close_pair(make_pair());
    begins_amidst = 1;
    for (int round = 0; round < 4; round++) {
        int over[2];
        pid_t child;

        EXPECT(pipe(over) == 0);
        child = fork();
        if (child == 0) {
            close(over[1]);
            read(over[0], &byte, 1);
            _exit(exchanges(amidst) ? 0 : 1);
        }
        for (int more = 0; more < 20; more++) {
            warm_up(amidst.near, amidst.far);
            EXPECT(exchanges(amidst));
        }
        close(over[1]);
        EXPECT(exited_well(child));
        close(over[0]);
        EXPECT(exchanges(amidst));
    }
    EXPECT(shutdown(amidst.near, SHUT_WR) == 0);
    EXPECT(recv(amidst.far, &byte, 1, 0) == 0);
    close_pair(amidst);
}

static void *await(void *set)
{
    struct epoll_event event;

    return (void *)(long)epoll_wait(*(int *)set, &event, 1, 1000);
}

/* A fork that a handler jumps out of leaves nothing to the process but that. */
static void jumps_out_of_forks(void)
{
    struct pair p = make_pair();
    int set = epoll_create1(0);
    pthread_t waiter;
    pid_t child;
    void *told;

    EXPECT(watch(set, p.far, EPOLLIN) == 0);
    for (int round = 0; round < 6; round++) {
        jumps_amidst = 1;
        if (setjmp(out) == 0)
            fork();
        EXPECT(jumps_amidst);
        jumps_amidst = 0;
    }
    waiter = in_thread(await, &set);
    EXPECT(send(p.near, "x", 1, 0) == 1);
    pthread_join(waiter, &told);
    EXPECT((long)told == 1);
    EXPECT(recv(p.far, &(char){0}, 1, 0) == 1);
    close_pair(make_pair());
    child = fork();
    if (child == 0)
        _exit(exchanges(p) ? 0 : 1);
    EXPECT(exited_well(child));
    EXPECT(exchanges(p));
    EXPECT(epoll_ctl(set, EPOLL_CTL_DEL, p.far, NULL) == 0);
    close_pair(p);
}

/* A socket that is older than a fork is its child's as well, though only the parent connects it, and only then. */
static void connected_after_a_fork(void)
{
    struct sockaddr_storage address;
    int port, far_door = listener(AF_INET, &port), over[2];
    socklen_t length = loopback(AF_INET, port, &address);
    struct pair p = {.near = socket(AF_INET, SOCK_STREAM, 0)};
    char bytes[4];
    pid_t child;

    EXPECT(pipe(over) == 0);
    child = fork();
    if (child == 0) {
        close(over[1]);
        read(over[0], bytes, 1);
        _exit(receive_all(p.near, bytes, 4) && !memcmp(bytes, "ping", 4) && send_all(p.near, "pong", 4) ? 0 : 1);
    }
    EXPECT(connect(p.near, (void *)&address, length) == 0);
    p.far = accept(far_door, NULL, NULL);
    for (int round = 0; round < 50; round++) {
        warm_up(p.near, p.far);
        EXPECT(exchanges(p));
    }
    EXPECT(close(over[1]) == 0);
    EXPECT(send_all(p.far, "ping", 4));
    EXPECT(receive_all(p.far, bytes, 4) && !memcmp(bytes, "pong", 4));
    EXPECT(exited_well(child));
    EXPECT(exchanges(p));
    close(over[0]);
    close(far_door);
    close_pair(p);
}

static int pass_many(int channel, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 'f';
    struct iovec data = {&byte, 1};
    struct mmsghdr messages[2] = {
        {.msg_hdr = {.msg_iov = &data, .msg_iovlen = 1}},
        {.msg_hdr = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control}},
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&messages[1].msg_hdr);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmmsg(channel, messages, 2, 0) == 2;
}

static int pass_one(int channel, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 'f';
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(channel, &message, 0) == 1;
}

static int take_one(int channel)
{
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    int fd = -1;

    if (recvmsg(channel, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void passed_by(int many)
{
    struct pair p = make_pair();
    int channel[2];
    char bytes[8];
    pid_t child;

    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0);
    child = fork();
    if (child == 0) {
        int fd;
        close(p.near);
        close(p.far);
        fd = many && take_one(channel[1]) != -1 ? -1 : take_one(channel[1]);
        if (!receive_all(fd, bytes, 4) || memcmp(bytes, "ping", 4) || !send_all(fd, "pong", 4))
            _exit(1);
        _exit(0);
    }
    EXPECT(send(p.near, "pi", 2, 0) == 2);
    EXPECT(many ? pass_many(channel[0], p.far) : pass_one(channel[0], p.far));
    close(p.far);
    EXPECT(send(p.near, "ng", 2, 0) == 2);
    EXPECT(receive_all(p.near, bytes, 4) && !memcmp(bytes, "pong", 4));
    EXPECT(recv(p.near, bytes, 1, 0) == 0);
    EXPECT(exited_well(child));
    close(p.near);
    close(channel[0]);
    close(channel[1]);
}

static void passed_to_another_process(void)
{
    passed_by(0);
}

static void passed_among_several_messages(void)
{
    passed_by(1);
}

MAIN(ALONE(a_successor_under_viaduct), ALONE(a_foreign_successor), ALONE(a_spawned_successor),
     ALONE(a_spawned_foreign_successor), ALONE(successors_by_every_call), ALONE(forks_beside_new_connections),
     ALONE(connection_begun_amidst_a_fork), ALONE(connected_after_a_fork), ALONE(jumps_out_of_forks), ALONE(passed_to_another_process), ALONE(passed_among_several_messages))
