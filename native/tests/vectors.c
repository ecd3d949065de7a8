/* Checks the executor and the encoder on cases that tests/native/export.py has written: vectors FILE CPU.
 *
 * FILE holds cases one after another, each: u32 bits, u64 count, u32 block, u32 lengths of wire and shared, u32
 * number of blocks, u32 whether the words of any segment may take any table's class; wire; shared; for each block
 * u32 length and the payload; the flat bytes. */
#include "support.h"

enum { RANGES = 6, DAMAGES = 12 };

typedef struct {
    uint32_t bits, block, wire_len, shared_len, n_blocks, encodable;
    uint64_t count, flat_len, payload_len;
    uint8_t *wire, *shared, *payload, *flat;
    uint64_t *spans, *checks;
    brv_program *p;
    size_t number;
} vector;

static uint64_t rng = 0x9e3779b97f4a7c15u;

static void read_exactly(FILE *f, void *to, size_t n) { CHECK(fread(to, 1, n, f) == n, "the file of cases is cut short"); }

static uint8_t *read_bytes(FILE *f, size_t n)
{
    uint8_t *a = malloc(n ? n : 1);
    CHECK(a, "out of memory");
    read_exactly(f, a, n);
    return a;
}

static bool read_vector(FILE *f, vector *v)
{
    if (fread(&v->bits, 4, 1, f) != 1) return false;
    read_exactly(f, &v->count, 8);
    read_exactly(f, &v->block, 4);
    read_exactly(f, &v->wire_len, 4);
    read_exactly(f, &v->shared_len, 4);
    read_exactly(f, &v->n_blocks, 4);
    read_exactly(f, &v->encodable, 4);
    v->wire = read_bytes(f, v->wire_len);
    v->shared = read_bytes(f, v->shared_len);
    v->spans = malloc(16 * (size_t)v->n_blocks);
    v->checks = malloc(8 * (size_t)v->n_blocks);
    v->payload = NULL;
    v->payload_len = 0;
    for (uint32_t i = 0; i < v->n_blocks; i++) {
        uint32_t n;
        read_exactly(f, &n, 4);
        v->payload = realloc(v->payload, v->payload_len + n + 1);
        CHECK(v->payload && v->spans && v->checks, "out of memory");
        read_exactly(f, v->payload + v->payload_len, n);
        v->spans[2 * i] = v->payload_len;
        v->spans[2 * i + 1] = n;
        v->payload_len += n;
    }
    v->flat_len = v->count * v->bits / 8;
    v->flat = read_bytes(f, v->flat_len);
    return true;
}

static void free_vector(vector *v)
{
    free(v->wire);
    free(v->shared);
    free(v->payload);
    free(v->flat);
    free(v->spans);
    free(v->checks);
    brv_program_free(v->p);
}

/* ---- decoding ------------------------------------------------------------------------------ */

/* Bytes lo..hi, given just the payloads they need. */
static void check_range(const vector *v, brv_scratch *s, uint64_t lo, uint64_t hi)
{
    const uint64_t step = block_end(v->p, 0), first = lo / step, n = (hi - 1) / step - first + 1;
    const uint64_t start = v->spans[2 * first], stop = v->spans[2 * (first + n - 1)] + v->spans[2 * (first + n - 1) + 1];
    uint8_t *payload = exact_copy(v->payload + start, stop - start);
    uint64_t *spans = malloc(16 * n);
    CHECK(spans, "out of memory");
    for (uint64_t j = 0; j < n; j++) {
        spans[2 * j] = v->spans[2 * (first + j)] - start;
        spans[2 * j + 1] = v->spans[2 * (first + j) + 1];
    }
    guarded out = guarded_new(hi - lo, (unsigned)below(&rng, 16));
    brv_status st;
    const int rc = brv_decode(v->p, s, payload, stop - start, first, n, spans, v->checks + first, NULL, 0, out.data, lo, hi,
                              &st);
    CHECK(rc == BRV_OK, "case %zu, bytes %lu..%lu: %s", v->number, (unsigned long)lo, (unsigned long)hi, st.what);
    CHECK(!memcmp(out.data, v->flat + lo, hi - lo), "case %zu, bytes %lu..%lu", v->number, (unsigned long)lo,
          (unsigned long)hi);
    guarded_free(&out);
    free(spans);
    free(payload);
}

