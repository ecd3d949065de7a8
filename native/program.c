/* Programs: parsing, type rules, limits, tables. Nothing is executed before all of it has passed. */
#include "internal.h"

const brv_kernels *kernels_for(const char *cpu)
{
    const brv_kernels *have[2] = {NULL, NULL};
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
                        __builtin_cpu_supports("avx512vbmi2");
    if (avx2 && avx512) have[0] = kernels_avx512();
    if (avx2) have[1] = kernels_avx2();
#endif
    for (unsigned i = 0; i < 2; i++)
        if (have[i] && (!cpu || strcmp(cpu, have[i]->name) == 0)) return have[i];
    return kernels_scalar();
}

const char *brv_cpu(const char *cpu) { return kernels_for(cpu)->name; }

/* ---- parsing ------------------------------------------------------------------------------- */

typedef struct {
    brv_program *p;
    brv_status *st;
    uint64_t table_bytes, repeated_bytes; /* as the format counts them */
} parser;

static int parse_node(parser *ps, cursor *c, unsigned bits, uint64_t count, unsigned depth);

#define REFUSE(code, what) return fail(ps->st, code, (int)i, what)

/* A varint of a body, with a message of its own on failure. */
#define VARINT(dst)                                                              \
    do {                                                                         \
        int rc_ = get_varint(&b, &(dst));                                        \
        if (rc_) return fail(ps->st, rc_, (int)i, "a number is cut short or not in its shortest form"); \
    } while (0)
#define BYTE(dst)                                                                \
    do {                                                                         \
        if (b.p == b.end) REFUSE(BRV_TRUNCATED, "a parameter is missing");       \
        (dst) = *b.p++;                                                          \
    } while (0)

static int parse_coded(parser *ps, uint32_t i, cursor *body)
{
    node *nd = &ps->p->nodes[i];
    cursor b = *body;
    uint64_t tables;
    if (nd->bits > 16) REFUSE(BRV_TYPE, "huffman and rans code words of at most 16 bits");
    if (nd->enc == ENC_TUNSTALL) {
        BYTE(nd->k);
        BYTE(nd->max_len);
        if (nd->bits > 8) REFUSE(BRV_TYPE, "tunstall codes words of at most 8 bits");
        if (nd->k < 8 || nd->k > 12) REFUSE(BRV_PARAMETER, "codewords must have 8 to 12 bits");
        if (nd->max_len < 8 || nd->max_len > 14) REFUSE(BRV_PARAMETER, "probability bits must be 8 to 14");
    } else if (nd->enc == ENC_HUFFMAN) {
        BYTE(nd->streams);
        BYTE(nd->max_len);
        if (nd->streams < 1 || nd->streams > MAX_STREAMS) REFUSE(BRV_PARAMETER, "streams must be 1 to 16");
        if (nd->max_len < 1 || nd->max_len > MAX_CODE) REFUSE(BRV_PARAMETER, "code length limit must be 1 to 15");
    } else {
        BYTE(nd->lanes);
        BYTE(nd->max_len);
        if (nd->lanes < 1 || nd->lanes > MAX_LANES) REFUSE(BRV_PARAMETER, "lanes must be 1 to 64");
        if (nd->max_len < 8 || nd->max_len > 14) REFUSE(BRV_PARAMETER, "probability bits must be 8 to 14");
    }
    VARINT(tables);
    if (tables > 1) VARINT(nd->segment);
    if (tables < 1 || tables > MAX_TABLES) REFUSE(BRV_PARAMETER, "tables must be 1 to 64");
    nd->tables = (uint32_t)tables;
    if (tables > 1 && nd->segment < 16) REFUSE(BRV_PARAMETER, "segment length must be 16 or more");
    if (nd->segment >= (uint64_t)1 << 62) REFUSE(BRV_PARAMETER, "segment length is absurd");
    nd->rows = nd->tables;
    if (tables > 1) {
        uint64_t rows = 1, columns;
        VARINT(columns);
        if (columns) {
            VARINT(rows);
            if (columns < 2 || columns > MAX_COLUMN_CLASSES) REFUSE(BRV_PARAMETER, "classes of columns must be 2 to 16");
            if (rows < 1 || rows > MAX_ROW_CLASSES) REFUSE(BRV_PARAMETER, "classes of rows must be 1 to 64");
            if (nd->segment > MAX_COLUMNS_CLASSED) REFUSE(BRV_LIMIT, "over 2^16 columns with classes");
            nd->rows = (uint32_t)rows;
            nd->columns = (uint32_t)columns;
            ps->table_bytes += 8 * nd->segment;
        }
    }
    const unsigned wide = nd->enc == ENC_TUNSTALL ? nd->k
                          : nd->enc == ENC_HUFFMAN && nd->max_len < 11 ? 11 : nd->max_len;
    ps->table_bytes += 8 * tables * (((uint64_t)1 << wide) + ((uint64_t)1 << nd->bits));
    if (ps->table_bytes > MAX_TABLE_BYTES) REFUSE(BRV_LIMIT, "code tables take over 16 MiB");
    *body = b;
    return 0;
}

