/* What the words of a histogram cost in each encoding, before anything is encoded. */
#include "plan_internal.h"

enum {
    CODED_BYTES = 3,         /* parameters of a coded literal */
    STREAMED_WORDS = 16384,  /* words a block from which several streams are worth their lengths */
    TUNSTALL_WORDS = 7,      /* of the longest string */
    FLOOR_ROUNDS = 24,
    SETTLING = 16,           /* rounds after which a Markov chain's state stays as it is */
    MOST_SYMBOLS = 256,
};

double brv_entropy_bits(const uint64_t *hists, size_t rows, size_t n)
{
    double bits = 0;
    for (size_t r = 0; r < rows; r++, hists += n) {
        uint64_t total = 0;
        double terms = 0;
        for (size_t i = 0; i < n; i++) {
            total += hists[i];
            if (hists[i] > 1) terms += n_log2(hists[i]);
        }
        bits += n_log2(total) - terms;
    }
    return bits;
}

/* ---- Huffman ------------------------------------------------------------------------------- */

/* Rising, a byte of the key a pass. */
static void sort_counts(uint64_t *a, size_t n)
{
    uint64_t other[MOST_SYMBOLS], any = 0;
    for (size_t i = 0; i < n; i++) any |= a[i];
    for (unsigned shift = 0; shift < 64 && any >> shift; shift += 8) {
        uint32_t at[257] = {0};
        for (size_t i = 0; i < n; i++) at[(a[i] >> shift & 0xff) + 1]++;
        for (unsigned b = 0; b < 256; b++) at[b + 1] += at[b];
        for (size_t i = 0; i < n; i++) other[at[a[i] >> shift & 0xff]++] = a[i];
        memcpy(a, other, n * sizeof *a);
    }
}

/* Huffman's tree of m >= 2 rising counts, by two queues: its bits, which are the sum of all inner nodes, and the
 * length of its longest code. */
static uint64_t tree_bits(const uint64_t *count, size_t m, unsigned *longest)
{
    uint64_t inner[MOST_SYMBOLS], total = 0;
    uint16_t above[MOST_SYMBOLS], least = 0; /* inner nodes above inner ones, and above the rarest symbol */
    size_t a = 0, b = 0;
    for (size_t made = 0; made + 1 < m; made++) {
        uint64_t sum = 0;
        for (unsigned side = 0; side < 2; side++)
            if (b == made || (a < m && count[a] <= inner[b])) sum += count[a++];
            else {
                above[b] = (uint16_t)made;
                sum += inner[b++];
            }
        inner[made] = sum;
        total += sum;
    }
    for (*longest = 1; least + 2u < m; least = above[least]) ++*longest;
    return total;
}

/* The bits of the best code whose codes have at most max_len bits, of m rising counts, 2 <= m <= 2^max_len: by
 * package-merge, in which each symbol is taken once for every bit of its code. */
static uint64_t limited_bits(const uint64_t *count, size_t m, unsigned max_len)
{
    uint64_t list[2][2 * MOST_SYMBOLS], total = 0;
    uint64_t *cur = list[0], *next = list[1];
    size_t n = m;
    memcpy(cur, count, m * sizeof *cur);
    for (unsigned level = 1; level < max_len; level++) {
        const size_t packages = n / 2;
        size_t a = 0, b = 0, made = 0;
        while (a < m && b < packages) {
            const uint64_t package = cur[2 * b] + cur[2 * b + 1];
            const bool single = count[a] <= package;
            next[made++] = single ? count[a] : package;
            a += single;
            b += !single;
        }
        while (a < m) next[made++] = count[a++];
        for (; b < packages; b++) next[made++] = cur[2 * b] + cur[2 * b + 1];
        uint64_t *t = cur;
        cur = next;
        next = t;
        n = made;
    }
    for (size_t i = 0; i < 2 * m - 2; i++) total += cur[i];
    return total;
}

