/* Where to cut words into fields: the best Merge of literals for a stream.
 *
 * A field's cost does not depend on the others', so the best cut is a shortest path over bit positions. Coded fields
 * enter it with a bound below what they can cost; those on the best path are priced and the search goes on until all
 * of a best path is priced. Then the cuts that decode in one pass are tried: what they save is no field's alone. */
#include "plan_internal.h"

enum {
    MOST_BITS = 64,
    JOINT_BITS = 12,        /* of a histogram from which those of narrow fields are folded */
    FEW_WORDS = 1 << 13,    /* up to so many it is quicker to count every field */
    MOST_WORDS = 1 << 18,   /* tell enough of low bits: so many in runs of RUN_WORDS */
    RUN_WORDS = 1 << 12,
    MOST_CHUNKS = 1 << 10,
    MOST_TOP = 4,           /* bits above the symbol in words that one pass decodes */
    LEAST_SYMBOL = 5,       /* bits of such a symbol */
    ZSTD_BLOCK_BYTES = 24,  /* what a zstd frame costs whatever it holds */
    SLOT = 2 << BRV_SYMBOL_BITS, /* of the histograms of the fields that begin at one bit */
};

typedef struct {
    unsigned bits;
    uint64_t count, block, word, varying;
    const brv_tolls *t;
    double toll;          /* of one more field */
    uint64_t *hists;      /* [bits][SLOT]: that of `width` bits begins at 2^width */
    double changing[MOST_BITS][MOST_BITS + 1]; /* by low and high: the share of chunks in which the field varies */
    bool uneven;          /* whether some chunks vary in other bits than others */
    double rank[MOST_BITS][MOST_BITS + 1];
    brv_choice choice[MOST_BITS][MOST_BITS + 1];
    bool priced[MOST_BITS][MOST_BITS + 1];
} prices;

static uint64_t *hist_of(const prices *p, unsigned low, unsigned width) { return p->hists + low * SLOT + ((size_t)1 << width); }
static bool varies(const prices *p, unsigned low, unsigned high) { return (p->varying & mask_of(high) & ~mask_of(low)) != 0; }

/* ---- histograms of all narrow fields ------------------------------------------------------- */

/* From that of the widest field at a bit those of the others. */
static void fold_narrower(uint64_t *slot, unsigned width)
{
    for (; width > 1; width--) {
        const size_t half = (size_t)1 << (width - 1);
        for (size_t i = 0; i < half; i++) slot[half + i] = slot[2 * half + i] + slot[3 * half + i];
    }
}

/* Fields that begin at bits low .. stop - 1, from the joint histogram of `wide` bits from low on, which is used up. */
static void fold_joint(const prices *p, unsigned low, unsigned stop, unsigned wide, uint32_t *joint)
{
    for (;; low++, wide--) {
        const unsigned width = wide < BRV_SYMBOL_BITS ? wide : BRV_SYMBOL_BITS;
        uint64_t *slot = p->hists + low * SLOT;
        uint32_t sum[1 << BRV_SYMBOL_BITS] = {0};
        for (size_t at = 0; at < (size_t)1 << wide; at += (size_t)1 << width)
            for (size_t i = 0; i < (size_t)1 << width; i++) sum[i] += joint[at + i];
        for (size_t i = 0; i < (size_t)1 << width; i++) slot[((size_t)1 << width) + i] = sum[i];
        fold_narrower(slot, width);
        if (low + 1 == stop) return;
        for (size_t i = 0; i < (size_t)1 << (wide - 1); i++) joint[i] = joint[2 * i] + joint[2 * i + 1];
    }
}

