/* What the kernels of AVX2 and of AVX-512 have in common. */

#define HAVE_TILES

/* One stage of a transposition: what stood n apart comes side by side. */
#define INTERLEAVE(BITS, A, B, N)                                       \
    for (unsigned i_ = 0; i_ < N / 2; i_++) {                           \
        B[2 * i_] = _mm_unpacklo_epi##BITS(A[i_], A[i_ + N / 2]);       \
        B[2 * i_ + 1] = _mm_unpackhi_epi##BITS(A[i_], A[i_ + N / 2]);   \
    }

static inline void transpose_tile_w8(const w8 *const row[16], size_t at, w8 *const column[16])
{
    __m128i a[16], b[16];
    for (unsigned r = 0; r < 16; r++) a[r] = _mm_loadu_si128((const __m128i *)(row[r] + at));
    INTERLEAVE(8, a, b, 16)
    INTERLEAVE(8, b, a, 16)
    INTERLEAVE(8, a, b, 16)
    INTERLEAVE(8, b, a, 16)
    for (unsigned c = 0; c < 16; c++) _mm_storeu_si128((__m128i *)column[c], a[c]);
}

static inline void transpose_tile_w16(const w16 *const row[16], size_t at, w16 *const column[16])
{
    for (unsigned r = 0; r < 16; r += 8)
        for (unsigned c = 0; c < 16; c += 8) {
            __m128i a[8], b[8];
            for (unsigned i = 0; i < 8; i++) a[i] = _mm_loadu_si128((const __m128i *)(row[r + i] + at + c));
            INTERLEAVE(16, a, b, 8)
            INTERLEAVE(16, b, a, 8)
            INTERLEAVE(16, a, b, 8)
            for (unsigned i = 0; i < 8; i++) _mm_storeu_si128((__m128i *)(column[c + i] + r), b[i]);
        }
}

static inline void transpose_tile_w32(const w32 *const row[16], size_t at, w32 *const column[16])
{
    for (unsigned r = 0; r < 16; r += 4)
        for (unsigned c = 0; c < 16; c += 4) {
            __m128i a[4], b[4];
            for (unsigned i = 0; i < 4; i++) a[i] = _mm_loadu_si128((const __m128i *)(row[r + i] + at + c));
            INTERLEAVE(32, a, b, 4)
            INTERLEAVE(32, b, a, 4)
            for (unsigned i = 0; i < 4; i++) _mm_storeu_si128((__m128i *)(column[c + i] + r), a[i]);
        }
}

/* Eight words of a Select: a deposit of bits moves bytes, or numbers by which words are permuted, to where they go. */
#define HAVE_SPREAD

static size_t spread_eights_w8(w8 *restrict out, const uint8_t *restrict mask, const w8 **next, w8 c, size_t m)
{
    const uint8_t *from = *next;
    const uint64_t all = EVERY_BYTE(c);
    size_t i = 0;
    for (; i + 8 <= m; i += 8) {
        const uint64_t eight = load64(mask + i), to = eight * 0xff;
        *(w64 *)(out + i) = _pdep_u64(load64(from), to) | (all & ~to);
        from += _mm_popcnt_u64(eight);
    }
    *next = from;
    return i;
}

static size_t spread_eights_w16(w16 *restrict out, const uint8_t *restrict mask, const w16 **next, w16 c, size_t m)
{
    const w16 *from = *next;
    const __m128i all = _mm_set1_epi16((short)c), two = _mm_set1_epi16(0x0202), odd = _mm_set1_epi16(0x0100);
    size_t i = 0;
    for (; i + 8 <= m; i += 8) {
        const uint64_t eight = load64(mask + i), to = eight * 0xff;
        const __m128i rank = _mm_cvtsi64_si128((long long)_pdep_u64(0x0706050403020100u, to));
        const __m128i bytes = _mm_add_epi8(_mm_mullo_epi16(_mm_unpacklo_epi8(rank, _mm_setzero_si128()), two), odd);
        const __m128i x = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)from), bytes);
        const __m128i taken = _mm_cvtsi64_si128((long long)to);
        _mm_storeu_si128((__m128i *)(out + i), _mm_blendv_epi8(all, x, _mm_unpacklo_epi8(taken, taken)));
        from += _mm_popcnt_u64(eight);
    }
    *next = from;
    return i;
}

static size_t spread_eights_w32(w32 *restrict out, const uint8_t *restrict mask, const w32 **next, w32 c, size_t m)
{
    const w32 *from = *next;
    const __m256i all = _mm256_set1_epi32((int)c);
    size_t i = 0;
    for (; i + 8 <= m; i += 8) {
        const uint64_t eight = load64(mask + i), to = eight * 0xff;
        const __m128i rank = _mm_cvtsi64_si128((long long)_pdep_u64(0x0706050403020100u, to));
        const __m256i x = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)from), _mm256_cvtepu8_epi32(rank));
        const __m256i taken = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)to));
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_blendv_epi8(all, x, taken));
        from += _mm_popcnt_u64(eight);
    }
    *next = from;
    return i;
}

/* Tables of 16: a byte shuffle looks up 32 words at once, a permutation 8. */
#define HAVE_LOOK_UP

static size_t look_up_w8_16(w8 *restrict out, const uint8_t *restrict places, const w8 *table, size_t m)
{
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    size_t i = 0;
    for (; i + 32 <= m; i += 32) {
        const __m256i p = _mm256_loadu_si256((const __m256i *)(places + i));
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_shuffle_epi8(t, p));
    }
    return i;
}

static size_t look_up_w16_16(w16 *restrict out, const uint8_t *restrict places, const w16 *table, size_t m)
{
    uint8_t low[16], high[16];
    for (unsigned j = 0; j < 16; j++) {
        low[j] = (uint8_t)table[j];
        high[j] = (uint8_t)(table[j] >> 8);
    }
    const __m256i l = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                  h = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)high));
    size_t i = 0;
    for (; i + 32 <= m; i += 32) {
        /* lanes crossed beforehand, so that the unpacks below keep the order */
        const __m256i p = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)(places + i)), 0xd8);
        const __m256i x = _mm256_shuffle_epi8(l, p), y = _mm256_shuffle_epi8(h, p);
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_unpacklo_epi8(x, y));
        _mm256_storeu_si256((__m256i *)(out + i + 16), _mm256_unpackhi_epi8(x, y));
    }
    return i;
}

static size_t look_up_w32_16(w32 *restrict out, const uint8_t *restrict places, const w32 *table, size_t m)
{
    const __m256i low = _mm256_loadu_si256((const __m256i *)table), high = _mm256_loadu_si256((const __m256i *)(table + 8));
    size_t i = 0;
    for (; i + 8 <= m; i += 8) {
        const __m256i p = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(places + i)));
        const __m256 x = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, p)),
                     y = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, p));
        const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(p, 28));
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_castps_si256(_mm256_blendv_ps(x, y, upper)));
    }
    return i;
}

/* Whole groups of words from tables of 16; returns the words done. */
static size_t look_up_16(void *out, unsigned c, const uint8_t *places, const void *table, size_t m)
{
    switch (c) {
    case 1: return look_up_w8_16((w8 *)out, places, (const w8 *)table, m);
    case 2: return look_up_w16_16((w16 *)out, places, (const w16 *)table, m);
    case 4: return look_up_w32_16((w32 *)out, places, (const w32 *)table, m);
    default: return 0;
    }
}
