/* Matrix products of float32 rows with a layer's weights, both as 16 bit integers: y = x W + bias.

   A float is q * scale, one scale for each row's (or output's) values of a block of inputs. Two products of such a q
   and a sum take one instruction of AVX-512 VNNI for 16 outputs, so a core multiplies twice as fast as in float32. The
   caller chooses the largest q of both sides so that the sums of a block fit into 32 bits, whatever the values are:
   nothing wraps round, nothing saturates, and a row's result does not depend on the rows beside it.

   The caller checks shapes, strides and alignment (64 bytes): see kernels.py. */

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 16, PANEL = 2 * LANES, ROWS = 12, AHEAD = 24 };

/* The inputs are split into `blocks` of `block` (a multiple of 32), the outputs into panels of 32; zeros fill both up. */
struct matrix {
    int64_t inputs, outputs, block, blocks;
    const int16_t *weights; /* panels x blocks x block / 2 x PANEL x 2 */
    const float *scales;    /* panels x blocks x PANEL */
    const float *bias;      /* panels x PANEL */
    float most;             /* the largest q of a row */
};

enum { ADD = 1, GELU = 2 };

static inline __mmask16 first(int64_t count) {
    return count >= LANES ? 0xffff : count > 0 ? (1u << count) - 1 : 0;
}

/* x / 2 * (1 + erf(x / sqrt 2)); erf by formula 7.1.26 of Abramowitz and Stegun, which is off by 1.5e-7 at most. */
static inline __m512 gelu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1), size = _mm512_abs_ps(x);
    __m512 z = _mm512_mul_ps(size, _mm512_set1_ps(0.70710678f));
    __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 sum = _mm512_set1_ps(1.061405429f);
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(-1.453152027f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(1.421413741f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(-0.284496736f));
    sum = _mm512_mul_ps(_mm512_fmadd_ps(sum, t, _mm512_set1_ps(0.254829592f)), t);
    /* exp(-z z) = 2^whole * 2^part, the latter by its Taylor series */
    __m512 power = _mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-1.44269504f));
    power = _mm512_max_ps(power, _mm512_set1_ps(-126));
    __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT), part = _mm512_sub_ps(power, whole);
    __m512 e = _mm512_set1_ps(1.5403530e-4f);
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(1.3333558e-3f));
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(9.6181291e-3f));
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(5.5504109e-2f));
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(2.4022651e-1f));
    e = _mm512_fmadd_ps(e, part, _mm512_set1_ps(6.9314718e-1f));
    e = _mm512_scalef_ps(_mm512_fmadd_ps(e, part, one), whole);
    __m512 erf = _mm512_fnmadd_ps(sum, e, one);
    return _mm512_mul_ps(_mm512_set1_ps(0.5f), _mm512_fmadd_ps(size, erf, x));
}

/* One block of a row as integers. A block with an infinity or NaN gets the scale NaN, as float32's products would. */
static void quantise(const float *x, int64_t size, int64_t block, float most, int16_t *q, float *scale) {
    const __m512i sign = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_setzero_si512(); /* floats without a sign are in the order of their bits, NaN above all */
    for (int64_t i = 0; i < size; i += LANES)
        top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_maskz_loadu_epi32(first(size - i), x + i), sign));
    union { int32_t bits; float value; } high = {_mm512_reduce_max_epi32(top)};
    int finite = high.bits < 0x7f800000;
    float by = finite && high.value > 1e-30f ? most / high.value : 0;
    *scale = !finite ? __builtin_nanf("") : by > 0 ? high.value / most : 0;
    for (int64_t i = 0; i < block; i += LANES) {
        __m512 some = _mm512_mul_ps(_mm512_maskz_loadu_ps(first(size - i), x + i), _mm512_set1_ps(by));
        _mm256_store_si256((__m256i *)(q + i), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(some)));
    }
}

struct rows {
    const int16_t *q; /* blocks x chunk x stride */
    const float *scales; /* blocks x chunk */
    int64_t stride, plane, chunk;
};

/* `count` of `rows` rows times one panel. The integers are added by instructions written out: GCC 12 keeps sums made
   with its intrinsic in memory. */
