/* Checks the front with threads that read, and one that changes all that can be changed meanwhile: once through Python's
 * way in, and once as a mount's kernel, with a socket for its device. `front ROUNDS`: reads a thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "../front.h"
#include "archive.h"

enum { CLIENTS = 4, LARGEST = 150000, HANDLES = 3, LEAST = 4 << 20, WHOLE = 2 * SIZE };
/* Of a plain file; and one more than the front knows is read by. */
enum { PLAIN = HANDLES - 1 };
/* Inodes that are bare always, now and then, and never. */
enum { ALWAYS = 1, SOMETIMES, NEVER, INODES };

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    bool waiting;
    size_t n;
    int error;
    uint8_t bytes[LARGEST];
} client;

typedef struct {
    brv_front *front;
    brv_file *file, *plain;
    int fd, kernel;
    unsigned rounds;
    int running; /* clients */
    client clients[CLIENTS];
} setting;

typedef struct {
    setting *of;
    unsigned number;
} part_of;

static uint8_t byte_at(uint64_t at) { return flat[at < SIZE ? at : at - SIZE]; }

static void compare(const uint8_t *got, uint64_t at, size_t n)
{
    for (size_t i = 0; i < n; i++) CHECK(got[i] == byte_at(at + i), "byte %zu of %zu from %zu on", i, n, (size_t)at);
}

static brv_file *opened(brv_front *f, int fd, uint64_t number)
{
    brv_file *file = brv_file_new(f, (const uint64_t[5]){1, number, 2, 3, 4}, &whole);
    CHECK(file, "out of memory");
    brv_file_open(file, fd);
    return file;
}

static void close_and_free(brv_file *file)
{
    CHECK(brv_file_close(file, true), "not closed");
    brv_file_free(file);
}

/* Places that readers in order and others come to. */
static void draw(uint64_t *rng, unsigned round, uint64_t *at, size_t *n)
{
    *n = 1 + (size_t)below(rng, below(rng, 2) ? 5000 : LARGEST);
    *at = below(rng, 3) ? round * 65536ull % WHOLE : below(rng, WHOLE);
    if (*n > WHOLE - *at) *n = (size_t)(WHOLE - *at);
}

/* ---- as Python reads ----------------------------------------------------------------------- */

