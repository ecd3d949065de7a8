/* Interleaved rANS with 32-bit states and 16-bit renormalisation (after Duda 2013 and Giesen's "Interleaved entropy
 * coders", 2014), slots dealt to few symbols by the alias method (Walker 1977). */
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

#define BUCKETS 64

/* The symbols of a table, the most frequent first, equal ones by symbol; how many. */
static size_t by_frequency(const uint32_t *freq, size_t n, uint16_t symbol[BUCKETS])
{
    size_t u = 0;
    for (size_t s = 0; s < n; s++) {
        if (!freq[s]) continue;
        size_t at = u++;
        for (; at && freq[symbol[at - 1]] < freq[s]; at--) symbol[at] = symbol[at - 1];
        symbol[at] = (uint16_t)s;
    }
    return u;
}

/* Deals the slots in buckets of `size`: bucket i is of symbol i as far as its frequency reaches (own), the rest of it of
 * another one (alias). Who has more than a bucket gives in proportion to that, so that the slots of a symbol lie evenly
 * spread, as good coding with small states asks. */
static void deal_buckets(const uint32_t *freq, const uint16_t *symbol, size_t u, uint32_t size, uint32_t own[BUCKETS],
                         unsigned alias[BUCKETS])
{
    uint64_t excess[BUCKETS] = {0}, given[BUCKETS] = {0};
    for (unsigned i = 0; i < BUCKETS; i++) {
        own[i] = i < u ? freq[symbol[i]] : 0;
        if (own[i] > size) excess[i] = own[i] - size;
        alias[i] = i;
    }
    unsigned givers = 0; /* the first ones, as the most frequent symbols are */
    while (givers < u && own[givers] > size) givers++;
    for (unsigned low = 0; low < BUCKETS;) {
        if (own[low] >= size || alias[low] != low) {
            low++;
            continue;
        }
        unsigned giver = BUCKETS;
        for (unsigned k = 0; k < givers; k++)
            if (own[k] > size &&
                (giver == BUCKETS || (given[k] + size) * excess[giver] < (given[giver] + size) * excess[k]))
                giver = k;
        const uint32_t needed = size - own[low];
        alias[low] = giver;
        given[giver] += needed;
        own[giver] -= needed;
        if (own[giver] < size && giver < low) low = giver;
    }
}

/* What is looked up by bucket, of at most 64 symbols of which one or more have a frequency; `symbol`: of each bucket, for
 * symbols of more than 8 bits. */
static void fill_lookups(rans_lookups *l, uint16_t symbol[BUCKETS], const uint32_t *freq, size_t n, unsigned prob_bits)
{
    const uint32_t size = (uint32_t)1 << prob_bits >> 6;
    uint32_t own[BUCKETS], next[BUCKETS];
    unsigned alias[BUCKETS];
    const size_t u = by_frequency(freq, n, symbol);
    deal_buckets(freq, symbol, u, size, own, alias);
    memcpy(next, own, sizeof next);
    for (unsigned i = 0; i < BUCKETS; i++) {
        const unsigned from = alias[i];
        /* A bucket without an alias is its own from slot 0 on: the size of a bucket may not fit a byte. */
        l->own[i] = from == i ? 0 : (uint16_t)own[i];
        l->alias[i] = (uint16_t)from;
        l->offset[i] = from == i ? 0 : (uint16_t)(next[from] - own[i]);
        l->freq[i] = (uint16_t)(i < u ? freq[symbol[i]] : 0);
        l->alias_freq[i] = (uint16_t)freq[symbol[from]];
        if (i >= u) symbol[i] = 0;
        l->symbol[i] = (uint8_t)symbol[i];
        if (from != i) next[from] += size - own[i];
    }
}

/* The table's slots, bucket by bucket. */
static void expand_buckets(rans_table *t, size_t n, unsigned prob_bits)
{
    const uint32_t size = (uint32_t)1 << prob_bits >> 6;
    rans_lookups l;
    uint16_t symbol[BUCKETS];
    fill_lookups(&l, symbol, t->freq, n, prob_bits);
    for (unsigned i = 0; i < BUCKETS; i++) {
        uint32_t *slot = t->slot + i * size;
        uint16_t *to = t->symbol + i * size;
        const uint16_t own = symbol[i], other = symbol[l.alias[i]];
        for (uint32_t j = 0; j < l.own[i]; j++) {
            slot[j] = (uint32_t)l.freq[i] << 16 | j;
            to[j] = own;
        }
        for (uint32_t j = l.own[i]; j < size; j++) {
            slot[j] = (uint32_t)l.alias_freq[i] << 16 | (uint16_t)(j + l.offset[i]); /* which can be below 0 */
            to[j] = other;
        }
    }
}

