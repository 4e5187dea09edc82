/* For cases that one process plays alone, with both ends of its connections in its hands. They do not tell what they
 * saw but hold it against what kernel sockets do, and end where it is otherwise. */
#ifndef CHECK_H
#define CHECK_H

#include "play.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if (!(condition)) {                                                                        \
            say("line %d: %s (errno %d %s)", __LINE__, #condition, errno, strerror(errno));        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define EXPECT_ERROR(call, number)                                                                 \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long result_ = (call);                                                                     \
        if (result_ != -1 || errno != (number)) {                                                  \
            say("line %d: %s gave %ld, errno %d %s", __LINE__, #call, result_, errno,              \
                strerror(errno));                                                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A connection with both ends here, proved to be on the fast path where there is one. */
struct pair make_pair(void);
/* Registers a descriptor in an epoll set, by its number; answers as epoll_ctl. */
int watch(int set, int fd, unsigned events);
/* Whether a child has ended well. */
int exited_well(pid_t child);

#endif
