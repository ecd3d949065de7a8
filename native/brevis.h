/* Public interface of the native executor and encoder (docs/format.md is the specification).
 *
 * Every function is reentrant and keeps no global state: what it needs between calls lives in a
 * brv_program (immutable once made, shared by any number of threads) or a brv_scratch (one thread
 * at a time).  Untrusted bytes (programs, shared parts, payloads) can make a function return an
 * error, never read or write outside the buffers it was given.
 */
#ifndef BREVIS_H
#define BREVIS_H

#include <stddef.h>
#include <stdint.h>

enum brv_code {
    BRV_OK = 0,
    BRV_NO_MEMORY = 1,
    /* a program or its shared parts break a rule */
    BRV_TRUNCATED = 10,        /* ends inside an item */
    BRV_TRAILING = 11,         /* bytes after the last item of a body */
    BRV_VARINT = 12,           /* not the shortest form, or 2^64 and above */
    BRV_UNKNOWN_OPERATOR = 13,
    BRV_UNKNOWN_ENCODING = 14,
    BRV_TYPE = 15,             /* widths, lengths or words do not fit the stream's type */
    BRV_LIMIT = 16,            /* nodes, depth, sizes beyond what format allows */
    BRV_PARAMETER = 17,        /* a parameter outside its range */
    BRV_TABLE = 18,            /* a code table that is not one */
    BRV_RECORD = 19,           /* a section's prologue, or its part of the index, is damaged */
    /* a block's payload is damaged */
    BRV_PAYLOAD = 30,
    BRV_CHECKSUM = 31,
    BRV_ENDS = 32,             /* the file ends before it */
    /* encoding: the program does not describe these bytes */
    BRV_NOT_APPLICABLE = 50,
    BRV_NO_ROOM = 51,          /* the output buffer is too small */
    BRV_ARGUMENT = 60,         /* the caller broke a precondition */
    BRV_SYSTEM = 61,           /* a system call failed; node is errno */
    BRV_UNPREPARED = 62,       /* a section's program is not there; block is its number */
};

enum brv_ref { BRV_ALONE = 0, BRV_XOR = 1, BRV_ADD = 2 };

typedef struct brv_program brv_program;
typedef struct brv_scratch brv_scratch;
typedef struct brv_hash brv_hash;
typedef struct brv_front brv_front;
typedef struct brv_file brv_file;

/* Where and why a call failed. node: prefix index, -1 if none. block: absolute block number. Of brv_read, part: which
 * one, and in_target: whether it was what the part refers to. */
typedef struct {
    int32_t code;
    int32_t node;
    uint64_t block;
    const char *what; /* static text */
    uint32_t part;
    uint32_t in_target;
} brv_status;

/* ---- programs ------------------------------------------------------------------------------ */

/* Validate a program for a section of `count` words of `bits` bits in blocks of `block` words.
 * With shared == NULL the program can only analyse (brv_words, brv_histogram).
 * cpu: "scalar", "avx2", "avx512", or NULL for the best this machine has.  Returns NULL and fills st on error. */
brv_program *brv_program_new(const uint8_t *wire, size_t wire_len, const uint8_t *shared, size_t shared_len,
                             uint32_t bits, uint64_t count, uint32_t block, const char *cpu, brv_status *st);
void brv_program_free(brv_program *p);
size_t brv_program_memory(const brv_program *p);  /* bytes held */
const char *brv_cpu(const char *cpu);             /* name of the kernels that would be used */

brv_scratch *brv_scratch_new(void);
void brv_scratch_free(brv_scratch *s);

/* ---- decode -------------------------------------------------------------------------------- */

/* Write the section's flat bytes lo..hi to out.  The nblocks blocks from first_block on cover the
 * range; spans holds (start, length) of each payload within payload[0, payload_len).  checks, if
 * not NULL, holds the XXH3 of each block's flat bytes.  With ref BRV_XOR or BRV_ADD what the program
 * gives is a difference: target holds the flat bytes that it is added to, all those of the blocks.
 * BRV_ADD is for words of 8, 16, 32 or 64 bits. */
int brv_decode(const brv_program *p, brv_scratch *s, const uint8_t *payload, size_t payload_len,
               uint64_t first_block, size_t nblocks, const uint64_t *spans, const uint64_t *checks,
               const uint8_t *target, int ref, uint8_t *out, uint64_t lo, uint64_t hi, brv_status *st);

/* A section as the index of its archive has it, and where it begins in the original, in the archive and among the block
 * entries, which follows from those before it. */
typedef struct {
    uint64_t offset, record, count, first_block;
    uint32_t prologue, block;
    uint8_t bits, kind, dtype, ref;
    uint32_t target;
} brv_entry;

/* The index of an archive, of which all is known to be right but for the blocks of each section: n sections, for each
 * block the offset in the archive of the byte after its payload, and the XXH3 of its flat bytes; where the index begins
 * itself; and bytes of the original. */
