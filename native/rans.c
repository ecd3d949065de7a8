/* Interleaved rANS with 32-bit states and 16-bit renormalisation (after Duda 2013 and Giesen's "Interleaved entropy
 * coders", 2014), slots dealt to symbols by the alias method (Walker 1977). */
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

/* Deals the slots of the n buckets to the symbols with a frequency (u of them). Bucket i is of symbol i as far as its
 * share of the frequency goes (own), the rest of it of another one (alias). The lowest bucket that is not full is
 * filled from the lowest one that is, so both only go up, but for a bucket that gave so much that it is the next. */
static void deal_slots(const uint32_t *freq, size_t u, size_t n, uint32_t size, uint32_t *own, uint32_t *alias)
{
    for (size_t i = 0; i < n; i++) {
        own[i] = i < u ? freq[i] : 0;
        alias[i] = (uint32_t)i;
    }
    size_t low = 0, full = 0;
    while (full < n && own[full] < size) full++;
    while (low < n && own[low] >= size) low++;
    for (size_t next = low; next < n;) {
        alias[next] = (uint32_t)full;
        own[full] -= size - own[next];
        const size_t gave = full;
        const bool drained = own[full] < size;
        if (drained)
            for (full++; full < n && own[full] < size;) full++;
        if (next == low)
            for (low++; low < n && own[low] >= size;) low++;
        next = drained && gave < low ? gave : low;
    }
}

/* What vectors look up. */
static void fill_lookups(rans_table *t, const uint32_t *own, const uint32_t *alias)
{
    rans_lookups *l = t->lookups;
    for (size_t i = 0; i < 64; i++) {
        const rans_choice *a = &t->choice[2 * i], *b = a + 1;
        /* A bucket without an alias is its own from slot 0 on: the size of a bucket may not fit a byte. */
        l->own[i] = alias[i] == i ? 0 : (uint16_t)own[i];
        l->alias[i] = (uint16_t)alias[i];
        l->freq[i] = a->freq;
        l->alias_freq[i] = b->freq;
        l->offset[i] = (uint16_t)b->offset;
        l->symbol[i] = (uint8_t)a->symbol;
    }
    uint16_t start = 0;
    memset(l->number, NO_NUMBER, sizeof l->number);
    for (size_t i = 0; i < 64 && l->freq[i]; i++) {
        l->number[l->symbol[i]] = (uint8_t)i;
        l->start[i] = start;
        start = (uint16_t)(start + l->freq[i]);
    }
}

static void fill_packed(rans_table *t, unsigned prob_bits)
{
    for (uint32_t slot = 0; slot < (uint32_t)1 << prob_bits; slot++) {
        const uint32_t bucket = slot >> t->bucket_bits, j = slot & (((uint32_t)1 << t->bucket_bits) - 1);
        const rans_choice *c = &t->choice[2 * bucket + (j >= t->own[bucket])];
        t->packed[slot] = (uint32_t)(c->freq - 1) << 20 | (j + (uint32_t)c->offset) << 8 | c->symbol;
    }
}

static int load_table(rans_table *t, cursor *c, unsigned bits, unsigned prob_bits)
{
    const size_t symbols = (size_t)1 << bits;
    size_t u = 0, n = 64;
    if (!(t->freq = malloc(symbols * sizeof *t->freq))) return BRV_NO_MEMORY;
    int rc = rans_read_frequencies(c, symbols, prob_bits, t->freq);
    if (rc) return rc;
    for (size_t s = 0; s < symbols; s++) u += t->freq[s] != 0;
    while (n < u) n *= 2;
    t->buckets = (uint32_t)n;
    for (t->bucket_bits = prob_bits; n >> (prob_bits - t->bucket_bits) > 1; t->bucket_bits--) continue;
    const uint32_t size = (uint32_t)1 << t->bucket_bits;
    t->own = malloc(n * sizeof *t->own);
    t->choice = calloc(2 * n, sizeof *t->choice);
    uint32_t *freq = malloc(u * sizeof *freq), *own = malloc(2 * n * sizeof *own), *alias = own + n;
    uint32_t *next = malloc(n * sizeof *next);
    rc = t->own && t->choice && freq && own && next ? 0 : BRV_NO_MEMORY;
    if (!rc) {
        u = 0;
        for (size_t s = 0; s < symbols; s++)
            if (t->freq[s]) {
                t->choice[2 * u] = (rans_choice){.freq = (uint16_t)t->freq[s], .symbol = (uint16_t)s};
                freq[u++] = t->freq[s];
            }
        deal_slots(freq, u, n, size, own, alias);
        memcpy(next, own, n * sizeof *next);
        for (size_t i = 0; i < n; i++) {
            const uint32_t from = alias[i];
            t->own[i] = (uint16_t)own[i];
            t->choice[2 * i + 1] = t->choice[2 * from];
            if (from == i) continue; /* all of it is its own */
            t->choice[2 * i + 1].offset = (int32_t)(next[from] - own[i]);
            next[from] += size - own[i];
        }
        if (n == 64 && bits <= 8 && (t->lookups = malloc(sizeof *t->lookups))) fill_lookups(t, own, alias);
        if (prob_bits <= 12 && bits <= 8 && (t->packed = malloc(sizeof *t->packed << prob_bits))) fill_packed(t, prob_bits);
    }
    free(freq);
    free(own);
    free(next);
    return rc;
}

