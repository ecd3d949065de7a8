/* What the index of an archive says of a section, and its prologue: checked as docs/format.md asks. */
#include "internal.h"

enum { LEAST_PAYLOAD = 4, RECORD_HEAD = 5, CHECKSUM = 8, MOST_NUMBERS = 5 };

#define MAX_PROGRAM ((uint64_t)1 << 16)
#define MAX_SHARED ((uint64_t)1 << 26)

int brv_blocks_good(const brv_index *index, size_t section)
{
    const brv_entry *e = &index->sections[section];
    const uint64_t *ends = index->blocks + 2 * e->first_block, blocks = (e->count - 1) / e->block + 1;
    const uint64_t most = 16 * ((uint64_t)e->block * e->bits / 8) + 65536;
    const uint64_t stop = section + 1 < index->n ? index->sections[section + 1].record : index->begin;
    uint64_t at = e->record + e->prologue;
    for (uint64_t b = 0; b < blocks; b++) {
        const uint64_t end = ends[2 * b];
        if (end > stop || end < at || end - at < LEAST_PAYLOAD || end - at - LEAST_PAYLOAD > most) return false;
        at = end;
    }
    return at == stop;
}

/* The numbers of a prologue; how many bytes they and what is before them take, 0 if they do not fit. */
static size_t read_head(const brv_entry *e, const uint8_t *prologue, uint64_t numbers[MOST_NUMBERS])
{
    cursor c = {prologue + RECORD_HEAD, prologue + e->prologue};
    for (unsigned i = 0; i < 4u + (e->ref != BRV_ALONE); i++)
        if (get_varint(&c, &numbers[i])) return 0;
    return left(&c) < CHECKSUM ? 0 : (size_t)(c.p - prologue);
}

/* The checksum is that of all but itself. */
static bool is_sound(const uint8_t *prologue, size_t head, size_t length)
{
    const uint64_t value = checksum_of_two(prologue, head, prologue + head + CHECKSUM, length - head - CHECKSUM);
    return !memcmp(&value, prologue + head, CHECKSUM);
}

int brv_prologue(const brv_entry *e, const uint8_t *prologue, size_t *program, size_t *shared, brv_status *st)
{
    uint64_t numbers[MOST_NUMBERS] = {0};
    *st = (brv_status){.node = -1};
    const size_t head = e->prologue < RECORD_HEAD + CHECKSUM ? 0 : read_head(e, prologue, numbers);
    if (!head || !is_sound(prologue, head, e->prologue)) return fail(st, BRV_RECORD, -1, "its program is damaged");
    const uint8_t begin[RECORD_HEAD] = {'B', 'S', (uint8_t)(e->kind | e->ref << 4), e->dtype, e->bits};
    if (memcmp(prologue, begin, RECORD_HEAD) || numbers[0] != e->count || numbers[1] != e->block / 64 ||
        numbers[2] > MAX_PROGRAM || numbers[3] > MAX_SHARED ||
        numbers[2] + numbers[3] != e->prologue - head - CHECKSUM || numbers[4] != e->target)
        return fail(st, BRV_RECORD, -1, "its record disagrees with the index or breaks a rule of the format");
    *program = (size_t)numbers[2];
    *shared = (size_t)numbers[3];
    return 0;
}
