/* Canonical Huffman: code lengths, tables, literals. */
#include "internal.h"

/* ---- code lengths -------------------------------------------------------------------------- */

typedef struct { uint64_t weight; uint32_t symbol; } leaf;

static int by_weight(const void *a, const void *b)
{
    const leaf *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? -1 : 1;
    return x->symbol < y->symbol ? -1 : x->symbol > y->symbol;
}

int brv_huffman_lengths(const uint64_t *hist, size_t n, unsigned max_len, uint8_t *len)
{
    if (n == 0 || n > 65536 || max_len < 1 || max_len > MAX_CODE) return BRV_ARGUMENT;
    memset(len, 0, n);
    leaf *lv = malloc(n * sizeof *lv);
    if (!lv) return BRV_NO_MEMORY;
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (hist[i]) lv[m++] = (leaf){hist[i], (uint32_t)i};
    if (m <= 1) {
        len[m ? lv[0].symbol : 0] = 1;
        free(lv);
        return 0;
    }
    if (m > (size_t)1 << max_len) {
        free(lv);
        return BRV_ARGUMENT;
    }
    qsort(lv, m, sizeof *lv, by_weight);
    /* Level by level, a list of leaves and of packages of two neighbours of the level before. Only
     * whether an item is a leaf has to be remembered. */
    uint64_t *prev = malloc(2 * m * sizeof *prev), *cur = malloc(2 * m * sizeof *cur);
    uint8_t *is_leaf = calloc((size_t)max_len * 2 * m, 1);
    if (!prev || !cur || !is_leaf) {
        free(lv); free(prev); free(cur); free(is_leaf);
        return BRV_NO_MEMORY;
    }
    size_t np = 0;
    for (unsigned level = 0; level < max_len; level++) {
        uint8_t *flag = is_leaf + (size_t)level * 2 * m;
        size_t a = 0, b = 0, pairs = np / 2, nc = 0;
        while (a < m || b < pairs) {
            uint64_t package = b < pairs ? prev[2 * b] + prev[2 * b + 1] : 0;
            if (b == pairs || (a < m && lv[a].weight <= package)) {
                flag[nc] = 1;
                cur[nc++] = lv[a++].weight;
            } else {
                cur[nc++] = package;
                b++;
            }
        }
        uint64_t *t = prev;
        prev = cur;
        cur = t;
        np = nc;
    }
    size_t take = 2 * m - 2;
    for (unsigned level = max_len; level-- > 0 && take;) {
        const uint8_t *flag = is_leaf + (size_t)level * 2 * m;
        size_t leaves = 0;
        for (size_t i = 0; i < take; i++) leaves += flag[i];
        for (size_t i = 0; i < leaves; i++) len[lv[i].symbol]++;
        take = 2 * (take - leaves);
    }
    free(lv); free(prev); free(cur); free(is_leaf);
    return 0;
}

/* ---- serialised tables --------------------------------------------------------------------- */

typedef struct { uint8_t *out; size_t cap, n; } nibbles; /* n counts nibbles */

static void put_nibble(nibbles *w, unsigned v)
{
    if (w->n / 2 < w->cap) {
        if (w->n & 1) w->out[w->n / 2] |= (uint8_t)(v << 4);
        else w->out[w->n / 2] = (uint8_t)v;
    }
    w->n++;
}

size_t brv_huffman_write(const uint8_t *len, size_t n, size_t tables, uint8_t *out, size_t cap)
{
    nibbles w = {out, cap, 0};
    for (size_t t = 0; t < tables; t++, len += n)
        for (size_t i = 0; i < n;) {
            if (len[i]) {
                put_nibble(&w, len[i++]);
                continue;
            }
            size_t j = i;
            while (j < n && !len[j]) j++;
            put_nibble(&w, 0);
            size_t run = j - i - 1;
            for (; run > 7; run >>= 3) put_nibble(&w, (unsigned)(run & 7) | 8);
            put_nibble(&w, (unsigned)run);
            i = j;
        }
    size_t bytes = (w.n + 1) / 2;
    return bytes <= cap ? bytes : 0;
}