int rans_load(node *nd, cursor *c)
{
    nd->rans = calloc(nd->tables, sizeof *nd->rans);
    if (!nd->rans) return BRV_NO_MEMORY;
    for (uint32_t i = 0; i < nd->tables; i++) {
        int rc = load_table(&nd->rans[i], c, nd->bits, nd->max_len);
        if (rc) return rc;
    }
    return left(c) ? BRV_TRAILING : 0;
}

int rans_prepare_encode(node *nd)
{
    const size_t symbols = (size_t)1 << nd->bits;
    for (uint32_t i = 0; i < nd->tables; i++) {
        rans_table *t = &nd->rans[i];
        t->step = calloc(symbols, sizeof *t->step);
        t->slot = malloc((sizeof *t->slot << nd->max_len) + sizeof(uint32_t)); /* it is read by u32 */
        if (!t->step || !t->slot) return BRV_NO_MEMORY;
        uint32_t start = 0;
        for (size_t s = 0; s < symbols; s++) {
            const uint64_t f = t->freq[s];
            if (!f) continue;
            t->step[s] = (rans_step){
                .inverse = (((uint64_t)1 << INVERSE_BITS) + f - 1) / f,
                .freq = (uint32_t)f,
                .start = start,
            };
            start += (uint32_t)f;
        }
        for (uint32_t slot = 0; slot < (uint32_t)1 << nd->max_len; slot++) {
            const uint32_t bucket = slot >> t->bucket_bits, j = slot & (((uint32_t)1 << t->bucket_bits) - 1);
            const rans_choice *c = &t->choice[2 * bucket + (j >= t->own[bucket])];
            t->slot[t->step[c->symbol].start + j + (uint32_t)c->offset] = (uint16_t)slot;
        }
    }
    return 0;
}

void rans_free(node *nd)
{
    if (!nd->rans) return;
    for (uint32_t i = 0; i < nd->tables; i++) {
        free(nd->rans[i].own);
        free(nd->rans[i].choice);
        free(nd->rans[i].lookups);
        free(nd->rans[i].packed);
        free(nd->rans[i].freq);
        free(nd->rans[i].step);
        free(nd->rans[i].slot);
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
    for (unsigned j = 0; j < nd->lanes; j++)
        if (x[j] >> nd->max_len == 0 || x[j] >> nd->max_len >> 16) return BRV_PAYLOAD;
    uint8_t *to = out;
    for (uint32_t c = 0; c < nd->tables; c++) {
        int rc = k->rans(&nd->rans[c], nd->max_len, nd->container, x, nd->lanes, &item, to, map->count[c]);
        if (rc) return rc;
        to += map->count[c] * nd->container;
    }
    for (unsigned j = 0; j < nd->lanes; j++)
        if (x[j] != (uint32_t)1 << nd->max_len) return BRV_PAYLOAD;
    return left(&item) ? BRV_PAYLOAD : 0;
}

int rans_encode(const node *nd, const brv_kernels *k, const void *words, const class_map *map, uint8_t *out, size_t cap, size_t *len,
                brv_scratch *s)
{
    const unsigned lanes = nd->lanes;
    const size_t mark = s->used, heads = 4 * (size_t)lanes, m = map->words;
    if (cap < 3 * m + heads + 16) return BRV_NO_ROOM;
    uint16_t *tmp = (uint16_t *)scratch_take(s, 2 * m + 2) + 1, *w = tmp + m;
    uint32_t x[MAX_LANES];
    for (unsigned j = 0; j < lanes; j++) x[j] = (uint32_t)1 << nd->max_len;
    const uint8_t *end = (const uint8_t *)words + m * nd->container;
    for (uint32_t c = nd->tables; c-- > 0;) {
        end -= map->count[c] * nd->container;
        if (!(w = k->rans_encode(&nd->rans[c], nd->max_len, nd->container, end, map->count[c], x, lanes, w)))
            return BRV_NOT_APPLICABLE;
    }
    memcpy(out, x, heads);
    const size_t n = (size_t)(tmp + m - w) * 2;
    memcpy(out + heads, w, n);
    *len = heads + n;
    s->used = mark;
    return 0;
}
