/* Becomes another program, with a kernel that knows no peek offset on TCP sockets: `before PROGRAM ARGS...`. */
#define _GNU_SOURCE
#include <unistd.h>
#include "old.h"

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    refuse_peek_offsets();
    execv(words[1], words + 1);
    perror(words[1]);
    return 1;
}
