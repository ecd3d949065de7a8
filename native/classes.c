/* Classes of the segments of coded literals, and of the places in them; the sliced form's size. */
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

/* Sets `before` and `pick`, or takes them away. */
static void lay_out_even(column_classes *c)
{
    bool even = c->classes <= 8;
    uint16_t before[8] = {0};
    for (size_t g = 0; even && g < (c->places + 63) / 64; g++) {
        memcpy(c->before + 8 * g, before, sizeof before);
        for (unsigned j = 0; j < c->classes; j++) {
            const unsigned n = (unsigned)__builtin_popcountll(c->mask[g * c->classes + j]);
            before[j] = (uint16_t)(before[j] + n);
            even &= n <= 32;
        }
    }
    for (size_t i = 0; even && i < c->places; i++) c->pick[i] = (uint8_t)(c->class[i] << 5 | c->rank[i]);
    if (!even) c->pick = NULL;
}

/* Derives the other forms of the classes of places. */
static void lay_out(column_classes *c)
{
    uint16_t *next[MAX_COLUMN_CLASSES], *at = c->order;
    for (size_t i = 0; i < c->places; i++) {
        uint64_t *mask = &c->mask[i / 64 * c->classes + c->class[i]];
        c->width[c->class[i]]++;
        c->rank[i] = (uint8_t)__builtin_popcountll(*mask);
        *mask |= (uint64_t)1 << (i % 64);
    }
    for (unsigned j = 0; j < c->classes; at += c->width[j++]) next[j] = at;
    for (size_t i = 0; i < c->places; i++) *next[c->class[i]]++ = (uint16_t)i;
    lay_out_even(c);
}

static int unpack_below(const brv_kernels *k, cursor *c, size_t n, unsigned limit, uint8_t *out)
{
    const unsigned w = bits_for(limit);
    const size_t bytes = sliced_size(n, w);
    if (left(c) < bytes) return BRV_TRUNCATED;
    k->unpack(c->p, n, w, 1, out);
    c->p += bytes;
    uint8_t last = 0;
    for (size_t i = 0; i < n; i++) last = out[i] > last ? out[i] : last;
    return last < limit ? 0 : BRV_TABLE;
}

int columns_load(node *nd, const brv_kernels *k, cursor *c)
{
    const size_t places = (size_t)nd->segment, groups = (places + 63) / 64, masks = groups * nd->columns;
    column_classes *cc = calloc(1, sizeof *cc + masks * sizeof *cc->mask + groups * 8 * sizeof *cc->before +
                                       places * (sizeof *cc->order + 1) + 2 * 64 * groups);
    if (!cc) return BRV_NO_MEMORY;
    nd->by_place = cc;
    cc->places = places;
    cc->classes = nd->columns;
    cc->mask = (uint64_t *)(cc + 1);
    cc->before = (uint16_t *)(cc->mask + masks);
    cc->order = cc->before + 8 * groups;
    cc->class = (uint8_t *)(cc->order + places);
    cc->rank = cc->class + places;
    cc->pick = cc->rank + 64 * groups;
    int rc = unpack_below(k, c, places, nd->columns, cc->class);
    if (!rc) rc = unpack_below(k, c, (size_t)nd->rows * nd->columns, nd->tables, cc->table);
    if (!rc) lay_out(cc);
    return rc;
}

size_t brv_columns_write(const uint8_t *places, size_t n, uint32_t columns, const uint8_t *pairs, uint32_t rows,
                         uint32_t tables, uint8_t *out, size_t cap)
{
    const size_t first = sliced_size(n, bits_for(columns)), second = sliced_size((size_t)rows * columns, bits_for(tables));
    if (cap < first + second) return 0;
    kernels_scalar()->pack(places, n, bits_for(columns), 1, out);
    kernels_scalar()->pack(pairs, (size_t)rows * columns, bits_for(tables), 1, out + first);
    return first + second;
}