static inline __attribute__((always_inline)) void tile(
    const int rows, const struct matrix *w, int64_t panel, struct rows a, int64_t count, float *y, int64_t stride, int how
) {
    __m512 sums[ROWS][2];
    for (int64_t b = 0; b < w->blocks; b++) {
        const int16_t *q = a.q + b * a.plane, *weights = w->weights + (panel * w->blocks + b) * w->block * PANEL;
        __m512i c[ROWS][2];
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) c[r][0] = c[r][1] = _mm512_setzero_si512();
        for (int64_t i = 0; i < w->block; i += 2, weights += 2 * PANEL) {
            __m512i left = _mm512_load_si512(weights), right = _mm512_load_si512(weights + PANEL);
            _mm_prefetch((const char *)(weights + AHEAD * PANEL), _MM_HINT_T0);
            _mm_prefetch((const char *)(weights + (AHEAD + 1) * PANEL), _MM_HINT_T0);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                __m512i pair = _mm512_set1_epi32(*(const int32_t *)(q + r * a.stride + i));
                __asm__("vpdpwssd %2, %1, %0" : "+v"(c[r][0]) : "v"(pair), "v"(left));
                __asm__("vpdpwssd %2, %1, %0" : "+v"(c[r][1]) : "v"(pair), "v"(right));
            }
        }
        const float *scales = w->scales + (panel * w->blocks + b) * PANEL;
        __m512 left = _mm512_load_ps(scales), right = _mm512_load_ps(scales + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            __m512 scale = _mm512_set1_ps(a.scales[b * a.chunk + r]);
            __m512 one = _mm512_mul_ps(_mm512_cvtepi32_ps(c[r][0]), scale);
            __m512 two = _mm512_mul_ps(_mm512_cvtepi32_ps(c[r][1]), scale);
            sums[r][0] = b ? _mm512_fmadd_ps(one, left, sums[r][0]) : _mm512_mul_ps(one, left);
            sums[r][1] = b ? _mm512_fmadd_ps(two, right, sums[r][1]) : _mm512_mul_ps(two, right);
        }
    }
    for (int half = 0; half < 2; half++) {
        int64_t column = panel * PANEL + half * LANES;
        __mmask16 some = first(w->outputs - column);
        __m512 bias = _mm512_load_ps(w->bias + column);
        for (int64_t r = 0; r < count; r++) {
            float *to = y + r * stride + column;
            __m512 sum = _mm512_add_ps(sums[r][half], bias);
            if (how & ADD) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, to));
            _mm512_mask_storeu_ps(to, some, how & GELU ? gelu(sum) : sum);
        }
    }
}

/* y (rows x outputs) = x (rows x inputs) W + bias, or y + that (ADD), and then GELU. x and y must not overlap.
   scratch: blocks x chunk x (block + 32) integers, scales: blocks x chunk; `chunk` is a multiple of ROWS. */
void multiply_int16(
    const struct matrix *w, int64_t rows, const float *x, int64_t x_stride, float *y, int64_t y_stride, int how,
    int16_t *scratch, float *scales, int64_t chunk, int threads
) {
    /* 64 bytes between rows: were they a power of two apart, they would fight for the same lines of the cache */
    int64_t stride = w->block + 32, plane = chunk * stride, panels = (w->outputs + PANEL - 1) / PANEL;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t from = 0; from < rows; from += chunk) {
        int64_t here = rows - from < chunk ? rows - from : chunk;
#pragma omp for
        for (int64_t r = 0; r < here; r++)
            for (int64_t b = 0; b < w->blocks; b++) {
                int64_t done = b * w->block, left = w->inputs - done;
                quantise(
                    x + (from + r) * x_stride + done, left < w->block ? left : w->block, w->block, w->most,
                    scratch + b * plane + r * stride, scales + b * chunk + r);
            }
#pragma omp for
        for (int64_t panel = 0; panel < panels; panel++)
            for (int64_t r = 0; r < here; r += ROWS) {
                struct rows a = {scratch + r * stride, scales + r, stride, plane, chunk};
                float *to = y + (from + r) * y_stride;
                int64_t count = here - r < ROWS ? here - r : ROWS;
                if (count > 8) tile(12, w, panel, a, count, to, y_stride, how);
                else if (count > 4) tile(8, w, panel, a, count, to, y_stride, how);
                else tile(4, w, panel, a, count, to, y_stride, how);
            }
    }
}
