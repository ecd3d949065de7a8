/* Interleaved rANS with 32-bit states and 16-bit renormalisation (after Duda 2013 and Giesen's
 * "Interleaved entropy coders", 2014). */
#include "internal.h"

int brv_rans_frequencies(const uint64_t *hist, size_t n, unsigned prob_bits, uint32_t *freq)
{
    if (n == 0 || n > 65536 || prob_bits < 8 || prob_bits > 14) return BRV_ARGUMENT;
    const uint64_t total_freq = (uint64_t)1 << prob_bits;
    uint64_t total = 0, used = 0;
    for (size_t i = 0; i < n; i++) {
        total += hist[i];
        used += hist[i] != 0;
    }
    memset(freq, 0, n * sizeof *freq);
    if (used == 0) {
        freq[0] = (uint32_t)total_freq;
        return 0;
    }
    if (used > total_freq) return BRV_ARGUMENT;
    int64_t diff = (int64_t)total_freq;
    for (size_t i = 0; i < n; i++)
        if (hist[i]) {
            uint32_t f = (uint32_t)((double)hist[i] / (double)total * (double)total_freq + 0.5);
            freq[i] = f ? f : 1;
            diff -= freq[i];
        }
    /* Settle the rounding one step at a time, each where it costs least (or gains most). */
    while (diff) {
        size_t best = n;
        double best_gain = 0;
        for (size_t i = 0; i < n; i++) {
            if (!hist[i] || (diff < 0 && freq[i] == 1)) continue;
            double gain = diff > 0 ? (double)hist[i] / (freq[i] + 0.5) : -(double)hist[i] / (freq[i] - 0.5);
            if (best == n || gain > best_gain) {
                best = i;
                best_gain = gain;
            }
        }
        freq[best] += diff > 0 ? 1 : (uint32_t)-1;
        diff += diff > 0 ? -1 : 1;
    }
    return 0;
}

size_t brv_rans_write(const uint32_t *freq, size_t n, size_t tables, uint8_t *out, size_t cap)
{
    size_t at = 0;
    for (size_t t = 0; t < tables; t++, freq += n)
        for (size_t i = 0; i < n;) {
            if (at + 11 > cap) return 0;
            at += put_varint(out + at, freq[i]);
            if (freq[i++]) continue;
            size_t j = i;
            while (j < n && !freq[j]) j++;
            at += put_varint(out + at, j - i);
            i = j;
        }
    return at;
}

int rans_read_frequencies(cursor *c, size_t n, unsigned prob_bits, uint32_t *freq)
{
    uint64_t sum = 0, v;
    memset(freq, 0, n * sizeof *freq);
    for (size_t i = 0; i < n;) {
        int rc = get_varint(c, &v);
        if (rc) return rc;
        if (v > (uint64_t)1 << prob_bits) return BRV_TABLE;
        if (v) {
            freq[i++] = (uint32_t)v;
            sum += v;
            continue;
        }
        if ((rc = get_varint(c, &v))) return rc;
        if (v >= n - i) return BRV_TABLE;
        i += (size_t)v + 1;
    }
    return sum == (uint64_t)1 << prob_bits ? 0 : BRV_TABLE;
}

int rans_load(node *nd, cursor *c)
{
    const size_t n = (size_t)1 << nd->bits, slots = (size_t)1 << nd->max_len;
    nd->rans = calloc(nd->tables, sizeof *nd->rans);
    if (!nd->rans) return BRV_NO_MEMORY;
    for (uint32_t i = 0; i < nd->tables; i++) {
        rans_table *t = &nd->rans[i];
        if (nd->max_len <= 12 && nd->bits <= 8 && !(t->packed = malloc(slots * sizeof *t->packed))) return BRV_NO_MEMORY;
        t->slot = malloc(slots * sizeof *t->slot);
        t->symbol = malloc(slots * sizeof *t->symbol);
        t->freq = malloc(n * sizeof *t->freq);
        t->cum = malloc(n * sizeof *t->cum);
        if (!t->slot || !t->symbol || !t->freq || !t->cum) return BRV_NO_MEMORY;
        int rc = rans_read_frequencies(c, n, nd->max_len, t->freq);
        if (rc) return rc;
        uint32_t at = 0;
        for (size_t s = 0; s < n; s++) {
            t->cum[s] = at;
            for (uint32_t j = 0; j < t->freq[s]; j++, at++) {
                t->slot[at] = t->freq[s] << 16 | j;
                t->symbol[at] = (uint16_t)s;
                if (t->packed) t->packed[at] = (t->freq[s] - 1) << 20 | j << 8 | (uint32_t)s;
            }
        }
    }
    return left(c) ? BRV_TRAILING : 0;
}

