/* Direct search by several threads and processes at once, and waits beside one another. */
#include "check.h"
#include <stdint.h>
#include <sys/epoll.h>

/* A wait of a thread's, and how it went. */
struct wait {
    int fd, flags;
    size_t offset, len;
    unsigned char bytes[64];
    ssize_t got;
    double took;
};

static void *wait_for(void *argument)
{
    struct wait *wait = argument;
    double began = now();

    wait->got = viaduct_seek_recv(wait->fd, wait->bytes, wait->len, wait->flags, wait->offset);
    wait->took = now() - began;
    return NULL;
}

static int send_words(int fd, uint32_t from, uint32_t count)
{
    static uint32_t words[16384];

    while (count > 0) {
        uint32_t now = count < 16384 ? count : 16384;
        for (uint32_t at = 0; at < now; at++)
            words[at] = from + at;
        if (!send_all(fd, words, now * sizeof *words))
            return 0;
        from += now;
        count -= now;
    }
    return 1;
}

/* A deep wait must not make a shallow one miss what it waits for, whichever began first. */
static void waits_of_different_depth(void)
{
    for (int round = 0; round < 6; round++) {
        struct pair p = connect_pair();
        struct wait deep = {p.far, MSG_WAITALL, 4000 * sizeof(uint32_t), 40, {0}, 0, 0};
        struct wait shallow = {p.far, MSG_WAITALL, round % 3 ? 400 : 0, 40, {0}, 0, 0};
        uint32_t first;
        pthread_t one, other;

        /* The first search is refused while an ordinary receive is inside the kernel. */
        EXPECT_ERROR(viaduct_seek_recv(p.far, &first, 1, MSG_DONTWAIT, 1), EAGAIN);
        one = in_thread(wait_for, round % 2 ? &deep : &shallow);
        sleep_ms(10);
        other = in_thread(wait_for, round % 2 ? &shallow : &deep);
        sleep_ms(10);
        EXPECT(send_words(p.near, 0, 200));
        pthread_join(round % 2 ? other : one, NULL);
        memcpy(&first, shallow.bytes, sizeof first);
        EXPECT(shallow.got == 40 && first == shallow.offset / sizeof first);
        EXPECT(shallow.took < 1);
        /* The deep one counts what is unread, of which there is less now. */
        EXPECT(send_words(p.near, 200, 4000));
        pthread_join(round % 2 ? one : other, NULL);
        memcpy(&first, deep.bytes, sizeof first);
        EXPECT(deep.got == 40 && first >= 4000 && first <= 4010);
        EXPECT(deep.took < 2);
        close_pair(p);
    }
}

/* What one thread takes off the head must not let another wait for bytes that have come. */
static void the_head_moves_under_a_wait(void)
{
    struct pair p = connect_pair();
    struct wait deep = {p.far, MSG_WAITALL, 4000, 40, {0}, 0, 0};
    char bytes[2000];
    uint32_t first;
    pthread_t thread;

    EXPECT(send_words(p.near, 0, 500));
    thread = in_thread(wait_for, &deep);
    sleep_ms(10);
    EXPECT(viaduct_seek_recv(p.far, bytes, 2000, MSG_WAITALL, 0) == 2000);
    /* 4000 unread bytes, and 40. */
    EXPECT(send_words(p.near, 500, 1010));
    pthread_join(thread, NULL);
    memcpy(&first, deep.bytes, sizeof first);
    EXPECT(deep.got == 40 && first == 1500);
    EXPECT(deep.took < 1);
    close_pair(p);
}

enum { WORDS = 3 << 20, WORKERS = 5 };

static struct {
    int fd;
    unsigned char taken[WORDS];
    uint32_t wrong;
    int ended;
} hammered;

/* A receive at the head takes what comes as it comes, parts of words too, so it has the stream for itself; searches
 * take all or nothing. */
static pthread_rwlock_t head = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

