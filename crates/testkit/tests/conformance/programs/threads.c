/* Jumps out of handlers, cancelled threads, small stacks, errno. */
#include "play.h"
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>

static sigjmp_buf jump;

static void jump_out(int number)
{
    siglongjmp(jump, number);
}

/* As iperf3 does: out of a blocked call by a jump from the signal's handler. */
static void jump_out_of_a_receive(void)
{
    FAR(signal(SIGUSR2, jump_out); signal_in(60, SIGUSR2); if (sigsetjmp(jump, 1) == 0) { GET(s, 1, 0); } else say("jumped"););
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0); R(send(s, "y", 1, 0)));
    NEAR(GET(s, 1, 0));
}

static void jump_out_of_a_poll(void)
{
    struct pollfd wait = {s, POLLIN, 0};

    FAR(signal(SIGUSR2, jump_out); signal_in(60, SIGUSR2); if (sigsetjmp(jump, 1) == 0) { R(poll(&wait, 1, -1)); } else
            say("jumped"););
    NEAR(R(send(s, "x", 1, 0)));
    FAR(R(poll(&wait, 1, 1000)); GET(s, 1, 0));
}

static void jump_out_of_an_epoll_wait(void)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};

    FAR(epoll_ctl(set, EPOLL_CTL_ADD, s, &event); signal(SIGUSR2, jump_out); signal_in(60, SIGUSR2);
        if (sigsetjmp(jump, 1) == 0) { R(epoll_wait(set, &event, 1, -1)); } else say("jumped"););
    NEAR(R(send(s, "x", 1, 0)));
    FAR(R(epoll_wait(set, &event, 1, 1000)); GET(s, 1, 0));
}

static void jump_out_of_a_send(void)
{
    static char bytes[1 << 22];
    volatile long total = 0;

    if (is_near) {
        signal(SIGUSR2, jump_out);
        signal_in(50, SIGUSR2);
        if (sigsetjmp(jump, 1) == 0)
            for (;;)
                total += send(s, bytes, sizeof bytes, 0);
        say("jumped");
        R(close(s));
    } else {
        sleep_ms(80);
        while (recv(s, bytes, sizeof bytes, 0) > 0)
            ;
        GET(s, 1, 0);
    }
    step();
}

static void *receive_one(void *fd)
{
    char byte;

    recv(*(int *)fd, &byte, 1, 0);
    return NULL;
}

static void cancel(void *(*work)(void *), int rounds)
{
    for (int round = 0; round < rounds; round++) {
        pthread_t thread = in_thread(work, &s);
        void *result = NULL;
        sleep_ms(10);
        R(pthread_cancel(thread));
        pthread_join(thread, &result);
        say("cancelled %d", result == PTHREAD_CANCELED);
    }
}

static void cancelled_receive(void)
{
    FAR(cancel(receive_one, 3));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0); R(close(s)));
    NEAR(GET(s, 1, 0));
}

static void *receive_again_and_again(void *fd)
{
    char byte;

    for (;;)
        recv(*(int *)fd, &byte, 1, MSG_PEEK);
    return NULL;
}

static void *poll_again_and_again(void *fd)
{
    struct pollfd wait = {*(int *)fd, POLLIN, 0};

    for (;;)
        poll(&wait, 1, 0);
    return NULL;
}

static void *select_again_and_again(void *fd)
{
    fd_set in;

    for (;;) {
        FD_ZERO(&in);
        FD_SET(*(int *)fd, &in);
        select(*(int *)fd + 1, &in, NULL, NULL, NULL);
    }
    return NULL;
}

static void *wait_again_and_again(void *fd)
{
    static int set;
    struct epoll_event event = {.events = EPOLLIN};

    set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, *(int *)fd, &event);
    for (;;)
        epoll_wait(set, &event, 1, -1);
    return NULL;
}

/* What does not block is a point of cancellation all the same. */
static void cancelled_with_bytes_there(void)
{
    NEAR(R(send(s, "x", 1, 0)));
    FAR(arrive(s, POLLIN); cancel(receive_again_and_again, 2); cancel(poll_again_and_again, 1); cancel(select_again_and_again, 1);
        cancel(wait_again_and_again, 1); GET(s, 1, 0));
}

static void *write_again_and_again(void *fd)
{
    while (write(*(int *)fd, "x", 1) == 1)
        ;
    return NULL;
}

static void cancelled_with_room_there(void)
{
    char bytes[10000];
    pthread_t thread;
    void *result;

    if (is_near) {
        thread = in_thread(write_again_and_again, &s);
        sleep_ms(20);
        R(pthread_cancel(thread));
        pthread_join(thread, &result);
        say("cancelled %d", result == PTHREAD_CANCELED);
        R(close(s));
    } else
        while (recv(s, bytes, sizeof bytes, 0) > 0)
            ;
    step();
}

