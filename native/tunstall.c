/* Variable-to-fixed codes: codewords of fixed width stand for strings of 1 to 7 words (after Tunstall 1967;
 * the dictionary is prefix-closed and parsed greedily, so that each codeword costs one entry, not an alphabet).
 * Codewords do not wait for each other in decoding. */
#include "internal.h"

typedef struct { uint64_t weight; uint32_t parent; } candidate;

static bool before(candidate a, candidate b)
{
    return a.weight != b.weight ? a.weight > b.weight : a.parent < b.parent;
}

static void sift_down(candidate *heap, size_t n, size_t i)
{
    const candidate x = heap[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && before(heap[c + 1], heap[c])) c++;
        if (!before(heap[c], x)) break;
        heap[i] = heap[c];
    }
    heap[i] = x;
}

static void sift_up(candidate *heap, size_t i)
{
    const candidate x = heap[i];
    for (; i && before(x, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

typedef struct {
    uint32_t freq[256];
    uint8_t symbol[256]; /* by rank: frequency descending, then symbol */
    size_t symbols;
} alphabet;

static void rank_symbols(alphabet *a)
{
    a->symbols = 0;
    for (unsigned s = 0; s < 256; s++) {
        if (!a->freq[s]) continue;
        size_t i = a->symbols++;
        for (; i && a->freq[a->symbol[i - 1]] < a->freq[s]; i--) a->symbol[i] = a->symbol[i - 1];
        a->symbol[i] = (uint8_t)s;
    }
}

/* entry: the string's words from the lowest byte, its length in the top byte */
static uint64_t extend(uint64_t entry, uint8_t symbol)
{
    const unsigned n = (unsigned)(entry >> 56);
    return ((entry & mask_of(56)) | (uint64_t)symbol << (8 * n)) | (uint64_t)(n + 1) << 56;
}

static int grow(tunstall_table *t, const alphabet *a, unsigned bits, unsigned prob_bits)
{
    const size_t limit = (size_t)1 << bits;
    if (a->symbols == 0 || a->symbols > limit) return BRV_TABLE;
    candidate *heap = malloc(limit * sizeof *heap);
    uint64_t *weight = malloc(limit * sizeof *weight);
    uint32_t *kids = calloc(limit, sizeof *kids);
    int rc = heap && weight && kids ? 0 : BRV_NO_MEMORY;
    size_t n = 0, h = 0;
    if (!rc)
        for (; n < a->symbols; n++) {
            const uint8_t s = a->symbol[n];
            t->entry[n] = extend(0, s);
            t->parent[n] = UINT32_MAX;
            weight[n] = (uint64_t)a->freq[s] << (32 - prob_bits);
            heap[h] = (candidate){weight[n] * a->freq[a->symbol[0]] >> prob_bits, (uint32_t)n};
            sift_up(heap, h++);
        }
    while (!rc && n < limit && h) {
        const candidate best = heap[0];
        const uint32_t p = best.parent;
        t->entry[n] = extend(t->entry[p], a->symbol[kids[p]]);
        t->parent[n] = p;
        weight[n] = best.weight;
        if (++kids[p] < a->symbols) heap[0].weight = weight[p] * a->freq[a->symbol[kids[p]]] >> prob_bits;
        else heap[0] = heap[--h];
        sift_down(heap, h, 0);
        if (t->entry[n] >> 56 < 7) {
            heap[h] = (candidate){weight[n] * a->freq[a->symbol[0]] >> prob_bits, (uint32_t)n};
            sift_up(heap, h++);
        }
        n++;
    }
    t->entries = n;
    free(heap);
    free(weight);
    free(kids);
    return rc;
}

int tunstall_load(node *nd, cursor *c)
{
    const size_t limit = (size_t)1 << nd->k;
    nd->tunstall = calloc(nd->tables, sizeof *nd->tunstall);
    if (!nd->tunstall) return BRV_NO_MEMORY;
    for (uint32_t i = 0; i < nd->tables; i++) {
        tunstall_table *t = &nd->tunstall[i];
        alphabet a = {.symbols = 0};
        int rc = rans_read_frequencies(c, (size_t)1 << nd->bits, nd->max_len, a.freq);
        if (rc) return rc;
        t->entry = calloc(limit, sizeof *t->entry);
        t->parent = malloc(limit * sizeof *t->parent);
        if (!t->entry || !t->parent) return BRV_NO_MEMORY;
        rank_symbols(&a);
        if ((rc = grow(t, &a, nd->k, nd->max_len))) return rc;
    }
    return left(c) ? BRV_TRAILING : 0;
}

void tunstall_free(node *nd)
{
    if (!nd->tunstall) return;
    for (uint32_t i = 0; i < nd->tables; i++) {
        free(nd->tunstall[i].entry);
        free(nd->tunstall[i].parent);
    }
    free(nd->tunstall);
}

int tunstall_decode(const node *nd, const brv_kernels *k, cursor item, const class_map *map, void *out, brv_scratch *s)
{
    const size_t mark = s->used;
    uint64_t n;
    if (get_varint(&item, &n)) return BRV_PAYLOAD;
    if (n > map->words || left(&item) != sliced_size((size_t)n, nd->k)) return BRV_PAYLOAD;
    uint16_t *codeword = scratch_take(s, (size_t)n * 2);
    uint8_t *to = out;
    k->unpack(item.p, (size_t)n, nd->k, nd->k <= 8 ? 1 : 2, codeword);
    if (nd->k <= 8) /* widen in place, from the end */
        for (size_t i = (size_t)n; i-- > 0;) codeword[i] = ((uint8_t *)codeword)[i];
    size_t at = 0;
    for (uint32_t c = 0; c < nd->tables; c++) {
        const size_t from = at, entries = nd->tunstall[c].entries;
        at = k->tunstall(nd->tunstall[c].entry, codeword, at, (size_t)n, to, map->count[c]);
        if (at == SIZE_MAX) return BRV_PAYLOAD;
        if (entries < (size_t)1 << nd->k) /* a codeword of no entry gives no words */
            for (size_t i = from; i < at; i++)
                if (codeword[i] >= entries) return BRV_PAYLOAD;
        to += map->count[c];
    }
    if (at != n) return BRV_PAYLOAD;
    s->used = mark;
    return 0;
}

/* The parse as an automaton: in state e, the entry read so far, a word of rank r leads to go[e << row | r], which is a
 * longer entry, or with ENDS the entry of that word alone, before which the string e ends. */
typedef struct {
    uint16_t rank[256]; /* ABSENT_RANK: no such symbol */
    unsigned row;
    uint16_t *go;
} automaton;

#define ENDS 0x8000u
#define ABSENT_RANK 0x8000u

static int make_automaton(const tunstall_table *t, automaton *a)
{
    size_t ranks = 0;
    for (size_t s = 0; s < 256; s++) a->rank[s] = ABSENT_RANK;
    for (; ranks < t->entries && t->parent[ranks] == UINT32_MAX; ranks++) /* single words stand in rank order */
        a->rank[t->entry[ranks] & 0xff] = (uint16_t)ranks;
    a->row = bits_for(ranks);
    a->go = malloc((t->entries << a->row) * sizeof *a->go);
    uint16_t *children = calloc(t->entries, sizeof *children);
    if (!a->go || !children) {
        free(a->go);
        free(children);
        return BRV_NO_MEMORY;
    }
    for (size_t e = 0; e < t->entries; e++)
        for (size_t r = 0; r < ranks; r++) a->go[e << a->row | r] = (uint16_t)(r | ENDS);
    for (size_t i = ranks; i < t->entries; i++)
        a->go[t->parent[i] << a->row | children[t->parent[i]]++] = (uint16_t)i;
    free(children);
    return 0;
}

enum { PARSES = 4 }; /* side by side, for each step of one waits for the one before */

/* Parse PARSES quarters of m words, which costs a string or two; the codewords of quarter j go to codeword + j * q.
 * The words are ranks, all present. */
static void parse_quarters(const automaton *a, const uint8_t *w, size_t q, uint16_t *codeword, size_t *n)
{
    uint32_t e[PARSES];
    uint16_t *to[PARSES];
    for (unsigned j = 0; j < PARSES; j++) {
        e[j] = a->rank[w[j * q]];
        to[j] = codeword + j * q;
    }
    for (size_t i = 1; i < q; i++)
        for (unsigned j = 0; j < PARSES; j++) {
            const uint32_t g = a->go[e[j] << a->row | a->rank[w[j * q + i]]];
            *to[j] = (uint16_t)e[j];
            to[j] += g >> 15;
            e[j] = g & (ENDS - 1);
        }
    for (unsigned j = 0; j < PARSES; j++) {
        *to[j]++ = (uint16_t)e[j];
        n[j] = (size_t)(to[j] - codeword) - j * q;
    }
}

/* The longest string each time, but for the few that would go from one quarter into the next; returns the number of
 * codewords, SIZE_MAX if a symbol is absent. */
static size_t parse_strings(const automaton *a, const uint8_t *w, size_t m, uint16_t *codeword)
{
    unsigned seen = 0;
    for (size_t i = 0; i < m; i++) seen |= a->rank[w[i]];
    if (seen & ABSENT_RANK) return SIZE_MAX;
    const size_t q = m / PARSES;
    size_t count[PARSES], n = 0;
    if (q) {
        parse_quarters(a, w, q, codeword, count);
        for (unsigned j = 0; j < PARSES; n += count[j++]) memmove(codeword + n, codeword + j * q, count[j] * sizeof *codeword);
    }
    for (size_t i = q * PARSES; i < m; i++) codeword[n++] = a->rank[w[i]];
    return n;
}

int tunstall_encode(const node *nd, const brv_kernels *k, const void *words, const class_map *map, uint8_t *out,
                    size_t cap, size_t *len, brv_scratch *s)
{
    if (cap < 3 * map->words + 64) return BRV_NO_ROOM;
    const size_t mark = s->used;
    size_t n = 0;
    uint16_t *codeword = scratch_take(s, 2 * map->words);
    const uint8_t *w = words;
    for (uint32_t c = 0; c < nd->tables; c++) {
        if (!map->count[c]) continue;
        automaton a;
        if (make_automaton(&nd->tunstall[c], &a)) return BRV_NO_MEMORY;
        const size_t strings = parse_strings(&a, w, map->count[c], codeword + n);
        free(a.go);
        if (strings == SIZE_MAX) return BRV_NOT_APPLICABLE;
        n += strings;
        w += map->count[c];
    }
    const size_t head = put_varint(out, n);
    k->pack(codeword, n, nd->k, 2, out + head);
    *len = head + sliced_size(n, nd->k);
    s->used = mark;
    return 0;
}
