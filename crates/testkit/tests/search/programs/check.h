/* What every program of checks uses. A check is a function; it fails by saying why. */
#ifndef CHECK_H
#define CHECK_H

#include "../../programs/ends.h"

/* Ends the check with the values that were not as on a kernel socket. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if (!(condition)) {                                                                        \
            snprintf(failure, sizeof failure, "line %d: %s (errno %d %s)", __LINE__, #condition,   \
                     errno, strerror(errno));                                                      \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define EXPECT_ERROR(call, number)                                                                 \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long result_ = (call);                                                                     \
        if (result_ != -1 || errno != (number)) {                                                  \
            snprintf(failure, sizeof failure, "line %d: %s gave %ld, errno %d %s", __LINE__,       \
                     #call, result_, errno, strerror(errno));                                      \
            return;                                                                                \
        }                                                                                          \
    } while (0)

extern char failure[512];

struct check {
    const char *name;
    void (*run)(void);
};

int run_checks(const struct check *checks, size_t count, int argc, char **argv);

#endif
