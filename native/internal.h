/* What the C files share: node and table layouts, byte cursors, the kernel table. */
#ifndef BREVIS_INTERNAL_H
#define BREVIS_INTERNAL_H

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "brevis.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "BrevisFS needs a little-endian machine"
#endif

/* Output offsets are arbitrary file offsets, so word arrays may lie at any address. */
typedef uint8_t w8;
typedef uint16_t w16 __attribute__((aligned(1), may_alias));
typedef uint32_t w32 __attribute__((aligned(1), may_alias));
typedef uint64_t w64 __attribute__((aligned(1), may_alias));

enum { MAX_NODES = 128, MAX_DEPTH = 4, MAX_STREAMS = 16, MAX_LANES = 64, MAX_TABLES = 64, MAX_CODE = 15 };
enum { MAX_ROW_CLASSES = 64, MAX_COLUMN_CLASSES = 16, MAX_COLUMNS_CLASSED = 1 << 16 };
#define MAX_REPEAT_WORDS ((uint64_t)1 << 20)
#define MAX_COLUMNS ((uint64_t)1 << 20)
#define MAX_PALETTE ((uint64_t)1 << 12)
#define MAX_BLOCK ((uint32_t)1 << 20)
#define MAX_TABLE_BYTES ((uint64_t)16 << 20)
#define MAX_REPEATED_BYTES ((uint64_t)16 << 20)

enum { OP_LIT = 1, OP_CONST, OP_CONCAT, OP_REPEAT, OP_MAP, OP_SCAN, OP_MERGE, OP_PALETTE, OP_SELECT, OP_TRANSPOSE };
enum { ENC_RAW = 0, ENC_PACK, ENC_HUFFMAN, ENC_RANS, ENC_ZSTD, ENC_SPARSE, ENC_TUNSTALL };
enum { FN_XOR = 0, FN_ADD, FN_ZIGZAG, FN_GRAY, FN_BITREV, FN_ROTR };
enum { SCAN_XOR = 0, SCAN_ADD };

/* One Huffman table. Symbols of at most 8 bits use `multi`: bits 0-7 code bits taken, 8-15 symbols
 * given (1..6), then the symbols; wider ones use `single`: symbol << 8 | length. */
typedef struct {
    unsigned bits;    /* a look-up takes this many bits */
    unsigned longest; /* code */
    uint64_t *multi;
    uint32_t *single;
    uint8_t *len;     /* 2^b code lengths, 0 absent */
    uint32_t *encode; /* 2^b: ABSENT, or code << 8 | length */
    /* for encoding long streams of bytes: both codes of a pair of words, which begins with the later one, and
     * their length; PAIR_PRESENT unless one has no code. Indexed by the words less pair_first, of pair_bits each, the
     * earlier one in the lower bits. */
    uint32_t *pair_code;
    uint8_t *pair_len;
    uint8_t pair_first, pair_bits;
} huff_table;

#define ABSENT 0x80u
#define PAIR_PRESENT 0x80000000u

/* How a symbol is coded without a division: with inverse = 2^44 / freq, rounded up, x / freq is x * inverse >> 44 for
 * every x < freq * 2^16, and the product fits. 0 everywhere: no such symbol. Its slots stand in the order of their
 * ranks from `start` on. */
#define INVERSE_BITS 44
typedef struct {
    uint64_t inverse;
    uint32_t freq, start;
} rans_step;

/* The same by bucket, for tables of at most 64 symbols, of bytes: from slot `own` on a bucket is of the symbol of bucket
 * `alias`; rank: slot of the bucket, + offset if it is the alias's. For encoding: where the slots of a symbol by rank
 * start, and a symbol's number. */
typedef struct {
    uint16_t own[64], alias[64], freq[64], alias_freq[64], offset[64];
    uint16_t start[64];
    uint8_t symbol[64], number[256];
} rans_lookups;

#define NO_NUMBER 0xff

