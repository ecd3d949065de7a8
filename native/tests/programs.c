/* Checks that programs, and what is fetched, come and go: an archive of many sections, some damaged, some of which refer to
 * others, is read by threads that open, close and forget it under several identities, while the limit of memory changes
 * and the kernel forgets what it has of it. What is damaged, and nothing else, cannot be read. `programs ROUNDS`: openings
 * by each thread. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "../front.h"
#include "support.h"

enum { READERS = 4, FILES = 3, SECTIONS = 300, LARGEST = 150000, LONGEST = 1 << 20, STRAIGHT = 8, SMALLEST_BLOCK = 64, DAMAGED = 8 };

typedef struct {
    uint64_t begin, end;
} range;

/* As the mount's own: opened by the first user, closed after the last, kept or freed then. */
typedef struct {
    pthread_mutex_t lock;
    brv_file *file;
    unsigned users;
} shared;

typedef struct {
    brv_index index;
    brv_entry *sections;
    uint64_t *blocks;
    uint8_t *flat;
    range lost[DAMAGED * SECTIONS];
    size_t n_lost;
    int fd;
    brv_front *front;
    shared files[FILES];
    unsigned rounds;
    int running; /* readers */
    uint64_t fetched;
} setting;

typedef struct {
    setting *of;
    unsigned number;
} part_of;

/* ---- the archive --------------------------------------------------------------------------- */

static void put(int fd, const void *what, size_t n, uint64_t at)
{
    CHECK(pwrite(fd, what, n, (off_t)at) == (ssize_t)n, "no room for a file");
}

/* Of section e, which is what it stores or, referring, what another is; its length. */
static size_t put_prologue(int fd, const brv_entry *e)
{
    static const uint8_t raw[] = {OP_LIT, 1, ENC_RAW}, zero[] = {OP_CONST, 1, 0};
    const uint64_t numbers[] = {e->count, e->block / 64, 3, 0, e->target};
    uint8_t data[64] = {'B', 'S', (uint8_t)(e->ref << 4), 0, 8};
    size_t head = 5;
    for (unsigned i = 0; i < (e->ref ? 5 : 4); i++) head += put_varint(data + head, numbers[i]);
    memcpy(data + head + 8, e->ref ? zero : raw, 3);
    const uint64_t check = checksum_of_two(data, head, data + head + 8, 3);
    memcpy(data + head, &check, 8);
    put(fd, data, head + 11, e->record);
    return head + 11;
}

/* Its blocks at `at`; returns where the next section's record begins. */
static uint64_t put_blocks(setting *s, const brv_entry *e, uint64_t at)
{
    uint64_t *entry = s->blocks + 2 * e->first_block;
    for (uint64_t done = 0; done < e->count; done += e->block, entry += 2) {
        const size_t n = e->count - done < e->block ? (size_t)(e->count - done) : e->block;
        const uint8_t *bytes = s->flat + e->offset + done;
        at += 4;
        if (!e->ref) {
            put(s->fd, bytes, n, at);
            at += n;
        }
        entry[0] = at;
        entry[1] = brv_checksum(bytes, n);
    }
    return at;
}

/* A section after the one before, of `most` bytes at most. */
static void draw_section(setting *s, uint64_t *rng, size_t number, uint64_t most)
{
    brv_entry *e = &s->sections[number];
    *e = (brv_entry){.bits = 8, .block = SMALLEST_BLOCK << below(rng, 11), .count = 1 + below(rng, most)};
    if (number) {
        const brv_entry *before = e - 1;
        e->offset = before->offset + before->count;
        e->first_block = before->first_block + (before->count - 1) / before->block + 1;
    }
    const size_t target = number ? (size_t)below(rng, number) : 0;
    const brv_entry *other = &s->sections[target];
    if (!number || below(rng, 4) || other->ref) {
        for (uint64_t i = 0; i < e->count; i++) s->flat[e->offset + i] = (uint8_t)next_random(rng);
        return;
    }
    e->ref = BRV_XOR;
    e->target = (uint32_t)target;
    e->count = other->count;
    e->block = other->block;
    memcpy(s->flat + e->offset, s->flat + other->offset, e->count);
}

