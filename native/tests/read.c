/* Checks brv_read on an archive of two sections, the second of which refers to the first: any parts of them, what is
 * damaged, and what is cut off. No arguments. */
#define _GNU_SOURCE
#include "archive.h"

enum { ROUNDS = 40 };

static uint64_t rng = 0x9e3779b97f4a7c15u;

static brv_part random_part(void)
{
    const bool second = next_random(&rng) & 1;
    const uint64_t lo = next_random(&rng) % SIZE;
    return (brv_part){.section = &sections[second], .target = second ? &sections[0] : NULL, .ref = second ? BRV_XOR : 0,
                      .lo = lo, .hi = lo + 1 + next_random(&rng) % (SIZE - lo)};
}

typedef struct {
    brv_part parts[3];
    uint8_t *out;
    size_t size;
} wanted;

static void ask(wanted *w)
{
    w->size = 0;
    for (int i = 0; i < 3; i++) {
        w->parts[i] = random_part();
        w->size += w->parts[i].hi - w->parts[i].lo;
    }
    w->out = malloc(w->size);
    CHECK(w->out, "out of memory");
}

static void compare(wanted *w)
{
    const uint8_t *got = w->out;
    for (int i = 0; i < 3; i++) {
        const size_t n = w->parts[i].hi - w->parts[i].lo;
        CHECK(!memcmp(got, flat + w->parts[i].lo, n), "part %d from %zu on", i, (size_t)w->parts[i].lo);
        got += n;
    }
    free(w->out);
}

static void check_parts(int fd, brv_scratch *scratch)
{
    for (int round = 0; round < ROUNDS; round++) {
        wanted w;
        brv_status st;
        ask(&w);
        CHECK(!brv_read(fd, w.parts, 3, scratch, w.out, 0, &st), "%s", st.what);
        compare(&w);
    }
}

/* Reading all of the second section must fail with this code, in its target or in what it stores itself. */
static void check_lost(int fd, brv_scratch *scratch, int code, bool in_target, uint64_t block)
{
    brv_status st;
    uint8_t *out = malloc(2 * SIZE);
    CHECK(out, "out of memory");
    const brv_part parts[] = {{&sections[0], NULL, 0, 0, 10}, {&sections[1], &sections[0], BRV_XOR, 0, SIZE}};
    CHECK(brv_read(fd, parts, 2, scratch, out, 0, &st) == code, "code %d: %s", st.code, st.what);
    CHECK(st.part == 1 && st.in_target == in_target, "part %u, in its target: %u", st.part, st.in_target);
    CHECK(!in_target || st.block == block, "block %zu", (size_t)st.block);
    free(out);
}

/* The code of preparing a section. */
static int prepared(int fd, const brv_index *index, size_t section, brv_scratch *scratch)
{
    brv_status st;
    brv_program *program = section_program(&(source){.fd = fd}, index, section, NULL, scratch, &st);
    CHECK(!program == (st.code != 0), "code %d", st.code);
    brv_program_free(program);
    return st.code;
}

/* Every bit of a prologue matters, and how long it is, and where each payload ends. */
static void check_prologues(int fd, brv_scratch *scratch)
{
    for (size_t s = 0; s < 2; s++) {
        CHECK(!prepared(fd, &whole, s, scratch), "not prepared");
        for (uint64_t bit = 0; bit < 8 * entries[s].prologue; bit++) {
            uint8_t byte;
            const uint64_t at = entries[s].record + bit / 8;
            CHECK(pread(fd, &byte, 1, (off_t)at) == 1, "no byte");
            put(fd, &(uint8_t){byte ^ 1 << bit % 8}, 1, at);
            CHECK(prepared(fd, &whole, s, scratch) == BRV_RECORD, "bit %zu", (size_t)bit);
            put(fd, &byte, 1, at);
        }
        const brv_entry entry = entries[s];
        for (entries[s].prologue = 0; entries[s].prologue < entry.prologue + 9; entries[s].prologue++) {
            if (entries[s].prologue == entry.prologue) continue;
            uint8_t *data = malloc(entries[s].prologue + 1);
            size_t program, shared;
            brv_status st;
            CHECK(data && pread(fd, data, entries[s].prologue, (off_t)entry.record) >= 0, "no bytes");
            CHECK(brv_prologue(&entries[s], data, &program, &shared, &st) == BRV_RECORD, "%u", entries[s].prologue);
            free(data);
        }
        entries[s] = entry;
        for (uint64_t b = 0; b < BLOCKS; b++)
            for (int change = -5; change <= 5; change += 10) {
                blocks[s][2 * b] += (uint64_t)(int64_t)change;
                const bool order = !brv_blocks_good(&whole, s) && prepared(fd, &whole, s, scratch) == BRV_RECORD;
                /* In the first section a payload may as well be another's. */
                CHECK(order || (!s && b + 1 < BLOCKS), "block %zu", (size_t)b);
                blocks[s][2 * b] -= (uint64_t)(int64_t)change;
            }
    }
}

int main(void)
{
    const int fd = make_archive(&rng);
    brv_scratch *scratch = brv_scratch_new();
    check_prologues(fd, scratch);
    check_parts(fd, scratch);
    const uint8_t other = flat[100 * BLOCK + 7] ^ 1;
    put(fd, &other, 1, blocks[0][2 * 99] + 4 + 7); /* in block 100 */
    check_lost(fd, scratch, BRV_CHECKSUM, true, 100);
    CHECK(!ftruncate(fd, (off_t)sections[1].start), "cannot cut a file off");
    put(fd, flat + 100 * BLOCK + 7, 1, blocks[0][2 * 99] + 4 + 7);
    check_lost(fd, scratch, BRV_ENDS, false, 0);
    brv_scratch_free(scratch);
    free_archive(fd);
    puts("reading: all parts as they were");
    return 0;
}