/* One rANS table: per slot of 2^prob_bits the frequency (bits 16-31), rank (0-15), and symbol. For bytes and at most 12
 * bits also in one word: frequency - 1 (bits 20-31), rank (8-19), symbol (0-7). */
typedef struct {
    uint32_t *slot; /* until encoding is prepared NULL with look-ups, and symbol and packed as well */
    uint16_t *symbol;
    uint32_t *packed;
    rans_lookups *lookups; /* or NULL: see by_bucket */
    uint32_t *freq;        /* 2^b */
    rans_step *step;       /* 2^b, for encoding */
    uint16_t *by_rank;     /* slots, likewise */
} rans_table;

/* One Tunstall dictionary, 2^k entries: up to 7 words from the lowest byte, their number in the top byte
 * (0: no such entry); and each entry's parent, UINT32_MAX for the single words, which stand in rank order. */
typedef struct {
    uint64_t *entry;
    uint32_t *parent;
    size_t entries;
} tunstall_table;

/* Classes of the places in a segment, and the table of each pair, row class * classes + a place's. */
typedef struct {
    size_t places;
    unsigned classes;
    uint8_t *class;     /* of each place */
    uint16_t *order;    /* places by class, those of one in their order */
    uint64_t *mask;     /* [ceil(places / 64)][classes]: which of 64 places have a class */
    uint8_t *rank;      /* of each place, to whole 64s: how many of its 64 before it have its class */
    /* Where no class has more than 32 of 64 places, NULL elsewhere: how many of each class come before those 64,
     * [ceil(places / 64)][8]; and of each place its class, three bits, and its rank, five. */
    uint16_t *before;
    uint8_t *pick;
    size_t width[MAX_COLUMN_CLASSES]; /* places of each class */
    uint8_t table[MAX_ROW_CLASSES * MAX_COLUMN_CLASSES];
} column_classes;

typedef struct {
    uint8_t op, enc, fn, bits;
    uint8_t container; /* bytes a word takes in arrays: 1, 2, 4, 8 */
    uint8_t depth;
    uint8_t k;         /* pack, tunstall: bits; map rotr: r */
    uint8_t streams;   /* huffman */
    uint8_t max_len;   /* huffman: code length limit; rans, tunstall: probability bits */
    uint8_t lanes;     /* rans */
    uint32_t tables;
    uint32_t rows;     /* classes of segments: as many as tables, unless places have classes too */
    uint32_t columns;  /* classes of places in a segment, 0 if they have none */
    uint32_t end;      /* prefix index after the subtree */
    uint64_t segment;
    uint64_t count;    /* words of the stream */
    uint64_t word;     /* const, base, xor, add, select */
    uint64_t times;    /* repeat; transpose: columns */
    huff_table *huff;
    rans_table *rans;
    tunstall_table *tunstall;
    void *repeated;    /* decoded child, count / times words */
    void *palette;     /* its words, ascending, in containers; as many more as places of the child's width reach */
    size_t colours;    /* words of the palette */
    column_classes *by_place;
    uint8_t *classes;  /* encoding: class of every segment */
    uint64_t n_classes;
} node;

struct brv_kernels;

struct brv_program {
    uint32_t n_nodes;
    uint32_t bits, block;
    uint64_t count;
    bool analysis;     /* made without shared parts */
    size_t memory;
    size_t scratch;    /* bytes of word arrays one block may need */
    uint32_t paired;   /* the literal of which two blocks are decoded at once, n_nodes if none */
    const struct brv_kernels *k;
    node nodes[];      /* as many as the bytes of the program may hold, MAX_NODES at most */
};

/* Ask for the line of the output that will be written some 2 KiB after p: a core that writes beyond its cache waits for
 * each line otherwise. It may lie past the end, so it is no pointer. */
#define FETCH_OUT(p) __builtin_prefetch((const void *)((uintptr_t)(p) + 2048), 1);

/* What will be needed soon: the next block's payload (or some bytes that are there anyway), and where this block's
 * bytes will go. Both run past their ends, so they are no pointers. */
typedef struct {
    uintptr_t in, out;
} prefetcher;

