/* Word-array kernels for one container type; included once per type with W (element), CAT(name). */

#define WIDE_PART(P, K)                                                                                     \
    if (sizeof(W) >= sizeof(P) && s->wide[K]) {                                                             \
        const P *restrict a = (const P *)s->wide[K] + i;                                                    \
        if (first) for (size_t j = 0; j < n; j++) out[j] = (W)a[j];                                         \
        else for (size_t j = 0; j < n; j++) out[j] = (W)(out[j] << (8 * sizeof(P) % (8 * sizeof(W))) | a[j]); \
        first = false;                                                                                      \
    }

/* Words i to i + n of a sliced array, i a multiple of 256 and n at most that. */
static inline void CAT(unpack_some)(const sliced_parts *s, size_t i, size_t n, W *restrict out)
{
    bool first = true;
    WIDE_PART(w64, 3)
    WIDE_PART(w32, 2)
    WIDE_PART(w16, 1)
    WIDE_PART(w8, 0)
    const unsigned narrow = s->width & 7;
    if (!narrow) return;
    uint8_t low[256];
    if (n == 256) unpack_low(&s->low, i / 256, low);
    else unpack_low_ragged(&s->low, i / 256, n, low);
    if (first) for (size_t j = 0; j < n; j++) out[j] = low[j];
    else for (size_t j = 0; j < n; j++) out[j] = (W)(out[j] << narrow) | low[j];
}
#undef WIDE_PART

static void CAT(unpack)(const uint8_t *restrict in, size_t m, unsigned w, W *restrict out)
{
    if (w == 0) memset(out, 0, m * sizeof(W));
    else if (w == 8 * sizeof(W)) memcpy(out, in, m * sizeof(W));
    else {
        const sliced_parts s = sliced_parts_of(in, m, w);
        for (size_t i = 0; i < m; i += 256) CAT(unpack_some)(&s, i, m - i < 256 ? m - i : 256, out + i);
    }
}

/* (a[j] >> below) & msk of 256 words; the mask has at most 4 bits */
static inline void CAT(low_byte)(const W *restrict a, unsigned below, uint8_t msk, uint8_t *restrict group)
{
    for (unsigned j = 0; j < 256; j += 16) {
        CAT(lanes) x;
        memcpy(&x, a + j, sizeof x);
        const lanes_w8 y = __builtin_convertvector(SHIFT_RIGHT(x, below), lanes_w8) & msk;
        memcpy(group + j, &y, sizeof y);
    }
}

static void CAT(pack)(const W *restrict a, size_t m, unsigned w, uint8_t *restrict out)
{
    unsigned below = w & 63; /* bits under the current part */
    if (w & 64) for (size_t i = 0; i < m; i++) ((w64 *)out)[i] = a[i];
    out += w & 64 ? 8 * m : 0;
    if (w & 32) {
        below -= 32;
        for (size_t i = 0; i < m; i++) ((w32 *)out)[i] = (uint32_t)((uint64_t)a[i] >> below);
        out += 4 * m;
    }
    if (w & 16) {
        below -= 16;
        for (size_t i = 0; i < m; i++) ((w16 *)out)[i] = (uint16_t)(a[i] >> below);
        out += 2 * m;
    }
    if (w & 8) {
        below -= 8;
        for (size_t i = 0; i < m; i++) out[i] = (uint8_t)(a[i] >> below);
        out += m;
    }
    for (unsigned part = 4; part; part >>= 1) {
        if (!(w & part)) continue;
        below -= part;
        const uint8_t msk = (uint8_t)((1u << part) - 1);
        uint8_t group[256];
        size_t i = 0;
        for (; i + 256 <= m; i += 256, out += 32 * part) {
            CAT(low_byte)(a + i, below, msk, group);
            pack_group(group, part, out);
        }
        if (i < m) {
            const size_t g = m - i, rows = (g * part + 7) / 8;
            memset(out, 0, rows);
            for (size_t j = 0; j < g; j++)
                out[j % rows] |= (uint8_t)(((uint8_t)(a[i + j] >> below) & msk) << (part * (j / rows)));
            out += rows;
        }
    }
}

static void CAT(map)(W *a, unsigned bits, unsigned fn, uint64_t v, bool inverse, size_t m)
{
    const W msk = (W)mask_of(bits), c = (W)v;
    const unsigned r = (unsigned)v;
    switch (fn) {
    case FN_XOR:
        for (size_t i = 0; i < m; i++) a[i] ^= c;
        break;
    case FN_ADD:
        if (inverse) for (size_t i = 0; i < m; i++) a[i] = (W)(a[i] - c) & msk;
        else for (size_t i = 0; i < m; i++) a[i] = (W)(a[i] + c) & msk;
        break;
    case FN_ZIGZAG: /* G: s = (c >> 1) ^ -(c & 1); D: c = (s << 1) ^ -(top bit) */
        if (inverse) for (size_t i = 0; i < m; i++) a[i] = ((W)(a[i] << 1) ^ (W)(0 - (W)(a[i] >> (bits - 1)))) & msk;
        else for (size_t i = 0; i < m; i++) a[i] = ((W)(a[i] >> 1) ^ (W)(0 - (W)(a[i] & 1))) & msk;
        break;
    case FN_GRAY:
        if (inverse) for (size_t i = 0; i < m; i++) a[i] ^= (W)(a[i] >> 1);
        else
            for (unsigned sh = 1; sh < bits; sh <<= 1)
                for (size_t i = 0; i < m; i++) a[i] ^= (W)(a[i] >> sh);
        break;
    case FN_BITREV:
        for (size_t i = 0; i < m; i++) {
            uint64_t x = a[i];
            x = (x >> 1 & 0x5555555555555555u) | (x & 0x5555555555555555u) << 1;
            x = (x >> 2 & 0x3333333333333333u) | (x & 0x3333333333333333u) << 2;
            x = (x >> 4 & 0x0f0f0f0f0f0f0f0fu) | (x & 0x0f0f0f0f0f0f0f0fu) << 4;
            a[i] = (W)(__builtin_bswap64(x) >> (64 - bits));
        }
        break;
    default: { /* FN_ROTR; D rotates left */
        const unsigned right = inverse ? bits - r : r, up = bits - right;
        size_t i = 0;
        for (; sizeof(W) > 1 && i + 16 <= m; i += 16) {
            CAT(lanes) x;
            memcpy(&x, a + i, sizeof x);
            x = (x >> right | x << up) & msk;
            memcpy(a + i, &x, sizeof x);
        }
        for (; i < m; i++) a[i] = ((W)(a[i] >> right) | (W)(a[i] << up)) & msk;
    }
    }
}

