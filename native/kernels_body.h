/* The kernels of one instruction set: included by kernels_scalar.c and kernels_avx2.c, which differ
 * in what the compiler may use, and define KERNELS_NAME and KERNELS_FUNCTION. */

#define XXH_INLINE_ALL
#include <xxhash.h>

#define GLUE_(a, b) a##_##b
#define GLUE(a, b) GLUE_(a, b)
#define CAT(name) GLUE(name, W)

#define W w8
#include "kernels_tmpl.h"
#undef W
#define W w16
#include "kernels_tmpl.h"
#undef W
#define W w32
#include "kernels_tmpl.h"
#undef W
#define W w64
#include "kernels_tmpl.h"
#undef W

/* Call fn_<type> for a container; `a` is the array argument cast to that type. */
#define FOR_CONTAINER(c, CALL) \
    switch (c) {               \
    case 1: CALL(w8); break;   \
    case 2: CALL(w16); break;  \
    case 4: CALL(w32); break;  \
    default: CALL(w64); break; \
    }

static void k_unpack(const uint8_t *in, size_t m, unsigned w, unsigned c, void *out)
{
#define CALL(T) unpack_##T(in, m, w, (T *)out)
    FOR_CONTAINER(c, CALL)
#undef CALL
}

static void k_pack(const void *a, size_t m, unsigned w, unsigned c, uint8_t *out)
{
#define CALL(T) pack_##T((const T *)a, m, w, out)
    FOR_CONTAINER(c, CALL)
#undef CALL
}

static void k_map(void *a, unsigned c, unsigned bits, unsigned fn, uint64_t v, bool inverse, size_t m)
{
#define CALL(T) map_##T((T *)a, bits, fn, v, inverse, m)
    FOR_CONTAINER(c, CALL)
#undef CALL
}

static void k_fill(void *a, unsigned c, uint64_t v, size_t m)
{
#define CALL(T) fill_##T((T *)a, v, m)
    FOR_CONTAINER(c, CALL)
#undef CALL
}

static void k_scan(void *a, unsigned c, unsigned bits, unsigned kind, size_t m)
{
    if (m == 0) return;
#define CALL(T) scan_##T((T *)a, bits, kind, m)
    FOR_CONTAINER(c, CALL)
#undef CALL
}

static size_t k_find_other(const void *a, unsigned c, uint64_t v, size_t m)
{
#define CALL(T) return find_other_##T((const T *)a, v, m)
    FOR_CONTAINER(c, CALL)
#undef CALL
}

#define MERGE_PAIR(D, S)                                                                                \
    static void merge_##D##_##S(D *restrict d, const S *restrict s, unsigned sh, size_t m, bool first)  \
    {                                                                                                   \
        if (first) for (size_t i = 0; i < m; i++) d[i] = (D)((D)s[i] << sh);                            \
        else for (size_t i = 0; i < m; i++) d[i] |= (D)((D)s[i] << sh);                                 \
    }                                                                                                   \
    static void field_##S##_##D(S *restrict d, const D *restrict s, unsigned sh, uint64_t msk, size_t m) \
    {                                                                                                   \
        const D k = (D)msk;                                                                             \
        for (size_t i = 0; i < m; i++) d[i] = (S)((D)(s[i] >> sh) & k);                                 \
    }
MERGE_PAIR(w8, w8)
MERGE_PAIR(w16, w8)
MERGE_PAIR(w16, w16)
MERGE_PAIR(w32, w8)
MERGE_PAIR(w32, w16)
MERGE_PAIR(w32, w32)
MERGE_PAIR(w64, w8)
MERGE_PAIR(w64, w16)
MERGE_PAIR(w64, w32)
MERGE_PAIR(w64, w64)

