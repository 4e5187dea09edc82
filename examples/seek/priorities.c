/*
 * Urgent messages on a connection that carries bulk: how long one takes from its sending to the receiver's hands,
 * without and with direct search.
 *
 * The sender keeps up to 64 bulk messages of 16 KiB on the way and sends an urgent message of 64 bytes now and then.
 * The receiver works 50 us on each bulk message. In order, an urgent message waits for all bulk before it. By direct
 * search the receiver looks at the headers behind what it works on, and takes an urgent message as soon as it is there.
 *
 *     cc -O2 -pthread priorities.c $(pkg-config --cflags --libs viaduct) -o priorities
 *     ./priorities; viaduct run ./priorities
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <viaduct.h>

enum { BULK = 16384, URGENT = 64, AHEAD = 64, MESSAGES = 4000, EVERY = 40, WORK_NS = 50000 };

/* Every message begins so. */
struct header {
    uint32_t size;
    uint32_t urgent;
    uint64_t sent_ns;
};

static uint64_t now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void require(int condition, const char *what)
{
    if (!condition) {
        perror(what);
        exit(1);
    }
}

static void *send_messages(void *argument)
{
    static char message[BULK];
    int s = *(int *)argument;
    char credit;

    for (int number = 0, ahead = 0; number < MESSAGES; number++) {
        struct header *header = (struct header *)(void *)message;
        int urgent = number % EVERY == EVERY - 1;

        /* The receiver answers each bulk message it has worked on with a byte. */
        for (; ahead == AHEAD; ahead--)
            require(recv(s, &credit, 1, 0) == 1, "recv");
        header->size = urgent ? URGENT : BULK;
        header->urgent = (uint32_t)urgent;
        header->sent_ns = now_ns();
        for (size_t done = 0; done < header->size;) {
            ssize_t sent = send(s, message + done, header->size - done, 0);
            require(sent > 0, "send");
            done += (size_t)sent;
        }
        ahead += !urgent;
    }
    return NULL;
}

static void work(void)
{
    for (uint64_t until = now_ns() + WORK_NS; now_ns() < until;)
        ;
}

static double waits[MESSAGES];
static int counted;

static void count(const struct header *header)
{
    waits[counted++] = (double)(now_ns() - header->sent_ns) / 1000;
}

/* Takes every urgent message behind the bulk that is waiting. `seen`: offset of the first header not looked at yet. */
static int take_urgent(int s, size_t *seen)
{
    char message[URGENT];
    struct header header;
    int taken = 0;

    while (viaduct_seek_recv(s, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT, *seen) == sizeof header) {
        if (!header.urgent) {
            *seen += header.size;
            continue;
        }
        require(viaduct_seek_recv(s, message, URGENT, MSG_WAITALL, *seen) == URGENT, "viaduct_seek_recv");
        count(&header);
        taken++;
    }
    return taken;
}

static void receive_messages(int s, int search)
{
    static char message[BULK];
    size_t seen = 0;

    for (int number = 0; number < MESSAGES;) {
        struct header header;

        if (search) {
            number += take_urgent(s, &seen);
            if (number == MESSAGES)
                break;
        }
        require(viaduct_seek_recv(s, &header, sizeof header, MSG_WAITALL | MSG_PEEK, 0) == sizeof header, "peek");
        require(viaduct_seek_recv(s, message, header.size, MSG_WAITALL, 0) == (ssize_t)header.size, "receive");
        seen -= seen < header.size ? seen : header.size;
        number++;
        if (header.urgent) {
            count(&header);
            continue;
        }
        work();
        require(send(s, "", 1, 0) == 1, "send");
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void run(int search)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), room = 4 * BULK * AHEAD, one = 1, near, far;
    pthread_t thread;

    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    require(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0, "listen");
    require(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    near = socket(AF_INET, SOCK_STREAM, 0);
    require(connect(near, (struct sockaddr *)&address, length) == 0, "connect");
    far = accept(listener, NULL, NULL);
    require(far >= 0, "accept");
    setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    require(pthread_create(&thread, NULL, send_messages, &near) == 0, "pthread_create");
    counted = 0;
    receive_messages(far, search);
    pthread_join(thread, NULL);
    qsort(waits, (size_t)counted, sizeof *waits, by_value);
    printf("%-14s  %d urgent messages: median %7.0f us, slowest %7.0f us\n", search ? "direct search" : "in order", counted,
           waits[counted / 2], waits[counted - 1]);
    close(near);
    close(far);
    close(listener);
}

int main(void)
{
    run(0);
    run(1);
    return 0;
}