static void check_decode(const vector *v, brv_scratch *s)
{
    for (uint32_t i = 0; i < v->n_blocks; i++)
        v->checks[i] = brv_checksum(v->flat + block_begin(v->p, i), block_end(v->p, i) - block_begin(v->p, i));
    check_range(v, s, 0, v->flat_len);
    for (unsigned i = 0; i < RANGES; i++) {
        const uint64_t lo = below(&rng, v->flat_len), most = v->flat_len - lo;
        check_range(v, s, lo, lo + 1 + below(&rng, i & 1 && most > 64 ? 64 : most));
    }
}

static void check_ref(const vector *v, brv_scratch *s)
{
    uint8_t *target = malloc(v->flat_len);
    CHECK(target, "out of memory");
    for (uint64_t i = 0; i < v->flat_len; i++) target[i] = (uint8_t)next_random(&rng);
    for (int ref = BRV_XOR; ref <= BRV_ADD; ref++) {
        guarded out = guarded_new(v->flat_len, (unsigned)below(&rng, 16));
        brv_status st;
        const int rc = brv_decode(v->p, s, v->payload, v->payload_len, 0, v->n_blocks, v->spans, NULL, target, ref, out.data,
                                  0, v->flat_len, &st);
        const unsigned width = container_of(v->bits);
        if (ref == BRV_ADD && v->bits != 8 * width) CHECK(rc == BRV_ARGUMENT, "case %zu: %d", v->number, rc);
        else CHECK(rc == BRV_OK, "case %zu: %s", v->number, st.what);
        for (uint64_t i = 0; rc == BRV_OK && ref == BRV_XOR && i < v->flat_len; i++)
            CHECK(out.data[i] == (v->flat[i] ^ target[i]), "case %zu, byte %zu", v->number, (size_t)i);
        for (uint64_t i = 0; rc == BRV_OK && ref == BRV_ADD && i < v->count; i++) {
            const uint64_t sum = load_word(v->flat, width, i) + load_word(target, width, i);
            CHECK(load_word(out.data, width, i) == (sum & mask_of(v->bits)), "case %zu, word %zu", v->number, (size_t)i);
        }
        guarded_free(&out);
    }
    free(target);
}

/* ---- encoding ------------------------------------------------------------------------------ */

static void check_encode(vector *v, brv_scratch *s)
{
    const size_t cap = brv_encode_bound(v->p);
    guarded payload = guarded_new(cap, 5);
    brv_status st;
    CHECK(set_classes(v->p), "case %zu has very many segments", v->number);
    for (uint32_t i = 0; i < v->n_blocks; i++) {
        const uint64_t lo = block_begin(v->p, i), n = block_end(v->p, i) - lo;
        uint8_t *data = exact_copy(v->flat + lo, n);
        size_t len = 0, again = 0;
        int rc = brv_encode_block(v->p, s, i, data, n, payload.data, cap, &len, &st);
        if (rc == BRV_NOT_APPLICABLE && !v->encodable) {
            free(data);
            continue;
        }
        CHECK(rc == BRV_OK && len <= cap, "case %zu, block %u: %d, %s", v->number, i, rc, st.what);
        guarded out = guarded_new(n, 3);
        const uint64_t span[2] = {0, len}, check = v->checks[i];
        rc = brv_decode(v->p, s, payload.data, len, i, 1, span, &check, NULL, 0, out.data, lo, lo + n, &st);
        CHECK(rc == BRV_OK, "case %zu, block %u: %s", v->number, i, st.what);
        guarded_free(&out);
        if (len) { /* a buffer that is too small is an error, and nothing is written past it */
            guarded tight = guarded_new(below(&rng, len), 1);
            rc = brv_encode_block(v->p, s, i, data, n, tight.data, tight.n, &again, &st);
            CHECK(rc == BRV_NO_ROOM, "case %zu, block %u into %zu of %zu bytes: %d", v->number, i, tight.n, len, rc);
            guarded_free(&tight);
        }
        free(data);
    }
    guarded_free(&payload);
}

