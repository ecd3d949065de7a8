/* D: from bytes to words to payloads; and what the synthesiser asks about the words on the way. */
#include "internal.h"

#include <zstd.h>

#define ZSTD_LEVEL 19

typedef struct {
    const brv_program *p;
    brv_scratch *s;
    uint8_t *out; /* next byte of the payload */
    uint8_t *end;
    brv_status *st;
    bool ordered; /* the words of the coded literal that comes next are in class order already */
    /* analysis: stop at this node and hand out its words */
    uint32_t target;
    void *found;
    size_t n_found;
    uint64_t found_lo;
} encoder;

enum { NO_TARGET = UINT32_MAX };

#define NOT(i, what) return fail(e->st, BRV_NOT_APPLICABLE, (int)(i), what)

static int encode_node(encoder *e, uint32_t i, uint64_t lo, uint64_t hi, void *words);

/* Analysis follows only the path to its target. */
static bool towards(const encoder *e, uint32_t i)
{
    return e->target == NO_TARGET || (i <= e->target && e->target < e->p->nodes[i].end);
}

static int put_fixed(encoder *e, uint32_t i, const void *words, size_t m, unsigned w)
{
    const size_t bytes = sliced_size(m, w);
    if ((size_t)(e->end - e->out) < bytes) return fail(e->st, BRV_NO_ROOM, (int)i, "the output buffer is too small");
    e->p->k->pack(words, m, w, e->p->nodes[i].container, e->out);
    e->out += bytes;
    return 0;
}

static int sparse_encode(encoder *e, uint32_t i, const void *words, size_t m, uint8_t *out, size_t cap, size_t *len)
{
    enum { COUNT = 5, GAP = 3 }; /* bytes they take at most, for m is at most 2^20 */
    const node *nd = &e->p->nodes[i];
    const brv_kernels *k = e->p->k;
    const size_t mark = e->s->used, c = nd->container;
    uint8_t *odd = scratch_take(e->s, m * c);
    size_t n = 0, at = 0, tail = COUNT; /* the gaps go behind room for their number, then move up */
    for (size_t j = 0; (j += k->find_other((const uint8_t *)words + j * c, nd->container, nd->word, m - j)) < m; j++) {
        if (cap < tail + GAP) return BRV_NO_ROOM;
        tail += put_varint(out + tail, j - at);
        store_word(odd, nd->container, n++, load_word(words, nd->container, j));
        at = j + 1;
    }
    const size_t head = put_varint(out, n), gaps = tail - COUNT, rest = nd->bits > 1 ? sliced_size(n, nd->bits) : 0;
    if (cap < COUNT + gaps + rest) return BRV_NO_ROOM;
    memmove(out + head, out + COUNT, gaps);
    if (rest) k->pack(odd, n, nd->bits, nd->container, out + head + gaps);
    *len = head + gaps + rest;
    e->s->used = mark;
    return 0;
}

static int zstd_encode(encoder *e, uint32_t i, const void *words, size_t m, uint8_t *out, size_t cap, size_t *len)
{
    const node *nd = &e->p->nodes[i];
    const size_t bytes = sliced_size(m, nd->bits), mark = e->s->used;
    if (!e->s->cctx && !(e->s->cctx = ZSTD_createCCtx())) return BRV_NO_MEMORY;
    uint8_t *sliced = scratch_take(e->s, bytes);
    e->p->k->pack(words, m, nd->bits, nd->container, sliced);
    *len = ZSTD_compressCCtx(e->s->cctx, out, cap, sliced, bytes, ZSTD_LEVEL);
    e->s->used = mark;
    return ZSTD_isError(*len) ? BRV_NO_ROOM : 0;
}

