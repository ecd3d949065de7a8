/* The same kernels, compiled for AVX-512 with byte permutations (VBMI, VBMI2: servers since 2019); chosen at run time. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#include "internal.h"

#include <immintrin.h>

#define HAVE_JOIN

static inline __mmask64 first_lanes(size_t n) { return n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1; }

static const uint8_t interleaved[64] = {0, 64, 1, 65, 2, 66, 3, 67, 4, 68, 5, 69, 6, 70, 7, 71,
                                        8, 72, 9, 73, 10, 74, 11, 75, 12, 76, 13, 77, 14, 78, 15, 79,
                                        16, 80, 17, 81, 18, 82, 19, 83, 20, 84, 21, 85, 22, 86, 23, 87,
                                        24, 88, 25, 89, 26, 90, 27, 91, 28, 92, 29, 93, 30, 94, 31, 95};

static inline void store_words(w16 *d, size_t n, __m512i v, __m512i w)
{
    if (n >= 64) {
        _mm512_storeu_si512(d, v);
        _mm512_storeu_si512(d + 32, w);
        return;
    }
    const __mmask64 here = first_lanes(n);
    _mm512_mask_storeu_epi16(d, (__mmask32)here, v);
    if (here >> 32) _mm512_mask_storeu_epi16(d + 32, (__mmask32)(here >> 32), w);
}

/* d[i] = top | sym[i] << (8 - t) | low[i], rotated right by r; low[i] < 2^(8 - t). The rest is moved up to the symbol,
 * so that all that is left is a rotation by t + r. */
static void join_w16(w16 *restrict d, const uint8_t *restrict sym, const uint8_t *restrict low, unsigned t, uint16_t top,
                     unsigned r, size_t n)
{
    const __m512i first = _mm512_loadu_si512(interleaved), second = _mm512_add_epi8(first, _mm512_set1_epi8(32)),
                  turn = _mm512_set1_epi16((short)((t + r) & 15)),
                  all = _mm512_set1_epi16((short)(top >> r | top << ((16 - r) & 15)));
    const __m128i up = _mm_cvtsi32_si128((int)t);
    for (size_t i = 0; i < n; i += 64) {
        const __mmask64 here = first_lanes(n - i);
        FETCH_OUT(d + i)
        FETCH_OUT(d + i + 32)
        const __m512i a = _mm512_maskz_loadu_epi8(here, sym + i);
        const __m512i b = _mm512_sll_epi16(_mm512_maskz_loadu_epi8(here, low + i), up);
        const __m512i x = _mm512_permutex2var_epi8(b, first, a), y = _mm512_permutex2var_epi8(b, second, a);
        const __m512i v = _mm512_or_si512(_mm512_shrdv_epi16(x, x, turn), all);
        const __m512i w = _mm512_or_si512(_mm512_shrdv_epi16(y, y, turn), all);
        store_words(d + i, n - i, v, w);
    }
}

#define HAVE_JOIN_WIDE

/* d[i] = top | sym[i] << (8 + l) | mid[i] << l | low[i], rotated right by r; low[i] < 2^l, 0 < l < 8 */
static void join_wide(w16 *restrict d, const uint8_t *restrict sym, const uint8_t *restrict mid,
                      const uint8_t *restrict low, unsigned l, uint16_t top, unsigned r, size_t n)
{
    const __m512i first = _mm512_loadu_si512(interleaved), second = _mm512_add_epi8(first, _mm512_set1_epi8(32)),
                  turn = _mm512_set1_epi16((short)(r & 15)), down = _mm512_set1_epi16((short)l),
                  all = _mm512_set1_epi16((short)(top >> r | top << ((16 - r) & 15))), zero = _mm512_setzero_si512();
    const __m128i up = _mm_cvtsi32_si128((int)(8 - l));
    for (size_t i = 0; i < n; i += 64) {
        const __mmask64 here = first_lanes(n - i);
        FETCH_OUT(d + i)
        FETCH_OUT(d + i + 32)
        const __m512i a = _mm512_maskz_loadu_epi8(here, sym + i), b = _mm512_maskz_loadu_epi8(here, mid + i);
        const __m512i c = _mm512_sll_epi16(_mm512_maskz_loadu_epi8(here, low + i), up); /* at the top of a byte */
        const __m512i x = _mm512_shldv_epi16(_mm512_permutex2var_epi8(b, first, a),
                                             _mm512_permutex2var_epi8(zero, first, c), down);
        const __m512i y = _mm512_shldv_epi16(_mm512_permutex2var_epi8(b, second, a),
                                             _mm512_permutex2var_epi8(zero, second, c), down);
        store_words(d + i, n - i, _mm512_or_si512(_mm512_shrdv_epi16(x, x, turn), all),
                    _mm512_or_si512(_mm512_shrdv_epi16(y, y, turn), all));
    }
}