typedef struct { const uint8_t *p; size_t n, at; } nibble_reader;

static int get_nibble(nibble_reader *r) /* -1 at the end */
{
    if (r->at >= r->n * 2) return -1;
    int v = r->at & 1 ? r->p[r->at / 2] >> 4 : r->p[r->at / 2] & 15;
    r->at++;
    return v;
}

static int read_lengths(nibble_reader *r, size_t n, unsigned max_len, uint8_t *len)
{
    memset(len, 0, n);
    for (size_t i = 0; i < n;) {
        int v = get_nibble(r);
        if (v < 0) return BRV_TRUNCATED;
        if (v) {
            if ((unsigned)v > max_len) return BRV_TABLE;
            len[i++] = (uint8_t)v;
            continue;
        }
        size_t run = 0;
        for (unsigned shift = 0;; shift += 3) {
            if ((v = get_nibble(r)) < 0) return BRV_TRUNCATED;
            if (shift > 18) return BRV_TABLE;
            run |= (size_t)(v & 7) << shift;
            if (!(v & 8)) {
                if (v == 0 && shift) return BRV_VARINT;
                break;
            }
        }
        if (run + 1 > n - i) return BRV_TABLE;
        i += run + 1;
    }
    return 0;
}

/* ---- decode tables ------------------------------------------------------------------------- */

/* Codes from lengths; checks completeness. */
static int assign_codes(huff_table *t, size_t n)
{
    uint32_t per[MAX_CODE + 2] = {0}, next[MAX_CODE + 2] = {0};
    unsigned longest = 0;
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        if (t->len[i]) {
            per[t->len[i]]++;
            used++;
            if (t->len[i] > longest) longest = t->len[i];
        }
    if (used == 0) return BRV_TABLE;
    uint32_t code = 0;
    uint64_t kraft = 0;
    for (unsigned l = 1; l <= MAX_CODE; l++) {
        code = (code + per[l - 1]) << 1;
        next[l] = code;
        kraft += (uint64_t)per[l] << (MAX_CODE - l);
    }
    if (used == 1 ? per[1] != 1 : kraft != (uint64_t)1 << MAX_CODE) return BRV_TABLE;
    for (size_t i = 0; i < n; i++)
        if (t->len[i]) t->code[i] = (uint16_t)next[t->len[i]]++;
    t->bits = longest;
    return 0;
}

static void fill_single(const huff_table *t, size_t n, unsigned bits, uint32_t *single)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        if (t->len[i]) {
            unsigned pad = bits - t->len[i];
            uint32_t e = (uint32_t)i << 8 | t->len[i], at = (uint32_t)t->code[i] << pad;
            for (uint32_t j = 0; j < (uint32_t)1 << pad; j++) single[at + j] = e;
            used++;
        }
    if (used == 1) /* the other half decodes to the lone symbol too */
        for (uint32_t j = 0; j < (uint32_t)1 << bits; j++) single[j] = single[0];
}

static void fill_multi(const uint32_t *single, unsigned bits, uint64_t *multi)
{
    const uint32_t msk = ((uint32_t)1 << bits) - 1;
    for (uint32_t i = 0; i <= msk; i++) {
        unsigned used = 0, n = 0;
        uint64_t symbols = 0;
        while (n < 6) {
            uint32_t e = single[(i << used) & msk];
            if (used + (e & 0xff) > bits) break;
            symbols |= (uint64_t)(e >> 8) << (8 * n++);
            used += e & 0xff;
        }
        multi[i] = symbols << 16 | (uint64_t)n << 8 | used;
    }
}