static void count_fields(const prices *p, const void *words, size_t n)
{
    const unsigned container = container_of(p->bits);
    if (n <= FEW_WORDS) {
        for (unsigned low = 0; low < p->bits; low++) {
            const unsigned width = p->bits - low < BRV_SYMBOL_BITS ? p->bits - low : BRV_SYMBOL_BITS;
            uint64_t *slot = p->hists + low * SLOT;
            count_narrow(words, n, container, low, width, slot + ((size_t)1 << width));
            fold_narrower(slot, width);
        }
        return;
    }
    const unsigned wide = p->bits < JOINT_BITS ? p->bits : JOINT_BITS;
    uint32_t joint[2 << JOINT_BITS];
    for (unsigned low = 0; low < p->bits;) {
        const bool last = low + wide >= p->bits;
        if (last) low = p->bits - wide;
        const bool all = last || n <= MOST_WORDS;
        const size_t runs = all ? 1 : MOST_WORDS / RUN_WORDS, length = all ? n : RUN_WORDS;
        const unsigned stop = last ? p->bits : low + JOINT_BITS - BRV_SYMBOL_BITS;
        memset(joint, 0, sizeof *joint << (wide + 1));
        for (size_t r = 0; r < runs; r++) {
            const size_t at = (2 * r + 1) * (n - length) / (2 * runs);
            count_wide((const uint8_t *)words + at * container, length, container, low, wide, joint);
        }
        for (size_t i = 0; i < (size_t)1 << wide; i++) joint[i] += joint[((size_t)1 << wide) + i];
        fold_joint(p, low, stop, wide, joint);
        low = stop;
    }
}

/* ---- which bits vary ----------------------------------------------------------------------- */

/* From the set of bits that vary in each chunk, how many chunks have one of each field. */
static void note_changes(prices *p, const void *words, size_t n)
{
    const unsigned container = container_of(p->bits), bits = p->bits;
    const size_t chunks = n / BRV_CHUNK, step = (chunks + MOST_CHUNKS - 1) / MOST_CHUNKS;
    static const uint32_t none[MOST_BITS + 1];
    uint32_t first[MOST_BITS][MOST_BITS + 1]; /* by low: chunks by the lowest varying bit from there on */
    uint64_t before = 0, seen = 0;
    for (unsigned low = 0; low < bits; low++) memcpy(first[low], none, sizeof none);
    for (size_t c = 0; c < chunks; c += step, seen++) {
        uint64_t any = 0, all = 0;
        brv_survey((const uint8_t *)words + c * BRV_CHUNK * container, BRV_CHUNK, container, BRV_CHUNK, &any, &all);
        uint64_t set = any & ~all;
        p->uneven |= seen && set != before;
        before = set;
        for (unsigned low = bits; low-- > 0; ) {
            const uint64_t from = set >> low;
            first[low][from ? low + (unsigned)__builtin_ctzll(from) : MOST_BITS]++;
        }
    }
    for (unsigned low = 0; p->uneven && low < bits; low++) {
        uint64_t holding = 0;
        for (unsigned high = low + 1; high <= bits; high++) {
            holding += first[low][high - 1];
            p->changing[low][high] = (double)holding / (double)seen;
        }
    }
}

static void note_varying(prices *p, const void *words, size_t n)
{
    uint64_t any = 0, all = 0;
    brv_survey(words, n, container_of(p->bits), n, &any, &all);
    p->varying = any & ~all;
    p->word = load_word(words, container_of(p->bits), 0);
}

/* ---- prices -------------------------------------------------------------------------------- */

static double field_time(const prices *p) { return p->t->field * container_of(p->bits); }

/* zstd, for fields that vary in a part of the chunks: the others are cheap. */
static void runs(const prices *p, unsigned low, unsigned high, brv_choice *out)
{
    const double size = (double)p->count * (high - low) / 8, changing = p->changing[low][high];
    const double blocks = (double)(p->count / p->block + (p->count % p->block != 0));
    const double still = size * (1 - changing) / (4 * BRV_CHUNK);
    *out = (brv_choice){.way = BRV_ZSTD,
                        .size = BRV_NODE_BYTES + size * changing + still + blocks * ZSTD_BLOCK_BYTES,
                        .toll = size * (p->t->toll * p->t->zstd_byte / 8)};
}