/* Of n places from `place` on, how many have each class. */
static void count_places(const column_classes *c, size_t place, size_t n, size_t *width)
{
    memset(width, 0, MAX_COLUMN_CLASSES * sizeof *width);
    if (n == c->places)
        for (unsigned j = 0; j < c->classes; j++) width[j] = c->width[j];
    else
        for (size_t i = place; i < place + n; i++) width[c->class[i]]++;
}

/* Words of each table, of so many segments of each class: all their places, without those before the first word of the
 * range and after the last. */
static void count_pairs(const column_classes *c, const uint32_t *segments, size_t rows, class_map *map)
{
    const uint8_t *first = c->table + map->classes[0] * c->classes, *last = c->table + map->classes[map->n - 1] * c->classes;
    const size_t end = (map->place + map->words) % c->places;
    size_t before[MAX_COLUMN_CLASSES], after[MAX_COLUMN_CLASSES];
    count_places(c, 0, map->place, before);
    count_places(c, end, end ? c->places - end : 0, after);
    for (size_t r = 0; r < rows; r++)
        for (unsigned j = 0; j < c->classes; j++) map->count[c->table[r * c->classes + j]] += (size_t)segments[r] * c->width[j];
    for (unsigned j = 0; j < c->classes; j++) {
        map->count[first[j]] -= before[j];
        map->count[last[j]] -= after[j];
    }
}

static void make_map(const node *nd, uint64_t lo, size_t m, const uint8_t *classes, class_map *map)
{
    *map = (class_map){.classes = classes, .n = 1, .first = m, .words = m, .by_place = nd->by_place};
    if (!classes) {
        map->count[0] = m;
        return;
    }
    map->place = (size_t)(lo % nd->segment);
    const uint64_t to_end = nd->segment - map->place; /* of the segment that word lo lies in */
    map->n = (size_t)((lo + m - 1) / nd->segment - lo / nd->segment + 1);
    map->first = to_end < m ? (size_t)to_end : m;
    map->segment = nd->segment < m ? (size_t)nd->segment : m;
    /* Counted in turns, so that a segment need not wait for one of its class before it. */
    uint32_t turns[2][MAX_TABLES] = {{0}};
    for (size_t i = 0; i < map->n; i++) turns[i & 1][classes[i]]++;
    for (size_t c = 0; c < nd->rows; c++) turns[0][c] += turns[1][c];
    if (nd->by_place) {
        count_pairs(nd->by_place, turns[0], nd->rows, map);
        return;
    }
    for (size_t c = 0; c < nd->tables; c++) map->count[c] = turns[0][c] * map->segment;
    map->count[classes[0]] -= map->segment - map->first;
    map->count[classes[map->n - 1]] -= map->first + (map->n - 1) * map->segment - m;
}

int classes_read(const node *nd, const brv_kernels *k, cursor *item, uint64_t lo, size_t m, brv_scratch *s,
                 class_map *map)
{
    uint8_t *a = NULL;
    if (nd->tables > 1) {
        const size_t n = (size_t)((lo + m - 1) / nd->segment - lo / nd->segment + 1);
        a = scratch_take(s, n);
        if (unpack_below(k, item, n, nd->rows, a)) return BRV_PAYLOAD;
    }
    make_map(nd, lo, m, a, map);
    return 0;
}

void classes_map(const node *nd, uint64_t lo, size_t m, class_map *map)
{
    make_map(nd, lo, m, nd->tables > 1 ? nd->classes + lo / nd->segment : NULL, map);
}

size_t classes_write(const node *nd, const brv_kernels *k, uint64_t lo, size_t m, uint8_t *out, class_map *map)
{
    classes_map(nd, lo, m, map);
    if (!map->classes) return 0;
    k->pack(map->classes, map->n, bits_for(nd->rows), 1, out);
    return sliced_size(map->n, bits_for(nd->rows));
}