static int coded_encode(encoder *e, const node *nd, uint64_t lo, const void *words, size_t m, uint8_t *out, size_t cap,
                        size_t *len)
{
    const brv_kernels *k = e->p->k;
    const size_t mark = e->s->used;
    class_map map;
    if (cap < m + 64) return BRV_NO_ROOM; /* of which the classes take less than a sixteenth */
    const size_t head = classes_write(nd, k, lo, m, out, &map);
    if (map.classes && !e->ordered) {
        void *ordered = scratch_take(e->s, m * nd->container);
        class_order(&map, words, ordered, nd->container);
        words = ordered;
    }
    e->ordered = false;
    out += head;
    cap -= head;
    int rc = nd->enc == ENC_HUFFMAN ? huff_encode(nd, k, words, &map, out, cap, len)
             : nd->enc == ENC_RANS  ? rans_encode(nd, e->p->k, words, &map, out, cap, len, e->s)
                                    : tunstall_encode(nd, k, words, &map, out, cap, len, e->s);
    *len += head;
    e->s->used = mark;
    return rc;
}

static int encode_lit(encoder *e, uint32_t i, uint64_t lo, size_t m, void *words)
{
    const node *nd = &e->p->nodes[i];
    const brv_kernels *k = e->p->k;
    if (nd->enc == ENC_RAW) return put_fixed(e, i, words, m, nd->bits);
    if (nd->enc == ENC_PACK) {
        if (nd->word) k->map(words, nd->container, nd->bits, FN_ADD, nd->word, true, m);
        for (size_t j = 0; j < m; j++)
            if (load_word(words, nd->container, j) >> nd->k) NOT(i, "a word does not fit the packed width");
        return put_fixed(e, i, words, m, nd->k);
    }
    /* The item goes behind room for its length, as it will mostly be, then moves to where it belongs. */
    const size_t most = 5, room = m < 1 << 8 ? 1 : m < 1 << 15 ? 2 : 3;
    size_t len = 0, cap = (size_t)(e->end - e->out);
    if (cap < most) return fail(e->st, BRV_NO_ROOM, (int)i, "the output buffer is too small");
    cap -= most;
    uint8_t *item = e->out + room;
    int rc;
    if (nd->rans && !nd->rans->step) return fail(e->st, BRV_ARGUMENT, (int)i, "the program is not prepared for encoding");
    if (nd->tables > 1 && (!nd->classes || nd->n_classes < (lo + m - 1) / nd->segment + 1))
        return fail(e->st, BRV_ARGUMENT, (int)i, "the classes of the segments are not set");
    if (nd->tables) rc = coded_encode(e, nd, lo, words, m, item, cap, &len);
    else if (nd->enc == ENC_ZSTD) rc = zstd_encode(e, i, words, m, item, cap, &len);
    else rc = sparse_encode(e, i, words, m, item, cap, &len);
    if (rc) return fail(e->st, rc, (int)i, rc == BRV_NOT_APPLICABLE ? "a word has no code" : "literal not encoded");
    uint8_t length[10];
    const size_t head = put_varint(length, len);
    if (head != room) memmove(e->out + head, item, len);
    memcpy(e->out, length, head);
    e->out += head + len;
    return 0;
}

static int encode_concat(encoder *e, uint32_t i, uint64_t lo, uint64_t hi, uint8_t *words)
{
    const brv_program *p = e->p;
    const node *nd = &p->nodes[i];
    uint64_t start = 0;
    for (uint32_t c = i + 1; c < nd->end; c = p->nodes[c].end) {
        const uint64_t stop = start + p->nodes[c].count;
        const uint64_t a = lo > start ? lo : start, b = hi < stop ? hi : stop;
        if (a < b && towards(e, c)) {
            int rc = encode_node(e, c, a - start, b - start, words + (a - lo) * nd->container);
            if (rc) return rc;
        }
        start = stop;
    }
    return 0;
}

static int check_repeat(encoder *e, uint32_t i, uint64_t lo, size_t m, const uint8_t *words)
{
    const node *nd = &e->p->nodes[i];
    const uint64_t period = nd->count / nd->times;
    const size_t c = nd->container;
    for (size_t done = 0; done < m;) {
        const uint64_t at = (lo + done) % period;
        const size_t n = m - done < period - at ? m - done : (size_t)(period - at);
        if (memcmp(words + done * c, (const uint8_t *)nd->repeated + at * c, n * c)) NOT(i, "the words do not repeat");
        done += n;
    }
    return 0;
}

