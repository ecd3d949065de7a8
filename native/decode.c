/* G: from payloads to words and bytes. */
#include "internal.h"

#include <zstd.h>

#define BAD(i, what) return fail(st, BRV_PAYLOAD, (int)(i), what)

/* Of m bytes that are 0 or 1, how many are 1. */
static size_t count_ones(const uint8_t *mask, size_t m)
{
    size_t n = 0, i = 0;
    for (; i + 8 <= m; i += 8) n += (size_t)(load64(mask + i) * EVERY_BYTE(1) >> 56);
    for (; i < m; i++) n += mask[i];
    return n;
}

/* The exceptions of a sparse literal, in scratch. */
typedef struct {
    size_t n;
    uint32_t *at;
    void *words;
} exceptions;

static int read_sparse(const brv_program *p, brv_scratch *s, uint32_t i, cursor item, size_t m, exceptions *x,
                       brv_status *st)
{
    const node *nd = &p->nodes[i];
    uint64_t n, gap, at = 0;
    if (get_varint(&item, &n) || n > m) BAD(i, "bad count of exceptions");
    x->n = (size_t)n;
    x->at = scratch_take(s, x->n * sizeof *x->at);
    x->words = scratch_take(s, x->n * nd->container);
    for (size_t j = 0; j < x->n; j++, at++) {
        if (get_varint(&item, &gap) || gap >= m - at) BAD(i, "bad position of an exception");
        at += gap;
        x->at[j] = (uint32_t)at;
    }
    if (left(&item) != (nd->bits == 1 ? 0 : sliced_size(x->n, nd->bits))) BAD(i, "bad exceptions");
    if (nd->bits == 1) p->k->fill(x->words, 1, nd->word ^ 1, x->n);
    else p->k->unpack(item.p, x->n, nd->bits, nd->container, x->words);
    return 0;
}

static int eval_sparse(const brv_program *p, brv_scratch *s, uint32_t i, cursor item, size_t m, void *dst,
                       brv_status *st)
{
    const node *nd = &p->nodes[i];
    const size_t mark = s->used;
    exceptions x;
    int rc = read_sparse(p, s, i, item, m, &x, st);
    if (rc) return rc;
    p->k->fill(dst, nd->container, nd->word, m);
    for (size_t j = 0; j < x.n; j++) store_word(dst, nd->container, x.at[j], load_word(x.words, nd->container, j));
    s->used = mark;
    return 0;
}

static int eval_zstd(const brv_program *p, brv_scratch *s, uint32_t i, cursor item, size_t m, void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i];
    const size_t want = sliced_size(m, nd->bits), mark = s->used;
    if (!s->dctx && !(s->dctx = ZSTD_createDCtx())) return fail(st, BRV_NO_MEMORY, (int)i, "out of memory");
    const bool direct = nd->bits == 8u * nd->container;
    uint8_t *sliced = direct ? dst : scratch_take(s, want);
    size_t n = ZSTD_decompressDCtx(s->dctx, sliced, want, item.p, left(&item));
    if (ZSTD_isError(n) || n != want) BAD(i, "damaged zstd frame");
    if (!direct) p->k->unpack(sliced, m, nd->bits, nd->container, dst);
    s->used = mark;
    return 0;
}

static int next_item(cursor *payload, cursor *item)
{
    uint64_t len;
    if (get_varint(payload, &len) || len > left(payload)) return BRV_PAYLOAD;
    *item = (cursor){payload->p, payload->p + len};
    payload->p += len;
    return 0;
}

uint32_t paired_literal(const brv_program *p)
{
    for (uint32_t i = 0; p->k->rans_two && i < p->n_nodes; i++) {
        const node *nd = &p->nodes[i];
        if (nd->op == OP_MERGE || nd->op == OP_MAP || nd->op == OP_TRANSPOSE || nd->op == OP_CONST) continue;
        if (nd->op != OP_LIT) break;
        if (nd->enc != ENC_RANS || (nd->lanes != 32 && nd->lanes != 64)) continue;
        uint32_t c = 0;
        while (c < nd->tables && nd->rans[c].lookups) c++;
        if (c == nd->tables) return i;
    }
    return p->n_nodes;
}