static void make_archive(setting *s, uint64_t *rng)
{
    s->flat = malloc((size_t)SECTIONS * LARGEST);
    s->sections = calloc(SECTIONS, sizeof *s->sections);
    s->blocks = calloc((size_t)SECTIONS * (LARGEST / SMALLEST_BLOCK + 1), 2 * sizeof *s->blocks);
    FILE *file = tmpfile();
    CHECK(s->flat && s->sections && s->blocks && file, "out of memory, or no room for a file");
    s->fd = dup(fileno(file));
    fclose(file);
    uint64_t at = 48;
    for (size_t i = 0; i < SECTIONS; i++) {
        brv_entry *e = &s->sections[i];
        draw_section(s, rng, i, below(rng, 3) ? 3000 : LARGEST);
        e->record = at;
        e->prologue = (uint32_t)put_prologue(s->fd, e);
        at = put_blocks(s, e, at + e->prologue);
    }
    const brv_entry *last = &s->sections[SECTIONS - 1];
    s->index = (brv_index){s->sections, s->blocks, SECTIONS, at, last->offset + last->count};
    CHECK(!ftruncate(s->fd, (off_t)at), "no room for a file");
}

static void lose(setting *s, uint64_t begin, uint64_t end) { s->lost[s->n_lost++] = (range){begin, end}; }

/* Section e in its prologue, its part of the index, or the checksum of a block. */
static void damage(setting *s, uint64_t *rng, const brv_entry *e)
{
    const uint64_t block = below(rng, (e->count - 1) / e->block + 1);
    uint64_t *entry = s->blocks + 2 * (e->first_block + block), lo = 0, hi = e->count;
    switch (below(rng, 3)) {
    case 0: put(s->fd, (const uint8_t[11]){0}, 11, e->record + e->prologue - 11); break;
    case 1: entry[0] ^= UINT64_C(1) << (40 + below(rng, 20)); break;
    default:
        entry[1] ^= 1;
        lo = block * e->block;
        if (hi - lo > e->block) hi = lo + e->block;
    }
    for (size_t i = 0; i < SECTIONS; i++) {
        const brv_entry *other = &s->sections[i];
        if (other == e || (other->ref && &s->sections[other->target] == e))
            lose(s, other->offset + lo, other->offset + hi);
    }
}

/* ---- all that happens at a time ------------------------------------------------------------ */

static brv_file *take(setting *s, unsigned number)
{
    shared *of = &s->files[number];
    pthread_mutex_lock(&of->lock);
    if (!of->file) of->file = brv_file_new(s->front, (const uint64_t[5]){1, number, 2, 3, 4}, &s->index);
    CHECK(of->file, "out of memory");
    if (!of->users++) brv_file_open(of->file, s->fd);
    pthread_mutex_unlock(&of->lock);
    return of->file;
}

static void give(shared *of, bool forget)
{
    pthread_mutex_lock(&of->lock);
    if (!--of->users) {
        if (!brv_file_close(of->file, false)) CHECK(brv_file_close(of->file, true), "not closed");
        if (forget) brv_file_free(of->file);
        if (forget) of->file = NULL;
    }
    pthread_mutex_unlock(&of->lock);
}

static bool is_lost(const setting *s, uint64_t begin, uint64_t end)
{
    for (size_t i = 0; i < s->n_lost; i++)
        if (s->lost[i].begin < end && begin < s->lost[i].end) return true;
    return false;
}

static void read_one(const setting *s, brv_file *file, uint64_t at, size_t n, uint8_t *out, brv_scratch *scratch)
{
    const bool lost = is_lost(s, at, at + n);
    /* What ends as another closes the file is read again, by the mount too. */
    int rc = brv_file_read(file, at, n, out, scratch);
    for (unsigned again = 0; rc && !lost && again < 2; again++) rc = brv_file_read(file, at, n, out, scratch);
    CHECK(!rc == !lost, "code %d, %zu bytes from %zu on", rc, n, (size_t)at);
    CHECK(rc || !memcmp(out, s->flat + at, n), "%zu bytes from %zu on", n, (size_t)at);
}

