/* Connections with both ends in one process. */
#include "check.h"
#include "internal.h"

static int accept_on(int listener, int near)
{
    int far = accept(listener, NULL, NULL);
    if (far < 0 || near < 0) {
        perror("pair");
        exit(1);
    }
    return far;
}

struct pair make_pair(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pair pair;

    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 8) ||
        getsockname(listener, (struct sockaddr *)&address, &length)) {
        perror("listen");
        exit(1);
    }
    pair.near = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(pair.near, (struct sockaddr *)&address, length)) {
        perror("connect");
        exit(1);
    }
    pair.far = accept_on(listener, pair.near);
    close(listener);
    warm_up(pair.near, pair.far);
    if (fast_expected) {
        double until = now() + 3;
        bool fast;
        while (!(fast = on_fast_path(pair.near) && on_fast_path(pair.far)) && now() < until)
            warm_up(pair.near, pair.far);
        say("#path %s", fast ? "shm" : "tcp");
    }
    return pair;
}

void close_pair(struct pair pair)
{
    close(pair.near);
    close(pair.far);
}

void warm_up(int near, int far)
{
    char bytes[100] = {0};

    for (int round = 0; round < 12; round++) {
        if (!send_all(near, bytes, sizeof bytes) || !receive_all(far, bytes, sizeof bytes) ||
            !send_all(far, bytes, sizeof bytes) || !receive_all(near, bytes, sizeof bytes)) {
            perror("warm_up");
            exit(1);
        }
        sleep_ms(round < 6 ? 1 : 3);
    }
}

int exited_well(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
