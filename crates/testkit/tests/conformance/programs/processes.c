/* Sockets and processes: fork in all its uses. */
#include "play.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/epoll.h>

static void a_child_takes_over(void)
{
    if (is_near) {
        R(send(s, "ping", 4, 0));
        ALL(s, 4);
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            ALL(s, 4);
            R(send(s, "pong", 4, 0));
            exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

static void a_child_takes_over_with_bytes_waiting(void)
{
    NEAR(R(send(s, "early", 5, 0)));
    if (is_near) {
        ALL(s, 4);
        R(send(s, "late", 4, 0));
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            ALL(s, 5);
            R(send(s, "pong", 4, 0));
            ALL(s, 4);
            exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

/* As Redis does for a snapshot: the child has copies of everything, touches nothing, and exits. */
static void a_child_that_only_exits(void)
{
    pid_t child = -1;

    if (!is_near) {
        child = fork();
        if (child == 0) {
            sleep_ms(20);
            exit(0);
        }
    }
    for (int round = 0; round < 10; round++) {
        NEAR(R(send(s, "abcd", 4, 0)));
        FAR(ALL(s, 4); R(send(s, "efgh", 4, 0)); sleep_ms(3));
        NEAR(ALL(s, 4));
    }
    if (!is_near)
        reap(child);
    step();
    NEAR(R(close(s)));
    FAR(GET(s, 1, 0));
}

static void a_child_that_ends_at_once(void)
{
    if (!is_near) {
        pid_t child = fork();
        if (child == 0)
            _exit(3);
        reap(child);
    }
    step();
    NEAR(R(send(s, "abcd", 4, 0)));
    FAR(ALL(s, 4));
}

static void the_parent_leaves(void)
{
    if (is_near) {
        for (int round = 0; round < 20; round++) {
            send_all(s, "echo", 4);
            ALL(s, 4);
        }
        R(shutdown(s, SHUT_WR));
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            char bytes[4];
            if (fork() > 0)
                _exit(0);
            setsid();
            while (receive_all(s, bytes, 4))
                send_all(s, bytes, 4);
            _exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

static void end_only_with_the_last_holder(void)
{
    if (is_near) {
        GET(s, 1, 0);
        TIMED(20, 1000, GET(s, 1, 0));
    } else {
        pid_t child = fork();
        if (child == 0) {
            sleep_ms(20);
            send_all(s, "x", 1);
            sleep_ms(100);
            exit(0);
        }
        close(s);
        reap(child);
    }
    step();
}

static void shutdown_reaches_all_holders(void)
{
    if (is_near) {
        GET(s, 1, 0);
    } else {
        pid_t child = fork();
        if (child == 0) {
            GET(s, 1, 0);
            exit(0);
        }
        sleep_ms(20);
        shutdown(s, SHUT_RDWR);
        reap(child);
    }
    step();
}

/* Two readers of one end, in two processes: every byte arrives once. */
static void two_processes_read(void)
{
    long *sums = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned char byte;

    if (is_near) {
        for (int round = 0; round < 2000; round++) {
            byte = (unsigned char)(round % 200);
            send_all(s, &byte, 1);
        }
        R(shutdown(s, SHUT_WR));
    } else {
        pid_t child = fork();
        long *sum = child == 0 ? &sums[0] : &sums[1];
        while (recv(s, &byte, 1, 0) == 1)
            *sum += byte;
        if (child == 0)
            exit(0);
        reap(child);
        say("sum %ld", sums[0] + sums[1]);
    }
    step();
}

static void two_processes_write(void)
{
    char bytes[10];
    int counts[2] = {0, 0};

    if (is_near) {
        pid_t child = fork();
        for (int round = 0; round < 1000; round++)
            send_all(s, child == 0 ? "cccccccccc" : "pppppppppp", 10);
        if (child == 0)
            exit(0);
        reap(child);
    } else {
        for (int round = 0; round < 2000; round++)
            if (receive_all(s, bytes, 10) && !memcmp(bytes, bytes + 1, 9))
                counts[bytes[0] == 'c']++;
        say("%d %d", counts[0], counts[1]);
    }
    step();
}

static void parent_and_child_at_either_direction(void)
{
    if (is_near) {
        pour(s, 0, 300000);
        drink(s, 0, 300000);
    } else {
        pid_t child = fork();
        if (child == 0) {
            drink(s, 0, 300000);
            exit(0);
        }
        reap(child);
        pour(s, 0, 300000);
    }
    step();
}

static char stack[1 << 16];

/* Does in a table of descriptors of its own what becomes of children that will be other programs, and of their parents'
 * memory. */
static int rearrange(void *how)
{
    int ends[2], number;

    close(s);
    number = open("/dev/null", O_RDWR);
    fcntl(number, F_SETFD, FD_CLOEXEC);
    pipe(ends);
    dup2(ends[0], s);
    dup2(ends[1], 0);
    epoll_create1(0);
    close_range(10, 20, 0);
    if (!strcmp(how, "exec"))
        execl("/bin/true", "true", NULL);
    if (!strcmp(how, "fail"))
        execl("/does/not/exist", "true", NULL);
    _exit(0);
}

static void children_on_the_same_memory(void)
{
    static const char *const hows[] = {"exit", "fail", "exec"};
    int status;

    for (int how = 0; how < 3; how++) {
        if (!is_near) {
            pid_t child = clone(rearrange, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)hows[how]);
            R(waitpid(child, &status, 0) == child && WIFEXITED(status));
        }
        step();
        talk(s);
        int fd = join();
        talk(fd);
        close(fd);
    }
}

static void a_child_of_vfork(void)
{
    if (is_near) {
        ALL(s, 5);
        GET(s, 1, 0);
    } else {
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(127);
        }
        reap(child);
        R(send(s, "after", 5, 0));
        R(close(s));
    }
    step();
}

static void shell_commands_meanwhile(void)
{
    char line[16] = "";
    FILE *command;

    FAR(R(system("exit 3")); command = popen("echo word", "r"); say("%s", fgets(line, sizeof line, command)); R(pclose(command));
        R(send(s, "x", 1, 0)));
    NEAR(GET(s, 1, 0));
}

MAIN(JOINED(a_child_of_vfork), JOINED(shell_commands_meanwhile), JOINED(a_child_takes_over), JOINED(a_child_takes_over_with_bytes_waiting), JOINED(a_child_that_only_exits),
     JOINED(a_child_that_ends_at_once), JOINED(the_parent_leaves), JOINED(end_only_with_the_last_holder),
     JOINED(shutdown_reaches_all_holders), JOINED(two_processes_read), JOINED(two_processes_write),
     JOINED(parent_and_child_at_either_direction), JOINED(children_on_the_same_memory))
