/* What planning asks of words before anything is encoded: counts, costs, cuts, classes.
 *
 * Nothing here is part of the format. All functions are reentrant. Words lie in containers of 1, 2, 4 or 8
 * bytes, at any address, and have at most that many bits. Those that return int give 0, BRV_ARGUMENT (a
 * precondition does not hold) or BRV_NO_MEMORY.
 */
#ifndef BREVIS_PLAN_H
#define BREVIS_PLAN_H

#include "brevis.h"

enum {
    BRV_SYMBOL_BITS = 8,     /* of the widest words that are coded */
    BRV_NODE_BYTES = 6,      /* what a node adds to a program, and one more thing to decode must save */
    BRV_CODE_BITS = 11,      /* of the longest Huffman code */
    BRV_PROBABILITY_BITS = 12,
    BRV_RANS_FEW = 64,       /* symbols that are looked up in registers */
    BRV_TUNSTALL_BITS = 12,
    BRV_CHUNK = 64,          /* words: the grain at which runs of constant bits are looked for */
    BRV_COARSE_BITS = 6,     /* leading bits of a word that tell its segment's class */
    BRV_MOST_CLASSES = 16,
    BRV_COARSE = 64,         /* values of these */
    BRV_MOST_SIDE = 8, BRV_MOST_PAIRS = 64, /* classes of either side that pairs are made of, and these */
};

/* toll: bits a word that a nanosecond of decoding it costs; those from lookup on: nanoseconds, that of a field for each byte of the
 * word (brevisfs/synth/_times.py). */
typedef struct {
    double toll;
    uint32_t lanes; /* of rANS in long streams */
    double lookup, rans, rans_few, tunstall, classed, table, paired, transpose, sparse, listed, field, joined, zstd_byte;
} brv_tolls;

enum brv_way { BRV_CONST, BRV_RAW, BRV_PACK, BRV_SPARSE, BRV_HUFFMAN, BRV_RANS, BRV_TUNSTALL, BRV_ZSTD };

/* A completed field: bits low .. low + width - 1 of each word; bytes with those of its node, and toll in bytes. */
typedef struct {
    int32_t way;
    uint32_t low, width;
    uint32_t number; /* pack: bits; huffman: streams; rans: lanes */
    uint64_t word;   /* const: the word; pack, sparse: the base */
    double size, toll;
} brv_choice;

/* ---- counting ------------------------------------------------------------------------------ */

/* Add how often each value of bits low .. low + width - 1 occurs to hist[2^width]; 1 <= width <= 16. */
int brv_count(const void *words, size_t n, unsigned container, unsigned low, unsigned width, uint64_t *hist);

/* Bits set in any, and in all, of each chunk of `chunk` words, the last ragged: ceil(n / chunk) words each. */
int brv_survey(const void *words, size_t n, unsigned container, size_t chunk, void *any_set, void *all_set);

/* The child's words under a Map (function, word as in the format) or, with function -1 or -2, a Scan by xor or
 * add, which are one fewer. out may be words. */
int brv_undo(const void *words, size_t n, unsigned bits, int function, uint64_t word, void *out);

/* Up to two steps of brv_undo, the first of them the outermost; `word` is for a Map that has one. */
typedef struct {
    uint32_t steps;
    int32_t function[2];
    uint64_t word;
} brv_change;

/* Entropy by byte plane, in bits a word, of what each of n changes makes of `runs` runs of words, which end at ends[]
 * and have more words than a change has Scans: planes[n][ceil(bits / 8)]. */
int brv_looks(const void *words, const uint64_t *ends, size_t runs, unsigned bits, const brv_change *changes, size_t n,
              double *planes);

/* As brv_words, for flat bytes of one or more whole blocks, of which only the section's last may be short. */
int brv_run_words(const brv_program *p, brv_scratch *s, uint64_t first, const uint8_t *data, size_t len, uint32_t i,
                  void *out, size_t *n_out, brv_status *st);

/* D of a Transpose for each block of n bytes, the last one ragged. */
int brv_by_column(const uint8_t *words, size_t n, size_t block, size_t columns, uint8_t *out);

/* How many of the n words begin `reach` words, of 64 bits at most, that began before. */
int brv_recurring(const void *words, size_t n, unsigned bits, size_t reach, size_t *found);

/* Up to `room` distances at which the first `pattern` words come again, in order; *found gets their number. */
int brv_recurrences(const void *words, size_t n, unsigned container, size_t pattern, uint64_t *out, size_t room,
                    size_t *found);

/* Bytes of the item that a zstd literal, compressed at this level, has of the n words. */
int brv_zstd_bytes(brv_scratch *s, const void *words, size_t n, unsigned bits, int level, size_t *bytes);

/* Entropy, in bits, of all the words' lowest bytes, of the bytes above, and so on: planes[ceil(bits / 8)]. */
int brv_plane_bits(const void *words, size_t n, unsigned bits, double *planes);

/* By size of a record, n of them which all divide `widest`, <= 4096: the bits of `runs` runs of `length` bytes, told
 * their place in a record. Run r begins at starts[r]. */