/* One row; at most 2^max_len of its symbols occur. */
static int row_bits(const uint64_t *hist, size_t n, unsigned max_len, double *bits)
{
    uint64_t count[MOST_SYMBOLS], total = 0;
    size_t m = 0;
    if (n <= MOST_SYMBOLS) {
        unsigned longest;
        for (size_t i = 0; i < n; i++)
            if (hist[i]) count[m++] = hist[i];
        if (m > 1) {
            sort_counts(count, m);
            total = tree_bits(count, m, &longest);
            if (longest > max_len) total = limited_bits(count, m, max_len);
        } else if (m) {
            total = count[0];
        }
        *bits = (double)total;
        return 0;
    }
    uint8_t *len = malloc(n);
    int rc = len ? brv_huffman_lengths(hist, n, max_len, len) : BRV_NO_MEMORY;
    for (size_t i = 0; !rc && i < n; i++) total += hist[i] * len[i];
    *bits = (double)total;
    free(len);
    return rc;
}

static size_t present(const uint64_t *hist, size_t n)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) m += hist[i] != 0;
    return m;
}

int brv_huffman_bits(const uint64_t *hists, size_t rows, size_t n, unsigned max_len, double *bits)
{
    if (n == 0 || n > 65536 || max_len < 1 || max_len > MAX_CODE) return BRV_ARGUMENT;
    *bits = 0;
    for (size_t r = 0; r < rows; r++) {
        double one = INFINITY;
        int rc = 0;
        if (present(hists + r * n, n) <= (size_t)1 << max_len) rc = row_bits(hists + r * n, n, max_len, &one);
        if (rc) return rc;
        *bits += one;
    }
    return 0;
}

/* The length of the run of absent symbols that starts at hist[i]. */
static size_t absent_run(const uint64_t *hist, size_t n, size_t i)
{
    size_t j = i;
    while (j < n && !hist[j]) j++;
    return j - i;
}

static size_t table_nibbles(const uint64_t *hist, size_t n)
{
    size_t nibbles = 0;
    for (size_t i = 0; i < n;) {
        const size_t run = absent_run(hist, n, i);
        nibbles++;
        if (!run) {
            i++;
            continue;
        }
        for (size_t rest = run - 1; rest > 7; rest >>= 3) nibbles++;
        nibbles++;
        i += run;
    }
    return nibbles;
}

size_t brv_huffman_table_bytes(const uint64_t *hists, size_t rows, size_t n)
{
    size_t nibbles = 0;
    for (size_t r = 0; r < rows; r++) nibbles += table_nibbles(hists + r * n, n);
    return (nibbles + 1) / 2;
}

/* ---- rANS ---------------------------------------------------------------------------------- */

double brv_rans_bits(const uint64_t *hist, size_t n, unsigned prob_bits)
{
    const double slots = (double)((uint64_t)1 << prob_bits);
    uint64_t total = 0;
    double shares = 0, bits = 0;
    for (size_t i = 0; i < n; i++) total += hist[i];
    if (!total) return 0;
    if (present(hist, n) > (size_t)1 << prob_bits) return INFINITY;
    const double scale = slots / (double)total;
    for (size_t i = 0; i < n; i++)
        if (hist[i]) shares += fmax((double)hist[i] * scale, 1.0);
    /* The symbols rounded up to a share of 1 take theirs from the others. */
    for (size_t i = 0; i < n; i++)
        if (hist[i]) bits += (double)hist[i] * (prob_bits - log2_of(fmax((double)hist[i] * scale, 1.0) * slots / shares));
    return bits;
}

size_t brv_rans_table_bytes(const uint64_t *hist, size_t n, unsigned prob_bits)
{
    uint64_t total = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) total += hist[i];
    const double scale = total ? (double)((uint64_t)1 << prob_bits) / (double)total : 0;
    for (size_t i = 0; i < n;) {
        const size_t run = absent_run(hist, n, i);
        if (run) bytes += run > 128 ? 3 : 2;
        else bytes += (double)hist[i] * scale >= 128 ? 2 : 1;
        i += run ? run : 1;
    }
    return bytes;
}

/* ---- Tunstall ------------------------------------------------------------------------------ */

/* A dictionary is the single words and all longer strings that weigh no less than a floor. A string weighs what
 * the shares of its words, which fall by rank, multiply to. */
