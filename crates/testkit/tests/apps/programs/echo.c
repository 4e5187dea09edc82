/* Sends bytes back, or sends bytes and checks what comes back: `echo server|client PORT`. For any C library. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void require(int condition, const char *what)
{
    if (!condition) {
        perror(what);
        exit(1);
    }
}

static void serve(int listener)
{
    for (;;) {
        static char bytes[65536];
        int fd = accept(listener, NULL, NULL);
        ssize_t count;

        require(fd >= 0, "accept");
        while ((count = recv(fd, bytes, sizeof bytes, 0)) > 0)
            for (ssize_t sent = 0; sent < count;) {
                ssize_t more = send(fd, bytes + sent, count - sent, MSG_NOSIGNAL);
                require(more > 0, "send");
                sent += more;
            }
        close(fd);
    }
}

/* One message of each round's size, there and back. */
static void call(int fd)
{
    static unsigned char out[50000], in[50000];

    for (unsigned round = 0; round < 500; round++) {
        size_t size = 1 + round * 7919 % sizeof out;
        size_t received = 0;

        for (size_t i = 0; i < size; i++)
            out[i] = (unsigned char)(i * 31 + round);
        require(send(fd, out, size, MSG_NOSIGNAL) == (ssize_t)size, "send");
        while (received < size) {
            ssize_t more = recv(fd, in + received, size - received, 0);
            require(more > 0, "recv");
            received += more;
        }
        require(!memcmp(in, out, size), "compare");
    }
    puts("all bytes came back");
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    require(argc == 3 && fd >= 0, "arguments");
    address.sin_port = htons(atoi(argv[2]));
    if (!strcmp(argv[1], "client")) {
        require(!connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
        call(fd);
        return 0;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    require(!bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, 8), "listen");
    serve(fd);
}
