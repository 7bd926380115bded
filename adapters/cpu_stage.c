/* Reads a stored adapter into the memory it is staged in, all tensors in one call and each value once: A as it lies in
   the file, B turned round as cpu_lora.c reads it, both looked through for values that are not finite while they are in
   the cache. Nothing is mapped: a file that is cut short meanwhile is an answer and no signal. bfloat16 only; shapes,
   offsets and room are the caller's to check: see staged_file.py. What is staged is copied into places by `copy_all`. */

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

struct part { /* one tensor: rows x columns values from `offset` of the file on */
    int64_t offset, rows, columns;
    uint16_t *to;
    int64_t turn;   /* in: to[column * rows + row], else in the file's order */
    int64_t finite; /* out: no value is infinite or NaN */
};

typedef uint16_t eight __attribute__((vector_size(16)));

#if defined(__clang__)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW(a, b) __builtin_shuffle(a, b, (eight){0, 8, 1, 9, 2, 10, 3, 11})
#define HIGH(a, b) __builtin_shuffle(a, b, (eight){4, 12, 5, 13, 6, 14, 7, 15})
#endif

enum { EXPONENT = 0x7f80, SIDE = 8 };

static int64_t read_all(int fd, const char *held, void *to, int64_t bytes, int64_t offset) {
    if (held) {
        memcpy(to, held + offset, (size_t)bytes);
        return 0;
    }
    for (int64_t done = 0; done < bytes;) {
        const ssize_t got = pread(fd, (char *)to + done, (size_t)(bytes - done), offset + done);
        if (got == 0) return -1; /* cut short */
        if (got < 0 && errno != EINTR) return errno;
        if (got > 0) done += got;
    }
    return 0;
}

static int all_finite(const uint16_t *values, int64_t count) {
    uint16_t bad = 0;
    for (int64_t i = 0; i < count; i++) bad |= (values[i] & EXPONENT) == EXPONENT;
    return !bad;
}

/* 8 x 8 values: three rounds of shuffling the upper half of the rows into the lower one turn them round */
static inline __attribute__((always_inline)) void turn_square(const uint16_t *from, int64_t columns, uint16_t *to,
                                                              int64_t stride, eight *bad) {
    eight row[SIDE], next[SIDE];
    for (int i = 0; i < SIDE; i++) {
        memcpy(row + i, from + i * columns, sizeof *row);
        *bad |= (eight)((row[i] & EXPONENT) == EXPONENT);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SIDE / 2; i++) {
            next[2 * i] = LOW(row[i], row[i + SIDE / 2]);
            next[2 * i + 1] = HIGH(row[i], row[i + SIDE / 2]);
        }
        memcpy(row, next, sizeof row);
    }
    for (int i = 0; i < SIDE; i++) memcpy(to + i * stride, row + i, sizeof *row);
}

/* to[column * stride + row] = from[row * columns + column]. Rows within columns: eight lines are written at a time, each
   from its beginning to its end, which memory takes half as long for as for pieces of many. */
static int turn(const uint16_t *from, int64_t rows, int64_t columns, uint16_t *to, int64_t stride) {
    const int64_t high = rows - rows % SIDE, wide = columns - columns % SIDE;
    eight bad = {0};
    uint16_t bad_edge = 0;
    for (int64_t column = 0; column < wide; column += SIDE)
        for (int64_t row = 0; row < high; row += SIDE)
            turn_square(from + row * columns + column, columns, to + column * stride + row, stride, &bad);
    for (int64_t column = 0; column < columns; column++)
        for (int64_t row = column < wide ? high : 0; row < rows; row++) {
            const uint16_t value = from[row * columns + column];
            bad_edge |= (value & EXPONENT) == EXPONENT;
            to[column * stride + row] = value;
        }
    for (int i = 0; i < SIDE; i++) bad_edge |= bad[i];
    return !bad_edge;
}

struct copy {
    const void *from;
    void *to;
    int64_t bytes;
};

void copy_all(const struct copy *copies, int64_t count) {
    for (const struct copy *copy = copies; copy < copies + count; copy++) memcpy(copy->to, copy->from, copy->bytes);
}

/* 0, -1 when the file is shorter than that, or an errno. `held`: the whole file in memory, which then is not read; else
   null. `room`: bytes of `scratch`, at least one row of any part. */
int64_t stage_bfloat16(int fd, const char *held, struct part *parts, int64_t count, void *scratch, int64_t room) {
    for (struct part *part = parts; part < parts + count; part++) {
        const int64_t width = part->columns * (int64_t)sizeof(uint16_t);
        const int64_t most = width && width < room ? room / width : 1; /* rows at a time, which stay in the cache */
        part->finite = 1;
        for (int64_t row = 0; width && row < part->rows; row += most) {
            const int64_t rows = row + most < part->rows ? most : part->rows - row;
            uint16_t *to = part->turn ? scratch : part->to + row * part->columns;
            const int64_t fault = read_all(fd, held, to, rows * width, part->offset + row * width);
            if (fault) return fault;
            part->finite &= part->turn ? turn(to, rows, part->columns, part->to + row, part->rows)
                                       : all_finite(to, rows * part->columns);
        }
    }
    return 0;
}
