// Rows that products.h multiplies weights with: blocks in eight bits, their scales and their sums.

#pragma once

#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "simd-mappings.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>
#include <vector>

namespace ingot {

constexpr int BLOCK    = 32;  // weights of a column, and values of a row, that share a scale
constexpr int BLOCKS   = 16;  // of a column's weights, unpacked together
constexpr int STEPS    = BLOCK / 4; // of four weights
constexpr int FEWER    = 4;   // of few rows, that go through weights together
constexpr int MOST     = 8;   // rows that are multiplied at once
constexpr int TOGETHER = 256; // rows of an expert that are laid beside each other

// A block begins with its scale, and its least weight where it has one
static inline ggml_half half_of(const void * block, int number = 0) {
    ggml_half found;
    memcpy(&found, (const ggml_half *) block + number, sizeof(found));
    return found;
}

static inline void ask(const void * from, int bytes) {
    for (int line = 0; line < bytes; line += 64) {
        __builtin_prefetch((const char *) from + line, 0, 2);
    }
}

// Blocks of a row in Q8_0, or in Q8_1, whose own sums are rounded to half precision
template <typename Of, ggml_type Type>
struct EightBits {
    typedef Of Block;
    static constexpr ggml_type TYPE = Type;
    static constexpr int OF_BLOCK = 1;

    static const int8_t * values(const Block * row, int64_t b) { return row[b].qs; }
    static float scale(const Block * row, int64_t b) {
        return GGML_CPU_FP16_TO_FP32(half_of(row + b));
    }

    static int sum(const Block * row, int64_t b) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *) row[b].qs);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours),
                                    _mm256_extracti128_si256(fours, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
    }
};

typedef EightBits<block_q8_0, GGML_TYPE_Q8_0> Eights;
typedef EightBits<block_q8_1, GGML_TYPE_Q8_1> Summed;

// Blocks of a row in Q8_K, of which eight share a scale
struct Larger {
    typedef block_q8_K Block;
    static constexpr ggml_type TYPE = GGML_TYPE_Q8_K;
    static constexpr int OF_BLOCK = QK_K / BLOCK;

    static const int8_t * values(const Block * row, int64_t b) {
        return row[b / OF_BLOCK].qs + b % OF_BLOCK * BLOCK;
    }
    static float scale(const Block * row, int64_t b) { return row[b / OF_BLOCK].d; }
    static int sum(const Block * row, int64_t b) {
        const int16_t * halves = row[b / OF_BLOCK].bsums + b % OF_BLOCK * 2;
        return halves[0] + halves[1];
    }
};

// Of n rows: the scales of their blocks, what sums begin with, and what a least weight counts for
template <typename Weights>
struct Scaled {
    typedef typename Weights::Rows Rows;
    std::vector<float> scale, sum;
    std::vector<int32_t> start;

    void read(const typename Rows::Block * rows, int64_t ld, int64_t n, int64_t k) {
        if (start.size() < size_t(n * k)) { // else every smaller product would fill it anew
            scale.resize(n * k);
            start.resize(n * k);
            sum.resize(Weights::LEAST ? n * k : 0);
        }
        for (int64_t i = 0; i < n; i++) {
            for (int64_t b = 0; b < k; b++) {
                const int of_values = Rows::sum(rows + i * ld, b);
                scale[i * k + b] = Rows::scale(rows + i * ld, b);
                start[i * k + b] = -Weights::OFFSET * of_values;
                if (Weights::LEAST) {
                    sum[i * k + b] = scale[i * k + b] * of_values;
                }
            }
        }
    }
};

} // namespace ingot
