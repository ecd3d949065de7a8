/* What is stored of an archive is read before it is decoded, past the kernel's page cache.
 *
 * Reading through the page cache takes more of the processor than decoding leaves for it, and keeps a model in memory
 * twice: as it is stored, and decoded. So threads that do nothing else read what a stream will want next, in chunks that
 * are extents until they have been decoded. What the kernel has in memory is left where it is. Where files cannot be read
 * like that, or it cannot be told what the kernel has, the kernel is told to read it ahead itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "front.h"

/* How far ahead of what is being decoded is fetched, in stored bytes. */
enum { FETCHED_AHEAD = 8 << 20 };

/* What is decoded ahead may have so much of the memory for what is ahead, for which what is fetched leaves room. */
enum { DECODED_AHEAD = 4 << 20 };

/* What is needed so soon the kernel is to read if there is no room for it. */
enum { SOON = 1 << 20 };

/* What the kernel has in memory, if it has some, is looked at so many bytes at a time. */
enum { LOOK = 8 << 20, SMALLEST_PAGE = 4096 };

/* ---- what is known of a file --------------------------------------------------------------- */

void fetch_open(brv_file *file)
{
    file->reads = MAYBE_DIRECT;
    file->cached = file->cached_end = 0;
}

void fetch_close(brv_file *file)
{
    if (file->direct >= 0) close(file->direct);
    file->direct = -1;
}

/* How many of the n bytes from `at` on, which begins a page, the kernel has in memory before one that it has not. A page
 * that is mapped for this is never touched: the file can become shorter at any time. */
static size_t bytes_cached(int fd, uint64_t at, size_t n)
{
    uint8_t pages[LOOK / SMALLEST_PAGE];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), most = (n + page - 1) / page;
    void *mapped = mmap(NULL, n, PROT_NONE, MAP_SHARED, fd, (off_t)at);
    if (mapped == MAP_FAILED) return 0;
    size_t there = 0;
    if (!mincore(mapped, n, pages))
        while (there < most && pages[there] & 1) there++;
    munmap(mapped, n);
    return there < most ? there * page : n;
}

/* Of files of others the kernel says that it has all in memory, even what is after their end. */
static bool cache_is_told(int fd)
{
    struct stat state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (fstat(fd, &state) || !state.st_size) return false;
    const uint64_t after = ((uint64_t)state.st_size + page - 1) / page * page;
    return !bytes_cached(fd, after, page);
}

/* A descriptor to read the same file past the page cache, or -1. */
static int open_direct(int fd)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return cache_is_told(fd) ? open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
}

/* Finds out whether a file that is being read can be read past the page cache. Gives the lock up meanwhile. */
static bool is_direct(brv_file *file)
{
    if (file->reads == MAYBE_DIRECT) {
        pthread_mutex_unlock(&file->front->lock);
        const int direct = open_direct(file->fd);
        pthread_mutex_lock(&file->front->lock);
        if (file->reads != MAYBE_DIRECT) {
            if (direct >= 0) close(direct); /* another was quicker */
        } else {
            file->direct = direct;
            file->reads = direct >= 0 ? DIRECT : NOT_DIRECT;
        }
    }
    return file->reads == DIRECT;
}

static uint32_t chunk_size(const brv_file *file, uint64_t begin)
{
    const uint64_t rest = file->index.begin - begin;
    return rest < CHUNK ? (uint32_t)rest : CHUNK;
}

static bool is_cached(const brv_file *file, uint64_t begin)
{
    return file->cached <= begin && begin + chunk_size(file, begin) <= file->cached_end;
}

/* Finds out whether the kernel has a chunk in memory, and if so, what after it. Gives the lock up meanwhile. */
static bool look_at_cache(brv_file *file, uint64_t begin)
{
    if (is_cached(file, begin)) return true;
    const uint64_t rest = file->index.begin - begin;
    pthread_mutex_unlock(&file->front->lock);
    size_t there = bytes_cached(file->fd, begin, chunk_size(file, begin));
    if (there == CHUNK) there = bytes_cached(file->fd, begin, rest < LOOK ? (size_t)rest : LOOK);
    pthread_mutex_lock(&file->front->lock);
    file->cached = begin;
    file->cached_end = begin + there;
    return is_cached(file, begin);
}

/* ---- asking -------------------------------------------------------------------------------- */

/* Of a chunk that an extent or a reader waits for. */
static fetch *find_fetch(brv_front *f, const brv_file *file, uint64_t begin)
{
    for (fetch *x = f->fetches; x < f->fetches + f->n_fetches; x++)
        if (x->file == file && x->begin == begin) return x;
    return NULL;
}

static void remove_fetch(brv_front *f, fetch *x)
{
    f->n_fetches--;
    memmove(x, x + 1, (size_t)(f->fetches + f->n_fetches - x) * sizeof *x);
}

static bool has_room(brv_front *f)
{
    return extents_room_ahead(f, (size_t)(f->n_fetches + 1) * CHUNK, DECODED_AHEAD);
}

/* False if it is to be tried again. */
static bool ask(brv_file *file, uint64_t begin, bool soon)
{
    brv_front *f = file->front;
    if (chunk_size(file, begin) < SMALLEST_EXTENT || is_cached(file, begin) || find_fetch(f, file, begin) ||
        extent_find(f, file, begin | STORED))
        return true;
    if (f->n_fetches == FETCHES) return false;
    const bool keep = file->reads != NOT_DIRECT && has_room(f);
    if (!keep && !soon && file->reads != NOT_DIRECT) return false;
    f->fetches[f->n_fetches++] = (fetch){.file = file, .begin = begin, .keep = keep};
    file_begin(file);
    line_wake(&f->fetchers);
    return true;
}

