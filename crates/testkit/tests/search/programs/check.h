/* What every program of checks uses. A check is a function; it fails by saying why. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

/* Two ends of one connection over the loopback device, used a little, so that it has its fast path if it gets one. */
struct pair {
    int near, far;
};
struct pair make_pair(void);
void close_pair(struct pair pair);
/* Bytes to and fro with pauses: enough for both ends to be matched. */
void warm_up(int near, int far);

/* Runs `work` in a thread. */
pthread_t in_thread(void *(*work)(void *), void *argument);

double now(void);
void sleep_ms(int ms);
/* Sends or receives all of it; false on any error. */
int send_all(int fd, const void *bytes, size_t count);
int receive_all(int fd, void *bytes, size_t count);
/* The byte at a place of the streams that checks send. */
unsigned char pattern(size_t at);

int run_checks(const struct check *checks, size_t count, int argc, char **argv);

#endif
