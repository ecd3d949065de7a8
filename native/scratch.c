/* Scratch memory of one thread, and how a call says what went wrong. */
#define _GNU_SOURCE
#include "internal.h"

#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>

int fail(brv_status *st, int code, int n, const char *what)
{
    st->code = code;
    st->node = n;
    st->what = what;
    return code;
}

brv_scratch *brv_scratch_new(void) { return calloc(1, sizeof(brv_scratch)); }

void brv_scratch_free(brv_scratch *s)
{
    if (!s) return;
    free(s->base);
    free(s->payload.base);
    free(s->target.base);
    ZSTD_freeDCtx(s->dctx);
    ZSTD_freeCCtx(s->cctx);
    free(s);
}

void forget_pages(uint8_t *from, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)from + page - 1) & -page, last = ((uintptr_t)from + n) & -page;
    if (first < last) madvise((void *)first, last - first, MADV_DONTNEED);
}

int scratch_reserve(brv_scratch *s, size_t n)
{
    s->used = 0;
    if (n <= s->cap) return 0;
    free(s->base);
    s->cap = 0;
    s->base = aligned_alloc(64, (n + 63) & ~(size_t)63);
    if (!s->base) return BRV_NO_MEMORY;
    s->cap = n;
    forget_pages(s->base, n); /* as a rule most words are narrow, and most of it is never used */
    return 0;
}

size_t scratch_need(const brv_program *p, uint32_t i, uint64_t words)
{
    const node *nd = &p->nodes[i];
    size_t need = 0, own = (size_t)words * 8 + 512;
    if (nd->op == OP_LIT) return 2 * own; /* classes, sliced bytes, rans words */
    for (uint32_t c = i + 1; c < nd->end; c = p->nodes[c].end) {
        size_t n = scratch_need(p, c, words);
        if (n > need) need = n;
    }
    return need + 2 * own; /* an array a child, and one more for a fused pair; or what is listed of two sparse fields */
}