typedef struct {
    const double *share;
    size_t m;
    double floor;
    double tail[MOST_SYMBOLS + 1];                  /* the share of words of this rank and beyond */
    double step[MOST_SYMBOLS * (MOST_SYMBOLS + 1)]; /* by first word and number of children: chance of such a string */
    double words[MOST_SYMBOLS];                     /* by first word: words of strings, by their chance */
} dictionary;

/* Strings in the dictionary that begin with one of `weight` and `length` words, without itself; if there are more
 * than `most`, some number above it. */
static size_t longer(const dictionary *d, double weight, unsigned length, size_t most)
{
    size_t n = 0;
    for (size_t k = 0; k < d->m && n <= most && weight * d->share[k] >= d->floor; k++) {
        n++;
        if (length + 1 < TUNSTALL_WORDS) n += longer(d, weight * d->share[k], length + 1, most);
    }
    return n;
}

static size_t all_longer(const dictionary *d, size_t most)
{
    size_t n = 0;
    for (size_t k = 0; k < d->m && n <= most; k++) n += longer(d, d->share[k], 1, most);
    return n;
}

/* Find a floor above which there are `most` longer strings, or not many fewer. */
static void set_floor(dictionary *d, size_t most)
{
    double low = 0, high = 1; /* too many strings, few enough */
    d->floor = 1.0 / (double)(most + d->m);
    for (unsigned round = 0; round < FLOOR_ROUNDS; round++) {
        const size_t n = all_longer(d, 2 * most);
        if (n > most) low = d->floor;
        else high = d->floor;
        if (n <= most && n + n / 32 >= most) break;
        const double guess = d->floor * fmax((double)n, 1.0) / ((double)most + 0.5);
        /* A guess in proportion closes in from one side where many strings weigh alike: halving helps then. */
        const bool inside = guess > low * 1.0001 && guess < high * 0.9999 && (round % 3 < 2 || !(low > 0));
        d->floor = inside ? guess : low > 0 ? sqrt(low * high) : high / 16;
    }
    d->floor = high;
}

static void add_strings(dictionary *d, double weight, size_t first, unsigned length)
{
    size_t k = 0;
    for (; length < TUNSTALL_WORDS && k < d->m && weight * d->share[k] >= d->floor; k++)
        add_strings(d, weight * d->share[k], first, length + 1);
    const double chance = weight * d->tail[k];
    d->step[first * (d->m + 1) + k] += chance;
    d->words[first] += chance * length;
}

/* Words a codeword. After a string with k children comes a word that is none of the k most usual: so the strings
 * are a Markov chain whose state is k. */
static double words_a_string(dictionary *d)
{
    const size_t m = d->m;
    double state[MOST_SYMBOLS + 1] = {1.0}, sum = 0;
    d->tail[m] = 0;
    for (size_t k = m; k-- > 0;) d->tail[k] = d->tail[k + 1] + d->share[k];
    memset(d->step, 0, m * (m + 1) * sizeof *d->step);
    memset(d->words, 0, m * sizeof *d->words);
    for (size_t k = 0; k < m; k++) add_strings(d, d->share[k], k, 1);
    for (unsigned round = 0; round <= SETTLING; round++) {
        double reach = 0, next[MOST_SYMBOLS + 1] = {0}; /* reach: chance that a string may begin with word f */
        sum = 0;
        for (size_t f = 0; f < m; f++) {
            reach += state[f] / d->tail[f];
            for (size_t k = 0; k < m; k++) next[k] += reach * d->step[f * (m + 1) + k];
            sum += reach * d->words[f];
        }
        memcpy(state, next, m * sizeof *state);
    }
    return sum;
}