static int parse_lit(parser *ps, uint32_t i, cursor *body)
{
    node *nd = &ps->p->nodes[i];
    cursor b = *body;
    BYTE(nd->enc);
    switch (nd->enc) {
    case ENC_RAW:
    case ENC_ZSTD:
        break;
    case ENC_PACK:
        BYTE(nd->k);
        VARINT(nd->word);
        if (nd->k >= nd->bits) REFUSE(BRV_PARAMETER, "pack must use fewer bits than the word has");
        break;
    case ENC_SPARSE:
        VARINT(nd->word);
        break;
    case ENC_HUFFMAN:
    case ENC_TUNSTALL:
    case ENC_RANS: {
        int rc = parse_coded(ps, i, &b);
        if (rc) return rc;
        break;
    }
    default:
        REFUSE(BRV_UNKNOWN_ENCODING, "unknown literal encoding");
    }
    if (nd->word > mask_of(nd->bits)) REFUSE(BRV_TYPE, "base does not fit the word");
    *body = b;
    return 0;
}

static int parse_map(parser *ps, uint32_t i, cursor *body)
{
    node *nd = &ps->p->nodes[i];
    cursor b = *body;
    BYTE(nd->fn);
    if (nd->fn > FN_ROTR) REFUSE(BRV_PARAMETER, "unknown map function");
    if (nd->fn == FN_XOR || nd->fn == FN_ADD) {
        VARINT(nd->word);
        if (nd->word == 0 || nd->word > mask_of(nd->bits)) REFUSE(BRV_TYPE, "map constant does not fit the word");
    } else if (nd->fn == FN_ROTR) {
        BYTE(nd->k);
        if (nd->k == 0 || nd->k >= nd->bits) REFUSE(BRV_PARAMETER, "rotation must be 1 to bits - 1");
        nd->word = nd->k;
    }
    *body = b;
    return parse_node(ps, body, nd->bits, nd->count, nd->depth + 1u);
}

static int parse_many(parser *ps, uint32_t i, cursor *body) /* Concat, Merge */
{
    node *nd = &ps->p->nodes[i];
    cursor b = *body;
    uint64_t k, part[MAX_NODES], sum = 0;
    VARINT(k);
    if (k < 2 || k >= MAX_NODES) REFUSE(BRV_LIMIT, "needs 2 to 127 children");
    const bool merge = nd->op == OP_MERGE;
    const uint64_t whole = merge ? nd->bits : nd->count;
    for (uint64_t j = 0; j < k; j++) {
        if (merge) BYTE(part[j]);
        else VARINT(part[j]);
        if (part[j] == 0 || part[j] > whole - sum) REFUSE(BRV_TYPE, "parts do not add up to the whole");
        sum += part[j];
    }
    if (sum != whole) REFUSE(BRV_TYPE, "parts do not add up to the whole");
    for (uint64_t j = 0; j < k; j++) {
        int rc = parse_node(ps, &b, merge ? (unsigned)part[j] : nd->bits, merge ? nd->count : part[j], nd->depth + 1u);
        if (rc) return rc;
    }
    *body = b;
    return 0;
}

static int parse_palette(parser *ps, uint32_t i, cursor *body)
{
    node *nd = &ps->p->nodes[i];
    cursor b = *body;
    const uint64_t most = mask_of(nd->bits);
    uint64_t size, gap, word = 0;
    VARINT(size);
    if (size < 2 || size > MAX_PALETTE) REFUSE(BRV_LIMIT, "a palette has 2 to 4096 words");
    const size_t places = size > 16 ? (size_t)1 << bits_for(size) : 16;
    nd->colours = (size_t)size;
    nd->palette = calloc(places, nd->container);
    if (!nd->palette) REFUSE(BRV_NO_MEMORY, "out of memory");
    ps->p->memory += places * nd->container;
    for (size_t j = 0; j < size; j++) {
        VARINT(gap);
        if (j ? gap >= most - word : gap > most) REFUSE(BRV_TYPE, "a word of the palette does not fit");
        word += gap + (j > 0);
        store_word(nd->palette, nd->container, j, word);
    }
    *body = b;
    return parse_node(ps, body, bits_for(size), nd->count, nd->depth + 1u);
}