/* d[i] = top | sym[i] << (24 - t) | mid[i] << (8 - t) | low[i], rotated right by r */
static void join_w32(w32 *restrict d, const uint8_t *restrict sym, const w16 *restrict mid, const uint8_t *restrict low,
                     unsigned t, uint32_t top, unsigned r, size_t n)
{
    const __m512i turn = _mm512_set1_epi32((int)((t + r) & 31)),
                  all = _mm512_set1_epi32((int)(top >> r | top << ((32 - r) & 31)));
    const __m128i up = _mm_cvtsi32_si128((int)t);
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 here = (__mmask16)first_lanes(n - i);
        FETCH_OUT(d + i)
        const __m512i a = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(here, sym + i));
        const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(here, mid + i));
        const __m512i c = _mm512_cvtepu8_epi32(_mm_sll_epi16(_mm_maskz_loadu_epi8(here, low + i), up));
        const __m512i x = _mm512_ternarylogic_epi32(_mm512_slli_epi32(a, 24), _mm512_slli_epi32(b, 8), c, 0xfe);
        _mm512_mask_storeu_epi32(d + i, here, _mm512_or_si512(_mm512_rorv_epi32(x, turn), all));
    }
}

#define HAVE_FIELD_BYTES

/* d[i] = s[i] >> sh & msk, of 8 bits at most: four words of a quarter line at a time, from any bit on */
static void field_bytes(w8 *restrict d, const w16 *restrict s, unsigned sh, uint64_t msk, size_t m)
{
    static const uint8_t words[8] = {0, 16, 32, 48};
    static const uint32_t halves[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    const __m512i at = _mm512_set1_epi64((long long)(load64(words) + sh * EVERY_BYTE(1))), all = _mm512_set1_epi8((char)msk),
                  even = _mm512_loadu_si512(halves);
    for (size_t i = 0; i < m; i += 64) {
        const __mmask64 here = first_lanes(m - i);
        const __m512i x = _mm512_maskz_loadu_epi16((__mmask32)here, s + i);
        const __m512i y = _mm512_maskz_loadu_epi16((__mmask32)(here >> 32), s + i + 32);
        const __m512i v = _mm512_permutex2var_epi32(_mm512_multishift_epi64_epi8(at, x), even,
                                                    _mm512_multishift_epi64_epi8(at, y));
        _mm512_mask_storeu_epi8(d + i, here, _mm512_and_si512(v, all));
    }
}

#define HAVE_JOIN_W8

/* d[i] = sym[i] << narrow | low[i], rotated right by r */
static void join_w8(uint8_t *restrict d, const uint8_t *restrict sym, const uint8_t *restrict low, unsigned narrow,
                    unsigned r, size_t n)
{
    const __m128i up = _mm_cvtsi32_si128((int)narrow), right = _mm_cvtsi32_si128((int)r),
                  left = _mm_cvtsi32_si128((int)(8 - r));
    const __m512i stays = _mm512_set1_epi8((char)(0xff >> r));
    for (size_t i = 0; i < n; i += 64) {
        const __mmask64 here = first_lanes(n - i);
        FETCH_OUT(d + i)
        const __m512i a = _mm512_maskz_loadu_epi8(here, sym + i), b = _mm512_maskz_loadu_epi8(here, low + i);
        const __m512i x = _mm512_or_si512(_mm512_sll_epi16(a, up), b);
        /* by the bits of the mask from one or from the other */
        const __m512i v = _mm512_ternarylogic_epi64(stays, _mm512_srl_epi16(x, right), _mm512_sll_epi16(x, left), 0xca);
        if (n - i >= 64) _mm512_storeu_si512(d + i, v);
        else _mm512_mask_storeu_epi8(d + i, here, v);
    }
}

#define HAVE_INTERLEAVE

/* 64 places at a time: each class's next words go where they belong, as far as the class has places there. */
static inline void interleave(uint8_t *words, const column_classes *c, const uint8_t *ordered, const size_t *run,
                              unsigned classes)
{
    const uint64_t *mask = c->mask;
    const uint8_t *from[MAX_COLUMN_CLASSES];
    for (unsigned j = 0; j < classes; j++) from[j] = ordered + run[j];
    for (size_t i = 0; i < c->places; i += 64, mask += classes) {
        const __m512i rank = _mm512_loadu_si512(c->rank + i);
        __m512i x = _mm512_setzero_si512();
        for (unsigned j = 0; j < classes; j++) {
            x = _mm512_mask_permutexvar_epi8(x, mask[j], rank, _mm512_loadu_si512(from[j]));
            from[j] += (unsigned)__builtin_popcountll(mask[j]);
        }
        if (c->places - i >= 64) _mm512_storeu_si512(words + i, x);
        else _mm512_mask_storeu_epi8(words + i, first_lanes(c->places - i), x);
    }
}

/* The next 32 words of two classes. */
#define TWO_CLASSES(J, K)                                                                                                \
    _mm512_mask_broadcast_i64x4(                                                                                      \
        _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(ordered + run##J + before[J]))), 0xf0,            \
        _mm256_loadu_si256((const __m256i *)(ordered + run##K + before[K])))

/* The same where no class has more than 32 of 64 places: all that may come is looked up at once. */
static void interleave_even(uint8_t *words, const column_classes *c, const uint8_t *ordered, const size_t *run)
{
    const uint16_t *before = c->before;
    /* one by one: they have just been stored one by one */
    const size_t run0 = run[0], run1 = run[1], run2 = run[2], run3 = run[3], run4 = run[4], run5 = run[5], run6 = run[6],
                 run7 = run[7];
    for (size_t i = 0; i < c->places; i += 64, before += 8) {
        const __m512i pick = _mm512_loadu_si512(c->pick + i);
        const __m512i x = _mm512_permutex2var_epi8(TWO_CLASSES(0, 1), pick, TWO_CLASSES(2, 3));
        const __m512i y = _mm512_permutex2var_epi8(TWO_CLASSES(4, 5), pick, TWO_CLASSES(6, 7));
        const __m512i z = _mm512_mask_mov_epi8(x, _mm512_movepi8_mask(pick), y);
        if (c->places - i >= 64) _mm512_storeu_si512(words + i, z);
        else _mm512_mask_storeu_epi8(words + i, first_lanes(c->places - i), z);
    }
}

static void k_interleave(uint8_t *words, const column_classes *c, const uint8_t *ordered, const size_t *run)
{
    if (c->pick) interleave_even(words, c, ordered, run);
    /* as many as writers make, whose pointers then stay in registers */
    else if (c->classes == 8) interleave(words, c, ordered, run, 8);
    else interleave(words, c, ordered, run, c->classes);
}

#include "kernels_x86.h"

#define HAVE_TALL_TILES

#define IN_LANES(A, B)                                                         \
    for (unsigned i_ = 0; i_ < 8; i_++) {                                      \
        B[2 * i_] = _mm512_unpacklo_epi8(A[i_], A[i_ + 8]);                    \
        B[2 * i_ + 1] = _mm512_unpackhi_epi8(A[i_], A[i_ + 8]);                \
    }

/* 64 rows and 16 columns of bytes: four tiles of 16 x 16, a lane each, so that what is written are whole lines. */
static void transpose_tile_tall(const w8 *const row[64], size_t at, w8 *const column[16])
{
    __m512i a[16], b[16];
    for (unsigned r = 0; r < 16; r++) {
        a[r] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(row[r] + at)));
        a[r] = _mm512_mask_broadcast_i32x4(a[r], 0x00f0, _mm_loadu_si128((const __m128i *)(row[r + 16] + at)));
        a[r] = _mm512_mask_broadcast_i32x4(a[r], 0x0f00, _mm_loadu_si128((const __m128i *)(row[r + 32] + at)));
        a[r] = _mm512_mask_broadcast_i32x4(a[r], 0xf000, _mm_loadu_si128((const __m128i *)(row[r + 48] + at)));
    }
    IN_LANES(a, b)
    IN_LANES(b, a)
    IN_LANES(a, b)
    IN_LANES(b, a)
    for (unsigned c = 0; c < 16; c++) _mm512_storeu_si512(column[c], a[c]);
}

/* Of 64 rows and more, 16 columns and more. */
static void transpose_tall(const w8 *restrict in, const size_t *from, w8 *restrict out, const size_t *to, size_t rows,
                           size_t columns)
{
    for (size_t next_r = 0; next_r < rows; next_r += 64) {
        const size_t r = next_r + 64 < rows ? next_r : rows - 64;
        const w8 *row[64];
        for (unsigned i = 0; i < 64; i++) row[i] = in + (from ? from[r + i] : (r + i) * columns);
        for (size_t next_c = 0; next_c < columns; next_c += 16) {
            const size_t c = next_c + 16 < columns ? next_c : columns - 16;
            w8 *column[16];
            for (unsigned i = 0; i < 16; i++) column[i] = out + (to ? to[c + i] : (c + i) * rows) + r;
            transpose_tile_tall(row, c, column);
        }
    }
}

#define HAVE_RANS_ROUNDS
#define HAVE_RANS_BUCKETS

#define RANS_STEP(X, SYMBOLS)                                                                              \
    {                                                                                                      \
        const __m512i e_ = _mm512_i32gather_epi32(_mm512_and_si512(X, slot), t->packed, 4);                \
        const __m512i f_ = _mm512_add_epi32(_mm512_srli_epi32(e_, 20), one);                               \
        const __m512i b_ = _mm512_and_si512(_mm512_srli_epi32(e_, 8), low12);                              \
        SYMBOLS = _mm512_cvtepi32_epi8(e_);                                                                \
        X = _mm512_add_epi32(_mm512_mullo_epi32(f_, _mm512_srl_epi32(X, bits)), b_);                       \
        const __mmask16 due_ = _mm512_cmplt_epu32_mask(X, least);                                          \
        /* the lanes that are due take the words that follow, in their order */                            \
        const __m512i w_ = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));                  \
        const __m512i in_ = _mm512_maskz_expand_epi32(due_, w_);                                           \
        X = _mm512_mask_or_epi32(X, due_, _mm512_slli_epi32(X, 16), in_);                                  \
        p += 2 * (unsigned)__builtin_popcount(due_);                                                       \
    }

/* Rounds of 32 or 64 lanes, 16 a vector. A vector reads 32 bytes of words, of which it takes what it needs. */
#define RANS_ROUNDS(LANES)                                                                                  \
    for (; done + LANES <= m && item->end - p >= 2 * LANES + 32; done += LANES)                             \
        for (unsigned v = 0; v < LANES / 16; v++) {                                                         \
            __m128i symbols;                                                                                \
            RANS_STEP(y[v], symbols)                                                                        \
            _mm_storeu_si128((__m128i *)(out + done + 16 * v), symbols);                                    \
        }

/* 32 or 64 lanes, the low and high halves of 32 states a vector, of tables of 64 buckets: they are looked up in
 * registers, so nothing is gathered. A number of 16 bits takes two permutations of bytes. */
#define OF(I,TABLE) \
    _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(I, TABLE##_low), odd, I, TABLE##_high)
#define PERMUTED(TABLE) \
    _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(bucket_, TABLE##_low), odd, bucket_, TABLE##_high)

/* Half a round. SYMBOLS: the numbers of 32 symbols, in the lower six bits of each byte of a word. */
#define PERMUTED_STEP(LOW, HIGH, SYMBOLS, P)                                                                    \
    {                                                                                                           \
        const __m512i j_ = _mm512_and_si512(LOW, inner);                                                        \
        const __m512i q_ = _mm512_shldv_epi16(HIGH, LOW, up); /* the state without its slot: 16 bits */         \
        const __m512i bucket_ = _mm512_multishift_epi64_epi8(within, LOW);                                      \
        const __mmask32 other_ = _mm512_cmpge_epu16_mask(j_, _mm512_maskz_permutexvar_epi8(~odd, bucket_, own)); \
        const __m512i r_ = _mm512_mask_add_epi16(j_, other_, j_, PERMUTED(offset));                             \
        SYMBOLS = _mm512_mask_mov_epi16(bucket_, other_, _mm512_permutexvar_epi8(bucket_, alias));              \
        const __m512i f_ = OF(SYMBOLS, freq);                                                              \
        const __m512i product_ = _mm512_mullo_epi16(q_, f_), top_ = _mm512_mulhi_epu16(q_, f_);                 \
        const __m512i low_ = _mm512_add_epi16(product_, r_);                                                    \
        const __mmask32 carry_ = _mm512_cmplt_epu16_mask(low_, r_);                                             \
        const __m512i high_ = _mm512_mask_add_epi16(top_, carry_, top_, one);                                   \
        const __m512i rest_ = _mm512_ternarylogic_epi64(high_, low_, outer, 0xf8);                              \
        const __mmask32 due_ = _mm512_testn_epi16_mask(rest_, rest_);                                           \
        const __m512i next_ = _mm512_loadu_si512(P);                                                            \
        P += 2 * (unsigned)__builtin_popcount(due_);                                                            \
        HIGH = _mm512_mask_mov_epi16(high_, due_, low_);                                                        \
        LOW = _mm512_mask_expand_epi16(low_, due_, next_);                                                      \
    }

/* The low and the high bytes of 64 numbers. */
static void bytes_of(const uint16_t *from, __m512i *low, __m512i *high)
{
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 32);
    *low = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)), _mm512_cvtepi16_epi8(b), 1);
    *high = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(_mm512_srli_epi16(a, 8))),
                               _mm512_cvtepi16_epi8(_mm512_srli_epi16(b, 8)), 1);
}