/* Const, raw or zstd */
static void plain(const prices *p, unsigned low, unsigned high, brv_choice *out)
{
    *out = (brv_choice){.way = BRV_CONST, .word = (p->word & mask_of(high)) >> low, .size = BRV_NODE_BYTES};
    if (varies(p, low, high)) {
        brv_choice other;
        *out = (brv_choice){.way = BRV_RAW, .size = BRV_NODE_BYTES + (double)p->count * (high - low) / 8};
        if (p->uneven) {
            runs(p, low, high, &other);
            if (rank_of(&other) < rank_of(out)) *out = other;
        }
    }
    out->low = low;
    out->width = high - low;
}

/* Every field with what it costs if plain, or a bound below that. Those worth coding are left to be priced. */
static void bound_all(prices *p)
{
    for (unsigned low = 0; low < p->bits; low++)
        for (unsigned high = low + 1; high <= p->bits; high++) {
            brv_choice *c = &p->choice[low][high];
            plain(p, low, high, c);
            p->rank[low][high] = p->toll + rank_of(c);
            p->priced[low][high] = true;
            if (high - low > BRV_SYMBOL_BITS || !varies(p, low, high)) continue;
            const double floor = p->toll + floor_of(hist_of(p, low, high - low), high - low, p->count, p->block, p->t);
            if (floor < p->rank[low][high]) {
                p->rank[low][high] = floor;
                p->priced[low][high] = false;
            }
        }
}

/* false if that changed the field's rank */
static bool settle(prices *p, unsigned low, unsigned high)
{
    if (p->priced[low][high]) return true;
    brv_choice *c = &p->choice[low][high], other;
    complete(hist_of(p, low, high - low), high - low, p->count, p->block, p->t, &other);
    other.low = low;
    if (rank_of(&other) < rank_of(c)) *c = other;
    const double floor = p->rank[low][high];
    p->rank[low][high] = p->toll + rank_of(c);
    p->priced[low][high] = true;
    return floor == p->rank[low][high];
}

/* ---- cuts ---------------------------------------------------------------------------------- */

/* A cut: edges[0] = bits, then falling to 0 at edges[n]. */
typedef struct {
    unsigned edge[MOST_BITS + 1], n;
} cut;

static void shortest(const prices *p, cut *path)
{
    double total[MOST_BITS + 1] = {0};
    unsigned from[MOST_BITS + 1];
    for (unsigned high = 1; high <= p->bits; high++) {
        from[high] = 0;
        total[high] = p->rank[0][high];
        for (unsigned low = 1; low < high; low++)
            if (total[low] + p->rank[low][high] < total[high]) {
                total[high] = total[low] + p->rank[low][high];
                from[high] = low;
            }
    }
    path->n = 0;
    path->edge[0] = p->bits;
    for (unsigned at = p->bits; at; path->edge[++path->n] = at) at = from[at];
}

/* Fields of a cut that one pass decodes: one or two that hardly vary or none, a symbol of at most 8 bits, raw bits of
 * which there are not too many; in words of 8 bits a symbol and raw bits. */
static bool joinable(const prices *p, const cut *c)
{
    if (c->n < 2 || p->choice[0][c->edge[c->n - 1]].way != BRV_RAW) return false;
    if (p->bits == BRV_SYMBOL_BITS) return c->n == 2;
    if ((p->bits != 16 && p->bits != 32) || c->n > 4) return false;
    const unsigned symbol = c->edge[c->n - 2], rest = c->edge[c->n - 1];
    for (unsigned i = 0; i + 2 < c->n; i++) {
        const int way = p->choice[c->edge[i + 1]][c->edge[i]].way;
        if (way != BRV_CONST && way != BRV_SPARSE) return false;
    }
    return p->bits - symbol <= MOST_TOP && symbol - rest <= BRV_SYMBOL_BITS && rest <= (p->bits == 16 ? 14 : 24);
}