static bool has_buckets(const uint32_t *freq, size_t n)
{
    size_t u = 0;
    for (size_t s = 0; s < n; s++) u += freq[s] != 0;
    return u <= BUCKETS;
}

/* Deals the slots of any number of symbols: each symbol's in strides, ranks by rising slot (as Collet's FSE does). */
static int fill_strides(rans_table *t, size_t n, unsigned prob_bits)
{
    uint32_t *seen = calloc(n, sizeof *seen);
    if (!seen) return BRV_NO_MEMORY;
    const uint32_t slots = (uint32_t)1 << prob_bits, stride = (slots >> 1) + (slots >> 3) + 3;
    uint32_t at = 0;
    for (size_t s = 0; s < n; s++)
        for (uint32_t k = 0; k < t->freq[s]; k++, at = (at + stride) & (slots - 1)) t->symbol[at] = (uint16_t)s;
    for (uint32_t slot = 0; slot < slots; slot++) {
        const uint16_t s = t->symbol[slot];
        t->slot[slot] = t->freq[s] << 16 | seen[s]++;
    }
    free(seen);
    return 0;
}

/* The table slot by slot. */
static int expand(rans_table *t, unsigned bits, unsigned prob_bits)
{
    const size_t n = (size_t)1 << bits, slots = (size_t)1 << prob_bits;
    t->slot = malloc(slots * sizeof *t->slot);
    t->symbol = malloc(slots * sizeof *t->symbol);
    if (!t->slot || !t->symbol) return BRV_NO_MEMORY;
    if (has_buckets(t->freq, n)) expand_buckets(t, n, prob_bits);
    else if (fill_strides(t, n, prob_bits)) return BRV_NO_MEMORY;
    if (prob_bits > 12 || bits > 8) return 0;
    if (!(t->packed = malloc(slots * sizeof *t->packed))) return BRV_NO_MEMORY;
    for (size_t i = 0; i < slots; i++)
        t->packed[i] = ((t->slot[i] >> 16) - 1) << 20 | (t->slot[i] & 0xffff) << 8 | t->symbol[i];
    return 0;
}

static int load_table(rans_table *t, const brv_kernels *k, cursor *c, unsigned bits, unsigned prob_bits)
{
    const size_t n = (size_t)1 << bits;
    t->freq = malloc(n * sizeof *t->freq);
    if (!t->freq) return BRV_NO_MEMORY;
    const int rc = rans_read_frequencies(c, n, prob_bits, t->freq);
    if (rc) return rc;
    if (!k->by_bucket || bits > 8 || !has_buckets(t->freq, n)) return expand(t, bits, prob_bits);
    uint16_t symbol[BUCKETS];
    if (!(t->lookups = calloc(1, sizeof *t->lookups))) return BRV_NO_MEMORY;
    fill_lookups(t->lookups, symbol, t->freq, n, prob_bits);
    return 0;
}

int rans_load(node *nd, const brv_kernels *k, cursor *c)
{
    nd->rans = calloc(nd->tables, sizeof *nd->rans);
    if (!nd->rans) return BRV_NO_MEMORY;
    for (uint32_t i = 0; i < nd->tables; i++) {
        int rc = load_table(&nd->rans[i], k, c, nd->bits, nd->max_len);
        if (rc) return rc;
    }
    return left(c) ? BRV_TRAILING : 0;
}

