/* Planning on any words: answers that can be so. */
#include "../tests/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ask_plan(data, size);
    return 0;
}
