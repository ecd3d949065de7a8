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

/* As many of the n bytes from `at` on as come first of one span, or of none; in *in_span the span's. */
static size_t run_at(const source *from, uint64_t at, size_t n, const uint8_t **in_span)
{
    *in_span = NULL;
    for (unsigned i = 0; i < from->n; i++) {
        const span *s = &from->spans[i];
        if (at < s->begin) {
            if (s->begin - at < n) n = (size_t)(s->begin - at);
        } else if (at - s->begin < s->n) {
            const size_t rest = s->n - (size_t)(at - s->begin);
            *in_span = s->bytes + (at - s->begin);
            return rest < n ? rest : n;
        }
    }
    return n;
}

/* n bytes of the archive from `at` on. */
static int fill(const source *from, uint8_t *to, size_t n, uint64_t at, brv_status *st)
{
    while (n) {
        const uint8_t *there;
        struct iovec some = {to, run_at(from, at, n, &there)};
        ssize_t got = (ssize_t)some.iov_len;
        if (there) memcpy(to, there, some.iov_len);
        else got = preadv2(from->fd, &some, 1, (off_t)at, from->at_once ? RWF_NOWAIT : 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(st, BRV_SYSTEM, errno, "the archive cannot be read");
        if (!got) return fail(st, BRV_ENDS, -1, "the archive ends in the middle of a section");
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

/* The same where they are, if they are in one span, or in `room`. */
static int get(const source *from, size_t n, uint64_t at, room *room, const uint8_t **bytes, brv_status *st)
{
    if (run_at(from, at, n, bytes) == n && *bytes) return 0;
    if (reserve(room, n)) return fail(st, BRV_NO_MEMORY, -1, "out of memory");
    *bytes = room->base;
    return fill(from, room->base, n, at, st);
}

brv_program *section_program(const source *from, const brv_index *index, size_t section, const char *cpu,
                             brv_scratch *scratch, brv_status *st)
{
    const brv_entry *e = &index->sections[section];
    const uint8_t *prologue;
    brv_program *program = NULL;
    size_t wire, shared;
    *st = (brv_status){.node = -1};
    if (!brv_blocks_good(index, section)) fail(st, BRV_RECORD, -1, "its part of the index is damaged");
    else if (!get(from, e->prologue, e->record, &scratch->payload, &prologue, st) &&
             !brv_prologue(e, prologue, &wire, &shared, st)) {
        const uint8_t *parts = prologue + e->prologue - shared;
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

uint64_t block_at(const brv_section *s, uint64_t at) { return at / block_bytes(s); }

uint64_t stored_at(const brv_section *s, uint64_t block) { return block ? s->entries[2 * block - 2] : s->start; }

static uint64_t payload_start(const brv_section *s, uint64_t block) { return stored_at(s, block) + 4; }

/* How many of the blocks from `first` to before `stop` are read at a time. */
static size_t step_blocks(const brv_section *s, uint64_t first, uint64_t stop)
{
    const uint64_t origin = payload_start(s, first), most = STEP_FLAT / block_bytes(s);
    size_t n = 1;
    while (first + n < stop && n < most && n < STEP_BLOCKS && s->entries[2 * (first + n)] - origin <= STEP_STORED) n++;
    return n;
}

/* One step of a section, whose differences are to `target` if there is one. */
static int read_step(const source *from, const brv_section *s, const step *of, const uint8_t *target, int ref,
                     brv_scratch *scratch, uint8_t *out, brv_status *st)
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
    const uint8_t *payload;
    int rc = get(from, stored, origin, &scratch->payload, &payload, st);
    if (!rc)
        rc = brv_decode(s->program, scratch, payload, stored, of->first, of->blocks, spans, checks, target, ref, out,
                        of->lo, of->hi, st);
    give_back(&scratch->payload);
    return rc;
}

/* What the target of a part has in the blocks of a step, to scratch->target. */
static int read_target(const source *from, const brv_part *part, const step *of, uint64_t total, brv_scratch *scratch,
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
        rc = read_step(from, s, &t, NULL, BRV_ALONE, scratch, scratch->target.base + (t.lo - lo), st);
    }
    return rc;
}

int read_part(const source *from, const brv_part *part, brv_scratch *scratch, uint8_t *out, brv_status *st)
{
    *st = (brv_status){.node = -1};
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
        if (part->target && (rc = read_target(from, part, &of, total, scratch, st))) st->in_target = 1;
        else
            rc = read_step(from, s, &of, part->target ? scratch->target.base : NULL, part->ref, scratch,
                           out + (of.lo - part->lo), st);
    }
    give_back(&scratch->target);
    return rc;
}

int brv_read(int fd, const brv_part *parts, size_t n, brv_scratch *scratch, uint8_t *out, int at_once, brv_status *st)
{
    const source from = {.fd = fd, .at_once = at_once};
    *st = (brv_status){.node = -1};
    for (size_t i = 0; i < n; i++) {
        const int rc = read_part(&from, &parts[i], scratch, out, st);
        if (rc) {
            st->part = (uint32_t)i;
            return rc;
        }
        out += parts[i].hi - parts[i].lo;
    }
    return 0;
}
