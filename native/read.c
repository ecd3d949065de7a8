/* Parts of an archive, from its descriptor to flat bytes: the only file here that reads a disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/uio.h>

#include "internal.h"

/* Stored and decoded bytes of the blocks that are read at a time, and their number: little enough that a core finds
 * them in its cache when it decodes them. A block that is larger is read alone. */
enum { STEP_STORED = 256 << 10, STEP_FLAT = 512 << 10, STEP_BLOCKS = 32 };

/* A larger buffer is not kept for the next call. */
enum { KEPT = 1 << 20 };

/* Room for n bytes; 0 or BRV_NO_MEMORY. */
static int reserve(room *r, size_t n)
{
    if (n <= r->cap) return 0;
    free(r->base);
    r->cap = 0;
    r->base = malloc(n);
    if (!r->base) return BRV_NO_MEMORY;
    r->cap = n;
    return 0;
}

static void give_back(room *r)
{
    if (r->cap <= KEPT) return;
    free(r->base);
    *r = (room){NULL, 0};
}

/* n bytes of the file from `at` on. */
static int fill(int fd, uint8_t *to, size_t n, uint64_t at, bool at_once, brv_status *st)
{
    while (n) {
        struct iovec whole = {to, n};
        const ssize_t got = preadv2(fd, &whole, 1, (off_t)at, at_once ? RWF_NOWAIT : 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(st, BRV_SYSTEM, errno, "the archive cannot be read");
        if (!got) return fail(st, BRV_ENDS, -1, "the archive ends in the middle of a section");
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

brv_program *section_program(int fd, const brv_index *index, size_t section, const char *cpu, brv_scratch *scratch,
                             brv_status *st)
{
    const brv_entry *e = &index->sections[section];
    brv_program *program = NULL;
    size_t wire, shared;
    *st = (brv_status){.node = -1};
    if (!brv_blocks_good(index, section)) fail(st, BRV_RECORD, -1, "its part of the index is damaged");
    else if (reserve(&scratch->payload, e->prologue)) fail(st, BRV_NO_MEMORY, -1, "out of memory");
    else if (!fill(fd, scratch->payload.base, e->prologue, e->record, false, st) &&
             !brv_prologue(e, scratch->payload.base, &wire, &shared, st)) {
        const uint8_t *parts = scratch->payload.base + e->prologue - shared;
        program = brv_program_new(parts - wire, wire, parts, shared, e->bits, e->count, e->block, cpu, st);
    }
    give_back(&scratch->payload);
    return program;
}

typedef struct {
    uint64_t first;
    size_t blocks;
    uint64_t lo, hi; /* of the section's flat bytes */
} step;

static uint64_t block_bytes(const brv_section *s) { return (uint64_t)s->program->block / 8 * s->program->bits; }

static uint64_t payload_start(const brv_section *s, uint64_t block)
{
    return (block ? s->entries[2 * block - 2] : s->start) + 4;
}

uint64_t stored_at(const brv_section *s, uint64_t at) { return payload_start(s, at / block_bytes(s)); }

/* How many of the blocks from `first` to before `stop` are read at a time. */
static size_t step_blocks(const brv_section *s, uint64_t first, uint64_t stop)
{
    const uint64_t origin = payload_start(s, first), most = STEP_FLAT / block_bytes(s);
    size_t n = 1;
    while (first + n < stop && n < most && n < STEP_BLOCKS && s->entries[2 * (first + n)] - origin <= STEP_STORED) n++;
    return n;
}

/* One step of a section, whose differences are to `target` if there is one. */
static int read_step(int fd, const brv_section *s, const step *of, const uint8_t *target, int ref, brv_scratch *scratch,
                     uint8_t *out, bool at_once, brv_status *st)
{
    uint64_t spans[2 * STEP_BLOCKS], checks[STEP_BLOCKS];
    const uint64_t origin = payload_start(s, of->first);
    for (size_t j = 0; j < of->blocks; j++) {
        const uint64_t start = payload_start(s, of->first + j);
        spans[2 * j] = start - origin;
        spans[2 * j + 1] = s->entries[2 * (of->first + j)] - start;
        checks[j] = s->entries[2 * (of->first + j) + 1];
    }
    const size_t stored = (size_t)(spans[2 * of->blocks - 2] + spans[2 * of->blocks - 1]);
    if (reserve(&scratch->payload, stored)) return fail(st, BRV_NO_MEMORY, -1, "out of memory");
    int rc = fill(fd, scratch->payload.base, stored, origin, at_once, st);
    if (!rc)
        rc = brv_decode(s->program, scratch, scratch->payload.base, stored, of->first, of->blocks, spans, checks,
                        target, ref, out, of->lo, of->hi, st);
    give_back(&scratch->payload);
    return rc;
}

/* What the target of a part has in the blocks of a step, to scratch->target. */
static int read_target(int fd, const brv_part *part, const step *of, uint64_t total, brv_scratch *scratch, bool at_once,
                       brv_status *st)
{
    const brv_section *s = part->target;
    const uint64_t size = block_bytes(s), lo = of->first * size;
    const uint64_t end = (of->first + of->blocks) * size, hi = end < total ? end : total;
    if (reserve(&scratch->target, (size_t)(hi - lo))) return fail(st, BRV_NO_MEMORY, -1, "out of memory");
    int rc = 0;
    for (step t = {.first = of->first}; !rc && t.first < of->first + of->blocks; t.first += t.blocks) {
        t.blocks = step_blocks(s, t.first, of->first + of->blocks);
        t.lo = t.first * size;
        t.hi = (t.first + t.blocks) * size < hi ? (t.first + t.blocks) * size : hi;
        rc = read_step(fd, s, &t, NULL, BRV_ALONE, scratch, scratch->target.base + (t.lo - lo), at_once, st);
    }
    return rc;
}

static int read_part(int fd, const brv_part *part, brv_scratch *scratch, uint8_t *out, bool at_once, brv_status *st)
{
    const brv_section *s = part->section;
    const brv_program *p = s->program;
    const uint64_t total = p->count / 8 * p->bits + p->count % 8 * p->bits / 8, size = block_bytes(s);
    if (part->lo >= part->hi || part->hi > total) return fail(st, BRV_ARGUMENT, -1, "the range is not the section's");
    if (part->target && (part->target->program->bits != p->bits || part->target->program->count != p->count ||
                         part->target->program->block != p->block))
        return fail(st, BRV_ARGUMENT, -1, "the sections do not fit each other");
    const uint64_t stop = (part->hi - 1) / size + 1;
    int rc = 0;
    for (step of = {.first = part->lo / size}; !rc && of.first < stop; of.first += of.blocks) {
        of.blocks = step_blocks(s, of.first, stop);
        of.lo = of.first * size > part->lo ? of.first * size : part->lo;
        of.hi = (of.first + of.blocks) * size < part->hi ? (of.first + of.blocks) * size : part->hi;
        if (part->target && (rc = read_target(fd, part, &of, total, scratch, at_once, st))) st->in_target = 1;
        else
            rc = read_step(fd, s, &of, part->target ? scratch->target.base : NULL, part->ref, scratch,
                           out + (of.lo - part->lo), at_once, st);
    }
    give_back(&scratch->target);
    return rc;
}

int brv_read(int fd, const brv_part *parts, size_t n, brv_scratch *scratch, uint8_t *out, int at_once, brv_status *st)
{
    *st = (brv_status){.node = -1};
    for (size_t i = 0; i < n; i++) {
        const int rc = read_part(fd, &parts[i], scratch, out, at_once, st);
        if (rc) {
            st->part = (uint32_t)i;
            return rc;
        }
        out += parts[i].hi - parts[i].lo;
    }
    return 0;
}
