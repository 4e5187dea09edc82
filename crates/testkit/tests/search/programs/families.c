/* Direct search on TCP over IPv6, with IPv4 addresses written as those of IPv6, and on the same for sockets of both
 * families; and in a family of processes. */
#include "check.h"

#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>
#include <viaduct.h>

static const struct in6_addr mapped = {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}};

/* A connection between sockets of these families and kinds to this address, whichever of the families can tell it. */
static struct pair pair_of(int near, int far, int kind, struct in6_addr to)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = near == AF_INET6 ? to : in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 bound = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    struct sockaddr_in bound_four = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size;
    int listener = socket(far, kind, 0), off = 0;
    struct pair p = {socket(near, kind, 0), -1};

    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    size = far == AF_INET6 ? sizeof bound : sizeof bound_four;
    if (bind(listener, far == AF_INET6 ? (struct sockaddr *)&bound : (struct sockaddr *)&bound_four, size) ||
        listen(listener, 8) ||
        getsockname(listener, far == AF_INET6 ? (struct sockaddr *)&bound : (struct sockaddr *)&bound_four, &size)) {
        perror("listen");
        exit(1);
    }
    six.sin6_port = four.sin_port = far == AF_INET6 ? bound.sin6_port : bound_four.sin_port;
    if (near == AF_INET6 ? connect(p.near, (struct sockaddr *)&six, sizeof six)
                         : connect(p.near, (struct sockaddr *)&four, sizeof four)) {
        perror("connect");
        exit(1);
    }
    p.far = accept(listener, NULL, NULL);
    close(listener);
    warm_up(p.near, p.far);
    return p;
}

/* Bytes out of the middle, in both directions, then what is left. */
static void search(struct pair p)
{
    char bytes[16];
    int ends[] = {p.near, p.far, p.near};

    for (int index = 0; index < 2; index++) {
        int from = ends[index], to = ends[index + 1];

        EXPECT(send_all(from, "0123456789", 10));
        EXPECT(viaduct_seek_recv(to, bytes, 3, MSG_WAITALL, 4) == 3 && !memcmp(bytes, "456", 3));
        EXPECT(viaduct_seek_recv(to, bytes, 2, MSG_WAITALL, 3) == 2 && !memcmp(bytes, "37", 2));
        EXPECT(viaduct_readable(to) == 5);
        EXPECT(in_order(to, bytes, sizeof bytes, 0) == 5 && !memcmp(bytes, "01289", 5));
        EXPECT_ERROR(viaduct_seek_recv(to, bytes, 1, MSG_DONTWAIT, 1), EAGAIN);
    }
    EXPECT(shutdown(p.near, SHUT_WR) == 0 && viaduct_seek_recv(p.far, bytes, 1, 0, 9) == 0);
}

static void six_to_six(void)
{
    struct pair p = pair_of(AF_INET6, AF_INET6, SOCK_STREAM, in6addr_loopback);

    search(p);
    close_pair(p);
}

static void four_to_six(void)
{
    struct pair p = pair_of(AF_INET, AF_INET6, SOCK_STREAM, in6addr_loopback);

    search(p);
    close_pair(p);
}

static void mapped_to_six(void)
{
    struct pair p = pair_of(AF_INET6, AF_INET6, SOCK_STREAM, mapped);

    search(p);
    close_pair(p);
}

static void mapped_to_four(void)
{
    struct pair p = pair_of(AF_INET6, AF_INET, SOCK_STREAM, mapped);

    search(p);
    close_pair(p);
}

static void messages_over_six(void)
{
    struct pair p = pair_of(AF_INET6, AF_INET6, SOCK_STREAM, in6addr_loopback);
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    struct viaduct_msg info;
    uint32_t number;

    EXPECT(inbox && viaduct_inbox_add(inbox, p.far) == 0);
    for (number = 0; number < 3000; number++)
        EXPECT(viaduct_msg_send(p.near, number % 3, &number, sizeof number) == 0);
    for (uint32_t tag = 3; tag-- > 0;)
        for (uint32_t expected = tag; expected < 3000; expected += 3)
            EXPECT(viaduct_msg_recv(inbox, tag, 0, &number, sizeof number, 5000, &info) == sizeof number &&
                   number == expected && info.tag == tag);
    viaduct_inbox_close(inbox);
    close_pair(p);
}

