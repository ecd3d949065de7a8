/* The fuzzers' input: u8 bits, u8 where (which block), u16 length of wire, u32 block, u64 count, u32 length of shared,
 * u32 span (which part of the block); wire; shared; what is left is a payload or the bytes to encode. Lengths beyond
 * the end mean the end. tests/native/inputs.py writes and reads the same. */
#ifndef BREVIS_FUZZ_INPUT_H
#define BREVIS_FUZZ_INPUT_H

#include "../tests/support.h"

enum { HEAD = 24, PARTS = 3 };
/* Larger blocks only cost time: nothing in the executor changes above a few thousand words. */
#define MOST_BLOCK_BYTES ((uint64_t)1 << 18)

typedef struct {
    uint8_t bits, where;
    uint32_t block, span;
    uint64_t count;
    const uint8_t *part[PARTS]; /* wire, shared, rest */
    size_t len[PARTS];
} input;

static input parse_input(const uint8_t *data, size_t size)
{
    uint8_t head[HEAD] = {0};
    uint16_t wire;
    uint32_t shared;
    input in = {0};
    memcpy(head, data, size < HEAD ? size : HEAD);
    data += size < HEAD ? size : HEAD;
    size -= size < HEAD ? size : HEAD;
    in.bits = head[0];
    in.where = head[1];
    memcpy(&wire, head + 2, 2);
    memcpy(&in.block, head + 4, 4);
    memcpy(&in.count, head + 8, 8);
    memcpy(&shared, head + 16, 4);
    memcpy(&in.span, head + 20, 4);
    in.part[0] = data;
    in.len[0] = wire < size ? wire : size;
    in.part[1] = data + in.len[0];
    in.len[1] = shared < size - in.len[0] ? shared : size - in.len[0];
    in.part[2] = in.part[1] + in.len[1];
    in.len[2] = size - in.len[0] - in.len[1];
    return in;
}

static bool too_large(const input *in) { return (uint64_t)in->block * in->bits / 8 > MOST_BLOCK_BYTES; }

static uint64_t which_block(const input *in, const brv_program *p)
{
    const uint64_t n = blocks_of(p);
    return in->where == 1 ? n - 1 : in->where % n;
}

/* NULL if the format's rules refuse the program; both instruction sets must agree. */
static brv_program *make_program(const input *in, const char *cpu)
{
    uint8_t *wire = exact_copy(in->part[0], in->len[0]), *shared = exact_copy(in->part[1], in->len[1]);
    brv_status st;
    brv_program *p = brv_program_new(wire, in->len[0], shared, in->len[1], in->bits, in->count, in->block, cpu, &st);
    CHECK(p || (st.code != BRV_OK && st.code != BRV_NO_MEMORY && st.what), "refused with code %d", st.code);
    free(wire);
    free(shared);
    return p;
}

/* One for all inputs, as threads keep theirs: making zstd's contexts costs more than most inputs do. */
static brv_scratch *shared_scratch(void)
{
    static brv_scratch *s;
    if (!s) s = brv_scratch_new();
    CHECK(s, "out of memory");
    return s;
}

/* ---- mutation: one part at a time, so that the others stay valid --------------------------- */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    uint64_t random = seed + 1;
    const uint64_t choice = below(&random, 20);
    if (size < HEAD || max_size < HEAD || size > max_size) return LLVMFuzzerMutate(data, size, max_size);
    if (choice == 0) {
        LLVMFuzzerMutate(data, HEAD, HEAD);
        return size;
    }
    const unsigned chosen = choice < 4 ? 0 : choice < 8 ? 1 : 2;
    const input in = parse_input(data, size);
    const size_t others = size - in.len[chosen];
    size_t room = max_size - others;
    if (chosen == 0 && room > UINT16_MAX) room = UINT16_MAX;
    uint8_t *changed = malloc(room ? room : 1), *out = malloc(max_size);
    CHECK(changed && out, "out of memory");
    if (in.len[chosen]) memcpy(changed, in.part[chosen], in.len[chosen]);
    const size_t n = LLVMFuzzerMutate(changed, in.len[chosen], room);
    memcpy(out, data, HEAD);
    size_t at = HEAD;
    for (unsigned i = 0; i < PARTS; i++) {
        const size_t len = i == chosen ? n : in.len[i];
        if (len) memcpy(out + at, i == chosen ? changed : in.part[i], len);
        at += len;
    }
    const uint16_t wire = (uint16_t)(chosen == 0 ? n : in.len[0]);
    const uint32_t shared = (uint32_t)(chosen == 1 ? n : in.len[1]);
    memcpy(out + 2, &wire, 2);
    memcpy(out + 16, &shared, 4);
    memcpy(data, out, at);
    free(changed);
    free(out);
    return at;
}

#endif
