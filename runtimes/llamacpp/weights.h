// Kinds of weights that products.h multiplies rows with, as they lie in memory.
//
// Processors multiply unsigned with signed bytes, so weights are kept as w + OFFSET, and sums begin
// at -OFFSET times the sum of the row's bytes.

#pragma once

#include "ingot-rows.h"

namespace ingot {

// Four bits of each byte, and the other four
static inline __m256i half_bytes(__m256i bytes) {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f));
}

static inline __m256i higher_halves(__m256i bytes) {
    return half_bytes(_mm256_srli_epi16(bytes, 4));
}

// Of 32 weights the lower four bits, two a byte
static inline __m256i fours_of(const uint8_t * bytes) {
    const __m128i both = _mm_loadu_si128((const __m128i *) bytes);
    return half_bytes(_mm256_set_m128i(_mm_srli_epi16(both, 4), both));
}

// And the fifth
static inline __m256i fifths_of(const uint8_t * bits) {
    uint32_t all;
    memcpy(&all, bits, sizeof(all));
#if INGOT_PRODUCTS == 512
    return _mm256_maskz_mov_epi8(all, _mm256_set1_epi8(0x10));
#else
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32(all), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                                   0x0303030303030303));
    const __m256i one = _mm256_set1_epi64x(0x8040201008040201); // of a byte's bits
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, one), one),
                            _mm256_set1_epi8(0x10));
#endif
}

#if INGOT_PRODUCTS == 512
static inline __m512i beside(__m256i lower, __m256i higher) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(lower), higher, 1);
}
#endif

// Blocks of a column, of weights + OFFSET: in Q8_0
struct InQ8_0 {
    typedef Eights Rows;
    typedef block_q8_0 Block;
    static constexpr int OFFSET = 128, BITS = 8;
    static constexpr bool LEAST = false;

    static __m256i weights(const Block & one) {
        return _mm256_xor_si256(_mm256_loadu_si256((const __m256i *) one.qs),
                                _mm256_set1_epi8((char) OFFSET));
    }

#if INGOT_PRODUCTS == 512
    static __m512i two(const Block & one, const Block & other) {
        const __m512i both = beside(_mm256_loadu_si256((const __m256i *) one.qs),
                                    _mm256_loadu_si256((const __m256i *) other.qs));
        return _mm512_xor_si512(both, _mm512_set1_epi8((char) OFFSET));
    }
#endif

    static ggml_half least(const Block &) { return 0; }
};

// In four bits, or five; where there is no OFFSET there are least weights
template <typename Of, typename RowsOf, int Bits, int Offset>
struct Packed {
    typedef RowsOf Rows;
    typedef Of Block;
    static constexpr int OFFSET = Offset, BITS = Bits;
    static constexpr bool LEAST = Offset == 0;

    static __m256i weights(const block_q4_1 & one) { return fours_of(one.qs); }

    template <typename OfFive>
    static __m256i weights(const OfFive & one) {
        return _mm256_or_si256(fours_of(one.qs), fifths_of(one.qh));
    }

#if INGOT_PRODUCTS == 512
    static __m512i two(const Block & one, const Block & other) {
        return beside(weights(one), weights(other));
    }
#endif

    static ggml_half least(const Block & one) { return half_of(&one, 1) ^ 0x8000; }
};

typedef Packed<block_q4_1, Summed, 4, 0> InQ4_1;
typedef Packed<block_q5_0, Eights, 5, 16> InQ5_0;
typedef Packed<block_q5_1, Summed, 5, 0> InQ5_1;

static inline __m256i looked_up(__m128i table, __m256i places) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), places);
}

// The scales of eight columns
static inline __m256 scales(const ggml_half * of) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) of));
}

#if INGOT_PRODUCTS == 512
static inline __m512i looked_up(__m128i table, __m512i places) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), places);
}

// 16 floats from those of two blocks of eight columns
static inline __m512 scales(const ggml_half * one, const ggml_half * two) {
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_loadu_si128((const __m128i *) two),
                                            _mm_loadu_si128((const __m128i *) one)));
}
#endif

// Of twelve bytes, as Q4_K and Q5_K have them, eight scales (0) or eight least weights (1) of six
// bits each, as bytes
static inline uint64_t six_bits(const uint8_t * twelve, int which) {
    uint32_t word[3];
    memcpy(word, twelve, sizeof(word));
    const uint32_t first = word[which], rest = word[2] >> 4 * which & 0x0f0f0f0f;
    return (first & 0x3f3f3f3f) | uint64_t(rest | (first >> 2 & 0x30303030)) << 32;
}

// What four bits stand for: weights + OFFSET, once the bits TURNED of each byte are turned back,
// which llama.cpp turned when it repacked them; and the scales of one or two blocks of eight
// columns. In Q4_K:
struct Straight {
    static constexpr int OFFSET = 0, BITS = 4;
    static constexpr int TURNED = 0;

    template <typename Bytes>
    static Bytes weights(Bytes fours) { return fours; }
};

struct Centered { // in Q4_0
    static constexpr int OFFSET = 8, BITS = 4;
    static constexpr int TURNED = 0x88;

    template <typename Bytes>
    static Bytes weights(Bytes fours) { return fours; }

    template <typename... Block>
    static auto scales_of(const Block *... blocks) { return scales(blocks->d...); }
};

struct Uneven { // in IQ4_NL
    static constexpr int OFFSET = 128, BITS = 8;
    static constexpr int TURNED = 0;

    template <typename Bytes>
    static Bytes weights(Bytes fours) {
        const __m128i table = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10,
                                            1, 13, 25, 38, 53, 69, 89, 113);
        return looked_up(_mm_xor_si128(table, _mm_set1_epi8((char) OFFSET)), fours);
    }

    template <typename... Block>
    static auto scales_of(const Block *... blocks) { return scales(blocks->d...); }
};

// In MXFP4 (OCP MX, 1.0): the table has twice the floats of four bits, so that they are whole; the
// scale is half of the block's power of two, below 2 a subnormal number.
struct Floating {
    static constexpr int OFFSET = 12, BITS = 5;
    static constexpr int TURNED = 0;

    template <typename Bytes>
    static Bytes weights(Bytes fours) {
        const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24,
                                            12, 11, 10, 9, 8, 6, 4, 0);
        return looked_up(table, fours);
    }

#if INGOT_PRODUCTS == 512
    template <typename Block>
    static __m512 scales_of(const Block * one, const Block * two) {
        const __m128i bytes = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *) one->e),
                                                 _mm_loadl_epi64((const __m128i *) two->e));
        const __m512i power = _mm512_cvtepu8_epi32(bytes);
        const __m512i usual =
            _mm512_slli_epi32(_mm512_sub_epi32(power, _mm512_set1_epi32(1)), 23);
        const __m512i least = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), power);
        const __mmask16 subnormal = _mm512_cmplt_epu32_mask(power, _mm512_set1_epi32(2));
        return _mm512_castsi512_ps(_mm512_mask_mov_epi32(usual, subnormal, least));
    }
#else
    template <typename Block>
    static __m256 scales_of(const Block * one) {
        const __m256i power = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) one->e));
        const __m256i usual =
            _mm256_slli_epi32(_mm256_sub_epi32(power, _mm256_set1_epi32(1)), 23);
        const __m256i least = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), power);
        const __m256i subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), power);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(usual, least, subnormal));
    }
#endif
};

} // namespace ingot
