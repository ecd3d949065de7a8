/* What words are made of: counts, bits that vary, what comes again. */
#include <zstd.h>

#include "plan_internal.h"

#define MOST_COUNTED ((size_t)1 << 31) /* words, so that 32 bits count them */

/* Call fn_<type> for a container. */
#define FOR_WORDS(c, CALL)     \
    switch (c) {               \
    case 1: CALL(w8); break;   \
    case 2: CALL(w16); break;  \
    case 4: CALL(w32); break;  \
    default: CALL(w64); break; \
    }
#define EACH_TYPE(DEFINE) DEFINE(w8) DEFINE(w16) DEFINE(w32) DEFINE(w64)

/* ---- counts -------------------------------------------------------------------------------- */

/* Four counts a value, or two, so that a repeated one does not wait for its own store. Words are loaded and shifted
 * eight bytes at a time: a mask no wider than what a word has above `low` keeps them apart. */
#define COUNT_FIELD(T)                                                                                  \
    static void count_##T(const T *a, size_t n, unsigned low, uint64_t mask, uint32_t (*part)[256])     \
    {                                                                                                   \
        enum { LANES = 8 / sizeof(T), LOADS = LANES < 4 ? 4 / LANES : 1, BITS = 8 * sizeof(T) };        \
        size_t i = 0;                                                                                   \
        for (; i + LOADS * LANES <= n; i += LOADS * LANES)                                              \
            for (unsigned l = 0; l < LOADS; l++) {                                                      \
                const uint64_t x = *(const w64 *)(a + i + l * LANES) >> low;                            \
                for (unsigned j = 0; j < LANES; j++) part[(l * LANES + j) % 4][x >> (j * BITS) & mask]++; \
            }                                                                                           \
        for (; i < n; i++) part[0][(uint64_t)a[i] >> low & mask]++;                                     \
    }
#define COUNT_WIDE(T)                                                                                   \
    static void wide_##T(const T *a, size_t n, unsigned low, uint64_t mask, uint32_t *hist, uint32_t *other) \
    {                                                                                                   \
        enum { LANES = 8 / sizeof(T), LOADS = LANES < 2 ? 2 : 1, BITS = 8 * sizeof(T) };                \
        size_t i = 0;                                                                                   \
        for (; i + LOADS * LANES <= n; i += LOADS * LANES)                                              \
            for (unsigned l = 0; l < LOADS; l++) {                                                      \
                const uint64_t x = *(const w64 *)(a + i + l * LANES) >> low;                            \
                for (unsigned j = 0; j < LANES; j++) ((l + j) % 2 ? other : hist)[x >> (j * BITS) & mask]++; \
            }                                                                                           \
        for (; i < n; i++) hist[(uint64_t)a[i] >> low & mask]++;                                        \
    }
EACH_TYPE(COUNT_FIELD)
EACH_TYPE(COUNT_WIDE)

/* Of the bits from low on, `width` at most. */
static uint64_t field_mask(unsigned container, unsigned low, unsigned width)
{
    return mask_of(8 * container - low < width ? 8 * container - low : width);
}

void count_narrow(const void *words, size_t n, unsigned container, unsigned low, unsigned width, uint64_t *hist)
{
    uint32_t part[4][256] = {{0}};
    const uint64_t mask = field_mask(container, low, width);
#define CALL(T) count_##T((const T *)words, n, low, mask, part)
    FOR_WORDS(container, CALL)
#undef CALL
    for (size_t s = 0; s < (size_t)1 << width; s++) hist[s] += (uint64_t)part[0][s] + part[1][s] + part[2][s] + part[3][s];
}

void count_wide(const void *words, size_t n, unsigned container, unsigned low, unsigned width, uint32_t *hist)
{
    const uint64_t mask = field_mask(container, low, width);
#define CALL(T) wide_##T((const T *)words, n, low, mask, hist, hist + ((size_t)1 << width))
    FOR_WORDS(container, CALL)
#undef CALL
}

int brv_count(const void *words, size_t n, unsigned container, unsigned low, unsigned width, uint64_t *hist)
{
    if (!is_container(container) || width < 1 || width > 16 || low >= 8 * container || n > MOST_COUNTED)
        return BRV_ARGUMENT;
    if (width <= 8) {
        count_narrow(words, n, container, low, width, hist);
        return 0;
    }
    const size_t bins = (size_t)1 << width;
    uint32_t *part = calloc(2 * bins, sizeof *part);
    if (!part) return BRV_NO_MEMORY;
    count_wide(words, n, container, low, width, part);
    for (size_t s = 0; s < bins; s++) hist[s] += (uint64_t)part[s] + part[bins + s];
    free(part);
    return 0;
}