/* The words of every node, and their counts; of the root, the flat bytes. */
static void check_analysis(const vector *v, brv_scratch *s)
{
    brv_status st;
    brv_program *p = brv_program_new(v->wire, v->wire_len, NULL, 0, v->bits, v->count, v->block, v->p->k->name, &st);
    CHECK(p, "case %zu: %s", v->number, st.what);
    const uint64_t block = below(&rng, v->n_blocks), lo = block_begin(p, block), len = block_end(p, block) - lo;
    uint64_t *hist = malloc(sizeof *hist << 16), *counted = malloc(sizeof *counted << 16);
    CHECK(hist && counted, "out of memory");
    for (uint32_t i = 0; i < brv_node_count(p); i++) {
        const unsigned bits = brv_node_bits(p, i), container = container_of(bits);
        guarded words = guarded_new((size_t)v->block * container, 9);
        size_t n = SIZE_MAX;
        int rc = brv_words(p, s, block, v->flat + lo, len, i, words.data, &n, &st);
        CHECK(rc == BRV_OK && n <= v->block, "case %zu, node %u: %d", v->number, i, rc);
        if (i == 0 && bits == 8 * container) CHECK(!memcmp(words.data, v->flat + lo, len), "case %zu", v->number);
        for (size_t j = 0; j < n; j++) CHECK(load_word(words.data, container, j) <= mask_of(bits), "case %zu", v->number);
        if (bits <= 16) {
            const size_t bytes = sizeof *hist << bits;
            memset(hist, 0, bytes);
            memset(counted, 0, bytes);
            for (size_t j = 0; j < n; j++) counted[load_word(words.data, container, j)]++;
            rc = brv_histogram(p, s, block, v->flat + lo, len, i, hist, NULL, 0, &st);
            CHECK(rc == BRV_OK && !memcmp(hist, counted, bytes), "case %zu, node %u: %d", v->number, i, rc);
        }
        guarded_free(&words);
    }
    free(hist);
    free(counted);
    brv_program_free(p);
}

/* ---- damage -------------------------------------------------------------------------------- */

/* A copy with bits flipped, bytes taken out, put in or cut off the end. */
static uint8_t *damaged(const uint8_t *data, size_t n, size_t *n_out)
{
    const size_t most = n + 8;
    uint8_t *out = malloc(most);
    CHECK(out, "out of memory");
    memcpy(out, data, n);
    const size_t at = below(&rng, n + 1);
    size_t some = 1 + below(&rng, 8);
    switch (below(&rng, 4)) {
    case 0:
        for (; some && n; some--) out[below(&rng, n)] ^= (uint8_t)(1u << below(&rng, 8));
        break;
    case 1:
        n = at;
        break;
    case 2:
        memmove(out + at + some, out + at, n - at);
        for (size_t i = 0; i < some; i++) out[at + i] = (uint8_t)next_random(&rng);
        n += some;
        break;
    default:
        some = some < n - at ? some : n - at;
        memmove(out + at, out + at + some, n - at - some);
        n -= some;
    }
    uint8_t *copy = exact_copy(out, n);
    free(out);
    *n_out = n;
    return copy;
}

static int try_decode(const vector *v, const brv_program *p, brv_scratch *s, const uint8_t *payload, size_t len,
                       uint64_t block)
{
    const uint64_t lo = block_begin(p, block), n = block_end(p, block) - lo, span[2] = {0, len};
    guarded out = guarded_new(n, (unsigned)below(&rng, 16));
    brv_status st;
    const int rc = brv_decode(p, s, payload, len, block, 1, span, NULL, NULL, 0, out.data, lo, lo + n, &st);
    CHECK(rc == BRV_OK || (rc == BRV_PAYLOAD && st.block == block && st.what), "case %zu: %d", v->number, rc);
    guarded_free(&out);
    return rc;
}

