/* Decoded extents: found by file and offset, least recently used, within a limit of bytes.
 *
 * Memory is used again before more is taken, and cut from huge pages, because fresh small pages cost as much as decoding
 * into them. Fresh huge ones cost as much where the host of a virtual machine has to find them first: so a thread has
 * some in reserve. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "front.h"

/* Bytes that extents of one class are cut from. */
enum { SLAB = 4 << 20 };

/* Extents of this class and larger ones begin in a page of memory where they do in a page of their file: so the kernel
 * copies a page of them from one page, not from two. */
enum { ALIGNED = 4, PAGE = 4096 };

/* Reads after which what was decoded ahead and not asked for makes room for others. */
enum { STALE = 128 };

typedef struct slab {
    struct slab *next;
    uint8_t *base;
    extent extents[];
} slab;

/* Memory of a slab that is touched and not used yet; it lies in its own first bytes. */
typedef struct unused {
    struct unused *next;
} unused;

bool extents_begin(brv_front *f, size_t limit)
{
    size_t buckets = 1024;
    while (buckets < limit >> 16) buckets *= 2;
    f->buckets = calloc(buckets, sizeof *f->buckets);
    f->mask = buckets - 1;
    f->limit = limit;
    return f->buckets;
}

static uint8_t *take_from_reserve(brv_front *f)
{
    unused *first = f->reserve;
    if (!first) return NULL;
    f->reserve = first->next;
    f->reserved -= SLAB;
    return (uint8_t *)first;
}

void extents_end(brv_front *f)
{
    for (uint8_t *base; (base = take_from_reserve(f));) munmap(base, SLAB);
    while (f->slabs) {
        slab *s = f->slabs;
        f->slabs = s->next;
        munmap(s->base, SLAB);
        free(s);
    }
    free(f->buckets);
}

static extent **bucket(const brv_front *f, const brv_file *file, uint64_t begin)
{
    return &f->buckets[(((uintptr_t)file >> 6 ^ begin >> 12) * 0x9e3779b97f4a7c15u) >> 32 & f->mask];
}

extent *extent_find(const brv_front *f, const brv_file *file, uint64_t begin)
{
    extent *x = *bucket(f, file, begin);
    while (x && (x->file != file || x->begin != begin)) x = x->next;
    return x;
}

/* Bytes that extents may have. */
static size_t most(const brv_front *f)
{
    const size_t programs = f->programs < programs_most(f) ? f->programs : programs_most(f);
    return f->limit - programs;
}

static size_t most_in(unsigned class) { return (size_t)SMALLEST_EXTENT << class; }

static size_t memory_of(unsigned class) { return most_in(class) + (class >= ALIGNED ? PAGE : 0); }

static bool is_stored(const extent *x) { return x->begin & STORED; }

static void make_newest(brv_front *f, extent *x, bool ahead)
{
    aged *list = ahead ? &f->ahead : &f->used;
    x->ahead = ahead;
    x->newer = NULL;
    x->older = list->newest;
    if (list->newest) list->newest->newer = x;
    else list->oldest = x;
    list->newest = x;
    if (ahead) f->held_ahead[is_stored(x)] += memory_of(x->class);
}

static void leave_list(brv_front *f, extent *x)
{
    aged *list = x->ahead ? &f->ahead : &f->used;
    if (x->newer) x->newer->older = x->older;
    else list->newest = x->older;
    if (x->older) x->older->newer = x->newer;
    else list->oldest = x->newer;
    if (x->ahead) f->held_ahead[is_stored(x)] -= memory_of(x->class);
}

/* Nobody finds it any more. */
static void forget(brv_front *f, extent *x)
{
    extent **at = bucket(f, x->file, x->begin);
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    leave_list(f, x);
}

static void make_spare(brv_front *f, extent *x)
{
    x->next = f->spare[x->class];
    f->spare[x->class] = x;
}

/* Its memory is for another. It has been forgotten. */
static void release(brv_front *f, extent *x)
{
    brv_file *file = x->file;
    make_spare(f, x);
    file->extents--;
    file_free_if_unused(file);
}

/* Gives memory that is spare to the system; false if there is none. */
static bool cool(brv_front *f)
{
    uint8_t *base = take_from_reserve(f);
    if (base) {
        munmap(base, SLAB);
        f->held -= SLAB;
        return true;
    }
    for (unsigned c = 0; c < EXTENT_CLASSES; c++) {
        extent *x = f->spare[c];
        if (!x) continue;
        /* Else the kernel would sooner or later make huge pages of what is left of one. */
        madvise((void *)((uintptr_t)x->base & -(uintptr_t)SLAB), SLAB, MADV_NOHUGEPAGE);
        madvise(x->base, memory_of(c), MADV_DONTNEED);
        f->spare[c] = x->next;
        x->next = f->cold[c];
        f->cold[c] = x;
        f->held -= memory_of(c);
        return true;
    }
    return false;
}

/* Lets go of the oldest that is not in use; what was decoded ahead goes last. False if there is none. */
static bool evict(brv_front *f)
{
    extent *x = f->used.oldest;
    while (x && x->pins) x = x->newer;
    if (!x) x = f->ahead.oldest;
    while (x && x->pins) x = x->newer;
    if (!x) return false;
    forget(f, x);
    release(f, x);
    return true;
}