static int build(node *nd, huff_table *t, size_t n, size_t *memory)
{
    int rc = assign_codes(t, n);
    if (rc) return rc;
    if (nd->bits <= 8) { /* a short stream does not repay a large table */
        unsigned want = nd->count < 4096 ? 8 : 11;
        if (t->bits < want) t->bits = want;
    }
    size_t entries = (size_t)1 << t->bits;
    *memory += entries * (nd->bits <= 8 ? 8 : 4);
    if (*memory > MAX_PREPARED) return BRV_LIMIT;
    uint32_t *single = malloc(entries * sizeof *single);
    if (!single) return BRV_NO_MEMORY;
    fill_single(t, n, t->bits, single);
    if (nd->bits > 8) {
        t->single = single;
        return 0;
    }
    t->multi = malloc(entries * sizeof *t->multi);
    if (t->multi) fill_multi(single, t->bits, t->multi);
    free(single);
    return t->multi ? 0 : BRV_NO_MEMORY;
}

int huff_load(node *nd, cursor *c, size_t *memory)
{
    const size_t n = (size_t)1 << nd->bits;
    *memory += nd->tables * (n * 3 + sizeof(huff_table));
    if (*memory > MAX_PREPARED) return BRV_LIMIT;
    nd->huff = calloc(nd->tables, sizeof *nd->huff);
    if (!nd->huff) return BRV_NO_MEMORY;
    nibble_reader r = {c->p, left(c), 0};
    for (uint32_t i = 0; i < nd->tables; i++) {
        huff_table *t = &nd->huff[i];
        t->len = calloc(n, 1);
        t->code = calloc(n, sizeof *t->code);
        if (!t->len || !t->code) return BRV_NO_MEMORY;
        int rc = read_lengths(&r, n, nd->max_len, t->len);
        if (!rc) rc = build(nd, t, n, memory);
        if (rc) return rc;
    }
    if (r.at & 1 && get_nibble(&r) != 0) return BRV_TABLE;
    if (r.at != r.n * 2) return BRV_TRAILING;
    c->p = c->end;
    return 0;
}

void huff_free(node *nd)
{
    if (!nd->huff) return;
    for (uint32_t i = 0; i < nd->tables; i++) {
        free(nd->huff[i].multi);
        free(nd->huff[i].single);
        free(nd->huff[i].len);
        free(nd->huff[i].code);
    }
    free(nd->huff);
}

/* ---- literals ------------------------------------------------------------------------------ */

/* Where stream j's words begin. */
static size_t deal(size_t m, unsigned streams, unsigned j)
{
    size_t q = (m + streams - 1) / streams;
    q = ((q + 255) & ~(size_t)255) * j;
    return q < m ? q : m;
}

/* Decode words at from..to-1 of the range from one stream whose `bit` lowest bits are still to be
 * taken, all with one table; any alphabet. Returns the bits left, SIZE_MAX on damage. */
static size_t run_decode(const huff_table *t, unsigned container, const uint8_t *start, size_t have, size_t bit,
                         void *out, size_t from, size_t to)
{
    const unsigned tb = t->bits;
    for (size_t i = from; i < to; i++) {
        size_t lowbit = bit > tb ? bit - tb : 0, byte = lowbit >> 3;
        uint64_t v = 0;
        if (byte + 8 <= have) v = load64(start + byte);
        else if (byte < have) memcpy(&v, start + byte, have - byte);
        v >>= lowbit & 7;
        unsigned take = (unsigned)(bit - lowbit), sym, n;
        size_t idx = (size_t)(v & mask_of(take)) << (tb - take);
        if (t->multi) {
            sym = (unsigned)(t->multi[idx] >> 16) & 0xff;
            n = t->len[sym];
        } else {
            sym = t->single[idx] >> 8;
            n = t->single[idx] & 0xff;
        }
        if (n > bit) return SIZE_MAX;
        store_word(out, container, i, sym);
        bit -= n;
    }
    return bit;
}