static __m512i words_of(__m512i a, __m512i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)), _mm512_cvtepi32_epi16(b), 1);
}

static void halve_states(const uint32_t *x, unsigned lanes, __m512i low[2], __m512i high[2])
{
    for (unsigned h = 0; h < lanes / 32; h++) {
        const __m512i a = _mm512_loadu_si512(x + 32 * h), b = _mm512_loadu_si512(x + 32 * h + 16);
        low[h] = words_of(a, b);
        high[h] = words_of(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));
    }
}

static void join_states(uint32_t *x, unsigned lanes, const __m512i low[2], const __m512i high[2])
{
    uint16_t l[64], h[64];
    for (unsigned i = 0; i < lanes / 32; i++) {
        _mm512_storeu_si512(l + 32 * i, low[i]);
        _mm512_storeu_si512(h + 32 * i, high[i]);
    }
    for (unsigned i = 0; i < lanes; i++) x[i] = (uint32_t)h[i] << 16 | l[i];
}

/* What is to be known of a table, in registers. */
#define PERMUTED_TABLE(T)                                                                                              \
    const rans_lookups *l = (T)->lookups;                                                                              \
    const __mmask64 odd = 0xaaaaaaaaaaaaaaaa;                                                                          \
    const __m512i one = _mm512_set1_epi16(1), up = _mm512_set1_epi16((short)(16 - prob_bits)),                         \
                  inner = _mm512_set1_epi16((short)((1 << (prob_bits - 6)) - 1)),                                      \
                  outer = _mm512_set1_epi16((short)~((1u << prob_bits) - 1)),                                          \
                  /* both bytes of a word: the bits that tell its bucket */                                            \
                  within = _mm512_set1_epi64((long long)((prob_bits - 6) * EVERY_BYTE(1) + 0x3030202010100000u)),      \
                  symbol = _mm512_loadu_si512(l->symbol), evens = _mm512_loadu_si512(even_bytes);                      \
    __m512i own, alias, freq_low, freq_high, offset_low, offset_high, none;           \
    bytes_of(l->own, &own, &none);                                                                                     \
    bytes_of(l->alias, &alias, &none);                                                                                 \
    bytes_of(l->freq, &freq_low, &freq_high);                                                                          \
    bytes_of(l->offset, &offset_low, &offset_high);

