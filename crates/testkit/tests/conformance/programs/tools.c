/* What cases are written with. */
#include "internal.h"

long show_result(const char *call, long result)
{
    if (result == -1)
        say("%s = -1 %s", call, errno == 0 ? "without error" : strerrorname_np(errno));
    else
        say("%s = %ld", call, result);
    return result;
}

void show_bytes(const char *what, const void *bytes, long count)
{
    const unsigned char *byte = bytes;
    char text[256];
    size_t at = 0;
    unsigned long sum = 0;

    for (long index = 0; index < count; index++)
        sum = sum * 31 + byte[index];
    if (count > 60) {
        say("%s = %ld, sum %lx", what, count, sum);
        return;
    }
    for (long index = 0; index < count; index++)
        at += (size_t)snprintf(text + at, sizeof text - at,
                               byte[index] >= ' ' && byte[index] < 127 ? "%c" : "\\%02x", byte[index]);
    text[at] = 0;
    say("%s = %ld \"%s\"", what, count, text);
}

long show_get(const char *call, int fd, size_t count, int flags)
{
    char *bytes = calloc(1, count + 1), text[200];
    long got;

    errno = 0;
    got = recv(fd, bytes, count, flags);
    snprintf(text, sizeof text, "recv(%s)", call);
    if (got > 0 && !(flags & MSG_TRUNC))
        show_bytes(text, bytes, got);
    else
        show_result(text, got);
    free(bytes);
    return got;
}

void show_all(const char *call, int fd, size_t count)
{
    char *bytes = calloc(1, count + 1), text[200];
    size_t done = 0;
    ssize_t got = 0;

    while (done < count && (got = recv(fd, bytes + done, count - done, 0)) > 0)
        done += (size_t)got;
    snprintf(text, sizeof text, "all(%s)", call);
    if (got < 0)
        show_result(text, got);
    show_bytes(text, bytes, (long)done);
    free(bytes);
}

void show_events(const char *what, unsigned events)
{
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{POLLIN, "IN"},         {POLLPRI, "PRI"},       {POLLOUT, "OUT"},
                 {POLLERR, "ERR"},       {POLLHUP, "HUP"},       {POLLNVAL, "NVAL"},
                 {POLLRDNORM, "RDNORM"}, {POLLRDBAND, "RDBAND"}, {POLLWRNORM, "WRNORM"},
                 {POLLWRBAND, "WRBAND"}, {POLLRDHUP, "RDHUP"}};
    char text[200] = "";

    for (size_t index = 0; index < sizeof names / sizeof *names; index++)
        if (events & names[index].bit) {
            strcat(text, " ");
            strcat(text, names[index].name);
            events &= ~names[index].bit;
        }
    if (events)
        snprintf(text + strlen(text), 20, " %#x", events);
    say("%s:%s", what, text[0] ? text : " none");
}

int show_poll(const char *call, int fd, int events, int ms)
{
    struct pollfd wait = {fd, (short)events, 0};
    char text[200];
    int ready = poll(&wait, 1, ms);

    snprintf(text, sizeof text, "poll(%s)", call);
    if (ready < 0)
        show_result(text, ready);
    else
        show_events(text, (unsigned short)wait.revents);
    return wait.revents;
}

void show_time(double took_ms, double least_ms, double most_ms)
{
    if (took_ms < least_ms)
        say("too early: %.1f ms of %.0f", took_ms, least_ms);
    else if (took_ms > most_ms)
        say("too late: %.1f ms of %.0f", took_ms, most_ms);
    else
        say("in time");
}

void arrive(int fd, int events)
{
    double until = now() + 2;

    do {
        struct pollfd wait = {fd, (short)events, 0};
        if (poll(&wait, 1, 0) > 0 && (wait.revents & events) == events)
            return;
        sleep_ms(1);
    } while (now() < until);
    say("events %#x do not come", (unsigned)events);
}

socklen_t loopback(int family, int port, struct sockaddr_storage *address)
{
    memset(address, 0, sizeof *address);
    if (family == AF_INET6) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
        *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        return sizeof *six;
    }
    *(struct sockaddr_in *)address = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return sizeof(struct sockaddr_in);
}

int listener(int family, int *port)
{
    struct sockaddr_storage address;
    socklen_t length = loopback(family, 0, &address);
    int fd = socket(family, SOCK_STREAM, 0);

    if (bind(fd, (struct sockaddr *)&address, length) || listen(fd, 16) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        say("no listener: %s", strerrorname_np(errno));
    *port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    return fd;
}

int dial(int family, int port)
{
    struct sockaddr_storage address;
    socklen_t length = loopback(family, port, &address);
    int fd = socket(family, SOCK_STREAM, 0);

    if (connect(fd, (struct sockaddr *)&address, length))
        say("no connection: %s", strerrorname_np(errno));
    return fd;
}

void await_time_stamps(void)
{
    int on = 1, port, listening = listener(AF_INET, &port), near, far, stamped = 0;

    setsockopt(listening, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on);
    near = dial(AF_INET, port);
    far = accept(listening, NULL, NULL);
    for (double until = now() + 5; !stamped && now() < until;) {
        char byte, control[64];
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};

        stamped = send_all(near, "t", 1) && recvmsg(far, &message, 0) == 1 && message.msg_controllen > 0;
        if (!stamped)
            sleep_ms(1);
    }
    if (!stamped)
        say("nothing is stamped");
    close(near);
    close(far);
    close(listening);
}

