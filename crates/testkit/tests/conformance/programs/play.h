/* What every program of cases uses.
 *
 * A case is one function, run by two processes at once, one at either end of a connection: `near` connects, `far`
 * accepts. It is a script: NEAR(...) is done by the near process while the far one waits, FAR(...) the other way round,
 * BOTH(...) by both at once. What a case prints is its transcript. It must not depend on what TCP leaves open, since
 * runs are compared line by line. */
#ifndef PLAY_H
#define PLAY_H

#include "../../programs/ends.h"
#include <stdbool.h>
#include <sys/uio.h>

/* A case that takes longer hangs. */
enum { PATIENCE_S = 16 };

/* Which end this process plays, and its end of the connection that a JOINED case begins with. */
extern bool is_near;
extern int s;

#define NEAR(...)                                                                                  \
    do {                                                                                           \
        if (is_near) {                                                                             \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
        step();                                                                                    \
    } while (0)
#define FAR(...)                                                                                   \
    do {                                                                                           \
        if (!is_near) {                                                                            \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
        step();                                                                                    \
    } while (0)
#define BOTH(...)                                                                                  \
    do {                                                                                           \
        __VA_ARGS__;                                                                               \
        step();                                                                                    \
    } while (0)

/* Waits until the other end has come as far. */
void step(void);
/* Numbers from one end to the other, outside of the connection. */
void tell(int number);
int ask(void);

/* A line of the transcript; one that begins with '#' is for the harness and not compared. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A call and its result, with the error's name. */
#define R(call) show_result(#call, (errno = 0, (long)(call)))
long show_result(const char *call, long result);
/* A receive of at most `count` bytes and what came. */
#define GET(fd, count, flags) show_get(#fd ", " #count ", " #flags, fd, count, flags)
long show_get(const char *call, int fd, size_t count, int flags);
/* Exactly `count` bytes, in however many pieces they come. */
#define ALL(fd, count) show_all(#fd ", " #count, fd, count)
void show_all(const char *call, int fd, size_t count);
/* Bytes as text, long ones by length and sum. */
void show_bytes(const char *what, const void *bytes, long count);
/* What poll says of one descriptor. */
#define POLL(fd, events, ms) show_poll(#fd ", " #events, fd, events, ms)
int show_poll(const char *call, int fd, int events, int ms);
void show_events(const char *what, unsigned events);
/* Runs `call` and says whether it took from `least` to `most` milliseconds. */
#define TIMED(least, most, call)                                                                   \
    do {                                                                                           \
        double began_ = now();                                                                     \
        call;                                                                                      \
        show_time((now() - began_) * 1000, least, most);                                           \
    } while (0)
void show_time(double took_ms, double least_ms, double most_ms);
/* Waits, at most two seconds, until poll tells all of these events; says nothing unless they do not come. */
void arrive(int fd, int events);

/* Connections besides `s`. Both ends call it at once; each gets its end, proved to be on the fast path where there is
 * one. */
int join(void);
/* The same over an address family, with options set on both sockets before they connect by `prepare`, if there is
 * one. */
int join_by(int family, void (*prepare)(int fd));
/* A listening socket on the loopback device; its port goes to `port`. */
int listener(int family, int *port);
int dial(int family, int port);
socklen_t loopback(int family, int port, struct sockaddr_storage *address);
/* Sends to and fro until both ends are on the fast path, if there is one; says which they are on. */
void prove(int fd);

/* Has this process's connections leave their fast paths, or come back to them, with the next bytes they carry. */
void steer(bool to_tcp);
/* Proves a connection and exchanges a word on it. */
void talk(int fd);
/* A socket option that is a number; -1 if there is none. */
int number_of(int fd, int level, int name);

/* Sends or receives `count` bytes of the pattern from place `from`; says how far it came. */
void pour(int fd, size_t from, size_t count);
void drink(int fd, size_t from, size_t count);
/* Sends as often as there is room within 50 ms, in which a connection that is moved gets to the end of both paths; says
 * nothing, returns how much it was. */
size_t fill(int fd);
/* Receives and forgets. */
void drain(int fd, size_t count);

/* Waits, at most some seconds, until the kernel stamps what is received: it begins a while after a socket has asked for
 * that. */
void await_time_stamps(void);

/* A system call that no library sees. */
long unseen_call(long number, long first, long second, long third);
/* SIGUSR1 is counted in `signals`; `flags` as for sigaction. */
extern volatile sig_atomic_t signals;
void count_signals(int number, int flags);
/* Has a signal sent to this process, or this thread of it, in a while. */
void signal_in(int ms, int number);
/* Waits for a child, and says how it ended. */
void reap(pid_t child);
/* Passes `s` to a program that is not accelerated, which answers four bytes in brackets, and waits for its end. */
void pass_to_a_plain_process(void);
/* Leaves `fd` to a child that is killed once there is something to receive. */
void leave_unread(int fd);
/* To hand a socket to others needs a peer that is in socket calls now and then: this end polls until the other says
 * `release`. */
void serve_until_released(void);
void release(void);
/* What the far end does to hand it over, while the near one is there for its part in bringing the connection back. */
#define HANDED(...)                                                                                \
    do {                                                                                           \
        if (is_near)                                                                               \
            serve_until_released();                                                                \
        else {                                                                                     \
            __VA_ARGS__                                                                            \
            release();                                                                             \
        }                                                                                          \
        step();                                                                                    \
    } while (0)

struct scenario {
    const char *name;
    void (*play)(void);
    bool joined, alone;
};
#define JOINED(name) {#name, name, true, false}
#define BARE(name) {#name, name, false, false}
/* Played by the near process with nobody at the other end. */
#define ALONE(name) {#name, name, false, true}
int play(const struct scenario *all, size_t count, int argc, char **argv);
#define MAIN(...)                                                                                  \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        static const struct scenario all[] = {__VA_ARGS__};                                        \
        return play(all, sizeof all / sizeof *all, argc, argv);                                    \
    }

#endif
