/* Children that make a call step by step, and are killed amid it, or leave it. */
#ifndef STEPS_H
#define STEPS_H

#include "check.h"
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

/* What the call is about, for whoever makes it. */
struct work;

static struct {
    volatile int done, jumped;
} *shared;
/* On which a child receives a byte first: what it needs for itself is made then. */
static struct pair other;
static sigjmp_buf outside;

/* What the handler does: it ends its thread, of which there is another then, or jumps. */
static int ends_thread;

static void *wait_for_ever(void *argument)
{
    for (;;)
        pause();
    return argument;
}

static void jump(int signal)
{
    (void)signal;
    if (ends_thread) {
        shared->jumped = 1;
        pthread_exit(NULL);
    }
    siglongjmp(outside, 1);
}

/* A child that is about to make the call. */
static pid_t traced(int fd, int (*call)(int fd, const struct work *work), const struct work *work)
{
    int status;
    char byte;
    pid_t child;

    shared->done = shared->jumped = 0;
    if (send(other.near, "", 1, 0) != 1)
        return -1;
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (sigsetjmp(outside, 1) == 0) {
            signal(SIGUSR1, jump);
            if (in_order(other.far, &byte, 1, 0) != 1)
                _exit(1);
            if (ends_thread)
                in_thread(wait_for_ever, NULL);
            if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0)
                raise(SIGSTOP);
            shared->done = call(fd, work) ? 1 : -1;
            raise(SIGSTOP);
        }
        shared->jumped = 1;
        /* The library alone knows of no jump: it has the socket free once the thread has ended. */
        while (under_viaduct())
            pause();
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return -1;
    ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL);
    return child;
}

/* Goes on in so many steps, up to the end of the call; how many it took, -1 on any error. */
static long go_on(pid_t child, enum __ptrace_request step, long steps)
{
    long made = 0;
    int status;

    for (; made < steps && !shared->done; made++)
        if (ptrace(step, child, NULL, NULL) || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
            return -1;
    return made;
}

/* A child that has made `after` of the call's system calls; -1 on any error. `whole`: how many there are, once it has
 * made them all. */
static pid_t stopped(int fd, int (*call)(int fd, const struct work *work), const struct work *work, long after, long *whole)
{
    pid_t child = traced(fd, call, work);
    long made = child < 0 ? -1 : go_on(child, PTRACE_SYSCALL, after);

    if (made < 0 || shared->done < 0)
        return -1;
    if (shared->done)
        *whole = made;
    return child;
}

static void finish(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Before the first. */
static void prepare_steps(void)
{
    other = connect_pair();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

#endif