static int parse_select(parser *ps, uint32_t i, cursor *body)
{
    node *nd = &ps->p->nodes[i];
    cursor b = *body;
    VARINT(nd->word);
    if (nd->word > mask_of(nd->bits)) REFUSE(BRV_TYPE, "the word to select does not fit");
    *body = b;
    int rc = parse_node(ps, body, 1, nd->count, nd->depth + 1u);
    return rc ? rc : parse_node(ps, body, nd->bits, nd->count, nd->depth + 1u);
}

static int parse_body(parser *ps, uint32_t i, cursor *body)
{
    node *nd = &ps->p->nodes[i];
    cursor b = *body;
    uint8_t kind;
    switch (nd->op) {
    case OP_LIT:
        return parse_lit(ps, i, body);
    case OP_CONST:
        VARINT(nd->word);
        if (nd->word > mask_of(nd->bits)) REFUSE(BRV_TYPE, "constant does not fit the word");
        *body = b;
        return 0;
    case OP_CONCAT:
    case OP_MERGE:
        return parse_many(ps, i, body);
    case OP_REPEAT:
        VARINT(nd->times);
        if (nd->times < 2 || nd->count % nd->times) REFUSE(BRV_TYPE, "repeat count must divide the length");
        if (nd->count / nd->times > MAX_REPEAT_WORDS) REFUSE(BRV_LIMIT, "a repeated child has at most 2^20 words");
        ps->repeated_bytes += nd->count / nd->times * nd->container;
        if (ps->repeated_bytes > MAX_REPEATED_BYTES) REFUSE(BRV_LIMIT, "repeated children take over 16 MiB");
        *body = b;
        return parse_node(ps, body, nd->bits, nd->count / nd->times, nd->depth + 1u);
    case OP_MAP:
        return parse_map(ps, i, body);
    case OP_PALETTE:
        return parse_palette(ps, i, body);
    case OP_SELECT:
        return parse_select(ps, i, body);
    case OP_TRANSPOSE:
        VARINT(nd->times);
        if (nd->times < 2 || nd->times > MAX_COLUMNS) REFUSE(BRV_PARAMETER, "a tile has 2 to 2^20 columns");
        *body = b;
        return parse_node(ps, body, nd->bits, nd->count, nd->depth + 1u);
    case OP_SCAN:
        BYTE(kind);
        nd->fn = kind;
        if (kind > SCAN_ADD) REFUSE(BRV_PARAMETER, "unknown scan");
        if (nd->count < 2) REFUSE(BRV_TYPE, "a scan needs two words");
        *body = b;
        return parse_node(ps, body, nd->bits, nd->count - 1, nd->depth + 1u);
    default:
        REFUSE(BRV_UNKNOWN_OPERATOR, "unknown operator");
    }
}

static int parse_node(parser *ps, cursor *c, unsigned bits, uint64_t count, unsigned depth)
{
    brv_program *p = ps->p;
    const uint32_t i = p->n_nodes;
    uint64_t len;
    if (i == MAX_NODES) return fail(ps->st, BRV_LIMIT, (int)i - 1, "more than 128 nodes");
    if (depth > MAX_DEPTH) REFUSE(BRV_LIMIT, "more than 4 levels below the root");
    if (c->p == c->end) REFUSE(BRV_TRUNCATED, "a node is missing");
    node *nd = &p->nodes[i];
    nd->op = *c->p++;
    int rc = get_varint(c, &len);
    if (rc) REFUSE(rc, "a node's length is cut short or not in its shortest form");
    if (len > left(c)) REFUSE(BRV_TRUNCATED, "a node is longer than what holds it");
    nd->bits = (uint8_t)bits;
    nd->container = (uint8_t)container_of(bits);
    nd->count = count;
    nd->depth = (uint8_t)depth;
    p->n_nodes++;
    cursor body = {c->p, c->p + len};
    if ((rc = parse_body(ps, i, &body))) return rc;
    if (body.p != body.end) REFUSE(BRV_TRAILING, "a node has bytes left over");
    nd->end = p->n_nodes;
    c->p += len;
    return 0;
}

/* ---- shared parts -------------------------------------------------------------------------- */

static int load_repeat(brv_program *p, uint32_t i, cursor item, brv_status *st)
{
    node *nd = &p->nodes[i];
    const uint64_t n = nd->count / nd->times;
    const size_t bytes = (size_t)n * nd->container;
    p->memory += bytes;
    brv_scratch *s = brv_scratch_new();
    nd->repeated = malloc(bytes + 64);
    int rc = !s || !nd->repeated ? fail(st, BRV_NO_MEMORY, (int)i, "out of memory") : 0;
    if (!rc && scratch_reserve(s, scratch_need(p, i + 1, n))) rc = fail(st, BRV_NO_MEMORY, (int)i, "out of memory");
    if (!rc) rc = eval_node(p, s, i + 1, 0, n, &item, nd->repeated, st);
    if (!rc && left(&item)) rc = fail(st, BRV_TRAILING, (int)i, "a repeated child has bytes left over");
    brv_scratch_free(s);
    return rc;
}

