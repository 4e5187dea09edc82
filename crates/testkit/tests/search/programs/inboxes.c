/* Inboxes that threads share, and threads that do not come back. */
#include "check.h"

#include <netinet/tcp.h>
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

static const struct check checks[] = {
    {"threads_are_told_at_once", threads_are_told_at_once},
    {"all_waits_are_given_up", all_waits_are_given_up},
};

int main(int argc, char **argv)
{
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}