/* The paired literal's item in the payload of the next block; false if there is none. */
static bool next_paired(const brv_program *p, const next_block *next, cursor *item)
{
    cursor payload = next->payload;
    for (uint32_t i = 0; i < p->paired; i++) {
        const node *nd = &p->nodes[i];
        if (nd->op != OP_LIT) continue;
        if (nd->enc == ENC_RAW || nd->enc == ENC_PACK) {
            const size_t bytes = sliced_size(next->m, nd->enc == ENC_RAW ? nd->bits : nd->k);
            if (left(&payload) < bytes) return false;
            payload.p += bytes;
        } else if (next_item(&payload, item)) return false;
    }
    return !next_item(&payload, item);
}

/* The paired literal of this block and of the next, whose words are kept above all else in scratch. What is wrong with
 * the next one is found when its turn comes. */
static int decode_paired(const brv_program *p, brv_scratch *s, cursor item, const class_map *map, uint8_t *out)
{
    const node *nd = &p->nodes[p->paired];
    next_block *next = &s->next;
    cursor items[2] = {item};
    const size_t mark = s->used;
    s->used = p->scratch;
    next->there = false;
    const bool whole = next_paired(p, next, &items[1]) &&
                       !classes_read(nd, p->k, &items[1], next->lo, next->m, s, &next->map);
    if (whole) next->words = scratch_take(s, next->m);
    s->used = mark;
    if (!whole) return rans_decode(nd, p->k, item, map, out);
    int rc[2];
    rans_decode_two(nd, p->k, items, (const class_map *const[]){map, &next->map}, (uint8_t *[]){out, next->words}, rc);
    next->done = !rc[1];
    return rc[0];
}

/* A coded literal in class order: into dst if that is the order of the words, else into scratch. */
static int eval_coded(const brv_program *p, brv_scratch *s, uint32_t i, cursor item, uint64_t lo, size_t m, void *dst,
                      class_map *map, void **ordered, brv_status *st)
{
    const node *nd = &p->nodes[i];
    if (i == p->paired && s->next.done) {
        s->next.done = false;
        *map = s->next.map;
        *ordered = s->next.words;
        return 0;
    }
    if (classes_read(nd, p->k, &item, lo, m, s, map)) BAD(i, "bad classes of segments");
    *ordered = map->classes ? scratch_take(s, m * nd->container) : dst;
    int rc = nd->enc == ENC_HUFFMAN              ? huff_decode(nd, p->k, item, map, *ordered, s)
             : i == p->paired && s->next.there   ? decode_paired(p, s, item, map, *ordered)
             : nd->enc == ENC_RANS               ? rans_decode(nd, p->k, item, map, *ordered)
                                                 : tunstall_decode(nd, p->k, item, map, *ordered, s);
    if (rc) BAD(i, "damaged coded literal");
    return 0;
}

static int eval_lit(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, size_t m, cursor *payload, void *dst,
                    brv_status *st)
{
    const node *nd = &p->nodes[i];
    if (nd->enc == ENC_RAW || nd->enc == ENC_PACK) {
        const unsigned w = nd->enc == ENC_RAW ? nd->bits : nd->k;
        const size_t bytes = sliced_size(m, w);
        if (left(payload) < bytes) BAD(i, "the payload is cut short");
        p->k->unpack(payload->p, m, w, nd->container, dst);
        payload->p += bytes;
        if (nd->enc == ENC_PACK && nd->word) p->k->map(dst, nd->container, nd->bits, FN_ADD, nd->word, false, m);
        return 0;
    }
    cursor item;
    if (next_item(payload, &item)) BAD(i, "the payload is cut short");
    if (nd->enc == ENC_ZSTD) return eval_zstd(p, s, i, item, m, dst, st);
    if (nd->enc == ENC_SPARSE) return eval_sparse(p, s, i, item, m, dst, st);
    const size_t mark = s->used;
    class_map map;
    void *ordered;
    int rc = eval_coded(p, s, i, item, lo, m, dst, &map, &ordered, st);
    if (!rc && map.classes) class_restore(&map, p->k, ordered, dst, nd->container);
    else if (!rc && ordered != dst) memcpy(dst, ordered, m * nd->container);
    s->used = mark;
    return rc;
}

