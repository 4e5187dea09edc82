/* Inboxes that threads share, and threads that do not come back. */
#include "check.h"

#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdint.h>
#include <viaduct.h>

enum { threads = 4, rounds = 40 };

static viaduct_inbox *shared;
static double told_at[threads];
static int wrong;

/* Waits for one message after another from a source of its own. */
static void *receive_from_one(void *argument)
{
    int source = (int)(intptr_t)argument;
    char bytes[16];

    for (int round = 0; round < rounds; round++) {
        if (viaduct_msg_recv(shared, source, source, bytes, sizeof bytes, 5000, NULL) != 2)
            wrong = 1;
        __atomic_store(&told_at[source], &(double){now()}, __ATOMIC_RELEASE);
    }
    return NULL;
}

static int in_order_of_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Whoever takes the news of a message that another thread waits for tells it. */
static void threads_are_told_at_once(void)
{
    struct pair pairs[threads];
    pthread_t waiting[threads];
    double took[threads * rounds];
    pid_t tid;

    wrong = 0;
    EXPECT((shared = viaduct_inbox_open(0, 0)) != NULL);
    for (int source = 0; source < threads; source++) {
        pairs[source] = connect_pair();
        /* Else the kernel keeps small messages back for 40 ms. */
        EXPECT(setsockopt(pairs[source].near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0);
        EXPECT(viaduct_inbox_add(shared, pairs[source].far) == source);
        told_at[source] = 0;
        waiting[source] = in_sleeping_thread(receive_from_one, (void *)(intptr_t)source, &tid);
    }
    for (int round = 0, count = 0; round < rounds; round++) {
        for (int source = 0; source < threads; source++) {
            double sent_at = now(), told;

            EXPECT(viaduct_msg_send(pairs[source].near, source, "hi", 2) == 0);
            do {
                sleep_ms(1);
                __atomic_load(&told_at[source], &told, __ATOMIC_ACQUIRE);
            } while (told < sent_at && now() < sent_at + 5);
            took[count++] = told - sent_at;
        }
    }
    for (int source = 0; source < threads; source++)
        pthread_join(waiting[source], NULL);
    EXPECT(!wrong);
    qsort(took, threads * rounds, sizeof *took, in_order_of_size);
    printf("# median %.1f ms, most %.1f ms\n", took[threads * rounds / 2] * 1e3, took[threads * rounds - 1] * 1e3);
    EXPECT(took[threads * rounds * 3 / 4] < 0.02);
    viaduct_inbox_close(shared);
    for (int source = 0; source < threads; source++)
        close_pair(pairs[source]);
}

static void *wait_for_any(void *argument)
{
    char bytes[16];
    int cancelled = viaduct_msg_recv(shared, VIADUCT_ANY, VIADUCT_ANY, bytes, sizeof bytes, 9000, NULL) == -1 &&
                    errno == ECANCELED;

    return cancelled ? NULL : argument;
}

/* All of them are told at once. */
static void all_waits_are_given_up(void)
{
    struct pair p = connect_pair();
    pthread_t waiting[threads];
    double took[9];
    pid_t tid;
    void *result;

    EXPECT((shared = viaduct_inbox_open(0, 0)) != NULL && viaduct_inbox_add(shared, p.far) == 0);
    for (int time = 0; time < 9; time++) {
        for (int index = 0; index < threads; index++)
            waiting[index] = in_sleeping_thread(wait_for_any, &p, &tid);
        took[time] = now();
        EXPECT(viaduct_msg_cancel(shared) == 0);
        for (int index = 0; index < threads; index++)
            EXPECT(pthread_join(waiting[index], &result) == 0 && !result);
        took[time] = now() - took[time];
    }
    qsort(took, 9, sizeof *took, in_order_of_size);
    printf("# median %.1f ms\n", took[4] * 1e3);
    EXPECT(took[4] < 0.02);
    viaduct_inbox_close(shared);
    close_pair(p);
}

static void *receive_tag_5(void *argument)
{
    char bytes[16];

    return viaduct_msg_recv(shared, 5, VIADUCT_ANY, bytes, sizeof bytes, -1, NULL) == 2 ? NULL : argument;
}

static void *probe_tag_6(void *argument)
{
    return viaduct_msg_probe(shared, 6, VIADUCT_ANY, -1, NULL) >= 0 ? NULL : argument;
}

/* Whether the thread ends as one that has been cancelled. */
static int ends_cancelled(pthread_t thread)
{
    struct timespec until;
    void *result = NULL;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 4;
    return !pthread_cancel(thread) && !pthread_timedjoin_np(thread, &result, &until) && result == PTHREAD_CANCELED;
}

static void cancelled_receivers_leave_the_inbox_to_others(void)
{
    struct pair p = connect_pair();
    char bytes[16];
    void *result;
    pid_t tid;

    EXPECT((shared = viaduct_inbox_open(0, 0)) != NULL && viaduct_inbox_add(shared, p.far) == 0);
    for (int first = 0; first < 2; first++) {
        /* One of them waits for what comes, and the others for that one. */
        pthread_t receiver = in_sleeping_thread(receive_tag_5, &p, &tid);
        pthread_t prober = in_sleeping_thread(probe_tag_6, &p, &tid);
        pthread_t last = in_sleeping_thread(receive_tag_5, &p, &tid);

        EXPECT(ends_cancelled(first ? receiver : prober) && ends_cancelled(first ? prober : receiver));
        EXPECT(viaduct_msg_send(p.near, 5, "hi", 2) == 0 && pthread_join(last, &result) == 0 && !result);
    }
    EXPECT(viaduct_msg_send(p.near, 7, "ho", 2) == 0);
    EXPECT(viaduct_msg_recv(shared, 7, 0, bytes, sizeof bytes, 1000, NULL) == 2);
    viaduct_inbox_close(shared);
    close_pair(p);
}

static sigjmp_buf outside;

static void jump_out(int signal)
{
    (void)signal;
    siglongjmp(outside, 1);
}

static void *interrupt(void *thread)
{
    /* Amidst a wait: every 50 ms it looks whether all is well, and holds what a jump would not give back. */
    sleep_ms(75);
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}

/* Leaves a wait by a jump; the thread lives on, and does not come back. */
static void jump_out_of_a_wait(void)
{
    pthread_t self = pthread_self();
    char bytes[16];

    if (!sigsetjmp(outside, 1)) {
        pthread_t helper = in_thread(interrupt, &self);

        pthread_detach(helper);
        viaduct_msg_recv(shared, 5, 0, bytes, sizeof bytes, 5000, NULL);
        snprintf(failure, sizeof failure, "the wait was not left");
    }
}

/* Seconds that most messages to a thread that waits take. */
static double most_take(int near, pthread_t waiting)
{
    double took[rounds];

    for (int round = 0; round < rounds; round++) {
        double sent_at = now(), told;

        viaduct_msg_send(near, 0, "hi", 2);
        do {
            sleep_ms(1);
            __atomic_load(&told_at[0], &told, __ATOMIC_ACQUIRE);
        } while (told < sent_at && now() < sent_at + 5);
        took[round] = told - sent_at;
    }
    pthread_join(waiting, NULL);
    qsort(took, rounds, sizeof *took, in_order_of_size);
    printf("# median %.1f ms, most %.1f ms\n", took[rounds / 2] * 1e3, took[rounds - 1] * 1e3);
    return took[rounds * 3 / 4];
}

/* Whether the inbox's descriptor is quiet once there is nothing to receive, and tells of a message at once. */
static void *wait_by_poll(void *near)
{
    struct pollfd entry = {viaduct_inbox_fd(shared), POLLIN, 0};
    char bytes[16];
    int quiet, late = 0;

    sleep_ms(120);
    for (int round = 0; round < 9; round++) {
        double sent_at = now();

        if (viaduct_msg_send(*(int *)near, 5, "hi", 2) || poll(&entry, 1, 2000) != 1)
            return near;
        late += now() > sent_at + 0.02;
        while (viaduct_msg_recv(shared, 5, 0, bytes, sizeof bytes, 0, NULL) != 2)
            if (errno != ETIMEDOUT || now() > sent_at + 1)
                return near;
        for (quiet = 0; quiet < 4 && poll(&entry, 1, 2) == 1; quiet++)
            if (viaduct_msg_recv(shared, 5, 0, bytes, sizeof bytes, 0, NULL) != -1)
                return near;
        if (quiet == 4)
            return near;
    }
    /* Most: a busy machine may keep this thread from running. */
    return late < 5 ? NULL : near;
}

/* A wait that is left by a jump keeps nothing from later ones, of whichever thread. */
static void waits_are_left_by_a_jump(void)
{
    struct pair p = connect_pair();
    struct sigaction action = {.sa_handler = jump_out};
    pthread_t other;
    void *failed;
    pid_t tid;

    EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
    EXPECT(setsockopt(p.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0);
    EXPECT((shared = viaduct_inbox_open(0, 0)) != NULL && viaduct_inbox_add(shared, p.far) == 0);
    wrong = 0;
    jump_out_of_a_wait();
    told_at[0] = 0;
    other = in_sleeping_thread(receive_from_one, NULL, &tid);
    /* By then it has seen that nobody watches in its place. */
    sleep_ms(120);
    EXPECT(!failure[0] && most_take(p.near, other) < 0.02 && !wrong);
    jump_out_of_a_wait();
    other = in_thread(wait_by_poll, &p.near);
    EXPECT(!failure[0] && pthread_join(other, &failed) == 0 && !failed);
    signal(SIGUSR1, SIG_DFL);
    viaduct_inbox_close(shared);
    close_pair(p);
}

static void *wait_a_little(void *argument)
{
    char bytes[16];

    viaduct_msg_recv(shared, 9, 0, bytes, sizeof bytes, 300, NULL);
    return argument;
}

/* A wait of a thread that a forked child does not have. */
static void waits_are_left_by_a_fork(void)
{
    struct pair p = connect_pair();
    int status = 1;
    pthread_t other;
    pid_t tid, child;

    EXPECT(setsockopt(p.near, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0);
    EXPECT((shared = viaduct_inbox_open(0, 0)) != NULL && viaduct_inbox_add(shared, p.far) == 0);
    wrong = 0;
    other = in_sleeping_thread(wait_a_little, NULL, &tid);
    child = fork();
    if (child == 0) {
        pthread_t receiver = in_sleeping_thread(receive_from_one, NULL, &tid);

        /* The set is the parent's too, and an edge either's: by now it waits no more. */
        sleep_ms(400);
        _exit(most_take(p.near, receiver) > 0.02 || wrong);
    }
    EXPECT(child > 0 && pthread_join(other, NULL) == 0);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    viaduct_inbox_close(shared);
    close_pair(p);
}

static void *search_far_away(void *argument)
{
    char bytes[5];

    return viaduct_seek_recv(*(int *)argument, bytes, sizeof bytes, MSG_WAITALL, 1000) == 5 ? NULL : argument;
}

static void a_cancelled_search_leaves_the_socket_to_others(void)
{
    struct pair p = connect_pair();
    static char sent[1005];
    int mark = 0;
    socklen_t size = sizeof mark;
    pid_t tid;

    EXPECT(send(p.near, sent, 500, 0) == 500);
    EXPECT(ends_cancelled(in_sleeping_thread(search_far_away, &p.far, &tid)));
    EXPECT(getsockopt(p.far, SOL_SOCKET, SO_RCVLOWAT, &mark, &size) == 0 && (mark == 1 || under_viaduct()));
    EXPECT(send(p.near, sent, 505, 0) == 505);
    EXPECT(search_far_away(&p.far) == NULL);
    EXPECT(in_order(p.far, sent, sizeof sent, MSG_WAITALL | MSG_DONTWAIT) == 1000);
    close_pair(p);
}

/* The number of a socket stands for another while a search waits on it, for one that is searched as well. */
static void a_search_stays_with_its_socket(void)
{
    static char sent[1005];

    for (int searched = 0; searched < 2; searched++) {
        struct pair p = connect_pair(), other = connect_pair();
        size_t before = searched ? 4 : 0;
        pid_t tid;
        pthread_t thread;
        void *result;
        char bytes[16];

        if (searched) {
            EXPECT(send(other.near, "abcdef", 6, 0) == 6);
            EXPECT(viaduct_seek_recv(other.far, bytes, 2, MSG_WAITALL, 2) == 2 && !memcmp(bytes, "cd", 2));
        }
        EXPECT(send(p.near, "abc", 3, 0) == 3);
        settle();
        thread = in_sleeping_thread(search_far_away, &p.far, &tid);
        EXPECT(dup2(other.far, p.far) == p.far);
        /* Natively it asks each 50 ms. */
        sleep_ms(100);
        EXPECT(send(other.near, sent, sizeof sent, 0) == sizeof sent);
        EXPECT(pthread_join(thread, &result) == 0 && result);
        /* Either number is the other's. */
        settle();
        EXPECT(waiting(p.far) == (long)(sizeof sent + before));
        EXPECT(in_order(p.far, bytes, 2, 0) == 2 && !memcmp(bytes, searched ? "ab" : "\0\0", 2));
        close(p.far);
        EXPECT(in_order(other.far, bytes, sizeof bytes, 0) == sizeof bytes);
        EXPECT(!memcmp(bytes, searched ? "ef\0" : "\0\0\0", 3));
        EXPECT(waiting(other.far) == (long)(sizeof sent + before - 2 - sizeof bytes));
        close(p.near);
        close_pair(other);
    }
}

static void *send_much(void *argument)
{
    static char much[64 << 20];

    return viaduct_msg_send(*(int *)argument, 1, much, sizeof much) == 0 ? NULL : argument;
}

static void a_cancelled_sender_ends(void)
{
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        struct pair p = connect_pair();
        pid_t tid;

        EXPECT(fcntl(p.near, F_SETFL, nonblocking ? O_NONBLOCK : 0) == 0);
        EXPECT(ends_cancelled(in_sleeping_thread(send_much, &p.near, &tid)));
        close_pair(p);
    }
}

/* Whatever a number stands for once its stream is closed: another stream is sent to, and nothing else. */
static void numbers_are_used_again(void)
{
    static const struct {
        int family, type, is_stream;
    } kinds[] = {
        {AF_UNIX, SOCK_SEQPACKET, 0}, {AF_UNIX, SOCK_DGRAM, 0}, {AF_UNIX, SOCK_STREAM, 1}, {AF_INET, SOCK_DGRAM, 0},
    };
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);
    int source = 0;

    EXPECT(inbox != NULL);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        struct pair p = connect_pair();
        int ends[2];
        char bytes[32];

        EXPECT(viaduct_inbox_add(inbox, p.near) == source);
        EXPECT(viaduct_msg_send(p.near, 1, "hi", 2) == 0 && viaduct_msg_send(p.far, 1, "ho", 2) == 0);
        EXPECT(viaduct_msg_recv(inbox, 1, source, bytes, sizeof bytes, 1000, NULL) == 2);
        if (kinds[kind].family == AF_UNIX) {
            EXPECT(socketpair(AF_UNIX, kinds[kind].type, 0, ends) == 0);
        } else {
            struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
            socklen_t size = sizeof address;

            EXPECT((ends[0] = socket(AF_INET, kinds[kind].type, 0)) >= 0);
            EXPECT((ends[1] = socket(AF_INET, kinds[kind].type, 0)) >= 0);
            EXPECT(bind(ends[1], (struct sockaddr *)&address, size) == 0);
            EXPECT(getsockname(ends[1], (struct sockaddr *)&address, &size) == 0);
            EXPECT(connect(ends[0], (struct sockaddr *)&address, size) == 0);
        }
        EXPECT(dup2(ends[0], p.near) == p.near);
        if (kinds[kind].is_stream) {
            EXPECT(viaduct_msg_send(p.near, 2, "hi", 2) == 0);
            EXPECT(recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT) == 14 && !memcmp(bytes, "VMSG\2", 5));
            EXPECT(viaduct_inbox_add(inbox, p.near) == ++source);
        } else {
            EXPECT_ERROR(viaduct_msg_send(p.near, 2, "hi", 2), EOPNOTSUPP);
            EXPECT_ERROR(viaduct_msg_send(p.near, 2, "hi", 2), EOPNOTSUPP);
            EXPECT_ERROR(recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
            EXPECT_ERROR(viaduct_inbox_add(inbox, p.near), EOPNOTSUPP);
        }
        EXPECT_ERROR(viaduct_seek_recv(p.near, bytes, 1, MSG_DONTWAIT, 0), EOPNOTSUPP);
        EXPECT_ERROR(viaduct_readable(p.near), EOPNOTSUPP);
        /* The inbox has a descriptor of its own. */
        EXPECT(viaduct_msg_send(p.far, 3, "ho", 2) == 0);
        EXPECT(viaduct_msg_recv(inbox, 3, source - kinds[kind].is_stream, bytes, sizeof bytes, 1000, NULL) == 2);
        close(ends[0]);
        close(ends[1]);
        close_pair(p);
        source++;
    }
    viaduct_inbox_close(inbox);
}

static const struct check checks[] = {
    {"threads_are_told_at_once", threads_are_told_at_once},
    {"all_waits_are_given_up", all_waits_are_given_up},
    {"cancelled_receivers_leave_the_inbox_to_others", cancelled_receivers_leave_the_inbox_to_others},
    {"waits_are_left_by_a_jump", waits_are_left_by_a_jump},
    {"waits_are_left_by_a_fork", waits_are_left_by_a_fork},
    {"a_cancelled_search_leaves_the_socket_to_others", a_cancelled_search_leaves_the_socket_to_others},
    {"a_search_stays_with_its_socket", a_search_stays_with_its_socket},
    {"a_cancelled_sender_ends", a_cancelled_sender_ends},
    {"numbers_are_used_again", numbers_are_used_again},
};

int main(int argc, char **argv)
{
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