int brv_plane_bits(const void *words, size_t n, unsigned bits, double *planes)
{
    if (bits < 1 || bits > 64 || n > MOST_COUNTED) return BRV_ARGUMENT;
    for (unsigned low = 0; low < bits; low += 8) {
        const unsigned width = bits - low < 8 ? bits - low : 8;
        uint64_t hist[256] = {0};
        count_narrow(words, n, container_of(bits), low, width, hist);
        planes[low / 8] = brv_entropy_bits(hist, 1, (size_t)1 << width);
    }
    return 0;
}

enum { FEW_COUNTS = 1024 }; /* below which n log2(n) is looked up */

/* Entropy of what hist[places][256] counts, told the places, made up for what a sample of few records misses (Miller
 * and Madow, 1955). */
static double placed_bits(const uint32_t *hist, size_t places, const double *few)
{
    double bits = 0;
    size_t missed = 0;
    for (size_t p = 0; p < places; p++, hist += 256) {
        uint64_t total = 0;
        size_t present = 0;
        double terms = 0;
        for (unsigned s = 0; s < 256; s++) {
            total += hist[s];
            present += hist[s] != 0;
            terms += hist[s] < FEW_COUNTS ? few[hist[s]] : n_log2(hist[s]);
        }
        bits += n_log2(total) - terms;
        missed += present ? present - 1 : 0;
    }
    return bits + (double)missed / 1.3862943611198906; /* 2 ln 2 */
}

int brv_place_bits(const uint8_t *bytes, size_t runs, size_t length, const uint64_t *starts, size_t widest,
                   const uint32_t *sizes, size_t n, double *bits)
{
    if (widest < 1 || widest > 4096 || runs > MOST_COUNTED / (length + 1)) return BRV_ARGUMENT;
    for (size_t k = 0; k < n; k++)
        if (!sizes[k] || widest % sizes[k]) return BRV_ARGUMENT;
    uint32_t *hist = calloc(2 * widest * 256, sizeof *hist), *folded = hist + widest * 256;
    double few[FEW_COUNTS];
    if (!hist) return BRV_NO_MEMORY;
    for (size_t i = 0; i < FEW_COUNTS; i++) few[i] = n_log2(i);
    for (size_t r = 0; r < runs; r++, bytes += length) {
        size_t at = (size_t)(starts[r] % widest);
        for (size_t i = 0; i < length; i++) {
            hist[at << 8 | bytes[i]]++;
            at = at + 1 == widest ? 0 : at + 1;
        }
    }
    for (size_t k = 0; k < n; k++) {
        memset(folded, 0, sizes[k] * 256 * sizeof *folded);
        for (size_t p = 0; p < widest; p++) {
            uint32_t *restrict to = folded + p % sizes[k] * 256;
            for (size_t s = 0; s < 256; s++) to[s] += hist[p * 256 + s];
        }
        bits[k] = placed_bits(folded, sizes[k], few);
    }
    free(hist);
    return 0;
}

/* ---- bits that vary ------------------------------------------------------------------------ */

#define SURVEY(T)                                                                                    \
    static void survey_##T(const T *restrict a, size_t n, size_t chunk, T *restrict any, T *restrict all) \
    {                                                                                                \
        for (size_t at = 0; at < n; at += chunk) {                                                   \
            const size_t end = n - at < chunk ? n : at + chunk;                                      \
            uint64_t some = 0, every = ~(uint64_t)0;                                                 \
            for (size_t i = at; i < end; i++) {                                                      \
                some |= a[i];                                                                        \
                every &= a[i];                                                                       \
            }                                                                                        \
            *any++ = (T)some;                                                                        \
            *all++ = (T)every;                                                                       \
        }                                                                                            \
    }
SURVEY(w64)
#undef SURVEY
/* Eight bytes at a time whatever the words are. */
#define SURVEY(T)                                                                                    \
    static void survey_##T(const T *restrict a, size_t n, size_t chunk, T *restrict any, T *restrict all) \
    {                                                                                                \
        enum { LANES = 8 / sizeof(T) };                                                              \
        for (size_t at = 0; at < n; at += chunk) {                                                   \
            const size_t end = n - at < chunk ? n : at + chunk;                                      \
            uint64_t some = 0, every = ~(uint64_t)0;                                                 \
            size_t i = at;                                                                           \
            for (; i + LANES <= end; i += LANES) {                                                   \
                const uint64_t x = *(const w64 *)(a + i);                                            \
                some |= x;                                                                           \
                every &= x;                                                                          \
            }                                                                                        \
            for (unsigned half = 32; half >= 8 * sizeof(T); half /= 2) {                             \
                some |= some >> half;                                                                \
                every &= every >> half;                                                              \
            }                                                                                        \
            for (; i < end; i++) {                                                                   \
                some |= a[i];                                                                        \
                every &= a[i];                                                                       \
            }                                                                                        \
            *any++ = (T)some;                                                                        \
            *all++ = (T)every;                                                                       \
        }                                                                                            \
    }
