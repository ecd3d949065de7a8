/* What the planning files share. */
#ifndef BREVIS_PLAN_INTERNAL_H
#define BREVIS_PLAN_INTERNAL_H

#include <math.h>

#include "internal.h"
#include "plan.h"

static inline bool is_container(unsigned c) { return c == 1 || c == 2 || c == 4 || c == 8; }

/* log2 by atanh's series, within 1e-11: a library's own differs from machine to machine in its last bits, and a
 * plan must not. */
static inline double log2_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    /* mantissa to [sqrt(1/2), sqrt(2)) */
    const int64_t shifted = (int64_t)(bits - 0x3fe6a09e00000000u);
    const int64_t exponent = shifted >> 52;
    bits -= (uint64_t)exponent << 52;
    double m;
    memcpy(&m, &bits, 8);
    const double s = (m - 1) / (m + 1), q = s * s;
    const double series = 1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * (1.0 / 11 + q / 13)))));
    return (double)exponent + 2.8853900817779268 * s * series;
}

/* n log2(n), 0 for 0 */
static inline double n_log2(uint64_t n) { return n ? (double)n * log2_of((double)n) : 0.0; }

static inline double rank_of(const brv_choice *c) { return c->size + c->toll; }

/* plan_count.c: see brv_count, whose arguments are checked; narrow is up to 8 bits, wide counts in two parts of hist */
void count_narrow(const void *words, size_t n, unsigned container, unsigned low, unsigned width, uint64_t *hist);
void count_wide(const void *words, size_t n, unsigned container, unsigned low, unsigned width, uint32_t *hist);

/* plan_cost.c: see brv_complete and brv_floor, whose arguments are checked */
void complete(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *t, brv_choice *out);
double floor_of(const uint64_t *hist, unsigned width, uint64_t count, uint64_t block, const brv_tolls *t);
void coded(int way, const uint64_t *hists, uint32_t tables, unsigned width, uint64_t segment, uint64_t count,
           uint64_t block, const brv_tolls *t, brv_choice *out);

/* What coding the words of one or more histograms, each with its own table, takes; table in half bytes. */
typedef struct {
    double words, bits;
    size_t table;
    size_t symbols; /* of the table that has most */
} coded_row;

/* Of one histogram, in a way that several tables are for. */
coded_row row_of(int way, const uint64_t *hist, size_t n);
void add_row(coded_row *sum, const coded_row *row);
/* As coded, of the sum of `tables` rows. */
void coded_in_rows(int way, const coded_row *all, uint32_t tables, unsigned width, uint64_t segment, uint64_t count,
                   uint64_t block, const brv_tolls *t, brv_choice *out);

#endif