static int eval_concat(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, uint64_t hi, cursor *payload,
                       void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i];
    uint64_t start = 0;
    for (uint32_t c = i + 1; c < nd->end; c = p->nodes[c].end) {
        const uint64_t stop = start + p->nodes[c].count;
        const uint64_t a = lo > start ? lo : start, b = hi < stop ? hi : stop;
        if (a < b) {
            int rc = eval_node(p, s, c, a - start, b - start, payload, (uint8_t *)dst + (a - lo) * nd->container, st);
            if (rc) return rc;
        }
        start = stop;
    }
    return 0;
}

static void eval_repeat(const node *nd, uint64_t lo, size_t m, uint8_t *dst)
{
    const uint64_t period = nd->count / nd->times;
    const uint8_t *src = nd->repeated;
    const size_t c = nd->container;
    size_t done = 0;
    while (done < m) {
        const uint64_t at = (lo + done) % period;
        const size_t n = m - done < period - at ? m - done : (size_t)(period - at);
        memcpy(dst + done * c, src + at * c, n * c);
        done += n;
    }
}

static int eval_scan(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, uint64_t hi, cursor *payload,
                     void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i];
    const size_t bytes = (nd->bits + 7u) / 8;
    uint64_t anchor = 0;
    if (left(payload) < bytes) BAD(i, "the payload is cut short");
    memcpy(&anchor, payload->p, bytes);
    if (anchor > mask_of(nd->bits)) BAD(i, "anchor does not fit the word");
    payload->p += bytes;
    if (hi - lo > 1) {
        int rc = eval_node(p, s, i + 1, lo, hi - 1, payload, (uint8_t *)dst + nd->container, st);
        if (rc) return rc;
    }
    store_word(dst, nd->container, 0, anchor);
    p->k->scan(dst, nd->container, nd->bits, nd->fn, (size_t)(hi - lo));
    return 0;
}

/* Columns that are segments are taken from where they lie in class order. */
static int eval_transpose(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, size_t m, cursor *payload,
                          void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i], *child = &p->nodes[i + 1];
    const size_t c = nd->container, columns = (size_t)nd->times, rows = m / columns, whole = rows * columns;
    const size_t mark = s->used;
    uint8_t *t = scratch_take(s, m * c);
    size_t *from = NULL;
    int rc;
    if (child->tables > 1 && !child->columns && child->segment == rows && lo % rows == 0 && whole == m) {
        cursor item;
        class_map map;
        if (next_item(payload, &item)) BAD(i + 1, "the payload is cut short");
        if ((rc = eval_coded(p, s, i + 1, item, lo, m, t, &map, (void **)&t, st))) return rc;
        from = scratch_take(s, columns * sizeof *from);
        class_places(&map, from);
    } else if ((rc = eval_node(p, s, i + 1, lo, lo + m, payload, t, st))) return rc;
    p->k->transpose(t, from, dst, NULL, nd->container, columns, rows);
    memcpy((uint8_t *)dst + whole * c, t + whole * c, (m - whole) * c);
    s->used = mark;
    return 0;
}

static int eval_palette(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, size_t m, cursor *payload,
                        void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i], *child = &p->nodes[i + 1];
    const size_t mark = s->used;
    void *places = scratch_take(s, m * child->container);
    int rc = eval_node(p, s, i + 1, lo, lo + m, payload, places, st);
    if (rc) return rc;
    if (!p->k->look_up(dst, nd->container, places, child->container, nd->palette, nd->colours, m))
        BAD(i, "a place beyond the palette");
    s->used = mark;
    return 0;
}

static int eval_select(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, size_t m, cursor *payload,
                       void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i];
    const size_t mark = s->used;
    uint8_t *mask = scratch_take(s, m);
    int rc = eval_node(p, s, i + 1, lo, lo + m, payload, mask, st);
    if (rc) return rc;
    const size_t n = count_ones(mask, m);
    void *next = scratch_take(s, n * nd->container);
    if (n && (rc = eval_node(p, s, p->nodes[i + 1].end, lo, lo + n, payload, next, st))) return rc;
    p->k->spread(dst, nd->container, mask, next, nd->word, m);
    s->used = mark;
    return 0;
}

enum { MOST_TOPS = 2 };

