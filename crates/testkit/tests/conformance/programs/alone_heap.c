/* Where the heap is not to be asked for memory: somebody may be in it. By one program with both ends. */
#include "check.h"
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void look_around(void);
#define WHEN_ASKED look_around()
#include "../../programs/heap.h"

static int asked_amid_looks;

/* A heap that is asked for the first time, before `main`, finds out where it is, under a lock of its own. */
static void look_around(void)
{
    static enum { FRESH, LOOKING, KNOWN } state;
    struct timespec now = {0, 1000};
    struct timeval moment = {0, 1};
    struct sigaction action;
    fd_set set;
    char list[64];

    asked_amid_looks += state == LOOKING;
    if (state != FRESH)
        return;
    state = LOOKING;
    for (int way = 0; way < 2; way++) {
        int file = way ? (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC)
                       : open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
        struct pollfd entry = {file, POLLIN, 0};
        FD_ZERO(&set);
        FD_SET(file, &set);
        if (poll(&entry, 1, 10) < 0 || ppoll(&entry, 1, &now, NULL) < 0 ||
            select(file + 1, &set, NULL, NULL, &moment) < 0 || read(file, list, sizeof list) <= 0 ||
            fcntl(file, F_GETFD) < 0 || sigaction(SIGPIPE, NULL, &action) ||
            prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) < 0 || close(file))
            abort();
    }
    state = KNOWN;
}

static void a_heap_that_looks_around_is_left_alone(void)
{
    EXPECT(asked_amid_looks == 0);
}

/* Another thread of its parent's may have been in the heap when it was made. */
static void a_child_asks_for_no_memory(void)
{
    struct pair p = make_pair();
    char byte;
    pid_t child = _Fork();

    if (child == 0) {
        counts = 1;
        if (send(p.near, "x", 1, 0) != 1 || recv(p.near, &byte, 1, 0) != 1)
            _exit(1);
        _exit(asked != 0);
    }
    EXPECT(recv(p.far, &byte, 1, 0) == 1 && send(p.far, &byte, 1, 0) == 1);
    EXPECT(exited_well(child));
    close_pair(p);
}

/* A handler may have interrupted who was in the heap. */
static void waits_ask_for_no_memory(void)
{
    struct pair p = make_pair();
    struct pollfd entry = {p.far, POLLIN, 0};
    fd_set set;

    for (int round = 0; round < 2; round++) {
        struct timeval time = {round, 1000};
        struct timespec same = {round, 1000};
        FD_ZERO(&set);
        FD_SET(p.far, &set);
        asked = 0;
        counts = 1;
        int selected = select(p.far + 1, &set, NULL, NULL, &time);
        FD_SET(p.far, &set);
        int again = pselect(p.far + 1, &set, NULL, NULL, &same, NULL);
        int polled = poll(&entry, 1, 1 + 1000 * round);
        counts = 0;
        EXPECT(selected == round && again == round && polled == round);
        EXPECT(asked == 0);
        EXPECT(send(p.near, "x", 1, 0) == 1);
    }
    close_pair(p);
}

/* So may a handler that receives a socket, the first that comes. */
static void a_socket_that_comes_asks_for_no_memory(void)
{
    struct pair p = make_pair();
    int over[2], came = -1;
    char byte, room[CMSG_SPACE(sizeof came)] __attribute__((aligned(8)));
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};

    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, over) == 0);
    EXPECT(pass_descriptor(over[0], p.near));
    asked = 0;
    counts = 1;
    ssize_t got = recvmsg(over[1], &message, 0);
    counts = 0;
    EXPECT(got == 1 && CMSG_FIRSTHDR(&message) && asked == 0);
    memcpy(&came, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof came);
    EXPECT(send(came, "y", 1, 0) == 1 && recv(p.far, &byte, 1, 0) == 1 && byte == 'y');
    close(came);
    close(over[0]);
    close(over[1]);
    close_pair(p);
}

MAIN(ALONE(a_heap_that_looks_around_is_left_alone), ALONE(a_child_asks_for_no_memory), ALONE(waits_ask_for_no_memory),
     ALONE(a_socket_that_comes_asks_for_no_memory))
