/* Classes of segments: those whose words are alike share a table.
 *
 * k-means whose distance is code length, on histograms of the leading bits; then the two classes most alike become
 * one, again and again, and the number of them that ranks best is kept. Code lengths are whole 1/256 bits and
 * information whole bits, so that sums are exact. */
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "plan_internal.h"

enum {
    COARSE = BRV_COARSE,
    MOST_SEGMENTS = 4096,
    MOST_MEANS = 2 * BRV_MOST_CLASSES,
    MOST_MERGED = BRV_MOST_PAIRS,
    TERMS = 1024,
    TURNS = 2,   /* in which segments and places are dealt to their classes */
    ROUNDS = 4,
    PLACES = 32, /* counted at a time */
    AT_ONCE = 4, /* segments counted side by side, so that a repeated word does not wait for its own store */
    LANES = 8,   /* bins are taken so many at a time */
    WAYS = 2,
};

typedef int16_t coarse_row[COARSE];

typedef struct {
    unsigned width, shift;  /* bits a word; by which counts are shifted to fit 15 bits */
    unsigned bins;          /* leading parts that occur, and some more to make whole LANES: rows begin with theirs */
    uint8_t bin[COARSE];    /* which those are */
    size_t segments, symbols;
    uint32_t *full;         /* [segments][symbols] */
    coarse_row *coarse;     /* [segments] */
    uint8_t *class;         /* [segments] */
    unsigned classes;
    uint32_t members[MOST_MEANS];     /* segments of each class */
    uint32_t sum[MOST_MEANS][COARSE]; /* and their rows */
    coarse_row length[MOST_MEANS];
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

static unsigned leading_of(unsigned word, unsigned width)
{
    return width > BRV_COARSE_BITS ? word >> (width - BRV_COARSE_BITS) : word;
}

static unsigned shift_for(size_t segment)
{
    unsigned shift = 0;
    while (segment >> shift > INT16_MAX) shift++;
    return shift;
}

static int32_t cost(const int16_t *restrict row, const int16_t *restrict length, unsigned bins)
{
    int32_t sum = 0;
    for (unsigned b = 0; b < bins / LANES * LANES; b++) sum += (int32_t)row[b] * length[b]; /* so none is left over */
    return sum;
}

/* Code lengths of all classes side by side, by pairs of bins, so that costs are summed without crossing lanes. */
typedef int16_t paired[COARSE / 2][MOST_MEANS][2];

static void pair_up(const coarse_row *length, unsigned classes, unsigned bins, paired pairs)
{
    for (unsigned i = 0; i < bins / 2; i++)
        for (unsigned c = 0; c < MOST_MEANS; c++)
            for (unsigned j = 0; j < 2; j++) pairs[i][c][j] = c < classes ? length[c][2 * i + j] : 0;
}

/* The cost under each class, and some more to make whole LANES. */
static void costs(const int16_t *row, const paired pairs, unsigned classes, unsigned bins, int32_t *out)
{
    for (unsigned c = 0; c < classes; c += LANES) {
#ifdef __SSE2__
        __m128i low = _mm_setzero_si128(), high = low;
        for (unsigned i = 0; i < bins / 2; i++) {
            int32_t two;
            memcpy(&two, row + 2 * i, sizeof two);
            const __m128i counts = _mm_set1_epi32(two), *of = (const __m128i *)pairs[i][c];
            low = _mm_add_epi32(low, _mm_madd_epi16(counts, _mm_loadu_si128(of)));
            high = _mm_add_epi32(high, _mm_madd_epi16(counts, _mm_loadu_si128(of + 1)));
        }
        _mm_storeu_si128((__m128i *)(out + c), low);
        _mm_storeu_si128((__m128i *)(out + c + LANES / 2), high);
#else
        memset(out + c, 0, LANES * sizeof *out);
        for (unsigned i = 0; i < bins / 2; i++)
            for (unsigned j = c; j < c + LANES; j++)
                out[j] += (int32_t)row[2 * i] * pairs[i][j][0] + (int32_t)row[2 * i + 1] * pairs[i][j][1];
#endif
    }
}

static unsigned nearest(const int16_t *row, const paired pairs, unsigned classes, unsigned bins)
{
    int32_t bits[MOST_MEANS];
    unsigned best = 0;
    costs(row, pairs, classes, bins, bits);
    for (unsigned c = 1; c < classes; c++)
        if (bits[c] < bits[best]) best = c;
    return best;
}

/* Rows without the bins that are 0 in all of them. */
static void leave_out_empty(learner *l)
{
    coarse_row any = {0};
    for (size_t s = 0; s < l->segments; s++)
        for (unsigned b = 0; b < COARSE; b++) any[b] |= l->coarse[s][b];
    l->bins = 0;
    for (unsigned b = 0; b < COARSE; b++)
        if (any[b]) l->bin[l->bins++] = (uint8_t)b;
    for (unsigned b = 0; l->bins % LANES; b++)
        if (!any[b]) l->bin[l->bins++] = (uint8_t)b;
    for (size_t s = 0; s < l->segments; s++) {
        coarse_row row;
        memcpy(row, l->coarse[s], sizeof row);
        for (unsigned b = 0; b < l->bins; b++) l->coarse[s][b] = row[l->bin[b]];
    }
}

/* Bits, in 1/256, of a word that a class had so many times out of a total of which this is the logarithm. */
static int16_t length_of(double log_total, double count) { return (int16_t)floor(256 * (log_total - log2_of(count + 0.02)) + 0.5); }

/* Code lengths of each class: of those words that it never had too. Returns the length of a bin left out, by class. */
static void measure(learner *l, int16_t *left_out)
{
    const unsigned all = l->width < BRV_COARSE_BITS ? 1u << l->width : COARSE;
    for (unsigned c = 0; c < l->classes; c++) {
        double total = 0.02 * all;
        for (unsigned b = 0; b < l->bins; b++) total += l->sum[c][b];
        const double log = log2_of(total);
        for (unsigned b = 0; b < l->bins; b++) l->length[c][b] = length_of(log, l->sum[c][b]);
        left_out[c] = length_of(log, 0);
    }
}

static void add_row_to(uint32_t *restrict sum, const int16_t *restrict row, size_t n)
{
    for (size_t i = 0; i < n; i++) sum[i] += (uint32_t)row[i];
}

static void join(learner *l, size_t s, unsigned class)
{
    add_row_to(l->sum[class], l->coarse[s], l->bins);
    l->members[class]++;
    l->class[s] = (uint8_t)class;
}

static void leave(learner *l, size_t s)
{
    uint32_t *restrict from = l->sum[l->class[s]];
    const int16_t *restrict row = l->coarse[s];
    for (unsigned b = 0; b < l->bins; b++) from[b] -= (uint32_t)row[b];
    l->members[l->class[s]]--;
}

/* Each segment goes to the class that suits it best; false if all were there. */
static bool deal(learner *l)
{
    bool moved = false;
    paired pairs;
    pair_up((const coarse_row *)l->length, l->classes, l->bins, pairs);
    for (size_t s = 0; s < l->segments; s++) {
        const unsigned to = nearest(l->coarse[s], pairs, l->classes, l->bins);
        if (to == l->class[s]) continue;
        leave(l, s);
        join(l, s, to);
        moved = true;
    }
    return moved;
}

/* Classes without numbers that none has. */
static void renumber(learner *l)
{
    uint8_t number[MOST_MEANS];
    unsigned kept = 0;
    for (unsigned c = 0; c < l->classes; c++) {
        if (!l->members[c]) continue;
        memmove(l->sum[kept], l->sum[c], sizeof l->sum[c]);
        l->members[kept] = l->members[c];
        number[c] = (uint8_t)kept++;
    }
    if (kept < l->classes)
        for (size_t s = 0; s < l->segments; s++) l->class[s] = number[l->class[s]];
    l->classes = kept;
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
    int16_t unused[MOST_MEANS];
    if (!order) return BRV_NO_MEMORY;
    l->classes = 1;
    for (size_t s = 0; s < l->segments; s++) join(l, s, 0);
    measure(l, unused);
    /* Segments that a common table codes equally well are alike enough to begin with. */
    for (size_t s = 0; s < l->segments; s++)
        order[s] = (uint64_t)(uint32_t)cost(l->coarse[s], l->length[0], l->bins) << 32 | s;
    qsort(order, l->segments, sizeof *order, by_value);
    memset(l->sum, 0, sizeof l->sum);
    memset(l->members, 0, sizeof l->members);
    for (size_t i = 0; i < l->segments; i++) join(l, (uint32_t)order[i], (unsigned)(i * size / l->segments));
    free(order);
    l->classes = size;
    for (unsigned round = 0; round < ROUNDS; round++) {
        measure(l, unused);
        if (!deal(l)) break;
        renumber(l);
    }
    return 0;
}

/* ---- merging ------------------------------------------------------------------------------- */

typedef struct {
    double member[MOST_MERGED][COARSE], alone[MOST_MERGED], apart[MOST_MERGED][MOST_MERGED];
    uint64_t *hist;               /* [classes][symbols] */
    coded_row row[WAYS][MOST_MERGED]; /* what each class's table and words take, once known */
    bool known[MOST_MERGED];
    bool gone[MOST_MERGED];
    unsigned became[MOST_MERGED]; /* of each class at the start, the one it is part of now */
    unsigned classes, bins, width;
    size_t symbols;
    uint32_t rows, columns;       /* classes that these are the pairs of; columns is 0 if they are none */
    double term[TERMS];           /* n log2(n) */
} merger;

/* Bits of the words of two histograms together, or of one, in whole bits. */
static double information(const merger *m, const double *a, const double *b)
{
    double total = 0, terms = 0;
    for (unsigned i = 0; i < m->bins; i++) {
        const double n = a[i] + (b ? b[i] : 0);
        total += n;
        terms += n < TERMS ? m->term[(size_t)n] : n * log2_of(n);
    }
    return total > 1 ? floor(total * log2_of(total) - terms + 0.5) : 0;
}

/* With each class below `end`. */
static void compare(merger *m, unsigned c, unsigned end)
{
    for (unsigned o = 0; o < end; o++)
        if (o != c && !m->gone[o])
            m->apart[c][o] = m->apart[o][c] = information(m, m->member[c], m->member[o]) - m->alone[c] - m->alone[o];
}

/* With `member` and `hist` given. */
static void start_merging(merger *m)
{
    for (unsigned c = 0; c < m->classes; c++) {
        m->became[c] = c;
        m->alone[c] = information(m, m->member[c], NULL);
        compare(m, c, c);
    }
}

/* The two classes most alike become one. */
static void merge_two(merger *m)
{
    const size_t symbols = m->symbols;
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
    for (unsigned b = 0; b < m->bins; b++) m->member[kept][b] += m->member[gone][b];
    for (size_t i = 0; i < symbols; i++) m->hist[kept * symbols + i] += m->hist[gone * symbols + i];
    m->known[kept] = false;
    m->alone[kept] = information(m, m->member[kept], NULL);
    compare(m, kept, m->classes);
}

/* Numbers without gaps: of each class at the start, the one it is part of now. */
static void numbered(const merger *m, unsigned *number)
{
    unsigned next = 0, of[MOST_MERGED];
    for (unsigned c = 0; c < m->classes; c++)
        if (!m->gone[c]) of[c] = next++;
    for (unsigned c = 0; c < m->classes; c++) number[c] = of[m->became[c]];
}

/* What coding the words of the classes as they are now ranks. */
static double rank_classes(merger *m, unsigned size, const brv_coding *coding, const brv_tolls *t)
{
    static const int ways[WAYS] = {BRV_HUFFMAN, BRV_RANS};
    coded_row all[WAYS] = {{0}};
    brv_choice choice;
    double least = INFINITY;
    for (unsigned c = 0; c < m->classes; c++) {
        if (m->gone[c]) continue;
        for (unsigned w = 0; w < WAYS; w++) {
            if (!m->known[c]) m->row[w][c] = row_of(ways[w], m->hist + c * m->symbols, m->symbols);
            add_row(all + w, &m->row[w][c]);
        }
        m->known[c] = true;
    }
    for (unsigned w = 0; w < WAYS; w++) {
        coded_in_rows(ways[w], all + w, size, m->width, coding->segment, coding->words, coding->block, t, &choice);
        if (m->columns) brv_in_pairs(&choice, size, m->rows, m->columns, coding->segment, coding->words, t);
        if (rank_of(&choice) < least) least = rank_of(&choice);
    }
    return least + (size > coding->few ? coding->many : 0);
}

/* The number of classes that ranks best, and to which of them each class belongs. */
static void best_merging(merger *m, const brv_coding *coding, const brv_tolls *t, unsigned *best, uint32_t *tables,
                         double *rank)
{
    *rank = INFINITY;
    *tables = 1;
    for (unsigned size = m->classes; size; size--) {
        if (size <= coding->most && (size <= coding->few || size % 2 == 0)) {
            const double reached = rank_classes(m, size, coding, t);
            if (reached < *rank) {
                *rank = reached;
                *tables = size;
                numbered(m, best);
            }
        }
        if (size > 1) merge_two(m);
    }
}

static merger *new_merger(unsigned classes, unsigned width)
{
    const size_t symbols = (size_t)1 << width;
    merger *m = calloc(1, sizeof *m + classes * symbols * sizeof *m->hist);
    if (!m) return NULL;
    m->classes = classes;
    m->width = width;
    m->symbols = symbols;
    m->hist = (uint64_t *)(m + 1);
    for (unsigned n = 2; n < TERMS; n++) m->term[n] = n * log2_of(n);
    return m;
}

/* Of the classes of segments. */
static merger *merger_of(const learner *l)
{
    merger *m = new_merger(l->classes, l->width);
    if (!m) return NULL;
    m->bins = l->bins;
    for (unsigned c = 0; c < m->classes; c++)
        for (unsigned b = 0; b < m->bins; b++) m->member[c][b] = l->sum[c][b];
    for (size_t s = 0; s < l->segments; s++) {
        uint64_t *restrict to = m->hist + l->class[s] * l->symbols;
        const uint32_t *restrict from = l->full + s * l->symbols;
        for (size_t i = 0; i < l->symbols; i++) to[i] += from[i];
    }
    start_merging(m);
    return m;
}

/* Code lengths of `tables` classes made of those that have each one's number. */
static void write_lengths(learner *l, const unsigned *number, uint32_t tables, coarse_row *lengths)
{
    const unsigned all = l->width < BRV_COARSE_BITS ? 1u << l->width : COARSE;
    uint32_t sum[MOST_MEANS][COARSE] = {{0}};
    int16_t left_out[MOST_MEANS];
    for (unsigned c = 0; c < l->classes; c++)
        for (unsigned b = 0; b < l->bins; b++) sum[number[c]][b] += l->sum[c][b];
    memcpy(l->sum, sum, sizeof sum);
    l->classes = tables;
    measure(l, left_out);
    memset(lengths, 0, tables * sizeof *lengths);
    for (unsigned c = 0; c < tables; c++) {
        for (unsigned b = 0; b < all; b++) lengths[c][b] = left_out[c];
        for (unsigned b = 0; b < l->bins; b++)
            if (l->bin[b] < all) lengths[c][l->bin[b]] = l->length[c][b];
    }
}

static bool all_below(const uint8_t *words, size_t n, unsigned width)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= words[i];
    return any >> width == 0;
}

