/* LoRA for many rows of one adapter, in the matrix tiles that some processors have (Intel AMX): sixteen rows of weights
   by sixteen rows of the batch in one instruction. Layouts as in cpu_lora.c; bfloat16 only, sums in 32 bits. A x is
   rounded to bfloat16 before it meets B, as PyTorch's products round it, and denormal values count as zero.

   A tile's instruction wants one of its halves in pairs that follow each other. Weights are many and rows are few, so A
   is read as it lies and x is packed; B, which lies the other way round, is packed a tile at a time in the cache. */

#include "cpu_lora.h"

#include <string.h>
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIDE = 16, DEPTH = 32, PAIR = 2 * SIDE, ROWS = 64, BLOCK = 1024 };

struct configuration { /* as LDTILECFG reads it */
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

int tiles_allowed(void) { /* Linux gives a process tiles when it asks for them */
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

static void turn(__m512i *line) { /* 16 x 16 words: four rounds of interleaving the upper lines with the lower ones */
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    for (int round = 0; round < 4; round++) {
        __m512i next[SIDE];
        for (int j = 0; j < SIDE / 2; j++) {
            next[2 * j] = _mm512_permutex2var_epi32(line[j], low, line[j + SIDE / 2]);
            next[2 * j + 1] = _mm512_permutex2var_epi32(line[j], high, line[j + SIDE / 2]);
        }
        memcpy(line, next, sizeof next);
    }
}

/* What x holds from input `from` on, as packed[input / 2][row] of two inputs each; rows from `m` on are zeros. */
static void pack_rows(uint32_t (*packed)[ROWS], const uint16_t *const *x, int64_t m, int64_t from, int64_t inputs) {
    __m512i line[SIDE];
    for (int64_t first = 0; first < m; first += SIDE)
        for (int64_t k = 0; k < inputs; k += DEPTH) {
            for (int64_t j = 0; j < SIDE; j++)
                line[j] = first + j < m ? _mm512_loadu_si512(x[first + j] + from + k) : _mm512_setzero_si512();
            turn(line);
            for (int64_t j = 0; j < SIDE; j++) _mm512_storeu_si512(packed[k / 2 + j] + first, line[j]);
        }
}

/* shrunk[row][rank] = scale * sums[rank][row], rounded; ranks from `rank` on are zeros. */
static void pack_sums(uint16_t (*shrunk)[MOST_RANK], float (*sums)[ROWS], int64_t m, int64_t rank, float scale) {
    __m512i line[SIDE];
    for (int64_t first = 0; first < m; first += SIDE)
        for (int64_t r = 0; r < rank || r % DEPTH; r += SIDE) {
            for (int64_t j = 0; j < SIDE; j++)
                line[j] = r + j < rank ? _mm512_loadu_si512(sums[r + j] + first) : _mm512_setzero_si512();
            turn(line);
            for (int64_t j = 0; j < SIDE; j++) {
                const __m512 scaled = _mm512_mul_ps((__m512)line[j], _mm512_set1_ps(scale));
                _mm256_storeu_si256((void *)(shrunk[first + j] + r), (__m256i)_mm512_cvtneps_pbh(scaled));
            }
        }
}

static void configure(int64_t high) { /* all tiles of 64 bytes a row; 0 to 2, for weights and their sums, `high` rows */
    struct configuration mine = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        mine.bytes[i] = 4 * SIDE;
        mine.rows[i] = i < 3 ? (uint8_t)high : SIDE;
    }
    _tile_loadconfig(&mine);
}

struct ahead { /* memory that is needed soon: as many lines are asked for in each step as keep pace with it */
    const char *at, *end;
    int64_t lines;
};

static struct ahead ahead_of(const void *from, int64_t values, int64_t steps) {
    const int64_t bytes = values * (int64_t)sizeof(uint16_t);
    return (struct ahead){from, (const char *)from + bytes, (bytes / 64 + steps - 1) / steps};
}

static inline void fetch(struct ahead *ahead) {
    for (int64_t i = 0; i < ahead->lines && ahead->at < ahead->end; i++, ahead->at += 64)
        _mm_prefetch(ahead->at, _MM_HINT_T1);
}

/* sums[rank][row] = A x, sixteen ranks in each step and fewer in the last one. */
static void shrink(float (*sums)[ROWS], const uint16_t *const *x, int64_t m, int64_t n, const uint16_t *a,
                   int64_t rank, struct ahead ahead) {
    uint32_t packed[BLOCK / 2][ROWS];
    for (int64_t from = 0; from < n; from += BLOCK) {
        const int64_t inputs = n - from < BLOCK ? n - from : BLOCK;
        pack_rows(packed, x, m, from, inputs);
        configure(SIDE);
        for (int64_t r = 0; r < rank; r += SIDE) {
            if (rank - r < SIDE) configure(rank - r);
            for (int64_t j = 0; j < m; j += PAIR) {
                if (from) {
                    _tile_loadd(0, sums[r] + j, sizeof *sums);
                    _tile_loadd(1, sums[r] + j + SIDE, sizeof *sums);
                } else {
                    _tile_zero(0);
                    _tile_zero(1);
                }
                for (int64_t k = 0; k < inputs; k += DEPTH) {
                    if (!j) fetch(&ahead);
                    _tile_loadd(2, a + r * n + from + k, n * sizeof *a);
                    _tile_loadd(3, packed[k / 2] + j, sizeof *packed);
                    _tile_dpbf16ps(0, 2, 3);
                    if (m - j <= SIDE) continue;
                    _tile_loadd(4, packed[k / 2] + j + SIDE, sizeof *packed);
                    _tile_dpbf16ps(1, 2, 4);
                }
                _tile_stored(0, sums[r] + j, sizeof *sums);
                _tile_stored(1, sums[r] + j + SIDE, sizeof *sums);
            }
        }
    }
}

/* pairs[half][rank / 2] = the next two ranks' weights of 16 outputs each; those beyond `rank` are zeros. */
static void pack_weights(uint16_t (*pairs)[SIDE][DEPTH], const uint16_t *b, int64_t width, int64_t rank) {
    const __m512i step = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                          37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i upper = _mm512_add_epi16(step, _mm512_set1_epi16(SIDE));
    for (int64_t p = 0; p < SIDE; p++, b += 2 * width) {
        if (2 * p >= rank) {
            memset(pairs[0][p], 0, sizeof pairs[0][p]);
            memset(pairs[1][p], 0, sizeof pairs[1][p]);
            continue;
        }
        const __m512i first = _mm512_loadu_si512(b);
        const __m512i second = 2 * p + 1 < rank ? _mm512_loadu_si512(b + width) : _mm512_setzero_si512();
        _mm512_storeu_si512(pairs[0][p], _mm512_permutex2var_epi16(first, step, second));
        _mm512_storeu_si512(pairs[1][p], _mm512_permutex2var_epi16(first, upper, second));
    }
}

static void add(uint16_t *to, const float *sums) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)to));
    const __m512 sum = _mm512_add_ps((__m512)_mm512_slli_epi32(wide, 16), _mm512_loadu_ps(sums));
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh(sum));
}

