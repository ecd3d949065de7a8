/* Threads that wait for something under a lock: a condition variable but that who wakes never waits himself. glibc's
 * signal can (2.25 to 2.40), with the lock held, until a thread that was woken before has run. */
#ifndef BREVIS_LINE_H
#define BREVIS_LINE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

/* All zero: nobody waits. */
typedef struct {
    struct waiter *first;
} line;

/* All with the lock held, which waiting gives up meanwhile. A thread can wake for nothing. */
void line_wait(line *l, pthread_mutex_t *lock);
/* Wakes who came last, whose memory a core is likeliest to have in its cache; false if nobody waits. */
bool line_wake(line *l);
void line_wake_all(line *l);

#endif