int brv_place_bits(const uint8_t *bytes, size_t runs, size_t length, const uint64_t *starts, size_t widest,
                   const uint32_t *sizes, size_t n, double *bits);

/* ---- costs --------------------------------------------------------------------------------- */

/* Order-0 entropy of all the words counted, each of `rows` histograms of n symbols of its own, in bits. */
double brv_entropy_bits(const uint64_t *hists, size_t rows, size_t n);
/* Bits of all the words counted, each of `rows` histograms of n symbols under its best prefix code of at most
 * max_len bits; infinite if a row has more symbols than codes. */
int brv_huffman_bits(const uint64_t *hists, size_t rows, size_t n, unsigned max_len, double *bits);
size_t brv_huffman_table_bytes(const uint64_t *hists, size_t rows, size_t n);
/* With probabilities rounded to prob_bits bits, none to 0; infinite if there are more symbols. */
double brv_rans_bits(const uint64_t *hist, size_t n, unsigned prob_bits);
size_t brv_rans_table_bytes(const uint64_t *hist, size_t n, unsigned prob_bits);
/* Were the words independent, in codewords of `bits` <= 12 bits for strings of up to 7 words; n <= 256. */
int brv_tunstall_bits(const uint64_t *hist, size_t n, unsigned bits, double *total);

/* The literal or Const that ranks best for `count` words on blocks of `block`, of which hist[2^width] counts some. */
int brv_complete(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *tolls,
                 brv_choice *out);
/* One way of coding them: BRV_SPARSE, BRV_HUFFMAN, BRV_RANS or BRV_TUNSTALL; the former two but one with `tables`
 * histograms if segments of `segment` words each have one of them. */
int brv_coded(int way, const uint64_t *hists, uint32_t tables, unsigned width, uint64_t segment, uint64_t count,
              uint64_t block, const brv_tolls *tolls, brv_choice *out);
/* A rank (bytes) that no completion goes below. */
int brv_floor(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *tolls,
              double *rank);

/* ---- cuts ---------------------------------------------------------------------------------- */

/* The fields of the best Merge for a stream of `count` words on blocks of `block`, n of which are given, from the
 * most significant one down: fields[bits]; *n_fields gets their number. */
int brv_split(const void *words, size_t n, unsigned bits, uint64_t count, uint64_t block, const brv_tolls *tolls,
              brv_choice *fields, size_t *n_fields);

/* ---- classes of segments ------------------------------------------------------------------- */

/* What is ranked: words of the extent given, coded in the better of the ways BRV_HUFFMAN and BRV_RANS. */
typedef struct {
    uint32_t width;       /* bits a word, at most 8 */
    uint32_t most;        /* classes, at most BRV_MOST_CLASSES */
    uint32_t few;         /* classes up to which every number is ranked, above it the even ones */
    double many;          /* bytes that more than `few` must save */
    uint64_t segment, words, block; /* words: of the whole stream */
    double asked;         /* bytes that pairs must save */
} brv_coding;

/* The classes that rank best for n segments of `segment` bytes (words of up to 8 bits), at most 4096: *tables, the
 * rank in *rank, and each one's code lengths, lengths[most][64], in 1/256 bits. */
int brv_learn(const uint8_t *words, size_t n, const brv_coding *coding, const brv_tolls *tolls, uint32_t *tables,
              double *rank, int16_t *lengths);
/* The class of each segment, the last ragged, whose code lengths suit it best; hists[tables][2^width] are added to. */
int brv_assign(const uint8_t *words, size_t n, size_t segment, unsigned width, const int16_t *lengths,
               uint32_t tables, uint8_t *classes, uint64_t *hists);

/* Classes of segments and of the places in them, of which each pair has one of `tables` tables. */
typedef struct {
    uint32_t tables, rows, columns;
    double rank;
    int16_t lengths[BRV_MOST_SIDE][BRV_COARSE]; /* code lengths of each row class, as of brv_learn */
    uint8_t table[BRV_MOST_PAIRS];           /* of each pair: number row class * columns + column class */
} brv_pairs;

/* The pairs that rank best for segments as brv_learn takes them, of up to 4096 words, and, if these have more than one
 * row class, those that do without: *found of them. And the class of each place, the same for both. None are looked for
 * where classes of places alone save less than is asked: what pairs save beside classes of rows is rarely more. */
int brv_learn_pairs(const uint8_t *words, size_t n, const brv_coding *coding, const brv_tolls *tolls, brv_pairs out[2],
                    uint32_t *found, uint8_t *places);
/* hists[tables][2^width] are added to. classes: those of the segments, as of brv_assign. */
int brv_count_pairs(const uint8_t *words, size_t n, size_t segment, unsigned width, const uint8_t *classes,
                    const uint8_t *places, uint32_t rows, uint32_t columns, const uint8_t *table, uint64_t *hists);
/* What brv_coded gives for so many tables, put right for pairs of classes. */
void brv_in_pairs(brv_choice *choice, uint32_t tables, uint32_t rows, uint32_t columns, uint64_t segment, uint64_t count,
                  const brv_tolls *tolls);

#endif
