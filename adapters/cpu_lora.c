/* LoRA for a few rows of a batch, each with an adapter of its own: y[row, slice] += scale * B (A x[row]).

   One call does all slices of one layer. Sums are kept in 32 bits; the result is rounded once. Shapes, row-major:
   x (rows, n), y (rows, all widths), A of a slice (places, max_rank, n), B of a slice, the other way round than PyTorch
   has it, (places, max_rank, width). `row` and `place` name `count` pairs; `rank[i]` is how many rows of A the adapter
   of pair i fills (<= max_rank). Rows of one adapter that follow each other are done four at a time, so that weights
   are read and widened once for all four. The caller checks every bound: see cpu_kernel.py. */

#include <stdint.h>
#include <string.h>

enum { MOST_RANK = 512, ROWS = 4, CHUNK = 256 };

#define INLINE static inline __attribute__((always_inline))

INLINE float widen(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

INLINE uint16_t narrow(float value) { /* to the nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

INLINE float same(float value) { return value; }

/* `m` rows at once, known to the compiler: the loops over rows and over four ranks are unrolled. */
#define LORA(NAME, TYPE, READ, WRITE, WEIGHT, READ_W)                                                          \
    INLINE void NAME##_rows(const int m, TYPE *const *y, const TYPE *const *x, int64_t n, const WEIGHT *a,     \
                            const WEIGHT *b, int64_t width, int64_t rank, float scale) {                       \
        float shrunk[ROWS][MOST_RANK];                                                                         \
        int64_t r = 0;                                                                                         \
        for (; r + 4 <= rank; r += 4) {                                                                        \
            float sum[ROWS][4] = {{0.0f}};                                                                     \
            const WEIGHT *a_r = a + r * n;                                                                     \
            for (int64_t k = 0; k < n; k++)                                                                    \
                for (int j = 0; j < m; j++)                                                                    \
                    for (int q = 0; q < 4; q++) sum[j][q] += READ(x[j][k]) * READ_W(a_r[q * n + k]);           \
            for (int j = 0; j < m; j++)                                                                        \
                for (int q = 0; q < 4; q++) shrunk[j][r + q] = sum[j][q] * scale;                              \
        }                                                                                                      \
        for (; r < rank; r++)                                                                                  \
            for (int j = 0; j < m; j++) {                                                                      \
                float sum = 0.0f;                                                                              \
                for (int64_t k = 0; k < n; k++) sum += READ(x[j][k]) * READ_W(a[r * n + k]);                   \
                shrunk[j][r] = sum * scale;                                                                    \
            }                                                                                                  \
        for (int64_t first = 0; first < width; first += CHUNK) {                                               \
            const int64_t length = width - first < CHUNK ? width - first : CHUNK;                              \
            float sum[ROWS][CHUNK];                                                                            \
            for (int j = 0; j < m; j++)                                                                        \
                for (int64_t o = 0; o < length; o++) sum[j][o] = READ(y[j][first + o]);                        \
            for (r = 0; r + 4 <= rank; r += 4) {                                                               \
                const WEIGHT *b_r = b + r * width + first;                                                     \
                for (int64_t o = 0; o < length; o++)                                                           \
                    for (int j = 0; j < m; j++)                                                                \
                        sum[j][o] += shrunk[j][r] * READ_W(b_r[o]) + shrunk[j][r + 1] * READ_W(b_r[width + o]) + \
                                     shrunk[j][r + 2] * READ_W(b_r[2 * width + o]) +                           \
                                     shrunk[j][r + 3] * READ_W(b_r[3 * width + o]);                            \
            }                                                                                                  \
            for (; r < rank; r++)                                                                              \
                for (int64_t o = 0; o < length; o++)                                                           \
                    for (int j = 0; j < m; j++) sum[j][o] += shrunk[j][r] * READ_W(b[r * width + first + o]);  \
            for (int j = 0; j < m; j++)                                                                        \
                for (int64_t o = 0; o < length; o++) y[j][first + o] = WRITE(sum[j][o]);                       \
        }                                                                                                      \
    }                                                                                                          \
                                                                                                               \
    void NAME(TYPE *y, int64_t y_stride, const TYPE *x, int64_t x_stride, int64_t n, const int64_t *row,       \
              const int64_t *place, const int64_t *rank, int64_t count, int64_t slices, const WEIGHT *const *a, \
              const WEIGHT *const *b, const int64_t *width, int64_t max_rank, float scale) {                   \
        for (int64_t i = 0; i < count;) {                                                                      \
            int64_t m = 1;                                                                                     \
            while (m < ROWS && i + m < count && place[i + m] == place[i]) m++;                                 \
            if (m < ROWS) m = 1;                                                                               \
            TYPE *y_i[ROWS];                                                                                   \
            const TYPE *x_i[ROWS];                                                                             \
            for (int64_t j = 0; j < m; j++) {                                                                  \
                y_i[j] = y + row[i + j] * y_stride;                                                            \
                x_i[j] = x + row[i + j] * x_stride;                                                            \
            }                                                                                                  \
            for (int64_t s = 0; s < slices; s++) {                                                             \
                const WEIGHT *a_s = a[s] + place[i] * max_rank * n, *b_s = b[s] + place[i] * max_rank * width[s]; \
                if (m == ROWS)                                                                                 \
                    NAME##_rows(ROWS, y_i, x_i, n, a_s, b_s, width[s], rank[i], scale);                        \
                else                                                                                           \
                    NAME##_rows(1, y_i, x_i, n, a_s, b_s, width[s], rank[i], scale);                           \
                for (int64_t j = 0; j < m; j++) y_i[j] += width[s];                                            \
            }                                                                                                  \
            i += m;                                                                                            \
        }                                                                                                      \
    }

LORA(lora_float32_float32, float, same, same, float, same)
LORA(lora_float32_bfloat16, float, same, same, uint16_t, widen)
LORA(lora_bfloat16_bfloat16, uint16_t, widen, narrow, uint16_t, widen)