static bool hardly_varies(const node *nd)
{
    return nd->op == OP_CONST || (nd->op == OP_LIT && nd->enc == ENC_SPARSE);
}

bool is_joined(const brv_program *p, uint32_t i, joined *j)
{
    const node *nd = &p->nodes[i];
    if (nd->op != OP_MERGE || (nd->bits != 8 && nd->bits != 16 && nd->bits != 32)) return false;
    *j = (joined){.symbol = i + 1};
    const node *c = &p->nodes[i + 1];
    for (unsigned n = 0; n < MOST_TOPS && nd->bits > 8 && j->t + c->bits <= 4 && hardly_varies(c); n++) {
        j->t += c->bits;
        j->symbol = c->end;
        if (j->symbol == nd->end) return false;
        c = &p->nodes[j->symbol];
    }
    j->rest = c->end;
    if (j->rest == nd->end) return false;
    if (c->bits > 8) return false;
    c = &p->nodes[j->rest];
    if (c->bits > (nd->bits == 32 ? 24 : 14)) return false;
    return c->end == nd->end && c->op == OP_LIT && c->enc == ENC_RAW;
}

/* The fields of the top of a joined Merge: their usual bits, and the exceptions of each. */
static int read_top(const brv_program *p, brv_scratch *s, uint32_t i, const joined *j, size_t m, cursor *payload,
                    uint64_t *top, exceptions x[MOST_TOPS], brv_status *st)
{
    unsigned up = p->nodes[i].bits, n = 0;
    *top = 0;
    for (uint32_t c = i + 1; c < j->symbol; c = p->nodes[c].end, n++) {
        const node *field = &p->nodes[c];
        cursor item;
        up -= field->bits;
        *top |= field->word << up;
        x[n] = (exceptions){.n = 0};
        if (field->op == OP_CONST) continue;
        if (next_item(payload, &item)) BAD(c, "the payload is cut short");
        const int rc = read_sparse(p, s, c, item, m, &x[n], st);
        if (rc) return rc;
    }
    return 0;
}

/* Puts the exceptions of the top into words that have its usual bits. */
static void mend_top(const brv_program *p, uint32_t i, const joined *j, unsigned rotate, const exceptions *x, void *dst)
{
    const node *nd = &p->nodes[i];
    unsigned up = nd->bits;
    for (uint32_t c = i + 1; c < j->symbol; c = p->nodes[c].end, x++) {
        const node *field = &p->nodes[c];
        up -= field->bits;
        for (size_t e = 0; e < x->n; e++) { /* a rotation carries over an xor */
            const uint64_t v = (load_word(x->words, 1, e) ^ field->word) << up;
            const uint64_t turned = rotate ? (v >> rotate | v << (nd->bits - rotate)) & mask_of(nd->bits) : v;
            store_word(dst, nd->container, x->at[e], load_word(dst, nd->container, x->at[e]) ^ turned);
        }
    }
}

static int eval_joined(const brv_program *p, brv_scratch *s, uint32_t i, const joined *j, unsigned rotate, uint64_t lo,
                       size_t m, cursor *payload, void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i], *rest = &p->nodes[j->rest];
    const size_t mark = s->used, bytes = sliced_size(m, rest->bits);
    exceptions x[MOST_TOPS];
    uint64_t top;
    cursor item;
    int rc = read_top(p, s, i, j, m, payload, &top, x, st);
    if (rc) return rc;
    void *symbols = scratch_take(s, m);
    class_map map = {.first = m, .words = m};
    const node *symbol = &p->nodes[j->symbol];
    if (symbol->tables && !symbol->columns) { /* the join puts class order right */
        if (next_item(payload, &item)) BAD(j->symbol, "the payload is cut short");
        rc = eval_coded(p, s, j->symbol, item, lo, m, symbols, &map, &symbols, st);
    } else rc = eval_node(p, s, j->symbol, lo, lo + m, payload, symbols, st);
    if (rc) return rc;
    if (left(payload) < bytes) BAD(j->rest, "the payload is cut short");
    p->k->join(dst, nd->container, symbols, &map, payload->p, rest->bits, top, rotate);
    payload->p += bytes;
    mend_top(p, i, j, rotate, x, dst);
    s->used = mark;
    return 0;
}