static int encode_scan(encoder *e, uint32_t i, uint64_t lo, uint64_t hi, void *words)
{
    const node *nd = &e->p->nodes[i];
    const size_t m = (size_t)(hi - lo), bytes = (nd->bits + 7u) / 8, c = nd->container;
    if ((size_t)(e->end - e->out) < bytes) return fail(e->st, BRV_NO_ROOM, (int)i, "the output buffer is too small");
    const uint64_t anchor = load_word(words, c, 0), msk = mask_of(nd->bits);
    memcpy(e->out, &anchor, bytes);
    e->out += bytes;
    if (m == 1) return 0;
    uint64_t prev = anchor;
    for (size_t j = 1; j < m; j++) {
        const uint64_t w = load_word(words, c, j);
        store_word(words, c, j - 1, nd->fn == SCAN_XOR ? w ^ prev : (w - prev) & msk);
        prev = w;
    }
    return encode_node(e, i + 1, lo, hi - 1, words);
}

/* Columns that are segments go straight to their places in class order. */
static int encode_transpose(encoder *e, uint32_t i, uint64_t lo, size_t m, const uint8_t *words)
{
    const node *nd = &e->p->nodes[i], *child = &e->p->nodes[i + 1];
    const size_t c = nd->container, columns = (size_t)nd->times, rows = m / columns, whole = rows * columns;
    const size_t mark = e->s->used;
    uint8_t *t = scratch_take(e->s, m * c);
    size_t *to = NULL;
    if (e->target == NO_TARGET && child->classes && !child->columns && child->segment == rows && lo % rows == 0 && whole == m &&
        (lo + m) / rows <= child->n_classes) {
        class_map map;
        classes_map(child, lo, m, &map);
        to = scratch_take(e->s, columns * sizeof *to);
        class_places(&map, to);
        e->ordered = true;
    }
    e->p->k->transpose(words, NULL, t, to, nd->container, rows, columns);
    memcpy(t + whole * c, words + whole * c, (m - whole) * c);
    int rc = encode_node(e, i + 1, lo, lo + m, t);
    if (!e->found) e->s->used = mark;
    return rc;
}

static int encode_palette(encoder *e, uint32_t i, uint64_t lo, size_t m, const void *words)
{
    const node *nd = &e->p->nodes[i], *child = &e->p->nodes[i + 1];
    const size_t mark = e->s->used;
    void *places = scratch_take(e->s, m * child->container);
    if (!e->p->k->find_places(places, child->container, words, nd->container, nd->palette, nd->colours, m))
        NOT(i, "a word is not in the palette");
    int rc = encode_node(e, i + 1, lo, lo + m, places);
    if (!e->found) e->s->used = mark;
    return rc;
}

static int encode_select(encoder *e, uint32_t i, uint64_t lo, size_t m, const void *words)
{
    const node *nd = &e->p->nodes[i];
    const uint32_t child = e->p->nodes[i + 1].end;
    const size_t mark = e->s->used;
    uint8_t *mask = scratch_take(e->s, m);
    void *next = scratch_take(e->s, m * nd->container);
    const size_t n = e->p->k->gather(words, nd->container, nd->word, mask, next, m);
    int rc = towards(e, i + 1) ? encode_node(e, i + 1, lo, lo + m, mask) : 0;
    if (!rc && n && towards(e, child)) rc = encode_node(e, child, lo, lo + n, next);
    if (!e->found) e->s->used = mark;
    return rc;
}

