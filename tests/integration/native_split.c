/* Two functions that share a thread's CPU time, and measure it themselves. */
#include <pthread.h>
#include <stdint.h>
#include <time.h>

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

__attribute__((noinline)) void first_function(uint64_t end) { for (volatile uint64_t at = 0; at < end; at++); }
__attribute__((noinline)) void second_function(uint64_t end) { for (volatile uint64_t at = 0; at < end; at++); }

struct work { uint64_t rounds, first, second, first_ns, second_ns; };

void *split(void *argument)
{
    struct work *work = argument;
    for (uint64_t round = 0; round < work->rounds; round++) {
        uint64_t start = cpu_ns();
        first_function(work->first);
        uint64_t between = cpu_ns();
        second_function(work->second);
        work->first_ns += between - start;
        work->second_ns += cpu_ns() - between;
    }
    return 0;
}

void split_in_threads(struct work *of_each, int count)
{
    pthread_t threads[16];
    for (int at = 0; at < count; at++)
        pthread_create(&threads[at], 0, split, &of_each[at]);
    for (int at = 0; at < count; at++)
        pthread_join(threads[at], 0);
}