static bool can_learn(const uint8_t *words, size_t n, const brv_coding *coding)
{
    if (coding->width < 1 || coding->width > BRV_SYMBOL_BITS || coding->most < 1 || coding->most > BRV_MOST_CLASSES ||
        !coding->segment || n % coding->segment || n == 0 || n / coding->segment > MOST_SEGMENTS ||
        n > INT32_MAX || !coding->words || !coding->block)
        return false;
    return all_below(words, n, coding->width);
}

static void free_learner(learner *l)
{
    if (!l) return;
    free(l->full);
    free(l->coarse);
    free(l->class);
    free(l);
}

/* With room for so many segments, not counted yet. */
static learner *new_learner(size_t segments, size_t segment, unsigned width)
{
    learner *l = malloc(sizeof *l);
    if (!l) return NULL;
    *l = (learner){.width = width, .shift = shift_for(segment), .segments = segments, .symbols = (size_t)1 << width};
    l->full = calloc(segments * l->symbols, sizeof *l->full);
    l->coarse = malloc(segments * sizeof *l->coarse);
    l->class = calloc(segments, 1);
    if (l->full && l->coarse && l->class) return l;
    free_learner(l);
    return NULL;
}

static void count_rows(learner *l, const uint8_t *words, size_t segment)
{
    for (size_t s = 0, many; s < l->segments; s += many) {
        many = l->segments - s < AT_ONCE ? 1 : AT_ONCE;
        count_segments(words + s * segment, segment, l->symbols, many, l->full + s * l->symbols);
    }
}

