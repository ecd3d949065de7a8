/* The kernels of one instruction set: included by kernels_scalar.c and kernels_avx2.c, which differ
 * in what the compiler may use, and define KERNELS_NAME and KERNELS_FUNCTION. */

#define XXH_INLINE_ALL
#include <xxhash.h>

#define GLUE_(a, b) a##_##b
#define GLUE(a, b) GLUE_(a, b)
#define CAT(name) GLUE(name, W)

/* Shifts by a variable count are written on 64-bit lanes for bytes (with masks for what crosses from byte to
 * byte) and as vectors of 16 lanes for wider words: C's promotion to int would make the compiler use lanes four
 * times as wide. */

/* One group of 256 words of a part of 1, 2 or 4 bits, a byte a word on the open side. */
#define GROUP(PART)                                                                                       \
    static inline void pack_group_##PART(const uint8_t *restrict group, uint8_t *restrict out)            \
    {                                                                                                     \
        const w64 *x = (const w64 *)group;                                                                \
        w64 *y = (w64 *)out;                                                                              \
        for (unsigned r = 0; r < 4 * PART; r++) {                                                         \
            uint64_t v = 0;                                                                               \
            for (unsigned t = 0; t < 8 / PART; t++) v |= x[t * 4 * PART + r] << (t * PART);               \
            y[r] = v;                                                                                     \
        }                                                                                                 \
    }
GROUP(1)
GROUP(2)
GROUP(4)

/* The sub-byte parts of m words of w bits: where each part's array begins. */
typedef struct {
    const uint8_t *part[3]; /* of 4, 2, 1 bits; NULL if w has no such part */
} low_parts;

static inline low_parts low_parts_of(const uint8_t *in, size_t m, unsigned w)
{
    low_parts l = {{NULL, NULL, NULL}};
    for (unsigned j = 0, part = 4; part; j++, part >>= 1)
        if (w & part) {
            l.part[j] = in;
            in += m / 256 * 32 * part + (m % 256 * part + 7) / 8;
        }
    return l;
}

typedef uint64_t bytes32 __attribute__((vector_size(32), aligned(1), may_alias));

/* 32 words of a group, a byte each: part c of 8 */
static inline void low_bytes(const uint8_t *four, const uint8_t *two, const uint8_t *one, unsigned c, uint8_t *restrict low)
{
    bytes32 x = {0};
    if (four) x = *(const bytes32 *)(four + (c & 3) * 32) >> (c >> 2) * 4 & EVERY_BYTE(15);
    if (two) x = x << 2 | (*(const bytes32 *)(two + (c & 1) * 32) >> (c >> 1) * 2 & EVERY_BYTE(3));
    if (one) x = x << 1 | (*(const bytes32 *)one >> c & EVERY_BYTE(1));
    *(bytes32 *)(low + 32 * c) = x;
}

#define LOW_BYTES(FOUR, TWO, ONE) \
    _Pragma("GCC unroll 8") for (unsigned c = 0; c < 8; c++) low_bytes(FOUR, TWO, ONE, c, low);

/* The low w mod 8 bits of group g, one byte a word. */
static inline void unpack_low(const low_parts *l, size_t g, uint8_t *restrict low)
{
    const uint8_t *four = l->part[0] ? l->part[0] + g * 128 : NULL, *two = l->part[1] ? l->part[1] + g * 64 : NULL,
                  *one = l->part[2] ? l->part[2] + g * 32 : NULL;
    switch ((four ? 4 : 0) | (two ? 2 : 0) | (one ? 1 : 0)) {
    case 7: LOW_BYTES(four, two, one) break;
    case 6: LOW_BYTES(four, two, NULL) break;
    case 5: LOW_BYTES(four, NULL, one) break;
    case 4: LOW_BYTES(four, NULL, NULL) break;
    case 3: LOW_BYTES(NULL, two, one) break;
    case 2: LOW_BYTES(NULL, two, NULL) break;
    default: LOW_BYTES(NULL, NULL, one) break;
    }
}

/* The same for the last, ragged group of n words. */
static inline void unpack_low_ragged(const low_parts *l, size_t g, size_t n, uint8_t *low)
{
    memset(low, 0, n);
    for (unsigned j = 0, part = 4; part; j++, part >>= 1) {
        if (!l->part[j]) continue;
        const uint8_t *p = l->part[j] + g * 32 * part;
        const size_t rows = (n * part + 7) / 8;
        for (size_t i = 0; i < n; i++)
            low[i] = (uint8_t)(low[i] << part) | ((p[i % rows] >> (part * (i / rows))) & ((1u << part) - 1));
    }
}

static inline void pack_group(const uint8_t *group, unsigned part, uint8_t *out)
{
    if (part == 1) pack_group_1(group, out);
    else if (part == 2) pack_group_2(group, out);
    else pack_group_4(group, out);
}

/* Where each part's array begins in the sliced form of m words of `width` bits, 1 to 64. */
typedef struct {
    unsigned width;
    const uint8_t *wide[4]; /* of 8, 16, 32, 64 bits; NULL if the width has no such part */
    low_parts low;
} sliced_parts;

static inline sliced_parts sliced_parts_of(const uint8_t *in, size_t m, unsigned w)
{
    sliced_parts s = {.width = w};
    for (unsigned k = 4; k-- > 0;)
        if (w & 8u << k) {
            s.wide[k] = in;
            in += m << k;
        }
    s.low = low_parts_of(in, m, w & 7);
    return s;
}

typedef uint8_t lanes_w8 __attribute__((vector_size(16)));
typedef uint16_t lanes_w16 __attribute__((vector_size(32)));
typedef uint32_t lanes_w32 __attribute__((vector_size(64)));
typedef uint64_t lanes_w64 __attribute__((vector_size(128)));