SURVEY(w8)
SURVEY(w16)
SURVEY(w32)

int brv_survey(const void *words, size_t n, unsigned container, size_t chunk, void *any_set, void *all_set)
{
    if (!is_container(container) || chunk == 0) return BRV_ARGUMENT;
#define CALL(T) survey_##T((const T *)words, n, chunk, (T *)any_set, (T *)all_set)
    FOR_WORDS(container, CALL)
#undef CALL
    return 0;
}

/* ---- D of Map and Scan --------------------------------------------------------------------- */

#define UNSCAN(T)                                                                                           \
    static void unscan_##T(const T *a, size_t n, bool add, T mask, T *out)                                  \
    {                                                                                                       \
        if (add)                                                                                            \
            for (size_t i = 1; i < n; i++) out[i - 1] = (T)((a[i] - a[i - 1]) & mask);                      \
        else                                                                                                \
            for (size_t i = 1; i < n; i++) out[i - 1] = (T)(a[i] ^ a[i - 1]);                               \
    }
EACH_TYPE(UNSCAN)

int brv_undo(const void *words, size_t n, unsigned bits, int function, uint64_t word, void *out)
{
    if (bits < 1 || bits > 64 || n < 1 || function < -2 || function > FN_ROTR || word & ~mask_of(bits) ||
        (function == FN_ROTR && word >= bits))
        return BRV_ARGUMENT;
    const unsigned container = container_of(bits);
    if (function < 0) {
#define CALL(T) unscan_##T((const T *)words, n, function == -2, (T)mask_of(bits), (T *)out)
        FOR_WORDS(container, CALL)
#undef CALL
        return 0;
    }
    if (out != words) memcpy(out, words, n * container);
    kernels_for("avx2")->map(out, container, bits, (unsigned)function, word, true, n);
    return 0;
}

int brv_looks(const void *words, const uint64_t *ends, size_t runs, unsigned bits, const brv_change *changes, size_t n,
              double *planes)
{
    if (bits < 1 || bits > 64 || runs < 1) return BRV_ARGUMENT;
    const size_t c = container_of(bits), size = (bits + 7) / 8;
    uint8_t *changed = malloc((size_t)ends[runs - 1] * c);
    int rc = changed ? 0 : BRV_NO_MEMORY;
    for (size_t k = 0; k < n && !rc; k++, planes += size) {
        size_t at = 0;
        for (size_t r = 0, from = 0; r < runs && !rc; from = (size_t)ends[r++]) {
            size_t left = (size_t)ends[r] - from;
            uint8_t *out = changed + at * c;
            memcpy(out, (const uint8_t *)words + from * c, left * c);
            for (unsigned step = 0; step < changes[k].steps && !rc; step++) {
                rc = brv_undo(out, left, bits, changes[k].function[step], changes[k].word, out);
                left -= changes[k].function[step] < 0;
            }
            at += left;
        }
        if (!rc) rc = at ? brv_plane_bits(changed, at, bits, planes) : BRV_ARGUMENT;
        for (size_t j = 0; j < size && !rc; j++) planes[j] /= (double)at;
    }
    free(changed);
    return rc;
}

/* ---- words of leaves ----------------------------------------------------------------------- */

int brv_run_words(const brv_program *p, brv_scratch *s, uint64_t first, const uint8_t *data, size_t len, uint32_t i,
                  void *out, size_t *n_out, brv_status *st)
{
    const size_t step = (size_t)p->block * p->bits / 8;
    *n_out = 0;
    for (size_t at = 0; at < len; at += step, first++) {
        size_t n;
        const size_t size = len - at < step ? len - at : step;
        const int rc = brv_words(p, s, first, data + at, size, i, (uint8_t *)out + *n_out * container_of(brv_node_bits(p, i)), &n, st);
        if (rc) return rc;
        *n_out += n;
    }
    return 0;
}

int brv_by_column(const uint8_t *words, size_t n, size_t block, size_t columns, uint8_t *out)
{
    if (!block || !columns) return BRV_ARGUMENT;
    const brv_kernels *k = kernels_for("avx2");
    for (size_t at = 0; at < n; at += block) {
        const size_t m = n - at < block ? n - at : block, whole = m / columns * columns;
        if (whole) k->transpose(words + at, NULL, out + at, NULL, 1, m / columns, columns);
        memcpy(out + at + whole, words + at + whole, m - whole);
    }
    return 0;
}

