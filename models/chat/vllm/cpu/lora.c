/* LoRA for a few rows of a batch, each with an adapter of its own: y[row, slice] += scale * B (A x[row]).

   One call does all slices of one layer. Sums are kept in 32 bits; the result is rounded once. Shapes, row-major:
   x (rows, n), y (rows, all widths); per place and slice A (rank, n) and B, the other way round than PyTorch has it,
   (rank, width). `row` and `place` name `count` pairs; of their adapters the first `rank[i]` ranks count. Rows of one adapter that follow each other are done four or two at a time, so that weights are read and
   widened once for all. The caller checks every bound: see kernel.py.

   Vectors are the compilers' own (GCC and Clang), as long as the processor's: longer ones are split, badly. */

#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum { MOST_RANK = 512 };

struct layer {
    int64_t inputs, slices;
    const int64_t *width;            /* per slice */
    const void *const *a, *const *b; /* per place and slice */
    int64_t rank;                    /* of all places */
};

struct rows {
    const int64_t *row, *place, *rank;
    int64_t count;
};

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

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

INLINE floats load_float(const float *from) {
    floats value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE void store_float(float *to, floats value) { memcpy(to, &value, sizeof value); }

INLINE floats load_bfloat16(const uint16_t *from) {
#if defined(__AVX512F__) /* GCC 12 makes six instructions of what is below */
    return (floats)((words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)) << 16);
#else
    halves bits;
    memcpy(&bits, from, sizeof bits);
    return (floats)(__builtin_convertvector(bits, words) << 16);
#endif
}

INLINE void store_bfloat16(uint16_t *to, floats value) {
    words bits = (words)value;
    words nan = (words)((bits & 0x7fffffffu) > 0x7f800000u);
    words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const words whole = (nan & ((bits >> 16) | 0x40u)) | (~nan & rounded);
#if defined(__AVX512F__)
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16((__m512i)whole));
#else
    halves result = __builtin_convertvector(whole, halves);
    memcpy(to, &result, sizeof result);
#endif
}

enum { FETCHED_AHEAD = 32 << 10 }; /* bytes: what a core's cache holds beside that which it computes with */

/* The weights that come next, if they are few: short pieces all over memory, which no processor foresees. Long ones it
   does. As many lines are asked for as are computed with meanwhile, so that memory and core never wait in turns. */
struct ahead {
    const char *at, *end, *then, *last;
};

INLINE struct ahead ahead_of(const void *a, int64_t size_a, const void *b, int64_t size_b) {
    const int64_t all = size_a + size_b <= FETCHED_AHEAD;
    return (struct ahead){a, (const char *)a + size_a * all, b, (const char *)b + size_b * all};
}

INLINE void fetch(struct ahead *ahead, const int64_t bytes) { /* at the end of all, its last lines again and again */
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead->at + i);
    ahead->at += bytes;
    if (ahead->at >= ahead->end) {
        ahead->at = ahead->then;
        ahead->end = ahead->last;
        ahead->then = ahead->last;
    }
}

#if defined(__clang__)
#define PICK(a, b, mask) __builtin_shufflevector(a, b, LIST_##mask)
#else
#define PICK(a, b, mask) __builtin_shuffle(a, b, (words){LIST_##mask})
#endif
#if defined(__AVX512F__)
#define LIST_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define LIST_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX__)
#define LIST_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define LIST_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define LIST_EVEN 0, 2, 4, 6
#define LIST_ODD 1, 3, 5, 7
#endif

/* The sums of `u` vectors' lanes, 1, 4 or 8 of them, neighbours first: in one order, however many there are. */
INLINE void sums_of(floats *value, const int u, float *sum) {
    int left = u;
    for (int lanes = LANES; lanes > 1; lanes /= 2) {
        for (int i = 0; i < left; i += 2) {
            const floats a = value[i], b = value[left > 1 ? i + 1 : i];
            value[i / 2] = PICK(a, b, EVEN) + PICK(a, b, ODD);
        }
        left = left > 1 ? left / 2 : 1;
    }
    float lane[8 * LANES];
    for (int i = 0; i < left; i++) store_float(lane + i * LANES, value[i]);
    for (int q = 0; q < u; q++) sum[q] = lane[q];
}