/* Some places at a time, whose counts stay in the cache. */
static void count_columns(learner *l, const uint8_t *words, size_t n)
{
    for (size_t from = 0; from < l->segments; from += PLACES) {
        const size_t end = l->segments - from < PLACES ? l->segments : from + PLACES;
        for (size_t i = 0; i < n; i += l->segments)
            for (size_t p = from; p < end; p++) l->full[p * l->symbols + words[i + p]]++;
    }
}

/* Up to so many classes of the segments that were counted. */
static int classes_of(learner *l, size_t size)
{
    for (size_t s = 0; s < l->segments; s++) count_leading(l->full + s * l->symbols, l->width, l->shift, l->coarse[s]);
    leave_out_empty(l);
    return k_means(l, (unsigned)(size < l->segments ? size : l->segments));
}

int brv_learn(const uint8_t *words, size_t n, const brv_coding *coding, const brv_tolls *tolls, uint32_t *tables,
              double *rank, int16_t *lengths)
{
    if (!can_learn(words, n, coding)) return BRV_ARGUMENT;
    const size_t segment = (size_t)coding->segment;
    learner *l = new_learner(n / segment, segment, coding->width);
    if (!l) return BRV_NO_MEMORY;
    unsigned best[MOST_MERGED] = {0};
    count_rows(l, words, segment);
    int rc = classes_of(l, 2 * (size_t)coding->most);
    merger *m = rc ? NULL : merger_of(l);
    if (m) {
        best_merging(m, coding, tolls, best, tables, rank);
        write_lengths(l, best, *tables, (coarse_row *)lengths);
    } else if (!rc) rc = BRV_NO_MEMORY;
    free(m);
    free_learner(l);
    return rc;
}

