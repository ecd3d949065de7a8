/* An archive of two sections, as the reader has prepared them: random bytes, and a section that refers to them. */
#ifndef BREVIS_TEST_ARCHIVE_H
#define BREVIS_TEST_ARCHIVE_H

#include <unistd.h>

#include "support.h"

enum { SIZE = 1000001, BLOCK = 8192, BLOCKS = (SIZE + BLOCK - 1) / BLOCK };

static uint8_t flat[SIZE];
static uint64_t entries[2][2 * BLOCKS];
static brv_section sections[2];

static inline void put(int fd, const void *what, size_t n, uint64_t at)
{
    CHECK(pwrite(fd, what, n, (off_t)at) == (ssize_t)n, "no room for a file");
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

static inline void free_archive(int fd)
{
    for (int s = 0; s < 2; s++) brv_program_free((brv_program *)sections[s].program);
    close(fd);
}

#endif
