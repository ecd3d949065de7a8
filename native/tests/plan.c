/* Planning on random inputs, and on those of the files given: plan CASES [FILE...]. Prints the digest of all answers:
 * it is the same for every machine, or archives would not be. */
#include "plan.h"

enum { MOST_WORDS = 40000 };

static uint64_t rng = 0x9e3779b97f4a7c15u;

/* Words of one of several kinds: noise, bell curves, few values, a ramp, still runs, records. */
static size_t random_input(uint8_t *data)
{
    const unsigned kind = (unsigned)below(&rng, 6), container = container_of(data[1] % 64 + 1);
    const size_t n = 1 + (size_t)below(&rng, (uint64_t)1 << (1 + below(&rng, 15)));
    const uint64_t start = next_random(&rng);
    const unsigned shift = (unsigned)below(&rng, 64); /* first: operands have no order */
    const uint64_t step = next_random(&rng) >> shift;
    uint64_t word = start;
    for (size_t i = 0; i < n; i++) {
        uint64_t sum = 0;
        switch (kind) {
        case 0: word = next_random(&rng); break;
        case 1:
            for (unsigned j = 0; j < 8; j++) sum += next_random(&rng) >> 4;
            word = sum;
            break;
        case 2: word = start + step * below(&rng, 4); break;
        case 3: word += step; break;
        case 4: word = below(&rng, 100) ? word : next_random(&rng); break;
        default: word = i % 20 < 2 ? next_random(&rng) : step + i % 20;
        }
        memcpy(data + PLAN_HEAD + i * container, &word, container);
    }
    return PLAN_HEAD + n * container;
}

static uint64_t ask_file(const char *path, uint8_t *data)
{
    FILE *f = fopen(path, "rb");
    CHECK(f, "%s cannot be read", path);
    const size_t n = fread(data, 1, PLAN_HEAD + 8 * MOST_WORDS, f);
    fclose(f);
    return ask_plan(data, n);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2, "usage: plan CASES [FILE...]");
    const long cases = strtol(argv[1], NULL, 10);
    uint8_t *data = allocated(PLAN_HEAD + 8 * MOST_WORDS);
    uint64_t digest = 0;
    CHECK(cases > 0, "%s cases", argv[1]);
    for (long i = 0; i < cases; i++) {
        for (unsigned j = 0; j < PLAN_HEAD; j++) data[j] = (uint8_t)next_random(&rng);
        digest = digest * 0x9e3779b97f4a7c15u ^ ask_plan(data, random_input(data));
    }
    for (int i = 2; i < argc; i++) digest = digest * 0x9e3779b97f4a7c15u ^ ask_file(argv[i], data);
    printf("plan: %ld cases, digest %016llx\n", cases, (unsigned long long)digest);
    free(data);
    return 0;
}
