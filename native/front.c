/* Threads that answer reads of a mount without the interpreter, and hand all other requests to its event loop.
 *
 * One party at a time receives: the event loop, as if there were no threads, or a thread that does nothing else. A read
 * of a known handle makes the thread receive, and so do questions in a row for extended attributes that there are not;
 * any other request the event loop. So requests of a kind that come one after another are not handed from one to the
 * other. What takes no time, those questions and small reads of what is in memory, the thread answers itself. All other
 * reads it leaves to the workers.
 *
 * What it hands over the event loop takes up before the thread receives again. It must: libfuse leaves the data of a
 * large request in a pipe of the thread that has received it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "front.h"

/* Reads of this size are small. */
enum { SMALL = 64 << 10 };

/* The event loop receives so many questions in vain before the thread does. */
enum { VAIN = 4 };

/* What threads ask the scheduler for: those that receive or fetch, and those that decode. */
enum { RECEIVER_NS = 100000, WORKER_NS = 10000000 };

/* A request as it was received, `result` bytes of it, or what receiving it gave. A read of `file`, if it is one. */
typedef struct message {
    struct message *next;
    struct fuse_buf buf;
    int result;
    brv_file *file;
} message;

struct handle {
    uint64_t number;
    brv_file *file;
    struct handle *next;
};

/* A thread, and what it has to answer reads with. */
typedef struct worker {
    brv_front *front;
    pthread_t thread;
    brv_scratch *scratch;
    uint8_t *reply;
    message *message;
    reading reading;
} worker;

/* ---- messages: all with the lock held ------------------------------------------------------ */

/* NULL if there is no memory. */
static message *take_message(brv_front *f)
{
    message *m = f->unused_messages;
    if (m) f->unused_messages = m->next;
    else m = calloc(1, sizeof *m);
    return m;
}

static void give_message(brv_front *f, message *m)
{
    m->next = f->unused_messages;
    f->unused_messages = m;
}

static void put_last(message ***last, message *m)
{
    m->next = NULL;
    **last = m;
    *last = &m->next;
}

static message *take_first(message **first, message ***last)
{
    message *m = *first;
    if (m && !(*first = m->next)) *last = first;
    return m;
}

static void notify(int event)
{
    const uint64_t one = 1;
    /* It only fails if as many as it can count wait already. */
    if (write(event, &one, sizeof one) < 0) return;
}

/* A device that an epoll has in its set wakes it for each request, whatever events it is there for. */
static void receive_on_loop(brv_front *f, bool on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = f->device};
    epoll_ctl(f->loop, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, f->device, &event);
    f->looping = on;
}

static void receive_on_thread(brv_front *f)
{
    receive_on_loop(f, false);
    line_wake(&f->turn);
}

static void swap(const brv_front *f, struct fuse_buf *a, struct fuse_buf *b)
{
    struct fuse_buf c;
    memcpy(&c, a, f->known);
    memcpy(a, b, f->known);
    memcpy(b, &c, f->known);
}

/* ---- requests ------------------------------------------------------------------------------ */

/* As libfuse does, which allocates a buffer for the largest of requests if there is none yet. What a new one has of memory
 * that malloc has used before goes back to the system, or as many as there are requests at a time would take 1 MiB each. */
static int receive(const brv_front *f, struct fuse_buf *buf)
{
    const bool given = buf->mem;
    const int result = f->receive(f->session, buf);
    if (given || !buf->mem) return result;
    const size_t used = result > 0 && !buf->flags ? (size_t)result : 0;
    forget_pages((uint8_t *)buf->mem + used, malloc_usable_size(buf->mem) - used);
    return result;
}

/* The request in a buffer, if it is in memory and has so many bytes after its header. */
static const struct fuse_in_header *request_in(const struct fuse_buf *buf, int result, size_t more)
{
    return result >= (int)(sizeof(struct fuse_in_header) + more) && !buf->flags ? buf->mem : NULL;
}

/* A filesystem need not look at them, and pyfuse3 does not: what is interrupted is answered all the same. */
static bool is_interrupt(const struct fuse_buf *buf, int result)
{
    const struct fuse_in_header *in = request_in(buf, result, 0);
    return in && in->opcode == FUSE_INTERRUPT;
}