/* Takes or peeks pieces of whole words, which must follow one another, each taken once. */
static void *hammer(void *argument)
{
    unsigned number = *(unsigned *)argument, seed = number * 77 + 1;
    static __thread uint32_t words[20000];

    while (!__atomic_load_n(&hammered.ended, __ATOMIC_RELAXED)) {
        size_t offset = 0, len;
        int flags = MSG_WAITALL;
        ssize_t got;

        seed = seed * 1103515245 + 12345;
        len = number == 0 ? 16384 : 1 + (seed >> 16) % 200;
        if (number > 0)
            offset = 1 + (seed >> 8) % (number == 1 ? 30000 : 2000);
        if (number == 2)
            flags = MSG_PEEK | MSG_DONTWAIT;
        if (offset > 0)
            pthread_rwlock_rdlock(&head);
        else
            pthread_rwlock_wrlock(&head);
        got = viaduct_seek_recv(hammered.fd, words, len * 4, flags, offset * 4);
        pthread_rwlock_unlock(&head);
        if (got == 0 && offset == 0)
            __atomic_store_n(&hammered.ended, 1, __ATOMIC_RELAXED);
        for (ssize_t at = 0; at < got / 4; at++) {
            int fits = words[at] < WORDS && (at == 0 || words[at] > words[at - 1]);
            if (!fits || (!(flags & MSG_PEEK) && __atomic_fetch_add(&hammered.taken[words[at]], 1, __ATOMIC_RELAXED)))
                __atomic_fetch_add(&hammered.wrong, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static void *send_all_words(void *fd)
{
    send_words(*(int *)fd, 0, WORDS);
    shutdown(*(int *)fd, SHUT_WR);
    return NULL;
}

static void threads_take_the_right_bytes(void)
{
    struct pair p = connect_pair();
    pthread_t sender = in_thread(send_all_words, &p.near), workers[WORKERS];
    unsigned numbers[WORKERS];

    memset(&hammered, 0, sizeof hammered);
    hammered.fd = p.far;
    for (unsigned number = 0; number < WORKERS; number++) {
        numbers[number] = number == 4 ? 0 : number;
        workers[number] = in_thread(hammer, &numbers[number]);
    }
    for (int number = 0; number < WORKERS; number++)
        pthread_join(workers[number], NULL);
    pthread_join(sender, NULL);
    EXPECT(hammered.wrong == 0);
    for (uint32_t word = 0; word < WORDS; word++)
        EXPECT(hammered.taken[word] == 1);
    close_pair(p);
}

static void *drip(void *fd)
{
    for (int drop = 0; drop < 40; drop++) {
        sleep_ms(15);
        send(*(int *)fd, "x", 1, MSG_NOSIGNAL);
    }
    return NULL;
}

/* The time of a receive is not counted anew whenever something comes. */
static void arrivals_do_not_lengthen_a_wait(void)
{
    struct pair p = connect_pair();
    struct timeval time = {.tv_usec = 100000};
    struct wait deep = {p.far, 0, 1000, 1, {0}, 0, 0};
    pthread_t thread;

    EXPECT(setsockopt(p.far, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    thread = in_thread(drip, &p.near);
    wait_for(&deep);
    EXPECT(deep.got == -1 && deep.took > 0.09);
    EXPECT(deep.took < 0.4);
    pthread_join(thread, NULL);
    close_pair(p);
}

/* What can never be held is refused, wherever the bytes before it travelled, and the program recovers. */
static void more_than_can_be_held(void)
{
    static char bytes[65536];

    for (int unread = 0; unread < 2; unread++) {
        struct pair p;
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof address;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        size_t sent = 0, had = 0;
        int refused = 0;

        EXPECT(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
        EXPECT(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
        p.near = socket(AF_INET, SOCK_STREAM, 0);
        EXPECT(connect(p.near, (struct sockaddr *)&address, len) == 0);
        p.far = accept(listener, NULL, NULL);
        close(listener);
        /* Before the connection can have a lane. */
        if (unread) {
            EXPECT(send_all(p.near, bytes, 1000));
            sent = 1000;
        }
        for (int round = 0; round < 40; round++) {
            EXPECT(send_all(p.far, bytes, 100) && receive_all(p.near, bytes, 100));
            sleep_ms(1);
        }
        for (int round = 0; round < 400 && !refused; round++) {
            for (ssize_t got; (got = send(p.near, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
                sent += (size_t)got;
            sleep_ms(2);
            ssize_t got = viaduct_seek_recv(p.far, bytes, 1, MSG_DONTWAIT, 64 << 20);
            int error = errno;
            refused = error == ENOBUFS;
            EXPECT(got == -1 && (refused || error == EAGAIN));
        }
        EXPECT(refused);
        while (had < sent) {
            ssize_t got = viaduct_seek_recv(p.far, bytes, sizeof bytes, 0, 0);
            EXPECT(got > 0);
            had += (size_t)got;
        }
        EXPECT(send_all(p.near, "0123456789", 10));
        EXPECT(viaduct_seek_recv(p.far, bytes, 2, MSG_WAITALL, 4) == 2 && !memcmp(bytes, "45", 2));
        close_pair(p);
    }
}

/* Children that knew a socket and ended, however they did, leave nothing of it behind: only so many sockets can be
 * searched at a time. */
static void children_leave_nothing(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener;

    /* What carries them makes no difference, and so many lanes take long. */
    if (on_lane())
        return;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 50) == 0);
    EXPECT(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    for (int round = 0; round < 60; round++) {
        int near[40], far[40], status = 1;
        char byte;
        pid_t children[12], child;

        for (int index = 0; index < 40; index++) {
            near[index] = socket(AF_INET, SOCK_STREAM, 0);
            EXPECT(connect(near[index], (struct sockaddr *)&address, len) == 0);
            far[index] = accept(listener, NULL, NULL);
            EXPECT(send(near[index], "0123", 4, 0) == 4);
            EXPECT(viaduct_seek_recv(far[index], &byte, 1, MSG_WAITALL, 2) == 1 && byte == '2');
        }
        for (int number = 0; number < 12; number++) {
            child = children[number] = fork();
            while (child == 0)
                pause();
            /* Some as they begin. */
            if (number % 2)
                EXPECT(kill(child, SIGKILL) == 0);
        }
        child = fork();
        if (child == 0)
            _exit(!(viaduct_seek_recv(far[7], &byte, 1, 0, 2) == 1 && byte == '3'));
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        for (int number = 0; number < 12; number++)
            EXPECT(kill(children[number], SIGKILL) == 0 && waitpid(children[number], NULL, 0) == children[number]);
        for (int index = 0; index < 40; index++)
            close(near[index]);
        for (int index = 0; index < 40; index++) {
            EXPECT(viaduct_seek_recv(far[index], &byte, 1, 0, 1) == 1 && byte == '1');
            close(far[index]);
        }
    }
    close(listener);
}

/* KiB of memory that the process has. */
static long resident(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        perror("statm");
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

/* What was peeked of a socket goes with it, although natively nobody tells that it was closed. */
static void closed_sockets_give_memory_back(void)
{
    enum { many = 100 };
    static char sent[200000];
    struct pair pairs[many];
    long before, most = 0;
    char bytes[4000];
    int room = 1 << 20;

    /* Lanes need no copy. */
    if (on_lane())
        return;
    before = resident();
    for (int index = 0; index < 2 * many; index++) {
        struct pair *p = &pairs[index % many];

        *p = connect_quickly();
        EXPECT(setsockopt(p->far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
        EXPECT(send_all(p->near, sent, sizeof sent));
        settle();
        EXPECT(viaduct_seek_recv(p->far, bytes, sizeof bytes, MSG_WAITALL, sizeof bytes) == sizeof bytes);
        if (index < many - 1)
            continue;
        if (index == many - 1) {
            most = resident() - before;
            for (int other = 0; other < many - 1; other++)
                close_pair(pairs[other]);
        }
        close_pair(*p);
    }
    EXPECT(most > many * 100 && resident() - before < most / 3);
}

static void *receive_some(void *argument)
{
    struct wait *wait = argument;

    wait->got = recv(wait->fd, wait->bytes, wait->len, 0);
    return NULL;
}

/* A thread that is cancelled in a receive is in none any more. */
static void a_cancelled_receive_is_over(void)
{
    for (int round = 0; round < 3; round++) {
        struct pair p = connect_pair();
        struct wait wait = {p.far, 0, 0, 10, {0}, 0, 0};
        char bytes[4];
        pthread_t thread = in_thread(receive_some, &wait);

        sleep_ms(10);
        EXPECT(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
        EXPECT(send_all(p.near, "0123", 4));
        EXPECT(viaduct_seek_recv(p.far, bytes, 2, MSG_WAITALL, 1) == 2 && !memcmp(bytes, "12", 2));
        EXPECT(viaduct_seek_recv(p.far, bytes, 2, MSG_WAITALL, 0) == 2 && !memcmp(bytes, "03", 2));
        close_pair(p);
    }
}

static void *send_digits_later(void *fd)
{
    sleep_ms(4);
    send_all(*(int *)fd, "0123456789", 10);
    return NULL;
}

/* Who fell asleep before there was a search is woken by bytes that the search passes over. */
static void a_first_search_lets_others_wake(void)
{
    for (int round = 0; round < 40; round++) {
        struct pair p = connect_pair();
        struct wait sleeper = {p.far, 0, 0, 5, {0}, 0, 0};
        pthread_t receiver = in_thread(receive_some, &sleeper), sender;
        struct timespec limit;
        double until;
        char byte;

        sleep_ms(3);
        sender = in_thread(send_digits_later, &p.near);
        for (until = now() + 0.008; now() < until;) {
            ssize_t got = viaduct_seek_recv(p.far, &byte, 1, MSG_DONTWAIT, 1000);
            int error = errno;
            /* Where the receive is inside the kernel there is no first search. */
            EXPECT(got == -1 && (error == EAGAIN || error == EBUSY));
        }
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 2;
        EXPECT(pthread_timedjoin_np(receiver, NULL, &limit) == 0);
        EXPECT(sleeper.got == 5 && !memcmp(sleeper.bytes, "01234", 5));
        pthread_join(sender, NULL);
        close_pair(p);
    }
}

enum { LETTERS = 120 };

static void *send_letters(void *argument)
{
    const struct pair *pairs = argument;

    for (int number = 0; number < LETTERS; number++) {
        viaduct_msg_send(pairs[number % 2].near, (uint32_t)number, &number, sizeof number);
        if (number % 7 == 0)
            sleep_ms(1);
    }
    shutdown(pairs[0].near, SHUT_WR);
    shutdown(pairs[1].near, SHUT_WR);
    return NULL;
}

/* An inbox among other things to wait for. */
static void an_inbox_can_be_polled(void)
{
    struct pair pairs[2] = {connect_pair(), connect_pair()};
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    struct pollfd entry = {viaduct_inbox_fd(inbox), POLLIN, 0};
    struct viaduct_msg info;
    int next[2] = {0, 1}, number, waits = 0;
    pthread_t thread;

    EXPECT(inbox && entry.fd >= 0 && entry.fd == viaduct_inbox_fd(inbox));
    EXPECT_ERROR(viaduct_inbox_fd(NULL), EINVAL);
    EXPECT(viaduct_inbox_add(inbox, pairs[0].far) == 0 && viaduct_inbox_add(inbox, pairs[1].far) == 1);
    EXPECT_ERROR(viaduct_msg_recv(inbox, VIADUCT_ANY, VIADUCT_ANY, NULL, 0, 0, NULL), ETIMEDOUT);
    EXPECT(poll(&entry, 1, 20) == 0);
    EXPECT(viaduct_msg_cancel(inbox) == 0 && poll(&entry, 1, 1000) == 1);
    EXPECT_ERROR(viaduct_msg_probe(inbox, VIADUCT_ANY, VIADUCT_ANY, 0, NULL), ETIMEDOUT);
    EXPECT(poll(&entry, 1, 20) == 0);
    thread = in_thread(send_letters, pairs);
    for (int ended = 0; !ended; waits++) {
        ssize_t got;
        int error;

        EXPECT(poll(&entry, 1, 2000) == 1);
        while ((got = viaduct_msg_recv(inbox, VIADUCT_ANY, VIADUCT_ANY, &number, sizeof number, 0, &info)) >= 0) {
            EXPECT(got == sizeof number && (info.source == 0 || info.source == 1));
            EXPECT(number == next[info.source] && info.tag == (uint32_t)number);
            next[info.source] += 2;
        }
        error = errno;
        EXPECT(error == ETIMEDOUT || error == ENOTCONN);
        ended = error == ENOTCONN;
    }
    EXPECT(next[0] == LETTERS && next[1] == LETTERS + 1 && waits < 4 * LETTERS);
    pthread_join(thread, NULL);
    viaduct_inbox_close(inbox);
    close_pair(pairs[0]);
    close_pair(pairs[1]);
}

/* Who waits by edges for more than is there is told of what comes, and not of what is there again and again. */
static void edges_behind_unread_bytes(void)
{
    struct pair p = connect_pair();
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int set = epoll_create1(0), rounds = 0;
    char bytes[32];

    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, p.far, &event) == 0);
    EXPECT(send_all(p.near, "0123456789", 10));
    for (double end = now() + 0.3; now() < end; rounds++) {
        EXPECT_ERROR(viaduct_seek_recv(p.far, bytes, 4, MSG_DONTWAIT, 20), EAGAIN);
        if (epoll_wait(set, &event, 1, 50) != 1)
            break;
    }
    EXPECT(rounds < 10);
    EXPECT(send_all(p.near, "abcdefghijklmnop", 16));
    EXPECT(epoll_wait(set, &event, 1, 2000) == 1);
    sleep_ms(20);
    EXPECT(viaduct_seek_recv(p.far, bytes, 4, MSG_DONTWAIT, 20) == 4 && !memcmp(bytes, "klmn", 4));
    close(set);
    close_pair(p);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"edges_behind_unread_bytes", edges_behind_unread_bytes},
        {"waits_of_different_depth", waits_of_different_depth},
        {"the_head_moves_under_a_wait", the_head_moves_under_a_wait},
        {"threads_take_the_right_bytes", threads_take_the_right_bytes},
        {"arrivals_do_not_lengthen_a_wait", arrivals_do_not_lengthen_a_wait},
        {"more_than_can_be_held", more_than_can_be_held},
        {"children_leave_nothing", children_leave_nothing},
        {"closed_sockets_give_memory_back", closed_sockets_give_memory_back},
        {"a_cancelled_receive_is_over", a_cancelled_receive_is_over},
        {"a_first_search_lets_others_wake", a_first_search_lets_others_wake},
        {"an_inbox_can_be_polled", an_inbox_can_be_polled},
    };

    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