typedef struct {
    uint8_t *base;
    size_t cap;
} room;

/* A cursor over untrusted bytes. */
typedef struct {
    const uint8_t *p, *end;
} cursor;

/* The classes of the segments that overlap words lo..lo+m-1 of a coded literal. */
typedef struct {
    const uint8_t *classes;   /* of each segment in the range, NULL with one table */
    size_t n, first, segment; /* segments; words of the first one in the range; words of the others */
    size_t words;             /* in the range */
    size_t place;             /* of the first word in its segment */
    const column_classes *by_place; /* or NULL: a segment's class is its table */
    size_t count[MAX_TABLES]; /* words of each table */
} class_map;

/* The block after the one that is decoded, and its words of the paired literal once they have been decoded with it. */
typedef struct {
    bool there, done;
    cursor payload;
    uint64_t lo;
    size_t m;
    class_map map;
    void *words; /* in class order */
} next_block;

struct brv_scratch {
    uint8_t *base;
    size_t cap, used;
    void *dctx, *cctx; /* zstd contexts */
    prefetcher ahead;
    next_block next;
    room payload, target; /* brv_read's */
};

static inline size_t left(const cursor *c) { return (size_t)(c->end - c->p); }

/* 0, BRV_TRUNCATED or BRV_VARINT */
static inline int get_varint(cursor *c, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (c->p == c->end) return BRV_TRUNCATED;
        uint8_t b = *c->p++;
        if (shift == 63 && b > 1) return BRV_VARINT;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            if (b == 0 && shift) return BRV_VARINT;
            *out = v;
            return 0;
        }
    }
    return BRV_VARINT;
}

static inline size_t put_varint(uint8_t *p, uint64_t v)
{
    size_t n = 0;
    while (v >= 0x80) {
        p[n++] = (uint8_t)v | 0x80;
        v >>= 7;
    }
    p[n++] = (uint8_t)v;
    return n;
}

static inline uint64_t mask_of(unsigned bits) { return bits >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1; }
/* the same byte in each byte of a u64 */
#define EVERY_BYTE(x) ((uint64_t)(x) * 0x0101010101010101u)
static inline unsigned container_of(unsigned bits) { return bits <= 8 ? 1 : bits <= 16 ? 2 : bits <= 32 ? 4 : 8; }
static inline unsigned bits_for(uint64_t n) /* bits of an index below n */
{
    unsigned b = 0;
    while (((uint64_t)1 << b) < n) b++;
    return b;
}
static inline uint64_t load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint64_t load_word(const void *a, unsigned container, size_t i)
{
    switch (container) {
    case 1: return ((const w8 *)a)[i];
    case 2: return ((const w16 *)a)[i];
    case 4: return ((const w32 *)a)[i];
    default: return ((const w64 *)a)[i];
    }
}
static inline void store_word(void *a, unsigned container, size_t i, uint64_t v)
{
    switch (container) {
    case 1: ((w8 *)a)[i] = (w8)v; break;
    case 2: ((w16 *)a)[i] = (uint16_t)v; break;
    case 4: ((w32 *)a)[i] = (uint32_t)v; break;
    default: ((w64 *)a)[i] = v; break;
    }
}

/* Bytes of m words of w bits in sliced form. */
size_t sliced_size(size_t m, unsigned w);

/* A Huffman stream being decoded: its lowest `bit` bits are still to be taken. */
typedef struct {
    const uint8_t *start, *end;
    size_t bit;
} huff_stream;

typedef struct {
    uint64_t acc;
    unsigned n; /* bits in acc, fewer than 8 between calls */
    uint8_t *out;
} bit_writer;

