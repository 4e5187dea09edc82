/* Programs to which system calls are forbidden, as by kernels before Linux 6.9, which know no peek offset on TCP
 * sockets. */
#ifndef OLD_H
#define OLD_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static inline void confine(struct sock_filter *rules, size_t count)
{
    struct sock_fprog program = {count, rules};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp");
        exit(1);
    }
}

/* From now on any other system call ends the program. */
static inline void allow_only(const unsigned *calls, size_t count)
{
    struct sock_filter rules[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    size_t next = 1;

    for (size_t index = 0; index < count; index++) {
        rules[next++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[index], 0, 1);
        rules[next++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    rules[next++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    confine(rules, next);
}

/* From now on the kernel refuses this program an option of sockets. */
static inline void refuse_option(unsigned option)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOL_SOCKET, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, option, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    confine(rules, sizeof rules / sizeof *rules);
}

/* Its peek offsets. */
static inline void refuse_peek_offsets(void)
{
    int sockets[2] = {socket(AF_INET, SOCK_STREAM, 0), 1};

    refuse_option(SO_PEEK_OFF);
    /* Or the tests would be of today's kernel. */
    if (setsockopt(sockets[0], SOL_SOCKET, SO_PEEK_OFF, &sockets[1], sizeof sockets[1]) != -1 || errno != EOPNOTSUPP) {
        fprintf(stderr, "peek offsets are not refused\n");
        exit(1);
    }
    syscall(SYS_close, sockets[0]);
}

#endif