/* ---- what comes again ---------------------------------------------------------------------- */

/* A set of words other than 0. */
typedef struct {
    uint64_t *word; /* 0: no word here */
    size_t mask;
} word_set;

/* Whether the word was in the set before; there is room for it. */
static bool put_in(word_set *s, uint64_t word)
{
    size_t i = (size_t)((word ^ word >> 32) * 0x9e3779b97f4a7c15u >> 32) & s->mask;
    while (s->word[i] && s->word[i] != word) i = (i + 1) & s->mask;
    const bool was = s->word[i] == word;
    s->word[i] = word;
    return was;
}

int brv_recurring(const void *words, size_t n, unsigned bits, size_t reach, size_t *found)
{
    if (bits < 1 || bits > 64 || n > MOST_COUNTED || reach < 1 || reach > 64 / bits) return BRV_ARGUMENT;
    const unsigned container = container_of(bits);
    size_t places = 16;
    while (places < 2 * n) places *= 2;
    word_set seen = {calloc(places, sizeof *seen.word), places - 1};
    if (!seen.word) return BRV_NO_MEMORY;
    size_t zeros = 0;
    *found = 0;
    for (size_t i = 0; i + reach <= n; i++) {
        uint64_t mixed = 0;
        if (bits == 8 * container && bits * reach == 64) mixed = load64((const uint8_t *)words + i * container);
        else
            for (size_t j = 0; j < reach; j++) mixed = mixed << bits | load_word(words, container, i + j);
        *found += mixed ? put_in(&seen, mixed) : zeros++ > 0;
    }
    free(seen.word);
    return 0;
}

/* Whether one of n words is x, eight bytes at a time; n * sizeof(T) is a multiple of 8. */
#define HOLDS(T)                                                                                      \
    static bool holds_##T(const T *a, size_t n, T x)                                                  \
    {                                                                                                 \
        const uint64_t ones = ~(uint64_t)0 / (T)~(T)0, tops = ones << (8 * sizeof(T) - 1);            \
        uint64_t found = 0;                                                                           \
        for (size_t i = 0; i < n; i += 8 / sizeof(T)) {                                               \
            const uint64_t other = *(const w64 *)(a + i) ^ ones * x;                                  \
            found |= (other - ones) & ~other & tops;                                                  \
        }                                                                                             \
        return found;                                                                                 \
    }
EACH_TYPE(HOLDS)

#define RECURRENCES(T)                                                                                \
    static size_t recurrences_##T(const T *a, size_t n, size_t pattern, uint64_t *out, size_t room)   \
    {                                                                                                 \
        const size_t end = n - pattern + 1;                                                           \
        size_t found = 0;                                                                             \
        for (size_t at = 1; at < end && found < room; at += 64) {                                     \
            const size_t some = end - at < 64 ? end - at : 64;                                        \
            if (some == 64 && !holds_##T(a + at, 64, a[0])) continue;                                 \
            for (size_t i = at; i < at + some && found < room; i++)                                   \
                if (a[i] == a[0] && !memcmp(a + i, a, pattern * sizeof(T))) out[found++] = i;         \
        }                                                                                             \
        return found;                                                                                 \
    }
EACH_TYPE(RECURRENCES)

int brv_recurrences(const void *words, size_t n, unsigned container, size_t pattern, uint64_t *out, size_t room,
                    size_t *found)
{
    if (!is_container(container) || pattern < 1 || pattern > n) return BRV_ARGUMENT;
#define CALL(T) *found = recurrences_##T((const T *)words, n, pattern, out, room)
    FOR_WORDS(container, CALL)
#undef CALL
    return 0;
}

int brv_zstd_bytes(brv_scratch *s, const void *words, size_t n, unsigned bits, int level, size_t *bytes)
{
    if (bits < 1 || bits > 64 || n < 1 || n > MOST_COUNTED) return BRV_ARGUMENT;
    const size_t sliced = sliced_size(n, bits), bound = ZSTD_compressBound(sliced);
    uint8_t *room = malloc(sliced + bound);
    if (!s->cctx) s->cctx = ZSTD_createCCtx();
    int rc = room && s->cctx ? 0 : BRV_NO_MEMORY;
    if (!rc) {
        kernels_for("avx2")->pack(words, n, bits, container_of(bits), room);
        uint8_t length[10];
        *bytes = ZSTD_compressCCtx(s->cctx, room + sliced, bound, room, sliced, level);
        if (ZSTD_isError(*bytes)) rc = BRV_NO_MEMORY;
        else *bytes += put_varint(length, *bytes);
    }
    free(room);
    return rc;
}
