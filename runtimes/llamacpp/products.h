// Products of several rows with weights in Q8_0, or in repacked Q4_0, on processors with
// AVX512-VNNI.
//
// Included by ggml-cpu's llamafile/sgemm.cpp and repack.cpp, whose own kernels read weights anew for
// every few rows and add within a vector. Here a lane is a column of the result: the
// weights of COLUMNS columns are unpacked once for all rows, four of a column beside each other as
// VNNI wants them, and stay in the first cache while the rows go by.
//
// VNNI multiplies unsigned with signed bytes, so weights are kept as w + 128, and sums begin at
// -128 times the sum of the row's bytes. Blocks are added in their order, so that a row's result
// does not depend on how many rows there are, from ROWS on; fewer are left to the other kernel.
// INGOT_PRODUCTS_FROM in the environment is a higher number of rows from which on this one runs.

#pragma once

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define INGOT_PRODUCTS

#include "ggml-cpu.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace ingot {

constexpr int COLUMNS = 32;  // two vectors
constexpr int BLOCKS  = 16;  // of a column's weights, unpacked together: 16 KB
constexpr int ROWS    = 6;   // whose sums stay in registers
constexpr int STEPS   = QK8_0 / 4; // of four weights

static bool takes(int64_t rows, int64_t columns) {
    static const int64_t least = [] { // read once: a process computes a row alike for ever
        const char * asked = getenv("INGOT_PRODUCTS_FROM");
        return std::max(ROWS, asked ? atoi(asked) : 0);
    }();
    return rows >= least && columns % COLUMNS == 0;
}

// The scales of blocks of rows, and what sums begin with
struct Scaled {
    std::vector<float> scale;
    std::vector<int32_t> start;

    void read(const block_q8_0 * rows, int64_t ld, int64_t n, int64_t k, int offset) {
        scale.resize(n * k);
        start.resize(n * k);
        const __m256i ones = _mm256_set1_epi8(1);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t b = 0; b < k; b++) {
                const block_q8_0 & one = rows[i * ld + b];
                const __m256i values = _mm256_loadu_si256((const __m256i *) one.qs);
                const __m256i fours  = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, values);
                __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours),
                                            _mm256_extracti128_si256(fours, 1));
                sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
                sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
                start[i * k + b] = -offset * _mm_cvtsi128_si32(sum);
                scale[i * k + b] = GGML_CPU_FP16_TO_FP32(one.d);
            }
        }
    }
};

// Weights of COLUMNS columns in up to BLOCKS blocks
struct Strip {
    alignas(64) uint8_t weights[BLOCKS][STEPS][COLUMNS][4];
    alignas(64) float scale[BLOCKS][COLUMNS];
};

// Weights in Q8_0, column after column, `ld` blocks apart
struct Plain {
    const block_q8_0 * first;
    int64_t ld;
    static constexpr int OFFSET = 128;

    // 16 columns of a block: a transpose of 16 x 8 groups of four weights
    void unpack(uint8_t (* to)[COLUMNS][4], int column, const block_q8_0 * from) const {
        const size_t step = ld * sizeof(block_q8_0);
        const char * at = (const char *) from->qs;
        __m512i a[8], b[8];
        for (int i = 0; i < 8; i++) {
            const __m256i one   = _mm256_loadu_si256((const __m256i *) at);
            const __m256i fifth = _mm256_loadu_si256((const __m256i *) (at + 4 * step));
            a[i] = _mm512_inserti64x4(_mm512_castsi256_si512(one), fifth, 1);
            at += i == 3 ? 5 * step : step;
        }
        for (int i = 0; i < 8; i += 4) {
            const __m512i low   = _mm512_unpacklo_epi32(a[i], a[i + 1]);
            const __m512i high  = _mm512_unpackhi_epi32(a[i], a[i + 1]);
            const __m512i low2  = _mm512_unpacklo_epi32(a[i + 2], a[i + 3]);
            const __m512i high2 = _mm512_unpackhi_epi32(a[i + 2], a[i + 3]);
            b[i]     = _mm512_unpacklo_epi64(low, low2);
            b[i + 1] = _mm512_unpackhi_epi64(low, low2);
            b[i + 2] = _mm512_unpacklo_epi64(high, high2);
            b[i + 3] = _mm512_unpackhi_epi64(high, high2);
        }
        const __m512i offset = _mm512_set1_epi8((char) OFFSET);
        for (int i = 0; i < 4; i++) {
            const __m512i early = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
            const __m512i late  = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
            _mm512_store_si512(to[i][column],     _mm512_xor_si512(early, offset));
            _mm512_store_si512(to[i + 4][column], _mm512_xor_si512(late, offset));
        }
    }

