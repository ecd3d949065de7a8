/* Segment classes of huffman and rans literals; the sliced form's size. */
#include "internal.h"

size_t sliced_size(size_t m, unsigned w)
{
    size_t n = 0;
    for (unsigned part = 8; part <= 64; part <<= 1)
        if (w & part) n += m * (part / 8);
    for (unsigned part = 1; part < 8; part <<= 1)
        if (w & part) n += m / 256 * 32 * part + (m % 256 * part + 7) / 8;
    return n;
}

static void make_map(const node *nd, uint64_t lo, size_t m, const uint8_t *classes, class_map *map)
{
    *map = (class_map){.classes = classes, .n = 1, .first = m, .words = m};
    if (!classes) {
        map->count[0] = m;
        return;
    }
    const uint64_t to_end = nd->segment - lo % nd->segment; /* of the segment that word lo lies in */
    map->n = (size_t)((lo + m - 1) / nd->segment - lo / nd->segment + 1);
    map->first = to_end < m ? (size_t)to_end : m;
    map->segment = nd->segment < m ? (size_t)nd->segment : m;
    /* Counted in turns, so that a segment need not wait for one of its class before it. */
    uint32_t turns[2][MAX_TABLES] = {{0}};
    for (size_t i = 0; i < map->n; i++) turns[i & 1][classes[i]]++;
    for (size_t c = 0; c < nd->tables; c++) map->count[c] = (size_t)(turns[0][c] + turns[1][c]) * map->segment;
    map->count[classes[0]] -= map->segment - map->first;
    map->count[classes[map->n - 1]] -= map->first + (map->n - 1) * map->segment - m;
}

int classes_read(const node *nd, const brv_kernels *k, cursor *item, uint64_t lo, size_t m, brv_scratch *s,
                 class_map *map)
{
    uint8_t *a = NULL;
    if (nd->tables > 1) {
        const size_t n = (size_t)((lo + m - 1) / nd->segment - lo / nd->segment + 1);
        const unsigned w = bits_for(nd->tables);
        const size_t bytes = sliced_size(n, w);
        if (left(item) < bytes) return BRV_PAYLOAD;
        a = scratch_take(s, n);
        k->unpack(item->p, n, w, 1, a);
        uint8_t last = 0;
        for (size_t i = 0; i < n; i++) last = a[i] > last ? a[i] : last;
        if (last >= nd->tables) return BRV_PAYLOAD;
        item->p += bytes;
    }
    make_map(nd, lo, m, a, map);
    return 0;
}

size_t classes_write(const node *nd, const brv_kernels *k, uint64_t lo, size_t m, uint8_t *out, class_map *map)
{
    const uint8_t *a = nd->tables > 1 ? nd->classes + lo / nd->segment : NULL;
    make_map(nd, lo, m, a, map);
    if (!a) return 0;
    k->pack(a, map->n, bits_for(nd->tables), 1, out);
    return sliced_size(map->n, bits_for(nd->tables));
}

/* Walk the segments: f(place in class order, place in the range, words). */
#define WALK(MOVE)                                                             \
    size_t at[MAX_TABLES], done = 0;                                           \
    for (size_t c = 0, sum = 0; c < MAX_TABLES; sum += map->count[c++]) at[c] = sum; \
    for (size_t i = 0, n = map->first; i < map->n; i++) {                      \
        size_t *to = &at[map->classes[i]];                                     \
        MOVE;                                                                  \
        *to += n;                                                              \
        done += n;                                                             \
        n = map->segment < map->words - done ? map->segment : map->words - done; \
    }

void class_order(const class_map *map, const void *words, void *ordered, size_t c8)
{
    WALK(memcpy((uint8_t *)ordered + *to * c8, (const uint8_t *)words + done * c8, n * c8))
}

void class_restore(const class_map *map, const void *ordered, void *words, size_t c8)
{
    WALK(memcpy((uint8_t *)words + done * c8, (const uint8_t *)ordered + *to * c8, n * c8))
}

void class_places(const class_map *map, size_t *places)
{
    WALK(*places++ = *to)
}
