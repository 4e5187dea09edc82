/* A library that makes a connection when it is loaded, before other libraries of the program, and the program, which
   goes on with it. Both ends are here. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

extern int near_end, far_end;
void echo(int rounds);

#ifdef PROGRAM

int main(void)
{
    echo(20000);
    puts("echoed");
    return 0;
}

#else

int near_end, far_end;

static void check(int is_true, const char *what)
{
    if (!is_true) {
        perror(what);
        exit(1);
    }
}

void echo(int rounds)
{
    char text[6] = "hello";

    for (int n = 0; n < rounds; n++) {
        check(send(near_end, text, 5, 0) == 5 && recv(far_end, text, 5, MSG_WAITALL) == 5, "there");
        check(send(far_end, text, 5, 0) == 5 && recv(near_end, text, 5, MSG_WAITALL) == 5, "back");
    }
}

__attribute__((constructor)) static void loaded(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    check(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    near_end = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(near_end, (struct sockaddr *)&address, len) == 0, "connect");
    far_end = accept(listener, NULL, NULL);
    check(far_end >= 0, "accept");
    echo(200);
}

#endif
