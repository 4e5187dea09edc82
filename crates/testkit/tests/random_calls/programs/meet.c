/* How the two ends come about. */
#include "calls.h"

static void *connect_beside(void *address)
{
    if (connect(ends[0].fd, address, sizeof(struct sockaddr_in)))
        perror("connect");
    return NULL;
}

/* The two wait for each other where connections are offered before they are used. */
void meet(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    pthread_t thread;

    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &length)) {
        perror("listen");
        exit(1);
    }
    ends[0] = (struct end){.fd = socket(AF_INET, SOCK_STREAM, 0), .copy = -1, .next = 0};
    thread = in_thread(connect_beside, &address);
    ends[1] = (struct end){.fd = accept(listener, NULL, NULL), .copy = -1, .next = 128};
    pthread_join(thread, NULL);
    close(listener);
    for (int end = 0; end < 2; end++)
        setsockopt(ends[end].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

void be_passed(void)
{
    int channel[2], both[2], status;
    pid_t maker;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, channel) || (maker = fork()) < 0) {
        perror("a process that makes them");
        exit(1);
    }
    if (maker == 0) {
        meet();
        _exit(pass_descriptor(channel[1], ends[0].fd) != 1 || pass_descriptor(channel[1], ends[1].fd) != 1);
    }
    close(channel[1]);
    for (int end = 0; end < 2; end++)
        both[end] = take_descriptor(channel[0]);
    close(channel[0]);
    waitpid(maker, &status, 0);
    if (status != 0 || both[0] < 0 || both[1] < 0) {
        say("the ends were not passed: %x\n", status);
        exit(1);
    }
    for (int end = 0; end < 2; end++)
        ends[end] = (struct end){.fd = both[end], .copy = -1, .next = (unsigned char)(128 * end)};
}

void warm_up_ends(bool patiently)
{
    for (int round = 0; round < 8; round++) {
        if (patiently)
            sleep_ms(4);
        if (!send_all(ends[round % 2].fd, buffer, 3000) || !receive_all(ends[1 - round % 2].fd, buffer, 3000)) {
            perror("warm up");
            exit(1);
        }
    }
}
