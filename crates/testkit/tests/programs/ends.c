#include "ends.h"

static int accept_on(int listener, int near)
{
    int far = accept(listener, NULL, NULL);
    if (far < 0 || near < 0) {
        perror("pair");
        exit(1);
    }
    return far;
}

struct pair connect_quickly(void)
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
    return pair;
}

struct pair connect_pair(void)
{
    struct pair pair = connect_quickly();

    warm_up(pair.near, pair.far);
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

pthread_t in_thread(void *(*work)(void *), void *argument)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, work, argument)) {
        perror("pthread_create");
        exit(1);
    }
    return thread;
}

double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void sleep_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};

    while (nanosleep(&time, &time) && errno == EINTR)
        ;
}

int send_all(int fd, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t sent = send(fd, (const char *)bytes + done, count - done, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return 0;
        done += sent > 0 ? (size_t)sent : 0;
    }
    return 1;
}

int receive_all(int fd, void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t received = recv(fd, (char *)bytes + done, count - done, 0);
        if (received == 0 || (received < 0 && errno != EINTR))
            return 0;
        done += received > 0 ? (size_t)received : 0;
    }
    return 1;
}

unsigned char pattern(size_t at)
{
    return (unsigned char)(at * 31 + at / 251 * 7 + at / 65521);
}

int pass_descriptor(int channel, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 'f';
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return (int)sendmsg(channel, &message, 0);
}

int take_descriptor(int channel)
{
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd = -1;

    if (recvmsg(channel, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}
