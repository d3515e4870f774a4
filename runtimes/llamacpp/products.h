// Products of rows with weights in Q8_0, Q5_0, Q5_1 and Q4_1, in repacked Q4_0, IQ4_NL, MXFP4 and
// Q4_K, and of few rows in Q5_K and Q6_K, on processors with AVX512-VNNI, or with AVX2.
//
// Included by ggml-cpu's llamafile/sgemm.cpp and repack.cpp, whose own kernels unpack weights anew
// for every four rows, for every row where experts share them out, or add within a vector, and by
// tiled/tiled.cpp, which is to leave few rows in Q5_K and Q6_K to these. Here a lane is a column of
// the result: a strip, the weights of COLUMNS columns, is unpacked once for all rows, four of a
// column beside each other as VNNI wants them, and stays in the first cache while the rows go by.
//
// Few rows gain nothing from unpacked weights: they go through the weights as they lie, NARROW
// columns at a time. Where the columns are no multiple of COLUMNS, llama.cpp's kernels take them.
// Blocks are added in their order: a row's result does not depend on how many there are. Few rows
// in Q5_K and Q6_K go through one column after the other, of any number; llama.cpp's tiles, which
// take more rows, add in another order.

#pragma once

#if defined(__GNUC__) && defined(__AVX512VNNI__) && defined(__AVX512VL__) && \
    defined(__AVX512BW__) && defined(__AVX512DQ__)
#define INGOT_PRODUCTS 512
#elif defined(__GNUC__) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define INGOT_PRODUCTS 256
#endif

#ifdef INGOT_PRODUCTS

#include "ingot-columns.h"
#if INGOT_PRODUCTS == 512
#include "ingot-strips_avx512.h"
#else
#include "ingot-strips_avx2.h"
#endif

namespace ingot {

// A number of rows up to MOST as a constant
template <typename Go>
static inline void with(int64_t rows, const Go & go) {
    switch (rows) {
        case 8: go(std::integral_constant<int, 8>{}); break;
        case 7: go(std::integral_constant<int, 7>{}); break;
        case 6: go(std::integral_constant<int, 6>{}); break;
        case 5: go(std::integral_constant<int, 5>{}); break;
        case 4: go(std::integral_constant<int, 4>{}); break;
        case 3: go(std::integral_constant<int, 3>{}); break;
        case 2: go(std::integral_constant<int, 2>{}); break;
        default: go(std::integral_constant<int, 1>{}); break;
    }
}

// This thread's part of so many strips of columns
struct Part {
    int64_t begin, end;

    Part(const ggml_compute_params * params, int64_t strips)
        : begin(params->ith * strips / params->nth),
          end((params->ith + 1) * strips / params->nth) {}
};

// C[n][m] = B[n][k] A[m][k], k in blocks of BLOCK; this thread's part.
template <typename Weights>
static void products(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k,
                     const Weights & A, const typename Weights::Rows::Block * B, int64_t ldb,
                     float * C, int64_t ldc) {
    const Part part(params, m / COLUMNS);
    if (part.begin == part.end) {
        return;
    }
    static thread_local Scaled<Weights> scaled;
    StripOf<Weights> strip;
    scaled.read(B, ldb, n, k);
    const int64_t tiles = (n + ROWS - 1) / ROWS;
    for (int64_t column = part.begin * COLUMNS; column < part.end * COLUMNS; column += COLUMNS) {
        for (int64_t at = 0; at < k; at += BLOCKS) {
            const int blocks = std::min<int64_t>(BLOCKS, k - at);
            A.read(strip, column, at, blocks);
            for (int64_t tile = 0; tile < tiles; tile++) {
                const int64_t row = tile * n / tiles;
                with((tile + 1) * n / tiles - row, [&](auto count) {
                    multiply<decltype(count)::value>(C + row * ldc + column, ldc, B + row * ldb,
                                                     ldb, scaled, row, k, strip, at, blocks);
                });
            }
        }
    }
}

// The same of few rows
template <typename Weights>
static void few_products(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k,
                         const Weights & A, const typename Weights::Rows::Block * B, int64_t ldb,
                         float * C, int64_t ldc) {
    const int64_t tiles = (n + FEWER - 1) / FEWER;
    const Part part(params, m / NARROW);
    if (part.begin == part.end) {
        return;
    }
    static thread_local Scaled<Weights> scaled;
    scaled.read(B, ldb, n, k);
    for (int64_t column = part.begin * NARROW; column < part.end * NARROW; column += NARROW) {
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t row = tile * n / tiles;
            with((tile + 1) * n / tiles - row, [&](auto count) {
                A.template few<decltype(count)::value>(C + row * ldc, ldc, B + row * ldb, ldb, k,
                                                       column, scaled, row);
            });
        }
    }
}