/* A Merge that a single pass over its words splits; they are not written to. */
static int encode_joined(encoder *e, uint32_t i, const joined *j, unsigned rotate, uint64_t lo, uint64_t hi,
                         const void *words)
{
    const brv_program *p = e->p;
    const node *nd = &p->nodes[i];
    const size_t m = (size_t)(hi - lo), mark = e->s->used, bytes = sliced_size(m, p->nodes[j->rest].bits);
    uint8_t *top = scratch_take(e->s, m), *symbols = scratch_take(e->s, m), *field = scratch_take(e->s, m);
    uint8_t *rest = scratch_take(e->s, bytes);
    p->k->split(words, nd->container, m, rotate, j->t, p->nodes[j->rest].bits, top, symbols, rest);
    unsigned below = j->t;
    for (uint32_t c = i + 1; c < j->symbol; c = p->nodes[c].end) {
        below -= p->nodes[c].bits;
        p->k->field(field, 1, top, 1, below, mask_of(p->nodes[c].bits), m);
        const int rc = encode_node(e, c, lo, hi, field);
        if (rc) return rc;
    }
    const int rc = encode_node(e, j->symbol, lo, hi, symbols);
    if (rc) return rc;
    if ((size_t)(e->end - e->out) < bytes) return fail(e->st, BRV_NO_ROOM, (int)j->rest, "the output buffer is too small");
    memcpy(e->out, rest, bytes);
    e->out += bytes;
    e->s->used = mark;
    return 0;
}

static int encode_merge(encoder *e, uint32_t i, uint64_t lo, uint64_t hi, const void *words)
{
    const brv_program *p = e->p;
    const node *nd = &p->nodes[i];
    const size_t m = (size_t)(hi - lo), mark = e->s->used;
    void *part = scratch_take(e->s, m * 8);
    unsigned below = nd->bits;
    for (uint32_t c = i + 1; c < nd->end; c = p->nodes[c].end) {
        const node *ch = &p->nodes[c];
        below -= ch->bits;
        if (!towards(e, c)) continue;
        p->k->field(part, ch->container, words, nd->container, below, mask_of(ch->bits), m);
        int rc = encode_node(e, c, lo, hi, part);
        if (rc || e->found) return rc;
    }
    e->s->used = mark;
    return 0;
}

/* words: the node's words, which may be overwritten, unless the node is a Merge, or a rotated one, that is joined. */
static int encode_node(encoder *e, uint32_t i, uint64_t lo, uint64_t hi, void *words)
{
    const brv_program *p = e->p;
    const node *nd = &p->nodes[i];
    const size_t m = (size_t)(hi - lo);
    joined j;
    if (e->target == i) {
        e->found = words;
        e->n_found = m;
        e->found_lo = lo;
        return 0;
    }
    if (e->target != NO_TARGET && (nd->op <= OP_CONST || nd->op == OP_REPEAT)) return 0;
    switch (nd->op) {
    case OP_LIT:
        return encode_lit(e, i, lo, m, words);
    case OP_CONST:
        if (p->k->find_other(words, nd->container, nd->word, m) < m) NOT(i, "a word differs from the constant");
        return 0;
    case OP_CONCAT:
        return encode_concat(e, i, lo, hi, words);
    case OP_REPEAT:
        return check_repeat(e, i, lo, m, words);
    case OP_MAP:
        if (nd->fn == FN_ROTR && e->target == NO_TARGET && is_joined(p, i + 1, &j))
            return encode_joined(e, i + 1, &j, nd->k, lo, hi, words);
        p->k->map(words, nd->container, nd->bits, nd->fn, nd->word, true, m);
        return encode_node(e, i + 1, lo, hi, words);
    case OP_PALETTE:
        return encode_palette(e, i, lo, m, words);
    case OP_SELECT:
        return encode_select(e, i, lo, m, words);
    case OP_TRANSPOSE:
        return encode_transpose(e, i, lo, m, words);
    case OP_SCAN:
        return encode_scan(e, i, lo, hi, words);
    default:
        if (e->target == NO_TARGET && is_joined(p, i, &j)) return encode_joined(e, i, &j, 0, lo, hi, words);
        return encode_merge(e, i, lo, hi, words);
    }
}

static void unflatten(const uint8_t *data, unsigned bits, size_t m, unsigned container, void *words)
{
    const size_t bytes = (m * bits + 7) / 8;
    for (size_t i = 0; i < m; i++) {
        const size_t bit = i * bits, byte = bit >> 3;
        const unsigned sh = bit & 7;
        uint64_t v = 0;
        if (byte + 8 <= bytes) v = load64(data + byte);
        else memcpy(&v, data + byte, bytes - byte);
        v >>= sh;
        if (sh + bits > 64) v |= (uint64_t)data[byte + 8] << (64 - sh);
        store_word(words, container, i, v & mask_of(bits));
    }
}

