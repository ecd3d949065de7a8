/* Checks brv_read and the pool on an archive of two sections, the second of which refers to the first: any parts of
 * them, by one thread and by several, what is damaged, and what is cut off. No arguments. */
#define _GNU_SOURCE
#include <sys/eventfd.h>
#include <unistd.h>

#include "support.h"

enum { SIZE = 1000001, BLOCK = 4096, BLOCKS = (SIZE + BLOCK - 1) / BLOCK, JOBS = 40 };

static uint64_t rng = 0x9e3779b97f4a7c15u;
static uint8_t flat[SIZE];
static uint64_t entries[2][2 * BLOCKS];
static brv_section sections[2];

static void put(int fd, const void *what, size_t n, uint64_t at)
{
    CHECK(pwrite(fd, what, n, (off_t)at) == (ssize_t)n, "no room for a file");
}

/* The first section as it is, the second without a payload: it is what the first is, xored with 0. */
static int make_archive(void)
{
    static const uint8_t raw[] = {OP_LIT, 1, ENC_RAW}, zero[] = {OP_CONST, 1, 0};
    FILE *file = tmpfile();
    CHECK(file, "no temporary file");
    const int fd = dup(fileno(file));
    fclose(file);
    uint64_t at = 0;
    for (size_t i = 0; i < SIZE; i++) flat[i] = (uint8_t)next_random(&rng);
    for (int s = 0; s < 2; s++) {
        brv_status st;
        sections[s].program = brv_program_new(s ? zero : raw, 3, flat, 0, 8, SIZE, BLOCK, NULL, &st);
        CHECK(sections[s].program, "%s", st.what);
        sections[s].entries = entries[s];
        sections[s].start = at;
        for (size_t b = 0; b < BLOCKS; b++) {
            const size_t n = b + 1 < BLOCKS ? BLOCK : SIZE - b * BLOCK;
            at += 4;
            if (!s) {
                put(fd, flat + b * BLOCK, n, at);
                at += n;
            }
            entries[s][2 * b] = at;
            entries[s][2 * b + 1] = brv_checksum(flat + b * BLOCK, n);
        }
    }
    CHECK(!ftruncate(fd, (off_t)at), "no room for a file");
    return fd;
}

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

static void check_alone(int fd, brv_scratch *scratch)
{
    for (int round = 0; round < JOBS; round++) {
        wanted w;
        brv_status st;
        ask(&w);
        CHECK(!brv_read(fd, w.parts, 3, scratch, w.out, 0, &st), "%s", st.what);
        compare(&w);
    }
}

static void check_pool(int fd)
{
    const int told = eventfd(0, 0);
    brv_pool *pool = brv_pool_new(3, told);
    static wanted w[JOBS];
    static brv_job jobs[JOBS];
    CHECK(told >= 0 && pool, "no threads");
    for (int j = 0; j < JOBS; j++) {
        ask(&w[j]);
        jobs[j] = (brv_job){.fd = fd, .parts = w[j].parts, .n = 3, .out = w[j].out};
        brv_pool_add(pool, &jobs[j]);
    }
    for (int j = JOBS - 1; j >= 0; j--) {
        uint64_t times;
        while (!brv_job_done(&jobs[j], 1)) CHECK(read(told, &times, sizeof times) == sizeof times, "nothing was told");
        CHECK(!jobs[j].status.code, "%s", jobs[j].status.what);
        compare(&w[j]);
    }
    for (int j = 0; j < JOBS; j++) {
        ask(&w[j]);
        jobs[j] = (brv_job){.fd = fd, .parts = w[j].parts, .n = 3, .out = w[j].out};
        brv_pool_add(pool, &jobs[j]);
    }
    brv_pool_free(pool); /* with most of them not begun */
    for (int j = 0; j < JOBS; j++) free(w[j].out);
    close(told);
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

int main(void)
{
    const int fd = make_archive();
    brv_scratch *scratch = brv_scratch_new();
    check_alone(fd, scratch);
    check_pool(fd);
    const uint8_t other = flat[100 * BLOCK + 7] ^ 1;
    put(fd, &other, 1, entries[0][2 * 99] + 4 + 7); /* in block 100 */
    check_lost(fd, scratch, BRV_CHECKSUM, true, 100);
    CHECK(!ftruncate(fd, (off_t)sections[1].start), "cannot cut a file off");
    put(fd, flat + 100 * BLOCK + 7, 1, entries[0][2 * 99] + 4 + 7);
    check_lost(fd, scratch, BRV_ENDS, false, 0);
    brv_scratch_free(scratch);
    for (int s = 0; s < 2; s++) brv_program_free((brv_program *)sections[s].program);
    close(fd);
    puts("reading: all parts as they were, by one thread and by three");
    return 0;
}