/* The damaged block ends among others as it does alone. */
static void try_among_others(const vector *v, brv_scratch *s, const uint8_t *bad, size_t len, uint64_t block,
                             int alone)
{
    const uint64_t first = block - (block && below(&rng, 2)), last = block + (block + 1 < v->n_blocks);
    uint64_t spans[6], end = 0;
    for (uint64_t b = first; b <= last; b++) {
        spans[2 * (b - first)] = end;
        end += spans[2 * (b - first) + 1] = b == block ? len : v->spans[2 * b + 1];
    }
    uint8_t *joined = malloc(end + 1);
    CHECK(joined, "out of memory");
    for (uint64_t b = first; b <= last; b++)
        memcpy(joined + spans[2 * (b - first)], b == block ? bad : v->payload + v->spans[2 * b],
               spans[2 * (b - first) + 1]);
    uint8_t *payload = exact_copy(joined, end);
    free(joined);
    const uint64_t lo = block_begin(v->p, first), hi = block_end(v->p, last);
    guarded out = guarded_new(hi - lo, 0);
    brv_status st;
    const int rc = brv_decode(v->p, s, payload, end, first, last - first + 1, spans, NULL, NULL, 0, out.data, lo, hi, &st);
    CHECK(rc == alone && (!rc || st.block == block), "case %zu: %d, alone %d", v->number, rc, alone);
    guarded_free(&out);
    free(payload);
}

static void check_damage(const vector *v, brv_scratch *s)
{
    for (unsigned i = 0; i < DAMAGES; i++) {
        const uint64_t block = below(&rng, v->n_blocks);
        const uint8_t *payload = v->payload + v->spans[2 * block];
        size_t n;
        uint8_t *bad = damaged(payload, v->spans[2 * block + 1], &n);
        const int alone = try_decode(v, v->p, s, bad, n, block);
        try_among_others(v, s, bad, n, block, alone);
        free(bad);

        const bool of_wire = i & 1;
        bad = of_wire ? damaged(v->wire, v->wire_len, &n) : damaged(v->shared, v->shared_len, &n);
        brv_status st;
        brv_program *p = brv_program_new(of_wire ? bad : v->wire, of_wire ? n : v->wire_len, of_wire ? v->shared : bad,
                                         of_wire ? v->shared_len : n, v->bits, v->count, v->block, v->p->k->name, &st);
        if (p) try_decode(v, p, s, payload, v->spans[2 * block + 1], block);
        else CHECK(st.code != BRV_OK && st.what, "case %zu is refused without a reason", v->number);
        brv_program_free(p);
        free(bad);
    }
}

/* ---- tables -------------------------------------------------------------------------------- */

/* The least cost of a complete code of lengths >= from for weights w[0..n) from the greatest to the least, where
 * `space` of the code space (in units of 2^-max_len) is left: every code is tried. */
static uint64_t least_cost(const uint64_t *w, size_t n, unsigned from, unsigned max_len, uint64_t space)
{
    if (n == 0) return space ? UINT64_MAX : 0;
    uint64_t best = UINT64_MAX;
    for (unsigned l = from; l <= max_len; l++) {
        const uint64_t takes = (uint64_t)1 << (max_len - l);
        if (takes > space) continue;
        const uint64_t rest = least_cost(w + 1, n - 1, l, max_len, space - takes);
        if (rest != UINT64_MAX && rest + w[0] * l < best) best = rest + w[0] * l;
    }
    return best;
}

static int descending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void random_histogram(uint64_t *hist, size_t n)
{
    const uint64_t rarity = 1 + below(&rng, 3), scale = 1 + below(&rng, 40);
    for (size_t i = 0; i < n; i++) hist[i] = below(&rng, rarity) ? 0 : below(&rng, (uint64_t)1 << below(&rng, scale));
}