/* ---- pairs --------------------------------------------------------------------------------- */

void brv_in_pairs(brv_choice *choice, uint32_t tables, uint32_t rows, uint32_t columns, uint64_t segment, uint64_t count,
                  const brv_tolls *t)
{
    const double places = (double)(segment * bits_for(columns) + (uint64_t)rows * columns * bits_for(tables)) / 8;
    choice->size += places + (double)count / (double)segment * ((double)bits_for(rows) - bits_for(tables)) / 8;
    choice->toll += t->toll * (double)count * t->paired / 8;
}

static void count_pairs(const uint8_t *words, size_t n, size_t segment, size_t symbols, const uint8_t *classes,
                        const uint8_t *places, size_t columns, const uint8_t *table, uint64_t *hists)
{
    for (size_t i = 0; i < n; i += segment, classes++) {
        const uint8_t *tables = table + *classes * columns;
        const size_t length = n - i < segment ? n - i : segment;
        for (size_t p = 0; p < length; p++) hists[tables[places[p]] * symbols + words[i + p]]++;
    }
}

/* By word, the number of the bin that it is in. */
static void bins_of(const learner *l, uint8_t *bin)
{
    for (unsigned b = 0; b < l->bins; b++)
        for (unsigned w = 0; w < l->symbols; w++)
            if (leading_of(w, l->width) == l->bin[b]) bin[w] = (uint8_t)b;
}