static volatile int looking;

static void *look_again_and_again(void *fd)
{
    struct pollfd wait = {*(int *)fd, POLLIN, 0};
    char bytes[4];
    int count;

    while (looking) {
        poll(&wait, 1, 0);
        ioctl(*(int *)fd, FIONREAD, &count);
        recv(*(int *)fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    }
    return NULL;
}

static void *answer_again_and_again(void *fd)
{
    char byte;

    while (receive_all(*(int *)fd, &byte, 1) && byte != 'e')
        send_all(*(int *)fd, &byte, 1);
    return NULL;
}

static void ask_again_and_again(void)
{
    char byte = 'x';

    for (int round = 0; round < 1500; round++) {
        if (round % 3 == 0)
            usleep((useconds_t)(round % 200));
        if (!send_all(s, &byte, 1) || !receive_all(s, &byte, 1))
            say("no answer");
    }
    send_all(s, "e", 1);
}

static void *poll_and_answer(void *fd)
{
    struct pollfd wait = {*(int *)fd, POLLIN, 0};
    char byte = 0;

    while (byte != 'e' && poll(&wait, 1, -1) == 1)
        if (recv(*(int *)fd, &byte, 1, MSG_DONTWAIT) == 1)
            send_all(*(int *)fd, &byte, 1);
    return NULL;
}

static void *wait_and_answer(void *fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    char byte = 0;

    epoll_ctl(set, EPOLL_CTL_ADD, *(int *)fd, &event);
    while (byte != 'e' && epoll_wait(set, &event, 1, -1) == 1)
        if (recv(*(int *)fd, &byte, 1, MSG_DONTWAIT) == 1)
            send_all(*(int *)fd, &byte, 1);
    return NULL;
}

/* Whoever looks at what has come takes nobody's waking away. */
static void others_look_while_one_answers(void *(*answer)(void *))
{
    if (is_near) {
        ask_again_and_again();
    } else {
        pthread_t looker, answerer;
        looking = 1;
        looker = in_thread(look_again_and_again, &s);
        answerer = in_thread(answer, &s);
        pthread_join(answerer, NULL);
        looking = 0;
        pthread_join(looker, NULL);
        say("answered");
    }
    step();
}

static void others_look_while_one_receives(void)
{
    others_look_while_one_answers(answer_again_and_again);
}

static void others_look_while_one_polls(void)
{
    others_look_while_one_answers(poll_and_answer);
}

static void others_look_while_one_waits_in_a_set(void)
{
    others_look_while_one_answers(wait_and_answer);
}

static void another_process_looks_while_one_receives(void)
{
    if (is_near) {
        ask_again_and_again();
    } else {
        pid_t child = fork();
        if (child == 0) {
            /* Not beyond its parent, should that hang. */
            alarm(PATIENCE_S);
            looking = 1;
            look_again_and_again(&s);
        }
        answer_again_and_again(&s);
        kill(child, SIGKILL);
        reap(child);
    }
    step();
}

static void *close_it(void *fd)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cancel(pthread_self());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    close(*(int *)fd);
    return NULL;
}

static void cancelled_before_it_closes(void)
{
    void *result;

    FAR(pthread_join(in_thread(close_it, &s), &result); say("cancelled %d", result == PTHREAD_CANCELED);
        R(send(s, "still here", 10, 0)));
    NEAR(ALL(s, 10));
}

static void *poll_for_ever(void *fd)
{
    struct pollfd wait = {*(int *)fd, POLLIN, 0};

    poll(&wait, 1, -1);
    return NULL;
}

static void *select_for_ever(void *fd)
{
    fd_set in;

    FD_ZERO(&in);
    FD_SET(*(int *)fd, &in);
    select(*(int *)fd + 1, &in, NULL, NULL, NULL);
    return NULL;
}

static void *epoll_for_ever(void *fd)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};

    epoll_ctl(set, EPOLL_CTL_ADD, *(int *)fd, &event);
    epoll_wait(set, &event, 1, -1);
    return NULL;
}

static void cancelled_waits(void)
{
    FAR(cancel(poll_for_ever, 2); cancel(select_for_ever, 2); cancel(epoll_for_ever, 2));
    NEAR(R(send(s, "x", 1, 0)));
    FAR(GET(s, 1, 0));
}