static void check_lengths(const uint64_t *hist, size_t n, unsigned max_len)
{
    uint8_t len[512];
    uint64_t kraft = 0, cost = 0, weights[512];
    size_t used = 0, coded = 0;
    for (size_t i = 0; i < n; i++)
        if (hist[i]) weights[used++] = hist[i];
    const int rc = brv_huffman_lengths(hist, n, max_len, len);
    if (used > (size_t)1 << max_len) {
        CHECK(rc == BRV_ARGUMENT, "%zu symbols in %u bits", used, max_len);
        return;
    }
    CHECK(rc == BRV_OK, "%d", rc);
    for (size_t i = 0; i < n; i++) {
        CHECK(len[i] <= max_len, "length %u", len[i]);
        CHECK(!hist[i] || len[i], "symbol %zu has no code", i);
        if (!len[i]) continue;
        coded++;
        kraft += (uint64_t)1 << (max_len - len[i]);
        cost += hist[i] * len[i];
    }
    if (used < 2) {
        CHECK(coded == 1 && kraft == (uint64_t)1 << (max_len - 1), "a lone symbol has length 1");
        return;
    }
    CHECK(coded == used && kraft == (uint64_t)1 << max_len, "%zu of %zu symbols, Kraft sum %lu", coded, used,
          (unsigned long)kraft);
    if (used > 8) return;
    qsort(weights, used, sizeof *weights, descending);
    const uint64_t best = least_cost(weights, used, 1, max_len, (uint64_t)1 << max_len);
    CHECK(cost == best, "%lu bits, %lu would do", (unsigned long)cost, (unsigned long)best);
}

static void check_frequencies(const uint64_t *hist, size_t n, unsigned prob_bits)
{
    uint32_t freq[512];
    uint64_t sum = 0;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += hist[i] != 0;
    const int rc = brv_rans_frequencies(hist, n, prob_bits, freq);
    if (used > (size_t)1 << prob_bits) {
        CHECK(rc == BRV_ARGUMENT, "%zu symbols in %u bits", used, prob_bits);
        return;
    }
    CHECK(rc == BRV_OK, "%d", rc);
    for (size_t i = 0; i < n; i++) {
        CHECK(used == 0 || (hist[i] != 0) == (freq[i] != 0), "symbol %zu of %zu", i, n);
        sum += freq[i];
    }
    CHECK(sum == (uint64_t)1 << prob_bits, "frequencies sum to %lu", (unsigned long)sum);
}

static void check_tables(void)
{
    uint64_t hist[512];
    for (unsigned i = 0; i < 2000; i++) {
        const size_t n = i & 1 ? 1 + below(&rng, 10) : 1 + below(&rng, 512);
        random_histogram(hist, n);
        check_lengths(hist, n, 1 + (unsigned)below(&rng, 15));
        check_frequencies(hist, n, 8 + (unsigned)below(&rng, 7));
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: vectors FILE CPU");
    if (strcmp(brv_cpu(argv[2]), argv[2])) {
        printf("vectors: this machine has no %s\n", argv[2]);
        return 0;
    }
    FILE *f = fopen(argv[1], "rb");
    CHECK(f, "%s cannot be read", argv[1]);
    brv_scratch *s = brv_scratch_new();
    vector v = {.number = 0};
    check_tables();
    for (; read_vector(f, &v); v.number++) {
        brv_status st;
        v.p = brv_program_new(v.wire, v.wire_len, v.shared, v.shared_len, v.bits, v.count, v.block, argv[2], &st);
        CHECK(!v.p || !brv_prepare_encode(v.p), "out of memory");
        CHECK(v.p, "case %zu: node %d: %s", v.number, st.node, st.what);
        check_decode(&v, s);
        check_ref(&v, s);
        check_damage(&v, s);
        check_analysis(&v, s);
        check_encode(&v, s);
        free_vector(&v);
    }
    CHECK(v.number, "%s holds no case", argv[1]);
    brv_scratch_free(s);
    fclose(f);
    printf("vectors: %zu cases, %s: ok\n", v.number, argv[2]);
    return 0;
}
