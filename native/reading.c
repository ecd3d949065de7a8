/* How a range of an archive is read: from extents that are there, and by steps that any thread can decode.
 *
 * Blocks that a request wants whole are decoded to where it wants them and not kept, for the kernel will have them.
 * Blocks that it wants a part of are kept, as extents. What a reader will want next is decoded to extents, all of it.
 * An extent is decoded once however many ask. */
#include "front.h"

/* How far ahead of a reader is decoded, in bytes, and after how many in a row: more than one read of 1 MiB that does not
 * begin at a page. And what is decoded ahead in one piece. */
enum { MOST_AHEAD = 4 << 20, ONE_READ = REQUEST + 4096, AHEAD_BYTES = 512 << 10 };

/* What is decoded ahead is kept in runs of so many bytes of small blocks. */
enum { RUN_BYTES = 256 << 10 };

/* A reading of so many pieces is quick, if no more of their bytes are to be decoded than this. */
enum { FEW = 16, FEW_BYTES = 256 << 10 };

/* ---- files --------------------------------------------------------------------------------- */

void file_begin(brv_file *file) { file->readings++; }

void file_end(brv_file *file)
{
    if (!--file->readings) line_wake_all(&file->front->done);
}

void file_free_if_unused(brv_file *file)
{
    if (file->known || file->extents) return;
    brv_file **at = &file->front->files[file->identity[1] % FILE_BUCKETS];
    while (*at != file) at = &(*at)->next;
    *at = file->next;
    free(file);
}

/* One of which extents are left, or a new one. The caller has the lock. */
static brv_file *file_of(brv_front *f, const uint64_t identity[5])
{
    brv_file **bucket = &f->files[identity[1] % FILE_BUCKETS], *file = *bucket;
    while (file && (file->known || memcmp(file->identity, identity, sizeof file->identity))) file = file->next;
    if (file || !(file = calloc(1, sizeof *file))) return file;
    memcpy(file->identity, identity, sizeof file->identity);
    file->front = f;
    file->next = *bucket;
    *bucket = file;
    return file;
}

brv_file *brv_file_new(brv_front *f, const uint64_t identity[5], const brv_index *index)
{
    prepared **none = calloc(index ? index->n : 1, sizeof *none);
    if (!none) return NULL;
    pthread_mutex_lock(&f->lock);
    brv_file *file = file_of(f, identity);
    if (file) {
        file->known = true;
        file->fd = file->direct = -1;
        file->index = index ? *index : (brv_index){0};
        file->missing = file->index.n;
        file->prepared = none;
    } else free(none);
    pthread_mutex_unlock(&f->lock);
    return file;
}

void brv_file_open(brv_file *file, int fd)
{
    pthread_mutex_lock(&file->front->lock);
    file->fd = fd;
    fetch_open(file);
    memset(file->streams, 0, sizeof file->streams);
    pthread_mutex_unlock(&file->front->lock);
}

static void cancel_ahead(brv_file *file);

int brv_file_close(brv_file *file, int wait)
{
    brv_front *f = file->front;
    pthread_mutex_lock(&f->lock);
    cancel_ahead(file);
    while (wait && file->readings) line_wait(&f->done, &f->lock);
    const bool closed = !file->readings;
    if (closed) file->fd = -1;
    if (closed) fetch_close(file);
    pthread_mutex_unlock(&f->lock);
    return closed;
}

void brv_file_free(brv_file *file)
{
    brv_front *f = file->front;
    pthread_mutex_lock(&f->lock);
    programs_free(file);
    free(file->prepared);
    file->prepared = NULL;
    file->known = false;
    file_free_if_unused(file);
    pthread_mutex_unlock(&f->lock);
}

/* ---- planning ------------------------------------------------------------------------------ */

size_t section_at(const brv_file *file, uint64_t at)
{
    size_t lo = 0, hi = file->index.n;
    while (hi - lo > 1) {
        const size_t middle = lo + (hi - lo) / 2;
        if (file->index.sections[middle].offset <= at) lo = middle;
        else hi = middle;
    }
    return lo;
}

/* What a range of a file has of one extent: bytes lo to hi of a section that starts at `start`, of extent [begin, end)
 * of it. */
typedef struct {
    size_t section;
    uint64_t start, begin, end, lo, hi;
} piece;

/* Bytes [begin, end) of a section, in blocks of so many bytes. */
typedef struct {
    uint64_t block, begin, end;
} run;

