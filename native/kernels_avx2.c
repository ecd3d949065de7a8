/* The same kernels, compiled for AVX2 and BMI2; chosen at run time. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#include "internal.h"

#define KERNELS_NAME "avx2"
#define KERNELS_FUNCTION kernels_avx2
#include "kernels_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
#include "internal.h"
const brv_kernels *kernels_avx2(void) { return NULL; }
#endif