int brv_tunstall_bits(const uint64_t *hist, size_t n, unsigned bits, double *total)
{
    if (n > MOST_SYMBOLS || bits < 1 || bits > BRV_TUNSTALL_BITS) return BRV_ARGUMENT;
    uint64_t count[MOST_SYMBOLS], words = 0;
    double share[MOST_SYMBOLS];
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (hist[i]) words += count[m++] = hist[i];
    *total = m ? INFINITY : 0;
    if (!m || m > (size_t)1 << bits) return 0;
    sort_counts(count, m);
    for (size_t i = 0; i < m; i++) share[i] = (double)count[m - 1 - i] / (double)words;
    dictionary *d = malloc(sizeof *d);
    if (!d) return BRV_NO_MEMORY;
    d->share = share;
    d->m = m;
    set_floor(d, ((size_t)1 << bits) - m);
    *total = bits * (double)words / words_a_string(d);
    free(d);
    return 0;
}

/* ---- choices ------------------------------------------------------------------------------- */

static uint64_t blocks_of(uint64_t count, uint64_t block) { return count / block + (count % block != 0); }
static bool streamed(uint64_t count, uint64_t block) { return count >= STREAMED_WORDS && block >= STREAMED_WORDS; }

/* A look-up yields up to five words of about one bit more than their entropy. */
static double lookup_ns(const brv_tolls *t, double entropy)
{
    return t->lookup * fmin(1.0, fmax(0.2, (entropy + 1) / BRV_CODE_BITS));
}

/* Of a word of which `share` are listed: most of it goes to finding their places. */
static double sparse_ns(const brv_tolls *t, double share) { return t->sparse + t->listed * share; }

/* Vectors look tables of few symbols up in their registers. */
static double rans_ns(const brv_tolls *t, size_t symbols) { return symbols <= BRV_RANS_FEW ? t->rans_few : t->rans; }

/* A rank that Tunstall codewords do not go below. By how much they exceed the entropy at least was seen of thousands
 * of histograms. */
static double tunstall_floor(const brv_tolls *t, double entropy, uint64_t count)
{
    if (count < STREAMED_WORDS) return INFINITY;
    const double excess = 1.02 + 0.014 * fmax(0, 3.2 - entropy);
    const double bits = fmax(excess * entropy, (double)BRV_TUNSTALL_BITS / TUNSTALL_WORDS);
    return (double)count / 8 * bits * (1 + t->toll * t->tunstall / BRV_TUNSTALL_BITS);
}

/* `entropy` bits and `ns` a word, `extra` bytes beside the codes; several tables cost more of each. */
static void priced(brv_choice *out, double entropy, double ns, double extra, uint32_t tables, uint64_t segment,
                   uint64_t count, const brv_tolls *t)
{
    if (tables > 1) {
        entropy += (double)bits_for(tables) / (double)segment;
        ns += t->classed + t->table * tables;
    }
    out->size = BRV_NODE_BYTES + CODED_BYTES + extra + (double)count * entropy / 8;
    out->toll = t->toll * (double)count * ns / 8;
}

static double sum_of(const uint64_t *hist, size_t n)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += hist[i];
    return (double)total;
}

coded_row row_of(int way, const uint64_t *hist, size_t n)
{
    coded_row row = {.words = sum_of(hist, n), .bits = INFINITY, .symbols = present(hist, n)};
    if (way == BRV_RANS) {
        row.bits = brv_rans_bits(hist, n, BRV_PROBABILITY_BITS);
        row.table = 2 * brv_rans_table_bytes(hist, n, BRV_PROBABILITY_BITS);
    } else {
        if (brv_huffman_bits(hist, 1, n, BRV_CODE_BITS, &row.bits)) row.bits = INFINITY;
        row.table = table_nibbles(hist, n);
    }
    return row;
}

void add_row(coded_row *sum, const coded_row *row)
{
    sum->words += row->words;
    sum->bits += row->bits;
    sum->table += row->table;
    if (row->symbols > sum->symbols) sum->symbols = row->symbols;
}

