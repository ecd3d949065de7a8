/* What the C checks share: failure, random numbers, buffers that notice a byte read or written past their ends. */
#ifndef BREVIS_SUPPORT_H
#define BREVIS_SUPPORT_H

#include <stdio.h>

#include "../internal.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

/* abort() makes a core, a sanitizer's trace and a fuzzer's finding alike. */
#define CHECK(that, ...)                                              \
    do {                                                              \
        if (!(that)) {                                                \
            fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #that); \
            fprintf(stderr, __VA_ARGS__);                             \
            fputc('\n', stderr);                                      \
            abort();                                                  \
        }                                                             \
    } while (0)

/* xorshift64*, Vigna 2014 */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1du;
}

static inline uint64_t below(uint64_t *state, uint64_t n) { return (next_random(state) >> 11) % n; }

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

/* n bytes between guards; `odd` moves them off their alignment. The sanitizer also sees reads of the guards. */
typedef struct {
    uint8_t *base, *data;
    size_t n;
} guarded;

static inline guarded guarded_new(size_t n, unsigned odd)
{
    guarded g = {.base = malloc(n + 2 * GUARD), .n = n};
    CHECK(g.base, "out of memory");
    memset(g.base, GUARD_BYTE, n + 2 * GUARD);
    g.data = g.base + GUARD - 16 + (odd & 15);
    ASAN_POISON_MEMORY_REGION(g.base, (size_t)(g.data - g.base));
    ASAN_POISON_MEMORY_REGION(g.data + n, (size_t)(g.base + n + 2 * GUARD - g.data - n));
    return g;
}

static inline void guarded_free(guarded *g)
{
    const size_t before = (size_t)(g->data - g->base);
    ASAN_UNPOISON_MEMORY_REGION(g->base, g->n + 2 * GUARD);
    for (size_t i = 0; i < g->n + 2 * GUARD; i++)
        if (i < before || i >= before + g->n)
            CHECK(g->base[i] == GUARD_BYTE, "a byte %td past a buffer of %zu was written", (ptrdiff_t)(i - before), g->n);
    free(g->base);
    *g = (guarded){0};
}

/* A copy of input that ends where it ends, so that the sanitizer sees a read past it. */
static inline uint8_t *exact_copy(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    CHECK(copy, "out of memory");
    if (n) memcpy(copy, data, n);
    return copy;
}

static inline uint64_t blocks_of(const brv_program *p) { return (p->count + p->block - 1) / p->block; }

/* Flat bytes of words lo..hi, lo a multiple of 8 or the range the whole stream. */
static inline uint64_t flat_bytes(const brv_program *p, uint64_t words)
{
    return words / 8 * p->bits + words % 8 * p->bits / 8;
}

static inline uint64_t block_begin(const brv_program *p, uint64_t index) { return flat_bytes(p, index * p->block); }
static inline uint64_t block_end(const brv_program *p, uint64_t index)
{
    return flat_bytes(p, p->count - index * p->block < p->block ? p->count : (index + 1) * p->block);
}

/* Gives every segment of every coded literal the class (its number mod tables), as the random programs are made.
 * False if there are too many segments to do so. */
static inline bool set_classes(brv_program *p)
{
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const node *nd = &p->nodes[i];
        if (nd->tables < 2) continue;
        const uint64_t n = (nd->count + nd->segment - 1) / nd->segment;
        if (n > 1 << 16) return false;
        uint8_t *classes = malloc((size_t)n);
        CHECK(classes, "out of memory");
        for (uint64_t j = 0; j < n; j++) classes[j] = (uint8_t)(j % nd->rows);
        brv_status st;
        CHECK(brv_set_classes(p, i, classes, (size_t)n, &st) == 0, "%s", st.what);
        free(classes);
    }
    return true;
}

#endif