int join_by(int family, void (*prepare)(int fd))
{
    struct sockaddr_storage address;
    int fd, port;

    if (is_near) {
        socklen_t length = loopback(family, ask(), &address);
        fd = socket(family, SOCK_STREAM, 0);
        if (prepare)
            prepare(fd);
        if (connect(fd, (struct sockaddr *)&address, length))
            say("no connection: %s", strerrorname_np(errno));
    } else {
        int listening = listener(family, &port);
        if (prepare)
            prepare(listening);
        tell(port);
        fd = accept(listening, NULL, NULL);
        if (fd < 0)
            say("nobody to accept: %s", strerrorname_np(errno));
        close(listening);
    }
    prove(fd);
    return fd;
}

int join(void)
{
    return join_by(AF_INET, NULL);
}

/* Also where the connection has a short time-out that the other end, on a busy machine, misses. */
static bool receives_in_time(int fd, double until)
{
    char byte;

    while (errno = 0, !receive_all(fd, &byte, 1))
        if (errno != EAGAIN || now() > until)
            return false;
    return true;
}

void prove(int fd)
{
    enum { FAST = 1, TIRED = 2 };
    double until = now() + 3;
    int mine = 0, others = 0, round = 0;

    do {
        if (!send_all(fd, "w", 1) || !receives_in_time(fd, until)) {
            say("no use of a connection: %s", strerrorname_np(errno));
            return;
        }
        if (!fast_expected)
            break;
        if (round++ > 2)
            sleep_ms(1);
        mine = (on_fast_path(fd) ? FAST : 0) | (now() > until ? TIRED : 0);
        tell(mine);
        others = ask();
    } while (!(mine & others & FAST) && !((mine | others) & TIRED));
    say("#path %s", mine & others & FAST ? "shm" : "tcp");
}

void talk(int fd)
{
    prove(fd);
    BOTH(R(send(fd, "word", 4, 0)); ALL(fd, 4));
}

int number_of(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof value;

    return getsockopt(fd, level, name, &value, &length) ? -1 : value;
}

void pour(int fd, size_t from, size_t count)
{
    unsigned char chunk[50021];

    for (size_t at = from; at < from + count;) {
        size_t length = at % 7 ? sizeof chunk : 13;
        if (length > from + count - at)
            length = from + count - at;
        for (size_t index = 0; index < length; index++)
            chunk[index] = pattern(at + index);
        if (!send_all(fd, chunk, length)) {
            say("poured less than %zu: %s", count, strerrorname_np(errno));
            return;
        }
        at += length;
    }
    say("poured %zu", count);
}

void drink(int fd, size_t from, size_t count)
{
    unsigned char chunk[40009];

    for (size_t at = from; at < from + count;) {
        size_t left = from + count - at;
        ssize_t got = recv(fd, chunk, left < sizeof chunk ? left : sizeof chunk, 0);
        if (got <= 0) {
            say("drank %zu of %zu: %s", at - from, count, got ? strerrorname_np(errno) : "end");
            return;
        }
        for (ssize_t index = 0; index < got; index++)
            if (chunk[index] != pattern(at + (size_t)index)) {
                say("wrong byte at %zu", at + (size_t)index);
                return;
            }
        at += (size_t)got;
    }
    say("drank %zu", count);
}

size_t fill(int fd)
{
    static char bytes[30000];
    size_t total = 0;

    for (int rest = 0; rest < 50; rest++) {
        ssize_t count;
        while ((count = send(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0 ||
               (count = send(fd, bytes, 1, MSG_DONTWAIT)) > 0)
            total += (size_t)count;
        sleep_ms(1);
    }
    return total;
}

void drain(int fd, size_t count)
{
    static char bytes[100000];

    while (count > 0) {
        ssize_t got = recv(fd, bytes, count < sizeof bytes ? count : sizeof bytes, 0);
        if (got <= 0) {
            say("drained too little: %s", got ? strerrorname_np(errno) : "end");
            return;
        }
        count -= (size_t)got;
    }
    say("drained");
}

long unseen_call(long number, long first, long second, long third)
{
    long result;

#if defined(__x86_64__)
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = first, x1 __asm__("x1") = second, x2 __asm__("x2") = third;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#else
#error "how are system calls made here?"
#endif
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

static void count_signal(int number)
{
    (void)number;
    signals++;
}

void count_signals(int number, int flags)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};

    signals = 0;
    sigaction(number, &action, NULL);
}

void signal_in(int ms, int number)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
    struct itimerspec time = {.it_value = {ms / 1000, ms % 1000 * 1000000L}};
    timer_t timer;

    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &time, NULL))
        say("no timer");
}

void reap(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) {
            say("no child: %s", strerrorname_np(errno));
            return;
        }
    if (WIFSIGNALED(status))
        say("child killed by %s", sigabbrev_np(WTERMSIG(status)));
    else
        say("child exited %d", WEXITSTATUS(status));
}

void leave_unread(int fd)
{
    pid_t child = fork();

    if (child == 0) {
        arrive(fd, POLLIN);
        raise(SIGKILL);
    }
    close(fd);
    reap(child);
}

void pass_to_a_plain_process(void)
{
    static const char program[] = "import socket, array\n"
                                  "c = socket.socket(fileno=0)\n"
                                  "m, a, f, n = c.recvmsg(1, 64)\n"
                                  "s = socket.socket(fileno=array.array('i', a[0][2])[0])\n"
                                  "s.sendall(b'<' + s.recv(4, socket.MSG_WAITALL) + b'>')\n";
    char *const arguments[] = {"/usr/bin/python3", "-c", (char *)program, NULL}, *const nothing[] = {NULL};
    int channel[2];

    socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
    pid_t child = fork();
    if (child == 0) {
        dup2(channel[1], 0);
        close(s);
        execve(arguments[0], arguments, nothing);
        _exit(127);
    }
    R(pass_descriptor(channel[0], s));
    close(s);
    reap(child);
}