typedef struct {
    const brv_entry *sections;
    const uint64_t *blocks;
    size_t n;
    uint64_t begin, size;
} brv_index;

/* Whether the payloads of a section follow one another and fill its record, none above its limit. */
int brv_blocks_good(const brv_index *index, size_t section);
/* Checks a section's prologue, whose last bytes are those of the program and the shared parts: so many. 0 or BRV_RECORD. */
int brv_prologue(const brv_entry *section, const uint8_t *prologue, size_t *program, size_t *shared, brv_status *st);

/* A section to be read: its program, its block entries, and where its blocks start. The payloads follow one another, each
 * behind 4 bytes. */
typedef struct {
    const brv_program *program;
    const uint64_t *entries;
    uint64_t start;
} brv_section;

/* The flat bytes lo..hi, at least one, of a section. With a target they are combined with its own as brv_decode does
 * it by ref: another section of the same words, count and blocks. */
typedef struct {
    const brv_section *section, *target;
    int32_t ref;
    uint64_t lo, hi;
} brv_part;

/* Write n parts to out, one after another, from the archive open as fd. With at_once only if the kernel has all that is
 * to be read in memory: else BRV_SYSTEM. What out holds after an error is undefined. */
int brv_read(int fd, const brv_part *parts, size_t n, brv_scratch *s, uint8_t *out, int at_once, brv_status *st);

/* ---- the front of a mount ------------------------------------------------------------------ */

/* Threads that answer a mount's reads of the files that they know. Extents and programs take no more than `limit` bytes,
 * programs not more than half of that. cpu: see brv_program_new. NULL if there is no memory, or no descriptors. */
brv_front *brv_front_new(unsigned threads, size_t limit, const char *cpu);
/* Its threads end, when what they have begun is answered; it has no descriptors any more. */
void brv_front_end(brv_front *f);
/* Ends it and frees it and its files, none of which may be used any more. */
void brv_front_free(brv_front *f);
void brv_front_limit(brv_front *f, size_t limit);
/* pyfuse3's next session is this front's, if it is in the way of pyfuse3's calls of libfuse; with NULL no front's. */
void brv_front_serve(brv_front *f);
/* Whether it has a session. */
int brv_front_attached(const brv_front *f);

/* Reads of archives; extents and other steps decoded for them, found decoded, and waited for as another decoded them;
 * steps that failed; extents decoded ahead; stored bytes fetched past the page cache; bytes of memory that extents and
 * programs take. */
typedef struct {
    uint64_t requests, decoded, found, joined, failed, ahead, fetched_bytes, cached_bytes, program_bytes;
} brv_counters;
void brv_front_count(brv_front *f, brv_counters *counters);

/* From now on reads of this handle of the mount are reads of the file; with NULL they are not answered here. 0 or
 * BRV_NO_MEMORY. */
int brv_front_handle(brv_front *f, uint64_t number, brv_file *file);

/* For so many ns from now on, n inodes are known to have no extended attributes; with 0, no more. Threads answer who asks
 * for some, but for those named user.brevisfs.*, of which they know nothing. */
void brv_front_bare(brv_front *f, const uint64_t *inodes, size_t n, uint64_t ns);
/* Whether one is. */
int brv_front_is_bare(brv_front *f, uint64_t inode);

/* A file to read: the archive with this index, which stays the caller's until brv_file_free; or a plain one for NULL. What
 * is kept of an archive that is not open any more is found again by its identity. NULL if there is no memory. */
brv_file *brv_file_new(brv_front *f, const uint64_t identity[5], const brv_index *index);
void brv_file_open(brv_file *file, int fd);
/* From now on the descriptor is not used, when what is being read has been: or, without wait, returns 0 if it has not. No
 * handle may be the file's any more. */
int brv_file_close(brv_file *file, int wait);
/* One that is not open. Its programs go. */
void brv_file_free(brv_file *file);
/* Writes size bytes of an archive to out. 0 or a BRV_ code. */
int brv_file_read(brv_file *file, uint64_t offset, size_t size, uint8_t *out, brv_scratch *s);

/* ---- folders of a store -------------------------------------------------------------------- */

/* A file as lstat shows it, in the order of Python's os.stat_result: times of access, content and change in seconds,
 * about, and in ns. And the mount that it is on, 0 if that cannot be told. */
typedef struct {
    int64_t mode;
    uint64_t inode, device;
    int64_t links, owner, group, size, seconds[3];
    double about[3];
    int64_t ns[3], block_size, blocks;
    uint64_t special, mount;
} brv_state;

/* n files: their names, each ended by a 0, `length` bytes together, and their states. */
typedef struct {
    size_t n, length;
    char *names;
    brv_state *states;
    size_t names_room, states_room;
} brv_files;

/* The files of a folder, open as `folder`: all, or those there are of n names, each ended by a 0. No symlink is followed.
 * 0, or an errno; the last of `names` is then one without a state, if it was with that file. To be freed in any case. */
int brv_files_in(int folder, brv_files *files);
int brv_files_named(int folder, const char *names, size_t n, brv_files *files);
void brv_files_free(brv_files *files);