static int start(encoder *e, uint64_t index, const uint8_t *data, size_t len, uint64_t *lo, uint64_t *hi, void **words)
{
    const brv_program *p = e->p;
    *e->st = (brv_status){.node = -1, .block = index};
    if (index >= (p->count + p->block - 1) / p->block) return fail(e->st, BRV_ARGUMENT, -1, "no such block");
    *lo = index * p->block;
    *hi = p->count - *lo < p->block ? p->count : *lo + p->block;
    const size_t m = (size_t)(*hi - *lo);
    if (len != (m * p->bits + 7) / 8) return fail(e->st, BRV_ARGUMENT, -1, "the data is not one block");
    if (scratch_reserve(e->s, p->scratch)) return fail(e->st, BRV_NO_MEMORY, -1, "out of memory");
    const unsigned c = container_of(p->bits);
    joined j;
    const uint32_t first = p->nodes[0].op == OP_MAP && p->nodes[0].fn == FN_ROTR ? 1 : 0;
    if (e->target == NO_TARGET && is_joined(p, first, &j)) {
        *words = (void *)(uintptr_t)data; /* as they are: nothing is written to them */
        return 0;
    }
    *words = scratch_take(e->s, m * c);
    if (p->bits == 8 * c) memcpy(*words, data, len);
    else unflatten(data, p->bits, m, c, *words);
    return 0;
}

static size_t bound(const brv_program *p, uint32_t i, size_t words)
{
    const node *nd = &p->nodes[i];
    if (nd->op == OP_LIT) {
        if (nd->enc == ENC_ZSTD) return ZSTD_compressBound(sliced_size(words, nd->bits)) + 16;
        const size_t classes = words / 16 + 64;
        if (nd->enc == ENC_HUFFMAN) return words * (MAX_CODE + 1) / 8 + words + 16 * MAX_STREAMS * 2 + classes;
        if (nd->tables) return words * 3 + 4 * MAX_LANES + 64 + classes;
        if (nd->enc == ENC_SPARSE) return words * 4 + sliced_size(words, nd->bits) + 64;
        return sliced_size(words, nd->bits) + 64;
    }
    size_t n = nd->op == OP_SCAN ? 8 : 0;
    if (nd->op == OP_REPEAT) return n;
    for (uint32_t c = i + 1; c < nd->end; c = p->nodes[c].end) n += bound(p, c, words);
    return n;
}

size_t brv_encode_bound(const brv_program *p)
{
    return bound(p, 0, p->count < p->block ? (size_t)p->count : p->block) + 64;
}

int brv_encode_block(const brv_program *p, brv_scratch *s, uint64_t index, const uint8_t *data, size_t len,
                     uint8_t *out, size_t cap, size_t *out_len, brv_status *st)
{
    encoder e = {.p = p, .s = s, .out = out, .end = out + cap, .st = st, .target = NO_TARGET};
    uint64_t lo, hi;
    void *words;
    int rc = start(&e, index, data, len, &lo, &hi, &words);
    if (rc) return rc;
    if (p->analysis) return fail(st, BRV_ARGUMENT, -1, "the program has no shared parts");
    rc = encode_node(&e, 0, lo, hi, words);
    *out_len = (size_t)(e.out - out);
    return rc;
}

int brv_prepare_encode(brv_program *p)
{
    for (uint32_t i = 0; i < p->n_nodes; i++)
        if ((p->nodes[i].huff && huff_prepare_encode(&p->nodes[i])) ||
            (p->nodes[i].rans && rans_prepare_encode(&p->nodes[i])))
            return BRV_NO_MEMORY;
    return 0;
}