/* column[c][r] = row[r][at + c] for 16 rows and columns */
#define PLAIN_TILE(W)                                                                                       \
    static inline void transpose_tile_##W(const W *const row[16], size_t at, W *const column[16])           \
    {                                                                                                       \
        for (size_t c = 0; c < 16; c++)                                                                     \
            for (size_t r = 0; r < 16; r++) column[c][r] = row[r][at + c];                                  \
    }
#ifndef HAVE_TILES
PLAIN_TILE(w8)
PLAIN_TILE(w16)
PLAIN_TILE(w32)
#endif
PLAIN_TILE(w64)

/* byte lanes by way of 64-bit ones; what crosses is masked by the caller */
typedef uint64_t pair_w64 __attribute__((vector_size(16)));
#define SHIFT_RIGHT_w8(x, n) ((lanes_w8)((pair_w64)(x) >> (n)))
#define SHIFT_RIGHT_w16(x, n) ((x) >> (n))
#define SHIFT_RIGHT_w32(x, n) ((x) >> (n))
#define SHIFT_RIGHT_w64(x, n) ((x) >> (n))
#define SHIFT_RIGHT(x, n) GLUE(SHIFT_RIGHT, W)(x, n)

/* Groups of 8 words that can be spread with vectors, up to the end; returns the words done. */
#define PLAIN_SPREAD(W)                                                                                              \
    static inline size_t spread_eights_##W(W *out, const uint8_t *mask, const W **next, W c, size_t m)               \
    {                                                                                                                \
        (void)out, (void)mask, (void)next, (void)c, (void)m;                                                         \
        return 0;                                                                                                    \
    }
#ifndef HAVE_SPREAD
PLAIN_SPREAD(w8)
PLAIN_SPREAD(w16)
PLAIN_SPREAD(w32)
#endif
PLAIN_SPREAD(w64)

enum { NO_PLACE = 0xffff };
typedef struct {
    uint16_t slot[2 * MAX_PALETTE]; /* at least half of them free, so that searches end */
    size_t mask;
    unsigned shift;
} places_hash;

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

