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
        t->encode[i] = t->len[i] ? next[t->len[i]]++ << 8 | t->len[i] : ABSENT;
    t->bits = t->longest = longest;
    return 0;
}

static void fill_single(const huff_table *t, size_t n, unsigned bits, uint32_t *single)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        if (t->len[i]) {
            unsigned pad = bits - t->len[i];
            uint32_t e = (uint32_t)i << 8 | t->len[i], at = (t->encode[i] >> 8) << pad;
            for (uint32_t j = 0; j < (uint32_t)1 << pad; j++) single[at + j] = e;
            used++;
        }
    if (used == 1) /* the other half decodes to the lone symbol too */
        for (uint32_t j = 0; j < (uint32_t)1 << bits; j++) single[j] = single[0];
}

/* The symbols of a table in the order of their codes, with the lengths of these. */
typedef struct {
    uint64_t *multi;
    unsigned n;
    uint8_t symbol[256], len[256];
} code_order;

/* Fills the entries from `at` on that begin with the codes of n symbols, `used` bits, and have `rest` more. */
static void fill_multi(const code_order *o, uint32_t at, unsigned rest, unsigned used, unsigned n, uint64_t symbols)
{
    const uint32_t end = at + ((uint32_t)1 << rest);
    for (unsigned i = 0; n < 6 && i < o->n && o->len[i] <= rest; i++) {
        const unsigned left = rest - o->len[i];
        fill_multi(o, at, left, used + o->len[i], n + 1, symbols | (uint64_t)o->symbol[i] << (8 * n));
        at += (uint32_t)1 << left;
    }
    for (; at < end; at++) o->multi[at] = symbols << 16 | (uint64_t)n << 8 | used;
}

static void order_codes(const huff_table *t, size_t n, code_order *o)
{
    o->n = 0;
    for (unsigned len = 1; len <= t->longest; len++)
        for (size_t i = 0; i < n; i++)
            if (t->len[i] == len) {
                o->symbol[o->n] = (uint8_t)i;
                o->len[o->n++] = (uint8_t)len;
            }
    if (o->n > 1) return;
    /* The other half decodes to the lone symbol too. */
    o->symbol[1] = o->symbol[0];
    o->len[o->n++] = 1;
}

static int build(const node *nd, huff_table *t, size_t n)
{
    int rc = assign_codes(t, n);
    if (rc) return rc;
    if (nd->bits <= 8) { /* a short stream does not repay a large table */
        unsigned want = nd->count < 4096 ? 8 : 11;
        if (t->bits < want) t->bits = want;
    }
    const size_t entries = (size_t)1 << t->bits;
    if (nd->bits > 8) {
        if (!(t->single = malloc(entries * sizeof *t->single))) return BRV_NO_MEMORY;
        fill_single(t, n, t->bits, t->single);
        return 0;
    }
    code_order order;
    if (!(t->multi = malloc(entries * sizeof *t->multi))) return BRV_NO_MEMORY;
    order_codes(t, n, &order);
    order.multi = t->multi;
    fill_multi(&order, 0, t->bits, 0, 0, 0);
    return 0;
}

int huff_load(node *nd, cursor *c)
{
    const size_t n = (size_t)1 << nd->bits;
    nd->huff = calloc(nd->tables, sizeof *nd->huff);
    if (!nd->huff) return BRV_NO_MEMORY;
    nibble_reader r = {c->p, left(c), 0};
    for (uint32_t i = 0; i < nd->tables; i++) {
        huff_table *t = &nd->huff[i];
        t->len = calloc(n, 1);
        t->encode = calloc(n, sizeof *t->encode);
        if (!t->len || !t->encode) return BRV_NO_MEMORY;
        int rc = read_lengths(&r, n, nd->max_len, t->len);
        if (!rc) rc = build(nd, t, n);
        if (rc) return rc;
    }
    if (r.at & 1 && get_nibble(&r) != 0) return BRV_TABLE;
    return r.at == r.n * 2 ? 0 : BRV_TRAILING;
}

/* The codes of all pairs of the symbols between the first and the last that a table has. */
static int pair_codes(huff_table *t, unsigned first, unsigned last)
{
    const unsigned bits = bits_for(last - first + 1);
    t->pair_code = calloc((size_t)1 << 2 * bits, sizeof *t->pair_code);
    t->pair_len = calloc((size_t)1 << 2 * bits, 1);
    if (!t->pair_code || !t->pair_len) return BRV_NO_MEMORY;
    t->pair_first = (uint8_t)first;
    t->pair_bits = (uint8_t)bits;
    for (unsigned later = first; later <= last; later++)
        for (unsigned earlier = first; t->len[later] && earlier <= last; earlier++) {
            if (!t->len[earlier]) continue;
            const uint32_t code = t->encode[earlier] >> 8 << t->len[later] | t->encode[later] >> 8;
            const size_t at = (earlier - first) | (later - first) << bits;
            t->pair_code[at] = code | PAIR_PRESENT;
            t->pair_len[at] = t->len[earlier] + t->len[later];
        }
    return 0;
}

int huff_prepare_encode(node *nd)
{
    if (nd->bits > 8) return 0;
    for (uint32_t i = 0; i < nd->tables; i++) {
        huff_table *t = &nd->huff[i];
        unsigned first = 0, last = (1u << nd->bits) - 1;
        while (!t->len[first]) first++;
        while (!t->len[last]) last--;
        /* two codes, and a bit to spare; words enough to repay the making */
        if (t->longest > 13 || nd->count / nd->tables < (uint64_t)4 << 2 * bits_for(last - first + 1)) continue;
        if (pair_codes(t, first, last)) return BRV_NO_MEMORY;
    }
    return 0;
}

