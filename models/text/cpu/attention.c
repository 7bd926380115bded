/* Attention of the inputs of a step whose tokens are rows of one matrix: each token to all of its own input, in float32.

   PyTorch's own for a CPU computes heads of 32 values at a sixth of what a core multiplies. Here twelve queries at a time
   meet all keys of a head, so that everything stays in the core's cache; the head's keys and values are copied there first.

   The caller checks shapes and strides: see kernels.py. */

#include <immintrin.h>
#include <stdint.h>

/* The most tokens of an input and values of a head. Rows of scratch are no power of two apart. */
enum { LANES = 16, PAIR = 2 * LANES, QUERIES = 12, TOKENS = 512, SIZE = 128, WIDE = TOKENS + PAIR };

static _Thread_local struct {
    float keys[SIZE][WIDE], values[TOKENS * SIZE], scores[QUERIES][WIDE], queries[QUERIES][SIZE];
} own __attribute__((aligned(64)));

static inline __mmask16 first(int64_t count) {
    return count >= LANES ? 0xffff : count > 0 ? (1u << count) - 1 : 0;
}

/* 2^x for x <= 0: 2^whole * 2^part, the latter by its Taylor series. NaN stays NaN. */
static inline __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-126), x);
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), part = _mm512_sub_ps(x, whole);
    __m512 e = _mm512_set1_ps(1.5403530e-4f);
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(1.3333558e-3f));
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(9.6181291e-3f));
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(5.5504109e-2f));
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(2.4022651e-1f));
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(6.9314718e-1f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(e, part, _mm512_set1_ps(1)), whole);
}

/* keys: size x tokens, zeros up to the next 32 tokens. */
static void turn_keys(const float *k, int64_t stride, int64_t tokens, int64_t size) {
    const __m512i row = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i at = _mm512_mullo_epi32(row, _mm512_set1_epi32(stride));
    for (int64_t j = 0; j < tokens; j += PAIR)
        for (int64_t d = 0; d < size; d++)
            for (int64_t half = j; half < j + PAIR; half += LANES)
                _mm512_storeu_ps(own.keys[d] + half, _mm512_mask_i32gather_ps(
                    _mm512_setzero_ps(), first(tokens - half), at, k + half * stride + d, 4));
}

/* values: tokens x size, side by side. Where they lie, rows are kilobytes apart and fight for the same lines of the cache. */
static void gather_values(const float *v, int64_t stride, int64_t tokens, int64_t size) {
    for (int64_t j = 0; j < tokens; j++)
        for (int64_t d = 0; d < size; d += LANES)
            _mm512_storeu_ps(own.values + j * size + d, _mm512_loadu_ps(v + j * stride + d));
}

/* scores (rows x tokens) = queries keys */
static inline __attribute__((always_inline)) void score(const int rows, int64_t tokens, int64_t size) {
    for (int64_t j = 0; j < tokens; j += PAIR) {
        __m512 c[QUERIES][2];
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
        for (int64_t d = 0; d < size; d++) {
            __m512 left = _mm512_loadu_ps(own.keys[d] + j), right = _mm512_loadu_ps(own.keys[d] + j + LANES);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                __m512 q = _mm512_set1_ps(own.queries[r][d]);
                c[r][0] = _mm512_fmadd_ps(q, left, c[r][0]);
                c[r][1] = _mm512_fmadd_ps(q, right, c[r][1]);
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            _mm512_storeu_ps(own.scores[r] + j, c[r][0]);
            _mm512_storeu_ps(own.scores[r] + j + LANES, c[r][1]);
        }
    }
}

/* A row of scores becomes weights; one over their sum. */
static float soften(float *row, int64_t tokens) {
    __m512 top = _mm512_set1_ps(-__builtin_inff()), sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < tokens; j += LANES)
        top = _mm512_mask_max_ps(top, first(tokens - j), top, _mm512_loadu_ps(row + j));
    top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
    for (int64_t j = 0; j < tokens; j += LANES) {
        __m512 weight = power_of_two(_mm512_sub_ps(_mm512_loadu_ps(row + j), top));
        sum = _mm512_mask_add_ps(sum, first(tokens - j), sum, weight);
        _mm512_storeu_ps(row + j, weight);
    }
    return 1 / _mm512_reduce_add_ps(sum);
}

/* `count` of `rows` rows of out = weights values / sums, 32 values of the head at a time */
static inline __attribute__((always_inline)) void mix(
    const int rows, int64_t count, int64_t tokens, int64_t size, const float *by, float *out, int64_t out_stride
) {
    for (int64_t d = 0; d < size; d += PAIR) {
        __m512 c[QUERIES][2];
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
        const float *v = own.values + d;
        for (int64_t j = 0; j < tokens; j++, v += size) {
            __m512 left = _mm512_loadu_ps(v), right = _mm512_loadu_ps(v + LANES);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                __m512 weight = _mm512_set1_ps(own.scores[r][j]);
                c[r][0] = _mm512_fmadd_ps(weight, left, c[r][0]);
                c[r][1] = _mm512_fmadd_ps(weight, right, c[r][1]);
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            if (r >= count) continue;
            _mm512_storeu_ps(out + r * out_stride + d, _mm512_mul_ps(c[r][0], _mm512_set1_ps(by[r])));
            _mm512_storeu_ps(out + r * out_stride + d + LANES, _mm512_mul_ps(c[r][1], _mm512_set1_ps(by[r])));
        }
    }
}

/* Rows [starts[i], starts[i + 1]) of k and v are the tokens of input i; q and out have the same rows, or with `single`
   one row for each input. Heads lie side by side in a row. `scale` is by what scores are multiplied before 2^ is taken. */
void attend(
    const float *q, int64_t q_stride, const float *k, const float *v, int64_t stride, float *out, int64_t out_stride,
    const int64_t *starts, int64_t inputs, int single, int64_t heads, int64_t size, float scale, int threads
) {
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < inputs; i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t from = starts[i], tokens = starts[i + 1] - from, queries = single ? 1 : tokens;
            turn_keys(k + from * stride + h * size, stride, tokens, size);
            gather_values(v + from * stride + h * size, stride, tokens, size);
            for (int64_t r = 0; r < queries; r += QUERIES) {
                int64_t row = (single ? i : from) + r, count = queries - r < QUERIES ? queries - r : QUERIES;
                int rows = count > 8 ? 12 : count > 4 ? 8 : 4;
                for (int64_t n = 0; n < rows; n++)
                    for (int64_t d = 0; d < size; d++)
                        own.queries[n][d] = n < count ? q[(row + n) * q_stride + h * size + d] * scale : 0;
                if (rows == 12) score(12, tokens, size);
                else if (rows == 8) score(8, tokens, size);
                else score(4, tokens, size);
                float by[QUERIES];
                for (int64_t n = 0; n < count; n++) by[n] = soften(own.scores[n], tokens);
                float *to = out + row * out_stride + h * size;
                if (rows == 12) mix(12, count, tokens, size, by, to, out_stride);
                else if (rows == 8) mix(8, count, tokens, size, by, to, out_stride);
                else mix(4, count, tokens, size, by, to, out_stride);
            }
        }
}
