/* The ends of connections, here and in the other process, and what goes over them. */
#include "world.h"
#include <sys/prctl.h>

/* Bytes are taken from a table whose length divides no power of two. */
enum { TABLE = 65521, PIECE = 60000 };
/* With so many bytes unread every window is open. */
enum { OPEN = 16384 };
/* A user who has nothing. */
enum { NOBODY = 65534 };
static unsigned char table[2 * TABLE];

enum deed { CONNECT, LISTEN, ACCEPT, GIVE, STUFF, TAKE, EMPTY, SHUT, CLOSE };

struct request {
    enum deed deed;
    int number, port;
    uint64_t at, count;
};

struct answer {
    int64_t count;
    int error;
};

struct end ends[ENDS];
unsigned links;
uint64_t moment;
static int channel = -1;
/* Of the process that this is. */
static int fds[ENDS], listening = -1;

static void fill_table(void)
{
    for (size_t at = 0; at < sizeof table; at++)
        table[at] = pattern(at % TABLE * 3 + 1);
}

static const unsigned char *bytes_at(uint64_t at)
{
    return table + at % TABLE;
}

static struct answer give_pieces(int fd, uint64_t at, uint64_t count)
{
    struct answer answer = {0, 0};

    while ((uint64_t)answer.count < count) {
        uint64_t left = count - (uint64_t)answer.count, piece = left < PIECE ? left : PIECE;
        ssize_t sent = send(fd, bytes_at(at + (uint64_t)answer.count), piece, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            answer.error = errno;
            break;
        }
        answer.count += sent;
        /* A part says as much as EAGAIN, and not each program asks for that, too. */
        if ((uint64_t)sent < piece && (at & 1))
            break;
    }
    return answer;
}

static struct answer take_pieces(int fd, uint64_t at, uint64_t count)
{
    static unsigned char bytes[PIECE];
    struct answer answer = {0, 0};

    while ((uint64_t)answer.count < count) {
        uint64_t left = count - (uint64_t)answer.count;
        ssize_t got = recv(fd, bytes, left < PIECE ? left : PIECE, MSG_DONTWAIT);
        if (got <= 0) {
            answer.error = got < 0 ? errno : EPIPE;
            break;
        }
        if (memcmp(bytes, bytes_at(at + (uint64_t)answer.count), (size_t)got)) {
            answer.error = EILSEQ;
            break;
        }
        answer.count += got;
    }
    return answer;
}

static struct answer stuff_full(int fd, uint64_t at)
{
    struct answer all = {0, 0};

    /* What the kernel or a change of paths makes room for is used, too. */
    for (int quiet = 0; quiet < 4 && (all.error == 0 || all.error == EAGAIN); quiet++) {
        struct answer some = give_pieces(fd, at + (uint64_t)all.count, 1 << 26);
        if (some.count > 0)
            quiet = 0;
        all.count += some.count;
        all.error = some.error;
        sleep_ms(1);
    }
    return all;
}

static struct answer empty_out(int fd, uint64_t at, uint64_t count)
{
    struct pollfd wait = {fd, POLLIN, 0};
    struct answer all = {0, 0};
    struct patience patience = patience_of(PATIENCE);

    while ((uint64_t)all.count < count && !is_over(&patience)) {
        struct answer some = take_pieces(fd, at + (uint64_t)all.count, count - (uint64_t)all.count);
        all.count += some.count;
        all.error = some.error;
        if (all.error && all.error != EAGAIN)
            break;
        if ((uint64_t)all.count == count)
            all.error = 0;
        else if (count & 1)
            poll(&wait, 1, 100);
        else
            sleep_ms(1);
    }
    /* Most programs receive until there is nothing. */
    if (all.error == 0 && at & 2) {
        struct answer none = take_pieces(fd, at + count, 1);
        all.error = none.count > 0 ? EOVERFLOW : none.error;
    }
    return all;
}

static struct answer of(long result)
{
    return (struct answer){result, result < 0 ? errno : 0};
}

static int listen_somewhere(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;

    if (listening < 0)
        listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listen(listening, 8) || getsockname(listening, (struct sockaddr *)&address, &length))
        return -1;
    return ntohs(address.sin_port);
}

static int dial(int port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    return connect(fd, (struct sockaddr *)&address, sizeof address) ? -1 : fd;
}

static struct answer perform(const struct request *request)
{
    int *fd = &fds[request->number];

    switch (request->deed) {
    case CONNECT:
        return of(*fd = dial(request->port));
    case LISTEN:
        return of(listen_somewhere());
    case ACCEPT:
        return of(*fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC));
    case GIVE:
        return give_pieces(*fd, request->at, request->count);
    case STUFF:
        return stuff_full(*fd, request->at);
    case TAKE:
        return take_pieces(*fd, request->at, request->count);
    case EMPTY:
        return empty_out(*fd, request->at, request->count);
    case SHUT:
        return of(shutdown(*fd, SHUT_WR));
    case CLOSE:
        return of(close(*fd));
    }
    return of(-1);
}