void huff_free(node *nd)
{
    if (!nd->huff) return;
    for (uint32_t i = 0; i < nd->tables; i++) {
        free(nd->huff[i].multi);
        free(nd->huff[i].single);
        free(nd->huff[i].len);
        free(nd->huff[i].encode);
        free(nd->huff[i].pair_code);
        free(nd->huff[i].pair_len);
    }
    free(nd->huff);
}

/* ---- literals ------------------------------------------------------------------------------ */

/* Where stream j's words of a class of m words begin. */
static size_t deal(size_t m, unsigned streams, unsigned j)
{
    const size_t q = (m + streams - 1) / streams * j;
    return q < m ? q : m;
}

/* The m words of one class for alphabets above 8 bits, one word a look-up. */
static int decode_wide(const huff_table *t, huff_stream *st, unsigned streams, w16 *out, size_t m)
{
    const unsigned tb = t->bits;
    for (unsigned j = 0; j < streams; j++) {
        huff_stream *s = &st[j];
        const size_t have = (size_t)(s->end - s->start);
        for (size_t i = deal(m, streams, j), to = deal(m, streams, j + 1); i < to; i++) {
            const size_t lowbit = s->bit > tb ? s->bit - tb : 0, byte = lowbit >> 3;
            uint64_t v = 0;
            if (byte + 8 <= have) v = load64(s->start + byte);
            else if (byte < have) memcpy(&v, s->start + byte, have - byte);
            const unsigned take = (unsigned)(s->bit - lowbit); /* fewer than tb only at the very end */
            const uint32_t e = t->single[((v >> (lowbit & 7)) & mask_of(take)) << (tb - take)];
            if ((e & 0xff) > s->bit) return BRV_PAYLOAD;
            out[i] = (uint16_t)(e >> 8);
            s->bit -= e & 0xff;
        }
    }
    return 0;
}

static int open_streams(const node *nd, cursor *item, huff_stream *st)
{
    uint64_t len[MAX_STREAMS];
    for (unsigned j = 0; j + 1 < nd->streams; j++)
        if (get_varint(item, &len[j])) return BRV_PAYLOAD;
    for (unsigned j = 0; j < nd->streams; j++) {
        if (j + 1 == nd->streams) len[j] = left(item);
        if (len[j] > left(item)) return BRV_PAYLOAD;
        st[j] = (huff_stream){.start = item->p, .end = item->p + len[j]};
        item->p += len[j];
        if (!len[j]) continue;
        if (st[j].end[-1] == 0) return BRV_PAYLOAD;
        st[j].bit = (size_t)len[j] * 8 - 1 - (size_t)(__builtin_clz(st[j].end[-1]) - 24);
    }
    return 0;
}

/* A stream has bytes if and only if it has words. */
static bool right_streams_empty(const node *nd, const class_map *map, const huff_stream *st)
{
    for (unsigned j = 0; j < nd->streams; j++) {
        bool words = false;
        for (uint32_t c = 0; c < nd->tables; c++)
            words |= deal(map->count[c], nd->streams, j) < map->count[c];
        if (words != (st[j].start < st[j].end)) return false;
    }
    return true;
}

int huff_decode(const node *nd, const brv_kernels *k, cursor item, const class_map *map, void *out, brv_scratch *s)
{
    const uint8_t *floor = item.p;
    huff_stream st[MAX_STREAMS];
    if (open_streams(nd, &item, st) || !right_streams_empty(nd, map, st)) return BRV_PAYLOAD;
    uint8_t *to = out;
    for (uint32_t c = 0; c < nd->tables; c++) {
        const size_t n = map->count[c];
        int rc = nd->bits <= 8 ? k->huff8(&nd->huff[c], st, nd->streams, floor, to, n, &s->ahead)
                               : decode_wide(&nd->huff[c], st, nd->streams, (w16 *)to, n);
        if (rc) return rc;
        to += n * nd->container;
    }
    for (unsigned j = 0; j < nd->streams; j++)
        if (st[j].bit) return BRV_PAYLOAD;
    return 0;
}

/* Encode stream j of words in class order into out, which has room; returns bytes, 0 if a word has no code. */
static size_t stream_encode(const node *nd, const brv_kernels *k, const class_map *map, const uint8_t *ordered, unsigned j,
                            uint8_t *out)
{
    bit_writer bw = {0, 0, out};
    bool any = false;
    const uint8_t *end = ordered + map->words * nd->container;
    for (uint32_t c = nd->tables; c-- > 0;) {
        const size_t n = map->count[c], from = deal(n, nd->streams, j), to = deal(n, nd->streams, j + 1);
        end -= n * nd->container;
        if (from == to) continue;
        any = true;
        if (!k->huff_encode(&bw, &nd->huff[c], nd->container, end, from, to)) return SIZE_MAX;
    }
    if (any) *bw.out++ = (uint8_t)(bw.acc | 1u << bw.n); /* end mark */
    return (size_t)(bw.out - out);
}

int huff_encode(const node *nd, const brv_kernels *k, const void *words, const class_map *map, uint8_t *out, size_t cap,
                size_t *len)
{
    /* The streams go behind room for their lengths, then move up. */
    if (cap < map->words * MAX_CODE / 8 + map->words + 16 * (size_t)MAX_STREAMS) return BRV_NO_ROOM;
    const size_t base = 5 * (size_t)MAX_STREAMS;
    size_t at = base, head = 0;
    for (unsigned j = 0; j < nd->streams; j++) {
        const size_t n = stream_encode(nd, k, map, words, j, out + at);
        if (n == SIZE_MAX) return BRV_NOT_APPLICABLE;
        if (j + 1 < nd->streams) head += put_varint(out + head, n);
        at += n;
    }
    memmove(out + head, out + base, at - base);
    *len = head + at - base;
    return 0;
}