/* The file that a request reads, if it is to be answered here. The caller has the lock. */
static brv_file *file_read_by(brv_front *f, const struct fuse_buf *buf, int result)
{
    const struct fuse_in_header *in = request_in(buf, result, sizeof(struct fuse_read_in));
    if (!in || in->opcode != FUSE_READ) return NULL;
    const struct fuse_read_in *read = (const void *)(in + 1);
    const struct handle *h = f->handles[read->fh % HANDLE_BUCKETS];
    while (h && h->number != read->fh) h = h->next;
    return h && read->size <= REQUEST ? h->file : NULL;
}

/* If the request is answered, aborted or interrupted meanwhile, or the mount has ended, nobody wants the reply. */
static void reply(const brv_front *f, uint64_t unique, struct iovec *parts, size_t n, int error)
{
    struct fuse_out_header out = {.len = sizeof out, .error = -error, .unique = unique};
    parts[0] = (struct iovec){&out, sizeof out};
    for (size_t i = 1; i < n; i++) out.len += (uint32_t)parts[i].iov_len;
    while (writev(f->device, parts, (int)n) < 0 && errno == EINTR) continue;
}

/* ---- extended attributes ------------------------------------------------------------------- */

/* Those that tell about the mount. */
static const char OURS[] = "user.brevisfs.";

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The caller has the lock, here and below. */
static bool is_bare(const brv_front *f, uint64_t inode)
{
    const bare *b = &f->bare[inode % BARE];
    return b->inode == inode && now() < b->until;
}

/* Whether a request asks for extended attributes of an inode that has none. */
static bool is_vain(const brv_front *f, const struct fuse_buf *buf, int result)
{
    const struct fuse_in_header *in = request_in(buf, result, sizeof(struct fuse_getxattr_in));
    if (!in || (in->opcode != FUSE_GETXATTR && in->opcode != FUSE_LISTXATTR)) return false;
    const size_t name = sizeof *in + sizeof(struct fuse_getxattr_in), length = sizeof OURS - 1;
    if (in->opcode == FUSE_GETXATTR && (size_t)result >= name + length &&
        !memcmp((const char *)in + name, OURS, length))
        return false;
    return is_bare(f, in->nodeid);
}

/* Without the lock. */
static void reply_none(const brv_front *f, const struct fuse_buf *buf)
{
    const struct fuse_in_header *in = buf->mem;
    const struct fuse_getxattr_in *asked = (const void *)(in + 1);
    struct fuse_getxattr_out none = {0};
    struct iovec parts[2] = {[1] = {&none, sizeof none}};
    const bool length = in->opcode == FUSE_LISTXATTR && !asked->size;
    reply(f, in->unique, parts, length ? 2 : 1, in->opcode == FUSE_LISTXATTR ? 0 : ENODATA);
}

/* Counts a question that the event loop has received; after some in a row the thread receives. */
static void count_vain(brv_front *f)
{
    if (++f->vain >= VAIN && !f->ending) receive_on_thread(f);
}

/* ---- reads --------------------------------------------------------------------------------- */

static void reply_reading(const brv_front *f, uint64_t unique, const reading *r)
{
    struct iovec parts[STEPS + 1];
    for (unsigned i = 0; i < r->n; i++) {
        const step *s = &r->steps[i];
        parts[i + 1] = s->extent ? (struct iovec){s->extent->bytes + s->skip, s->bytes}
                                 : (struct iovec){s->out, s->part.hi - s->part.lo};
    }
    reply(f, unique, parts, r->n + 1, 0);
}

static void reply_bytes(worker *w, uint64_t unique, size_t n)
{
    struct iovec parts[2] = {[1] = {w->reply, n}};
    reply(w->front, unique, parts, 2, 0);
}

/* Plans [*at, end) of an archive, `at_once` only if it takes no time, and has decoded what will be wanted next. */
static bool plan(worker *w, brv_file *file, uint64_t *at, uint64_t end, bool at_once)
{
    const uint64_t begin = *at;
    pthread_mutex_lock(&w->front->lock);
    const bool planned = at_once ? range_is_quick(file, *at, end) && !reading_plan(&w->reading, file, at, end, w->reply)
                                 : !reading_begin(&w->reading, file, at, end, w->reply, w->scratch);
    if (planned) read_ahead(file, begin, end);
    pthread_mutex_unlock(&w->front->lock);
    return planned;
}