/* The run that byte `at` is in, of a section of `total` bytes. */
static run run_of(const brv_entry *e, uint64_t at, uint64_t total)
{
    const uint64_t block = (uint64_t)e->block / 8 * e->bits, size = block < RUN_BYTES ? RUN_BYTES / block * block : block;
    const uint64_t begin = at / size * size;
    return (run){block, begin, begin + size < total ? begin + size : total};
}

/* Whether no block of a run is an extent. */
static bool is_free(const brv_file *file, const piece *p, const run *r)
{
    if (r->block < SMALLEST_EXTENT) return true;
    for (uint64_t at = r->begin; at < r->end; at += r->block)
        if (extent_find(file->front, file, p->start + at)) return false;
    return true;
}

/* The extent that a piece begins in, if there is one: its run's or its block's. Else it is the piece of an extent that there
 * can be: ahead, all of the run that it is the beginning of, or its block, or a part of that. */
static extent *place_piece(const brv_file *file, piece *p, const run *r, bool ahead)
{
    extent *x = extent_find(file->front, file, p->start + r->begin);
    if (x && x->size > p->lo - r->begin) {
        p->begin = r->begin;
        p->end = r->begin + x->size;
        return x;
    }
    const uint64_t first = p->lo / r->block * r->block, last = first + r->block < r->end ? first + r->block : r->end;
    p->begin = p->lo - (p->lo - first) % LARGEST_EXTENT;
    p->end = p->begin + LARGEST_EXTENT < last ? p->begin + LARGEST_EXTENT : last;
    if (p->begin != r->begin) return extent_find(file->front, file, p->start + p->begin);
    if (ahead && r->block < RUN_BYTES && is_free(file, p, r)) p->end = r->end;
    return NULL;
}

/* The first piece of [at, stop), in section *s, and the extent that it is in, if that is there; moves *s. */
static piece next_piece(const brv_file *file, size_t *s, uint64_t at, uint64_t stop, bool ahead, extent **x)
{
    const brv_entry *e = &file->index.sections[*s];
    piece p = {.section = *s, .start = e->offset, .lo = at - e->offset};
    const uint64_t total = (*s + 1 < file->index.n ? e[1].offset : file->index.size) - p.start;
    const run r = run_of(e, p.lo, total);
    *x = place_piece(file, &p, &r, ahead);
    p.hi = p.end < stop - p.start ? p.end : stop - p.start;
    *s += p.hi == total;
    return p;
}

/* Bytes lo to hi of a piece's section; with `mine`, to be decoded. */
static step *new_step(reading *r, const piece *p, uint64_t lo, uint64_t hi, bool mine)
{
    step *s = &r->steps[r->n++];
    *s = (step){.mine = mine, .part = {.lo = lo, .hi = hi}};
    if (!mine) return s;
    s->of = r->file->prepared[p->section];
    s->part.section = &s->of->section;
    s->part.target = s->of->target ? &s->of->target->section : NULL;
    s->part.ref = r->file->index.sections[p->section].ref;
    if (r->n < 2 || r->steps[r->n - 2].of != s->of) r->programs += s->of->memory;
    program_use(s->of);
    return s;
}

/* All of a piece, which is to be decoded to out; with the step before if that is not too much. */
static void plan_bytes(reading *r, const piece *p, uint8_t *out)
{
    step *last = r->n ? &r->steps[r->n - 1] : NULL;
    if (last && last->of && !last->extent && last->of->number == p->section && last->part.hi == p->lo &&
        p->hi - last->part.lo <= STEP_BYTES)
        last->part.hi = p->hi;
    else new_step(r, p, p->lo, p->hi, true)->out = out;
}

static step *plan_extent(reading *r, const piece *p, extent *x, bool mine)
{
    step *s = new_step(r, p, p->begin, p->end, mine);
    s->extent = x;
    x->pins++;
    return s;
}