static const uint8_t even_bytes[64] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                       32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62,
                                       64, 66, 68, 70, 72, 74, 76, 78, 80, 82, 84, 86, 88, 90, 92, 94,
                                       96, 98, 100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 122, 124, 126};

/* A round of 64 or 32 lanes: the words to OUT. */
#define PERMUTED_64(LOW, HIGH, P, OUT)                                                      \
    {                                                                                       \
        __m512i a_, b_;                                                                     \
        PERMUTED_STEP(LOW[0], HIGH[0], a_, P)                                               \
        PERMUTED_STEP(LOW[1], HIGH[1], b_, P)                                               \
        const __m512i numbers_ = _mm512_permutex2var_epi8(a_, evens, b_);                   \
        _mm512_storeu_si512(OUT, _mm512_permutexvar_epi8(numbers_, symbol));                \
    }
#define PERMUTED_32(LOW, HIGH, P, OUT)                                                                           \
    {                                                                                                            \
        __m512i a_;                                                                                              \
        PERMUTED_STEP(LOW[0], HIGH[0], a_, P)                                                                    \
        _mm256_storeu_si256((__m256i *)(OUT), _mm512_cvtepi16_epi8(_mm512_permutexvar_epi8(a_, symbol)));        \
    }

static size_t rans_permuted(const rans_table *t, unsigned prob_bits, uint32_t *x, unsigned lanes, cursor *item,
                            uint8_t *out, size_t m)
{
    const uint8_t *p = item->p;
    __m512i low[2], high[2];
    PERMUTED_TABLE(t)
    halve_states(x, lanes, low, high);
    size_t done = 0;
    for (; lanes == 64 && done + 64 <= m && item->end - p >= 64 + 64; done += 64) PERMUTED_64(low, high, p, out + done)
    for (; lanes == 32 && done + 32 <= m && item->end - p >= 64; done += 32) PERMUTED_32(low, high, p, out + done)
    join_states(x, lanes, low, high);
    item->p = p;
    return done;
}

