/* What the kernels of AVX2 and of AVX-512 have in common. */

#define HAVE_TILES

/* One stage of a transposition: what stood n apart comes side by side. */
#define INTERLEAVE(BITS, A, B, N)                                       \
    for (unsigned i_ = 0; i_ < N / 2; i_++) {                           \
        B[2 * i_] = _mm_unpacklo_epi##BITS(A[i_], A[i_ + N / 2]);       \
        B[2 * i_ + 1] = _mm_unpackhi_epi##BITS(A[i_], A[i_ + N / 2]);   \
    }

static inline void transpose_tile_w8(const w8 *restrict in, size_t in_step, w8 *restrict out, size_t out_step)
{
    __m128i a[16], b[16];
    for (unsigned r = 0; r < 16; r++) a[r] = _mm_loadu_si128((const __m128i *)(in + r * in_step));
    INTERLEAVE(8, a, b, 16)
    INTERLEAVE(8, b, a, 16)
    INTERLEAVE(8, a, b, 16)
    INTERLEAVE(8, b, a, 16)
    for (unsigned c = 0; c < 16; c++) _mm_storeu_si128((__m128i *)(out + c * out_step), a[c]);
}

static inline void transpose_tile_w16(const w16 *restrict in, size_t in_step, w16 *restrict out, size_t out_step)
{
    for (unsigned r = 0; r < 16; r += 8)
        for (unsigned c = 0; c < 16; c += 8) {
            __m128i a[8], b[8];
            for (unsigned i = 0; i < 8; i++) a[i] = _mm_loadu_si128((const __m128i *)(in + (r + i) * in_step + c));
            INTERLEAVE(16, a, b, 8)
            INTERLEAVE(16, b, a, 8)
            INTERLEAVE(16, a, b, 8)
            for (unsigned i = 0; i < 8; i++) _mm_storeu_si128((__m128i *)(out + (c + i) * out_step + r), b[i]);
        }
}

static inline void transpose_tile_w32(const w32 *restrict in, size_t in_step, w32 *restrict out, size_t out_step)
{
    for (unsigned r = 0; r < 16; r += 4)
        for (unsigned c = 0; c < 16; c += 4) {
            __m128i a[4], b[4];
            for (unsigned i = 0; i < 4; i++) a[i] = _mm_loadu_si128((const __m128i *)(in + (r + i) * in_step + c));
            INTERLEAVE(32, a, b, 4)
            INTERLEAVE(32, b, a, 4)
            for (unsigned i = 0; i < 4; i++) _mm_storeu_si128((__m128i *)(out + (c + i) * out_step + r), a[i]);
        }
}
