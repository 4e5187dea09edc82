/* Asynchronous requests to the kernel, by libaio and by number, beside the C library's calls on the same
 * connections. */
#include "play.h"
#include <libaio.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

/* What the library reads of them. */
_Static_assert(offsetof(struct iocb, aio_fildes) == 20, "layout");

static io_context_t context;

static void begin(void)
{
    context = NULL;
    R(io_setup(8, &context));
}

static void end(void) { R(io_destroy(context)); }

/* The peer may have a part in it, and be busy for a moment. */
static void hand_over(struct iocb *request)
{
    int result;

    do
        result = io_submit(context, 1, &request);
    while (result == -EAGAIN);
    say("handed over: %d", result);
}

static void hand_over_by_number(struct iocb *request)
{
    long result;

    do
        result = syscall(SYS_io_submit, context, 1, &request);
    while (result == -1 && errno == EAGAIN);
    say("handed over: %ld", result);
}

/* What is done is told within two seconds. */
static void finish(const char *what)
{
    struct timespec limit = {.tv_sec = 2};
    struct io_event done = {0};
    int count = io_getevents(context, 1, 1, &done, &limit);

    say("%s: %d done, %ld", what, count, (long)done.res);
}

static void told(const char *what)
{
    struct timespec limit = {.tv_sec = 2};
    struct io_event done = {0};
    int count = io_getevents(context, 1, 1, &done, &limit);

    say("%s: %d done", what, count);
    show_events("events", (unsigned)done.res & (EPOLLIN | EPOLLHUP | EPOLLERR));
}

static void polled(void)
{
    struct iocb request;

    HANDED(begin(); io_prep_poll(&request, s, POLLIN); hand_over(&request););
    NEAR(R(send(s, "x", 1, 0)));
    FAR(told("poll"); GET(s, 1, 0); end());
}

static void polled_by_number(void)
{
    struct iocb request;

    HANDED(begin(); io_prep_poll(&request, s, POLLIN); hand_over_by_number(&request););
    NEAR(R(send(s, "x", 1, 0)));
    FAR(told("poll"); GET(s, 1, 0); end());
}

/* What is unread on the lane comes by the request, and what both send afterwards by either way. */
static void to_and_fro(void)
{
    NEAR(R(send(s, "early", 5, 0)));
    HANDED(
        char bytes[8] = "";
        struct iocb request;

        arrive(s, POLLIN);
        begin();
        GET(s, 2, 0);
        io_prep_pread(&request, s, bytes, 3, 0);
        hand_over(&request);
        finish("read");
        show_bytes("bytes", bytes, 3);
        io_prep_pwrite(&request, s, "answer", 6, 0);
        hand_over(&request);
        finish("write");
        R(send(s, " more", 5, 0));
    );
    NEAR(ALL(s, 11); R(send(s, "later", 5, 0)));
    FAR(ALL(s, 5); end());
}

/* A set that a request waits for tells it of its members. */
static void polled_by_a_set(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    struct iocb request;
    int set = epoll_create1(0);

    HANDED(
        begin();
        R(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
        io_prep_poll(&request, set, POLLIN);
        hand_over(&request);
    );
    NEAR(R(send(s, "x", 1, 0)));
    FAR(told("poll"); R(epoll_wait(set, &event, 1, 0)); GET(s, 1, 0); end());
    close(set);
}

/* Those that are wrong are refused as ever, and a connection beside files stays where it is. */
static void of_files(void)
{
    FILE *file = tmpfile();
    struct iocb request, *list[2] = {&request, NULL};
    char bytes[8] = "";

    begin();
    R(io_submit(context, -1, list));
    R(io_submit(context, 0, NULL));
    R(io_submit(context, 1, NULL));
    R(syscall(SYS_io_submit, context, 1, NULL));
    R(io_submit(context, 1, (struct iocb **)-1));
    list[0] = (struct iocb *)-1;
    R(io_submit(context, 1, list));
    list[0] = &request;
    io_prep_pwrite(&request, fileno(file), "in file", 7, 0);
    R(io_submit(context, 2, list));
    finish("write");
    list[1] = (struct iocb *)-1;
    R(io_submit(context, 2, list));
    finish("the first of two");
    io_prep_pread(&request, fileno(file), bytes, 7, 0);
    R(io_submit(context, 1, list));
    finish("read");
    show_bytes("bytes", bytes, 7);
    io_prep_pread(&request, -1, bytes, 7, 0);
    R(io_submit(context, 1, list));
    end();
    fclose(file);
    step();
    prove(s);
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

MAIN(JOINED(polled), JOINED(polled_by_number), JOINED(to_and_fro), JOINED(polled_by_a_set), JOINED(of_files))