/* Ends the reading that is planned, and answers with it if it is the `whole` request: else its bytes go to w->reply. */
static bool finish(worker *w, uint64_t unique, bool whole, bool at_once)
{
    brv_front *f = w->front;
    reading *r = &w->reading;
    if (at_once) reading_carry_out_at_once(r, w->scratch);
    else reading_carry_out(r, w->scratch);
    pthread_mutex_lock(&f->lock);
    const bool good = reading_succeeded(r);
    pthread_mutex_unlock(&f->lock);
    if (good && whole) reply_reading(f, unique, r);
    else if (good) reading_collect(r);
    pthread_mutex_lock(&f->lock);
    reading_end(r);
    pthread_mutex_unlock(&f->lock);
    return good;
}

/* What one reading was too small for: the rest of [begin, end), from `at` on. */
static bool answer_rest(worker *w, brv_file *file, uint64_t unique, uint64_t begin, uint64_t at, uint64_t end)
{
    pthread_mutex_lock(&w->front->lock);
    const bool good = !reading_all(&w->reading, file, at, end, w->reply + (at - begin), w->scratch);
    pthread_mutex_unlock(&w->front->lock);
    if (!good) return false;
    reply_bytes(w, unique, end - begin);
    return true;
}

static uint64_t place(const brv_file *file, uint64_t at) { return at < file->index.size ? at : file->index.size; }

/* False if it cannot be answered here; or `at_once`, which is what takes no time. */
static bool answer_archive(worker *w, brv_file *file, uint64_t unique, uint64_t offset, size_t size, bool at_once)
{
    const uint64_t begin = place(file, offset), end = place(file, offset + size);
    uint64_t at = begin;
    return plan(w, file, &at, end, at_once) && finish(w, unique, at == end, at_once) &&
           (at == end || answer_rest(w, file, unique, begin, at, end));
}

/* As answer_archive; `at_once`, if the kernel has it in memory. */
static bool answer_plain(worker *w, const brv_file *file, uint64_t unique, uint64_t offset, size_t size, bool at_once)
{
    size_t done = 0;
    while (done < size) {
        struct iovec rest = {w->reply + done, size - done};
        const ssize_t got = preadv2(file->fd, &rest, 1, (off_t)(offset + done), at_once ? RWF_NOWAIT : 0);
        if (!got) break;
        if (got > 0) done += (size_t)got;
        else if (errno != EINTR) return false;
    }
    reply_bytes(w, unique, done);
    return true;
}

static bool answer_read(worker *w, brv_file *file, const struct fuse_buf *buf, bool at_once)
{
    const struct fuse_in_header *in = buf->mem;
    const struct fuse_read_in *read = (const void *)(in + 1);
    if (at_once && read->size > SMALL) return false;
    return file->index.n ? answer_archive(w, file, in->unique, read->offset, read->size, at_once)
                          : answer_plain(w, file, in->unique, read->offset, read->size, at_once);
}

/* Answers the read that is w->message, or gives it to the event loop, to try again and say why not. */
static void answer(worker *w)
{
    brv_front *f = w->front;
    message *m = w->message;
    const bool done = answer_read(w, m->file, &m->buf, false);
    pthread_mutex_lock(&f->lock);
    if (m->file->missing < m->file->index.n) programs_prepare_missing(m->file, w->scratch);
    file_end(m->file);
    message *other = done ? NULL : take_message(f);
    if (other) {
        put_last(&f->last_passed, m);
        notify(f->passing);
        w->message = other;
    }
    pthread_mutex_unlock(&f->lock);
    if (!done && !other) {
        const struct fuse_in_header *in = m->buf.mem;
        struct iovec parts[1];
        reply(f, in->unique, parts, 1, ENOMEM);
    }
}

/* ---- threads ------------------------------------------------------------------------------- */

/* For how long the thread would run before another that is ready. Of two the one that asks for less comes first: so who
 * receives comes before others, and who decodes after them, at no cost of anybody's share. Linux 6.12 and later. */