#define HAVE_RANS_TWO

static size_t k_rans_two(const rans_table *t, unsigned prob_bits, uint32_t *const x[2], unsigned lanes, cursor item[2],
                         uint8_t *const out[2], size_t m)
{
    const uint8_t *p = item[0].p, *q = item[1].p, *p_end = item[0].end, *q_end = item[1].end;
    uint8_t *to = out[0], *other = out[1];
    __m512i low[2], high[2], low2[2], high2[2];
    PERMUTED_TABLE(t)
    halve_states(x[0], lanes, low, high);
    halve_states(x[1], lanes, low2, high2);
    size_t done = 0;
    for (; lanes == 64 && done + 64 <= m && p_end - p >= 64 + 64 && q_end - q >= 64 + 64; done += 64) {
        PERMUTED_64(low, high, p, to + done)
        PERMUTED_64(low2, high2, q, other + done)
    }
    for (; lanes == 32 && done + 32 <= m && p_end - p >= 64 && q_end - q >= 64; done += 32) {
        PERMUTED_32(low, high, p, to + done)
        PERMUTED_32(low2, high2, q, other + done)
    }
    join_states(x[0], lanes, low, high);
    join_states(x[1], lanes, low2, high2);
    item[0].p = p;
    item[1].p = q;
    return done;
}