/* Where the block of byte `at` is stored, or the section that it begins, as an index that may be damaged says. */
static uint64_t place_of(const brv_file *file, uint64_t at)
{
    if (at >= file->index.size) return file->index.begin;
    const brv_entry *e = &file->index.sections[section_at(file, at)];
    const uint64_t block = (at - e->offset) / ((uint64_t)e->block / 8 * e->bits);
    const uint64_t place = block ? file->index.blocks[2 * (e->first_block + block) - 2] : e->record;
    return place < file->index.begin ? place : file->index.begin;
}

void fetch_ahead(brv_file *file, stream *s)
{
    const uint64_t from = place_of(file, s->ahead), far = from + (s->run < FETCHED_AHEAD ? s->run : FETCHED_AHEAD);
    const uint64_t to = far < file->index.begin ? far : file->index.begin;
    if (s->fetched < from) s->fetched = from / CHUNK * CHUNK;
    while (s->fetched < to && ask(file, s->fetched, s->fetched < from + SOON)) s->fetched += CHUNK;
}

void fetch_cancel(brv_file *file)
{
    brv_front *f = file->front;
    for (unsigned i = f->n_fetches; i-- > 0;) {
        if (f->fetches[i].file != file || f->fetches[i].begun) continue;
        remove_fetch(f, &f->fetches[i]);
        file_end(file);
    }
    line_wake_all(&f->done);
}

/* ---- fetching ------------------------------------------------------------------------------ */

/* Fills an extent; without the lock. A file that ends within it is damaged, and who decodes it will say so. */
static bool fill(const brv_file *file, const extent *x)
{
    const uint64_t begin = x->begin & ~STORED;
    size_t done = 0;
    while (done < x->size) {
        /* Whole pages, for which an extent has room. */
        struct iovec rest = {x->bytes + done, (x->size - done + SMALLEST_PAGE - 1) / SMALLEST_PAGE * SMALLEST_PAGE};
        const ssize_t got = preadv2(file->direct, &rest, 1, (off_t)(begin + done), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static void fetch_extent(brv_front *f, extent *x)
{
    pthread_mutex_unlock(&f->lock);
    const bool good = fill(x->file, x);
    pthread_mutex_lock(&f->lock);
    if (good) f->counters.fetched_bytes += x->size;
    extent_decoded(f, x, good ? READY : FAILED);
    extent_unpin(f, x);
}

static void have_kernel_read(const brv_file *file, uint64_t begin)
{
    pthread_mutex_unlock(&file->front->lock);
    posix_fadvise(file->fd, (off_t)begin, chunk_size(file, begin), POSIX_FADV_WILLNEED);
    pthread_mutex_lock(&file->front->lock);
}

/* An extent for a chunk, in use; NULL if it is not to be fetched, and in *advise whether the kernel should read it. */
static extent *extent_for(brv_file *file, const fetch *of, bool *advise)
{
    *advise = !is_direct(file);
    if (*advise || look_at_cache(file, of->begin)) return NULL;
    extent *x = of->keep ? extent_add(file, of->begin | STORED, chunk_size(file, of->begin), true) : NULL;
    if (x) x->pins++;
    *advise = !x;
    return x;
}

bool fetch_one(brv_front *f)
{
    fetch *first = f->fetches;
    while (first < f->fetches + f->n_fetches && first->begun) first++;
    if (first == f->fetches + f->n_fetches) return false;
    first->begun = true;
    const fetch of = *first;
    bool advise = false;
    extent *x = f->ending ? NULL : extent_for(of.file, &of, &advise);
    remove_fetch(f, find_fetch(f, of.file, of.begin));
    if (x) fetch_extent(f, x);
    line_wake_all(&f->done);
    if (advise) have_kernel_read(of.file, of.begin);
    file_end(of.file);
    return true;
}

/* ---- using --------------------------------------------------------------------------------- */

/* A chunk, in use, that has been fetched; waits if it is being. NULL if it has not been. */
static extent *fetched_chunk(brv_file *file, uint64_t begin)
{
    brv_front *f = file->front;
    extent *x;
    while (!(x = extent_find(f, file, begin | STORED)) && find_fetch(f, file, begin)) line_wait(&f->done, &f->lock);
    if (!x) return NULL;
    x->pins++;
    while (x->state == DECODING) line_wait(&f->done, &f->lock);
    if (x->state == READY) return x;
    extent_unpin(f, x);
    return NULL;
}

void fetched_use(brv_file *file, uint64_t lo, uint64_t hi, fetched *of)
{
    of->from = (source){.fd = file->fd};
    for (uint64_t at = lo / CHUNK * CHUNK; at < hi && of->from.n < SPANS; at += CHUNK) {
        extent *x = fetched_chunk(file, at);
        if (!x) continue;
        const uint64_t end = at + x->size, first = lo > at ? lo : at, last = hi < end ? hi : end;
        if (first < last) extent_ask(file->front, x, (uint32_t)(first - at), (uint32_t)(last - first));
        of->used[of->from.n] = x;
        of->from.spans[of->from.n++] = (span){at, x->size, x->bytes};
    }
}

void fetched_unuse(brv_front *f, fetched *of)
{
    for (unsigned i = 0; i < of->from.n; i++) extent_unpin(f, of->used[i]);
}