static void be_scheduled_for(uint64_t ns)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes;
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0)) return;
    attributes.runtime = ns;
    /* Where it is not heeded, or not allowed, reads are as right. */
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

/* In place of what was received, which somebody else takes, a message for what comes next; false if there is no memory:
 * then the request fails. The caller has the lock, here and below. */
static bool replace_message(worker *w)
{
    brv_front *f = w->front;
    message *other = take_message(f);
    if (other) {
        w->message = other;
        return true;
    }
    const struct fuse_in_header *in = request_in(&w->message->buf, w->message->result, 0);
    struct iovec parts[1];
    if (in && in->opcode != FUSE_FORGET && in->opcode != FUSE_BATCH_FORGET) reply(f, in->unique, parts, 1, ENOMEM);
    return false;
}

static void give_to_workers(brv_front *f, message *m)
{
    put_last(&f->last_read, m);
    line_wake(&f->idle);
}

/* What was received, which is for the event loop, and receiving from now on. */
static void hand_over(worker *w)
{
    brv_front *f = w->front;
    message *m = w->message;
    if (!replace_message(w)) return;
    put_last(&f->last_passed, m);
    notify(f->passing);
    receive_on_loop(f, true);
}

static void take_up(worker *w)
{
    brv_front *f = w->front;
    message *m = w->message;
    if (is_vain(f, &m->buf, m->result)) {
        reply_none(f, &m->buf);
        return;
    }
    m->file = file_read_by(f, &m->buf, m->result);
    if (!m->file) {
        hand_over(w);
        return;
    }
    file_begin(m->file);
    f->counters.requests += m->file->index.n > 0;
    pthread_mutex_unlock(&f->lock);
    const bool done = answer_read(w, m->file, &m->buf, true);
    pthread_mutex_lock(&f->lock);
    if (done || !replace_message(w)) file_end(m->file);
    else give_to_workers(f, m);
}

/* What the event loop has received. */
static void take_up_given(worker *w)
{
    brv_front *f = w->front;
    give_message(f, w->message);
    w->message = f->given;
    f->given = NULL;
    take_up(w);
}

/* Without the lock. */
static void receive_once(worker *w)
{
    brv_front *f = w->front;
    message *m = w->message;
    struct pollfd ready[] = {{.fd = f->device, .events = POLLIN}, {.fd = f->waking, .events = POLLIN}};
    if (poll(ready, 2, -1) < 0 || ready[1].revents) return;
    m->result = receive(f, &m->buf);
    if (m->result == -EINTR || m->result == -EAGAIN || is_interrupt(&m->buf, m->result)) return;
    pthread_mutex_lock(&f->lock);
    take_up(w);
    pthread_mutex_unlock(&f->lock);
}

