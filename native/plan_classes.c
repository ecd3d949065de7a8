/* Classes of segments: those whose words are alike share a table.
 *
 * k-means whose distance is code length, on histograms of the leading bits; then the two classes most alike become
 * one, again and again, and the number of them that ranks best is kept. Code lengths are whole 1/256 bits and
 * information whole bits, so that sums are exact. */
#include "plan_internal.h"

enum {
    COARSE = 1 << BRV_COARSE_BITS,
    MOST_SEGMENTS = 4096,
    MOST_MEANS = 2 * BRV_MOST_CLASSES,
    ROUNDS = 4,
    AT_ONCE = 4, /* segments counted side by side, so that a repeated word does not wait for its own store */
};

typedef int16_t coarse_row[COARSE];

typedef struct {
    unsigned width, shift;  /* bits a word; by which counts are shifted to fit 15 bits */
    size_t segments, symbols;
    uint32_t *full;         /* [segments][symbols] */
    coarse_row *coarse;     /* [segments] */
    uint8_t *class;         /* [segments] */
    unsigned classes;
    coarse_row length[MOST_MEANS]; /* [classes] */
    double member[MOST_MEANS][COARSE];
} learner;

/* Up to AT_ONCE neighbouring segments. */
static void count_segments(const uint8_t *words, size_t segment, size_t symbols, size_t many, uint32_t *full)
{
    size_t i = 0;
    memset(full, 0, many * symbols * sizeof *full);
    for (; many == AT_ONCE && i + 8 <= segment; i += 8) {
        uint64_t next[AT_ONCE];
        for (size_t s = 0; s < AT_ONCE; s++) next[s] = load64(words + s * segment + i);
        for (unsigned j = 0; j < 64; j += 8)
            for (size_t s = 0; s < AT_ONCE; s++) full[s * symbols + (next[s] >> j & 0xff)]++;
    }
    for (size_t s = 0; s < many; s++)
        for (size_t j = i; j < segment; j++) full[s * symbols + words[s * segment + j]]++;
}

static void add_counts(uint32_t *restrict to, const uint32_t *restrict counts, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] += counts[i];
}

static inline void fold_by(const uint32_t *restrict full, unsigned fold, size_t bins, unsigned shift, int16_t *restrict row)
{
    for (size_t b = 0; b < bins; b++) {
        uint32_t sum = 0;
        for (unsigned j = 0; j < fold; j++) sum += full[b * fold + j];
        row[b] = (int16_t)(sum >> shift);
    }
}

static void count_leading(const uint32_t *full, unsigned width, unsigned shift, coarse_row row)
{
    if (width == BRV_SYMBOL_BITS) fold_by(full, 4, COARSE, shift, row);
    else if (width == BRV_SYMBOL_BITS - 1) fold_by(full, 2, COARSE, shift, row);
    else {
        memset(row, 0, sizeof(coarse_row));
        fold_by(full, 1, (size_t)1 << width, shift, row);
    }
}

static unsigned shift_for(size_t segment)
{
    unsigned shift = 0;
    while (segment >> shift > INT16_MAX) shift++;
    return shift;
}

static int32_t cost(const coarse_row row, const coarse_row length)
{
    int32_t sum = 0;
    for (unsigned b = 0; b < COARSE; b++) sum += (int32_t)row[b] * length[b];
    return sum;
}

static unsigned nearest(const coarse_row row, const coarse_row *length, unsigned classes)
{
    unsigned best = 0;
    int32_t least = cost(row, length[0]);
    for (unsigned c = 1; c < classes; c++) {
        const int32_t bits = cost(row, length[c]);
        if (bits < least) {
            least = bits;
            best = c;
        }
    }
    return best;
}

/* Bits of each leading part in a class, those it never had too. */
static void code_lengths(const double *count, unsigned width, coarse_row length)
{
    const unsigned bins = width < BRV_COARSE_BITS ? 1u << width : COARSE;
    double total = 0;
    for (unsigned b = 0; b < bins; b++) total += count[b] + 0.02;
    const double log = log2_of(total);
    memset(length, 0, sizeof(coarse_row));
    for (unsigned b = 0; b < bins; b++) length[b] = (int16_t)floor(256 * (log - log2_of(count[b] + 0.02)) + 0.5);
}

/* Counts and code lengths of each class. */
static void gather(learner *l)
{
    uint32_t sum[MOST_MEANS][COARSE] = {{0}};
    for (size_t s = 0; s < l->segments; s++) {
        uint32_t *restrict to = sum[l->class[s]];
        const int16_t *restrict row = l->coarse[s];
        for (unsigned b = 0; b < COARSE; b++) to[b] += (uint32_t)row[b];
    }
    for (unsigned c = 0; c < l->classes; c++) {
        for (unsigned b = 0; b < COARSE; b++) l->member[c][b] = sum[c][b];
        code_lengths(l->member[c], l->width, l->length[c]);
    }
}

