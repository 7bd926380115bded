/* What the caller hands to the LoRA kernels; built by cpu_kernel.py. Shapes are in cpu_lora.c. */

#include <stdint.h>

enum { MOST_RANK = 512 };

struct layer {
    int64_t inputs, slices;
    const int64_t *width;            /* per slice */
    const void *const *a, *const *b; /* per place and slice, and so: */
    const int64_t *rank;
};

struct rows {
    const int64_t *row, *place, *rank;
    int64_t count;
};
