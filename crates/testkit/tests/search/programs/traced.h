/* Children of which every system call is seen. */
#ifndef TRACED_H
#define TRACED_H

#include "check.h"
#include <sys/ptrace.h>
#include <sys/syscall.h>

/* Whether what the call receives is copied to the program. */
static int copies(const struct __ptrace_syscall_info *info)
{
    switch (info->entry.nr) {
    case SYS_recvfrom:
        return !(info->entry.args[3] & MSG_TRUNC);
    case SYS_recvmsg:
        return !(info->entry.args[2] & MSG_TRUNC);
    case SYS_read:
    case SYS_readv:
    case SYS_preadv2:
    case SYS_recvmmsg:
        return 1;
    default:
        return 0;
    }
}

/* Bytes that the kernel has copied to a child which did `work`; -1 if that failed. */
static long copied_in(int (*work)(int fd), int fd)
{
    pid_t child = fork();
    long copied = 0;
    int status, counts = 0, number = 0;

    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0)
            raise(SIGSTOP);
        _exit(!work(fd));
    }
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return -1;
    ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    for (;;) {
        struct __ptrace_syscall_info info;

        if (ptrace(PTRACE_SYSCALL, child, NULL, number) || waitpid(child, &status, 0) != child)
            return -1;
        if (!WIFSTOPPED(status))
            return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? copied : -1;
        number = WSTOPSIG(status) == (SIGTRAP | 0x80) || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
        if (WSTOPSIG(status) != (SIGTRAP | 0x80) || ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) <= 0)
            continue;
        if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
            counts = copies(&info);
        else if (info.op == PTRACE_SYSCALL_INFO_EXIT && counts && info.exit.rval > 0)
            copied += info.exit.rval;
    }
}

#endif
