/* Planning asked about one input, for the driver beside this file and for a fuzzer: every answer is checked for what
 * must be so of any input, and goes into a digest, which must be the same on every machine. */
#ifndef BREVIS_TEST_PLAN_H
#define BREVIS_TEST_PLAN_H

#include "../plan_internal.h"
#include "support.h"

/* u8 question, u8 bits of a word, u8 low, u8 width, u8 tables, u8 profile, u16 segment, u64 words in all; then words. */
enum { PLAN_HEAD = 16, QUESTIONS = 9, MOST_ROWS = 16 };

typedef struct {
    unsigned question, bits, container, low, width, tables;
    size_t segment, n;
    uint64_t count, block;
    const brv_tolls *tolls;
    uint8_t *words; /* n of them, each below 2^bits, in an allocation of just their size */
    uint64_t digest;
} plan_input;

/* As of the profiles; how long things take is of no account here. */
static const brv_tolls TOLLS[] = {
    {.toll = 1.0, .lanes = 64, .lookup = 0.85, .rans = 3, .rans_few = 0.3, .tunstall = 0.35, .classed = 0.04, .table = 0.007, .paired = 0.08, .transpose = 0.12,
     .sparse = 0.01, .listed = 2, .field = 0.1, .joined = 0.13, .zstd_byte = 0.5},
    {.toll = 0.03, .lanes = 64, .lookup = 0.85, .rans = 3, .rans_few = 0.3, .tunstall = 0.35, .classed = 0.04, .table = 0.007, .paired = 0.08, .transpose = 0.12,
     .sparse = 0.01, .listed = 2, .field = 0.1, .joined = 0.13, .zstd_byte = 0.5},
    {.toll = 0.003, .lanes = 32, .lookup = 0.85, .rans = 0.5, .rans_few = 0.3, .tunstall = 0.35, .classed = 0.04, .table = 0.007, .paired = 0.08, .transpose = 0.12,
     .sparse = 0.01, .listed = 2, .field = 0.1, .joined = 0.13, .zstd_byte = 0.5},
};

static inline void note(plan_input *in, const void *answer, size_t bytes)
{
    in->digest = in->digest * 0x9e3779b97f4a7c15u ^ brv_checksum(answer, bytes);
}

static inline void note_number(plan_input *in, double answer)
{
    CHECK(answer >= 0, "%g", answer);
    note(in, &answer, sizeof answer);
}

static inline void note_choice(plan_input *in, const brv_choice *c, uint64_t n)
{
    CHECK(c->way >= BRV_CONST && c->way <= BRV_ZSTD && c->size > 0 && c->toll >= 0, "way %d, %g bytes", c->way, c->size);
    CHECK(c->width >= 1 && c->low + c->width <= in->bits && !(c->word & ~mask_of(c->width)), "bits %u, %u", c->low, c->width);
    CHECK(c->size <= BRV_NODE_BYTES + (double)n * c->width / 8 || c->way > BRV_PACK, "way %d, %g bytes", c->way, c->size);
    note(in, &c->way, sizeof c->way);
    note(in, &c->word, sizeof c->word);
    note_number(in, c->size);
    note_number(in, c->toll);
}

static inline void *allocated(size_t bytes)
{
    void *a = calloc(bytes ? bytes : 1, 1);
    CHECK(a, "out of memory");
    return a;
}

/* Counts of a field of the words, by `rows` segments by turns, none empty. */
static inline uint64_t *counted(const plan_input *in, unsigned width, unsigned rows)
{
    const size_t symbols = (size_t)1 << width;
    uint64_t *hists = allocated(rows * symbols * sizeof *hists);
    for (size_t i = 0; i < in->n; i++)
        hists[i / in->segment % rows * symbols + (load_word(in->words, in->container, i) >> in->low & (symbols - 1))]++;
    for (unsigned r = 0; r < rows; r++) hists[r * symbols + r % symbols]++;
    return hists;
}

