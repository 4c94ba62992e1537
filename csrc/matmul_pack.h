/* matmul_pack.h - matrices in the layout of the kernels: planning, packing, reading back.                    (rank 5)
 *
 * To make a type that dtype.h knows one that can be multiplied: a kind in kernels/kernels.h, a row in matmul_pack.c. */
#ifndef PN_MATMUL_PACK_H
#define PN_MATMUL_PACK_H

#include "dtype.h"
#include "kernels/kernels.h"

/* A matrix in the layout of kernels.h. Zeroed: empty. */
typedef struct matrix {
    pack_kind kind;
    size_t rows, cols; /* out, in                                   */
    size_t n_groups;
    size_t group_bytes;
    uint8_t *data; /* [n_groups, group_bytes], borrowed         */
} matrix;

/* Can matmul run this element type? */
bool matrix_supports(int dtype);
/* The layout of rows x cols elements of `dtype`, without memory: whoever owns the matrix_bytes(out) bytes sets
 * out->data, aligned to 64. Their number is checked against the address space. */
int matrix_plan(int dtype, size_t rows, size_t cols, matrix *out);
size_t matrix_bytes(const matrix *m);
/* Bytes of a row in the file. */
size_t matrix_row_bytes(const matrix *m);
/* Pack groups [first, first + n) out of `src`, the whole matrix as it stands in the file (rows of whole blocks,
 * unpadded); a matrix may be a run of a tensor's rows. Different groups may be packed by different threads. */
void matrix_pack(const matrix *m, const uint8_t *src, size_t first, size_t n);
/* Row `row` as floats, as dtype's dequantize gives it (but for the payload of a NaN): out[cols]. */
void matrix_read_row(const matrix *m, size_t row, float *out);

#endif