int huff_decode(const node *nd, const brv_kernels *k, cursor item, uint64_t lo, size_t m, void *out, brv_scratch *s)
{
    const uint8_t *floor = item.p, *classes = NULL;
    const size_t mark = s->used;
    if (nd->tables > 1) {
        int rc = classes_read(nd, k, &item, lo, m, s, &classes);
        if (rc) return rc;
    }
    huff_stream st[MAX_STREAMS];
    uint64_t len[MAX_STREAMS];
    for (unsigned j = 0; j + 1 < nd->streams; j++)
        if (get_varint(&item, &len[j])) return BRV_PAYLOAD;
    for (unsigned j = 0; j < nd->streams; j++) {
        if (j + 1 == nd->streams) len[j] = left(&item);
        if (len[j] > left(&item)) return BRV_PAYLOAD;
        st[j].start = item.p;
        st[j].end = item.p += len[j];
        st[j].words = deal(m, nd->streams, j + 1) - deal(m, nd->streams, j);
    }
    if (nd->bits <= 8 && nd->tables == 1) return k->huff8(&nd->huff[0], st, nd->streams, floor, out);
    for (unsigned j = 0; j < nd->streams; j++) {
        size_t from = deal(m, nd->streams, j), to = deal(m, nd->streams, j + 1);
        size_t have = (size_t)(st[j].end - st[j].start);
        if (from == to) {
            if (have) return BRV_PAYLOAD;
            continue;
        }
        if (!have || st[j].end[-1] == 0) return BRV_PAYLOAD;
        size_t bit = have * 8 - 1 - (size_t)(__builtin_clz(st[j].end[-1]) - 24);
        while (from < to) {
            size_t stop = to;
            const huff_table *t = nd->huff;
            if (classes) {
                uint64_t seg = (lo + from) / nd->segment, seg_end = (seg + 1) * nd->segment - lo;
                t += classes[seg - lo / nd->segment];
                if (seg_end < stop) stop = (size_t)seg_end;
            }
            bit = run_decode(t, nd->container, st[j].start, have, bit, out, from, stop);
            if (bit == SIZE_MAX) return BRV_PAYLOAD;
            from = stop;
        }
        if (bit) return BRV_PAYLOAD;
    }
    s->used = mark;
    return 0;
}

/* Encode words[from..to) into out, which has room; returns bytes, 0 if a word has no code. */
static size_t stream_encode(const node *nd, const void *words, uint64_t lo, size_t from, size_t to, uint8_t *out)
{
    uint64_t acc = 0;
    unsigned n = 0;
    size_t at = 0;
    const huff_table *t = nd->huff;
    uint64_t seg_start = 0; /* first word of the range in the current segment, 0 = recompute */
    for (size_t i = to; i-- > from;) {
        if (nd->tables > 1 && (i + 1 == to || lo + i < seg_start)) {
            uint64_t seg = (lo + i) / nd->segment;
            seg_start = seg * nd->segment;
            t = nd->huff + nd->classes[seg];
        }
        uint64_t w = load_word(words, nd->container, i);
        if (!t->len[w]) return 0;
        acc |= (uint64_t)t->code[w] << n;
        n += t->len[w];
        if (n >= 32) {
            memcpy(out + at, &acc, 4);
            at += 4;
            acc >>= 32;
            n -= 32;
        }
    }
    acc |= (uint64_t)1 << n; /* end mark */
    for (n++;; n -= 8) {
        out[at++] = (uint8_t)acc;
        acc >>= 8;
        if (n <= 8) break;
    }
    return at;
}

int huff_encode(const node *nd, const brv_kernels *k, const void *words, uint64_t lo, size_t m, uint8_t *out,
                size_t cap, size_t *len)
{
    /* The streams go behind room for their lengths, then move up. */
    size_t head = 0, worst = m * MAX_CODE / 8 + 16 * (size_t)MAX_STREAMS + m;
    if (cap < worst) return BRV_NO_ROOM;
    if (nd->tables > 1) head = classes_write(nd, k, lo, m, out);
    const size_t base = head + 5 * (size_t)MAX_STREAMS;
    size_t at = base;
    for (unsigned j = 0; j < nd->streams; j++) {
        size_t from = deal(m, nd->streams, j), to = deal(m, nd->streams, j + 1), n = 0;
        if (from < to && !(n = stream_encode(nd, words, lo, from, to, out + at))) return BRV_NOT_APPLICABLE;
        if (j + 1 < nd->streams) head += put_varint(out + head, n);
        at += n;
    }
    memmove(out + head, out + base, at - base);
    *len = head + at - base;
    return 0;
}