static inline void ask_counts(plan_input *in)
{
    const unsigned width = in->width % 16 + 1;
    const size_t bytes = sizeof(uint64_t) << width, chunks = (in->n + in->segment - 1) / in->segment * in->container;
    uint64_t *hist = allocated(bytes), sum = 0;
    CHECK(!brv_count(in->words, in->n, in->container, in->low, width, hist), "%u bits from %u on", width, in->low);
    for (size_t s = 0; s < (size_t)1 << width; s++) sum += hist[s];
    CHECK(sum == in->n, "%zu of %zu words", (size_t)sum, in->n);
    note(in, hist, bytes);
    uint8_t *any = allocated(chunks), *all = allocated(chunks);
    CHECK(!brv_survey(in->words, in->n, in->container, in->segment, any, all), "chunks of %zu", in->segment);
    for (size_t i = 0; i < chunks; i++) CHECK(!(all[i] & ~any[i]), "byte %zu", i);
    note(in, any, chunks);
    note(in, all, chunks);
    double planes[8] = {0};
    CHECK(!brv_plane_bits(in->words, in->n, in->bits, planes), "%u bits", in->bits);
    for (unsigned p = 0; p < (in->bits + 7) / 8; p++) note_number(in, planes[p]);
    const uint64_t starts[2] = {in->low, in->count};
    const uint32_t sizes[2] = {1, (uint32_t)in->segment};
    const size_t half = in->n * in->container / 2;
    CHECK(!brv_place_bits(in->words, 2, half, starts, in->segment, sizes, 2, planes), "%zu places", in->segment);
    for (unsigned k = 0; k < 2; k++) {
        CHECK(planes[k] <= 16.0 * (double)half + 256.0 * in->segment, "%g bits", planes[k]);
        note_number(in, planes[k]);
    }
    free(any);
    free(all);
    free(hist);
}

static inline void ask_changes(plan_input *in)
{
    const size_t bytes = in->n * in->container;
    uint8_t *out = allocated(bytes);
    for (int function = -2; function <= FN_ROTR; function++) {
        const uint64_t word = function == FN_ROTR ? in->width % in->bits : in->count & mask_of(in->bits);
        memset(out, 0, bytes);
        if (function == FN_ROTR && word == 0) continue;
        CHECK(!brv_undo(in->words, in->n, in->bits, function, word, out), "function %d", function);
        for (size_t i = 0; i < in->n; i++)
            CHECK(load_word(out, in->container, i) <= mask_of(in->bits), "function %d, word %zu", function, i);
        note(in, out, bytes);
    }
    free(out);
}

/* What each change of two steps makes of two runs of the words. */
static inline void ask_looks(plan_input *in)
{
    const size_t planes = (in->bits + 7) / 8;
    const uint64_t half = in->n / 2, ends[2] = {half, in->n};
    brv_change changes[4] = {{.steps = 0}, {.steps = 1, .function = {-2}}, {.steps = 2, .function = {-2, FN_ZIGZAG}},
                             {.steps = 2, .function = {FN_ADD, FN_GRAY}, .word = in->count & mask_of(in->bits)}};
    double *bits = allocated(4 * planes * sizeof *bits);
    if (half < 2) return free(bits);
    CHECK(!brv_looks(in->words, ends, 2, in->bits, changes, 4, bits), "%u bits", in->bits);
    for (size_t i = 0; i < 4 * planes; i++) {
        CHECK(bits[i] <= 8 + 1e-9, "%g bits a byte", bits[i]);
        note_number(in, bits[i]);
    }
    free(bits);
}

static inline void ask_columns(plan_input *in)
{
    const size_t bytes = in->n * in->container, block = 1 + in->count % (2 * bytes), columns = in->segment;
    uint8_t *out = allocated(bytes);
    CHECK(!brv_by_column(in->words, bytes, block, columns, out), "%zu columns", columns);
    for (size_t i = 0; i < bytes; i++) {
        const size_t start = i / block * block, m = bytes - start < block ? bytes - start : block, rows = m / columns;
        const size_t row = (i - start) / columns, to = row < rows ? (i - start) % columns * rows + row : i - start;
        CHECK(out[start + to] == in->words[i], "byte %zu of %zu", i, bytes);
    }
    note(in, out, bytes);
    free(out);
}

static inline void ask_recurrences(plan_input *in)
{
    size_t found = 0;
    CHECK(!brv_recurring(in->words, in->n, in->bits, 1 + in->low % (64 / in->bits), &found) && found <= in->n, "%zu", found);
    note(in, &found, sizeof found);
    const size_t room = in->tables, pattern = 1 + in->width % in->n;
    uint64_t *at = allocated(room * sizeof *at);
    CHECK(!brv_recurrences(in->words, in->n, in->container, pattern, at, room, &found) && found <= room, "%zu", found);
    for (size_t i = 0; i < found; i++)
        CHECK(at[i] > (i ? at[i - 1] : 0) && at[i] + pattern <= in->n, "%zu of %zu", (size_t)at[i], in->n);
    note(in, at, room * sizeof *at);
    free(at);
}