int serve_as_far(int from)
{
    struct request request;

    fill_table();
    while (recv(from, &request, sizeof request, 0) == sizeof request) {
        struct answer answer = perform(&request);
        if (send(from, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
            return 1;
    }
    return 0;
}

void start_far(const char *program)
{
    int pair[2];
    char number[16];

    fill_table();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        fail("no channel");
    channel = pair[0];
    if (fork() == 0) {
        if (strangers && (setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0))
            _exit(126);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(number, sizeof number, "%d", dup(pair[1]));
        execl("/proc/self/exe", program, "far", number, NULL);
        _exit(127);
    }
    close(pair[1]);
}

void end_far(void)
{
    int status = 0;

    close(channel);
    if (wait(&status) < 0 || status != 0)
        fail("the other process ended with %d", status);
}

static void begin(bool far, const struct request *request)
{
    if (far && send(channel, request, sizeof *request, MSG_NOSIGNAL) != sizeof *request)
        fail("the other process is gone");
}

static struct answer finish(bool far, const struct request *request)
{
    struct answer answer;

    if (!far)
        return perform(request);
    if (recv(channel, &answer, sizeof answer, 0) != sizeof answer)
        fail("the other process is gone");
    return answer;
}

static struct answer ask(const struct end *end, enum deed deed, uint64_t at, uint64_t count)
{
    struct request request = {deed, end->number, 0, at, count};

    moment++;
    begin(end->far, &request);
    return finish(end->far, &request);
}

static void *connect_beside(void *request)
{
    perform(request);
    return NULL;
}

/* The peer's connect and this end's accept wait for each other, so they are called at the same time. */
static void meet(struct end *connecting, struct end *accepting)
{
    struct request listens = {LISTEN, 0, 0, 0, 0}, connects = {CONNECT, connecting->number, 0, 0, 0};
    struct request accepts = {ACCEPT, accepting->number, 0, 0, 0};
    struct answer here, there;
    pthread_t thread;

    begin(accepting->far, &listens);
    connects.port = (int)finish(accepting->far, &listens).count;
    if (connecting->far || accepting->far) {
        begin(connecting->far, &connects);
        begin(accepting->far, &accepts);
        here = finish(false, connecting->far ? &accepts : &connects);
        there = finish(true, connecting->far ? &connects : &accepts);
        if (here.count < 0 || there.count < 0)
            fail("no connection: %s, %s", strerror(here.error), strerror(there.error));
    } else {
        thread = in_thread(connect_beside, &connects);
        here = finish(false, &accepts);
        pthread_join(thread, NULL);
        if (here.count < 0 || fds[connecting->number] < 0)
            fail("no connection");
    }
}

void join(int link)
{
    static uint64_t seeds;
    struct end *pair = &ends[link * 2];
    /* One link is within the process, the others lead to the other one. */
    int far = link == 0 ? -1 : (int)below(2);

    for (int side = 0; side < 2; side++)
        pair[side] = (struct end){.fd = -1,
                                  .number = link * 2 + side,
                                  .far = side == far,
                                  .seed = ++seeds * 7919,
                                  .peer = &pair[1 - side]};
    meet(&pair[0], &pair[1]);
    for (int side = 0; side < 2; side++)
        pair[side].fd = pair[side].far ? -1 : fds[pair[side].number];
    note("link %d: end %d %s fd %d, end %d %s fd %d", link, link * 2, pair[0].far ? "far" : "near", pair[0].fd,
         link * 2 + 1, pair[1].far ? "far" : "near", pair[1].fd);
    /* Whose bell a peer is told of depends on where the first bytes find the connection. */
    for (int side = 0; side < 2; side++)
        if (!pair[side].far && chance(60))
            add_to(any_set(), &pair[side], pair[side].fd);
    if (chance(30))
        return;
    for (int round = 0; round < 6; round++) {
        give(&pair[round % 2], 100);
        empty(&pair[1 - round % 2]);
        usleep(300);
    }
}

void part(int link)
{
    struct end *pair = &ends[link * 2];
    int first = (int)below(2);

    note("link %d ends", link);
    for (int step = 0; step < 2; step++) {
        struct end *end = &pair[first ^ step];
        sets_lose(end);
        while (end->copies > 0)
            close(end->copy[--end->copies]);
        ask(end, CLOSE, 0, 0);
        end->fd = -1;
    }
}

uint64_t unread(const struct end *end)
{
    return end->peer->sent - end->peer->got;
}

bool readable(const struct end *end)
{
    return unread(end) > 0 || end->peer->shut;
}

bool surely_ended(const struct end *end)
{
    return end->peer->shut && unread(end) < OPEN;
}

bool surely_readable(const struct end *end)
{
    return end->peer->shut || (unread(end) > 0 && !end->received_in_part);
}

bool surely_roomy(const struct end *end)
{
    return end->sent == end->got && !end->shut;
}

static void has_given(struct end *end, struct answer answer, uint64_t wanted)
{
    if (answer.error && answer.error != EAGAIN)
        fail("end %d cannot send: %s", end->number, strerror(answer.error));
    if (answer.count > 0) {
        end->peer->readable_at = moment;
        if (unread(end->peer) < OPEN)
            sets_see_arrival(end->peer);
    }
    end->sent += (uint64_t)answer.count;
    if ((uint64_t)answer.count < wanted) {
        end->full_at = moment;
        sets_see_full(end);
    }
}

uint64_t give(struct end *end, uint64_t count)
{
    struct answer answer = ask(end, GIVE, end->seed + end->sent, count);

    note("end %d gives %ld of %lu", end->number, (long)answer.count, count);
    has_given(end, answer, count);
    return (uint64_t)answer.count;
}

void stuff(struct end *end)
{
    struct answer answer = ask(end, STUFF, end->seed + end->sent, 0);

    note("end %d is stuffed with %ld", end->number, (long)answer.count);
    has_given(end, answer, UINT64_MAX);
}

static uint64_t has_taken(struct end *end, struct answer answer)
{
    if (answer.error && answer.error != EAGAIN && !(answer.error == EPIPE && end->peer->shut))
        fail("end %d cannot receive after %ld: %s", end->number, (long)answer.count, strerror(answer.error));
    if (readable(end))
        end->readable_at = moment;
    end->peer->got += (uint64_t)answer.count;
    return (uint64_t)answer.count;
}

uint64_t take(struct end *end, uint64_t count)
{
    struct answer answer = ask(end, TAKE, end->peer->seed + end->peer->got, count);

    note("end %d takes %ld of %lu", end->number, (long)answer.count, count);
    if ((uint64_t)answer.count > unread(end))
        fail("end %d has received more than was sent", end->number);
    return has_taken(end, answer);
}

void empty(struct end *end)
{
    uint64_t count = unread(end);
    struct answer answer = ask(end, EMPTY, end->peer->seed + end->peer->got, count);

    note("end %d takes all of %lu", end->number, count);
    if (has_taken(end, answer) != count)
        fail("end %d has received %ld of %lu bytes: %s", end->number, (long)answer.count, count,
             strerror(answer.error));
}

void taken_by_sleeper(struct end *end, const void *bytes, uint64_t count, bool stay)
{
    moment++;
    if (count > unread(end))
        fail("a sleeper at end %d has received more than was sent", end->number);
    if (memcmp(bytes, bytes_at(end->peer->seed + end->peer->got), count))
        fail("a sleeper at end %d has received wrong bytes", end->number);
    end->readable_at = moment;
    if (!stay)
        end->peer->got += count;
}

void fill_in(const struct end *end, void *bytes, uint64_t at, size_t count)
{
    for (size_t done = 0; done < count; done += TABLE) {
        size_t piece = count - done < TABLE ? count - done : TABLE;
        memcpy((char *)bytes + done, bytes_at(end->seed + at + done), piece);
    }
}

void shut(struct end *end)
{
    struct answer answer = ask(end, SHUT, 0, 0);

    note("end %d is shut", end->number);
    if (answer.error)
        fail("end %d cannot be shut: %s", end->number, strerror(answer.error));
    end->shut = true;
    end->peer->readable_at = moment;
    if (surely_ended(end->peer))
        sets_see_arrival(end->peer);
}

/* Whether a byte goes out before long. Without a note of each try: what came before is to be seen should it fail. */
static bool finds_room(struct end *end)
{
    for (struct patience patience = patience_of(PATIENCE); !is_over(&patience); sleep_ms(1)) {
        struct answer answer = ask(end, GIVE, end->seed + end->sent, 1);

        has_given(end, answer, 1);
        if (answer.count == 1)
            return true;
    }
    return false;
}

void must_have_room(struct end *end, uint64_t since)
{
    /* What was said before the last fill is no lie. */
    if (end->shut || end->full_at >= since || give(end, 1) == 1)
        return;
    if (moved && finds_room(end))
        return;
    /* A connection that was full on TCP had room on a lane, and is on TCP again. */
    if (moved && unread(end->peer) > 0) {
        note("end %d has lost the room it was said to have", end->number);
        empty(end->peer);
        if (finds_room(end))
            return;
    }
    fail("end %d was said to have room", end->number);
}

struct end *any_end(void)
{
    return &ends[below(2 * links)];
}

struct end *any_near(void)
{
    struct end *end = any_end();

    return end->far ? end->peer : end;
}

int any_descriptor(const struct end *end)
{
    unsigned which = below((unsigned)end->copies + 1);

    return which == 0 ? end->fd : end->copy[which - 1];
}

void show_ends(void)
{
    for (unsigned number = 0; number < 2 * links; number++) {
        struct end *end = &ends[number];
        printf("end %u %s fd %d copies %d%s: sent %lu, of that unread %lu; to read %lu\n", number,
               end->far ? "far" : "near", end->fd, end->copies, end->shut ? " shut" : "", end->sent,
               end->sent - end->got, unread(end));
    }
}