void coded_in_rows(int way, const coded_row *all, uint32_t tables, unsigned width, uint64_t segment, uint64_t count,
                   uint64_t block, const brv_tolls *t, brv_choice *out)
{
    const double entropy = all->bits / all->words, table = (double)((all->table + 1) / 2);
    const bool many = streamed(count, block);
    uint8_t length[10];
    *out = (brv_choice){.way = way, .width = width, .number = way == BRV_RANS ? many ? t->lanes : 4 : many ? 5 : 1};
    /* A lane's initial state of 4 bytes holds about one byte's worth of words. */
    const double block_bytes = way == BRV_RANS ? 2 + 3 * out->number
                                               : 2 + (out->number - 1) * (double)put_varint(length, block / 4) + out->number * 0.6;
    const double ns = way == BRV_RANS ? rans_ns(t, all->symbols) : lookup_ns(t, entropy);
    priced(out, entropy, ns, table + (double)blocks_of(count, block) * block_bytes, tables, segment, count, t);
}

static void tunstall(const uint64_t *hist, size_t n, double total, uint64_t count, uint64_t block, const brv_tolls *t,
                     brv_choice *out)
{
    double bits = INFINITY;
    if (brv_tunstall_bits(hist, n, BRV_TUNSTALL_BITS, &bits)) bits = INFINITY;
    const double extra = (double)brv_rans_table_bytes(hist, n, BRV_PROBABILITY_BITS) + 5 * (double)blocks_of(count, block);
    priced(out, bits / total, t->tunstall * bits / total / BRV_TUNSTALL_BITS, extra, 1, 0, count, t);
}

static double power(double x, unsigned doublings)
{
    while (doublings--) x *= x;
    return x;
}

/* The words that are not the most usual one, listed. */
static void sparse(const uint64_t *hist, size_t n, double total, unsigned width, uint64_t count, uint64_t block,
                   const brv_tolls *t, brv_choice *out)
{
    for (size_t i = out->word = 0; i < n; i++)
        if (hist[i] > hist[out->word]) out->word = i;
    const double share = 1 - (double)hist[out->word] / total;
    /* Spread evenly; a gap of 128 words takes two bytes, of 16384 three. */
    const double gap = 1 + power(1 - share, 7) + power(1 - share, 14);
    const double listed = share * (double)count * (gap + (width > 1 ? width / 8.0 : 0));
    out->size = BRV_NODE_BYTES + 2 * (double)blocks_of(count, block) + listed;
    out->toll = t->toll * (double)count * sparse_ns(t, share) / 8;
}

void coded(int way, const uint64_t *hists, uint32_t tables, unsigned width, uint64_t segment, uint64_t count,
           uint64_t block, const brv_tolls *t, brv_choice *out)
{
    const size_t n = (size_t)1 << width;
    *out = (brv_choice){.way = way, .width = width};
    if (way == BRV_SPARSE) sparse(hists, n, sum_of(hists, n), width, count, block, t, out);
    else if (way == BRV_TUNSTALL) tunstall(hists, n, sum_of(hists, n), count, block, t, out);
    else {
        coded_row all = {0};
        for (uint32_t i = 0; i < tables; i++) {
            const coded_row row = row_of(way, hists + i * n, n);
            add_row(&all, &row);
        }
        coded_in_rows(way, &all, tables, width, segment, count, block, t, out);
    }
}

/* A rank that Huffman codes do not go below: that of codes which may be longer, whose lengths take less to find. */
static double huffman_floor(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *t)
{
    const size_t n = (size_t)1 << width;
    coded_row row = {.words = sum_of(hist, n), .table = table_nibbles(hist, n)};
    brv_choice choice;
    if (present(hist, n) > (size_t)1 << BRV_CODE_BITS || row_bits(hist, n, MAX_CODE, &row.bits)) return INFINITY;
    coded_in_rows(BRV_HUFFMAN, &row, 1, width, 0, count, block, t, &choice);
    return rank_of(&choice);
}

static void offer_way(int way, const uint64_t *hist, unsigned width, uint64_t count, uint64_t block,
                      const brv_tolls *t, brv_choice *best)
{
    brv_choice other;
    coded(way, hist, 1, width, 0, count, block, t, &other);
    if (rank_of(&other) < rank_of(best)) *best = other;
}