/* Classes without numbers that none has. */
static void renumber(learner *l)
{
    uint8_t number[MOST_MEANS] = {0};
    for (size_t s = 0; s < l->segments; s++) number[l->class[s]] = 1;
    l->classes = 0;
    for (unsigned c = 0; c < MOST_MEANS; c++)
        if (number[c]) number[c] = (uint8_t)l->classes++;
    for (size_t s = 0; s < l->segments; s++) l->class[s] = number[l->class[s]];
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Up to `size` classes that suit the segments, none empty. */
static int k_means(learner *l, unsigned size)
{
    uint64_t *order = malloc(l->segments * sizeof *order);
    if (!order) return BRV_NO_MEMORY;
    memset(l->class, 0, l->segments);
    l->classes = 1;
    gather(l);
    /* Segments that a common table codes equally well are alike enough to begin with. */
    for (size_t s = 0; s < l->segments; s++) order[s] = (uint64_t)(uint32_t)cost(l->coarse[s], l->length[0]) << 32 | s;
    qsort(order, l->segments, sizeof *order, by_value);
    for (size_t i = 0; i < l->segments; i++) l->class[(uint32_t)order[i]] = (uint8_t)(i * size / l->segments);
    free(order);
    l->classes = size;
    for (unsigned round = 0; round < ROUNDS; round++) {
        gather(l);
        for (size_t s = 0; s < l->segments; s++)
            l->class[s] = (uint8_t)nearest(l->coarse[s], (const coarse_row *)l->length, l->classes);
        renumber(l);
    }
    gather(l);
    return 0;
}

/* ---- merging ------------------------------------------------------------------------------- */

typedef struct {
    double member[MOST_MEANS][COARSE], alone[MOST_MEANS], apart[MOST_MEANS][MOST_MEANS];
    bool gone[MOST_MEANS];
    unsigned became[MOST_MEANS]; /* of each class at the start, the one it is part of now */
    unsigned classes;
} merger;

/* Bits of the words of two histograms together, or of one, in whole bits. */
static double information(const double *a, const double *b)
{
    double total = 0, terms = 0;
    for (unsigned i = 0; i < COARSE; i++) {
        const double n = a[i] + (b ? b[i] : 0);
        total += n;
        if (n > 1) terms += n * log2_of(n);
    }
    return total > 1 ? floor(total * log2_of(total) - terms + 0.5) : 0;
}

static void compare(merger *m, unsigned c)
{
    for (unsigned o = 0; o < m->classes; o++)
        if (o != c && !m->gone[o])
            m->apart[c][o] = m->apart[o][c] = information(m->member[c], m->member[o]) - m->alone[c] - m->alone[o];
}

static void start_merging(const learner *l, merger *m)
{
    memcpy(m->member, l->member, sizeof m->member);
    memset(m->gone, 0, sizeof m->gone);
    m->classes = l->classes;
    for (unsigned c = 0; c < m->classes; c++) {
        m->became[c] = c;
        m->alone[c] = information(m->member[c], NULL);
    }
    for (unsigned c = 1; c < m->classes; c++)
        for (unsigned o = 0; o < c; o++)
            m->apart[c][o] = m->apart[o][c] = information(m->member[c], m->member[o]) - m->alone[c] - m->alone[o];
}

/* The two classes most alike become one. */
static void merge_two(merger *m)
{
    unsigned kept = 0, gone = 0;
    double least = INFINITY;
    for (unsigned c = 0; c < m->classes; c++)
        for (unsigned o = c + 1; o < m->classes; o++)
            if (!m->gone[c] && !m->gone[o] && m->apart[c][o] < least) {
                least = m->apart[c][o];
                kept = c;
                gone = o;
            }
    m->gone[gone] = true;
    for (unsigned c = 0; c < m->classes; c++)
        if (m->became[c] == gone) m->became[c] = kept;
    for (unsigned b = 0; b < COARSE; b++) m->member[kept][b] += m->member[gone][b];
    m->alone[kept] = information(m->member[kept], NULL);
    compare(m, kept);
}

/* Numbers without gaps: of each class at the start, the one it is part of now. */
static void numbered(const merger *m, unsigned *number)
{
    unsigned next = 0, of[MOST_MEANS];
    for (unsigned c = 0; c < m->classes; c++)
        if (!m->gone[c]) of[c] = next++;
    for (unsigned c = 0; c < m->classes; c++) number[c] = of[m->became[c]];
}

/* What coding the words of `size` classes ranks, of which each is made of those that have its number. */
static double rank_classes(const learner *l, const uint32_t *hists, const unsigned *number, unsigned size,
                           const brv_coding *coding, const brv_tolls *t, uint64_t *room)
{
    brv_choice choice;
    memset(room, 0, size * l->symbols * sizeof *room);
    for (unsigned c = 0; c < l->classes; c++)
        for (size_t s = 0; s < l->symbols; s++) room[number[c] * l->symbols + s] += hists[c * l->symbols + s];
    coded(coding->way, room, size, l->width, coding->segment, coding->words, coding->block, t, &choice);
    return rank_of(&choice) + (size > coding->few ? coding->many : 0);
}

/* The number of classes that ranks best, and to which of them each class belongs. */
static int best_merging(const learner *l, const brv_coding *coding, const brv_tolls *t, unsigned *best, uint32_t *tables,
                        double *rank)
{
    uint32_t *hists = calloc(MOST_MEANS * l->symbols, sizeof *hists);
    uint64_t *room = malloc(BRV_MOST_CLASSES * l->symbols * sizeof *room);
    merger *m = malloc(sizeof *m);
    const int rc = hists && room && m ? 0 : BRV_NO_MEMORY;
    *rank = INFINITY;
    *tables = 1;
    if (!rc) {
        for (size_t s = 0; s < l->segments; s++)
            add_counts(hists + l->class[s] * l->symbols, l->full + s * l->symbols, l->symbols);
        start_merging(l, m);
        for (unsigned size = m->classes; size; size--) {
            if (size <= coding->most && (size <= coding->few || size % 2 == 0)) {
                unsigned number[MOST_MEANS];
                numbered(m, number);
                const double reached = rank_classes(l, hists, number, size, coding, t, room);
                if (reached < *rank) {
                    *rank = reached;
                    *tables = size;
                    memcpy(best, number, sizeof number);
                }
            }
            if (size > 1) merge_two(m);
        }
    }
    free(hists);
    free(room);
    free(m);
    return rc;
}

static bool all_below(const uint8_t *words, size_t n, unsigned width)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= words[i];
    return any >> width == 0;
}

