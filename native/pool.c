/* Threads that read parts of archives, in the order in which they are asked to. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { PENDING, WANTED, DONE };

/* Nanoseconds without work until it is told that something is done which nobody waited for. */
enum { LATE = 100000000 };

struct brv_pool {
    pthread_mutex_t lock;
    pthread_cond_t more;
    brv_job *first, *last;
    bool closing, untold;
    int tell; /* an eventfd */
    unsigned n;
    pthread_t threads[];
};

static void tell(const brv_pool *p)
{
    const uint64_t one = 1;
    /* It only fails if as many as it can count are told of already. */
    if (write(p->tell, &one, sizeof one) < 0) return;
}

/* Waits until there is something to do. The caller holds the lock. */
static void wait_for_more(brv_pool *p)
{
    if (!p->untold) {
        pthread_cond_wait(&p->more, &p->lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LATE;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&p->more, &p->lock, &until) && p->untold) {
        p->untold = false;
        tell(p);
    }
}

static void *work(void *pool)
{
    brv_pool *p = pool;
    brv_scratch *scratch = brv_scratch_new();
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        brv_job *job = p->first;
        if (!job) {
            wait_for_more(p);
            continue;
        }
        p->first = job->next;
        pthread_mutex_unlock(&p->lock);
        if (scratch) brv_read(job->fd, job->parts, job->n, scratch, job->out, 0, &job->status);
        else job->status.code = BRV_NO_MEMORY;
        /* From here on the job may be gone. */
        const bool wanted = __atomic_exchange_n(&job->state, DONE, __ATOMIC_ACQ_REL) == WANTED;
        if (wanted) tell(p);
        pthread_mutex_lock(&p->lock);
        p->untold |= !wanted;
    }
    pthread_mutex_unlock(&p->lock);
    brv_scratch_free(scratch);
    return NULL;
}

brv_pool *brv_pool_new(unsigned threads, int tell)
{
    brv_pool *p = calloc(1, sizeof *p + threads * sizeof *p->threads);
    if (!p) return NULL;
    p->tell = tell;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, &clock);
    pthread_condattr_destroy(&clock);
    sigset_t all, before; /* signals are for the other threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (p->n < threads && !pthread_create(&p->threads[p->n], NULL, work, p)) p->n++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (p->n == threads) return p;
    brv_pool_free(p);
    return NULL;
}

void brv_pool_free(brv_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->n; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->more);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void brv_pool_add(brv_pool *p, brv_job *job)
{
    job->next = NULL;
    job->state = PENDING;
    pthread_mutex_lock(&p->lock);
    if (p->first) p->last->next = job;
    else p->first = job;
    p->last = job;
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
}

int brv_job_done(brv_job *job, int want)
{
    int pending = PENDING;
    if (want && __atomic_compare_exchange_n(&job->state, &pending, WANTED, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return 0;
    return __atomic_load_n(&job->state, __ATOMIC_ACQUIRE) == DONE;
}