static void *reader(void *of)
{
    const part_of *me = of;
    setting *s = me->of;
    uint64_t rng = 77 + me->number;
    brv_scratch *scratch = brv_scratch_new();
    uint8_t *out = malloc(LARGEST);
    CHECK(scratch && out, "out of memory");
    for (unsigned round = 0; round < s->rounds; round++) {
        brv_file *file = me->number ? s->file : opened(s->front, s->fd, 99 + below(&rng, 2));
        uint64_t at;
        size_t n;
        draw(&rng, round, &at, &n);
        const int rc = brv_file_read(file, at, n, out, scratch);
        CHECK(!rc, "code %d", rc);
        compare(out, at, n);
        if (!me->number) close_and_free(file);
    }
    brv_scratch_free(scratch);
    free(out);
    __atomic_sub_fetch(&s->running, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* ---- as the kernel ------------------------------------------------------------------------- */

typedef struct {
    struct fuse_in_header in;
    union {
        struct fuse_read_in read;
        struct {
            struct fuse_getxattr_in xattr;
            char name[32];
        };
    };
} request;

/* What the event loop answers to all questions for attributes: no answer of the front's is so long. */
enum { FROM_LOOP = 11 };

static void ask(setting *s, unsigned number, const request *what)
{
    client *c = &s->clients[number];
    pthread_mutex_lock(&c->lock);
    c->waiting = true;
    CHECK(send(s->kernel, what, what->in.len, 0) == (ssize_t)what->in.len, "a request cannot be sent");
    while (c->waiting) pthread_cond_wait(&c->answered, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

static void *process(void *of)
{
    const part_of *me = of;
    setting *s = me->of;
    const client *c = &s->clients[me->number];
    uint64_t rng = 99 + me->number;
    for (unsigned round = 0; round < s->rounds; round++) {
        request what = {.in = {.opcode = FUSE_READ, .unique = me->number + 1}};
        what.in.len = sizeof what.in + sizeof what.read;
        size_t n;
        draw(&rng, round, &what.read.offset, &n);
        what.read.size = (uint32_t)n;
        what.read.fh = below(&rng, HANDLES + 1);
        if (!below(&rng, 4)) what.in = (struct fuse_in_header){.len = sizeof what.in, .opcode = FUSE_STATFS, .unique = me->number + 1};
        ask(s, me->number, &what);
        CHECK(!c->error, "an error: %d", c->error);
        if (what.in.opcode == FUSE_STATFS) CHECK(!c->n, "%zu bytes", c->n);
        else if (what.read.fh == PLAIN) {
            static _Thread_local uint8_t plain[LARGEST];
            const ssize_t there = pread(s->fd, plain, n, (off_t)what.read.offset);
            CHECK((ssize_t)c->n == there && !memcmp(c->bytes, plain, c->n), "%zu bytes, not %zd", c->n, there);
        } else {
            CHECK(c->n == n, "%zu bytes of %zu", c->n, n);
            compare(c->bytes, what.read.offset, n);
        }
    }
    __atomic_sub_fetch(&s->running, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Asks for extended attributes, often many times in a row. */
static void *asker(void *of)
{
    static const char *const names[] = {"user.a", "user.brevisfs.", "user.brevisfs.state", "security.capability"};
    const part_of *me = of;
    setting *s = me->of;
    const client *c = &s->clients[me->number];
    uint64_t rng = 55 + me->number;
    for (unsigned round = 0; round < s->rounds; round++) {
        request what = {.in = {.unique = me->number + 1, .nodeid = ALWAYS + below(&rng, INODES - ALWAYS)}};
        const unsigned name = (unsigned)below(&rng, 4);
        const bool list = !below(&rng, 3), ours = !list && (name == 1 || name == 2);
        what.in.opcode = below(&rng, 60) ? list ? FUSE_LISTXATTR : FUSE_GETXATTR : FUSE_STATFS;
        what.xattr.size = below(&rng, 2) ? 100 : 0;
        what.in.len = sizeof what.in + (what.in.opcode == FUSE_STATFS ? 0 : sizeof what.xattr);
        if (what.in.opcode == FUSE_GETXATTR) what.in.len += (uint32_t)strlen(strcpy(what.name, names[name])) + 1;
        ask(s, me->number, &what);
        const bool from_loop = !c->error && c->n == FROM_LOOP;
        if (what.in.opcode == FUSE_STATFS) CHECK(!c->error && !c->n, "%zu bytes", c->n);
        else if (what.in.nodeid == NEVER || ours) CHECK(from_loop, "not from the loop: %d, %zu bytes", c->error, c->n);
        else if (what.in.nodeid == ALWAYS) CHECK(!from_loop, "from the loop");
        if (what.in.opcode == FUSE_STATFS || from_loop) continue;
        const size_t n = list && !what.xattr.size ? sizeof(struct fuse_getxattr_out) : 0;
        CHECK(c->error == (list ? 0 : ENODATA) && c->n == n, "%zu bytes, %d", c->n, c->error);
        if (n) CHECK(!((const struct fuse_getxattr_out *)c->bytes)->size, "a length");
    }
    __atomic_sub_fetch(&s->running, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Takes answers off the device, until it is closed. */
static void *answers(void *of)
{
    setting *s = of;
    for (;;) {
        static uint8_t message[LARGEST + sizeof(struct fuse_out_header)];
        const ssize_t n = recv(s->kernel, message, sizeof message, 0);
        if (n <= 0) return NULL;
        struct fuse_out_header out;
        memcpy(&out, message, sizeof out);
        CHECK(out.len == (size_t)n && out.unique >= 1 && out.unique <= CLIENTS, "an answer that is none");
        client *c = &s->clients[out.unique - 1];
        pthread_mutex_lock(&c->lock);
        CHECK(c->waiting, "answered twice");
        c->error = -out.error;
        c->n = (size_t)n - sizeof out;
        memcpy(c->bytes, message + sizeof out, c->n);
        c->waiting = false;
        pthread_cond_signal(&c->answered);
        pthread_mutex_unlock(&c->lock);
    }
}

static int receive(void *session, struct fuse_buf *buf)
{
    const int device = *(const int *)session;
    if (!buf->mem && !(buf->mem = malloc(sizeof(request)))) return -ENOMEM;
    const ssize_t n = recv(device, buf->mem, sizeof(request), 0);
    return n < 0 ? -errno : (int)n;
}

static void answer_on_loop(setting *s, int device, const request *what)
{
    static uint8_t bytes[LARGEST];
    struct fuse_out_header out = {.len = sizeof out, .unique = what->in.unique};
    if (what->in.opcode == FUSE_READ) {
        size_t n = what->read.size;
        if (what->read.fh == PLAIN) n = (size_t)pread(s->fd, bytes, n, (off_t)what->read.offset);
        else
            for (size_t i = 0; i < n; i++) bytes[i] = byte_at(what->read.offset + i);
        out.len += (uint32_t)n;
    } else if (what->in.opcode != FUSE_STATFS) out.len += FROM_LOOP;
    struct iovec all[] = {{&out, sizeof out}, {bytes, out.len - sizeof out}};
    CHECK(writev(device, all, 2) == (ssize_t)out.len, "an answer cannot be sent");
}

/* What pyfuse3 does, until the device is closed. */
static void event_loop(setting *s, int device, int loop)
{
    struct fuse_buf buf = {0};
    for (;;) {
        struct pollfd ready = {.fd = loop, .events = POLLIN};
        CHECK(poll(&ready, 1, -1) == 1, "no poll");
        const int n = front_receive(s->front, &buf);
        if (n == -EINTR || n == -EAGAIN) continue;
        if (n <= 0) break;
        answer_on_loop(s, device, buf.mem);
    }
    free(buf.mem);
}

/* ---- all threads at work ------------------------------------------------------------------- */

static void await(setting *s, const uint64_t *counter, uint64_t value)
{
    for (bool there = false; !there; usleep(100)) {
        pthread_mutex_lock(&s->front->lock);
        there = *counter == value;
        pthread_mutex_unlock(&s->front->lock);
    }
}

/* Asks for what needs no thread: something else than a read, what has been decoded, and what a plain file has. */
static void ask_for_what_is_there(setting *s, unsigned number)
{
    request what = {.in = {.len = sizeof what.in, .opcode = FUSE_STATFS, .unique = number + 1}};
    ask(s, number, &what);
    what.in.opcode = FUSE_READ;
    what.in.len = sizeof what.in + sizeof what.read;
    what.read = (struct fuse_read_in){.fh = PLAIN, .size = 100};
    if (preadv2(s->fd, &(struct iovec){(uint8_t[1]){0}, 1}, 1, 0, RWF_NOWAIT) == 1) ask(s, number, &what);
    what.read = (struct fuse_read_in){.fh = 0, .size = 100, .offset = SIZE + 50};
    ask(s, number, &what);
    compare(s->clients[number].bytes, what.read.offset, 100);
}

/* Each but the last reads what another decodes, so that a thread waits. */
static void *waiting(void *of)
{
    const part_of *me = of;
    setting *s = me->of;
    request what = {.in = {.opcode = FUSE_READ, .unique = me->number + 1}, .read.size = 10};
    what.in.len = sizeof what.in + sizeof what.read;
    await(s, &s->front->counters.decoded, 2);
    if (me->number < CLIENTS - 1) ask(s, me->number, &what);
    else {
        await(s, &s->front->counters.joined, CLIENTS - 1);
        ask_for_what_is_there(s, me->number);
    }
    __atomic_sub_fetch(&s->running, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* That other, which is done when the last has its answer. */
static void *decoding(void *of)
{
    setting *s = of;
    reading *r = calloc(1, sizeof *r);
    brv_scratch *scratch = brv_scratch_new();
    CHECK(r && scratch, "out of memory");
    uint64_t at = 0;
    CHECK(!brv_file_read(s->file, SIZE, 10, (uint8_t[10]){0}, scratch), "not read");
    pthread_mutex_lock(&s->front->lock);
    CHECK(!reading_plan(r, s->file, &at, 10, NULL), "not planned");
    pthread_mutex_unlock(&s->front->lock);
    while (__atomic_load_n(&s->running, __ATOMIC_SEQ_CST) == CLIENTS) usleep(100);
    reading_carry_out(r, scratch);
    pthread_mutex_lock(&s->front->lock);
    reading_end(r);
    pthread_mutex_unlock(&s->front->lock);
    brv_scratch_free(scratch);
    free(r);
    return NULL;
}

/* ---- what happens meanwhile ---------------------------------------------------------------- */

static void *change(void *of)
{
    setting *s = of;
    uint64_t rng = 5;
    while (__atomic_load_n(&s->running, __ATOMIC_SEQ_CST)) {
        const uint64_t handle = below(&rng, HANDLES);
        switch (below(&rng, 8)) {
        case 6: brv_front_bare(s->front, &(uint64_t){SOMETIMES}, 1, below(&rng, 2) ? 1000000 : 0); break;
        case 7: brv_front_bare(s->front, &(uint64_t){SOMETIMES + BARE}, 1, 1000000); break;
        case 1: brv_front_handle(s->front, handle, NULL); break;
        case 2:
        case 3: brv_front_limit(s->front, LEAST << below(&rng, 4)); break;
        case 0: brv_front_limit(s->front, 0); break;
        default:
            brv_front_handle(s->front, handle, handle == PLAIN ? s->plain : s->file);
        }
        usleep(100);
    }
    return NULL;
}

static setting *begin(int fd, unsigned rounds)
{
    setting *s = calloc(1, sizeof *s);
    CHECK(s && (s->front = brv_front_new(3, LEAST * 2, NULL)), "out of memory");
    s->fd = fd;
    s->rounds = rounds;
    s->running = CLIENTS;
    s->file = opened(s->front, fd, 7);
    s->plain = brv_file_new(s->front, (const uint64_t[5]){0}, NULL);
    CHECK(s->plain, "out of memory");
    brv_file_open(s->plain, fd);
    brv_front_bare(s->front, &(uint64_t){ALWAYS}, 1, UINT64_MAX / 2);
    for (unsigned i = 0; i < CLIENTS; i++) {
        pthread_mutex_init(&s->clients[i].lock, NULL);
        pthread_cond_init(&s->clients[i].answered, NULL);
    }
    return s;
}

static void end(setting *s)
{
    brv_counters counters;
    brv_front_count(s->front, &counters);
    CHECK(!counters.failed, "%zu steps failed", (size_t)counters.failed);
    CHECK(counters.cached_bytes <= LEAST * 8, "%zu bytes", (size_t)counters.cached_bytes);
    brv_front_end(s->front);
    close_and_free(s->file);
    close_and_free(s->plain);
    brv_front_free(s->front);
    free(s);
}

static void run(setting *s, void *(*what)(void *), void *(*meanwhile)(void *), int device, int loop)
{
    pthread_t threads[CLIENTS], other;
    part_of numbers[CLIENTS];
    for (unsigned i = 0; i < CLIENTS; i++) {
        numbers[i] = (part_of){s, i};
        CHECK(!pthread_create(&threads[i], NULL, what, &numbers[i]), "no thread");
    }
    CHECK(!pthread_create(&other, NULL, meanwhile, s), "no thread");
    if (loop >= 0) event_loop(s, device, loop);
    for (unsigned i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    pthread_join(other, NULL);
}

/* Closes the device when all clients have ended. */
static void *hang_up(void *of)
{
    setting *s = of;
    while (__atomic_load_n(&s->running, __ATOMIC_SEQ_CST)) usleep(1000);
    shutdown(s->kernel, SHUT_RDWR);
    return NULL;
}

static void check_mount(int fd, unsigned rounds, void *(*what)(void *), void *(*meanwhile)(void *))
{
    setting *s = begin(fd, rounds);
    int ends[2], room = 4 * LARGEST;
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), "no sockets");
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    s->kernel = ends[0];
    const int loop = front_attach(s->front, &ends[1], ends[1], receive, offsetof(struct fuse_buf, mem_size));
    CHECK(loop >= 0, "not attached");
    struct fuse_buf nothing = {0};
    CHECK(front_receive(s->front, &nothing) == -EINTR, "something was received");
    free(nothing.mem);
    for (uint64_t handle = 0; handle < HANDLES; handle++)
        CHECK(!brv_front_handle(s->front, handle, handle == PLAIN ? s->plain : s->file), "out of memory");
    pthread_t taking, closing;
    CHECK(!pthread_create(&taking, NULL, answers, s) && !pthread_create(&closing, NULL, hang_up, s), "no thread");
    run(s, what, meanwhile, ends[1], loop);
    pthread_join(taking, NULL);
    pthread_join(closing, NULL);
    end(s);
    close(ends[0]);
    close(ends[1]);
}

/* Nothing of the neighbours goes, and some of what may. */
static void check_forgetting(void)
{
    enum { ALL = 1 << 18, FROM = 100, STOP = ALL - 77 };
    uint8_t *bytes = malloc(ALL);
    CHECK(bytes, "out of memory");
    memset(bytes, 1, ALL);
    forget_pages(bytes + FROM, STOP - FROM);
    size_t gone = 0;
    for (size_t i = 0; i < ALL; i++) {
        CHECK(bytes[i] || (i >= FROM && i < STOP), "byte %zu", i);
        gone += !bytes[i];
    }
    CHECK(gone, "nothing went");
    free(bytes);
}

int main(int argc, char **argv)
{
    const unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
    uint64_t rng = 0x9e3779b97f4a7c15u;
    const int fd = make_archive(&rng);
    check_forgetting();
    setting *s = begin(fd, rounds);
    run(s, reader, change, -1, -1);
    end(s);
    check_mount(fd, rounds, process, change);
    check_mount(fd, rounds, asker, change);
    check_mount(fd, 1, waiting, decoding);
    free_archive(fd);
    printf("front: %u reads by each of %d threads as they were, twice\n", rounds, CLIENTS);
    return 0;
}