int brv_set_classes(brv_program *p, uint32_t i, const uint8_t *classes, size_t n, brv_status *st)
{
    *st = (brv_status){.node = (int32_t)i};
    node *nd = &p->nodes[i < p->n_nodes ? i : 0];
    if (i >= p->n_nodes || nd->tables < 2 || n != (nd->count + nd->segment - 1) / nd->segment)
        return fail(st, BRV_ARGUMENT, (int)i, "not the classes of that node's segments");
    for (size_t j = 0; j < n; j++)
        if (classes[j] >= nd->rows) return fail(st, BRV_ARGUMENT, (int)i, "there is no such class");
    uint8_t *copy = malloc(n);
    if (!copy) return fail(st, BRV_NO_MEMORY, (int)i, "out of memory");
    memcpy(copy, classes, n);
    free(nd->classes);
    nd->classes = copy;
    nd->n_classes = n;
    return 0;
}

/* D down to one node. An anchor on the way is computed and dropped. */
static int descend(encoder *e, uint64_t index, const uint8_t *data, size_t len, uint32_t i)
{
    uint8_t anchors[8 * (MAX_DEPTH + 1)];
    uint64_t lo, hi;
    void *words;
    e->out = anchors;
    e->end = anchors + sizeof anchors;
    e->target = i;
    int rc = start(e, index, data, len, &lo, &hi, &words);
    if (rc) return rc;
    if (i >= e->p->n_nodes) return fail(e->st, BRV_ARGUMENT, (int)i, "no such node");
    return encode_node(e, 0, lo, hi, words);
}

int brv_words(const brv_program *p, brv_scratch *s, uint64_t index, const uint8_t *data, size_t len, uint32_t i,
              void *out, size_t *n_out, brv_status *st)
{
    encoder e = {.p = p, .s = s, .st = st};
    int rc = descend(&e, index, data, len, i);
    if (rc) return rc;
    if (e.found) memcpy(out, e.found, e.n_found * p->nodes[i].container);
    *n_out = e.n_found;
    return 0;
}

/* Four counts a symbol, so that a repeated symbol does not wait for its own store. */
static void count_bytes(const uint8_t *a, size_t m, size_t n, uint64_t *hist)
{
    if (m < 1024) {
        for (size_t i = 0; i < m; i++) hist[a[i]]++;
        return;
    }
    uint32_t part[4][256] = {{0}};
    size_t i = 0;
    for (; i + 4 <= m; i += 4)
        for (unsigned j = 0; j < 4; j++) part[j][a[i + j]]++;
    for (; i < m; i++) part[0][a[i]]++;
    for (size_t s = 0; s < n; s++) hist[s] += (uint64_t)part[0][s] + part[1][s] + part[2][s] + part[3][s];
}

int brv_histogram(const brv_program *p, brv_scratch *s, uint64_t index, const uint8_t *data, size_t len, uint32_t i,
                  uint64_t *hist, const uint8_t *classes, size_t n_classes, brv_status *st)
{
    encoder e = {.p = p, .s = s, .st = st};
    int rc = descend(&e, index, data, len, i);
    if (rc || !e.found) return rc;
    const node *nd = &p->nodes[i];
    if (nd->bits > 16) return fail(st, BRV_ARGUMENT, (int)i, "histograms are for words of at most 16 bits");
    const size_t n = (size_t)1 << nd->bits;
    if (classes && nd->columns) return fail(st, BRV_ARGUMENT, (int)i, "the classes of columns are not known");
    if (classes && n_classes <= (e.found_lo + e.n_found - 1) / nd->segment)
        return fail(st, BRV_ARGUMENT, (int)i, "too few classes");
    for (size_t j = 0; j < e.n_found;) {
        size_t stop = e.n_found;
        uint64_t *row = hist;
        if (classes) {
            const uint64_t seg = (e.found_lo + j) / nd->segment, end = (seg + 1) * nd->segment - e.found_lo;
            row += classes[seg] * n;
            if (end < stop) stop = (size_t)end;
        }
        if (nd->container == 1) count_bytes((const uint8_t *)e.found + j, stop - j, n, row);
        else
            for (size_t k = j; k < stop; k++) row[((const w16 *)e.found)[k]]++;
        j = stop;
    }
    return 0;
}