/* What zstd makes of the words is not noted: it hangs on the library's version. */
static inline void ask_zstd(plan_input *in)
{
    brv_scratch *scratch = brv_scratch_new();
    size_t bytes = 0;
    CHECK(scratch && !brv_zstd_bytes(scratch, in->words, in->n, in->bits, 1 + in->width % 19, &bytes), "%u bits", in->bits);
    CHECK(bytes > 0 && bytes <= 64 + sliced_size(in->n, in->bits) * 129 / 128, "%zu bytes", bytes);
    brv_scratch_free(scratch);
}

static inline void ask_prices(plan_input *in)
{
    const unsigned width = in->width % 16 % in->bits + 1, rows = in->tables;
    const size_t symbols = (size_t)1 << width;
    in->low %= in->bits - width + 1;
    uint64_t *hists = counted(in, width, rows);
    double bits = brv_entropy_bits(hists, rows, symbols), code;
    note_number(in, bits);
    CHECK(!brv_huffman_bits(hists, rows, symbols, 1 + in->width % 15, &code) && code >= bits * (1 - 1e-9), "%g bits", code);
    note_number(in, code);
    note_number(in, (double)brv_huffman_table_bytes(hists, rows, symbols));
    code = brv_rans_bits(hists, symbols, 8 + in->width % 7);
    CHECK(code >= brv_entropy_bits(hists, 1, symbols) * (1 - 1e-9), "%g bits", code);
    note_number(in, code);
    note_number(in, (double)brv_rans_table_bytes(hists, symbols, 12));
    if (symbols <= 256) {
        CHECK(!brv_tunstall_bits(hists, symbols, 8 + in->width % 5, &code), "%u bits", width);
        note_number(in, code);
    }
    brv_choice best, other;
    double rank;
    CHECK(!brv_complete(hists, width, in->count, in->block, in->tolls, &best), "%u bits", width);
    CHECK(!brv_floor(hists, width, in->count, in->block, in->tolls, &rank), "%u bits", width);
    CHECK(best.way == BRV_CONST || rank <= rank_of(&best) * (1 + 1e-9), "floor %g above %g", rank, rank_of(&best));
    note_choice(in, &best, in->count);
    note_number(in, rank);
    for (int way = BRV_SPARSE; way <= BRV_TUNSTALL; way++) {
        const bool one = way == BRV_SPARSE || way == BRV_TUNSTALL;
        if (way == BRV_TUNSTALL && width > BRV_SYMBOL_BITS) continue;
        CHECK(!brv_coded(way, hists, one ? 1 : rows, width, in->segment, in->count, in->block, in->tolls, &other), "way %d", way);
        note_choice(in, &other, in->count);
    }
    free(hists);
}

static inline void ask_cut(plan_input *in)
{
    brv_choice fields[64];
    size_t n = 0;
    CHECK(!brv_split(in->words, in->n, in->bits, in->count, in->block, in->tolls, fields, &n), "%u bits", in->bits);
    unsigned high = in->bits;
    for (size_t i = 0; i < n; i++) {
        CHECK(fields[i].low + fields[i].width == high, "field %zu of %zu ends at %u", i, n, high);
        high = fields[i].low;
        note_choice(in, &fields[i], in->count);
    }
    CHECK(n && high == 0, "%zu fields", n);
}

static inline void count_with(plan_input *in, const brv_pairs *pairs, unsigned width, const uint8_t *words, size_t n,
                              const uint8_t *places)
{
    const size_t segments = (n + in->segment - 1) / in->segment;
    uint8_t *classes = allocated(segments);
    uint64_t *hists = allocated(pairs->tables * sizeof *hists << width), sum = 0;
    for (size_t s = 0; s < segments; s++) classes[s] = (uint8_t)(s % pairs->rows);
    CHECK(!brv_count_pairs(words, n, in->segment, width, classes, places, pairs->rows, pairs->columns, pairs->table, hists),
          "%zu words", n);
    for (size_t i = 0; i < (size_t)pairs->tables << width; i++) sum += hists[i];
    CHECK(sum == n, "%zu of %zu words", (size_t)sum, n);
    free(hists);
    free(classes);
}