void complete(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *t, brv_choice *out)
{
    const size_t n = (size_t)1 << width;
    size_t low = 0, high = n - 1;
    while (low < high && !hist[low]) low++;
    while (high > low && !hist[high]) high--;
    *out = (brv_choice){.way = BRV_CONST, .width = width, .word = low, .size = BRV_NODE_BYTES};
    if (low == high) return;
    const unsigned packed = bits_for(high - low + 1);
    *out = packed < width ? (brv_choice){.way = BRV_PACK, .width = width, .number = packed, .word = low}
                          : (brv_choice){.way = BRV_RAW, .width = width};
    out->size = BRV_NODE_BYTES + (double)count * packed / 8;
    offer_way(BRV_SPARSE, hist, width, count, block, t, out);
    const double entropy = brv_entropy_bits(hist, 1, n) / sum_of(hist, n);
    if ((double)count / 8 * (entropy + t->toll * rans_ns(t, present(hist, n))) < rank_of(out))
        offer_way(BRV_RANS, hist, width, count, block, t, out);
    if ((double)count / 8 * (entropy + t->toll * lookup_ns(t, entropy)) < rank_of(out) &&
        huffman_floor(hist, width, count, block, t) < rank_of(out))
        offer_way(BRV_HUFFMAN, hist, width, count, block, t, out);
    if (width <= BRV_SYMBOL_BITS && tunstall_floor(t, entropy, count) < rank_of(out))
        offer_way(BRV_TUNSTALL, hist, width, count, block, t, out);
}

double floor_of(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *t)
{
    const size_t n = (size_t)1 << width;
    uint64_t total = 0, most = 0;
    size_t nibbles = 0, symbols = 0, low = n, high = 0;
    double terms = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t c = hist[i];
        /* A nibble a symbol, and two a run of absent ones. */
        if (c) {
            nibbles++;
            symbols++;
            if (low == n) low = i;
            high = i;
        } else if (i == 0 || hist[i - 1]) {
            nibbles += 2;
        }
        total += c;
        if (c > most) most = c;
        if (c > 1) terms += n_log2(c);
    }
    const double entropy = (n_log2(total) - terms) / (double)total, others = 1 - (double)most / (double)total;
    const double ns = fmin(lookup_ns(t, entropy), rans_ns(t, symbols));
    const double lit = (double)count * (entropy + t->toll * ns) / 8 + (double)nibbles / 2 + CODED_BYTES;
    const double list = (double)count * (others * (1 + (width > 1 ? width / 8.0 : 0)) + t->toll * sparse_ns(t, others) / 8)
                        + 2 * (double)blocks_of(count, block);
    const double packed = (double)count * bits_for(high - low + 1) / 8;
    return BRV_NODE_BYTES + fmin(fmin(packed, fmin(lit, list)), tunstall_floor(t, entropy, count));
}

/* ---- for Python ---------------------------------------------------------------------------- */

static bool is_extent(unsigned width, uint64_t count, uint64_t block)
{
    return width >= 1 && width <= 16 && count && block;
}

int brv_complete(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *tolls,
                 brv_choice *out)
{
    if (!is_extent(width, count, block) || sum_of(hist, (size_t)1 << width) == 0) return BRV_ARGUMENT;
    complete(hist, width, count, block, tolls, out);
    return 0;
}

int brv_coded(int way, const uint64_t *hists, uint32_t tables, unsigned width, uint64_t segment, uint64_t count,
              uint64_t block, const brv_tolls *tolls, brv_choice *out)
{
    const bool one = way == BRV_SPARSE || way == BRV_TUNSTALL;
    if (!is_extent(width, count, block) || !tables || tables > MAX_TABLES || (tables > 1 && (one || !segment)) ||
        way < BRV_SPARSE || way > BRV_TUNSTALL || (way == BRV_TUNSTALL && width > BRV_SYMBOL_BITS) ||
        sum_of(hists, (size_t)tables << width) == 0)
        return BRV_ARGUMENT;
    coded(way, hists, tables, width, segment, count, block, tolls, out);
    return 0;
}

int brv_floor(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *tolls,
              double *rank)
{
    if (!is_extent(width, count, block) || sum_of(hist, (size_t)1 << width) == 0) return BRV_ARGUMENT;
    *rank = floor_of(hist, width, count, block, tolls);
    return 0;
}
