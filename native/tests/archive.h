/* An archive of two sections, without head and tail: random bytes, and a section that refers to them. */
#ifndef BREVIS_TEST_ARCHIVE_H
#define BREVIS_TEST_ARCHIVE_H

#include <unistd.h>

#include "support.h"

enum { SIZE = 1000001, BLOCK = 8192, BLOCKS = (SIZE + BLOCK - 1) / BLOCK };

static uint8_t flat[SIZE];
static brv_entry entries[2];
static uint64_t blocks[2][2 * BLOCKS];
static brv_index whole = {.sections = entries, .blocks = blocks[0], .n = 2, .size = 2 * SIZE};
static brv_section sections[2];

static inline void put(int fd, const void *what, size_t n, uint64_t at)
{
    CHECK(pwrite(fd, what, n, (off_t)at) == (ssize_t)n, "no room for a file");
}

static inline size_t put_varints(uint8_t *to, const uint64_t *numbers, size_t n)
{
    uint8_t *at = to;
    for (size_t i = 0; i < n; i++) {
        uint64_t rest = numbers[i];
        for (; rest > 127; rest >>= 7) *at++ = (uint8_t)(rest | 128);
        *at++ = (uint8_t)rest;
    }
    return (size_t)(at - to);
}

/* The prologue of a section without shared parts, and its entry. */
static inline void put_prologue(int fd, int s, const uint8_t *program, size_t n, uint64_t at)
{
    const uint64_t numbers[] = {SIZE, BLOCK / 64, n, 0, 0};
    uint8_t data[64] = {'B', 'S', s ? BRV_XOR << 4 : 0, 0, 8};
    const size_t head = 5 + put_varints(data + 5, numbers, s ? 5 : 4);
    memcpy(data + head, program, n);
    const uint64_t check = brv_checksum(data, head + n);
    memmove(data + head + 8, data + head, n);
    memcpy(data + head, &check, 8);
    put(fd, data, head + 8 + n, at);
    entries[s] = (brv_entry){.offset = s ? SIZE : 0, .record = at, .count = SIZE, .first_block = s ? BLOCKS : 0,
                             .prologue = (uint32_t)(head + 8 + n), .block = BLOCK, .bits = 8,
                             .ref = s ? BRV_XOR : BRV_ALONE};
}

/* The first section as it is, the second without a payload: it is what the first is, xored with 0. */
static inline int make_archive(uint64_t *rng)
{
    static const uint8_t raw[] = {OP_LIT, 1, ENC_RAW}, zero[] = {OP_CONST, 1, 0};
    FILE *file = tmpfile();
    CHECK(file, "no temporary file");
    const int fd = dup(fileno(file));
    fclose(file);
    uint64_t at = 0;
    for (size_t i = 0; i < SIZE; i++) flat[i] = (uint8_t)next_random(rng);
    for (int s = 0; s < 2; s++) {
        brv_status st;
        sections[s].program = brv_program_new(s ? zero : raw, 3, flat, 0, 8, SIZE, BLOCK, NULL, &st);
        CHECK(sections[s].program, "%s", st.what);
        put_prologue(fd, s, s ? zero : raw, 3, at);
        at += entries[s].prologue;
        sections[s].entries = blocks[s];
        sections[s].start = at;
        for (size_t b = 0; b < BLOCKS; b++) {
            const size_t n = b + 1 < BLOCKS ? BLOCK : SIZE - b * BLOCK;
            at += 4;
            if (!s) {
                put(fd, flat + b * BLOCK, n, at);
                at += n;
            }
            blocks[s][2 * b] = at;
            blocks[s][2 * b + 1] = brv_checksum(flat + b * BLOCK, n);
        }
    }
    whole.begin = at;
    CHECK(!ftruncate(fd, (off_t)at), "no room for a file");
    return fd;
}

static inline void free_archive(int fd)
{
    for (int s = 0; s < 2; s++) brv_program_free((brv_program *)sections[s].program);
    close(fd);
}

#endif
