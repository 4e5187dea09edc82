/* Calls that end a connection, share it, or change what becomes of it. */
#include "calls.h"

void call_shut_down(int end)
{
    static const char *const names[] = {"SHUT_RD", "SHUT_WR", "SHUT_RDWR"};
    int how = (int)below(3);

    say("shutdown %s", names[how]);
    say_result(shutdown(any_descriptor(end), how));
}

int close_end(int end)
{
    int result = 0;

    if (ends[end].copy >= 0)
        close(ends[end].copy);
    if (ends[end].fd >= 0)
        result = close(ends[end].fd);
    ends[end].fd = ends[end].copy = -1;
    /* What is sent to it from now on meets nobody. */
    ends[end].unread = 0;
    return result;
}

void leave(int end)
{
    close_end(end);
}

void call_close(int end)
{
    say("close");
    say_result(close_end(end));
}

void close_all(void)
{
    close_end(0);
    close_end(1);
}

/* A copy is made, or either is closed. */
void call_copy(int end)
{
    struct end *own = &ends[end];

    if (own->copy < 0) {
        own->copy = dup(own->fd);
        say("dup");
        say_result(own->copy < 0 ? -1 : 0);
        return;
    }
    if (chance(50)) {
        say("close copy");
        say_result(close(own->copy));
    } else {
        say("close first");
        say_result(close(own->fd));
        own->fd = own->copy;
    }
    own->copy = -1;
}

/* A child that does nothing, sends, or sends and receives. */
void call_fork(int end)
{
    unsigned what = below(3);
    int status = -1, fd = any_descriptor(end);
    long done[2] = {0, 0};
    int told[2];
    pid_t child;

    if (pipe(told)) {
        perror("pipe");
        exit(1);
    }
    say("fork");
    child = fork();
    if (child == 0) {
        if (what > 0)
            done[0] = write(fd, "M", 1);
        if (what > 1)
            done[1] = read(fd, buffer, 3);
        write(told[1], done, sizeof done);
        _exit(0);
    }
    close(told[1]);
    read(told[0], done, sizeof done);
    close(told[0]);
    waitpid(child, &status, 0);
    say(" %u = %d, %ld sent, %ld received", what, status, done[0], done[1]);
    was_sent(end, done[0]);
    was_received(end, done[1]);
}

void call_linger(int end)
{
    struct linger linger = {(int)below(2), 0};

    say("SO_LINGER %d", linger.l_onoff);
    say_result(setsockopt(any_descriptor(end), SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
}

/* The copy of one end becomes one of the other, which has none. */
void call_replace(int end)
{
    struct end *own = &ends[end], *other = &ends[!end];
    int copy = own->copy;

    if (copy < 0 || other->fd < 0 || other->copy >= 0) {
        say("dup2 onto itself");
        say_result(dup2(own->fd, own->fd) == own->fd ? 0 : -1);
        return;
    }
    own->copy = -1;
    if (chance(50)) {
        say("dup2");
        say_result(dup2(other->fd, copy) == copy ? 0 : -1);
    } else {
        say("dup3");
        say_result(dup3(other->fd, copy, O_CLOEXEC) == copy ? 0 : -1);
    }
    other->copy = copy;
}