static void k_transpose(const void *in, const size_t *from, void *out, const size_t *to, unsigned c, size_t rows,
                        size_t columns)
{
#ifdef HAVE_TALL_TILES
    if (c == 1 && rows >= 64 && columns >= 16) {
        transpose_tall(in, from, out, to, rows, columns);
        return;
    }
#endif
#define CALL(T) transpose_##T((const T *)in, from, (T *)out, to, rows, columns)
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

static void k_spread(void *dst, unsigned c, const uint8_t *mask, const void *next, uint64_t v, size_t m)
{
#define CALL(T) spread_##T((T *)dst, mask, (const T *)next, v, m)
    FOR_CONTAINER(c, CALL)
#undef CALL
}

static size_t k_gather(const void *a, unsigned c, uint64_t v, uint8_t *mask, void *next, size_t m)
{
#define CALL(T) return gather_##T((const T *)a, v, mask, (T *)next, m)
    FOR_CONTAINER(c, CALL)
#undef CALL
}

#ifndef HAVE_LOOK_UP
/* Whole groups of words from tables of 16 that can be looked up with vectors; returns the words done. */
static size_t look_up_16(void *out, unsigned c, const uint8_t *places, const void *table, size_t m)
{
    (void)out, (void)c, (void)places, (void)table, (void)m;
    return 0;
}
#endif

#define PLACES(W, P)                                                                                          \
    static bool look_up_##W##_##P(W *restrict out, const P *restrict places, const W *restrict table,         \
                                  size_t size, size_t from, size_t m)                                         \
    {                                                                                                         \
        P most = 0;                                                                                           \
        for (size_t i = 0; i < m; i++) most = places[i] > most ? places[i] : most;                            \
        for (size_t i = from; i < m; i++) out[i] = table[places[i]];                                          \
        return most < size;                                                                                   \
    }                                                                                                         \
    static bool find_places_##W##_##P(P *restrict places, const W *restrict a, const W *restrict table,       \
                                      size_t size, size_t m)                                                  \
    {                                                                                                         \
        places_hash hash;                                                                                     \
        if (size > 16) hash_places_##W(&hash, table, size);                                                   \
        for (size_t i = 0; size > 16 && i < m; i++) {                                                         \
            const uint16_t place = *slot_of_##W(&hash, a[i], table);                                          \
            if (place == NO_PLACE) return false;                                                              \
            places[i] = (P)place;                                                                             \
        }                                                                                                     \
        for (size_t i = 0; size <= 16 && i < m; i += 64) {                                                    \
            const size_t n = m - i < 64 ? m - i : 64;                                                         \
            uint16_t found[64];                                                                               \
            W last[64];                                                                                       \
            for (size_t j = n; j < 64; j++) last[j] = table[0];                                               \
            if (n < 64) memcpy(last, a + i, n * sizeof(W));                                                   \
            if (!find_64_##W(n < 64 ? last : a + i, table, size, found)) return false;                        \
            for (size_t j = 0; j < n; j++) places[i + j] = (P)found[j];                                       \
        }                                                                                                     \
        return true;                                                                                          \
    }
PLACES(w8, w8)
PLACES(w16, w8)
PLACES(w16, w16)
PLACES(w32, w8)
PLACES(w32, w16)
PLACES(w64, w8)
PLACES(w64, w16)

#define FOR_PLACES(c, pc, CALL)                 \
    if (pc == 2) {                              \
        switch (c) {                            \
        case 2: return CALL(w16, w16);          \
        case 4: return CALL(w32, w16);          \
        default: return CALL(w64, w16);         \
        }                                       \
    }                                           \
    switch (c) {                                \
    case 1: return CALL(w8, w8);                \
    case 2: return CALL(w16, w8);               \
    case 4: return CALL(w32, w8);               \
    default: return CALL(w64, w8);              \
    }

static bool k_look_up(void *dst, unsigned c, const void *places, unsigned pc, const void *table, size_t size, size_t m)
{
    const size_t done = size <= 16 ? look_up_16(dst, c, places, table, m) : 0;
#define CALL(W, P) look_up_##W##_##P((W *)dst, (const P *)places, (const W *)table, size, done, m)
    FOR_PLACES(c, pc, CALL)
#undef CALL
}

static bool k_find_places(void *places, unsigned pc, const void *a, unsigned c, const void *table, size_t size, size_t m)
{
#define CALL(W, P) find_places_##W##_##P((P *)places, (const W *)a, (const W *)table, size, m)
    FOR_PLACES(c, pc, CALL)
#undef CALL
}

/* Conversions a step at a time: the compiler takes lanes apart where they become four times as wide or as narrow. */
#define CONVERT(T, x) __builtin_convertvector(x, lanes_##T)
#define WIDEN_w8_w16(x) CONVERT(w16, x)
#define WIDEN_w8_w32(x) CONVERT(w32, WIDEN_w8_w16(x))
#define WIDEN_w8_w64(x) CONVERT(w64, WIDEN_w8_w32(x))
#define WIDEN_w16_w16(x) (x)
#define WIDEN_w16_w32(x) CONVERT(w32, x)
#define WIDEN_w16_w64(x) CONVERT(w64, WIDEN_w16_w32(x))
#define WIDEN_w32_w32(x) (x)
#define WIDEN_w32_w64(x) CONVERT(w64, x)
#define WIDEN_w64_w64(x) (x)
#define NARROW_w64_w64(x) (x)
#define NARROW_w64_w32(x) CONVERT(w32, x)
#define NARROW_w64_w16(x) CONVERT(w16, NARROW_w64_w32(x))
#define NARROW_w64_w8(x) CONVERT(w8, NARROW_w64_w16(x))
#define NARROW_w32_w32(x) (x)
#define NARROW_w32_w16(x) CONVERT(w16, x)
#define NARROW_w32_w8(x) CONVERT(w8, NARROW_w32_w16(x))
#define NARROW_w16_w16(x) (x)
#define NARROW_w16_w8(x) CONVERT(w8, x)

#define MERGE_PAIR(D, S)                                                                                 \
    static void merge_##D##_##S(D *restrict d, const S *restrict s, unsigned sh, size_t m, bool first)   \
    {                                                                                                    \
        size_t i = 0;                                                                                    \
        for (; i + 16 <= m; i += 16) {                                                                   \
            lanes_##S a;                                                                                 \
            lanes_##D x, y;                                                                              \
            memcpy(&a, s + i, sizeof a);                                                                 \
            x = WIDEN_##S##_##D(a) << sh;                                                                \
            if (!first) {                                                                                \
                memcpy(&y, d + i, sizeof y);                                                             \
                x |= y;                                                                                  \
            }                                                                                            \
            memcpy(d + i, &x, sizeof x);                                                                 \
        }                                                                                                \
        for (; i < m; i++) d[i] = (D)((first ? 0 : d[i]) | (D)((D)s[i] << sh));                          \
    }                                                                                                    \
    static inline void field_##S##_##D(S *restrict d, const D *restrict s, unsigned sh, uint64_t msk, size_t m) \
    {                                                                                                    \
        const D k = (D)msk;                                                                              \
        size_t i = 0;                                                                                    \
        for (; i + 16 <= m; i += 16) {                                                                   \
            lanes_##D x;                                                                                 \
            memcpy(&x, s + i, sizeof x);                                                                 \
            x = x >> sh & k;                                                                             \
            const lanes_##S a = NARROW_##D##_##S(x);                                                     \
            memcpy(d + i, &a, sizeof a);                                                                 \
        }                                                                                                \
        for (; i < m; i++) d[i] = (S)((D)(s[i] >> sh) & k);                                              \
    }

static void merge_w8_w8(w8 *restrict d, const w8 *restrict s, unsigned sh, size_t m, bool first)
{
    size_t i = 0;
    for (; i + 8 <= m; i += 8) *(w64 *)(d + i) = (first ? 0 : *(w64 *)(d + i)) | *(const w64 *)(s + i) << sh;
    for (; i < m; i++) d[i] = (w8)((first ? 0 : d[i]) | s[i] << sh);
}

static void field_w8_w8(w8 *restrict d, const w8 *restrict s, unsigned sh, uint64_t msk, size_t m)
{
    size_t i = 0;
    for (; i + 8 <= m; i += 8) *(w64 *)(d + i) = *(const w64 *)(s + i) >> sh & EVERY_BYTE(msk);
    for (; i < m; i++) d[i] = (w8)(s[i] >> sh & msk);
}
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

static void k_merge_raw(void *d, unsigned dc, const uint8_t *in, unsigned w, unsigned sh, size_t m, bool first)
{
    const sliced_parts s = sliced_parts_of(in, m, w);
    const unsigned c = container_of(w);
    uint64_t some[256];
    for (size_t i = 0; i < m; i += 256) {
        const size_t n = m - i < 256 ? m - i : 256;
#define CALL(T) unpack_some_##T(&s, i, n, (T *)some)
        FOR_CONTAINER(c, CALL)
#undef CALL
        k_merge((uint8_t *)d + i * dc, dc, some, c, sh, n, first);
    }
}

#ifdef HAVE_FIELD_BYTES
#define field_w8_w16 field_bytes
#endif

static void k_field(void *d, unsigned dc, const void *s, unsigned sc, unsigned sh, uint64_t msk, size_t m)
{
#define ON(D, S) \
    if (sc == sizeof(D) && dc == sizeof(S)) { field_##S##_##D((S *)d, (const D *)s, sh, msk, m); return; }
    ON(w8, w8) ON(w16, w8) ON(w16, w16) ON(w32, w8) ON(w32, w16) ON(w32, w32)
    ON(w64, w8) ON(w64, w16) ON(w64, w32) ON(w64, w64)
#undef ON
}

/* Of n bytes, the `part` bits from `below` on, as the groups from the g-th on, of which only the last is ragged. */
static void pack_part(const uint8_t *bytes, size_t n, unsigned below, unsigned part, size_t g, uint8_t *out)
{
    const uint64_t msk = mask_of(part);
    uint8_t group[256];
    for (size_t i = 0; i < n; i += 256, g++) {
        const size_t some = n - i < 256 ? n - i : 256;
        field_w8_w8(group, bytes + i, below, msk, some);
        uint8_t *to = out + g * 32 * part;
        if (some == 256) {
            pack_group(group, part, to);
            continue;
        }
        const size_t rows = (some * part + 7) / 8;
        memset(to, 0, rows);
        for (size_t j = 0; j < some; j++) to[j % rows] |= (uint8_t)(group[j] << (part * (j / rows)));
    }
}

/* Words that are split at a time: they stay in L1 until all their fields are taken. */
enum { SPLIT_STEP = 1024 };

static void k_split(const void *words, unsigned c, size_t m, unsigned r, unsigned t, unsigned w, uint8_t *top,
                    uint8_t *symbols, uint8_t *rest)
{
    const unsigned bits = 8 * c;
    uint8_t *two = rest, *one = two + (w & 16 ? 2 * m : 0), *low = one + (w & 8 ? m : 0);
    uint32_t turned[SPLIT_STEP];
    uint8_t lowest[SPLIT_STEP];
    for (size_t i = 0; i < m; i += SPLIT_STEP) {
        const size_t n = m - i < SPLIT_STEP ? m - i : SPLIT_STEP;
        const void *some = (const uint8_t *)words + i * c;
        if (r) {
            memcpy(turned, some, n * c);
            k_map(turned, c, bits, FN_ROTR, r, true, n);
            some = turned;
        }
        if (t) k_field(top + i, 1, some, c, bits - t, mask_of(t), n);
        k_field(symbols + i, 1, some, c, w, mask_of(bits - t - w), n);
        if (w & 16) k_field(two + 2 * i, 2, some, c, w & 15, 0xffff, n);
        if (w & 8) k_field(one + i, 1, some, c, w & 7, 0xff, n);
        if (w & 7) k_field(lowest, 1, some, c, 0, mask_of(w & 7), n);
        uint8_t *to = low;
        for (unsigned part = 4, below = w & 7; part; part >>= 1) {
            if (!(w & part)) continue;
            below -= part;
            pack_part(lowest, n, below, part, i / 256, to);
            to += m / 256 * 32 * part + (m % 256 * part + 7) / 8;
        }
    }
}

#ifndef HAVE_JOIN
/* d[i] = top | sym[i] << (8 - t) | low[i], rotated right by r; low[i] < 2^(8 - t) */
static void join_w16(w16 *restrict d, const uint8_t *restrict sym, const uint8_t *restrict low, unsigned t, uint16_t top,
                     unsigned r, size_t n)
{
    const unsigned l = (16 - r) & 15;
    for (size_t i = 0; i < n; i++) {
        const uint16_t x = (uint16_t)(top | sym[i] << (8 - t) | low[i]);
        d[i] = (uint16_t)(x >> r | x << l);
    }
}

/* d[i] = top | sym[i] << (24 - t) | mid[i] << (8 - t) | low[i], rotated right by r */
static void join_w32(w32 *restrict d, const uint8_t *restrict sym, const w16 *restrict mid, const uint8_t *restrict low,
                     unsigned t, uint32_t top, unsigned r, size_t n)
{
    const unsigned l = (32 - r) & 31;
    for (size_t i = 0; i < n; i++) {
        const uint32_t x = top | (uint32_t)sym[i] << (24 - t) | (uint32_t)mid[i] << (8 - t) | low[i];
        d[i] = x >> r | x << l;
    }
}
#endif

#ifndef HAVE_JOIN_WIDE
/* d[i] = top | sym[i] << (8 + l) | mid[i] << l | low[i], rotated right by r; low[i] < 2^l, 0 < l < 8 */
static void join_wide(w16 *restrict d, const uint8_t *restrict sym, const uint8_t *restrict mid,
                      const uint8_t *restrict low, unsigned l, uint16_t top, unsigned r, size_t n)
{
    const unsigned left = (16 - r) & 15;
    for (size_t i = 0; i < n; i++) {
        const uint16_t x = (uint16_t)(top | sym[i] << (8 + l) | mid[i] << l | low[i]);
        d[i] = (uint16_t)(x >> r | x << left);
    }
}
#endif

#ifndef HAVE_JOIN_W8
/* d[i] = sym[i] << narrow | low[i], rotated right by r; 8 bytes at a time */
static void join_w8(uint8_t *restrict d, const uint8_t *restrict sym, const uint8_t *restrict low, unsigned narrow,
                    unsigned r, size_t n)
{
    const uint64_t down = EVERY_BYTE(0xff >> r), up = EVERY_BYTE(0xff) ^ down;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint64_t x = *(const w64 *)(sym + i) << narrow | *(const w64 *)(low + i);
        *(w64 *)(d + i) = (x >> r & down) | (x << (8 - r) & up);
    }
    for (; i < n; i++) {
        const unsigned x = (unsigned)sym[i] << narrow | low[i];
        d[i] = (uint8_t)(x >> r | x << (8 - r));
    }
}
#endif

/* Words whose low bits are unpacked at a time, in groups of 256. */
enum { JOIN_STEP = 1024 };

#ifndef HAVE_INTERLEAVE
static void k_interleave(uint8_t *words, const column_classes *c, const uint8_t *ordered, const size_t *run)
{
    const uint16_t *to = c->order;
    for (unsigned j = 0; j < c->classes; j++) {
        const uint8_t *from = ordered + run[j];
        for (const uint16_t *end = to + c->width[j]; to < end; to++) words[*to] = *from++;
    }
}
#endif

static void k_join(void *dst, unsigned container, const uint8_t *symbols, const class_map *map, const uint8_t *rest,
                   unsigned w, uint64_t top, unsigned r)
{
    const size_t m = map->words;
    const uint8_t *whole = rest; /* the leading 16 or 8 bits of the rest, where it has that many and more */
    const bool wide = container == 2 && w > 8;
    if (container == 4) rest += 2 * m;
    if (wide) rest += m;
    const unsigned narrow = container == 4 ? w - 16 : wide ? w - 8 : w; /* bits below */
    const low_parts parts = low_parts_of(rest, m, narrow & 7);
    const uint8_t *next[MAX_TABLES], *sym = symbols; /* of each class; of this segment */
    for (size_t c = 0, sum = 0; map->classes && c < MAX_TABLES; sum += map->count[c++]) next[c] = symbols + sum;
    size_t segment = 0, in_segment = map->first; /* left of it */
    if (map->classes) sym = next[map->classes[0]];
    uint8_t unpacked[JOIN_STEP];
    for (size_t i = 0; i < m; i += JOIN_STEP) {
        const size_t n = m - i < JOIN_STEP ? m - i : JOIN_STEP;
        const uint8_t *low = narrow == 8 ? rest + i : unpacked;
        for (size_t g = 0; narrow < 8 && g < n; g += 256)
            if (n - g >= 256) unpack_low(&parts, (i + g) / 256, unpacked + g);
            else unpack_low_ragged(&parts, (i + g) / 256, n - g, unpacked + g);
        for (size_t j = 0; j < n;) {
            const size_t some = n - j < in_segment ? n - j : in_segment;
            if (container == 1) join_w8((uint8_t *)dst + i + j, sym, low + j, narrow, r, some);
            else if (wide) join_wide((w16 *)dst + i + j, sym, whole + i + j, low + j, narrow, (uint16_t)top, r, some);
            else if (container == 2) join_w16((w16 *)dst + i + j, sym, low + j, 8 - narrow, (uint16_t)top, r, some);
            else join_w32((w32 *)dst + i + j, sym, (const w16 *)whole + i + j, low + j, 8 - narrow, (uint32_t)top, r, some);
            j += some;
            sym += some;
            in_segment -= some;
            if (in_segment == 0 && i + j < m) {
                next[map->classes[segment++]] = sym;
                sym = next[map->classes[segment]];
                in_segment = map->segment;
            }
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
} huff_state;

/* The bits of a stream below its lowest `bit` bits, tb of them at the top of a table index; 0 below its start. */
static inline size_t huff8_index(const huff_stream *s, size_t bit, unsigned tb)
{
    const size_t have = (size_t)(s->end - s->start), lowbit = bit > tb ? bit - tb : 0, byte = lowbit >> 3;
    const unsigned take = (unsigned)(bit - lowbit); /* fewer than tb only at the very end */
    uint64_t v = 0;
    if (byte + 8 <= have) v = load64(s->start + byte);
    else if (byte < have) memcpy(&v, s->start + byte, have - byte);
    return (size_t)((v >> (lowbit & 7)) & mask_of(take)) << (tb - take);
}

/* What the fast rounds leave, with every check. */
static int huff8_tail(const huff_table *t, huff_stream *s, uint8_t *op, const uint8_t *oend)
{
    size_t bit = s->bit;
    while (op < oend) {
        /* through a buffer, for the stores of 8 bytes would run into the next stream's words */
        uint8_t some[64];
        const size_t want = oend - op < 48 ? (size_t)(oend - op) : 48;
        size_t n = 0;
        while (n < want) {
            const uint64_t e = t->multi[huff8_index(s, bit, t->bits)], symbols = e >> 16;
            const unsigned count = (uint8_t)(e >> 8), used = (uint8_t)e;
            memcpy(some + n, &symbols, 8);
            if (count <= want - n && used <= bit) {
                n += count;
                bit -= used;
            } else { /* one word only */
                if (t->len[some[n]] > bit) return BRV_PAYLOAD;
                bit -= t->len[some[n++]];
            }
        }
        memcpy(op, some, n);
        op += n;
    }
    s->bit = bit;
    return 0;
}

/* One look-up of stream j: up to 6 symbols, one 8-byte store. KEEP 0 makes the stream stand still. */
#define HUFF_TAKE(j, SHIFT, KEEP)                             \
    {                                                         \
        const uint64_t e_ = tab[w##j >> (SHIFT)] & (KEEP);    \
        const uint64_t v_ = e_ >> 16;                         \
        memcpy(o##j, &v_, 8);                                 \
        o##j += (uint8_t)(e_ >> 8);                           \
        w##j <<= e_ & 63;                                     \
    }
#define HUFF_STEP(j) HUFF_TAKE(j, sh, UINT64_MAX)
#define HUFF_STEP_11(j) HUFF_TAKE(j, 53, UINT64_MAX) /* the usual width, as a constant */
/* From 14 words left on a step leaves at least 8, which the store of the next one needs. */
#define HUFF_STEP_OR_STAND(j) HUFF_TAKE(j, sh, (uint64_t)0 - (uint64_t)(e##j - o##j >= 14))
#define HUFF_REFILL(j)                                    \
    {                                                     \
        const unsigned u_ = (unsigned)__builtin_ctzll(w##j); \
        i##j -= u_ >> 3;                                  \
        w##j = (load64(i##j) | 1) << (u_ & 7);            \
    }
#define HUFF_LOAD(j)                    \
    uint64_t w##j = st[j].window;       \
    const uint8_t *i##j = st[j].ip;     \
    uint8_t *o##j = st[j].op;           \
    uint8_t *const e##j = st[j].oend;
#define HUFF_SAVE(j)        \
    st[j].window = w##j;    \
    st[j].ip = i##j;        \
    st[j].op = o##j;
/* A round takes at most 7 bytes of a stream, gives at most 6 words a step and stores 8 bytes past them. */
#define HUFF_LIMIT(j)                                                                 \
    {                                                                                 \
        const size_t o_ = (size_t)(e##j - o##j), n_ = (size_t)(i##j - floor) / 7;     \
        const size_t r_ = o_ < 8 ? 0 : t->bits == 11 ? (o_ - 8) / 30 : (o_ - 8) / (6 * per); \
        if (r_ < rounds) rounds = r_;                                                 \
        if (n_ < rounds) rounds = n_;                                                 \
    }

#define HUFF_LEFT(j)                                                                  \
    {                                                                                 \
        const size_t o_ = (size_t)(e##j - o##j), n_ = (size_t)(i##j - floor);         \
        most = o_ > most ? o_ : most;                                                 \
        least = o_ < least ? o_ : least;                                              \
        input = n_ < input ? n_ : input;                                              \
    }
/* Fast rounds of N streams until one of them comes near an end of its input or output. */
#define HUFF_ROUNDS(N, EACH)                                                                                     \
    static void huff8_rounds_##N(const huff_table *t, huff_state *st, const uint8_t *floor, prefetcher *next)  \
    {                                                                                                            \
        prefetcher ahead = *next;                                                                                \
        const uint64_t *restrict tab = t->multi;                                                                 \
        const unsigned sh = 64 - t->bits, per = 55 / t->bits < 5 ? 55 / t->bits : 5;                             \
        EACH(HUFF_LOAD)                                                                                          \
        for (;;) {                                                                                               \
            size_t rounds = SIZE_MAX;                                                                            \
            EACH(HUFF_LIMIT)                                                                                     \
            if (rounds == 0) break;                                                                              \
            if (t->bits == 11) do {                                                                              \
                PREFETCH(N)                                                                                      \
                EACH(HUFF_STEP_11) EACH(HUFF_STEP_11) EACH(HUFF_STEP_11) EACH(HUFF_STEP_11) EACH(HUFF_STEP_11)   \
                EACH(HUFF_REFILL)                                                                                \
            } while (--rounds);                                                                                  \
            else do {                                                                                            \
                for (unsigned k = 0; k < per; k++) { EACH(HUFF_STEP) }                                           \
                EACH(HUFF_REFILL)                                                                                \
            } while (--rounds);                                                                                  \
        }                                                                                                        \
        /* Then a step a round, in which a stream that is nearly through stands still, so that little is left for    \
         * the tails, which have nothing to overlap with. */                                                         \
        for (;;) {                                                                                               \
            size_t most = 0, least = SIZE_MAX, input = SIZE_MAX;                                                 \
            EACH(HUFF_LEFT)                                                                                      \
            if (most < 14 || least < 8 || input < 8) break;                                                      \
            EACH(HUFF_STEP_OR_STAND) EACH(HUFF_REFILL)                                                           \
        }                                                                                                        \
        EACH(HUFF_SAVE)                                                                                          \
        *next = ahead;                                                                                           \
    }
/* A round takes some 35 bytes of a stream, and there may be others beside it; it gives some 18 words. */
#define PREFETCH(N)                                               \
    for (unsigned p_ = 0; p_ < (N > 1 ? 2 : 1); p_++) {           \
        __builtin_prefetch((const void *)ahead.in);               \
        ahead.in += 64;                                           \
    }                                                             \
    for (unsigned p_ = 0; p_ < (N > 1 ? 3 : 1); p_++) {           \
        __builtin_prefetch((const void *)ahead.out, 1);           \
        ahead.out += 64;                                          \
    }
#define EACH_1(F) F(0)
#define EACH_4(F) F(0) F(1) F(2) F(3)
#define EACH_5(F) EACH_4(F) F(4)
HUFF_ROUNDS(1, EACH_1)
HUFF_ROUNDS(4, EACH_4)
HUFF_ROUNDS(5, EACH_5)

static int k_huff8(const huff_table *t, huff_stream *s, unsigned n, const uint8_t *floor, uint8_t *out, size_t m,
                   prefetcher *ahead)
{
    huff_state st[MAX_STREAMS];
    const size_t q = (m + n - 1) / n;
    bool all = true;
    for (unsigned j = 0; j < n; j++) {
        const size_t from = q * j < m ? q * j : m, to = q * (j + 1) < m ? q * (j + 1) : m;
        const size_t bytes = (s[j].bit + 7) / 8; /* that still hold bits to take */
        st[j] = (huff_state){.op = out + from, .oend = out + to};
        /* fast rounds need a whole window above floor, the first byte of the item */
        if (from == to || (size_t)(s[j].start - floor) + bytes < 8) {
            all = false;
            continue;
        }
        st[j].ip = s[j].start + bytes - 8;
        st[j].window = (load64(st[j].ip) | 1) << (bytes * 8 - s[j].bit);
    }
    const bool together = all && (n == 4 || n == 5);
    if (together && n == 5) huff8_rounds_5(t, st, floor, ahead);
    if (together && n == 4) huff8_rounds_4(t, st, floor, ahead);
    for (unsigned j = 0; j < n; j++) {
        if (st[j].ip) {
            if (!together) huff8_rounds_1(t, &st[j], floor, ahead);
            const ptrdiff_t bit = (st[j].ip - s[j].start) * 8 + 64 - (ptrdiff_t)__builtin_ctzll(st[j].window);
            if (bit < 0) return BRV_PAYLOAD;
            s[j].bit = (size_t)bit;
        }
        int rc = huff8_tail(t, &s[j], st[j].op, st[j].oend);
        if (rc) return rc;
    }
    return 0;
}

/* Codes are put together before they meet the accumulator, so that few steps wait for each other. */
#define ENCODE_FLUSH(V, BITS)  \
    acc |= (uint64_t)(V) << n; \
    n += (BITS);               \
    memcpy(out, &acc, 8);      \
    out += n >> 3;             \
    acc >>= n & 56;            \
    n &= 7;

#define ENCODE_GROUP(G)                                    \
    for (; i >= from + G; i -= G) {                        \
        uint64_t v = 0;                                    \
        unsigned bits = 0;                                 \
        for (unsigned j = 1; j <= G; j++) {                \
            const uint32_t e = enc[words[i - j]];          \
            seen |= e;                                     \
            v |= (uint64_t)(e >> 8) << bits;               \
            bits += e & 15;                                \
        }                                                  \
        ENCODE_FLUSH(v, bits)                              \
    }

#define ENCODE_RUN(W)                                                                                       \
    static bool encode_run_##W(bit_writer *bw, const huff_table *t, const W *words, size_t from, size_t to) \
    {                                                                                                       \
        const uint32_t *restrict enc = t->encode;                                                           \
        uint64_t acc = bw->acc;                                                                             \
        unsigned n = bw->n;                                                                                 \
        uint32_t seen = 0;                                                                                  \
        uint8_t *out = bw->out;                                                                             \
        size_t i = to;                                                                                      \
        if (t->longest <= 11) ENCODE_GROUP(5) /* 5 * 11 and 3 * 15 bits behind 7 left over stay below 64 */ \
        ENCODE_GROUP(3)                                                                                     \
        ENCODE_GROUP(1)                                                                                     \
        *bw = (bit_writer){acc, n, out};                                                                    \
        return !(seen & ABSENT);                                                                            \
    }
ENCODE_RUN(w8)
ENCODE_RUN(w16)

/* Whether all words are among the 2^bits symbols from `first` on. */
static bool within(const uint8_t *restrict words, size_t from, size_t to, uint8_t first, unsigned bits)
{
    uint8_t most = 0;
    for (size_t i = from; i < to; i++) {
        const uint8_t w = (uint8_t)(words[i] - first);
        most = w > most ? w : most;
    }
    return most >> bits == 0;
}

/* Bytes two pairs at a time: at most 52 bits behind 7. */
static bool encode_pairs(bit_writer *bw, const huff_table *t, const uint8_t *words, size_t from, size_t to)
{
    const uint32_t *restrict code = t->pair_code;
    const uint8_t *restrict len = t->pair_len;
    const unsigned s = t->pair_bits, low = (1u << s) - 1, firsts = t->pair_first * 0x101u;
    uint64_t acc = bw->acc;
    unsigned n = bw->n;
    uint32_t present = PAIR_PRESENT;
    uint8_t *out = bw->out;
    size_t i = to;
    if (!within(words, from, to, t->pair_first, s)) return false;
    for (; i >= from + 4; i -= 4) {
        const unsigned p = *(const w16 *)(words + i - 2) - firsts, q = *(const w16 *)(words + i - 4) - firsts;
        const unsigned a = (p & low) | (p >> (8 - s) & low << s), b = (q & low) | (q >> (8 - s) & low << s);
        const uint32_t x = code[a], y = code[b];
        present &= x & y;
        const uint64_t v = (x & ~PAIR_PRESENT) | (uint64_t)(y & ~PAIR_PRESENT) << len[a];
        const unsigned bits = (unsigned)len[a] + len[b];
        ENCODE_FLUSH(v, bits)
    }
    *bw = (bit_writer){acc, n, out};
    return present && encode_run_w8(bw, t, words, from, i);
}

static bool k_huff_encode(bit_writer *bw, const huff_table *t, unsigned container, const void *words, size_t from,
                          size_t to)
{
    if (container == 2) return encode_run_w16(bw, t, words, from, to);
    return t->pair_code ? encode_pairs(bw, t, words, from, to) : encode_run_w8(bw, t, words, from, to);
}

/* ---- rANS ---------------------------------------------------------------------------------- */

/* Words from..to of a class, word i in lane i mod lanes; from is a multiple of them. A word takes at most one u16, so
 * no round that there are enough of needs a check. Without branches: what is due next cannot be foreseen. */
#define RANS_LANE(W, NEXT)                                                                                 \
    {                                                                                                      \
        const uint32_t v = x[lane], e = t->slot[v & msk];                                                  \
        out[i + lane] = (W)t->symbol[v & msk];                                                             \
        const uint32_t y = (e >> 16) * (v >> prob_bits) + (e & 0xffff), due = y <= msk;                    \
        x[lane] = y << (due << 4) | (NEXT & (0 - due));                                                    \
        p += due << 1;                                                                                     \
    }
#define RANS_RUN(W)                                                                                                \
    static int rans_run_##W(const rans_table *t, unsigned prob_bits, uint32_t *x, unsigned lanes, cursor *item,    \
                            W *out, size_t from, size_t to)                                                        \
    {                                                                                                              \
        const uint32_t msk = ((uint32_t)1 << prob_bits) - 1;                                                       \
        const uint8_t *p = item->p;                                                                                \
        size_t i = from;                                                                                           \
        for (; to - i >= lanes && (size_t)(item->end - p) >= 2 * (size_t)lanes; i += lanes)                        \
            for (unsigned lane = 0; lane < lanes; lane++) RANS_LANE(W, *(const w16 *)p)                                      \
        for (; i < to; i += lanes)                                                                                 \
            for (unsigned lane = 0; lane < lanes && lane < to - i; lane++) {                                       \
                const size_t words = (size_t)(item->end - p) / 2;                                                  \
                RANS_LANE(W, (words ? *(const w16 *)p : 0))                                                        \
                if (p > item->end) return BRV_PAYLOAD;                                                             \
            }                                                                                                      \
        item->p = p;                                                                                               \
        return 0;                                                                                                  \
    }
RANS_RUN(w8)
RANS_RUN(w16)

#ifndef HAVE_RANS_ROUNDS
/* Whole rounds of all lanes that can be done with vectors; returns the words done. */
static size_t rans_rounds(const rans_table *t, unsigned prob_bits, uint32_t *x, unsigned lanes, cursor *item, uint8_t *out,
                          size_t m)
{
    (void)t, (void)prob_bits, (void)x, (void)lanes, (void)item, (void)out, (void)m;
    return 0;
}
#endif

#ifdef HAVE_RANS_BUCKETS
/* As rans_run_w8, by look-ups. */
static int rans_run_buckets(const rans_table *t, unsigned prob_bits, uint32_t *x, unsigned lanes, cursor *item, uint8_t *out,
                            size_t from, size_t to)
{
    const rans_lookups *l = t->lookups;
    const unsigned in_bucket = prob_bits - 6;
    const uint32_t msk = ((uint32_t)1 << prob_bits) - 1, low = ((uint32_t)1 << in_bucket) - 1;
    const uint8_t *p = item->p;
    for (size_t i = from; i < to; i += lanes)
        for (unsigned lane = 0; lane < lanes && lane < to - i; lane++) {
            const uint32_t v = x[lane], b = (v & msk) >> in_bucket, j = v & low, other = j >= l->own[b];
            const uint32_t freq = other ? l->alias_freq[b] : l->freq[b], rank = (uint16_t)(j + (other ? l->offset[b] : 0));
            const uint32_t y = freq * (v >> prob_bits) + rank, due = y <= msk;
            out[i + lane] = l->symbol[other ? l->alias[b] : b];
            if (due && item->end - p < 2) return BRV_PAYLOAD;
            x[lane] = due ? y << 16 | *(const w16 *)p : y;
            p += due << 1;
        }
    item->p = p;
    return 0;
}
#endif

static int k_rans(const rans_table *t, unsigned prob_bits, unsigned container, uint32_t *x, unsigned lanes, cursor *item,
                  void *out, size_t m)
{
    const size_t done = container == 1 ? rans_rounds(t, prob_bits, x, lanes, item, out, m) : 0;
#ifdef HAVE_RANS_BUCKETS
    if (!t->slot) return rans_run_buckets(t, prob_bits, x, lanes, item, out, done, m);
#endif
    return container == 1 ? rans_run_w8(t, prob_bits, x, lanes, item, out, done, m)
                          : rans_run_w16(t, prob_bits, x, lanes, item, out, done, m);
}

static uint16_t *rans_encode_run(const rans_table *t, unsigned prob_bits, unsigned container, const void *words,
                                 size_t from, size_t to, uint32_t *x, unsigned lanes, uint16_t *w)
{
    const uint32_t msk = ((uint32_t)1 << prob_bits) - 1;
    bool all = true;
    unsigned lane = (unsigned)(to % lanes);
    for (size_t i = to; i-- > from;) {
        const rans_step *s = &t->step[container == 1 ? ((const w8 *)words)[i] : ((const w16 *)words)[i]];
        lane = lane ? lane - 1 : lanes - 1;
        uint32_t v = x[lane];
        const unsigned due = v >> 16 >= s->freq;
        w[-1] = (uint16_t)v; /* stays if it is due */
        w -= due;
        v >>= due << 4;
        const uint32_t q = (uint32_t)(v * s->inverse >> INVERSE_BITS);
        all &= s->freq != 0;
        x[lane] = (q << prob_bits) + t->by_rank[(s->start + v - q * s->freq) & msk];
    }
    return all ? w : NULL;
}

#ifndef HAVE_RANS_ENCODE_ROUNDS
/* Whole rounds, words [0, *m); what is left to do is put there. */
static uint16_t *rans_encode_rounds(const rans_table *t, unsigned prob_bits, const uint8_t *words, size_t *m,
                                    uint32_t *x, unsigned lanes, uint16_t *w)
{
    (void)t, (void)prob_bits, (void)words, (void)m, (void)x, (void)lanes;
    return w;
}
#endif

static uint16_t *k_rans_encode(const rans_table *t, unsigned prob_bits, unsigned container, const void *words, size_t m,
                               uint32_t *x, unsigned lanes, uint16_t *w)
{
    size_t whole = m - m % lanes;
    w = rans_encode_run(t, prob_bits, container, words, whole, m, x, lanes, w);
    if (w && container == 1) w = rans_encode_rounds(t, prob_bits, words, &whole, x, lanes, w);
    return w ? rans_encode_run(t, prob_bits, container, words, 0, whole, x, lanes, w) : NULL;
}

/* Strings of one class: each stored as 8 bytes, of which the next one overwrites what is too much. */
static size_t k_tunstall(const uint64_t *restrict entry, const uint16_t *restrict codeword, size_t at, size_t n,
                         uint8_t *out, size_t m)
{
    uint8_t *const end = out + m;
    for (;;) {
        const size_t room = (size_t)(end - out), some = room < 8 ? 0 : (room - 8) / 7;
        size_t rounds = (n - at < some ? n - at : some) / 4;
        if (rounds == 0) break;
        do {
            for (unsigned i = 0; i < 4; i++) {
                const uint64_t e = entry[codeword[at + i]];
                memcpy(out, &e, 8);
                out += e >> 56;
            }
            at += 4;
        } while (--rounds);
    }
    while (out < end) {
        if (at == n) return SIZE_MAX;
        const uint64_t e = entry[codeword[at++]];
        const size_t count = (size_t)(e >> 56);
        if (count == 0 || count > (size_t)(end - out)) return SIZE_MAX;
        memcpy(out, &e, count);
        out += count;
    }
    return at;
}

static uint64_t k_hash(const void *p, size_t n) { return XXH3_64bits(p, n); }

const brv_kernels *KERNELS_FUNCTION(void)
{
    static const brv_kernels k = {
        .name = KERNELS_NAME,
        .unpack = k_unpack,
        .pack = k_pack,
        .merge = k_merge,
        .merge_raw = k_merge_raw,
        .field = k_field,
        .join = k_join,
        .interleave = k_interleave,
        .split = k_split,
        .map = k_map,
        .transpose = k_transpose,
        .fill = k_fill,
        .scan = k_scan,
        .find_other = k_find_other,
        .look_up = k_look_up,
        .find_places = k_find_places,
        .spread = k_spread,
        .gather = k_gather,
        .huff8 = k_huff8,
#ifdef HAVE_RANS_BUCKETS
        .by_bucket = true,
#endif
        .rans = k_rans,
#ifdef HAVE_RANS_TWO
        .rans_two = k_rans_two,
#endif
        .rans_encode = k_rans_encode,
        .huff_encode = k_huff_encode,
        .tunstall = k_tunstall,
        .hash = k_hash,
    };
    return &k;
}
