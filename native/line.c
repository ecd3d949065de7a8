#include <errno.h>

#include "line.h"

struct waiter {
    struct waiter *next;
    sem_t woken;
};

void line_wait(line *l, pthread_mutex_t *lock)
{
    struct waiter me = {.next = l->first};
    sem_init(&me.woken, 0, 0);
    l->first = &me;
    pthread_mutex_unlock(lock);
    while (sem_wait(&me.woken) && errno == EINTR) continue;
    sem_destroy(&me.woken);
    pthread_mutex_lock(lock);
}

bool line_wake(line *l)
{
    struct waiter *first = l->first;
    if (!first) return false;
    l->first = first->next;
    sem_post(&first->woken);
    return true;
}

void line_wake_all(line *l)
{
    while (line_wake(l)) continue;
}