static void offsets_in_messages_over_six(void)
{
    union {
        char bytes[CMSG_SPACE(sizeof(uint64_t))];
        struct cmsghdr header;
    } control = {.header = {CMSG_LEN(sizeof(uint64_t)), SOL_VIADUCT, VIADUCT_SEEK}};
    char bytes[16];
    struct iovec part = {bytes, 3};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    uint64_t offset = 4;
    struct pair p;

    if (!under_viaduct()) {
        EXPECT_ERROR(socket(AF_INET6, SOCK_SEEK_STREAM, 0), EINVAL);
        return;
    }
    p = pair_of(AF_INET6, AF_INET6, SOCK_SEEK_STREAM, in6addr_loopback);
    memcpy(CMSG_DATA(&control.header), &offset, sizeof offset);
    EXPECT(send_all(p.near, "0123456789", 10));
    EXPECT(recvmsg(p.far, &message, MSG_WAITALL) == 3 && !memcmp(bytes, "456", 3));
    EXPECT(recv(p.far, bytes, 7, MSG_WAITALL) == 7 && !memcmp(bytes, "0123789", 7));
    close_pair(p);
}

/* Whether all the sockets that can be searched beside others could be. */
static int uses_up_what_there_is(void)
{
    enum { most = 2048 };
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return 0;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int count = 0; count <= most; count++) {
        struct pair p = connect_quickly();
        char byte;

        if (send(p.near, "0123", 4, 0) != 4)
            return 0;
        if (viaduct_seek_recv(p.far, &byte, 1, MSG_WAITALL, 2) != 1)
            return errno == ENOBUFS && count > most / 2;
    }
    return 0;
}

/* A child in which the numbers of its family's processes are nobody's takes none of them for dead. */
static void processes_in_other_namespaces(void)
{
    struct pair p;
    struct rlimit limit;
    char bytes[8];
    int status = 1;
    pid_t child;

    /* The memory of so many lanes is another limit. */
    if (on_lane())
        return;
    EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (!can_check(limit.rlim_max >= 4200, "more descriptors"))
        return;
    p = connect_pair();
    EXPECT(send(p.near, "0123", 4, 0) == 4);
    EXPECT(viaduct_seek_recv(p.far, bytes, 1, MSG_WAITALL, 2) == 1 && bytes[0] == '2');
    child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID))
            _exit(77);
        child = fork();
        if (child == 0)
            _exit(!uses_up_what_there_is());
        _exit(waitpid(child, &status, 0) != child || status);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (can_check(WEXITSTATUS(status) != 77, "namespaces of processes")) {
        EXPECT(WEXITSTATUS(status) == 0);
        EXPECT(waiting(p.far) == 3 && in_order(p.far, bytes, 8, 0) == 3 && !memcmp(bytes, "013", 3));
    }
    close_pair(p);
}