/* Plans a piece, which is of an extent that is there or of none. False if it cannot be decoded: its section is not prepared, or the programs in use take much memory. */
static bool plan_piece(reading *r, const piece *p, extent *x, uint8_t *out)
{
    brv_front *f = r->file->front;
    const bool present = x, keep = p->end - p->begin >= SMALLEST_EXTENT && (r->ahead || p->hi - p->lo < p->end - p->begin);
    if (r->ahead && (present || !keep)) return true;
    if (!present && (!r->file->prepared[p->section] || r->programs > PROGRAMS_AT_ONCE)) return false;
    if (!present && keep) x = extent_add(r->file, p->start + p->begin, (uint32_t)(p->end - p->begin), r->ahead);
    if (r->ahead) {
        if (x) plan_extent(r, p, x, true);
    } else if (x) {
        step *s = plan_extent(r, p, x, !present);
        s->out = out;
        s->skip = (uint32_t)(p->lo - p->begin);
        s->bytes = (uint32_t)(p->hi - p->lo);
        extent_ask(f, x, s->skip, s->bytes);
        if (present) *(x->state == READY ? &f->counters.found : &f->counters.joined) += 1;
    } else plan_bytes(r, p, out);
    return true;
}

int reading_plan(reading *r, brv_file *file, uint64_t *at, uint64_t end, uint8_t *out)
{
    r->file = file;
    r->n = r->next = r->todo = r->helpers = 0;
    r->offered = false;
    r->programs = 0;
    r->status = (brv_status){.node = -1};
    const uint64_t begin = *at;
    for (size_t s = section_at(file, *at); *at < end && r->n < STEPS;) {
        extent *x;
        const piece p = next_piece(file, &s, *at, end, r->ahead, &x);
        if (!plan_piece(r, &p, x, out)) {
            if (*at > begin) break;
            r->status = (brv_status){.code = BRV_UNPREPARED, .node = -1, .block = p.section, .what = "not prepared"};
            return BRV_UNPREPARED;
        }
        if (out) out += p.hi - p.lo;
        *at += p.hi - p.lo;
    }
    for (unsigned i = 0; i < r->n; i++) r->todo += r->steps[i].mine;
    *(r->ahead ? &file->front->counters.ahead : &file->front->counters.decoded) += r->todo;
    return 0;
}

int reading_begin(reading *r, brv_file *file, uint64_t *at, uint64_t end, uint8_t *out, brv_scratch *s)
{
    int rc;
    programs_prepare(file, *at, end, s);
    while ((rc = reading_plan(r, file, at, end, out)) == BRV_UNPREPARED) {
        brv_status st;
        if ((rc = program_prepare(file, r->status.block, s, &st))) return rc;
    }
    return rc;
}

bool range_is_quick(const brv_file *file, uint64_t at, uint64_t end)
{
    uint64_t more = 0;
    unsigned pieces = 0;
    for (size_t s = section_at(file, at); at < end; pieces++) {
        extent *x;
        const piece p = next_piece(file, &s, at, end, false, &x);
        if (x ? x->state != READY : !file->prepared[p.section]) return false;
        if (!x) more += p.end - p.begin;
        at += p.hi - p.lo;
    }
    return pieces <= FEW && more <= FEW_BYTES;
}

/* ---- decoding ------------------------------------------------------------------------------ */

/* The next step that is to be decoded, NULL if all have been begun. The caller has the lock. */
static step *next_step(reading *r)
{
    while (r->next < r->n && !r->steps[r->next].mine) r->next++;
    return r->next < r->n ? &r->steps[r->next++] : NULL;
}

static int decode(const source *from, const step *of, brv_scratch *s, brv_status *st)
{
    return read_part(from, &of->part, s, of->extent ? of->extent->bytes : of->out, st);
}

/* Waits for what is being fetched of what a step decodes. The caller has the lock, which is given up meanwhile. */
static void use_fetched(brv_file *file, const step *of, fetched *what)
{
    const brv_section *s = of->part.section;
    const uint64_t first = block_at(s, of->part.lo), last = block_at(s, of->part.hi - 1);
    /* A section's first block with what comes before it, so that no part of a chunk is nobody's. */
    const uint64_t lo = first ? stored_at(s, first) : file->index.sections[of->of->number].record;
    fetched_use(file, lo, stored_at(s, last + 1), what);
}

/* A step has been decoded, or has failed. The caller has the lock. */
static void step_done(reading *r, step *of, const brv_status *st)
{
    brv_front *f = r->file->front;
    of->mine = false;
    program_unuse(of->of);
    r->todo--;
    if (st->code && !r->status.code) r->status = *st;
    f->counters.failed += st->code && st->code != BRV_UNPREPARED;
    if (!of->extent) return;
    extent_decoded(f, of->extent, st->code ? FAILED : READY);
    if (of->extent->pins > 1) line_wake_all(&f->done);
}