    void read(Strip & to, int64_t column, int64_t at, int blocks) const {
        for (int b = 0; b < blocks; b++) {
            const block_q8_0 * from = first + column * ld + at + b;
            for (int c = 0; c < COLUMNS; c += 16) {
                unpack(to.weights[b], c, from + c * ld);
            }
            alignas(64) ggml_half halves[COLUMNS];
            for (int c = 0; c < COLUMNS; c++) {
                halves[c] = from[c * ld].d;
                __builtin_prefetch(from + c * ld + BLOCKS, 0, 2);
            }
            for (int c = 0; c < COLUMNS; c += 16) {
                const __m256i some = _mm256_load_si256((const __m256i *) (halves + c));
                _mm512_store_ps(to.scale[b] + c, _mm512_cvtph_ps(some));
            }
        }
    }
};

// Weights in Q4_0 as llama.cpp repacks them: blocks of eight columns, `ld` of a column, with eight
// bytes of each column in turn, each byte two weights 16 apart, both with their highest bit turned
template <typename Block>
struct Repacked {
    const Block * first;
    int64_t ld;
    static constexpr int OFFSET = 8;

    void read(Strip & to, int64_t column, int64_t at, int blocks) const {
        const __m512i turned = _mm512_set1_epi8((char) 0x88), half = _mm512_set1_epi8(0x0f);
        const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14,
                                                16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
        for (int b = 0; b < blocks; b++) {
            for (int c = 0; c < COLUMNS; c += 16) {
                const Block * one = first + (column + c) / 8 * ld + at + b;
                const Block * two = one + ld;
                for (int line = 0; line < 128; line += 64) {
                    __builtin_prefetch((const char *) (one + BLOCKS) + line, 0, 2);
                    __builtin_prefetch((const char *) (two + BLOCKS) + line, 0, 2);
                }
                for (int i = 0; i < 2; i++) { // bytes 0 to 7 of each column, then 8 to 15
                    const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(one->qs + 64 * i), turned);
                    const __m512i y = _mm512_xor_si512(_mm512_loadu_si512(two->qs + 64 * i), turned);
                    for (int j = 0; j < 2; j++) {
                        const __m512i four = _mm512_permutex2var_epi32(x, j ? odds : evens, y);
                        const __m512i late = _mm512_srli_epi16(four, 4);
                        auto * place = to.weights[b] + 2 * i + j;
                        _mm512_store_si512(place[0][c], _mm512_and_si512(four, half));
                        _mm512_store_si512(place[4][c], _mm512_and_si512(late, half));
                    }
                }
                const __m128i d = _mm_loadu_si128((const __m128i *) one->d);
                const __m128i e = _mm_loadu_si128((const __m128i *) two->d);
                _mm512_store_ps(to.scale[b] + c, _mm512_cvtph_ps(_mm256_set_m128i(e, d)));
            }
        }
    }
};