/* Bytes of address space that this process has mapped; 0 if that is not told. */
static long address_space(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file && fscanf(file, "%ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Programs limit it, and most processes that fork search nothing. */
static void a_fork_takes_little_address_space(void)
{
    struct pair p = connect_quickly();
    long before = address_space();
    int status = 1;
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(before > 0 && address_space() - before < 16 << 20);
    close_pair(p);
}

/* More than have their place in every process. */
static void many_sockets_of_a_family(void)
{
    enum { many = 100 };
    static struct pair pairs[many];
    char bytes[8];
    int status = 1;
    pid_t child;

    for (int index = 0; index < many; index++) {
        pairs[index] = connect_quickly();
        EXPECT(send(pairs[index].near, "0123", 4, 0) == 4);
    }
    child = fork();
    if (child == 0) {
        for (int index = 0; index < many; index++)
            if (viaduct_seek_recv(pairs[index].far, bytes, 1, MSG_WAITALL, 2) != 1 || bytes[0] != '2')
                _exit(1);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    for (int index = many - 1; index >= 0; index--) {
        EXPECT(waiting(pairs[index].far) == 3 && in_order(pairs[index].far, bytes, 8, 0) == 3 && !memcmp(bytes, "013", 3));
        close_pair(pairs[index]);
    }
}

enum { AMID = 250 };

/* What the program does amid its next fork, once the library has prepared for that. */
static void (*amid)(void);
static struct pair searched_amid[AMID];
static pid_t made_amid;

static void do_amid(void)
{
    void (*what)(void) = amid;

    amid = NULL;
    if (what)
        what();
}

static void search_amid(void)
{
    char byte;

    for (int index = 0; index < AMID; index++)
        viaduct_seek_recv(searched_amid[index].far, &byte, 1, MSG_DONTWAIT, 1);
}

/* A child counts once among those that know a socket, also one that was first searched as the child was made: its end
 * is noticed. */
static void first_searches_amid_a_fork(void)
{
    struct pair first;
    char byte;

    if (on_lane())
        return;
    first = connect_quickly();
    /* So many sockets take seconds on a busy machine. */
    alarm(60);
    /* Who searches first shares with all that come of it. */
    EXPECT_ERROR(viaduct_seek_recv(first.far, &byte, 1, MSG_DONTWAIT, 1), EAGAIN);
    for (int round = 0; round < 9; round++) {
        int status;
        pid_t child = fork();

        if (child == 0) {
            struct pair known = connect_quickly();

            for (int index = 0; index < AMID; index++)
                searched_amid[index] = connect_quickly();
            if (viaduct_seek_recv(known.far, &byte, 1, MSG_DONTWAIT, 1) != -1 || errno != EAGAIN)
                _exit(1);
            amid = search_amid;
            child = fork();
            if (child == 0)
                _exit(0);
            if (waitpid(child, &status, 0) != child || status ||
                viaduct_seek_recv(searched_amid[AMID - 1].far, &byte, 1, MSG_DONTWAIT, 1) != -1 || errno != EAGAIN)
                _exit(2);
            /* It gives nothing back itself. */
            raise(SIGKILL);
        }
        EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    close_pair(first);
}

static void fork_amid(void)
{
    made_amid = fork();
}

/* The handler of a signal may fork amid a fork. The inner child goes on with the outer fork, as it does with whatever
 * was interrupted. */
static void forks_amid_a_fork(void)
{
    for (int round = 0; round < 20; round++) {
        struct pair p = connect_pair();
        char bytes[8];
        int status;
        pid_t child;

        EXPECT(send(p.near, "01x23", 5, 0) == 5);
        EXPECT(viaduct_seek_recv(p.far, bytes, 1, MSG_WAITALL, 2) == 1 && bytes[0] == 'x');
        made_amid = -1;
        amid = fork_amid;
        child = fork();
        if (made_amid == 0)
            /* The inner child, which has made one of its own, or that. */
            _exit(child > 0 && (waitpid(child, &status, 0) != child || status));
        if (child == 0)
            _exit(!(viaduct_seek_recv(p.far, bytes, 1, 0, 1) == 1 && bytes[0] == '1'));
        EXPECT(child > 0 && made_amid > 0);
        EXPECT(waitpid(made_amid, &status, 0) == made_amid && status == 0);
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        EXPECT(in_order(p.far, bytes, 8, 0) == 3 && !memcmp(bytes, "023", 3));
        close_pair(p);
    }
}

static const struct check checks[] = {
    {"six_to_six", six_to_six},
    {"four_to_six", four_to_six},
    {"mapped_to_six", mapped_to_six},
    {"mapped_to_four", mapped_to_four},
    {"messages_over_six", messages_over_six},
    {"offsets_in_messages_over_six", offsets_in_messages_over_six},
    {"a_fork_takes_little_address_space", a_fork_takes_little_address_space},
    {"many_sockets_of_a_family", many_sockets_of_a_family},
    {"first_searches_amid_a_fork", first_searches_amid_a_fork},
    {"forks_amid_a_fork", forks_amid_a_fork},
    /* It leaves little room for others. */
    {"processes_in_other_namespaces", processes_in_other_namespaces},
};

/* Before the library has asked for the same, so that it has prepared when this is called. */
static void ask_first(void)
{
    pthread_atfork(do_amid, NULL, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = ask_first;

int main(int argc, char **argv)
{
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