static void *receive_all(void *of)
{
    be_scheduled_for(RECEIVER_NS);
    worker *w = of;
    brv_front *f = w->front;
    pthread_mutex_lock(&f->lock);
    while (!f->ending) {
        if (f->given) take_up_given(w);
        else if (!f->session || f->looping) line_wait(&f->turn, &f->lock);
        else {
            pthread_mutex_unlock(&f->lock);
            receive_once(w);
            pthread_mutex_lock(&f->lock);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void work_once(worker *w)
{
    brv_front *f = w->front;
    message *m = take_first(&f->reads, &f->last_read);
    if (m) {
        give_message(f, w->message);
        w->message = m;
        pthread_mutex_unlock(&f->lock);
        answer(w);
        pthread_mutex_lock(&f->lock);
    } else if (f->offered) {
        reading_help(f, w->scratch);
    } else {
        line_wait(&f->idle, &f->lock);
    }
}

static void *work(void *of)
{
    worker *w = of;
    be_scheduled_for(WORKER_NS);
    pthread_mutex_lock(&w->front->lock);
    while (!w->front->ending) work_once(w);
    pthread_mutex_unlock(&w->front->lock);
    return NULL;
}

static void *see_to_memory(void *of)
{
    brv_front *f = of;
    be_scheduled_for(WORKER_NS);
    pthread_mutex_lock(&f->lock);
    while (!f->ending) {
        line_wait(&f->filler, &f->lock);
        extents_fill_reserve(f);
        programs_trim(f);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void *fetch_all(void *of)
{
    brv_front *f = of;
    be_scheduled_for(RECEIVER_NS);
    pthread_mutex_lock(&f->lock);
    for (;;) {
        if (fetch_one(f)) continue;
        if (f->ending) break;
        line_wait(&f->fetchers, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void worker_end(worker *w)
{
    brv_scratch_free(w->scratch);
    if (w->message) give_message(w->front, w->message);
    if (w->reply) munmap(w->reply, REQUEST);
    *w = (worker){0};
}

static bool worker_begin(brv_front *f, worker *w, void *run(void *))
{
    w->front = f;
    w->scratch = brv_scratch_new();
    w->message = take_message(f);
    w->reply = mmap(NULL, REQUEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->reply == MAP_FAILED) w->reply = NULL;
    if (w->scratch && w->message && w->reply && !pthread_create(&w->thread, NULL, run, w)) return true;
    worker_end(w);
    return false;
}

static bool threads_begin(brv_front *f, unsigned threads)
{
    for (; f->n < threads + 1; f->n++)
        if (!worker_begin(f, &f->workers[f->n], f->n ? work : receive_all)) return false;
    for (; f->n_suppliers < 1 + FETCHERS; f->n_suppliers++)
        if (pthread_create(&f->suppliers[f->n_suppliers], NULL, f->n_suppliers ? fetch_all : see_to_memory, f)) return false;
    return true;
}

/* ---- the event loop ------------------------------------------------------------------------ */

int front_attach(brv_front *f, void *session, int device, int (*receive)(void *, struct fuse_buf *), size_t known)
{
    pthread_mutex_lock(&f->lock);
    f->device = device;
    f->receive = receive;
    f->known = known;
    f->loop = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event from_device = {.events = EPOLLIN, .data.fd = device};
    struct epoll_event from_threads = {.events = EPOLLIN, .data.fd = f->passing};
    /* A request can be gone again by the time that it is to be received. */
    const int flags = fcntl(device, F_GETFL);
    if (f->loop >= 0 && !epoll_ctl(f->loop, EPOLL_CTL_ADD, device, &from_device) &&
        !epoll_ctl(f->loop, EPOLL_CTL_ADD, f->passing, &from_threads) && flags >= 0 &&
        !fcntl(device, F_SETFL, flags | O_NONBLOCK)) {
        f->looping = true;
        f->session = session;
    }
    pthread_mutex_unlock(&f->lock);
    return f->session ? f->loop : -1;
}

/* What a thread has handed over; false if there is nothing. The caller has the lock. */
static bool receive_passed(brv_front *f, struct fuse_buf *buf, int *result)
{
    message *m = take_first(&f->passed, &f->last_passed);
    if (!m) return false;
    uint64_t one;
    if (read(f->passing, &one, sizeof one) < 0) *result = -errno;
    else *result = m->result;
    swap(f, buf, &m->buf);
    give_message(f, m);
    return true;
}

/* Gives a read to the thread that receives, as it does from now on; false if it is none. The caller has the lock. */
static bool give_to_thread(brv_front *f, struct fuse_buf *buf, int result)
{
    message *m = f->ending || !file_read_by(f, buf, result) ? NULL : take_message(f);
    if (!m) return false;
    swap(f, buf, &m->buf);
    m->result = result;
    f->given = m;
    receive_on_thread(f);
    return true;
}

int front_receive(brv_front *f, struct fuse_buf *buf)
{
    int result = 0;
    pthread_mutex_lock(&f->lock);
    const bool passed = receive_passed(f, buf, &result), looping = f->looping;
    pthread_mutex_unlock(&f->lock);
    if (passed) return result;
    if (!looping) return -EINTR;
    result = receive(f, buf);
    if (result == -EAGAIN || is_interrupt(buf, result)) return -EINTR;
    pthread_mutex_lock(&f->lock);
    const bool vain = is_vain(f, buf, result);
    if (vain) count_vain(f);
    else f->vain = 0;
    const bool taken = !vain && give_to_thread(f, buf, result);
    pthread_mutex_unlock(&f->lock);
    if (vain) reply_none(f, buf);
    return vain || taken ? -EINTR : result;
}

/* ---- for Python ---------------------------------------------------------------------------- */

brv_front *brv_front_new(unsigned threads, size_t limit, const char *cpu)
{
    brv_front *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->cpu = brv_cpu(cpu);
    pthread_mutex_init(&f->lock, NULL);
    f->last_read = &f->reads;
    f->last_passed = &f->passed;
    f->loop = -1;
    f->passing = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    f->waking = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->workers = calloc(threads + 1, sizeof *f->workers);
    sigset_t all, before; /* signals are for the other threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool good = extents_begin(f, limit) && f->passing >= 0 && f->waking >= 0 && f->workers && threads_begin(f, threads);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (good) return f;
    brv_front_free(f);
    return NULL;
}

static void close_descriptor(int *descriptor)
{
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}

void brv_front_end(brv_front *f)
{
    pthread_mutex_lock(&f->lock);
    f->ending = true;
    notify(f->waking);
    line_wake_all(&f->idle);
    line_wake_all(&f->turn);
    line_wake_all(&f->filler);
    line_wake_all(&f->fetchers);
    pthread_mutex_unlock(&f->lock);
    for (; f->n; f->n--) {
        worker *w = &f->workers[f->n - 1];
        pthread_join(w->thread, NULL);
        worker_end(w);
    }
    for (; f->n_suppliers; f->n_suppliers--) pthread_join(f->suppliers[f->n_suppliers - 1], NULL);
    pthread_mutex_lock(&f->lock);
    for (message *m; (m = take_first(&f->reads, &f->last_read)); give_message(f, m)) file_end(m->file);
    if (f->given) give_message(f, f->given);
    f->given = NULL;
    pthread_mutex_unlock(&f->lock);
    close_descriptor(&f->loop);
    close_descriptor(&f->passing);
    close_descriptor(&f->waking);
}

static void free_messages(message *m)
{
    while (m) {
        message *next = m->next;
        free(m->buf.mem);
        free(m);
        m = next;
    }
}

void brv_front_free(brv_front *f)
{
    if (!f) return;
    brv_front_end(f);
    free_messages(f->passed);
    free_messages(f->unused_messages);
    for (size_t i = 0; i < HANDLE_BUCKETS; i++)
        while (f->handles[i]) {
            struct handle *h = f->handles[i];
            f->handles[i] = h->next;
            free(h);
        }
    extents_end(f);
    readings_free(f);
    pthread_mutex_destroy(&f->lock);
    free(f->workers);
    free(f);
}

void brv_front_limit(brv_front *f, size_t limit)
{
    pthread_mutex_lock(&f->lock);
    f->limit = limit;
    programs_shrink(f);
    extents_shrink(f);
    pthread_mutex_unlock(&f->lock);
}

void brv_front_count(brv_front *f, brv_counters *counters)
{
    pthread_mutex_lock(&f->lock);
    *counters = f->counters;
    counters->cached_bytes = f->held;
    counters->program_bytes = f->programs;
    pthread_mutex_unlock(&f->lock);
}

void brv_front_bare(brv_front *f, const uint64_t *inodes, size_t n, uint64_t ns)
{
    const uint64_t until = now() + ns;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < n; i++) f->bare[inodes[i] % BARE] = (bare){inodes[i], until};
    pthread_mutex_unlock(&f->lock);
}

int brv_front_is_bare(brv_front *f, uint64_t inode)
{
    pthread_mutex_lock(&f->lock);
    const bool known = is_bare(f, inode);
    pthread_mutex_unlock(&f->lock);
    return known;
}

int brv_front_handle(brv_front *f, uint64_t number, brv_file *file)
{
    pthread_mutex_lock(&f->lock);
    struct handle **at = &f->handles[number % HANDLE_BUCKETS];
    while (*at && (*at)->number != number) at = &(*at)->next;
    struct handle *h = *at;
    if (!h && file) {
        h = *at = calloc(1, sizeof *h);
        if (h) h->number = number;
    }
    if (h && file) h->file = file;
    else if (h) {
        *at = h->next;
        free(h);
    }
    pthread_mutex_unlock(&f->lock);
    return h || !file ? 0 : BRV_NO_MEMORY;
}
