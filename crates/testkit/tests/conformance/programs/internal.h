/* Between the parts of the harness. */
#ifndef INTERNAL_H
#define INTERNAL_H

#include "play.h"

/* Both ends are accelerated, so that their connections must come onto the fast path. */
extern bool fast_expected;

/* Waits for so long, or until the process ends, for which it answers false. Notes how late this one wakes. */
bool rest(int process, int us);
/* Moves the connections of the process `pid`, of which there is a descriptor, between their paths at random moments
 * until it ends. */
void storm(pid_t pid, int process, unsigned seed);
/* Whether both directions of `fd` are on the fast path, as this process's counters tell. */
bool on_fast_path(int fd);

#endif