// c[R][COLUMNS] += rows[R][blocks] of the strip; `fresh`: = in place of +=
template <int R>
static inline void multiply(float * c, int64_t ldc, const block_q8_0 * rows, int64_t ld,
                            const float * scale, const int32_t * start, int64_t lds,
                            const Strip & strip, int blocks, bool fresh) {
    __m512 total[R][2];
    for (int r = 0; r < R; r++) {
        for (int v = 0; v < 2; v++) {
            total[r][v] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * ldc + 16 * v);
        }
    }
    for (int b = 0; b < blocks; b++) {
        __m512i sums[R][2];
        for (int r = 0; r < R; r++) {
            sums[r][0] = sums[r][1] = _mm512_set1_epi32(start[r * lds + b]);
        }
        for (int i = 0; i < STEPS; i++) {
            const __m512i first  = _mm512_load_si512(strip.weights[b][i][0]);
            const __m512i second = _mm512_load_si512(strip.weights[b][i][16]);
            for (int r = 0; r < R; r++) {
                int32_t four;
                memcpy(&four, rows[r * ld + b].qs + 4 * i, 4);
                const __m512i values = _mm512_set1_epi32(four);
                sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], first, values);
                sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], second, values);
            }
        }
        for (int v = 0; v < 2; v++) {
            const __m512 of_weights = _mm512_load_ps(strip.scale[b] + 16 * v);
            for (int r = 0; r < R; r++) {
                const __m512 both = _mm512_mul_ps(of_weights, _mm512_set1_ps(scale[r * lds + b]));
                total[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][v]), both, total[r][v]);
            }
        }
    }
    for (int r = 0; r < R; r++) {
        for (int v = 0; v < 2; v++) {
            _mm512_storeu_ps(c + r * ldc + 16 * v, total[r][v]);
        }
    }
}

// C[n][m] = B[n][k] A[m][k], k in blocks; this thread's part. False where it is not for this.
template <typename Weights>
static bool products(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k,
                     const Weights & A, const block_q8_0 * B, int64_t ldb, float * C, int64_t ldc) {
    if (!takes(n, m)) {
        return false;
    }
    static thread_local Scaled scaled;
    static thread_local Strip strip;
    scaled.read(B, ldb, n, k, Weights::OFFSET);
    const int64_t tiles = (n + ROWS - 1) / ROWS;
    for (int64_t column = params->ith * COLUMNS; column < m; column += params->nth * COLUMNS) {
        for (int64_t at = 0; at < k; at += BLOCKS) {
            const int blocks = std::min<int64_t>(BLOCKS, k - at);
            A.read(strip, column, at, blocks);
            for (int64_t tile = 0; tile < tiles; tile++) {
                const int64_t row = tile * n / tiles, rows = (tile + 1) * n / tiles - row;
                const auto go = [&](auto count) {
                    multiply<decltype(count)::value>(
                        C + row * ldc + column, ldc, B + row * ldb + at, ldb,
                        scaled.scale.data() + row * k + at, scaled.start.data() + row * k + at, k,
                        strip, blocks, at == 0);
                };
                switch (rows) { // at least half of ROWS, since n >= ROWS
                    case 6: go(std::integral_constant<int, 6>{}); break;
                    case 5: go(std::integral_constant<int, 5>{}); break;
                    case 4: go(std::integral_constant<int, 4>{}); break;
                    default: go(std::integral_constant<int, 3>{}); break;
                }
            }
        }
    }
    return true;
}

// The same of a whole operation whose weights llama.cpp has repacked
template <typename Block>
static bool repacked_products(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * from    = dst->src[1];
    const int64_t m = weights->ne[1], n = from->ne[1], k = weights->ne[0] / QK8_0;
    if (!takes(n, m)) {
        return false;
    }
    block_q8_0 * rows = (block_q8_0 *) params->wdata;
    const auto quantize = ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float;
    for (int64_t plane = 0; plane < from->ne[2]; plane++) {
        for (int64_t i = params->ith; i < n; i += params->nth) {
            const char * row = (const char *) from->data + i * from->nb[1] + plane * from->nb[2];
            quantize((const float *) row, rows + (plane * n + i) * k, weights->ne[0]);
        }
    }
    ggml_barrier(params->threadpool);
    for (int64_t plane = 0; plane < from->ne[2]; plane++) {
        const int64_t shared = plane / (from->ne[2] / weights->ne[2]);
        const Block * first = (const Block *) ((const char *) weights->data + shared * weights->nb[2]);
        float * to = (float *) ((char *) dst->data + plane * dst->nb[2]);
        products(params, m, n, k, Repacked<Block>{first, k}, rows + plane * n * k, k, to,
                 dst->nb[1] / sizeof(float));
    }
    return true;
}

} // namespace ingot

#endif
