/* What extents.c, fetch.c, programs.c, reading.c, front.c and interpose.c share: docs/design/mount.md tells how they work together. */
#ifndef BREVIS_FRONT_H
#define BREVIS_FRONT_H

#include <pthread.h>

#include "internal.h"
#include "line.h"

/* The largest read that is answered in one piece, in bytes: the largest that the kernel sends. */
enum { REQUEST = 1 << 20 };

/* Extents have memory of a power of two from 4 KiB to 1 MiB. */
enum { SMALLEST_EXTENT = 4 << 10, EXTENT_CLASSES = 9, LARGEST_EXTENT = SMALLEST_EXTENT << (EXTENT_CLASSES - 1) };

/* Steps of a reading at most; and bytes that one step decodes to where they are wanted, so that threads can share. */
enum { STEPS = 128, STEP_BYTES = 256 << 10 };

/* The programs that one reading uses take at most so many bytes, and one program. */
enum { PROGRAMS_AT_ONCE = 4 << 20 };

/* What is stored is fetched in chunks, which begin at multiples of so many bytes; the threads that do it, and how many
 * chunks can be waiting for one. */
enum { CHUNK = 512 << 10, FETCHERS = 4, FETCHES = 64 };

enum { FILE_BUCKETS = 256, HANDLE_BUCKETS = 1024, STREAMS = 16 };

/* Inodes that can be known to be bare at a time, those whose numbers differ in the low bits. */
enum { BARE = 1 << 14 };

enum extent_state { DECODING, READY, FAILED };

/* [begin, begin + size) of a file, decoded: a block, a part of one that is larger than LARGEST_EXTENT, or, if it was decoded
 * ahead, a run of blocks (reading.c). Or a chunk as it is stored, from begin - STORED on (fetch.c). No byte is in two. Its
 * memory, `bytes`, is its own for ever; what it is an extent of changes. While `pins` > 0 it is in use. `asked` tells which of
 * 64 bytes that stand for all have been asked for; `ahead`: none has, and it was decoded at the time `born` because they
 * soon would be. */
typedef struct extent {
    brv_file *file;
    uint64_t begin, born, asked;
    uint32_t size, pins;
    uint8_t state, class;
    bool ahead;
    uint8_t *base, *bytes;
    struct extent *next;           /* of its bucket, or of those that are free */
    struct extent *older, *newer;
} extent;

#define STORED (UINT64_C(1) << 63)

/* By when they were used last. */
typedef struct {
    extent *oldest, *newest;
} aged;

/* A run of reads each of which begins about where another ended. It has read up to `next`, `run` bytes in a row; what
 * it needs is being decoded up to `ahead`, and fetched up to `fetched` of what is stored. `used` tells when it went on
 * last. */
typedef struct {
    uint64_t next, run, ahead, fetched, used;
} stream;

/* A chunk that is to be fetched; `begun` when a thread sees to it, until there is an extent or there will be none. Unless
 * `keep`, it is only for the kernel to read. */
typedef struct {
    brv_file *file;
    uint64_t begin;
    bool begun, keep;
} fetch;

/* A section of a file, ready to be decoded. While it has users (steps, and sections that refer to it) it stays. */
typedef struct prepared {
    brv_section section;
    brv_file *file;
    size_t number, memory;
    struct prepared *target; /* what it refers to */
    unsigned users;
    struct prepared *older, *newer;
} prepared;

/* A file that Python knows, or of which extents are left. Without sections it is a plain one, read as it is. */
struct brv_file {
    brv_front *front;
    brv_file *next; /* of its bucket */
    uint64_t identity[5];
    bool known;
    size_t extents;
    unsigned readings; /* that are under way */
    int fd;
    enum { MAYBE_DIRECT, DIRECT, NOT_DIRECT } reads; /* whether past the page cache */
    int direct;                  /* the descriptor for that, or -1 */
    uint64_t cached, cached_end; /* where the kernel has what is stored in memory, as far as that is known */
    brv_index index;
    prepared **prepared; /* of each section that is */
    size_t missing;      /* the section that stopped reading ahead as it is not prepared, if there is one of this number */
    stream streams[STREAMS];
};

/* A step of a reading: `part`, of section `of`, is decoded to `extent`, if there is one, else to `out`. `skip` and `bytes`
 * say what the reading wants of the extent. `mine`: it is for this reading to decode, and has not been. */
typedef struct {
    prepared *of;
    brv_part part;
    extent *extent;
    uint8_t *out;
    uint32_t skip, bytes;
    bool mine;
} step;