/* y += B shrunk */
static void expand(uint16_t *const *y, int64_t m, uint16_t (*shrunk)[MOST_RANK], const uint16_t *b, int64_t width,
                   int64_t rank, struct ahead ahead) {
    uint16_t pairs[MOST_RANK / DEPTH][2][SIDE][DEPTH];
    float sums[PAIR][DEPTH];
    configure(SIDE);
    for (int64_t o = 0; o < width; o += DEPTH) {
        for (int64_t r = 0; r < rank; r += DEPTH) {
            fetch(&ahead);
            pack_weights(pairs[r / DEPTH], b + r * width + o, width, rank - r);
        }
        for (int64_t j = 0; j < m; j += PAIR) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t r = 0; r < rank; r += DEPTH) {
                _tile_loadd(6, pairs[r / DEPTH][0], sizeof ***pairs);
                _tile_loadd(7, pairs[r / DEPTH][1], sizeof ***pairs);
                _tile_loadd(4, shrunk[j] + r, sizeof *shrunk);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                if (m - j <= SIDE) continue;
                _tile_loadd(5, shrunk[j + SIDE] + r, sizeof *shrunk);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, sums[0], sizeof *sums);
            _tile_stored(1, sums[0] + SIDE, sizeof *sums);
            _tile_stored(2, sums[SIDE], sizeof *sums);
            _tile_stored(3, sums[SIDE] + SIDE, sizeof *sums);
            for (int64_t i = 0; i < PAIR && j + i < m; i++) {
                add(y[j + i] + o, sums[i]);
                add(y[j + i] + o + SIDE, sums[i] + SIDE);
            }
        }
    }
}

/* y[row, slice] += scale * B (A x[row]). Inputs and widths are multiples of 32: the caller checks. Others in this thread
   that use tiles find their own configuration again: oneDNN remembers what it set. */
void lora_tiles(const struct layer *layer, const struct rows *rows, uint16_t *y, int64_t y_stride, const uint16_t *x,
                int64_t x_stride, float scale) {
    float sums[MOST_RANK][ROWS];
    uint16_t shrunk[ROWS][MOST_RANK];
    const int64_t n = layer->inputs;
    struct configuration theirs;
    _tile_storeconfig(&theirs);
    for (int64_t i = 0, m; i < rows->count; i += m) {
        uint16_t *y_i[ROWS];
        const uint16_t *x_i[ROWS];
        for (m = 0; m < ROWS && i + m < rows->count && rows->place[i + m] == rows->place[i]; m++) {
            y_i[m] = y + rows->row[i + m] * y_stride;
            x_i[m] = x + rows->row[i + m] * x_stride;
        }
        for (int64_t s = 0; s < layer->slices; s++) {
            const int64_t width = layer->width[s], at = rows->place[i] * layer->slices + s;
            const int64_t rank = rows->rank[i] < layer->rank[at] ? rows->rank[i] : layer->rank[at];
            if (rank) {
                const uint16_t *a = layer->a[at], *b = layer->b[at];
                const int64_t more = s + 1 < layer->slices ? layer->rank[at + 1] * n : 0;
                const int64_t steps_a = (rank + SIDE - 1) / SIDE * (n / DEPTH);
                const int64_t steps_b = (rank + DEPTH - 1) / DEPTH * (width / DEPTH);
                shrink(sums, x_i, m, n, a, rank, ahead_of(b, rank * width, steps_a));
                pack_sums(shrunk, sums, m, rank, scale);
                expand(y_i, m, shrunk, b, width, rank, ahead_of(more ? layer->a[at + 1] : a, more, steps_b));
            }
            for (int64_t j = 0; j < m; j++) y_i[j] += width;
        }
    }
    _tile_loadconfig(&theirs);
}
#else
int tiles_allowed(void) { return 0; }
void lora_tiles(const struct layer *layer, const struct rows *rows, uint16_t *y, int64_t y_stride, const uint16_t *x,
                int64_t x_stride, float scale) {
    (void)layer, (void)rows, (void)y, (void)y_stride, (void)x, (void)x_stride, (void)scale;
}
#endif