static int eval_merge(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, uint64_t hi, cursor *payload,
                      void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i];
    const size_t m = (size_t)(hi - lo), mark = s->used;
    joined j;
    if (is_joined(p, i, &j)) return eval_joined(p, s, i, &j, 0, lo, m, payload, dst, st);
    void *part = scratch_take(s, m * 8);
    unsigned below = nd->bits;
    bool first = true;
    for (uint32_t c = i + 1; c < nd->end; c = p->nodes[c].end) {
        const node *field = &p->nodes[c];
        below -= field->bits;
        if (field->op == OP_LIT && field->enc == ENC_RAW) { /* without an array of its own */
            const size_t bytes = sliced_size(m, field->bits);
            if (left(payload) < bytes) BAD(c, "the payload is cut short");
            p->k->merge_raw(dst, nd->container, payload->p, field->bits, below, m, first);
            payload->p += bytes;
        } else {
            int rc = eval_node(p, s, c, lo, hi, payload, part, st);
            if (rc) return rc;
            p->k->merge(dst, nd->container, part, field->container, below, m, first);
        }
        first = false;
    }
    s->used = mark;
    return 0;
}

int eval_node(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, uint64_t hi, cursor *payload, void *dst,
              brv_status *st)
{
    const node *nd = &p->nodes[i];
    const size_t m = (size_t)(hi - lo);
    joined j;
    int rc;
    switch (nd->op) {
    case OP_LIT:
        return eval_lit(p, s, i, lo, m, payload, dst, st);
    case OP_CONST:
        p->k->fill(dst, nd->container, nd->word, m);
        return 0;
    case OP_CONCAT:
        return eval_concat(p, s, i, lo, hi, payload, dst, st);
    case OP_REPEAT:
        eval_repeat(nd, lo, m, dst);
        return 0;
    case OP_MAP:
        if (nd->fn == FN_ROTR && is_joined(p, i + 1, &j))
            return eval_joined(p, s, i + 1, &j, nd->k, lo, m, payload, dst, st);
        rc = eval_node(p, s, i + 1, lo, hi, payload, dst, st);
        if (!rc) p->k->map(dst, nd->container, nd->bits, nd->fn, nd->word, false, m);
        return rc;
    case OP_PALETTE:
        return eval_palette(p, s, i, lo, m, payload, dst, st);
    case OP_SELECT:
        return eval_select(p, s, i, lo, m, payload, dst, st);
    case OP_TRANSPOSE:
        return eval_transpose(p, s, i, lo, m, payload, dst, st);
    case OP_SCAN:
        return eval_scan(p, s, i, lo, hi, payload, dst, st);
    default:
        return eval_merge(p, s, i, lo, hi, payload, dst, st);
    }
}

/* Words of b bits, b not a container's width, to their flat form. */
static void flatten(const void *words, unsigned container, unsigned bits, size_t m, uint8_t *out)
{
    uint64_t acc = 0;
    unsigned n = 0;
    for (size_t i = 0; i < m; i++) {
        const uint64_t w = load_word(words, container, i);
        acc |= w << n;
        n += bits;
        if (n >= 64) {
            memcpy(out, &acc, 8);
            out += 8;
            n -= 64;
            acc = n ? w >> (bits - n) : 0;
        }
    }
    memcpy(out, &acc, (n + 7) / 8);
}

static int decode_block(const brv_program *p, brv_scratch *s, uint64_t lo, uint64_t hi, cursor payload, uint8_t *out,
                        brv_status *st)
{
    const size_t m = (size_t)(hi - lo);
    const unsigned c = container_of(p->bits);
    const bool direct = p->bits == 8 * c;
    const size_t mark = s->used;
    void *words = direct ? out : scratch_take(s, m * c);
    int rc = eval_node(p, s, 0, lo, hi, &payload, words, st);
    if (rc) return rc;
    if (left(&payload)) return fail(st, BRV_PAYLOAD, -1, "the payload has bytes left over");
    if (!direct) flatten(words, c, p->bits, m, out);
    s->used = mark;
    return 0;
}

#define ADD_TO(W) for (size_t i = 0; i < n / sizeof(W); i++) ((W *)out)[i] = (W)(((W *)out)[i] + ((const W *)target)[i])