/* What the Merge of the fields of a cut that are priced ranks; the only field itself. */
static double merged(const prices *p, const cut *c)
{
    double sum = 0;
    for (unsigned i = 0; i < c->n; i++) sum += rank_of(&p->choice[c->edge[i + 1]][c->edge[i]]);
    if (c->n == 1) return sum;
    const double ns = joinable(p, c) ? p->t->joined : field_time(p) * c->n;
    return sum + BRV_NODE_BYTES + p->t->toll * (double)p->count * ns / 8;
}

/* The next of the cuts that may be joined, by the bits of top and symbol; false if there are no more. */
static bool joined_cut(const prices *p, unsigned *top, unsigned *symbol, cut *c)
{
    if (p->bits == BRV_SYMBOL_BITS) {
        *c = (cut){{p->bits, BRV_SYMBOL_BITS - --*symbol, 0}, 2};
        return BRV_SYMBOL_BITS - *symbol <= MOST_TOP + 1;
    }
    if (p->bits != 16 && p->bits != 32) return false;
    if (--*symbol < LEAST_SYMBOL || p->bits - *top - *symbol > 24) {
        *symbol = BRV_SYMBOL_BITS;
        if (++*top > MOST_TOP) return false;
    }
    const unsigned rest = p->bits - *top - *symbol;
    *c = *top ? (cut){{p->bits, p->bits - *top, rest, 0}, 3} : (cut){{p->bits, rest, 0}, 2};
    return true;
}

/* Prices the fields of a cut one after another, as long as they may come to less; false if they do not. */
static bool settles_below(prices *p, const cut *c, double least)
{
    double floor = BRV_NODE_BYTES + p->t->toll * (double)p->count * fmin(p->t->joined, field_time(p) * c->n) / 8;
    for (unsigned i = 0; i < c->n; i++) floor += p->rank[c->edge[i + 1]][c->edge[i]] - p->toll;
    for (unsigned i = 0; i < c->n && floor < least; i++) {
        double *rank = &p->rank[c->edge[i + 1]][c->edge[i]];
        floor -= *rank;
        settle(p, c->edge[i + 1], c->edge[i]);
        floor += *rank;
    }
    return floor < least;
}

static void best_cut(prices *p, cut *best)
{
    for (bool settled = false; !settled;) {
        shortest(p, best);
        settled = true;
        for (unsigned i = 0; i < best->n; i++) settled &= settle(p, best->edge[i + 1], best->edge[i]);
    }
    double least = merged(p, best);
    cut other;
    unsigned top = 0, symbol = BRV_SYMBOL_BITS + (p->bits > BRV_SYMBOL_BITS);
    while (joined_cut(p, &top, &symbol, &other)) {
        if (!settles_below(p, &other, least)) continue;
        const double rank = merged(p, &other);
        if (rank < least) {
            least = rank;
            *best = other;
        }
    }
}

int brv_split(const void *words, size_t n, unsigned bits, uint64_t count, uint64_t block, const brv_tolls *tolls,
              brv_choice *fields, size_t *n_fields)
{
    if (bits < 1 || bits > MOST_BITS || n < 1 || n > UINT32_MAX / 2 || !count || !block) return BRV_ARGUMENT;
    prices *p = malloc(sizeof *p);
    if (!p) return BRV_NO_MEMORY;
    p->bits = bits;
    p->count = count;
    p->block = block;
    p->t = tolls;
    p->toll = tolls->toll * (double)count * field_time(p) / 8;
    p->uneven = false;
    p->hists = calloc(bits, SLOT * sizeof *p->hists);
    const int rc = p->hists ? 0 : BRV_NO_MEMORY;
    if (!rc) {
        cut best;
        count_fields(p, words, n);
        note_varying(p, words, n);
        note_changes(p, words, n);
        bound_all(p);
        best_cut(p, &best);
        for (unsigned i = 0; i < best.n; i++) fields[i] = p->choice[best.edge[i + 1]][best.edge[i]];
        *n_fields = best.n;
    }
    free(p->hists);
    free(p);
    return rc;
}
