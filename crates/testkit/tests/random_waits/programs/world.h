/* What the parts of the program share: the ends of connections, with a model of what each has sent and received, the
 * epoll sets that they are registered in, and the threads that sleep. One thread, the director, decides everything and
 * keeps the model. */
#ifndef WORLD_H
#define WORLD_H

#include "../../programs/ends.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

enum { LINKS = 4, ENDS = 2 * LINKS, COPIES = 80, SETS = 3, SLEEPERS = 4, ENTRIES = 4, EVENTS = 16 };

/* How long what is due may take, in seconds. */
#define PATIENCE 2.0
/* What is left of it to who polls, and when it was last looked at. */
struct patience {
    double left, looked;
};

/* One end of a connection. Of what it has sent its peer has received `got` bytes. */
struct end {
    int fd, number;
    /* In the other process. */
    bool far;
    bool shut;
    uint64_t sent, got, seed;
    struct end *peer;
    int copy[COPIES], copies;
    /* A thread receives, so nobody else may; it takes what comes though it waits for more. */
    bool received_by_sleeper, received_in_part;
    /* When there was something to receive for the last time, and when a send met a full connection. */
    uint64_t readable_at, full_at;
};
extern struct end ends[ENDS];
/* How many there are, the fewer the more happens to each. */
extern unsigned links, set_count;

/* Moments: how many deeds of the director there have been. */
extern uint64_t moment;

/* Connections change their paths, so that what has just been said of room may be over. */
extern bool moved;
/* They come onto their fast paths while they are used. One-shot registrations are left to the kernel then until they
 * are armed again: it takes the library's marks for bytes, and knows of its own room only. */
extern bool young;
/* The other process is another user's. */
extern bool strangers;

/* A number below `limit`, from the seed. */
unsigned below(unsigned limit);
bool chance(unsigned percent);
/* So many seconds from now on, in which time does not count for which the machine stands still: what is waited for
 * stands still as well. */
struct patience patience_of(double seconds);
bool is_over(struct patience *patience);
/* A line of the report of a failure. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Shows how it came to this, and the model, and ends the program. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void show_ends(void);
void show_sets(void);
void show_sleepers(void);

/* Starts the other process; the other process's own life. */
void start_far(const char *program);
int serve_as_far(int channel);
void end_far(void);

/* Makes both ends of a connection, which take the places `link * 2` and the next, and ends them. */
void join(int link);
void part(int link);
/* Sends what there is room for, at most `count` bytes. */
uint64_t give(struct end *end, uint64_t count);
/* Sends until there is no more room. */
void stuff(struct end *end);
/* Receives at most `count` bytes of what there is. */
uint64_t take(struct end *end, uint64_t count);
/* Receives everything, waiting for what is on its way, and then perhaps finds nothing. */
void empty(struct end *end);
/* Ends the stream that `end` sends. */
void shut(struct end *end);
/* A sleeper has received so many bytes. */
void taken_by_sleeper(struct end *end, const void *bytes, uint64_t count, bool stay);
/* Fills in bytes to send from place `at` on. */
void fill_in(const struct end *end, void *bytes, uint64_t at, size_t count);
uint64_t unread(const struct end *end);
bool readable(const struct end *end);
bool surely_readable(const struct end *end);
/* The end of the stream is there, and not behind bytes that wait for the window to open. */
bool surely_ended(const struct end *end);
/* Nothing is on its way, so there must be room. */
bool surely_roomy(const struct end *end);
/* Checks that there is room as a wait has said that began at `since`. */
void must_have_room(struct end *end, uint64_t since);
struct end *any_end(void);
/* One of the near process's ends. */
struct end *any_near(void);
/* The end's descriptor or a copy of it. */
int any_descriptor(const struct end *end);

void make_sets(void);
void close_sets(void);
/* Closes a set and makes another. */
void renew_set(int set);
/* The set's descriptor or a copy of it. */
int set_descriptor(int set);
int any_set(void);
/* Bytes or an end have come, or a program has been told that there is no room. */
void sets_see_arrival(struct end *end);
void sets_see_full(struct end *end);
/* The end, or one of its descriptors, is about to be closed. */
void sets_lose(struct end *end);
void leave_sets(int fd);
/* Registers, changes or deregisters something. */
void add_to(int set, struct end *end, int fd);
void control_something(void);
/* Whether a wait in the set must return. */
bool set_is_due(int set);
/* What a wait in the set that began at `since` was told, and what is done about it. */
void hear(int set, const struct epoll_event *events, int count, uint64_t since, bool react);
/* What is ready is dealt with, so that waits sleep. */
void calm(int set);
/* An event of the set's other descriptor. */
void stir(int set);
/* Deals with an end that has bytes to receive. */
void attend(struct end *end);

void make_sleepers(void);
void start_sleeper(void);
/* Every wait that must return does, and what it returns is right. */
void settle(void);
/* Whether threads use the end, or sleep in the set. */
bool slept_on(const struct end *end);
bool slept_in(int set);
/* A thread sends more than there is room for while the peer receives. */
void send_blocked(struct end *end);
void wake_all(void);
void end_sleepers(void);
/* Short waits without traffic, after which a set's members are idle. */
void idle(int set);
/* A wait of the director's own, of at most `ms`. */
void look(int set, int ms);
extern unsigned long woken, told;
extern double slowest;

#endif