void extents_shrink(brv_front *f)
{
    while (f->held > most(f) && (cool(f) || evict(f))) continue;
}

/* A huge page, which must have a place of its own; NULL if there is no memory. */
static uint8_t *huge_page(void)
{
    uint8_t *base = mmap(NULL, 2 * SLAB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    const size_t before = -(uintptr_t)base & (SLAB - 1);
    if (before) munmap(base, before);
    munmap(base + before + SLAB, SLAB - before);
    madvise(base + before, SLAB, MADV_HUGEPAGE);
    return base + before;
}

/* Whether there is as much in reserve as is in use, or an eighth of the limit, or no room for more. */
static bool reserve_is_full(const brv_front *f)
{
    const size_t used = f->held - f->reserved, eighth = f->limit / 8;
    return f->reserved + SLAB > (used < eighth ? used : eighth) || f->held + SLAB > most(f);
}

void extents_fill_reserve(brv_front *f)
{
    while (!f->ending && !reserve_is_full(f)) {
        f->held += SLAB;
        f->reserved += SLAB;
        pthread_mutex_unlock(&f->lock);
        uint8_t *base = huge_page();
        for (size_t i = 0; base && i < SLAB; i += PAGE) base[i] = 0;
        pthread_mutex_lock(&f->lock);
        if (!base) {
            f->held -= SLAB;
            f->reserved -= SLAB;
            return;
        }
        unused *last = (unused *)base;
        last->next = f->reserve;
        f->reserve = last;
        extents_shrink(f); /* the limit can have changed */
    }
}

/* More memory for a class; all of it is spare. */
static bool grow(brv_front *f, unsigned class)
{
    const size_t n = SLAB / memory_of(class);
    slab *s = calloc(1, sizeof *s + n * sizeof *s->extents);
    if (s && !(s->base = take_from_reserve(f)) && (s->base = huge_page())) f->held += SLAB;
    if (!s || !s->base) {
        free(s);
        return false;
    }
    s->next = f->slabs;
    f->slabs = s;
    for (size_t i = n; i-- > 0;) {
        s->extents[i].class = (uint8_t)class;
        s->extents[i].base = s->base + i * memory_of(class);
        make_spare(f, &s->extents[i]);
    }
    return true;
}

/* One with memory for `size` bytes, NULL if there is none. */
static extent *take(brv_front *f, uint32_t size)
{
    unsigned class = 0;
    while (most_in(class) < size) class++;
    while (!f->spare[class]) {
        extent *x = f->cold[class];
        const size_t more = x ? memory_of(class) : f->reserve ? 0 : SLAB;
        if (f->held + more > most(f)) {
            if (!cool(f) && !evict(f)) return NULL;
        } else if (x) {
            f->cold[class] = x->next;
            f->held += more;
            make_spare(f, x);
        } else if (!grow(f, class)) return NULL;
    }
    extent *x = f->spare[class];
    f->spare[class] = x->next;
    return x;
}

extent *extent_add(brv_file *file, uint64_t begin, uint32_t size, bool ahead)
{
    brv_front *f = file->front;
    /* So that letting go of its last extent does not free it. */
    file->extents++;
    extent *x = take(f, size);
    if (!x) {
        file->extents--;
        return NULL;
    }
    /* What is decoded ahead soon uses its own memory again. */
    if (!ahead && !reserve_is_full(f)) line_wake(&f->filler);
    *x = (extent){.file = file, .begin = begin, .born = f->now, .size = size, .state = DECODING, .class = x->class,
                  .base = x->base, .bytes = x->base + (x->class >= ALIGNED ? begin % PAGE : 0)};
    extent **at = bucket(f, file, begin);
    x->next = *at;
    *at = x;
    make_newest(f, x, ahead);
    return x;
}

/* Bits of the bytes before `stop` that stand for all: 64, evenly spread from the first to the last. */
static uint64_t bits_before(const extent *x, uint32_t stop)
{
    const uint64_t n = (63 * (uint64_t)stop + x->size - 2) / (x->size - 1);
    return n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX;
}

void extent_ask(brv_front *f, extent *x, uint32_t skip, uint32_t bytes)
{
    x->asked |= bits_before(x, skip + bytes) & ~bits_before(x, skip);
    leave_list(f, x);
    make_newest(f, x, false);
}

void extent_decoded(brv_front *f, extent *x, enum extent_state state)
{
    x->state = (uint8_t)state;
    if (state == FAILED) forget(f, x);
}

void extent_unpin(brv_front *f, extent *x)
{
    if (--x->pins) return;
    if (x->state == READY && x->asked != UINT64_MAX) return;
    if (x->state == READY) forget(f, x);
    release(f, x);
}

bool extents_room_ahead(brv_front *f, size_t bytes, size_t decoded)
{
    while (f->held_ahead[true] + (f->held_ahead[false] > decoded ? f->held_ahead[false] : decoded) + bytes > most(f) / 4) {
        extent *x = f->ahead.oldest;
        if (!x || x->pins || f->now - x->born < STALE) return false;
        forget(f, x);
        release(f, x);
    }
    return true;
}
