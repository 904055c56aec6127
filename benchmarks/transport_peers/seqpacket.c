/* The floor of a socket: an echo over a pair of AF_UNIX SOCK_SEQPACKET sockets. */
#include "common.h"

#include <errno.h>
#include <sys/socket.h>

static int ends[2];
static uint64_t spin;
static char request[SIZE], reply[SIZE];

static ssize_t receive(int fd, char *bytes) {
    if (spin) {
        uint64_t end = now() + spin;
        do {
            ssize_t n = recv(fd, bytes, SIZE, MSG_DONTWAIT);
            if (n >= 0 || errno != EAGAIN) return n;
            sched_yield();
        } while (now() < end);
    }
    return recv(fd, bytes, SIZE, 0);
}

static void serve(void) {
    char bytes[SIZE];
    for (ssize_t n; (n = receive(ends[1], bytes)) > 0;)
        if (send(ends[1], bytes, (size_t)n, 0) != n) fail("send");
}

static void round_trip(void) {
    request[0]++;
    if (send(ends[0], request, SIZE, 0) != SIZE) fail("send");
    if (receive(ends[0], reply) != SIZE || reply[0] != request[0]) fail("receive");
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    spin = strtoull(argv[1], NULL, 10);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) fail("socketpair");
    return run(argv, serve, round_trip);
}
