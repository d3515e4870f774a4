// Products of few rows with weights in Q5_K and Q6_K, as they lie, one column after the other.
//
// A lane is a part of a sum: a row's result does not depend on how many there are.

#pragma once

#include "ingot-weights.h"

namespace ingot {

#if INGOT_PRODUCTS == 512

constexpr int FEW_Q5_K = 12, FEW_Q6_K = 32; // rows, which llama.cpp's tiles are slower for

// With zeros behind it
static inline __m512i widened(__m256i half) {
    return _mm512_inserti64x4(_mm512_setzero_si512(), half, 0);
}

// A block of a column in Q6_K: 64 weights at a time, unsigned, and their scales
struct Sixes {
    typedef block_q6_K Block;
    const Block & block;
    __m256i scales;

    explicit Sixes(const Block & block)
        : block(block),
          scales(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) block.scales))) {}

    static constexpr int of_lane(int lane, int part) { return part * 4 + lane / 8; }

    __m512i weights(int part) const {
        const __m512i low = _mm512_loadu_si512(block.ql + part / 2 * 64);
        const __m512i high = _mm512_broadcast_i64x4(
            _mm256_loadu_si256((const __m256i *) (block.qh + part / 2 * 32)));
        const __m512i four = part % 2 ? _mm512_srli_epi16(low, 4) : low;
        const __m512i two =
            part % 2 ? _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2))
                     : _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
        return _mm512_or_si512(_mm512_and_si512(four, _mm512_set1_epi8(0x0f)),
                               _mm512_and_si512(two, _mm512_set1_epi8(0x30)));
    }

    float scale() const { return GGML_CPU_FP16_TO_FP32(block.d); }

    // What a sum begins with, as weights are 32 too large
    __m512i start(const block_q8_K & row) const {
        const __m256i sums = _mm256_loadu_si256((const __m256i *) row.bsums);
        const __m256i once = _mm256_madd_epi16(sums, scales);
        return widened(_mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(once, 5)));
    }

    __m512 less(__m512 total, const block_q8_K &) const { return total; }
};

// The same in Q5_K: their scales, and least weights
struct Fives {
    typedef block_q5_K Block;
    const Block & block;
    __m256i scales, least;
    ggml_half d[2]; // of scales and of least weights, which begin a block

    explicit Fives(const Block & block) : block(block) {
        memcpy(d, &block, sizeof(d));
        const auto eight = [&](int which) {
            return _mm_cvtepu8_epi16(_mm_cvtsi64_si128(six_bits(block.scales, which)));
        };
        const __m128i once = eight(1);
        scales = _mm256_castsi128_si256(eight(0));
        least  = _mm256_set_m128i(_mm_unpackhi_epi16(once, once), _mm_unpacklo_epi16(once, once));
    }

    static constexpr int of_lane(int lane, int part) { return part * 2 + lane / 16; }

    __m512i weights(int part) const {
        const __m512i low = _mm512_broadcast_i64x4(
            _mm256_loadu_si256((const __m256i *) (block.qs + part * 32)));
        const __m512i high =
            _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) block.qh));
        const __m512i turn = _mm512_add_epi64(_mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1),
                                              _mm512_set1_epi64(2 * part - 4 + 64));
        const __m512i four = _mm512_srlv_epi64(low, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4));
        return _mm512_or_si512(_mm512_and_si512(four, _mm512_set1_epi8(0x0f)),
                               _mm512_and_si512(_mm512_rorv_epi64(high, turn),
                                                _mm512_set1_epi8(0x10)));
    }

    float scale() const { return GGML_CPU_FP16_TO_FP32(d[0]); }
    __m512i start(const block_q8_K &) const { return _mm512_setzero_si512(); }

    __m512 less(__m512 total, const block_q8_K & row) const {
        const __m256i sums = _mm256_loadu_si256((const __m256i *) row.bsums);
        const __m512i once = widened(_mm256_madd_epi16(sums, least));
        const float scale = GGML_CPU_FP16_TO_FP32(d[1]) * row.d;
        return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(once), _mm512_set1_ps(scale), total);
    }
};

// Of each lane of 64 weights, which of a block's scales is theirs
template <typename Weights>
struct Lanes {
    alignas(64) int16_t of[4][32] = {};

    constexpr Lanes() {
        for (int part = 0; part < 4; part++) {
            for (int lane = 0; lane < 32; lane++) {
                of[part][lane] = Weights::of_lane(lane, part);
            }
        }
    }
};

// c[R] = rows[R] times one column of k blocks
template <typename Weights, int R>
static inline void one_column(float * c, int64_t ldc, const block_q8_K * rows, int64_t ldr,
                              int64_t k, const typename Weights::Block * column) {
    static constexpr Lanes<Weights> lanes;
    __m512 total[R];
    for (int r = 0; r < R; r++) {
        total[r] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < k; b++) {
        const Weights weights(column[b]);
        ask((const char *) (column + b) + 4096, sizeof(column[b]));
        __m512i sums[R];
        for (int r = 0; r < R; r++) {
            sums[r] = weights.start(rows[r * ldr + b]);
        }
        for (int part = 0; part < 4; part++) {
            const __m512i some  = weights.weights(part);
            const __m512i scale = _mm512_permutexvar_epi16(
                _mm512_load_si512(lanes.of[part]), _mm512_castsi256_si512(weights.scales));
            for (int r = 0; r < R; r++) {
                const __m512i values = _mm512_loadu_si512(rows[r * ldr + b].qs + 64 * part);
                sums[r] = _mm512_dpwssd_epi32(sums[r], _mm512_maddubs_epi16(some, values), scale);
            }
        }
        for (int r = 0; r < R; r++) {
            const block_q8_K & row = rows[r * ldr + b];
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]),
                                       _mm512_set1_ps(weights.scale() * row.d), total[r]);
            total[r] = weights.less(total[r], row);
        }
    }
    for (int r = 0; r < R; r++) {
        c[r * ldc] = _mm512_reduce_add_ps(total[r]);
    }
}