/* How a range of a file is read: for a request, or `ahead` of requests. `todo` steps are to be decoded, those before
 * `next` were begun. While it is `offered`, threads without other work help. */
typedef struct reading {
    brv_file *file;
    unsigned n, next, todo, helpers;
    bool offered, ahead;
    size_t programs; /* bytes of those that it uses */
    brv_status status; /* of the first step that failed */
    struct reading *more;
    step steps[STEPS];
} reading;

/* libfuse's: the last member only since its version 3.17. */
struct fuse_buf {
    size_t size;
    int flags;
    void *mem;
    int fd;
    off_t pos;
    size_t mem_size;
};

/* An inode that has no extended attributes, until a time of CLOCK_MONOTONIC in ns. */
typedef struct {
    uint64_t inode, until;
} bare;

struct brv_front {
    pthread_mutex_t lock; /* of all that follows */
    line idle; /* threads without work */
    line done; /* those that wait for another's decode, or for readings to end */
    line turn; /* the thread that receives, while the event loop does */
    line filler; /* the thread that has memory in reserve, and gives some back */
    line fetchers;
    line large; /* those that wait to prepare a section with a large prologue */
    brv_counters counters;
    const char *cpu; /* what decodes: see brv_cpu */
    bool ending;

    /* extents.c */
    size_t limit; /* bytes of memory that extents and programs may have */
    size_t held, held_ahead[2]; /* that extents have, and have that are ahead: decoded ones, chunks as they are stored */
    extent **buckets;
    size_t mask;
    extent *spare[EXTENT_CLASSES], *cold[EXTENT_CLASSES]; /* free ones, with and without memory */
    struct slab *slabs;
    aged used, ahead;
    struct unused *reserve;
    size_t reserved; /* bytes of `held` that are in reserve, or about to be */

    /* fetch.c */
    fetch fetches[FETCHES];
    unsigned n_fetches;

    /* programs.c */
    size_t programs; /* bytes of memory that they have */
    size_t most_programs; /* and have had since malloc last gave back what it could */
    prepared *oldest_program, *newest_program;
    bool preparing_large;

    /* reading.c */
    brv_file *files[FILE_BUCKETS];
    uint64_t now; /* counts reads */
    reading *offered, *unused_readings;

    /* front.c */
    struct handle *handles[HANDLE_BUCKETS];
    bare bare[BARE];
    unsigned vain; /* questions for attributes of bare inodes that the event loop has received one after another */
    struct message *given, *reads, **last_read, *passed, **last_passed, *unused_messages;
    int (*receive)(void *session, struct fuse_buf *buf);
    void *session;
    size_t known;             /* bytes of a fuse_buf */
    bool looping;             /* the event loop receives, not the thread */
    int device, loop, passing, waking; /* descriptors: the last three an epoll's and two eventfds */
    unsigned n;
    struct worker *workers; /* n threads; the first one receives */
    unsigned n_suppliers;
    pthread_t suppliers[1 + FETCHERS]; /* the first one sees to memory, the others fetch */
};

/* ---- extents.c: all with the lock held ----------------------------------------------------- */

bool extents_begin(brv_front *f, size_t limit);
void extents_end(brv_front *f);
extent *extent_find(const brv_front *f, const brv_file *file, uint64_t begin);
/* A new one, DECODING; NULL if there is no memory for it that is not in use. */
extent *extent_add(brv_file *file, uint64_t begin, uint32_t size, bool ahead);
/* So many of its bytes are asked for, after `skip` others. */
void extent_ask(brv_front *f, extent *x, uint32_t skip, uint32_t bytes);
/* Decoding it has ended; one that FAILED is not found any more. */
void extent_decoded(brv_front *f, extent *x, enum extent_state state);
/* One user less. What was asked for in full is in the kernel's page cache: its memory is for what comes next. */
void extent_unpin(brv_front *f, extent *x);
/* Lets go of what takes the extents over their limit, as far as it is not in use. */
void extents_shrink(brv_front *f);
/* Touches memory that may be needed before long; gives the lock up meanwhile. */
void extents_fill_reserve(brv_front *f);
/* Whether so many bytes more may be ahead, if what is decoded had so many at least. What has been ahead for long and never
 * asked for makes room. */
bool extents_room_ahead(brv_front *f, size_t bytes, size_t decoded);

/* ---- fetch.c: all with the lock held, which all but fetch_ahead and fetch_cancel give up meanwhile --------- */

/* What a range of an archive is read from, until fetched_unuse. */
typedef struct {
    source from;
    extent *used[SPANS];
} fetched;

