/* Any bytes under any valid program: refused, or a payload that decodes to the same bytes; for every instruction set
 * the same payload. */
#include "input.h"

static int encode(const brv_program *p, brv_scratch *s, uint64_t index, const uint8_t *data, size_t n, guarded *out,
                  size_t *len)
{
    brv_status st;
    *out = guarded_new(brv_encode_bound(p), 7);
    const int rc = brv_encode_block(p, s, index, data, n, out->data, out->n, len, &st);
    CHECK(rc == BRV_OK || rc == BRV_NOT_APPLICABLE, "code %d, %s", rc, st.what);
    CHECK(rc != BRV_OK || *len <= out->n, "%zu bytes, bound %zu", *len, out->n);
    return rc;
}

static void check_block(const input *in, const brv_program *scalar, const brv_program *best)
{
    const uint64_t index = which_block(in, scalar), lo = block_begin(scalar, index), hi = block_end(scalar, index);
    const size_t n = (size_t)(hi - lo);
    brv_scratch *s = shared_scratch();
    uint8_t *data = malloc(n);
    CHECK(data, "out of memory");
    for (size_t i = 0; i < n; i++) data[i] = in->len[2] ? in->part[2][i % in->len[2]] : 0;
    guarded x, y;
    size_t x_len = 0, y_len = 0;
    const int rc = encode(scalar, s, index, data, n, &x, &x_len);
    CHECK(encode(best, s, index, data, n, &y, &y_len) == rc, "instruction sets differ in what they take");
    if (rc == BRV_OK) {
        CHECK(x_len == y_len && !memcmp(x.data, y.data, x_len), "instruction sets write different payloads");
        guarded back = guarded_new(n, in->span & 15);
        uint8_t *payload = exact_copy(x.data, x_len);
        const uint64_t span[2] = {0, x_len};
        brv_status st;
        const int decoded = brv_decode(best, s, payload, x_len, index, 1, span, NULL, NULL, 0, back.data, lo, hi, &st);
        CHECK(decoded == BRV_OK, "%s", st.what);
        CHECK(!memcmp(back.data, data, n), "other bytes come back");
        guarded_free(&back);
        free(payload);
    }
    guarded_free(&x);
    guarded_free(&y);
    free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const input in = parse_input(data, size);
    if (too_large(&in)) return 0;
    const char *const others[] = {NULL, "avx2"};
    for (unsigned i = 0; i < 2; i++) {
        brv_program *scalar = make_program(&in, "scalar"), *other = make_program(&in, others[i]);
        CHECK(!scalar == !other, "only one instruction set takes the program");
        CHECK(!scalar || (!brv_prepare_encode(scalar) && !brv_prepare_encode(other)), "out of memory");
        if (scalar && set_classes(scalar) && set_classes(other)) check_block(&in, scalar, other);
        brv_program_free(scalar);
        brv_program_free(other);
    }
    return 0;
}