static void *send_for_ever(void *fd)
{
    static char bytes[1 << 20];

    while (send(*(int *)fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

static void cancelled_send(void)
{
    pthread_t thread;
    void *result;
    static char bytes[1 << 20];

    if (is_near) {
        thread = in_thread(send_for_ever, &s);
        sleep_ms(60);
        R(pthread_cancel(thread));
        pthread_join(thread, &result);
        say("cancelled %d", result == PTHREAD_CANCELED);
        R(close(s));
    } else {
        sleep_ms(100);
        while (recv(s, bytes, sizeof bytes, 0) > 0)
            ;
        GET(s, 1, 0);
    }
    step();
}

static void *receive_without_cancellation(void *fd)
{
    char byte;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    return (void *)recv(*(int *)fd, &byte, 1, 0);
}

static void cancellation_turned_off(void)
{
    pthread_t thread;
    void *result;

    if (is_near) {
        sleep_ms(150);
        R(send(s, "x", 1, 0));
    } else {
        thread = in_thread(receive_without_cancellation, &s);
        sleep_ms(10);
        R(pthread_cancel(thread));
        pthread_join(thread, &result);
        say("%ld", (long)result);
    }
    step();
}

static int cleaned;

static void clean_up(void *what)
{
    (void)what;
    cleaned++;
}

static void *receive_with_clean_up(void *fd)
{
    char byte;

    pthread_cleanup_push(clean_up, NULL);
    recv(*(int *)fd, &byte, 1, 0);
    pthread_cleanup_pop(0);
    return NULL;
}

static void clean_up_of_the_cancelled(void)
{
    FAR(cancel(receive_with_clean_up, 2); say("%d", cleaned));
}

static void *receive_in_a_small_stack(void *fd)
{
    char bytes[16];
    struct pollfd wait = {*(int *)fd, POLLIN, 0};

    poll(&wait, 1, 1000);
    return (void *)recv(*(int *)fd, bytes, 16, 0);
}

static void small_stacks(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    void *result;

    if (is_near) {
        sleep_ms(15);
        R(send(s, "small", 5, 0));
    } else {
        pthread_attr_init(&attributes);
        R(pthread_attr_setstacksize(&attributes, 16384));
        pthread_create(&thread, &attributes, receive_in_a_small_stack, &s);
        pthread_join(thread, &result);
        say("%ld", (long)result);
    }
    step();
}

static void *tell_not_to_block(void *fd)
{
    sleep_ms(60);
    fcntl(*(int *)fd, F_SETFL, O_NONBLOCK);
    return NULL;
}

/* Whether a call may wait is asked when it is made. */
static void told_not_to_block_while_they_wait(void)
{
    static char bytes[64 << 20];
    pthread_t thread;

    if (is_near) {
        thread = in_thread(tell_not_to_block, &s);
        R(send(s, bytes, sizeof bytes, 0));
        pthread_join(thread, NULL);
        R(fcntl(s, F_SETFL, 0));
    } else {
        sleep_ms(120);
        drain(s, sizeof bytes);
    }
    step();
    if (is_near) {
        thread = in_thread(tell_not_to_block, &s);
        GET(s, 4, MSG_WAITALL);
        pthread_join(thread, NULL);
    } else {
        R(send(s, "wa", 2, 0));
        sleep_ms(120);
        R(send(s, "i", 1, 0));
        sleep_ms(30);
        R(send(s, "t", 1, 0));
    }
    step();
    NEAR(GET(s, 1, 0));
}

static void errno_is_left_alone(void)
{
    char byte;
    struct pollfd wait = {s, POLLIN, 0};

    NEAR(errno = 77; send(s, "x", 1, 0); say("errno %d", errno));
    FAR(errno = 77; poll(&wait, 1, 1000); say("errno %d", errno); recv(s, &byte, 1, 0); say("errno %d", errno); shutdown(s, SHUT_WR);
        say("errno %d", errno); close(s); say("errno %d", errno));
}

MAIN(JOINED(jump_out_of_a_receive), JOINED(jump_out_of_a_poll), JOINED(jump_out_of_an_epoll_wait),
     JOINED(jump_out_of_a_send), JOINED(cancelled_receive), JOINED(cancelled_waits), JOINED(cancelled_send),
     JOINED(cancelled_with_bytes_there), JOINED(cancelled_with_room_there), JOINED(cancelled_before_it_closes),
     JOINED(others_look_while_one_receives), JOINED(others_look_while_one_polls),
     JOINED(others_look_while_one_waits_in_a_set), JOINED(another_process_looks_while_one_receives),
     JOINED(cancellation_turned_off), JOINED(clean_up_of_the_cancelled), JOINED(small_stacks),
     JOINED(told_not_to_block_while_they_wait), JOINED(errno_is_left_alone))