int brv_learn(const uint8_t *words, size_t n, const brv_coding *coding, const brv_tolls *tolls, uint32_t *tables,
              double *rank, int16_t *lengths)
{
    if (coding->width < 1 || coding->width > BRV_SYMBOL_BITS || coding->most < 1 || coding->most > BRV_MOST_CLASSES ||
        !coding->segment || n % coding->segment || n == 0 || n / coding->segment > MOST_SEGMENTS ||
        n > INT32_MAX || !coding->words || !coding->block ||
        (coding->way != BRV_HUFFMAN && coding->way != BRV_RANS))
        return BRV_ARGUMENT;
    const size_t segment = (size_t)coding->segment, segments = n / segment, symbols = (size_t)1 << coding->width;
    if (!all_below(words, n, coding->width)) return BRV_ARGUMENT;
    learner *l = malloc(sizeof *l);
    if (!l) return BRV_NO_MEMORY;
    *l = (learner){.width = coding->width, .shift = shift_for(segment), .segments = segments, .symbols = symbols};
    l->full = malloc(segments * symbols * sizeof *l->full);
    l->coarse = malloc(segments * sizeof *l->coarse);
    l->class = malloc(segments);
    int rc = l->full && l->coarse && l->class ? 0 : BRV_NO_MEMORY;
    if (!rc) {
        for (size_t s = 0, many; s < segments; s += many) {
            many = segments - s < AT_ONCE ? 1 : AT_ONCE;
            count_segments(words + s * segment, segment, symbols, many, l->full + s * symbols);
        }
        for (size_t s = 0; s < segments; s++) count_leading(l->full + s * symbols, l->width, l->shift, l->coarse[s]);
        const size_t size = 2 * (size_t)coding->most;
        rc = k_means(l, (unsigned)(size < segments ? size : segments));
    }
    unsigned best[MOST_MEANS] = {0};
    if (!rc) rc = best_merging(l, coding, tolls, best, tables, rank);
    if (!rc) {
        for (size_t s = 0; s < segments; s++) l->class[s] = (uint8_t)best[l->class[s]];
        l->classes = *tables;
        gather(l);
        memcpy(lengths, l->length, *tables * sizeof(coarse_row));
    }
    free(l->full);
    free(l->coarse);
    free(l->class);
    free(l);
    return rc;
}

int brv_assign(const uint8_t *words, size_t n, size_t segment, unsigned width, const int16_t *lengths,
               uint32_t tables, uint8_t *classes, uint64_t *hists)
{
    if (width < 1 || width > BRV_SYMBOL_BITS || !segment || segment > INT32_MAX || n > INT32_MAX || !tables || tables > BRV_MOST_CLASSES)
        return BRV_ARGUMENT;
    const size_t symbols = (size_t)1 << width, segments = n / segment + (n % segment != 0);
    const unsigned shift = shift_for(segment);
    uint32_t full[AT_ONCE << BRV_SYMBOL_BITS], sums[BRV_MOST_CLASSES << BRV_SYMBOL_BITS] = {0};
    if (!all_below(words, n, width)) return BRV_ARGUMENT;
    for (size_t s = 0, many; s < segments; s += many) {
        const bool whole = n - s * segment >= AT_ONCE * segment;
        const size_t length = n - s * segment < segment ? n - s * segment : segment;
        many = whole ? AT_ONCE : 1;
        count_segments(words + s * segment, length, symbols, many, full);
        for (size_t j = 0; j < many; j++) {
            coarse_row row;
            count_leading(full + j * symbols, width, shift, row);
            const unsigned c = nearest(row, (const coarse_row *)lengths, tables);
            classes[s + j] = (uint8_t)c;
            add_counts(sums + c * symbols, full + j * symbols, symbols);
        }
    }
    for (size_t i = 0; i < tables * symbols; i++) hists[i] += sums[i];
    return 0;
}
