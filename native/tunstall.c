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

/* Children of every entry by rank, as a table for the encoder. */
typedef struct {
    uint32_t first[4096], count[4096]; /* into child */
    uint16_t child[4096];
    uint16_t root[256], rank[256]; /* UINT16_MAX: the symbol is absent */
} trie;

static void make_trie(const tunstall_table *t, trie *r)
{
    memset(r->count, 0, sizeof r->count);
    memset(r->root, 0xff, sizeof r->root);
    memset(r->rank, 0xff, sizeof r->rank);
    for (size_t i = 0; i < t->entries; i++) {
        if (t->parent[i] == UINT32_MAX) {
            r->root[t->entry[i] & 0xff] = (uint16_t)i;
            r->rank[t->entry[i] & 0xff] = (uint16_t)i; /* roots stand in rank order */
        } else r->count[t->parent[i]]++;
    }
    for (size_t i = 0, sum = 0; i < t->entries; i++) {
        r->first[i] = (uint32_t)sum;
        sum += r->count[i];
        r->count[i] = 0;
    }
    for (size_t i = 0; i < t->entries; i++) {
        const uint32_t p = t->parent[i];
        if (p != UINT32_MAX) r->child[r->first[p] + r->count[p]++] = (uint16_t)i;
    }
}

int tunstall_encode(const node *nd, const brv_kernels *k, const void *words, const class_map *map, uint8_t *out,
                    size_t cap, size_t *len, brv_scratch *s)
{
    if (cap < 3 * map->words + 64) return BRV_NO_ROOM;
    const size_t mark = s->used;
    size_t n = 0;
    uint16_t *codeword = scratch_take(s, 2 * map->words);
    trie *r = malloc(sizeof *r);
    if (!r) return BRV_NO_MEMORY;
    const uint8_t *w = words;
    for (uint32_t c = 0; c < nd->tables; c++) {
        if (!map->count[c]) continue;
        make_trie(&nd->tunstall[c], r);
        for (const uint8_t *end = w + map->count[c]; w < end;) {
            uint16_t e = r->root[*w++];
            if (e == UINT16_MAX) {
                free(r);
                return BRV_NOT_APPLICABLE;
            }
            while (w < end && r->rank[*w] < r->count[e]) e = r->child[r->first[e] + r->rank[*w++]];
            codeword[n++] = e;
        }
    }
    free(r);
    const size_t head = put_varint(out, n);
    k->pack(codeword, n, nd->k, 2, out + head);
    *len = head + sliced_size(n, nd->k);
    s->used = mark;
    return 0;
}
