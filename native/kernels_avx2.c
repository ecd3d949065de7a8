/* The same kernels, compiled for AVX2 and BMI2; chosen at run time. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#include "internal.h"

#include <immintrin.h>

/* The compiler scalarises conversions of lanes to ones four times as wide, so the joins are by hand. */
#define HAVE_JOIN

static inline __m256i rotate16(__m256i x, __m128i r, __m128i l)
{
    return _mm256_or_si256(_mm256_srl_epi16(x, r), _mm256_sll_epi16(x, l));
}

static inline __m256i rotate32(__m256i x, __m128i r, __m128i l)
{
    return _mm256_or_si256(_mm256_srl_epi32(x, r), _mm256_sll_epi32(x, l));
}

/* d[i] = top | sym[i] << (8 - t) | low[i], rotated right by r; low[i] < 2^(8 - t) */
static void join_w16(w16 *restrict d, const uint8_t *restrict sym, const uint8_t *restrict low, unsigned t, uint16_t top,
                     unsigned r, size_t n)
{
    const __m128i down = _mm_cvtsi32_si128((int)t), right = _mm_cvtsi32_si128((int)r),
                  up = _mm_cvtsi32_si128((int)(16 - r));
    const __m256i zero = _mm256_setzero_si256(), all = _mm256_set1_epi16((short)top);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        FETCH_OUT(d + i)
        /* lanes crossed beforehand, so that the unpacks below keep the order */
        const __m256i a = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)(sym + i)), 0xd8);
        const __m256i b = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)(low + i)), 0xd8);
        __m256i x = _mm256_srl_epi16(_mm256_unpacklo_epi8(zero, a), down);
        __m256i y = _mm256_srl_epi16(_mm256_unpackhi_epi8(zero, a), down);
        x = _mm256_or_si256(_mm256_or_si256(x, _mm256_unpacklo_epi8(b, zero)), all);
        y = _mm256_or_si256(_mm256_or_si256(y, _mm256_unpackhi_epi8(b, zero)), all);
        _mm256_storeu_si256((__m256i *)(d + i), rotate16(x, right, up));
        _mm256_storeu_si256((__m256i *)(d + i + 16), rotate16(y, right, up));
    }
    for (; i < n; i++) {
        const uint16_t x = (uint16_t)(top | sym[i] << (8 - t) | low[i]);
        d[i] = (uint16_t)(x >> r | x << ((16 - r) & 15));
    }
}

/* d[i] = top | sym[i] << (24 - t) | mid[i] << (8 - t) | low[i], rotated right by r */
static void join_w32(w32 *restrict d, const uint8_t *restrict sym, const w16 *restrict mid, const uint8_t *restrict low,
                     unsigned t, uint32_t top, unsigned r, size_t n)
{
    const __m128i up_sym = _mm_cvtsi32_si128((int)(24 - t)), up_mid = _mm_cvtsi32_si128((int)(8 - t)),
                  right = _mm_cvtsi32_si128((int)r), up = _mm_cvtsi32_si128((int)(32 - r));
    const __m256i all = _mm256_set1_epi32((int)top);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        FETCH_OUT(d + i)
        const __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(sym + i)));
        const __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(mid + i)));
        const __m256i c = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(low + i)));
        const __m256i x = _mm256_or_si256(_mm256_or_si256(_mm256_sll_epi32(a, up_sym), _mm256_sll_epi32(b, up_mid)),
                                          _mm256_or_si256(c, all));
        _mm256_storeu_si256((__m256i *)(d + i), rotate32(x, right, up));
    }
    for (; i < n; i++) {
        const uint32_t x = top | (uint32_t)sym[i] << (24 - t) | (uint32_t)mid[i] << (8 - t) | low[i];
        d[i] = x >> r | x << ((32 - r) & 31);
    }
}

#include "kernels_x86.h"

#define HAVE_RANS_ROUNDS

#define RANS_STEP(X, SYMBOLS)                                                                            \
    {                                                                                                    \
        const __m256i e_ = _mm256_i32gather_epi32((const int *)t->packed, _mm256_and_si256(X, slot), 4); \
        const __m256i f_ = _mm256_add_epi32(_mm256_srli_epi32(e_, 20), one);                             \
        const __m256i b_ = _mm256_and_si256(_mm256_srli_epi32(e_, 8), low12);                            \
        SYMBOLS = _mm256_and_si256(e_, low8);                                                            \
        X = _mm256_add_epi32(_mm256_mullo_epi32(f_, _mm256_srl_epi32(X, bits)), b_);                     \
        const __m256i due_ = _mm256_cmpeq_epi32(_mm256_srl_epi32(X, bits), zero);                        \
        const unsigned set_ = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(due_));                   \
        const __m256i w_ = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));                   \
        /* the lanes that are due take the words that follow, in their order */                          \
        const uint64_t to_ = _pdep_u64(0x0706050403020100u, _pdep_u64(set_, EVERY_BYTE(1)) * 0xff);      \
        const __m256i at_ = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)to_));                     \
        const __m256i in_ = _mm256_or_si256(_mm256_slli_epi32(X, 16), _mm256_permutevar8x32_epi32(w_, at_)); \
        X = _mm256_blendv_epi8(X, in_, due_);                                                            \
        p += 2 * (unsigned)__builtin_popcount(set_);                                                     \
    }

/* Rounds of 32 or 64 lanes, 8 a vector. A vector reads 16 bytes of words, of which it takes what it needs. */
#define RANS_ROUNDS(LANES)                                                                                  \
    for (; done + LANES <= m && item->end - p >= 2 * LANES + 16; done += LANES)                             \
        for (unsigned v = 0; v < LANES / 8; v += 4) {                                                       \
            __m256i sa, sb, sc, sd;                                                                         \
            RANS_STEP(y[v], sa)                                                                             \
            RANS_STEP(y[v + 1], sb)                                                                         \
            RANS_STEP(y[v + 2], sc)                                                                         \
            RANS_STEP(y[v + 3], sd)                                                                         \
            const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(sa, sb), _mm256_packus_epi32(sc, sd)); \
            _mm256_storeu_si256((__m256i *)(out + done + 8 * v), _mm256_permutevar8x32_epi32(bytes, order)); \
        }

static size_t rans_rounds(const rans_table *t, unsigned prob_bits, uint32_t *x, unsigned lanes, cursor *item, uint8_t *out,
                          size_t m)
{
    if (!t->packed || (lanes != 32 && lanes != 64)) return 0;
    const uint8_t *p = item->p;
    const __m256i zero = _mm256_setzero_si256(), one = _mm256_set1_epi32(1), low8 = _mm256_set1_epi32(0xff),
                  low12 = _mm256_set1_epi32(0xfff), slot = _mm256_set1_epi32((1 << prob_bits) - 1),
                  order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m128i bits = _mm_cvtsi32_si128((int)prob_bits);
    __m256i y[8];
    for (unsigned v = 0; v < lanes / 8; v++) y[v] = _mm256_loadu_si256((const __m256i *)(x + 8 * v));
    size_t done = 0;
    if (lanes == 32) { RANS_ROUNDS(32) }
    else { RANS_ROUNDS(64) }
    for (unsigned v = 0; v < lanes / 8; v++) _mm256_storeu_si256((__m256i *)(x + 8 * v), y[v]);
    item->p = p;
    return done;
}

#define KERNELS_NAME "avx2"
#define KERNELS_FUNCTION kernels_avx2
#include "kernels_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
#include "internal.h"
const brv_kernels *kernels_avx2(void) { return NULL; }
#endif
