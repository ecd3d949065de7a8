/* Word-array kernels for one container type; included once per type with W (element), CAT(name). */

static void CAT(unpack)(const uint8_t *restrict in, size_t m, unsigned w, W *restrict out)
{
    bool first = true;
    for (unsigned part = 64; part; part >>= 1) {
        if (!(w & part)) continue;
        if (part >= 8) {
            size_t n = m;
            if (part == 8) {
                if (first) for (size_t i = 0; i < n; i++) out[i] = in[i];
                else for (size_t i = 0; i < n; i++) out[i] = (W)((uint64_t)out[i] << 8 | in[i]);
            } else if (part == 16) {
                const w16 *a = (const w16 *)in;
                if (first) for (size_t i = 0; i < n; i++) out[i] = (W)a[i];
                else for (size_t i = 0; i < n; i++) out[i] = (W)((uint64_t)out[i] << 16 | a[i]);
            } else if (part == 32) {
                const w32 *a = (const w32 *)in;
                if (first) for (size_t i = 0; i < n; i++) out[i] = (W)a[i];
                else for (size_t i = 0; i < n; i++) out[i] = (W)((uint64_t)out[i] << 32 | a[i]);
            } else {
                const w64 *a = (const w64 *)in;
                for (size_t i = 0; i < n; i++) out[i] = (W)a[i];
            }
            in += m * (part / 8);
        } else {
            const W msk = (W)((1u << part) - 1);
            const unsigned per = 8 / part;
            size_t i = 0;
            for (; i + 256 <= m; i += 256, in += 32 * part)
                for (unsigned t = 0; t < per; t++) {
                    W *o = out + i + t * 32 * part;
                    const unsigned sh = t * part;
                    if (first) for (unsigned r = 0; r < 32 * part; r++) o[r] = (W)(in[r] >> sh) & msk;
                    else for (unsigned r = 0; r < 32 * part; r++) o[r] = (W)(o[r] << part) | ((W)(in[r] >> sh) & msk);
                }
            if (i < m) {
                size_t g = m - i, rows = (g * part + 7) / 8;
                for (size_t j = 0; j < g; j++) {
                    W v = (W)(in[j % rows] >> (part * (j / rows))) & msk;
                    out[i + j] = first ? v : (W)((W)(out[i + j] << part) | v);
                }
                in += rows;
            }
        }
        first = false;
    }
    if (first) memset(out, 0, m * sizeof(W));
}

static void CAT(pack)(const W *restrict a, size_t m, unsigned w, uint8_t *restrict out)
{
    unsigned below = w; /* bits under the current part */
    for (unsigned part = 64; part; part >>= 1) {
        if (!(w & part)) continue;
        below -= part;
        if (part >= 8) {
            if (part == 8) for (size_t i = 0; i < m; i++) out[i] = (uint8_t)(a[i] >> below);
            else if (part == 16) for (size_t i = 0; i < m; i++) ((w16 *)out)[i] = (uint16_t)(a[i] >> below);
            else if (part == 32) for (size_t i = 0; i < m; i++) ((w32 *)out)[i] = (uint32_t)((uint64_t)a[i] >> below);
            else for (size_t i = 0; i < m; i++) ((w64 *)out)[i] = a[i];
            out += m * (part / 8);
        } else {
            const unsigned msk = (1u << part) - 1, per = 8 / part;
            size_t i = 0;
            for (; i + 256 <= m; i += 256, out += 32 * part) {
                const W *s = a + i;
                for (unsigned r = 0; r < 32 * part; r++) out[r] = (uint8_t)(s[r] >> below) & msk;
                for (unsigned t = 1; t < per; t++) {
                    s += 32 * part;
                    for (unsigned r = 0; r < 32 * part; r++)
                        out[r] |= (uint8_t)(((uint8_t)(s[r] >> below) & msk) << (t * part));
                }
            }
            if (i < m) {
                size_t g = m - i, rows = (g * part + 7) / 8;
                memset(out, 0, rows);
                for (size_t j = 0; j < g; j++)
                    out[j % rows] |= (uint8_t)(((uint8_t)(a[i + j] >> below) & msk) << (part * (j / rows)));
                out += rows;
            }
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
        const unsigned right = inverse ? bits - r : r;
        for (size_t i = 0; i < m; i++) a[i] = ((W)(a[i] >> right) | (W)(a[i] << (bits - right))) & msk;
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
