/* For cases that one process plays alone, with both ends of its connections in its hands. They do not tell what they saw but hold it
 * against what kernel sockets do, and end where it is otherwise. */
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

struct pair {
    int near, far;
};
/* A connection over the loopback device, used a little, so that it has its fast path if it gets one. */
struct pair make_pair(void);
void close_pair(struct pair pair);
/* Bytes to and fro with pauses: enough for both ends to be matched. */
void warm_up(int near, int far);
/* Whether a child has ended well. */
int exited_well(pid_t child);

#endif