/* A walk over the segments: the words of this one and the place of the first, how many came before; where the next
 * words of each table lie in class order. */
typedef struct {
    size_t segment, words, place, done, at[MAX_TABLES];
} walk;

static walk first_segment(const class_map *map)
{
    walk w = {.words = map->first, .place = map->place};
    for (size_t c = 0, sum = 0; c < MAX_TABLES; sum += map->count[c++]) w.at[c] = sum;
    return w;
}

static void next_segment(const class_map *map, walk *w)
{
    w->done += w->words;
    w->place = 0;
    w->words = map->segment < map->words - w->done ? map->segment : map->words - w->done;
    w->segment++;
}

/* Where in class order the segment's words lie; those of its table move on. */
static size_t take_run(const class_map *map, walk *w)
{
    size_t *at = &w->at[map->classes[w->segment]];
    *at += w->words;
    return *at - w->words;
}

/* The same for each class of places. */
static void take_runs(const class_map *map, walk *w, size_t *run)
{
    const column_classes *c = map->by_place;
    const uint8_t *table = c->table + map->classes[w->segment] * c->classes;
    size_t some[MAX_COLUMN_CLASSES];
    const size_t *width = c->width;
    if (w->words < c->places) {
        count_places(c, w->place, w->words, some);
        width = some;
    }
    for (unsigned j = 0; j < c->classes; j++) {
        run[j] = w->at[table[j]];
        w->at[table[j]] += width[j];
    }
}

/* The words of a segment by the classes of their places, one by one, or class by class where all are there. */
static void order_places(const class_map *map, walk *w, const uint8_t *from, uint8_t *ordered, unsigned container)
{
    const column_classes *c = map->by_place;
    const uint8_t *class = c->class + w->place;
    const uint16_t *place = c->order;
    size_t run[MAX_COLUMN_CLASSES];
    take_runs(map, w, run);
    if (w->words == c->places && container == 1) {
        for (unsigned j = 0; j < c->classes; place += c->width[j++])
            for (size_t i = 0; i < c->width[j]; i++) ordered[run[j] + i] = from[place[i]];
    } else
        for (size_t j = 0; j < w->words; j++)
            store_word(ordered, container, run[class[j]]++, load_word(from, container, j));
}

void class_order(const class_map *map, const void *words, void *ordered, unsigned container)
{
    for (walk w = first_segment(map); w.segment < map->n; next_segment(map, &w)) {
        const uint8_t *from = (const uint8_t *)words + w.done * container;
        if (map->by_place) order_places(map, &w, from, ordered, container);
        else memcpy((uint8_t *)ordered + take_run(map, &w) * container, from, w.words * container);
    }
}

/* The words of a segment, put in their places one by one, or as a whole. */
static void restore_places(const class_map *map, const brv_kernels *k, walk *w, const uint8_t *ordered, uint8_t *to,
                           unsigned container)
{
    const column_classes *c = map->by_place;
    const uint8_t *class = c->class + w->place;
    size_t run[MAX_COLUMN_CLASSES] = {0};
    take_runs(map, w, run);
    if (w->words == c->places && container == 1) k->interleave(to, c, ordered, run);
    else
        for (size_t j = 0; j < w->words; j++)
            store_word(to, container, j, load_word(ordered, container, run[class[j]]++));
}

void class_restore(const class_map *map, const brv_kernels *k, const void *ordered, void *words, unsigned container)
{
    for (walk w = first_segment(map); w.segment < map->n; next_segment(map, &w)) {
        uint8_t *to = (uint8_t *)words + w.done * container;
        if (map->by_place) restore_places(map, k, &w, ordered, to, container);
        else memcpy(to, (const uint8_t *)ordered + take_run(map, &w) * container, w.words * container);
    }
}

void class_places(const class_map *map, size_t *places)
{
    for (walk w = first_segment(map); w.segment < map->n; next_segment(map, &w)) *places++ = take_run(map, &w);
}