/* Kernels that exist once per instruction set (kernels_body.h). Word arrays may be unaligned. */
typedef struct brv_kernels {
    const char *name;
    /* sliced form of m words of w bits <-> words in a container */
    void (*unpack)(const uint8_t *in, size_t m, unsigned w, unsigned container, void *out);
    void (*pack)(const void *words, size_t m, unsigned w, unsigned container, uint8_t *out);
    /* dst[i] = src[i] << shift (first) or dst[i] |= src[i] << shift */
    void (*merge)(void *dst, unsigned dst_c, const void *src, unsigned src_c, unsigned shift, size_t m, bool first);
    /* the same from m words of w bits, 1 to 64, sliced */
    void (*merge_raw)(void *dst, unsigned dst_c, const uint8_t *in, unsigned w, unsigned shift, size_t m, bool first);
    /* dst[i] = (src[i] >> shift) & mask */
    void (*field)(void *dst, unsigned dst_c, const void *src, unsigned src_c, unsigned shift, uint64_t mask, size_t m);
    /* Words from symbols of at most 8 bits and a raw rest of w bits, sliced, below them: top | symbol | rest, rotated
     * right by r. w is less than 8 in words of 8 bits, 4 to 14 in those of 16, 20 to 24 in those of 32. The symbols are
     * in class order. */
    void (*join)(void *dst, unsigned container, const uint8_t *symbols, const class_map *map, const uint8_t *rest,
                 unsigned w, uint64_t top, unsigned r);
    /* The other way round, for words of 8, 16 and 32 bits: rotated left by r, their t top bits, a byte each, unless t is
     * 0; what follows, of at most 8 bits; and the w lowest bits, sliced. */
    void (*split)(const void *words, unsigned container, size_t m, unsigned r, unsigned t, unsigned w, uint8_t *top,
                  uint8_t *symbols, uint8_t *rest);
    /* word functions, in place; inverse: D instead of G */
    void (*map)(void *a, unsigned container, unsigned bits, unsigned fn, uint64_t v, bool inverse, size_t m);
    /* out[to[c] + r] = in[from[r] + c]; NULL where rows or columns follow one another */
    void (*transpose)(const void *in, const size_t *from, void *out, const size_t *to, unsigned container, size_t rows,
                      size_t columns);
    void (*fill)(void *a, unsigned container, uint64_t v, size_t m);
    /* dst[i] = table[places[i]]; false if a place is not below size. The table can be read for every place of the
     * child's width, and for 16 places at least. */
    bool (*look_up)(void *dst, unsigned dst_c, const void *places, unsigned places_c, const void *table, size_t size,
                    size_t m);
    /* the other way round: false if a word is not in the table, which ascends */
    bool (*find_places)(void *places, unsigned places_c, const void *words, unsigned words_c, const void *table,
                        size_t size, size_t m);
    /* dst[i] = mask[i] ? the next word of `next` : v; 64 bytes more than needed may be read */
    void (*spread)(void *dst, unsigned container, const uint8_t *mask, const void *next, uint64_t v, size_t m);
    /* the other way round: the mask of the words that are not v, and those one after another; returns how many */
    size_t (*gather)(const void *words, unsigned container, uint64_t v, uint8_t *mask, void *next, size_t m);
    /* a[0] given, a[i] op= a[i-1] over child words at a[1..m-1] */
    void (*scan)(void *a, unsigned container, unsigned bits, unsigned kind, size_t m);
    /* index of the first word that is not v, m if none */
    size_t (*find_other)(const void *a, unsigned container, uint64_t v, size_t m);
    /* decode the m words of one class, dealt to n streams, symbols of at most 8 bits; bytes from floor on may be
     * read. *ahead is prefetched on the way. 0 or BRV_PAYLOAD. */
    int (*huff8)(const huff_table *t, huff_stream *s, unsigned n, const uint8_t *floor, uint8_t *out, size_t m,
                 prefetcher *ahead);
    /* tables of few symbols are decoded by look-ups, and have these; others are there slot by slot */
    bool by_bucket;
    /* the m words of one class; x: the states of the lanes; the words of renormalisation are taken from the item */
    int (*rans)(const rans_table *t, unsigned prob_bits, unsigned container, uint32_t *x, unsigned lanes, cursor *item,
                void *out, size_t m);
    /* the first words of one class in each of two blocks at once, as many of both, in whole rounds; returns how many,
     * at most m. NULL where that is no quicker; else for tables with look-ups and 32 or 64 lanes. */
    size_t (*rans_two)(const rans_table *t, unsigned prob_bits, uint32_t *const x[2], unsigned lanes, cursor item[2],
                       uint8_t *const out[2], size_t m);
    /* the other way round, from the last word to the first: words of renormalisation are put below w, where there must
     * be room for one a word and one more; returns the new w, NULL if a word has no frequency */
    uint16_t *(*rans_encode)(const rans_table *t, unsigned prob_bits, unsigned container, const void *words, size_t m,
                             uint32_t *x, unsigned lanes, uint16_t *w);
    /* append the codes of words[from..to), last to first; out has room for 8 bytes past what is written; false if a
     * word has no code */
    bool (*huff_encode)(bit_writer *bw, const huff_table *t, unsigned container, const void *words, size_t from,
                        size_t to);
    /* the m words of one class from codeword[at..n); returns the next codeword, SIZE_MAX on damage */
    size_t (*tunstall)(const uint64_t *entry, const uint16_t *codeword, size_t at, size_t n, uint8_t *out, size_t m);
    /* a whole segment from a run of the ordered words for each class of places; 64 bytes more of each may be read */
    void (*interleave)(uint8_t *words, const column_classes *c, const uint8_t *ordered, const size_t *run);
    uint64_t (*hash)(const void *p, size_t n);
} brv_kernels;

