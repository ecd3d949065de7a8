/* Kernels for any CPU. */
#include "internal.h"

#define KERNELS_NAME "scalar"
#define KERNELS_FUNCTION kernels_scalar
#include "kernels_body.h"