int rans_prepare_encode(node *nd)
{
    const size_t n = (size_t)1 << nd->bits;
    const unsigned bits = nd->max_len;
    for (uint32_t i = 0; i < nd->tables; i++) {
        rans_table *t = &nd->rans[i];
        if (!(t->step = calloc(n, sizeof *t->step))) return BRV_NO_MEMORY;
        for (size_t s = 0; s < n; s++) {
            const uint64_t f = t->freq[s];
            if (!f) continue;
            t->step[s] = (rans_step){
                .inverse = f == 1 ? UINT64_MAX : UINT64_MAX / f + 1,
                .limit = f << (32 - bits),
                .factor = ((uint32_t)1 << bits) - (uint32_t)f,
                .bias = t->cum[s] + (f == 1 ? ((uint32_t)1 << bits) - 1 : 0),
            };
        }
    }
    return 0;
}

void rans_free(node *nd)
{
    if (!nd->rans) return;
    for (uint32_t i = 0; i < nd->tables; i++) {
        free(nd->rans[i].packed);
        free(nd->rans[i].slot);
        free(nd->rans[i].symbol);
        free(nd->rans[i].freq);
        free(nd->rans[i].cum);
        free(nd->rans[i].step);
    }
    free(nd->rans);
}

int rans_decode(const node *nd, const brv_kernels *k, cursor item, const class_map *map, void *out)
{
    const size_t heads = 4 * (size_t)nd->lanes;
    uint32_t x[MAX_LANES];
    if (left(&item) < heads || left(&item) & 1) return BRV_PAYLOAD;
    memcpy(x, item.p, heads);
    item.p += heads;
    uint8_t *to = out;
    for (uint32_t c = 0; c < nd->tables; c++) {
        int rc = k->rans(&nd->rans[c], nd->max_len, nd->container, x, nd->lanes, &item, to, map->count[c]);
        if (rc) return rc;
        to += map->count[c] * nd->container;
    }
    for (unsigned j = 0; j < nd->lanes; j++)
        if (x[j] != RANS_LOW) return BRV_PAYLOAD;
    return left(&item) ? BRV_PAYLOAD : 0;
}

/* Words of one class from the last to the first; renormalisation words go below w. Returns the new w, NULL if a symbol
 * has no frequency. */
static uint16_t *encode_class(const rans_step *step, unsigned container, const void *words, size_t n, uint32_t *x,
                              unsigned lanes, uint16_t *w)
{
    uint64_t all = UINT64_MAX; /* no step has an inverse of 0 */
    unsigned lane = (unsigned)(n % lanes);
    for (size_t i = n; i-- > 0;) {
        const rans_step *t = &step[container == 1 ? ((const w8 *)words)[i] : ((const w16 *)words)[i]];
        lane = lane ? lane - 1 : lanes - 1;
        uint32_t v = x[lane];
        const unsigned due = v >= t->limit;
        w[-1] = (uint16_t)v; /* stays if it is due; there is room for a word a symbol, and one more */
        w -= due;
        v >>= due << 4;
        x[lane] = v + (uint32_t)((unsigned __int128)v * t->inverse >> 64) * t->factor + t->bias;
        all = t->inverse ? all : 0;
    }
    return all ? w : NULL;
}

int rans_encode(const node *nd, const void *words, const class_map *map, uint8_t *out, size_t cap, size_t *len,
                brv_scratch *s)
{
    const unsigned lanes = nd->lanes;
    const size_t mark = s->used, heads = 4 * (size_t)lanes, m = map->words;
    if (cap < 3 * m + heads + 16) return BRV_NO_ROOM;
    uint16_t *tmp = (uint16_t *)scratch_take(s, 2 * m + 2) + 1, *w = tmp + m;
    uint32_t x[MAX_LANES];
    for (unsigned j = 0; j < lanes; j++) x[j] = RANS_LOW;
    const uint8_t *end = (const uint8_t *)words + m * nd->container;
    for (uint32_t c = nd->tables; c-- > 0;) {
        end -= map->count[c] * nd->container;
        if (!(w = encode_class(nd->rans[c].step, nd->container, end, map->count[c], x, lanes, w)))
            return BRV_NOT_APPLICABLE;
    }
    memcpy(out, x, heads);
    const size_t n = (size_t)(tmp + m - w) * 2;
    memcpy(out + heads, w, n);
    *len = heads + n;
    s->used = mark;
    return 0;
}