/* The best kernels that the build and this CPU have, or those called `cpu` if there are such; else the plain ones. */
const brv_kernels *kernels_for(const char *cpu);

const brv_kernels *kernels_scalar(void);
const brv_kernels *kernels_avx2(void);   /* NULL where the build has none; this CPU may not have them */
const brv_kernels *kernels_avx512(void); /* likewise */

/* huffman.c, rans.c, tunstall.c: tables from their serialised form (0 or a BRV_ code), and literals */
int huff_load(node *nd, cursor *c);
int huff_prepare_encode(node *nd);
int rans_prepare_encode(node *nd);
int rans_load(node *nd, const brv_kernels *k, cursor *c);
int tunstall_load(node *nd, cursor *c);
int rans_read_frequencies(cursor *c, size_t n, unsigned prob_bits, uint32_t *freq);
/* Bytes that the format counts for tables, of those that are only there by bucket. */
size_t rans_unexpanded(const node *nd);
void huff_free(node *nd);
void rans_free(node *nd);
void tunstall_free(node *nd);
/* decode an item from behind its classes, in class order */
int huff_decode(const node *nd, const brv_kernels *k, cursor item, const class_map *map, void *out, brv_scratch *s);
int rans_decode(const node *nd, const brv_kernels *k, cursor item, const class_map *map, void *out);
/* the items of two blocks, of a literal that is paired; rc of each */
void rans_decode_two(const node *nd, const brv_kernels *k, cursor item[2], const class_map *const map[2],
                     uint8_t *out[2], int rc[2]);
int tunstall_decode(const node *nd, const brv_kernels *k, cursor item, const class_map *map, void *out, brv_scratch *s);
/* encode words in class order to out (cap bytes), an item from behind its classes: 0, BRV_NOT_APPLICABLE (a word
 * without a code), BRV_NO_ROOM */
int huff_encode(const node *nd, const brv_kernels *k, const void *words, const class_map *map, uint8_t *out, size_t cap,
                size_t *len);
int rans_encode(const node *nd, const brv_kernels *k, const void *words, const class_map *map, uint8_t *out, size_t cap, size_t *len,
                brv_scratch *s);
int tunstall_encode(const node *nd, const brv_kernels *k, const void *words, const class_map *map, uint8_t *out,
                    size_t cap, size_t *len, brv_scratch *s);

/* classes.c */
/* What a shared part begins with; 0 or a BRV_ code. */
int columns_load(node *nd, const brv_kernels *k, cursor *c);
/* Reads the head of an item; the classes go to scratch, checked. */
int classes_read(const node *nd, const brv_kernels *k, cursor *item, uint64_t lo, size_t m, brv_scratch *s,
                 class_map *map);
