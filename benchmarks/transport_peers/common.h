/* What the C contenders share: clock, pinning, and the conversation with the benchmark.
 *
 * Arguments: spin in ns (0: block at once), processors of the server, processors of the client (`0,1`, or `-` for all).
 * Each line on stdin is a number of round trips; their durations in ns follow on stdout as native uint64.
 */
#ifndef COMMON_H
#define COMMON_H

#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 200 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pin(const char *list) {
    if (*list == '-') return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (char *end; *list; list = *end ? end + 1 : end) CPU_SET((int)strtol(list, &end, 10), &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
}

/* Calls `round_trip` as often as each line of stdin asks for. */
static void answer(void (*round_trip)(void)) {
    long count;
    while (scanf("%ld", &count) == 1 && count > 0) {
        uint64_t *spent = malloc((size_t)count * sizeof *spent);
        if (!spent) fail("malloc");
        for (long i = 0; i < count; i++) {
            uint64_t start = now();
            round_trip();
            spent[i] = now() - start;
        }
        if (fwrite(spent, sizeof *spent, (size_t)count, stdout) != (size_t)count || fflush(stdout)) fail("stdout");
        free(spent);
    }
}

/* Forks the server, which ends with the client; pins both; the client answers until stdin ends. */
static int run(char **argv, void (*serve)(void), void (*round_trip)(void)) {
    pid_t server = fork();
    if (server < 0) fail("fork");
    pin(argv[server ? 3 : 2]);
    if (!server) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve();
        return 0;
    }
    answer(round_trip);
    return kill(server, SIGKILL);
}

#endif
