/* The floor of shared memory: two single-producer single-consumer rings with a futex for the waiting reader. */
#include "common.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { SLOTS = 16, LINE = 64 };

struct ring {
    _Alignas(LINE) _Atomic uint32_t written; /* the futex word: messages so far */
    _Alignas(LINE) _Atomic uint32_t waiting; /* the reader sleeps, or is about to */
    _Alignas(LINE) uint32_t taken;           /* the reader's own */
    _Alignas(LINE) char slots[SLOTS][SIZE];
};

static struct ring *requests, *replies;
static uint64_t spin;
static char request[SIZE], reply[SIZE];

static void put(struct ring *ring, const char *bytes) {
    uint32_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
    memcpy(ring->slots[at % SLOTS], bytes, SIZE); /* one message is under way at a time: never full */
    atomic_store(&ring->written, at + 1);
    if (atomic_load(&ring->waiting)) syscall(SYS_futex, &ring->written, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static int filled(struct ring *ring) { return atomic_load(&ring->written) != ring->taken; }

static void await(struct ring *ring) {
    if (spin) {
        uint64_t end = now() + spin;
        do {
            if (filled(ring)) return;
            sched_yield();
        } while (now() < end);
    }
    atomic_store(&ring->waiting, 1);
    while (!filled(ring)) {
        long n = syscall(SYS_futex, &ring->written, FUTEX_WAIT, ring->taken, NULL, NULL, 0);
        if (n && errno != EAGAIN && errno != EINTR) fail("futex");
    }
    atomic_store(&ring->waiting, 0);
}

static void take(struct ring *ring, char *bytes) {
    await(ring);
    memcpy(bytes, ring->slots[ring->taken++ % SLOTS], SIZE);
}

static void serve(void) {
    char bytes[SIZE];
    for (;;) {
        take(requests, bytes);
        put(replies, bytes);
    }
}

static void round_trip(void) {
    request[0]++;
    put(requests, request);
    take(replies, reply);
    if (reply[0] != request[0]) fail("reply");
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    spin = strtoull(argv[1], NULL, 10);
    requests = mmap(NULL, 2 * sizeof *requests, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (requests == MAP_FAILED) fail("mmap");
    replies = requests + 1;
    return run(argv, serve, round_trip);
}
