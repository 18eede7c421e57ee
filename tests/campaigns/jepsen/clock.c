/* A wall clock that can be stepped, for the processes of one host. It is loaded by LD_PRELOAD.

   The file named in TWOPC_CLOCK has the offset in seconds, as eight bytes, which may change at any time. The monotonic
   clock stays the machine's. Deadlines by the wall clock are turned into the machine's. A wait that has begun is not
   affected by a later step.

   libfaketime does not serve: librdkafka waits by cnd_timedwait, which it does not turn, so every wait is wrong. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* No monotonic clock, which counts from the machine's start, has come so far. */
#define LEAST_WALL_TIME_S 1000000000

static const volatile int64_t none = 0;
static const volatile int64_t *offset = &none;
static int (*real_gettime)(clockid_t, struct timespec *);

static void *next(const char *name, const char *version) {
    void *found = dlvsym(RTLD_NEXT, name, version); /* of several versions, dlsym may return the oldest */
    return found ? found : dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void start(void) {
    real_gettime = next("clock_gettime", "GLIBC_2.17");
    const char *path = getenv("TWOPC_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        offset = mapped;
    close(file);
}

static struct timespec by_machine(const struct timespec *deadline) {
    return (struct timespec){deadline->tv_sec - *offset, deadline->tv_nsec};
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = real_gettime ? real_gettime(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict deadline) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    if (!real)
        real = next("cnd_timedwait", "GLIBC_2.28");
    struct timespec turned = by_machine(deadline);
    return real(condition, mutex, &turned);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = next("pthread_cond_timedwait", "GLIBC_2.3.2");
    if (deadline->tv_sec < LEAST_WALL_TIME_S) /* its condition goes by the monotonic clock */
        return real(condition, mutex, deadline);
    struct timespec turned = by_machine(deadline);
    return real(condition, mutex, &turned);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real)
        real = next("sem_timedwait", "GLIBC_2.2.5");
    struct timespec turned = by_machine(deadline);
    return real(semaphore, &turned);
}