/* The tables of all pairs of classes, whose words are counted in hists. */
static int merge_pairs(const uint64_t *hists, const learner *rows, const brv_coding *coding, const brv_tolls *t, brv_pairs *out)
{
    const unsigned pairs = out->rows * out->columns;
    merger *m = new_merger(pairs, coding->width);
    if (!m) return BRV_NO_MEMORY;
    unsigned best[MOST_MERGED] = {0};
    uint8_t bin[1 << BRV_SYMBOL_BITS];
    bins_of(rows, bin);
    memcpy(m->hist, hists, pairs * m->symbols * sizeof *hists);
    for (unsigned c = 0; c < pairs; c++)
        for (unsigned w = 0; w < m->symbols; w++)
            if (hists[c * m->symbols + w]) m->member[c][bin[w]] += (double)hists[c * m->symbols + w];
    m->bins = rows->bins;
    m->rows = out->rows;
    m->columns = out->columns;
    start_merging(m);
    best_merging(m, coding, t, best, &out->tables, &out->rank);
    for (unsigned i = 0; i < pairs; i++) out->table[i] = (uint8_t)best[i];
    free(m);
    return 0;
}

/* Words by their segments and the classes of their places: hists[segments][classes of places][bins]. */
static void count_by_segment(const uint8_t *words, size_t n, size_t segment, const uint8_t *bin, unsigned bins,
                             const uint8_t *places, unsigned classes, int16_t *hists)
{
    const size_t item = (size_t)classes * bins;
    memset(hists, 0, n / segment * item * sizeof *hists);
    for (; n; n -= segment, words += segment, hists += item)
        for (size_t p = 0; p < segment; p++) hists[places[p] * bins + bin[words[p]]]++;
}