/* Items stand in prefix order, but a Repeat's child needs the tables inside it first: so find all
 * items, load the tables, then the Repeats from the innermost. */
static int load_shared(brv_program *p, const uint8_t *shared, size_t len, brv_status *st)
{
    cursor c = {shared, shared + len}, item[MAX_NODES];
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        node *nd = &p->nodes[i];
        const bool coded = nd->tables > 0;
        uint64_t n;
        if (!coded && nd->op != OP_REPEAT) continue;
        int rc = get_varint(&c, &n);
        if (rc || n > left(&c)) return fail(st, rc ? rc : BRV_TRUNCATED, (int)i, "the shared parts are cut short");
        item[i] = (cursor){c.p, c.p + n};
        c.p += n;
        if (!coded) continue;
        if (nd->columns && (rc = columns_load(nd, p->k, &item[i])))
            return fail(st, rc, (int)i, "not valid classes of columns");
        rc = nd->enc == ENC_HUFFMAN ? huff_load(nd, &item[i])
             : nd->enc == ENC_RANS  ? rans_load(nd, p->k, &item[i])
                                    : tunstall_load(nd, &item[i]);
        if (rc) return fail(st, rc, (int)i, "not a valid code table");
    }
    if (left(&c)) return fail(st, BRV_TRAILING, -1, "the shared parts have bytes left over");
    for (uint32_t i = p->n_nodes; i-- > 0;)
        if (p->nodes[i].op == OP_REPEAT) {
            int rc = load_repeat(p, i, item[i], st);
            if (rc) return rc;
        }
    return 0;
}

brv_program *brv_program_new(const uint8_t *wire, size_t wire_len, const uint8_t *shared, size_t shared_len,
                             uint32_t bits, uint64_t count, uint32_t block, const char *cpu, brv_status *st)
{
    *st = (brv_status){.node = -1};
    if (bits < 1 || bits > 64 || count == 0 || count > UINT64_MAX / 64 || (count * bits & 7)) {
        fail(st, BRV_TYPE, -1, "the section's type is out of range");
        return NULL;
    }
    if (block < 64 || block > MAX_BLOCK || block % 64) {
        fail(st, BRV_TYPE, -1, "the block size must be a multiple of 64 up to 2^20");
        return NULL;
    }
    /* No node takes less than two bytes. */
    const size_t most = wire_len / 2 + 1, size = sizeof(brv_program) + (most < MAX_NODES ? most : MAX_NODES) * sizeof(node);
    brv_program *p = calloc(1, size);
    if (!p) {
        fail(st, BRV_NO_MEMORY, -1, "out of memory");
        return NULL;
    }
    p->bits = bits;
    p->count = count;
    p->block = block;
    p->k = kernels_for(cpu);
    p->analysis = shared == NULL;
    parser ps = {.p = p, .st = st};
    cursor c = {wire, wire + wire_len};
    int rc = parse_node(&ps, &c, bits, count, 0);
    if (!rc && left(&c)) rc = fail(st, BRV_TRAILING, -1, "the program has bytes left over");
    if (!rc && shared) rc = load_shared(p, shared, shared_len, st);
    if (rc) {
        brv_program_free(p);
        return NULL;
    }
    p->memory += size + (shared ? ps.table_bytes : 0);
    for (uint32_t i = 0; i < p->n_nodes; i++) p->memory -= rans_unexpanded(&p->nodes[i]);
    const uint64_t words = count < block ? count : block;
    /* the root's words, one partial block, and what the nodes below need */
    p->scratch = scratch_need(p, 0, words) + 2 * ((size_t)words * 8 + 192);
    p->paired = shared ? paired_literal(p) : p->n_nodes;
    return p;
}

void brv_program_free(brv_program *p)
{
    if (!p) return;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        huff_free(&p->nodes[i]);
        rans_free(&p->nodes[i]);
        tunstall_free(&p->nodes[i]);
        free(p->nodes[i].repeated);
        free(p->nodes[i].palette);
        free(p->nodes[i].by_place);
        free(p->nodes[i].classes);
    }
    free(p);
}

size_t brv_program_memory(const brv_program *p) { return p->memory; }
uint32_t brv_node_count(const brv_program *p) { return p->n_nodes; }
uint32_t brv_node_bits(const brv_program *p, uint32_t i) { return i < p->n_nodes ? p->nodes[i].bits : 0; }