static size_t rans_rounds(const rans_table *t, unsigned prob_bits, uint32_t *x, unsigned lanes, cursor *item, uint8_t *out,
                          size_t m)
{
    if (lanes != 32 && lanes != 64) return 0;
    if (t->lookups) return rans_permuted(t, prob_bits, x, lanes, item, out, m);
    if (!t->packed) return 0;
    const uint8_t *p = item->p;
    const __m512i one = _mm512_set1_epi32(1), low12 = _mm512_set1_epi32(0xfff), least = _mm512_set1_epi32(1 << prob_bits),
                  slot = _mm512_set1_epi32((1 << prob_bits) - 1);
    const __m128i bits = _mm_cvtsi32_si128((int)prob_bits);
    __m512i y[4];
    for (unsigned v = 0; v < lanes / 16; v++) y[v] = _mm512_loadu_si512(x + 16 * v);
    size_t done = 0;
    if (lanes == 32) { RANS_ROUNDS(32) }
    else { RANS_ROUNDS(64) }
    for (unsigned v = 0; v < lanes / 16; v++) _mm512_storeu_si512(x + 16 * v, y[v]);
    item->p = p;
    return done;
}

#define HAVE_RANS_ENCODE_ROUNDS

/* 16 states through their number of a frequency, for quotients below 2^16: exact or one too few. One step of Newton's
 * makes the estimate of the inverse good to 23 bits; it is taken 2^-21 too small, more than all roundings together, and
 * too little to lose one and a half. */
static __m512i nearly_divided(__m512i x, __m512i freq)
{
    const __m512 f = _mm512_cvtepi32_ps(freq), estimate = _mm512_rcp14_ps(f);
    const __m512 inverse = _mm512_mul_ps(estimate, _mm512_fnmadd_ps(f, estimate, _mm512_set1_ps(2 - 0x1p-21f)));
    return _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(x), inverse));
}