/* The other way round: hists[segment][classes of segments][bins]. */
static void count_by_place(const uint8_t *words, size_t n, size_t segment, const uint8_t *bin, unsigned bins,
                           const uint8_t *rows, unsigned classes, int16_t *hists)
{
    const size_t item = (size_t)classes * bins;
    memset(hists, 0, segment * item * sizeof *hists);
    for (size_t from = 0; from < segment; from += PLACES) {
        const size_t end = segment - from < PLACES ? segment : from + PLACES;
        for (size_t i = 0, s = 0; i < n; i += segment, s++) {
            int16_t *of_class = hists + rows[s] * bins;
            for (size_t p = from; p < end; p++) of_class[p * item + bin[words[i + p]]]++;
        }
    }
}

/* Each item goes to the class that suits it best, given the classes of the others. Bins are those of l. */
static void deal_by(const learner *l, const int16_t *hists, size_t items, unsigned classes, unsigned others, uint8_t *class)
{
    const unsigned bins = l->bins, all = l->width < BRV_COARSE_BITS ? 1u << l->width : COARSE;
    const unsigned item = others * bins;
    uint32_t sum[BRV_MOST_PAIRS * COARSE] = {0};
    int16_t length[BRV_MOST_PAIRS * COARSE];
    for (size_t i = 0; i < items; i++) add_row_to(sum + class[i] * item, hists + i * item, item);
    for (unsigned at = 0; at < classes * item; at += bins) {
        double total = 0.02 * all;
        for (unsigned j = at; j < at + bins; j++) total += sum[j];
        const double log = log2_of(total);
        for (unsigned j = at; j < at + bins; j++) length[j] = length_of(log, sum[j]);
    }
    for (size_t i = 0; i < items; i++) {
        int32_t least = INT32_MAX;
        for (unsigned c = 0; c < classes; c++) {
            const int32_t bits = cost(hists + i * item, length + c * item, item);
            if (bits < least) {
                least = bits;
                class[i] = (uint8_t)c;
            }
        }
    }
}