/* Waits for what is being fetched of [lo, hi) of the archive, at least one byte. */
void fetched_use(brv_file *file, uint64_t lo, uint64_t hi, fetched *of);
void fetched_unuse(brv_front *f, fetched *of);
/* Has fetched what is stored of what will be decoded ahead for a stream, and later. */
void fetch_ahead(brv_file *file, stream *s);
/* Nothing that has not been begun is fetched of a file. */
void fetch_cancel(brv_file *file);
/* Fetches the chunk that has waited longest; false if none waits. */
bool fetch_one(brv_front *f);
/* A file is opened, and closed: where it is not being read. */
void fetch_open(brv_file *file);
void fetch_close(brv_file *file);

/* ---- programs.c: all with the lock held ---------------------------------------------------- */

/* Bytes that programs may have. */
size_t programs_most(const brv_front *f);
/* Lets go of what takes programs over that, as far as they are not in use. */
void programs_shrink(brv_front *f);
/* Has malloc give back to the system what many programs had; gives the lock up meanwhile. */
void programs_trim(brv_front *f);
/* Lets go of all programs of a file, none of which is in use. */
void programs_free(brv_file *file);
void program_use(prepared *p);
void program_unuse(prepared *p);
/* Prepares a section of a file that is being read; gives the lock up meanwhile. 0 or a BRV_ code; the program is there
 * until the lock is given up again. */
int program_prepare(brv_file *file, size_t number, brv_scratch *s, brv_status *st);
/* Prepares sections of [at, end) that are not, as many as one reading can use; ends at one that is damaged. */
void programs_prepare(brv_file *file, uint64_t at, uint64_t end, brv_scratch *s);
/* Prepares what has stopped reading ahead, and some of what comes after it. */
void programs_prepare_missing(brv_file *file, brv_scratch *s);

/* ---- reading.c ----------------------------------------------------------------------------- */

/* The section that has byte `at` of the original. */
size_t section_at(const brv_file *file, uint64_t at);
/* Plans the reading of [*at, end), or of what comes first of it, to out, and moves *at. The caller has the lock. 0, or
 * BRV_UNPREPARED with the section in r->status. */
int reading_plan(reading *r, brv_file *file, uint64_t *at, uint64_t end, uint8_t *out);
/* As reading_plan, after preparing what is not prepared, for which it gives the lock up. 0 or a BRV_ code. */
int reading_begin(reading *r, brv_file *file, uint64_t *at, uint64_t end, uint8_t *out, brv_scratch *s);
/* Reads [at, end) to out. The caller has the lock, which is given up meanwhile. 0 or a BRV_ code. */
int reading_all(reading *r, brv_file *file, uint64_t at, uint64_t end, uint8_t *out, brv_scratch *s);
/* Puts what has been decoded where it was wanted. */
void reading_collect(const reading *r);
/* Whether [at, end) of a file is ready, but for little that is prepared and to be decoded. The caller has the lock. */
bool range_is_quick(const brv_file *file, uint64_t at, uint64_t end);
/* Has decoded what the reader of [begin, end) will want next. The caller has the lock. */
void read_ahead(brv_file *file, uint64_t begin, uint64_t end);
/* Decodes what is to be decoded, with the help of idle threads, and waits for what others decode. Takes the lock. */
void reading_carry_out(reading *r, brv_scratch *s);
/* As reading_carry_out, alone and without waiting; if that cannot be, it has failed. Takes the lock. */
void reading_carry_out_at_once(reading *r, brv_scratch *s);
/* Whether all of it has been decoded. The caller has the lock. */
bool reading_succeeded(const reading *r);
/* It is done with its extents. The caller has the lock. */
void reading_end(reading *r);
/* Helps with the reading that was offered first. The caller has the lock. */
void reading_help(brv_front *f, brv_scratch *s);
/* Between these a file's descriptor stays. The caller has the lock. */
void file_begin(brv_file *file);
void file_end(brv_file *file);
/* Frees a file that is not known and of which no extents are left. The caller has the lock. */
void file_free_if_unused(brv_file *file);
/* Frees all that reading.c keeps; after extents_end. */
void readings_free(brv_front *f);

/* ---- front.c ------------------------------------------------------------------------------- */

/* Requests of the session come from `device`, by `receive`. Returns a descriptor that is readable when front_receive
 * has something, -1 if there is none. `known` bytes of a fuse_buf are in use. */
int front_attach(brv_front *f, void *session, int device, int (*receive)(void *, struct fuse_buf *), size_t known);
/* What fuse_session_receive_buf does, for what is not answered by threads. */
int front_receive(brv_front *f, struct fuse_buf *buf);

#endif