#else

constexpr int FEW_Q5_K = 48, FEW_Q6_K = 48;

// A block of a column in Q6_K: 32 weights at a time, unsigned, and their scales, of 16 each
struct Sixes {
    typedef block_q6_K Block;
    const Block & block;
    __m256i scales;

    explicit Sixes(const Block & block)
        : block(block),
          scales(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) block.scales))) {}

    __m256i weights(int part) const {
        const uint8_t * bytes = block.ql + part / 4 * 64 + part % 2 * 32;
        const __m256i four = _mm256_loadu_si256((const __m256i *) bytes);
        const __m256i high = _mm256_loadu_si256((const __m256i *) (block.qh + part / 4 * 32));
        const int place = part % 4;
        const __m256i two = place < 2 ? _mm256_slli_epi16(high, 4 - 2 * place)
                                      : _mm256_srli_epi16(high, 2 * place - 4);
        return _mm256_or_si256(place < 2 ? half_bytes(four) : higher_halves(four),
                               _mm256_and_si256(two, _mm256_set1_epi8(0x30)));
    }

    float scale() const { return GGML_CPU_FP16_TO_FP32(block.d); }

    // What a sum begins with, as weights are 32 too large
    __m256i start(const block_q8_K & row) const {
        const __m256i sums = _mm256_loadu_si256((const __m256i *) row.bsums);
        const __m256i once = _mm256_madd_epi16(sums, scales);
        return _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(once, 5));
    }

    __m256 less(__m256 total, const block_q8_K &) const { return total; }
};

// The same in Q5_K: their scales, each twice, and least weights
struct Fives {
    typedef block_q5_K Block;
    const Block & block;
    __m256i scales, least;
    ggml_half d[2]; // of scales and of least weights, which begin a block

    explicit Fives(const Block & block)
        : block(block), scales(twice(0)), least(twice(1)) {
        memcpy(d, &block, sizeof(d));
    }

    __m256i twice(int which) const {
        const __m128i once =
            _mm_cvtepu8_epi16(_mm_cvtsi64_si128(six_bits(block.scales, which)));
        return _mm256_set_m128i(_mm_unpackhi_epi16(once, once), _mm_unpacklo_epi16(once, once));
    }

    __m256i weights(int part) const {
        const uint8_t * bytes = block.qs + part / 2 * 32;
        const __m256i four = _mm256_loadu_si256((const __m256i *) bytes);
        const __m256i high = _mm256_loadu_si256((const __m256i *) block.qh);
        const __m256i one =
            part < 4 ? _mm256_slli_epi16(high, 4 - part) : _mm256_srli_epi16(high, part - 4);
        return _mm256_or_si256(part % 2 ? higher_halves(four) : half_bytes(four),
                               _mm256_and_si256(one, _mm256_set1_epi8(0x10)));
    }

    float scale() const { return GGML_CPU_FP16_TO_FP32(d[0]); }
    __m256i start(const block_q8_K &) const { return _mm256_setzero_si256(); }

    __m256 less(__m256 total, const block_q8_K & row) const {
        const __m256i sums = _mm256_loadu_si256((const __m256i *) row.bsums);
        const __m256i once = _mm256_madd_epi16(sums, least);
        const float scale = GGML_CPU_FP16_TO_FP32(d[1]) * row.d;
        return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(once), _mm256_set1_ps(scale), total);
    }
};

// c[R] = rows[R] times one column of k blocks
template <typename Weights, int R>
static inline void one_column(float * c, int64_t ldc, const block_q8_K * rows, int64_t ldr,
                              int64_t k, const typename Weights::Block * column) {
    // of 16 bits: the first of a pair for 16 weights, the second for 16 more
    const __m256i sides = _mm256_setr_epi64x(0x0100010001000100, 0x0100010001000100,
                                             0x0302030203020302, 0x0302030203020302);
    __m256 total[R];
    for (int r = 0; r < R; r++) {
        total[r] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < k; b++) {
        const Weights weights(column[b]);
        ask((const char *) (column + b) + 4096, sizeof(column[b]));
        __m256i sums[R];
        for (int r = 0; r < R; r++) {
            sums[r] = weights.start(rows[r * ldr + b]);
        }
        _Pragma("GCC unroll 8")
        for (int part = 0; part < 8; part++) {
            const __m256i some = weights.weights(part);
            const __m256i of_part = _mm256_set1_epi32(part);
            const __m256i scale = _mm256_shuffle_epi8(
                _mm256_permutevar8x32_epi32(weights.scales, of_part), sides);
            for (int r = 0; r < R; r++) {
                const auto * values = (const __m256i *) (rows[r * ldr + b].qs + 32 * part);
                const __m256i twos = _mm256_maddubs_epi16(some, _mm256_loadu_si256(values));
                sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(twos, scale));
            }
        }
        for (int r = 0; r < R; r++) {
            const block_q8_K & row = rows[r * ldr + b];
            total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]),
                                       _mm256_set1_ps(weights.scale() * row.d), total[r]);
            total[r] = weights.less(total[r], row);
        }
    }
    for (int r = 0; r < R; r++) {
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(total[r]),
                                       _mm256_extractf128_ps(total[r], 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        c[r * ldc] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
}

#endif

} // namespace ingot