/* Classes of segments and of places suit each other better when each is dealt by the other in turn. */
static int alternate(const uint8_t *words, size_t n, learner *rows, learner *columns)
{
    const unsigned most = rows->classes > columns->classes ? rows->classes : columns->classes;
    const size_t items = rows->segments > columns->segments ? rows->segments : columns->segments;
    int16_t *hists = malloc(items * most * rows->bins * sizeof *hists);
    uint8_t bin[1 << BRV_SYMBOL_BITS];
    if (!hists) return BRV_NO_MEMORY;
    bins_of(rows, bin);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        count_by_place(words, n, columns->segments, bin, rows->bins, rows->class, rows->classes, hists);
        deal_by(rows, hists, columns->segments, columns->classes, rows->classes, columns->class);
        count_by_segment(words, n, columns->segments, bin, rows->bins, columns->class, columns->classes, hists);
        deal_by(rows, hists, rows->segments, rows->classes, columns->classes, rows->class);
    }
    free(hists);
    return 0;
}

/* Up to so many classes of the segments that were counted, from more of them: few at once would miss those that are
 * unlike all others. *saved gets about the bits that they save. */
static int merged_classes_of(learner *l, unsigned size, double *saved)
{
    unsigned number[MOST_MERGED];
    double all[COARSE] = {0};
    const int rc = classes_of(l, MOST_MEANS);
    merger *m = rc ? NULL : merger_of(l);
    if (!m) return rc ? rc : BRV_NO_MEMORY;
    for (unsigned c = 0; c < m->classes; c++)
        for (unsigned b = 0; b < m->bins; b++) all[b] += m->member[c][b];
    for (unsigned left = m->classes; left > size; left--) merge_two(m);
    numbered(m, number);
    *saved = information(m, all, NULL);
    for (unsigned c = 0; c < m->classes; c++)
        if (!m->gone[c]) *saved -= m->alone[c];
    free(m);
    for (size_t s = 0; s < l->segments; s++) l->class[s] = (uint8_t)number[l->class[s]];
    if (l->classes > size) l->classes = size;
    return 0;
}

/* Code lengths of the classes that the segments have now. */
static void write_classes(learner *l, coarse_row *lengths)
{
    unsigned number[MOST_MEANS];
    memset(l->sum, 0, sizeof l->sum);
    for (size_t s = 0; s < l->segments; s++) join(l, s, l->class[s]);
    for (unsigned c = 0; c < l->classes; c++) number[c] = c;
    write_lengths(l, number, l->classes, lengths);
}

/* The tables of the pairs of the classes that rows and places have; and, since row classes that tell nothing would be
 * written all the same, of those of the places alone. */