/* Decodes the steps that nobody else does. The caller has the lock. */
static void take_part(reading *r, brv_scratch *s)
{
    brv_front *f = r->file->front;
    for (step *of; (of = next_step(r));) {
        brv_status st;
        fetched what;
        use_fetched(r->file, of, &what);
        pthread_mutex_unlock(&f->lock);
        decode(&what.from, of, s, &st);
        pthread_mutex_lock(&f->lock);
        fetched_unuse(f, &what);
        step_done(r, of, &st);
    }
}

/* For requests before what is decoded ahead. The caller has the lock. */
static void offer(reading *r)
{
    brv_front *f = r->file->front;
    reading **at = &f->offered;
    while (*at && (r->ahead || !(*at)->ahead)) at = &(*at)->more;
    r->more = *at;
    *at = r;
    r->offered = true;
    const unsigned most = r->todo - !r->ahead;
    for (unsigned i = 0; i < most && line_wake(&f->idle); i++) continue;
}

static void withdraw(reading *r)
{
    if (!r->offered) return;
    reading **at = &r->file->front->offered;
    while (*at != r) at = &(*at)->more;
    *at = r->more;
    r->offered = false;
}

void reading_carry_out(reading *r, brv_scratch *s)
{
    brv_front *f = r->file->front;
    pthread_mutex_lock(&f->lock);
    if (r->todo > 1) offer(r);
    take_part(r, s);
    withdraw(r);
    while (r->helpers) line_wait(&f->done, &f->lock);
    for (unsigned i = 0; i < r->n; i++)
        while (r->steps[i].extent && r->steps[i].extent->state == DECODING) {
            if (f->offered) reading_help(f, s);
            else line_wait(&f->done, &f->lock);
        }
    pthread_mutex_unlock(&f->lock);
}

void reading_carry_out_at_once(reading *r, brv_scratch *s)
{
    brv_front *f = r->file->front;
    const source from = {.fd = r->file->fd, .at_once = true};
    brv_status st = {.code = 0};
    for (unsigned i = 0; i < r->n; i++) {
        step *of = &r->steps[i];
        if (!of->mine) continue;
        if (!st.code && decode(&from, of, s, &st)) st.code = BRV_UNPREPARED;
        pthread_mutex_lock(&f->lock);
        step_done(r, of, &st);
        pthread_mutex_unlock(&f->lock);
    }
}

bool reading_succeeded(const reading *r)
{
    for (unsigned i = 0; i < r->n; i++)
        if (r->steps[i].extent && r->steps[i].extent->state != READY) return false;
    return !r->status.code;
}

void reading_end(reading *r)
{
    for (unsigned i = 0; i < r->n; i++)
        if (r->steps[i].extent) extent_unpin(r->file->front, r->steps[i].extent);
}

static void reading_unused(brv_front *f, reading *r)
{
    r->more = f->unused_readings;
    f->unused_readings = r;
}

/* A reading ahead is nobody's: who leaves it last ends it. */
static void leave(reading *r)
{
    brv_front *f = r->file->front;
    if (r->helpers) return;
    if (!r->ahead) {
        line_wake_all(&f->done);
        return;
    }
    reading_end(r);
    file_end(r->file);
    reading_unused(f, r);
}

void reading_help(brv_front *f, brv_scratch *s)
{
    reading *r = f->offered;
    r->helpers++;
    take_part(r, s);
    withdraw(r);
    r->helpers--;
    leave(r);
}

void readings_free(brv_front *f)
{
    while (f->unused_readings) {
        reading *r = f->unused_readings;
        f->unused_readings = r->more;
        free(r);
    }
    for (size_t i = 0; i < FILE_BUCKETS; i++)
        while (f->files[i]) {
            brv_file *file = f->files[i];
            f->files[i] = file->next;
            if (file->known) programs_free(file);
            if (file->known) fetch_close(file);
            free(file->prepared);
            free(file);
        }
}

/* ---- decoding ahead ------------------------------------------------------------------------ */

/* The stream that a read belongs to: it can be the reader's next one, or one that the next overtook. */
static stream *follow(brv_file *file, uint64_t begin, uint64_t end)
{
    stream *s = NULL, *oldest = file->streams;
    for (stream *t = file->streams; t < file->streams + STREAMS; t++) {
        if (t->run && begin + 2 * REQUEST >= t->next && begin <= t->next + REQUEST) s = t;
        if (t->used < oldest->used) oldest = t;
    }
    if (!s) {
        s = oldest;
        *s = (stream){.next = begin, .ahead = begin};
    }
    const uint64_t gone = end > s->next ? end - s->next : 0;
    s->run += gone < end - begin ? gone : end - begin;
    s->next += gone;
    if (s->ahead < s->next) s->ahead = s->next;
    s->used = file->front->now;
    return s;
}

