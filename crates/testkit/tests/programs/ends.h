/* What every program of tests uses: the ends of connections, what goes over them, and time. */
#ifndef ENDS_H
#define ENDS_H

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

/* Two ends of one connection over the loopback device, used a little, so that it has its fast path if it gets one. */
struct pair {
    int near, far;
};
struct pair connect_pair(void);
/* The same, not used yet. */
struct pair connect_quickly(void);
void close_pair(struct pair pair);
/* Bytes to and fro with pauses: enough for both ends to be matched. */
void warm_up(int near, int far);

/* Sends or receives all of it; false on any error. */
int send_all(int fd, const void *bytes, size_t count);
int receive_all(int fd, void *bytes, size_t count);
/* The byte at a place of the streams that tests send. */
unsigned char pattern(size_t at);

/* Passes a descriptor over a Unix socket, and takes it there: 1 if it went, and its number, or -1. */
int pass_descriptor(int channel, int fd);
int take_descriptor(int channel);

/* Runs `work` in a thread. */
pthread_t in_thread(void *(*work)(void *), void *argument);
double now(void);
void sleep_ms(int ms);

#endif
