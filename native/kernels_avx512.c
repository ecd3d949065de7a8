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

/* d[i] = top | sym[i] << (8 - t) | low[i], rotated right by r; low[i] < 2^(8 - t). The rest is moved up to the symbol,
 * so that all that is left is a rotation by t + r. */
static void join_w16(w16 *restrict d, const uint8_t *restrict sym, const uint8_t *restrict low, unsigned t, uint16_t top,
                     unsigned r, size_t n)
{
    static const uint8_t order[64] = {0, 64, 1, 65, 2, 66, 3, 67, 4, 68, 5, 69, 6, 70, 7, 71,
                                      8, 72, 9, 73, 10, 74, 11, 75, 12, 76, 13, 77, 14, 78, 15, 79,
                                      16, 80, 17, 81, 18, 82, 19, 83, 20, 84, 21, 85, 22, 86, 23, 87,
                                      24, 88, 25, 89, 26, 90, 27, 91, 28, 92, 29, 93, 30, 94, 31, 95};
    const __m512i first = _mm512_loadu_si512(order), second = _mm512_add_epi8(first, _mm512_set1_epi8(32)),
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
        if (n - i >= 64) {
            _mm512_storeu_si512(d + i, v);
            _mm512_storeu_si512(d + i + 32, w);
        } else {
            _mm512_mask_storeu_epi16(d + i, (__mmask32)here, v);
            if (here >> 32) _mm512_mask_storeu_epi16(d + i + 32, (__mmask32)(here >> 32), w);
        }
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

#include "kernels_x86.h"

#define HAVE_RANS_ROUNDS

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

static size_t rans_rounds(const rans_table *t, unsigned prob_bits, uint32_t *x, unsigned lanes, cursor *item, uint8_t *out,
                          size_t m)
{
    if (lanes != 32 && lanes != 64) return 0;
    const uint8_t *p = item->p;
    const __m512i one = _mm512_set1_epi32(1), low12 = _mm512_set1_epi32(0xfff), least = _mm512_set1_epi32(RANS_LOW),
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