/* The length was not to be learned; or there is no sound head. */
enum { BRV_NOT_OPENED = -1, BRV_NO_HEAD = -2 };

/* A file looked at. If it was opened, `length` is its original's or BRV_NO_HEAD; it has `changed` if inode, size, or times
 * of content or change were others by then. `bare`: it has no extended attributes. */
typedef struct {
    int64_t length;
    uint8_t changed, bare;
} brv_look;

/* Looks at n files of a folder that had these states; opens those for which `inside` is not 0, if they are regular. */
void brv_look_at(int folder, const char *names, const brv_state *states, size_t n, const uint8_t *inside,
                 brv_look *looks);

/* A folder or a file as it is known: `size` and the times of content and change, in ns, are of files. */
typedef struct {
    uint64_t device, inode;
    int64_t size, changed[2];
} brv_known;

/* Whether what follows waits for nothing on the filesystem of `folder`: one of this machine that opens from memory. */
int brv_is_at_once(int folder);

/* The first there is of n files, by what the kernel has in memory. Their folder is reached from `root` by `depth` folders,
 * each the one that `folders` says; `names` has those of the folders, then of the files, each ended by a 0. No symlink is
 * followed. 0, and in *which the number of the file; ENOENT if there is none; EAGAIN if it takes more to tell. */
int brv_find_at_once(int root, const char *names, const brv_known *folders, size_t depth, size_t n, size_t *which,
                     brv_state *state);

/* Likewise opens it for reading, if it is `file`. A descriptor, or -1 if it takes more or anything is not as known. */
int brv_reopen(int root, const char *names, const brv_known *folders, size_t depth, const brv_known *file, size_t n,
               size_t *which);

/* ---- encode and analyse -------------------------------------------------------------------- */

/* Bytes that the payload of any block may take at most. */
size_t brv_encode_bound(const brv_program *p);

/* Encode the flat bytes of block `index`; *out_len gets the payload's length. */
int brv_encode_block(const brv_program *p, brv_scratch *s, uint64_t index, const uint8_t *data, size_t len,
                     uint8_t *out, size_t cap, size_t *out_len, brv_status *st);

/* Build what encoding needs beside the program (256 KiB a table and more for long streams). Once, before the program
 * is shared between threads. */
int brv_prepare_encode(brv_program *p);

/* Classes of all segments of a huffman or rans Lit with several tables, for encoding (copied).
 * Must be called before the program is shared between threads. */
int brv_set_classes(brv_program *p, uint32_t node, const uint8_t *classes, size_t n, brv_status *st);

/* The words that D gives node `node` for block `index`, in a container of 1, 2, 4 or 8 bytes a word.
 * out holds block * container bytes; *n_out gets the number of words. */
int brv_words(const brv_program *p, brv_scratch *s, uint64_t index, const uint8_t *data, size_t len,
              uint32_t node, void *out, size_t *n_out, brv_status *st);

/* Add the words of `node` for block `index` to hist[tables][2^bits of the node]; classes as for
 * brv_set_classes (NULL: one table). */
int brv_histogram(const brv_program *p, brv_scratch *s, uint64_t index, const uint8_t *data, size_t len,
                  uint32_t node, uint64_t *hist, const uint8_t *classes, size_t n_classes, brv_status *st);

uint32_t brv_node_count(const brv_program *p);
uint32_t brv_node_bits(const brv_program *p, uint32_t node);

/* ---- tables -------------------------------------------------------------------------------- */

/* Optimal code lengths of at most max_len for a histogram of n symbols (package-merge: Larmore and
 * Hirschberg, 1990).  A lone symbol gets length 1; without any, symbol 0 does. */
int brv_huffman_lengths(const uint64_t *hist, size_t n, unsigned max_len, uint8_t *len);
/* Frequencies >= 1 for every present symbol that sum to 2^prob_bits. */
int brv_rans_frequencies(const uint64_t *hist, size_t n, unsigned prob_bits, uint32_t *freq);
/* Serialised tables (docs/format.md, shared parts), and what they begin with: the classes of n places and the tables of
 * pairs; out holds cap bytes. Return the length, 0 if out is too small. */
size_t brv_huffman_write(const uint8_t *len, size_t n, size_t tables, uint8_t *out, size_t cap);
size_t brv_columns_write(const uint8_t *places, size_t n, uint32_t columns, const uint8_t *pairs, uint32_t rows,
                         uint32_t tables, uint8_t *out, size_t cap);
size_t brv_rans_write(const uint32_t *freq, size_t n, size_t tables, uint8_t *out, size_t cap);

/* ---- checksums ----------------------------------------------------------------------------- */

uint64_t brv_checksum(const uint8_t *data, size_t len);
brv_hash *brv_hash_new(void);
void brv_hash_free(brv_hash *h);
void brv_hash_update(brv_hash *h, const uint8_t *data, size_t len);
uint64_t brv_hash_value(const brv_hash *h);

#endif