static inline void ask_pairs(plan_input *in, const brv_coding *coding, const uint8_t *words, size_t segments)
{
    if (in->segment > 4096) return;
    const size_t n = segments * in->segment;
    brv_pairs found[2];
    uint32_t many = 0;
    uint8_t *places = allocated(in->segment);
    CHECK(!brv_learn_pairs(words, n, coding, in->tolls, found, &many, places), "%zu segments", segments);
    CHECK(!many || many == (found->rows > 1 ? 2u : 1u), "%u found with %u classes of rows", many, found->rows);
    if (many) note(in, places, in->segment);
    for (const brv_pairs *pairs = found; pairs < found + many; pairs++) {
        CHECK(pairs->tables >= 1 && pairs->tables <= in->tables, "%u tables", pairs->tables);
        for (uint32_t i = 0; i < pairs->rows * pairs->columns; i++)
            CHECK(pairs->table[i] < pairs->tables, "pair %u: %u", i, pairs->table[i]);
        note_number(in, pairs->rank);
        note(in, pairs->table, pairs->rows * pairs->columns);
        note(in, pairs->lengths, pairs->rows * sizeof *pairs->lengths);
        count_with(in, pairs, coding->width, words, n - in->segment / 2, places);
    }
    free(places);
}

static inline void ask_classes(plan_input *in)
{
    const unsigned width = in->bits < BRV_SYMBOL_BITS ? in->bits : BRV_SYMBOL_BITS;
    const size_t segments = in->n / in->segment < 4096 ? in->n / in->segment : 4096, n = segments * in->segment;
    const brv_coding coding = {.width = width, .most = in->tables, .few = 4,
                               .many = 10, .segment = in->segment, .words = in->count, .block = in->block};
    if (!segments) return;
    uint8_t *words = allocated(n), *classes = allocated(segments);
    for (size_t i = 0; i < n; i++) words[i] = (uint8_t)(load_word(in->words, in->container, i) & mask_of(width));
    int16_t *lengths = allocated(in->tables * sizeof(int16_t) << BRV_COARSE_BITS);
    uint32_t tables = 0;
    double rank;
    CHECK(!brv_learn(words, n, &coding, in->tolls, &tables, &rank, lengths), "%zu segments", segments);
    CHECK(tables >= 1 && tables <= in->tables, "%u tables", tables);
    note_number(in, rank);
    note(in, lengths, tables * sizeof(int16_t) << BRV_COARSE_BITS);
    /* the last segment ragged, unless segments are of one word */
    const size_t cut = n - in->segment / 2;
    uint64_t *hists = allocated(tables * sizeof *hists << width), sum = 0;
    CHECK(!brv_assign(words, cut, in->segment, width, lengths, tables, classes, hists), "%zu words", cut);
    for (size_t s = 0; s < segments; s++) CHECK(classes[s] < tables, "segment %zu: %u", s, classes[s]);
    for (size_t i = 0; i < (size_t)tables << width; i++) sum += hists[i];
    CHECK(sum == cut, "%zu of %zu words", (size_t)sum, cut);
    note(in, classes, segments);
    ask_pairs(in, &coding, words, segments);
    free(hists);
    free(lengths);
    free(classes);
    free(words);
}

/* The digest of the answers. */
static inline uint64_t ask_plan(const uint8_t *data, size_t size)
{
    static void (*const ask[QUESTIONS])(plan_input *) = {ask_counts,      ask_changes, ask_recurrences, ask_prices,
                                                         ask_cut,         ask_classes, ask_looks,       ask_columns,
                                                         ask_zstd};
    uint8_t head[PLAN_HEAD] = {0};
    memcpy(head, data, size < PLAN_HEAD ? size : PLAN_HEAD);
    plan_input in = {.question = head[0] % QUESTIONS, .bits = head[1] % 64 + 1, .width = head[3]};
    in.container = container_of(in.bits);
    in.low = head[2] % in.bits;
    in.tables = head[4] % MOST_ROWS + 1;
    in.tolls = &TOLLS[head[5] % (sizeof TOLLS / sizeof *TOLLS)];
    in.segment = (size_t)head[6] + 1 + (size_t)(head[7] & 1) * 256;
    memcpy(&in.count, head + 8, 8);
    in.count = in.count % ((uint64_t)1 << 40) + 1;
    in.block = (uint64_t)64 << head[7] % 15;
    in.n = size > PLAN_HEAD ? (size - PLAN_HEAD) / in.container : 0;
    if (!in.n) return 0;
    in.words = exact_copy(data + PLAN_HEAD, in.n * in.container);
    for (size_t i = 0; i < in.n; i++) {
        const uint64_t word = load_word(in.words, in.container, i) & mask_of(in.bits);
        memcpy(in.words + i * in.container, &word, in.container); /* of a little-endian machine */
    }
    ask[in.question](&in);
    free(in.words);
    return in.digest;
}

#endif