/* The slots of 16 ranks. */
static __m512i slots_of(const uint16_t *by_rank, __m256i at)
{
    return _mm512_i32gather_epi32(_mm512_cvtepu16_epi32(at), by_rank, 2);
}

/* As decoding does, with the same look-ups. */
static uint16_t *rans_encode_rounds(const rans_table *t, unsigned prob_bits, const uint8_t *words, size_t *m,
                                    uint32_t *x, unsigned lanes, uint16_t *w)
{
    if (!t->lookups || (lanes != 32 && lanes != 64)) return w;
    const rans_lookups *l = t->lookups;
    const __mmask64 odd = 0xaaaaaaaaaaaaaaaa;
    const __m512i up = _mm512_set1_epi16((short)prob_bits), down = _mm512_set1_epi16((short)(16 - prob_bits)),
                  slots = _mm512_set1_epi16((short)((1 << prob_bits) - 1)), zero = _mm512_setzero_si512();
    __m512i low[2], high[2], number[4], twice[2], freq_low, freq_high, start_low, start_high;
    for (unsigned i = 0; i < 4; i++) number[i] = _mm512_loadu_si512(l->number + 64 * i);
    for (unsigned i = 0; i < 128; i++) ((uint8_t *)twice)[i] = (uint8_t)(i / 2);
    bytes_of(l->freq, &freq_low, &freq_high);
    bytes_of(l->start, &start_low, &start_high);
    halve_states(x, lanes, low, high);
    __mmask64 absent = 0;
    const __mmask64 here = ~(__mmask64)0 >> (64 - lanes);
    for (size_t i = *m; i; i -= lanes) {
        const __m512i symbols = _mm512_maskz_loadu_epi8(here, words + i - lanes);
        const __m512i numbers = _mm512_mask_mov_epi8(_mm512_permutex2var_epi8(number[0], symbols, number[1]),
                                                     _mm512_movepi8_mask(symbols),
                                                     _mm512_permutex2var_epi8(number[2], symbols, number[3]));
        absent |= _mm512_movepi8_mask(numbers) & here;
        for (unsigned h = lanes / 32; h-- > 0;) {
            const __m512i bucket_ = _mm512_permutexvar_epi8(twice[h], numbers);
            const __m512i freq = PERMUTED(freq), start = PERMUTED(start);
            const __mmask32 due = _mm512_cmpge_epu16_mask(high[h], freq);
            const unsigned n = (unsigned)__builtin_popcount(due);
            w -= n;
            _mm512_mask_storeu_epi16(w, (__mmask32)(((uint64_t)1 << n) - 1), _mm512_maskz_compress_epi16(due, low[h]));
            const __m512i a = _mm512_mask_mov_epi16(low[h], due, high[h]), b = _mm512_mask_mov_epi16(high[h], due, zero);
            __m512i q = _mm512_packus_epi32(
                nearly_divided(_mm512_unpacklo_epi16(a, b), _mm512_unpacklo_epi16(freq, zero)),
                nearly_divided(_mm512_unpackhi_epi16(a, b), _mm512_unpackhi_epi16(freq, zero)));
            __m512i rank = _mm512_sub_epi16(a, _mm512_mullo_epi16(q, freq));
            const __mmask32 under = _mm512_cmpge_epu16_mask(rank, freq);
            q = _mm512_mask_sub_epi16(q, under, q, _mm512_set1_epi16(-1));
            rank = _mm512_mask_sub_epi16(rank, under, rank, freq);
            const __m512i at = _mm512_and_si512(_mm512_add_epi16(start, rank), slots); /* whatever an absent one has */
            const __m512i slot = words_of(slots_of(t->by_rank, _mm512_castsi512_si256(at)),
                                          slots_of(t->by_rank, _mm512_extracti64x4_epi64(at, 1)));
            low[h] = _mm512_or_si512(_mm512_sllv_epi16(q, up), slot);
            high[h] = _mm512_srlv_epi16(q, down);
        }
    }
    if (absent) return NULL;
    join_states(x, lanes, low, high);
    *m = 0;
    return w;
}

#define KERNELS_NAME "avx512"
#define KERNELS_FUNCTION kernels_avx512
#include "kernels_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
#include "internal.h"
const brv_kernels *kernels_avx512(void) { return NULL; }
#endif
