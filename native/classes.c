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

int classes_read(const node *nd, const brv_kernels *k, cursor *item, uint64_t lo, size_t m, brv_scratch *s,
                 const uint8_t **classes)
{
    const size_t n = (size_t)((lo + m - 1) / nd->segment - lo / nd->segment + 1);
    const unsigned w = bits_for(nd->tables);
    const size_t bytes = sliced_size(n, w);
    if (left(item) < bytes) return BRV_PAYLOAD;
    uint8_t *a = scratch_take(s, n);
    k->unpack(item->p, n, w, 1, a);
    for (size_t i = 0; i < n; i++)
        if (a[i] >= nd->tables) return BRV_PAYLOAD;
    item->p += bytes;
    *classes = a;
    return 0;
}

size_t classes_write(const node *nd, const brv_kernels *k, uint64_t lo, size_t m, uint8_t *out)
{
    const uint64_t first = lo / nd->segment;
    const size_t n = (size_t)((lo + m - 1) / nd->segment - first + 1);
    const unsigned w = bits_for(nd->tables);
    k->pack(nd->classes + first, n, w, 1, out);
    return sliced_size(n, w);
}