/* From a difference and what it is to, n flat bytes each, to the words. */
static void refer(uint8_t *restrict out, const uint8_t *restrict target, size_t n, unsigned bits, int ref)
{
    if (ref == BRV_XOR) for (size_t i = 0; i < n; i++) out[i] ^= target[i];
    else
        switch (bits) {
        case 8: ADD_TO(w8); break;
        case 16: ADD_TO(w16); break;
        case 32: ADD_TO(w32); break;
        default: ADD_TO(w64);
        }
}

/* Bytes of scratch that the words of the next block need, with their classes. */
static size_t next_scratch(const brv_program *p)
{
    return p->paired < p->n_nodes ? 2 * (size_t)p->block + 256 : 0;
}

/* Notes what is to be known of the next block, which begins with word lo, if there is one. */
static void note_next(const brv_program *p, brv_scratch *s, uint64_t lo, const uint64_t *span, const uint8_t *payload,
                      size_t payload_len)
{
    const bool there = p->paired < p->n_nodes && span && span[0] <= payload_len && span[1] <= payload_len - span[0];
    s->next = (next_block){.there = there, .lo = lo};
    if (!there) return;
    s->next.m = (size_t)(p->count - lo < p->block ? p->count - lo : p->block);
    s->next.payload = (cursor){payload + span[0], payload + span[0] + span[1]};
}

int brv_decode(const brv_program *p, brv_scratch *s, const uint8_t *payload, size_t payload_len, uint64_t first_block,
               size_t nblocks, const uint64_t *spans, const uint64_t *checks, const uint8_t *target, int ref,
               uint8_t *out, uint64_t lo, uint64_t hi, brv_status *st)
{
    *st = (brv_status){.node = -1};
    const uint64_t total = p->count / 8 * p->bits + p->count % 8 * p->bits / 8;
    const uint64_t block_bytes = (uint64_t)p->block / 8 * p->bits;
    if (p->analysis || lo >= hi || hi > total || first_block != lo / block_bytes ||
        nblocks != (hi - 1) / block_bytes - first_block + 1)
        return fail(st, BRV_ARGUMENT, -1, "the blocks do not cover the range");
    if (ref < BRV_ALONE || ref > BRV_ADD || (ref == BRV_ADD && p->bits != 8 * container_of(p->bits)))
        return fail(st, BRV_ARGUMENT, -1, "words cannot be combined like this");
    if (scratch_reserve(s, p->scratch + next_scratch(p))) return fail(st, BRV_NO_MEMORY, -1, "out of memory");
    s->next = (next_block){0};
    for (size_t j = 0; j < nblocks; j++) {
        const uint64_t b = first_block + j, w0 = b * p->block;
        const uint64_t w1 = p->count - w0 < p->block ? p->count : w0 + p->block;
        const uint64_t b0 = b * block_bytes, b1 = total - b0 < block_bytes ? total : b0 + block_bytes;
        const uint64_t start = spans[2 * j], len = spans[2 * j + 1];
        st->block = b;
        if (start > payload_len || len > payload_len - start) return fail(st, BRV_ARGUMENT, -1, "a payload is not there");
        const bool whole = lo <= b0 && b1 <= hi;
        const size_t n = (size_t)(b1 - b0);
        s->used = 0;
        uint8_t *to = whole ? out + (b0 - lo) : scratch_take(s, n);
        s->ahead.in = (uintptr_t)payload + (j + 1 < nblocks && spans[2 * j + 2] < payload_len ? spans[2 * j + 2] : start);
        s->ahead.out = (uintptr_t)to;
        if (!s->next.done) note_next(p, s, w1, j + 1 < nblocks ? &spans[2 * j + 2] : NULL, payload, payload_len);
        int rc = decode_block(p, s, w0, w1, (cursor){payload + start, payload + start + len}, to, st);
        if (rc) return rc;
        if (ref) refer(to, target + (b0 - first_block * block_bytes), n, p->bits, ref);
        if (checks && p->k->hash(to, n) != checks[j]) return fail(st, BRV_CHECKSUM, -1, "checksum mismatch");
        if (!whole) {
            const uint64_t a = lo > b0 ? lo : b0, z = hi < b1 ? hi : b1;
            memcpy(out + (a - lo), to + (a - b0), (size_t)(z - a));
        }
    }
    return 0;
}
