/* G: from payloads to words and bytes. */
#include "internal.h"

#include <zstd.h>

#define BAD(i, what) return fail(st, BRV_PAYLOAD, (int)(i), what)

static int eval_sparse(const brv_program *p, brv_scratch *s, uint32_t i, cursor item, size_t m, void *dst,
                       brv_status *st)
{
    const node *nd = &p->nodes[i];
    const size_t mark = s->used;
    uint64_t n, gap = 0, at = 0;
    p->k->fill(dst, nd->container, nd->word, m);
    if (get_varint(&item, &n) || n > m) BAD(i, "bad count of exceptions");
    cursor gaps = item;
    for (uint64_t j = 0; j < n; j++, at++) {
        if (get_varint(&item, &gap) || gap >= m - at) BAD(i, "bad position of an exception");
        at += gap;
    }
    if (left(&item) != (nd->bits == 1 ? 0 : sliced_size((size_t)n, nd->bits))) BAD(i, "bad exceptions");
    void *words = scratch_take(s, (size_t)n * nd->container);
    if (nd->bits == 1) p->k->fill(words, 1, nd->word ^ 1, (size_t)n);
    else p->k->unpack(item.p, (size_t)n, nd->bits, nd->container, words);
    at = 0;
    for (uint64_t j = 0; j < n; j++, at++) {
        (void)get_varint(&gaps, &gap);
        at += gap;
        store_word(dst, nd->container, (size_t)at, load_word(words, nd->container, (size_t)j));
    }
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
    uint64_t len;
    if (get_varint(payload, &len) || len > left(payload)) BAD(i, "the payload is cut short");
    const cursor item = {payload->p, payload->p + len};
    payload->p += len;
    switch (nd->enc) {
    case ENC_HUFFMAN:
        if (huff_decode(nd, p->k, item, lo, m, dst, s)) BAD(i, "damaged huffman literal");
        return 0;
    case ENC_RANS:
        if (rans_decode(nd, p->k, item, lo, m, dst, s)) BAD(i, "damaged rans literal");
        return 0;
    case ENC_ZSTD:
        return eval_zstd(p, s, i, item, m, dst, st);
    default:
        return eval_sparse(p, s, i, item, m, dst, st);
    }
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

static bool is_raw8(const node *nd) { return nd->op == OP_LIT && nd->enc == ENC_RAW && nd->bits == 8; }

/* Two byte-wide children of a 16-bit word: one pass; a raw one is read where it lies. */
static int eval_merge_8_8(const brv_program *p, brv_scratch *s, uint32_t i, unsigned rotate, uint64_t lo, size_t m,
                          cursor *payload, void *dst, brv_status *st)
{
    const uint32_t a = i + 1, b = p->nodes[a].end;
    const size_t mark = s->used;
    const uint8_t *part[2];
    for (int j = 0; j < 2; j++) {
        const uint32_t c = j ? b : a;
        if (is_raw8(&p->nodes[c])) {
            if (left(payload) < m) BAD(c, "the payload is cut short");
            part[j] = payload->p;
            payload->p += m;
            continue;
        }
        uint8_t *t = scratch_take(s, m);
        int rc = eval_node(p, s, c, lo, lo + m, payload, t, st);
        if (rc) return rc;
        part[j] = t;
    }
    p->k->merge_8_8(dst, part[0], part[1], rotate, m);
    s->used = mark;
    return 0;
}

static bool is_merge_8_8(const brv_program *p, uint32_t i)
{
    return p->nodes[i].op == OP_MERGE && p->nodes[i].bits == 16 && p->nodes[i + 1].bits == 8 &&
           p->nodes[p->nodes[i + 1].end].bits == 8 && p->nodes[p->nodes[i + 1].end].end == p->nodes[i].end;
}

static int eval_merge(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, uint64_t hi, cursor *payload,
                      void *dst, brv_status *st)
{
    const node *nd = &p->nodes[i];
    const size_t m = (size_t)(hi - lo), mark = s->used;
    if (is_merge_8_8(p, i)) return eval_merge_8_8(p, s, i, 0, lo, m, payload, dst, st);
    void *part = scratch_take(s, m * 8);
    unsigned below = nd->bits;
    bool first = true;
    for (uint32_t c = i + 1; c < nd->end; c = p->nodes[c].end) {
        int rc = eval_node(p, s, c, lo, hi, payload, part, st);
        if (rc) return rc;
        below -= p->nodes[c].bits;
        p->k->merge(dst, nd->container, part, p->nodes[c].container, below, m, first);
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
        if (nd->fn == FN_ROTR && is_merge_8_8(p, i + 1))
            return eval_merge_8_8(p, s, i + 1, nd->k, lo, m, payload, dst, st);
        rc = eval_node(p, s, i + 1, lo, hi, payload, dst, st);
        if (!rc) p->k->map(dst, nd->container, nd->bits, nd->fn, nd->word, false, m);
        return rc;
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

int brv_decode(const brv_program *p, brv_scratch *s, const uint8_t *payload, size_t payload_len, uint64_t first_block,
               size_t nblocks, const uint64_t *spans, const uint64_t *checks, uint8_t *out, uint64_t lo, uint64_t hi,
               brv_status *st)
{
    *st = (brv_status){.node = -1};
    const uint64_t total = p->count / 8 * p->bits + p->count % 8 * p->bits / 8;
    const uint64_t block_bytes = (uint64_t)p->block / 8 * p->bits;
    if (p->analysis || lo >= hi || hi > total || first_block != lo / block_bytes ||
        nblocks != (hi - 1) / block_bytes - first_block + 1)
        return fail(st, BRV_ARGUMENT, -1, "the blocks do not cover the range");
    if (scratch_reserve(s, p->scratch)) return fail(st, BRV_NO_MEMORY, -1, "out of memory");
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
        int rc = decode_block(p, s, w0, w1, (cursor){payload + start, payload + start + len}, to, st);
        if (rc) return rc;
        if (checks && p->k->hash(to, n) != checks[j]) return fail(st, BRV_CHECKSUM, -1, "checksum mismatch");
        if (!whole) {
            const uint64_t a = lo > b0 ? lo : b0, z = hi < b1 ? hi : b1;
            memcpy(out + (a - lo), to + (a - b0), (size_t)(z - a));
        }
    }
    return 0;
}