// Either of them, as it is faster for `all` rows, of which these are some
template <typename Weights>
static void some_products(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k,
                          const Weights & A, const void * B, int64_t ldb, float * C, int64_t ldc,
                          int64_t all) {
    const auto * rows = (const typename Weights::Rows::Block *) B;
    const auto go = all > Weights::FEW ? products<Weights> : few_products<Weights>;
    go(params, m, n, k, A, rows, ldb, C, ldc);
}

// Whether so many rows go through weights of this type column after column: more of them are
// faster by llama.cpp's own tiles. runtimes/llamacpp/shapes.py tries passes of so many.
static inline bool by_columns(int type, int64_t rows) {
    return (type == GGML_TYPE_Q5_K && rows <= FEW_Q5_K) ||
           (type == GGML_TYPE_Q6_K && rows <= FEW_Q6_K);
}

// C[n][m] = B[n][k] A[m][k], column after column; this thread's part
template <typename Weights>
static void columns(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k,
                    const void * A, int64_t lda, const void * B, int64_t ldb, float * C,
                    int64_t ldc) {
    const auto * weights = (const typename Weights::Block *) A;
    const auto * rows    = (const block_q8_K *) B;
    const int64_t tiles = (n + MOST - 1) / MOST;
    const Part part(params, m);
    for (int64_t column = part.begin; column < part.end; column++) {
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t row = tile * n / tiles;
            with((tile + 1) * n / tiles - row, [&](auto count) {
                one_column<Weights, decltype(count)::value>(
                    C + row * ldc + column, ldc, rows + row * ldb, ldb, k, weights + column * lda);
            });
        }
    }
}

// The FEW of weights of this type, of which plain_products takes any number of rows; 0 of others
static inline int64_t few_of(int type) {
    switch (type) {
        case GGML_TYPE_Q8_0: return Plain<InQ8_0>::FEW;
        case GGML_TYPE_Q5_0: return Plain<InQ5_0>::FEW;
        case GGML_TYPE_Q5_1: return Plain<InQ5_1>::FEW;
        case GGML_TYPE_Q4_1: return Plain<InQ4_1>::FEW;
        default: return 0;
    }
}

// The same as llamafile_sgemm has it: of any number of rows with weights in Q8_0, Q5_0, Q5_1 and
// Q4_1, of few in Q5_K and Q6_K; false for others. Of `all` rows these may be some.
static inline bool plain_products(const ggml_compute_params * params, int64_t m, int64_t n,
                                  int64_t k, const void * A, int64_t lda, const void * B,
                                  int64_t ldb, void * C, int64_t ldc, int of_a, int of_b,
                                  int64_t all) {
    if (of_b == GGML_TYPE_Q8_K && by_columns(of_a, n)) {
        const auto go = of_a == GGML_TYPE_Q5_K ? columns<Fives> : columns<Sixes>;
        go(params, m, n, k, A, lda, B, ldb, (float *) C, ldc);
        return true;
    }
    if (m % COLUMNS != 0 || k == 0) {
        return false;
    }
    const auto go = [&](auto kind) {
        typedef Plain<decltype(kind)> Weights;
        if (of_b == Weights::Rows::TYPE) {
            const Weights weights{(const typename Weights::Block *) A, lda};
            some_products(params, m, n, k, weights, B, ldb, (float *) C, ldc, all);
        }
        return of_b == Weights::Rows::TYPE;
    };
    switch (of_a) {
        case GGML_TYPE_Q8_0: return go(InQ8_0{});
        case GGML_TYPE_Q5_0: return go(InQ5_0{});
        case GGML_TYPE_Q5_1: return go(InQ5_1{});
        case GGML_TYPE_Q4_1: return go(InQ4_1{});
        default: return false;
    }
}

// The n rows of one of a layer's experts, and their results, which lie apart: some of them at a
// time are laid together, for go(params, some, rows, c, ldc), which computes this thread's part of
// the strips of so many columns; c has room for no others. picked[2 * i] is row i's place among its
// token's experts, and picked[2 * i + 1] the token.
template <typename Go>
static void of_expert(const ggml_compute_params * params, ggml_tensor * dst, int64_t expert,
                      int64_t n, const int32_t * picked, ggml_type kind, int64_t columns,
                      const Go & go) {
    static thread_local std::vector<char> rows;
    static thread_local std::vector<float> found;
    const int64_t each = dst->src[1]->ne[1], m = dst->ne[0];
    const size_t size = ggml_row_size(kind, dst->src[1]->ne[0]);
    const auto row = [&](int64_t i) {
        const int64_t place = picked[2 * i] % each + picked[2 * i + 1] * each;
        return (const char *) params->wdata + place * size;
    };
    const auto result = [&](int64_t i) {
        return (float *) ((char *) dst->data + picked[2 * i] * dst->nb[1] +
                          picked[2 * i + 1] * dst->nb[2]);
    };
    ggml_compute_params turned = *params; // so that it is not always the same who has more strips
    turned.ith = (params->ith + expert) % params->nth;
    const Part part(&turned, m / columns);
    if (part.begin == part.end) {
        return;
    }
    if (n == 1) {
        go(&turned, 1, row(0), result(0), m);
        return;
    }
    const int64_t first = part.begin * columns, width = (part.end - part.begin) * columns;
    for (int64_t begin = 0; begin < n; begin += TOGETHER) {
        const int64_t count = std::min<int64_t>(TOGETHER, n - begin);
        rows.resize(std::max(rows.size(), count * size));
        found.resize(std::max(found.size(), size_t(count * width)));
        for (int64_t i = 0; i < count; i++) {
            memcpy(rows.data() + i * size, row(begin + i), size);
        }
        go(&turned, count, rows.data(), found.data() - first, width);
        for (int64_t i = 0; i < count; i++) {
            memcpy(result(begin + i) + first, found.data() + i * width, width * sizeof(float));
        }
    }
}

