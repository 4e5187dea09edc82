/* What every program of checks uses. A check is a function; it fails by saying why. */
#ifndef CHECK_H
#define CHECK_H

#include "../../programs/ends.h"
#include <viaduct.h>

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

/* Whether the machine has what a check needs. If not it says so, and fails where everything is required. */
int can_check(int has, const char *what);
/* Natively the ordinary calls do not mind holes. */
int under_viaduct(void);
/* Under Viaduct, where connections get lanes. */
int on_lane(void);
/* Receives in order: by the ordinary calls where they mind holes. */
ssize_t in_order(int fd, void *bytes, size_t count, int flags);
/* Unread bytes, by the ordinary call where it minds holes. */
long waiting(int fd);
/* What has been sent is there. */
void settle(void);
/* Sends ten digits, which are there then; false on any error. */
int send_digits(int fd);
/* A connection on which they have been sent, and nothing has been received. */
struct pair pair_with_digits(void);
/* Closes it without an end of its stream. */
void reset(int fd);
/* Until the thread waits in the kernel: no if it has ended instead, or has not done so for some seconds. */
int falls_asleep(pid_t tid);
/* Runs `work` in a thread, up to where it waits; its number. */
pthread_t in_sleeping_thread(void *(*work)(void *), void *argument, pid_t *tid);

/* The kernel is as before Linux 6.9. */
extern int old;

int run_checks(const struct check *checks, size_t count, int argc, char **argv);

#endif