/* Begins a reading ahead of [*at, end); false if it cannot be read. */
static bool begin_ahead(brv_file *file, uint64_t *at, uint64_t end)
{
    brv_front *f = file->front;
    reading *r = f->unused_readings;
    if (r) f->unused_readings = r->more;
    else if (!(r = malloc(sizeof *r))) return false;
    r->ahead = true;
    if (reading_plan(r, file, at, end, NULL)) {
        file->missing = r->status.block;
        reading_unused(f, r);
        return false;
    }
    file_begin(file);
    if (r->todo) offer(r);
    else leave(r);
    return true;
}

void read_ahead(brv_file *file, uint64_t begin, uint64_t end)
{
    brv_front *f = file->front;
    f->now++;
    stream *s = follow(file, begin, end);
    if (s->run <= ONE_READ || f->ending) return;
    fetch_ahead(file, s);
    const uint64_t far = s->next + (s->run < MOST_AHEAD ? s->run : MOST_AHEAD);
    const uint64_t target = far < file->index.size ? far : file->index.size;
    while (s->ahead < target && extents_room_ahead(f, 2 * AHEAD_BYTES, 0)) {
        const uint64_t stop = s->ahead + AHEAD_BYTES < file->index.size ? s->ahead + AHEAD_BYTES : file->index.size;
        if (!begin_ahead(file, &s->ahead, stop)) return;
    }
}

/* What was to be decoded ahead of a file, and has not been begun, fails. The caller has the lock. */
static void cancel_ahead(brv_file *file)
{
    static const brv_status cancelled = {.code = BRV_UNPREPARED, .node = -1, .what = "the archive is being closed"};
    brv_front *f = file->front;
    fetch_cancel(file);
    for (reading **at = &f->offered; *at;) {
        reading *r = *at;
        if (r->file != file || !r->ahead) {
            at = &r->more;
            continue;
        }
        withdraw(r);
        for (step *of; (of = next_step(r));) step_done(r, of, &cancelled);
        leave(r);
    }
}

/* ---- for who waits ------------------------------------------------------------------------- */

void reading_collect(const reading *r)
{
    for (unsigned i = 0; i < r->n; i++) {
        const step *s = &r->steps[i];
        if (s->extent) memcpy(s->out, s->extent->bytes + s->skip, s->bytes);
    }
}

/* What comes first of [*at, end), to out; moves both. The caller has the lock. */
static int read_some(reading *r, brv_file *file, uint64_t *at, uint64_t end, uint8_t **out, brv_scratch *s)
{
    brv_front *f = file->front;
    const uint64_t from = *at;
    const int rc = reading_begin(r, file, at, end, *out, s);
    if (rc) return rc;
    pthread_mutex_unlock(&f->lock);
    reading_carry_out(r, s);
    pthread_mutex_lock(&f->lock);
    const bool good = reading_succeeded(r);
    if (good) {
        pthread_mutex_unlock(&f->lock);
        reading_collect(r);
        pthread_mutex_lock(&f->lock);
    }
    reading_end(r);
    *out += *at - from;
    return good ? 0 : r->status.code ? r->status.code : BRV_PAYLOAD;
}

int reading_all(reading *r, brv_file *file, uint64_t at, uint64_t end, uint8_t *out, brv_scratch *s)
{
    int rc = 0;
    while (!rc && at < end) rc = read_some(r, file, &at, end, &out, s);
    return rc;
}

int brv_file_read(brv_file *file, uint64_t offset, size_t size, uint8_t *out, brv_scratch *s)
{
    brv_front *f = file->front;
    reading *r = calloc(1, sizeof *r);
    if (!r) return BRV_NO_MEMORY;
    pthread_mutex_lock(&f->lock);
    file_begin(file);
    read_ahead(file, offset, offset + size);
    const int rc = reading_all(r, file, offset, offset + size, out, s);
    if (file->missing < file->index.n) programs_prepare_missing(file, s);
    file_end(file);
    pthread_mutex_unlock(&f->lock);
    free(r);
    return rc;
}