// plain_products of one expert
static inline bool plain_products_of(const ggml_compute_params * params, ggml_tensor * dst,
                                     int64_t expert, int64_t n, const int32_t * picked) {
    const ggml_tensor * weights = dst->src[0];
    const int64_t m = weights->ne[1], k = weights->ne[0] / ggml_blck_size(weights->type);
    const bool slim = by_columns(weights->type, n);
    const int64_t few = few_of(weights->type);
    if (dst->src[1]->type != GGML_TYPE_F32 || !(slim || (few && m % COLUMNS == 0))) {
        return false;
    }
    const int64_t lda = weights->nb[1] / ggml_type_size(weights->type);
    const ggml_type kind = ggml_get_type_traits_cpu(weights->type)->vec_dot_type;
    const char * A = (const char *) weights->data + expert * weights->nb[2];
    of_expert(params, dst, expert, n, picked, kind, slim ? 1 : n > few ? COLUMNS : NARROW,
              [&](const ggml_compute_params * turned, int64_t count, const char * rows, float * c,
                  int64_t ldc) {
        const bool done = plain_products(turned, m, count, k, A, lda, rows, k, c, ldc,
                                         weights->type, kind, n);
        GGML_ASSERT(done);
    });
    return true;
}

// The same of a whole operation whose weights llama.cpp has repacked; false for other sizes
template <template <typename> class Weights, typename Block>
static bool repacked_products(const ggml_compute_params * params, ggml_tensor * dst) {
    typedef typename Weights<Block>::Rows Rows;
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * from    = dst->src[1];
    const int64_t m = weights->ne[1], n = from->ne[1];
    const int64_t k = weights->ne[0] / BLOCK, ld = k / Rows::OF_BLOCK;
    if (m % COLUMNS != 0 || k == 0) {
        return false;
    }
    auto * rows = (typename Rows::Block *) params->wdata;
    const auto quantize = ggml_get_type_traits_cpu(Rows::TYPE)->from_float;
    for (int64_t plane = 0; plane < from->ne[2]; plane++) {
        for (int64_t i = params->ith; i < n; i += params->nth) {
            const char * row = (const char *) from->data + i * from->nb[1] + plane * from->nb[2];
            quantize((const float *) row, rows + (plane * n + i) * ld, weights->ne[0]);
        }
    }
    ggml_barrier(params->threadpool);
    for (int64_t plane = 0; plane < from->ne[2]; plane++) {
        const int64_t shared = plane / (from->ne[2] / weights->ne[2]);
        const char * first   = (const char *) weights->data + shared * weights->nb[2];
        float * to = (float *) ((char *) dst->data + plane * dst->nb[2]);
        some_products(params, m, n, k, Weights<Block>{(const Block *) first, ld},
                      rows + plane * n * ld, ld, to, dst->nb[1] / sizeof(float), n);
    }
    return true;
}

// The same of one expert
template <template <typename> class Weights, typename Block>
static bool repacked_products_of(const ggml_compute_params * params, ggml_tensor * dst,
                                 int64_t expert, int64_t n, const int32_t * picked) {
    typedef typename Weights<Block>::Rows Rows;
    const ggml_tensor * weights = dst->src[0];
    const int64_t m = weights->ne[1], k = weights->ne[0] / BLOCK, ld = k / Rows::OF_BLOCK;
    if (m % COLUMNS != 0 || k == 0) {
        return false;
    }
    const char * first = (const char *) weights->data + expert * weights->nb[2];
    of_expert(params, dst, expert, n, picked, Rows::TYPE,
              n > Weights<Block>::FEW ? COLUMNS : NARROW,
              [&](const ggml_compute_params * turned, int64_t count, const char * rows, float * c,
                  int64_t ldc) {
        some_products(turned, m, count, k, Weights<Block>{(const Block *) first, ld}, rows, ld, c,
                      ldc, n);
    });
    return true;
}

} // namespace ingot

#endif