static void k_merge(void *d, unsigned dc, const void *s, unsigned sc, unsigned sh, size_t m, bool first)
{
#define ON(D, S) \
    if (dc == sizeof(D) && sc == sizeof(S)) { merge_##D##_##S((D *)d, (const S *)s, sh, m, first); return; }
    ON(w8, w8) ON(w16, w8) ON(w16, w16) ON(w32, w8) ON(w32, w16) ON(w32, w32)
    ON(w64, w8) ON(w64, w16) ON(w64, w32) ON(w64, w64)
#undef ON
}

static void k_field(void *d, unsigned dc, const void *s, unsigned sc, unsigned sh, uint64_t msk, size_t m)
{
#define ON(D, S) \
    if (sc == sizeof(D) && dc == sizeof(S)) { field_##S##_##D((S *)d, (const D *)s, sh, msk, m); return; }
    ON(w8, w8) ON(w16, w8) ON(w16, w16) ON(w32, w8) ON(w32, w16) ON(w32, w32)
    ON(w64, w8) ON(w64, w16) ON(w64, w32) ON(w64, w64)
#undef ON
}

static void k_merge_8_8(w16 *restrict d, const uint8_t *restrict hi, const uint8_t *restrict lo, unsigned r, size_t m)
{
    if (r == 1) {
        for (size_t i = 0; i < m; i++) {
            uint16_t x = (uint16_t)(hi[i] << 8 | lo[i]);
            d[i] = (uint16_t)(x >> 1 | x << 15);
        }
    } else {
        for (size_t i = 0; i < m; i++) {
            uint16_t x = (uint16_t)(hi[i] << 8 | lo[i]);
            d[i] = (uint16_t)(x >> r | x << ((16 - r) & 15));
        }
    }
}

/* ---- Huffman, symbols of at most 8 bits ------------------------------------------------------
 * A stream is read from its end. The window holds the next bits at the top; a 1 bit below them marks
 * how far it has been shifted, so that one count of trailing zeros gives the bits taken. */
typedef struct {
    const uint8_t *ip;   /* lowest byte of the 8 in the window */
    uint64_t window;
    uint8_t *op, *oend;
    const uint8_t *start;
} huff_state;

/* One symbol at a time with every check; window bits below the stream's start read as 0. */
static int huff8_tail(const huff_table *t, const huff_stream *s, size_t bit, uint8_t *op, uint8_t *oend)
{
    /* bit: bits of the stream not yet taken */
    const unsigned tb = t->bits;
    while (op < oend) {
        size_t lowbit = bit > tb ? bit - tb : 0;
        size_t byte = lowbit >> 3, have = (size_t)(s->end - s->start);
        uint64_t v = 0;
        if (byte + 8 <= have) v = load64(s->start + byte);
        else memcpy(&v, s->start + byte, have - byte);
        v >>= lowbit & 7;
        unsigned take = (unsigned)(bit - lowbit); /* < tb only at the very end */
        unsigned idx = (unsigned)(v & mask_of(take)) << (tb - take);
        uint64_t e = t->multi[idx];
        unsigned sym = (unsigned)(e >> 16) & 0xff, n = t->len[sym];
        if (n > bit) return BRV_PAYLOAD;
        *op++ = (uint8_t)sym;
        bit -= n;
    }
    return bit == 0 ? 0 : BRV_PAYLOAD;
}

static inline int huff8_open(const huff_stream *s, size_t *bits)
{
    size_t n = (size_t)(s->end - s->start);
    if (n == 0 || s->end[-1] == 0) return BRV_PAYLOAD;
    *bits = n * 8 - 1 - (size_t)(__builtin_clz(s->end[-1]) - 24);
    return 0;
}

#define HUFF_STEP(S)                             \
    {                                            \
        uint64_t e = tab[S.window >> sh];        \
        uint64_t v = e >> 16;                    \
        memcpy(S.op, &v, 8);                     \
        S.op += (uint8_t)(e >> 8);               \
        S.window <<= e & 63;                     \
    }
#define HUFF_REFILL(S)                                    \
    {                                                     \
        unsigned used = (unsigned)__builtin_ctzll(S.window); \
        S.ip -= used >> 3;                                \
        S.window = (load64(S.ip) | 1) << (used & 7);      \
    }

/* Fast rounds of N streams until one of them comes near an end of its input or output. */
#define HUFF_ROUNDS(N)                                                                                    \
    static void huff8_rounds_##N(const huff_table *t, huff_state *st, const uint8_t *floor)               \
    {                                                                                                     \
        const uint64_t *tab = t->multi;                                                                   \
        const unsigned sh = 64 - t->bits, per = 55 / t->bits < 5 ? 55 / t->bits : 5;                      \
        huff_state s[N];                                                                                  \
        memcpy(s, st, sizeof s);                                                                          \
        for (;;) {                                                                                        \
            size_t rounds = SIZE_MAX;                                                                     \
            for (unsigned j = 0; j < N; j++) {                                                            \
                /* a round gives at most 6 * per words, stores 8 bytes past them, and takes 7 bytes */    \
                size_t o = (size_t)(s[j].oend - s[j].op), in = (size_t)(s[j].ip - floor);                 \
                size_t ro = o < 40 ? 0 : (o - 8) / (6 * per), ri = in / 7;                                \
                if (ro < rounds) rounds = ro;                                                             \
                if (ri < rounds) rounds = ri;                                                             \
            }                                                                                             \
            if (rounds == 0) break;                                                                       \
            if (per == 5)                                                                                 \
                while (rounds--) {                                                                        \
                    for (unsigned i = 0; i < 5; i++)                                                      \
                        for (unsigned j = 0; j < N; j++) HUFF_STEP(s[j])                                  \
                    for (unsigned j = 0; j < N; j++) HUFF_REFILL(s[j])                                    \
                }                                                                                         \
            else                                                                                          \
                while (rounds--) {                                                                        \
                    for (unsigned i = 0; i < per; i++)                                                    \
                        for (unsigned j = 0; j < N; j++) HUFF_STEP(s[j])                                  \
                    for (unsigned j = 0; j < N; j++) HUFF_REFILL(s[j])                                    \
                }                                                                                         \
        }                                                                                                 \
        memcpy(st, s, sizeof s);                                                                          \
    }
HUFF_ROUNDS(1)
HUFF_ROUNDS(4)
HUFF_ROUNDS(5)

static int k_huff8(const huff_table *t, const huff_stream *streams, unsigned n, const uint8_t *floor, uint8_t *out)
{
    huff_state st[MAX_STREAMS];
    size_t bits[MAX_STREAMS];
    uint8_t *op = out;
    for (unsigned j = 0; j < n; j++) {
        const huff_stream *s = &streams[j];
        st[j] = (huff_state){.op = op, .oend = op + s->words, .start = s->start};
        op += s->words;
        bits[j] = 0;
        if (s->words && huff8_open(s, &bits[j])) return BRV_PAYLOAD;
        if (!s->words && s->start != s->end) return BRV_PAYLOAD;
    }
    /* A stream starts in the fast loop if a whole window lies above floor, the first byte of the buffer. */
    bool fast = true;
    for (unsigned j = 0; j < n; j++) {
        const huff_stream *s = &streams[j];
        if (!s->words || s->end - floor < 8) { fast = false; continue; }
        st[j].ip = s->end - 8;
        unsigned skip = (unsigned)__builtin_clz(s->end[-1]) - 24 + 1;
        st[j].window = (load64(st[j].ip) | 1) << skip;
    }
    if (fast && n == 5) huff8_rounds_5(t, st, floor);
    else if (fast && n == 4) huff8_rounds_4(t, st, floor);
    else
        for (unsigned j = 0; j < n; j++)
            if (st[j].ip) huff8_rounds_1(t, &st[j], floor);
    for (unsigned j = 0; j < n; j++) {
        const huff_stream *s = &streams[j];
        if (!s->words) continue;
        if (st[j].ip) {
            /* bits above the window's base that are taken, counted from the stream's start */
            ptrdiff_t at = (st[j].ip - s->start) * 8 + 64 - (ptrdiff_t)__builtin_ctzll(st[j].window);
            if (at < 0) return BRV_PAYLOAD;
            bits[j] = (size_t)at;
        }
        int rc = huff8_tail(t, s, bits[j], st[j].op, st[j].oend);
        if (rc) return rc;
    }
    return 0;
}

static uint64_t k_hash(const void *p, size_t n) { return XXH3_64bits(p, n); }

const brv_kernels *KERNELS_FUNCTION(void)
{
    static const brv_kernels k = {
        .name = KERNELS_NAME,
        .unpack = k_unpack,
        .pack = k_pack,
        .merge = k_merge,
        .field = k_field,
        .merge_8_8 = k_merge_8_8,
        .map = k_map,
        .fill = k_fill,
        .scan = k_scan,
        .find_other = k_find_other,
        .huff8 = k_huff8,
        .hash = k_hash,
    };
    return &k;
}
