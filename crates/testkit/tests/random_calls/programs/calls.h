/* What the parts of the program share: both ends of one connection, and the choice of calls. Each call is a line of
 * output: its number, the end that it is made at, what is called, and what came of it. Nothing that depends on time or
 * on numbers of descriptors is printed. */
#ifndef CALLS_H
#define CALLS_H

#include "../../programs/ends.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

enum {
    /* Longest buffer of a call, and most bytes on their way to an end: every window stays open, so that all are there
     * at once. */
    LONGEST = 9000,
    MOST_UNREAD = 30000,
    BUFFER = 3 * LONGEST,
};

struct end {
    /* -1 once it is closed; -1 if there is no copy. */
    int fd, copy;
    /* Bytes sent to it that it has not received. */
    long unread;
    /* It has sent urgent data. */
    bool urgent;
    /* The next byte that it sends. */
    unsigned char next;
};
extern struct end ends[2];
extern unsigned char buffer[BUFFER];
/* A file of FILE_SIZE bytes, and a pipe, whose ends do not wait. */
extern int file, pipe_ends[2];
enum { FILE_SIZE = 6000 };
/* Bytes that sends have taken, of all seeds. */
extern long sent_in_all;

/* A number below `limit`, from the seed. */
unsigned below(unsigned limit);
bool chance(unsigned percent);
/* A part of the line. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A result, or the name of the error. */
void say_result(long result);
/* A sum over the bytes of the buffer. */
void say_sum(const unsigned char *bytes, long count);

/* The end's descriptor, or its copy if it has one. */
int any_descriptor(int end);
/* How many bytes to move. */
long any_size(void);
/* Whether so many more may be sent by the end. */
bool has_room(int end, long count);
/* So many bytes have been sent by the end, or received. */
void was_sent(int end, long count);
void was_received(int end, long count);
/* Whether a direction has ended, or the other end is closed. */
bool is_over(int end);
/* Whether calls wait. */
void set_blocking(int end, bool blocking);

/* meet.c. The two wait for each other where connections are offered before they are used. */
void meet(void);
/* Has another process make them. */
void be_passed(void);
/* Moves some bytes both ways; `patiently`, so that both are offered and matched meanwhile. */
void warm_up_ends(bool patiently);

/* transfers.c */
void call_send(int end);
void call_receive(int end);
void call_send_messages(int end);
void call_receive_messages(int end);
void call_send_file(int end);
void call_receive_patiently(int end);
void call_with_nothing(int end);
void call_splice_in(int end);
void call_splice_out(int end);
void call_send_urgent(int end);
void call_receive_urgent(int end);

/* False where calls move the connection to TCP, for good: an edge-triggered event of bytes that are left unread then
 * may be told again. */
extern bool told_of_edges_once;

/* looks.c */
void call_poll(int end);
void call_select(int end);
void call_count(int end);
void call_error(int end);
void call_at_mark(int end);

/* sets.c: two sets, of which the second is in a third. */
extern int sets[2];
void make_sets(void);
void close_sets(void);
void call_register(int end);
void call_wait_in_set(int end);
void call_look_at_sets(int end);
void say_events(const struct epoll_event *events, long count);

/* interrupted.c */
void call_receive_interrupted(int end);
void call_wait_masked(int end);

/* settings.c */
void call_set_time_outs(int end);
void call_set_nonblocking(int end);
void call_ask_who(int end);
void call_set_low_water(int end);
void call_without_memory(int end);

/* lives.c */
void call_shut_down(int end);
void call_close(int end);
void call_copy(int end);
void call_fork(int end);
void call_linger(int end);
void call_replace(int end);
/* An end and its copy are closed in this process. */
int close_end(int end);
void leave(int end);
/* Both ends and all their copies. */
void close_all(void);

#endif