static void *reader(void *of)
{
    const part_of *me = of;
    setting *s = me->of;
    uint64_t rng = 77 + me->number;
    brv_scratch *scratch = brv_scratch_new();
    uint8_t *out = malloc(LONGEST);
    CHECK(scratch && out, "out of memory");
    for (unsigned round = 0; round < s->rounds; round++) {
        const unsigned number = (unsigned)below(&rng, FILES);
        brv_file *file = take(s, number);
        uint64_t at = below(&rng, s->index.size);
        /* In a row, so that it is read ahead for, or not. */
        const bool straight = below(&rng, 2);
        for (uint64_t reads = 1 + below(&rng, straight ? 2 * STRAIGHT : STRAIGHT); reads; reads--) {
            const uint64_t rest = s->index.size - at, n = 1 + below(&rng, straight ? LONGEST : 5000);
            read_one(s, file, at, (size_t)(n < rest ? n : rest), out, scratch);
            at = straight && n < rest ? at + n : below(&rng, s->index.size);
        }
        give(&s->files[number], below(&rng, 2));
    }
    brv_scratch_free(scratch);
    free(out);
    __atomic_sub_fetch(&s->running, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void change(setting *s)
{
    static const size_t limits[] = {0, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 64 << 20};
    uint64_t rng = 5;
    CHECK(!fsync(s->fd), "not written");
    while (__atomic_load_n(&s->running, __ATOMIC_SEQ_CST)) {
        if (!below(&rng, 8)) brv_front_limit(s->front, limits[below(&rng, sizeof limits / sizeof *limits)]);
        if (!below(&rng, 4)) posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
        usleep(200);
    }
}

static void run(setting *s)
{
    pthread_t threads[READERS];
    part_of numbers[READERS];
    s->running = READERS;
    for (unsigned i = 0; i < FILES; i++) pthread_mutex_init(&s->files[i].lock, NULL);
    for (unsigned i = 0; i < READERS; i++) {
        numbers[i] = (part_of){s, i};
        CHECK(!pthread_create(&threads[i], NULL, reader, &numbers[i]), "no thread");
    }
    change(s);
    for (unsigned i = 0; i < READERS; i++) pthread_join(threads[i], NULL);
}

/* No program is left without its file, no file without extents. */
static void end(setting *s)
{
    brv_counters counters;
    for (unsigned i = 0; i < FILES; i++) {
        if (s->files[i].file) brv_file_free(s->files[i].file);
        s->files[i].file = NULL;
    }
    brv_front_count(s->front, &counters);
    s->fetched += counters.fetched_bytes;
    CHECK(!counters.program_bytes && !s->front->oldest_program && !s->front->newest_program, "programs are left");
    for (unsigned i = 0; i < FILE_BUCKETS; i++)
        for (const brv_file *file = s->front->files[i]; file; file = file->next)
            CHECK(file->extents && !file->readings, "a file is left");
    brv_front_free(s->front);
}

int main(int argc, char **argv)
{
    uint64_t rng = 0x9e3779b97f4a7c15u;
    setting *s = calloc(1, sizeof *s);
    CHECK(s, "out of memory");
    s->rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 100;
    make_archive(s, &rng);
    for (unsigned damaged = 0; damaged < 2; damaged++) {
        s->front = brv_front_new(3, 16 << 20, NULL);
        CHECK(s->front, "out of memory");
        if (damaged)
            for (unsigned i = 0; i < DAMAGED; i++)
                damage(s, &rng, &s->sections[SECTIONS / DAMAGED * i + below(&rng, SECTIONS / DAMAGED)]);
        run(s);
        end(s);
    }
    printf("programs: %zu bytes were fetched\n", (size_t)s->fetched);
    close(s->fd);
    free(s->sections);
    free(s->blocks);
    free(s->flat);
    free(s);
    puts("programs: all bytes as they were, but for what was damaged");
    return 0;
}