static void CAT(fill)(W *a, uint64_t v, size_t m)
{
    const W c = (W)v;
    for (size_t i = 0; i < m; i++) a[i] = c;
}

static void CAT(scan)(W *a, unsigned bits, unsigned kind, size_t m)
{
    const W msk = (W)mask_of(bits);
    W x = a[0];
    if (kind == SCAN_XOR) for (size_t i = 1; i < m; i++) a[i] = x = x ^ a[i];
    else for (size_t i = 1; i < m; i++) a[i] = x = (W)(x + a[i]) & msk;
}

static size_t CAT(find_other)(const W *a, uint64_t v, size_t m)
{
    const W c = (W)v;
    size_t i = 0;
    for (; i + 64 <= m; i += 64) { /* whole runs first, so that the compiler can vectorise the test */
        W d = 0;
        for (unsigned j = 0; j < 64; j++) d |= a[i + j] ^ c;
        if (d) break;
    }
    for (; i < m; i++)
        if (a[i] != c) return i;
    return m;
}

/* mask bytes 8 at a time: most are all alike where little or nearly all is selected */
static void CAT(spread)(W *restrict out, const uint8_t *restrict mask, const W *next, uint64_t v, size_t m)
{
    const W c = (W)v;
    size_t i = CAT(spread_eights)(out, mask, &next, c, m);
    for (; i + 8 <= m; i += 8) {
        const uint64_t eight = load64(mask + i);
        if (eight == 0) for (unsigned j = 0; j < 8; j++) out[i + j] = c;
        else if (eight == EVERY_BYTE(1)) {
            memcpy(out + i, next, 8 * sizeof(W));
            next += 8;
        } else
            for (unsigned j = 0; j < 8; j++) {
                const W w = *next;
                out[i + j] = mask[i + j] ? w : c;
                next += mask[i + j];
            }
    }
    for (; i < m; i++) {
        out[i] = mask[i] ? *next : c;
        next += mask[i];
    }
}

static size_t CAT(gather)(const W *restrict a, uint64_t v, uint8_t *restrict mask, W *restrict next, size_t m)
{
    const W c = (W)v;
    size_t n = 0;
    for (size_t i = 0; i < m; i++) {
        mask[i] = a[i] != c;
        next[n] = a[i];
        n += mask[i];
    }
    return n;
}

/* The places of 64 words in a small table: of the last of its words that is not above each. */
static bool CAT(find_64)(const W *restrict a, const W *restrict table, size_t size, uint16_t *restrict places)
{
    W at[64] = {0}, other = 0;
    for (size_t k = 1; k < size; k++) {
        const W c = table[k];
        for (unsigned j = 0; j < 64; j++) at[j] = (W)(at[j] + (a[j] >= c));
    }
    for (unsigned j = 0; j < 64; j++) {
        other |= table[at[j]] ^ a[j];
        places[j] = (uint16_t)at[j];
    }
    return other == 0;
}

/* The slot of a hash table of places that w has, or that is free for it. */
static inline uint16_t *CAT(slot_of)(places_hash *h, W w, const W *table)
{
    size_t at = (size_t)((uint64_t)w * 0x9e3779b97f4a7c15u >> h->shift);
    while (h->slot[at] != NO_PLACE && table[h->slot[at]] != w) at = (at + 1) & h->mask;
    return &h->slot[at];
}

static void CAT(hash_places)(places_hash *h, const W *table, size_t size)
{
    const unsigned bits = bits_for(size) + 1;
    h->mask = ((size_t)1 << bits) - 1;
    h->shift = 64 - bits;
    memset(h->slot, 0xff, sizeof *h->slot << bits);
    for (size_t i = 0; i < size; i++) *CAT(slot_of)(h, table[i], table) = (uint16_t)i;
}

/* In tiles of 16 x 16, so that the lines read and written stay in L1; the last ones overlap those before. */
static void CAT(transpose)(const W *restrict in, const size_t *from, W *restrict out, const size_t *to, size_t rows,
                           size_t columns)
{
    if (rows < 16 || columns < 16) {
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < columns; c++)
                out[(to ? to[c] : c * rows) + r] = in[(from ? from[r] : r * columns) + c];
        return;
    }
    for (size_t next_r = 0; next_r < rows; next_r += 16) {
        const size_t r = next_r + 16 < rows ? next_r : rows - 16;
        const W *row[16];
        for (unsigned i = 0; i < 16; i++) row[i] = in + (from ? from[r + i] : (r + i) * columns);
        for (size_t next_c = 0; next_c < columns; next_c += 16) {
            const size_t c = next_c + 16 < columns ? next_c : columns - 16;
            W *column[16];
            for (unsigned i = 0; i < 16; i++) column[i] = out + (to ? to[c + i] : (c + i) * rows) + r;
            CAT(transpose_tile)(row, c, column);
        }
    }
}
