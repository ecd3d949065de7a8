/* XXH3-64, whole and streaming. */
#include "internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t brv_checksum(const uint8_t *data, size_t len) { return XXH3_64bits(data, len); }

uint64_t checksum_of_two(const uint8_t *a, size_t n, const uint8_t *b, size_t m)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, a, n);
    XXH3_64bits_update(&state, b, m);
    return XXH3_64bits_digest(&state);
}

struct brv_hash { XXH3_state_t *state; };

brv_hash *brv_hash_new(void)
{
    brv_hash *h = malloc(sizeof *h);
    if (!h) return NULL;
    h->state = XXH3_createState();
    if (!h->state) {
        free(h);
        return NULL;
    }
    XXH3_64bits_reset(h->state);
    return h;
}

void brv_hash_free(brv_hash *h)
{
    if (!h) return;
    XXH3_freeState(h->state);
    free(h);
}

void brv_hash_update(brv_hash *h, const uint8_t *data, size_t len) { XXH3_64bits_update(h->state, data, len); }
uint64_t brv_hash_value(const brv_hash *h) { return XXH3_64bits_digest(h->state); }
