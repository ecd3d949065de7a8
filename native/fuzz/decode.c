/* Any program, shared parts and payload: an error or words, the same for every instruction set, whole or in part. */
#include "input.h"

static int decode(const input *in, const brv_program *p, brv_scratch *s, uint64_t lo, uint64_t hi, guarded *out)
{
    uint8_t *payload = exact_copy(in->part[2], in->len[2]);
    const uint64_t span[2] = {0, in->len[2]};
    brv_status st;
    *out = guarded_new(hi - lo, in->span & 15);
    const int rc = brv_decode(p, s, payload, in->len[2], which_block(in, p), 1, span, NULL, NULL, 0, out->data, lo,
                              hi, &st);
    CHECK(rc == BRV_OK || (rc == BRV_PAYLOAD && st.block == which_block(in, p) && st.what), "code %d", rc);
    free(payload);
    return rc;
}

/* Two blocks in one call give what each gives alone: the same payload is taken for both. */
static void compare_two(const input *in, const brv_program *p, brv_scratch *s)
{
    const uint64_t first = which_block(in, p);
    if (first + 1 >= blocks_of(p)) return;
    const uint64_t lo = block_begin(p, first), middle = block_end(p, first), hi = block_end(p, first + 1);
    const uint64_t spans[4] = {0, in->len[2], 0, in->len[2]};
    uint8_t *payload = exact_copy(in->part[2], in->len[2]);
    guarded alone = guarded_new(hi - lo, 0), both = guarded_new(hi - lo, in->span & 15);
    brv_status st, of_both;
    int rc = brv_decode(p, s, payload, in->len[2], first, 1, spans, NULL, NULL, 0, alone.data, lo, middle, &st);
    if (!rc)
        rc = brv_decode(p, s, payload, in->len[2], first + 1, 1, spans, NULL, NULL, 0, alone.data + (middle - lo), middle,
                        hi, &st);
    CHECK(brv_decode(p, s, payload, in->len[2], first, 2, spans, NULL, NULL, 0, both.data, lo, hi, &of_both) == rc &&
          of_both.block == st.block && of_both.node == st.node, "two blocks at once end otherwise");
    CHECK(rc || !memcmp(alone.data, both.data, hi - lo), "two blocks at once differ");
    guarded_free(&alone);
    guarded_free(&both);
    free(payload);
}

static void compare(const input *in, const brv_program *scalar, const brv_program *other)
{
    brv_scratch *s = shared_scratch();
    const uint64_t lo = block_begin(scalar, which_block(in, scalar)), hi = block_end(scalar, which_block(in, scalar));
    const uint64_t a = lo + in->span % (hi - lo), b = a + 1 + (in->span >> 8) % (hi - a);
    guarded x, y, z;
    const int rc = decode(in, scalar, s, lo, hi, &x);
    CHECK(decode(in, other, s, lo, hi, &y) == rc, "instruction sets differ in what they take");
    CHECK(decode(in, other, s, a, b, &z) == rc || b - a < hi - lo, "a whole block is not taken again");
    if (rc == BRV_OK) {
        CHECK(!memcmp(x.data, y.data, hi - lo), "instruction sets differ");
        CHECK(!memcmp(x.data + (a - lo), z.data, b - a), "a part differs from the whole");
    }
    guarded_free(&x);
    guarded_free(&y);
    guarded_free(&z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const input in = parse_input(data, size);
    if (too_large(&in)) return 0;
    brv_program *scalar = make_program(&in, "scalar");
    const char *const others[] = {NULL, "avx2"};
    for (unsigned i = 0; i < 2; i++) {
        brv_program *other = make_program(&in, others[i]);
        CHECK(!scalar == !other, "only one instruction set takes the program");
        if (scalar) compare(&in, scalar, other);
        if (other) compare_two(&in, other, shared_scratch());
        brv_program_free(other);
    }
    brv_program_free(scalar);
    return 0;
}