/* The classes of words that are encoded. */
void classes_map(const node *nd, uint64_t lo, size_t m, class_map *map);
/* Writes the head of an item from nd->classes; returns its bytes. */
size_t classes_write(const node *nd, const brv_kernels *k, uint64_t lo, size_t m, uint8_t *out, class_map *map);
/* Move words between their places and class order. */
void class_order(const class_map *map, const void *words, void *ordered, unsigned container);
void class_restore(const class_map *map, const brv_kernels *k, const void *ordered, void *words, unsigned container);
/* where in class order each segment begins, if places have no classes */
void class_places(const class_map *map, size_t *places);

/* The shape that most programs of floats end in: of a word of 16 or 32 bits, at most 4 top bits in one field or two
 * that are constant or nearly so, then up to 8 bits coded somehow, then the rest as it is, at most 14 or 24 bits; of a
 * word of 8 bits, some bits coded and the rest as it is; perhaps all rotated. One pass over the words. */
typedef struct {
    uint32_t symbol, rest; /* nodes */
    unsigned t;            /* bits of the top */
} joined;

/* decode.c: whether a node is a Merge of that shape */
bool is_joined(const brv_program *p, uint32_t i, joined *j);

/* decode.c: evaluate a node on [lo, hi) into dst */
/* the literal of a program of which two blocks are decoded at once: one that vectors look up, before which nothing
 * changes how many words there are; n_nodes if there is none */
uint32_t paired_literal(const brv_program *p);
int eval_node(const brv_program *p, brv_scratch *s, uint32_t i, uint64_t lo, uint64_t hi, cursor *payload, void *dst,
              brv_status *st);

/* scratch.c: say what failed, and return code */
int fail(brv_status *st, int code, int node, const char *what);
/* The most that evaluating or encoding node i on `words` words takes from scratch at one time. */
size_t scratch_need(const brv_program *p, uint32_t i, uint64_t words);
/* Make room for n bytes of scratch in all; 0 or BRV_NO_MEMORY. What is taken is given back by setting `used`. */
int scratch_reserve(brv_scratch *s, size_t n);
/* Of n bytes that malloc gave, and that are not used yet, the pages that it has used before go back to the system. */
void forget_pages(uint8_t *from, size_t n);
static inline void *scratch_take(brv_scratch *s, size_t n)
{
    n = (n + 127) & ~(size_t)63; /* slack for 8-byte stores past the end of byte arrays */
    void *p = s->base + s->used;
    s->used += n;
    assert(s->used <= s->cap); /* what scratch_need promised */
    return p;
}

/* ---- checksum.c ---------------------------------------------------------------------------- */

/* XXH3-64 of n bytes followed by m others. */
uint64_t checksum_of_two(const uint8_t *a, size_t n, const uint8_t *b, size_t m);

/* ---- read.c -------------------------------------------------------------------------------- */

/* n bytes of an archive, from `begin` on, that are in memory. */
typedef struct {
    uint64_t begin;
    size_t n;
    const uint8_t *bytes;
} span;

enum { SPANS = 4 };

/* What an archive is read from: what is in n spans from there, all else from its descriptor; `at_once` only what the kernel
 * has in memory. */
typedef struct {
    int fd;
    bool at_once;
    unsigned n;
    span spans[SPANS];
} source;

/* The program of a section, whose part of the index and prologue are checked before. NULL, and why in st. */
brv_program *section_program(const source *from, const brv_index *index, size_t section, const char *cpu,
                             brv_scratch *scratch, brv_status *st);
/* As brv_read, of one part. */
int read_part(const source *from, const brv_part *part, brv_scratch *scratch, uint8_t *out, brv_status *st);
/* Where the archive has block `block` of a section, with the 4 bytes before its payload. */
uint64_t stored_at(const brv_section *section, uint64_t block);
/* The block that byte `at` of a section is in. */
uint64_t block_at(const brv_section *section, uint64_t at);

#endif