int rans_prepare_encode(node *nd)
{
    const size_t symbols = (size_t)1 << nd->bits;
    for (uint32_t i = 0; i < nd->tables; i++) {
        rans_table *t = &nd->rans[i];
        if (!t->slot && expand(t, nd->bits, nd->max_len)) return BRV_NO_MEMORY;
        t->step = calloc(symbols, sizeof *t->step);
        t->by_rank = malloc((sizeof *t->by_rank << nd->max_len) + sizeof(uint32_t)); /* it is read by u32 */
        if (!t->step || !t->by_rank) return BRV_NO_MEMORY;
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
        for (uint32_t slot = 0; slot < (uint32_t)1 << nd->max_len; slot++)
            t->by_rank[t->step[t->symbol[slot]].start + (t->slot[slot] & 0xffff)] = (uint16_t)slot;
        rans_lookups *l = t->lookups;
        if (!l) continue;
        memset(l->number, NO_NUMBER, sizeof l->number);
        for (size_t k = 0; k < 64 && l->freq[k]; k++) {
            l->number[l->symbol[k]] = (uint8_t)k;
            l->start[k] = (uint16_t)t->step[l->symbol[k]].start;
        }
    }
    return 0;
}

size_t rans_unexpanded(const node *nd)
{
    size_t bytes = 0;
    for (uint32_t i = 0; nd->rans && i < nd->tables; i++)
        if (!nd->rans[i].slot) bytes += (size_t)8 << nd->max_len;
    return bytes;
}

void rans_free(node *nd)
{
    if (!nd->rans) return;
    for (uint32_t i = 0; i < nd->tables; i++) {
        free(nd->rans[i].symbol);
        free(nd->rans[i].by_rank);
        free(nd->rans[i].lookups);
        free(nd->rans[i].packed);
        free(nd->rans[i].freq);
        free(nd->rans[i].step);
        free(nd->rans[i].slot);
    }
    free(nd->rans);
}

/* The states that an item begins with: 0 or BRV_PAYLOAD. */
static int read_states(const node *nd, cursor *item, uint32_t *x)
{
    const size_t heads = 4 * (size_t)nd->lanes;
    if (left(item) < heads || left(item) & 1) return BRV_PAYLOAD;
    memcpy(x, item->p, heads);
    item->p += heads;
    for (unsigned j = 0; j < nd->lanes; j++)
        if (x[j] >> nd->max_len == 0 || x[j] >> nd->max_len >> 16) return BRV_PAYLOAD;
    return 0;
}

/* Whether decoding ended as encoding began: 0 or BRV_PAYLOAD. */
static int check_end(const node *nd, const cursor *item, const uint32_t *x)
{
    for (unsigned j = 0; j < nd->lanes; j++)
        if (x[j] != (uint32_t)1 << nd->max_len) return BRV_PAYLOAD;
    return left(item) ? BRV_PAYLOAD : 0;
}

int rans_decode(const node *nd, const brv_kernels *k, cursor item, const class_map *map, void *out)
{
    uint32_t x[MAX_LANES];
    int rc = read_states(nd, &item, x);
    uint8_t *to = out;
    for (uint32_t c = 0; !rc && c < nd->tables; c++) {
        rc = k->rans(&nd->rans[c], nd->max_len, nd->container, x, nd->lanes, &item, to, map->count[c]);
        to += map->count[c] * nd->container;
    }
    return rc ? rc : check_end(nd, &item, x);
}

void rans_decode_two(const node *nd, const brv_kernels *k, cursor item[2], const class_map *const map[2],
                     uint8_t *out[2], int rc[2])
{
    uint32_t x[2][MAX_LANES], *const states[2] = {x[0], x[1]};
    for (unsigned b = 0; b < 2; b++) rc[b] = read_states(nd, &item[b], x[b]);
    for (uint32_t c = 0; c < nd->tables; c++) {
        const rans_table *t = &nd->rans[c];
        const size_t n[2] = {map[0]->count[c], map[1]->count[c]}, both = n[0] < n[1] ? n[0] : n[1];
        const bool sound = !rc[0] && !rc[1];
        const size_t done = sound ? k->rans_two(t, nd->max_len, states, nd->lanes, item, out, both) : 0;
        for (unsigned b = 0; b < 2; b++) {
            if (!rc[b]) rc[b] = k->rans(t, nd->max_len, 1, x[b], nd->lanes, &item[b], out[b] + done, n[b] - done);
            out[b] += n[b];
        }
    }
    for (unsigned b = 0; b < 2; b++)
        if (!rc[b]) rc[b] = check_end(nd, &item[b], x[b]);
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