/* `m` rows at once and `u` ranks at once, both known to the compiler: all loops over them are unrolled. */
#define LORA(NAME, TYPE, READ, WRITE, LOAD, STORE, WEIGHT, READ_W, LOAD_W)                                     \
    INLINE void NAME##_shrink(const int m, const int u, float (*shrunk)[MOST_RANK], const TYPE *const *x,      \
                              int64_t n, const WEIGHT *a, int64_t r, float scale, struct ahead *ahead) {       \
        floats sum[4][8];                                                                                      \
        for (int j = 0; j < m; j++)                                                                            \
            for (int q = 0; q < u; q++) sum[j][q] = (floats){0};                                               \
        int64_t k = 0;                                                                                         \
        for (; k + LANES <= n; k += LANES) {                                                                   \
            floats x_k[4];                                                                                     \
            fetch(ahead, u * LANES * (int64_t)sizeof(WEIGHT));                                                 \
            for (int j = 0; j < m; j++) x_k[j] = LOAD(x[j] + k);                                               \
            for (int q = 0; q < u; q++) {                                                                      \
                const floats a_q = LOAD_W(a + (r + q) * n + k);                                                \
                for (int j = 0; j < m; j++) sum[j][q] += x_k[j] * a_q;                                         \
            }                                                                                                  \
        }                                                                                                      \
        for (int j = 0; j < m; j++) {                                                                          \
            float all[8];                                                                                      \
            sums_of(sum[j], u, all);                                                                           \
            for (int q = 0; q < u; q++) {                                                                      \
                for (int64_t i = k; i < n; i++) all[q] += READ(x[j][i]) * READ_W(a[(r + q) * n + i]);          \
                shrunk[j][r + q] = all[q] * scale;                                                             \
            }                                                                                                  \
        }                                                                                                      \
    }                                                                                                          \
                                                                                                               \
    INLINE void NAME##_expand(const int m, const int u, TYPE *const *y, float (*shrunk)[MOST_RANK],            \
                              const WEIGHT *b, int64_t width, int64_t rank, int64_t o, struct ahead *ahead) {  \
        floats sum[4][8];                                                                                      \
        for (int j = 0; j < m; j++)                                                                            \
            for (int q = 0; q < u; q++) sum[j][q] = LOAD(y[j] + o + q * LANES);                                \
        for (int64_t r = 0; r < rank; r++) {                                                                   \
            fetch(ahead, u * LANES * (int64_t)sizeof(WEIGHT));                                                 \
            for (int q = 0; q < u; q++) {                                                                      \
                const floats b_q = LOAD_W(b + r * width + o + q * LANES);                                      \
                for (int j = 0; j < m; j++) sum[j][q] += b_q * shrunk[j][r];                                   \
            }                                                                                                  \
        }                                                                                                      \
        for (int j = 0; j < m; j++)                                                                            \
            for (int q = 0; q < u; q++) STORE(y[j] + o + q * LANES, sum[j][q]);                                \
    }                                                                                                          \
                                                                                                               \
    INLINE void NAME##_rows(const int m, TYPE *const *y, const TYPE *const *x, int64_t n, const WEIGHT *a,     \
                            const WEIGHT *b, int64_t width, int64_t rank, float scale, struct ahead ahead) {   \
        float shrunk[4][MOST_RANK];                                                                            \
        const int u = m == 1 ? 8 : 4;                                                                          \
        int64_t r = 0, o = 0;                                                                                  \
        for (; r + u <= rank; r += u) NAME##_shrink(m, u, shrunk, x, n, a, r, scale, &ahead);                  \
        for (; r < rank; r++) NAME##_shrink(m, 1, shrunk, x, n, a, r, scale, &ahead);                          \
        for (; o + u * LANES <= width; o += u * LANES) NAME##_expand(m, u, y, shrunk, b, width, rank, o, &ahead); \
        for (; o + LANES <= width; o += LANES) NAME##_expand(m, 1, y, shrunk, b, width, rank, o, &ahead);      \
        for (; o < width; o++)                                                                                 \
            for (int j = 0; j < m; j++) {                                                                      \
                float sum = READ(y[j][o]);                                                                     \
                for (r = 0; r < rank; r++) sum += shrunk[j][r] * READ_W(b[r * width + o]);                     \
                y[j][o] = WRITE(sum);                                                                          \
            }                                                                                                  \
    }                                                                                                          \
                                                                                                               \
    void NAME(const struct layer *layer, const struct rows *rows, TYPE *y, int64_t y_stride, const TYPE *x,    \
              int64_t x_stride, float scale) {                                                                 \
        const int64_t n = layer->inputs, count = rows->count, *const place = rows->place;                      \
        for (int64_t i = 0, m; i < count; i += m) {                                                            \
            for (m = 1; m < 4 && i + m < count && place[i + m] == place[i]; m++) {}                            \
            m -= m == 3;                                                                                       \
            TYPE *y_i[4];                                                                                      \
            const TYPE *x_i[4];                                                                                \
            for (int64_t j = 0; j < m; j++) {                                                                  \
                y_i[j] = y + rows->row[i + j] * y_stride;                                                      \
                x_i[j] = x + rows->row[i + j] * x_stride;                                                      \
            }                                                                                                  \
            for (int64_t s = 0; s < layer->slices; s++) {                                                      \
                const int64_t width = layer->width[s], at = place[i] * layer->slices + s;                      \
                const int64_t rank = rows->rank[i] < layer->rank ? rows->rank[i] : layer->rank;                \
                const WEIGHT *a = layer->a[at], *b = layer->b[at];                                             \
                const int64_t next_s = s + 1 < layer->slices ? s + 1 : 0;                                      \
                const int64_t next_i = next_s ? i : i + m;                                                     \
                struct ahead ahead = ahead_of(a, 0, a, 0);                                                     \
                if (next_i < count) {                                                                          \
                    const int64_t next = place[next_i] * layer->slices + next_s;                               \
                    const int64_t has = layer->rank, wanted = rows->rank[next_i];                              \
                    const int64_t size = (has < wanted ? has : wanted) * (int64_t)sizeof(WEIGHT);              \
                    ahead = ahead_of(layer->a[next], size * n, layer->b[next], size * layer->width[next_s]);   \
                }                                                                                              \
                if (m == 4)                                                                                    \
                    NAME##_rows(4, y_i, x_i, n, a, b, width, rank, scale, ahead);                              \
                else if (m == 2)                                                                               \
                    NAME##_rows(2, y_i, x_i, n, a, b, width, rank, scale, ahead);                              \
                else                                                                                           \
                    NAME##_rows(1, y_i, x_i, n, a, b, width, rank, scale, ahead);                              \
                for (int64_t j = 0; j < m; j++) y_i[j] += width;                                               \
            }                                                                                                  \
        }                                                                                                      \
    }

LORA(lora_float32_float32, float, same, same, load_float, store_float, float, same, load_float)
LORA(lora_float32_bfloat16, float, same, same, load_float, store_float, uint16_t, widen, load_bfloat16)
LORA(lora_bfloat16_bfloat16, uint16_t, widen, narrow, load_bfloat16, store_bfloat16, uint16_t, widen, load_bfloat16)