static int best_pairs(const uint8_t *words, size_t n, learner *rows, const learner *columns, const brv_coding *coding,
                      const brv_tolls *t, brv_pairs out[2], uint32_t *found)
{
    const size_t side = columns->classes * rows->symbols;
    uint64_t *hists = calloc(rows->classes * side, sizeof *hists);
    if (!hists) return BRV_NO_MEMORY;
    out[0] = (brv_pairs){.rows = rows->classes, .columns = columns->classes};
    for (unsigned i = 0; i < out->rows * out->columns; i++) out->table[i] = (uint8_t)i;
    count_pairs(words, n, (size_t)coding->segment, rows->symbols, rows->class, columns->class, out->columns, out->table, hists);
    int rc = merge_pairs(hists, rows, coding, t, out);
    write_classes(rows, (coarse_row *)out->lengths);
    *found = rc ? 0 : 1;
    if (!rc && rows->classes > 1) {
        out[1] = (brv_pairs){.rows = 1, .columns = columns->classes};
        for (unsigned r = 1; r < rows->classes; r++)
            for (size_t i = 0; i < side; i++) hists[i] += hists[r * side + i];
        rc = merge_pairs(hists, rows, coding, t, out + 1);
        memset(rows->class, 0, rows->segments);
        rows->classes = 1;
        write_classes(rows, (coarse_row *)out[1].lengths);
        *found = 2;
    }
    free(hists);
    return rc;
}

int brv_learn_pairs(const uint8_t *words, size_t n, const brv_coding *coding, const brv_tolls *tolls, brv_pairs out[2],
                    uint32_t *found, uint8_t *places)
{
    if (!can_learn(words, n, coding) || coding->segment > MOST_SEGMENTS) return BRV_ARGUMENT;
    const size_t segment = (size_t)coding->segment, segments = n / segment;
    learner *by_row = new_learner(segments, segment, coding->width), *by_place = new_learner(segment, segments, coding->width);
    int rc = by_row && by_place ? 0 : BRV_NO_MEMORY;
    double saved = 0;
    *found = 0;
    if (!rc) {
        count_columns(by_place, words, n);
        rc = merged_classes_of(by_place, BRV_MOST_SIDE, &saved);
    }
    if (!rc && saved / 8 * (double)coding->words / (double)n >= coding->asked) {
        count_rows(by_row, words, segment);
        rc = classes_of(by_row, BRV_MOST_SIDE);
        if (!rc) rc = alternate(words, n, by_row, by_place);
        memcpy(places, by_place->class, segment);
        if (!rc) rc = best_pairs(words, n, by_row, by_place, coding, tolls, out, found);
    }
    free_learner(by_row);
    free_learner(by_place);
    return rc;
}

int brv_count_pairs(const uint8_t *words, size_t n, size_t segment, unsigned width, const uint8_t *classes,
                    const uint8_t *places, uint32_t rows, uint32_t columns, const uint8_t *table, uint64_t *hists)
{
    if (width < 1 || width > BRV_SYMBOL_BITS || !segment || !all_below(words, n, width)) return BRV_ARGUMENT;
    for (size_t p = 0; p < segment; p++)
        if (places[p] >= columns) return BRV_ARGUMENT;
    for (size_t s = 0; s < n / segment + (n % segment != 0); s++)
        if (classes[s] >= rows) return BRV_ARGUMENT;
    count_pairs(words, n, segment, (size_t)1 << width, classes, places, columns, table, hists);
    return 0;
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
    paired pairs;
    pair_up((const coarse_row *)lengths, tables, COARSE, pairs);
    for (size_t s = 0, many; s < segments; s += many) {
        const bool whole = n - s * segment >= AT_ONCE * segment;
        const size_t length = n - s * segment < segment ? n - s * segment : segment;
        many = whole ? AT_ONCE : 1;
        count_segments(words + s * segment, length, symbols, many, full);
        for (size_t j = 0; j < many; j++) {
            coarse_row row;
            count_leading(full + j * symbols, width, shift, row);
            const unsigned c = nearest(row, pairs, tables, COARSE);
            classes[s + j] = (uint8_t)c;
            add_counts(sums + c * symbols, full + j * symbols, symbols);
        }
    }
    for (size_t i = 0; i < tables * symbols; i++) hists[i] += sums[i];
    return 0;
}
