// What strips_avx512.h has, for processors with AVX2 that lack AVX-512: eight columns a vector.
//
// Without VNNI, bytes are multiplied in twos, whose sums of 16 bits saturate. Weights of few bits
// are summed there: all of a block in four bits (8 * 2 * 15 * 128 is below 2^15), half a block in
// five. Those of eight bits are multiplied without their signs, which the values get instead, and
// each sum of two goes into 32 bits.

#pragma once

#include "ingot-weights.h"

namespace ingot {

constexpr int COLUMNS = 16; // two vectors
constexpr int NARROW  = 8;  // of few rows
constexpr int ROWS    = 3;  // whose sums stay in registers

// How weights of so many bits are multiplied
template <int BITS>
struct Bits {
#if defined(__AVXVNNI__)
    static constexpr bool VNNI = true;
#else
    static constexpr bool VNNI = false;
#endif
    static constexpr bool SIGNED = BITS == 8 && !VNNI; // without an OFFSET
    static constexpr int KEPT    = BITS == 5 && !VNNI ? STEPS / 2 : STEPS; // whose sums fit

    // From weights + OFFSET
    static __m256i kept(__m256i weights) {
        return SIGNED ? _mm256_xor_si256(weights, _mm256_set1_epi8((char) 0x80)) : weights;
    }

    static __m256i added(__m256i sums, __m256i weights, __m256i values) {
#if defined(__AVXVNNI__)
        return _mm256_dpbusd_avx_epi32(sums, weights, values);
#else
        if (!SIGNED) {
            return _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, values));
        }
        const __m256i twos =
            _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(values, weights));
        return _mm256_add_epi32(sums, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
#endif
    }

    static __m256i in_32_bits(__m256i sums) {
        return VNNI || SIGNED ? sums : _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
    }

    // What a sum begins with
    static __m256i begin(int32_t start) { return _mm256_set1_epi32(SIGNED ? 0 : start); }
};

// Weights of COLUMNS columns in up to BLOCKS blocks: (weights - OFFSET) * scale - least
struct Strip {
    alignas(32) uint8_t weights[BLOCKS][STEPS][COLUMNS][4];
    alignas(32) float scale[BLOCKS][COLUMNS];
    alignas(32) float least[BLOCKS][COLUMNS];

    // Four weights of each of the eight columns on one side
    void put(int b, int side, int step, __m256i four) {
        _mm256_store_si256((__m256i *) weights[b][step][8 * side], four);
    }
};

template <typename>
using StripOf = Strip;

// Weights column after column, `ld` blocks apart
template <typename Kind>
struct Plain {
    typedef typename Kind::Rows Rows;
    typedef typename Kind::Block Block;
    static constexpr int OFFSET = Kind::OFFSET, BITS = Kind::BITS;
    static constexpr int FEW = BITS == 4 ? 4 : 8; // too few for strips
    static constexpr bool LEAST = Kind::LEAST;

    const Block * first;
    int64_t ld;

    // Of eight columns' blocks, whose halves are put together in registers: a vector that is read
    // from where its parts were written has to wait for them
    struct Scales {
        __m256 scale, least;

        Scales(const Block * from, int64_t ld) : scale(), least() {
            const auto half = [&](int c) { return (int16_t) half_of(from + c * ld); };
            const auto both = [&](int c) {
                int32_t found;
                memcpy(&found, from + c * ld, sizeof(found));
                return found;
            };
            if (!LEAST) {
                scale = _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4),
                                                       half(5), half(6), half(7)));
                return;
            }
            const __m256i all = _mm256_setr_epi32(both(0), both(1), both(2), both(3), both(4),
                                                  both(5), both(6), both(7));
            const __m256i apart = _mm256_permute4x64_epi64(
                _mm256_packus_epi32(_mm256_and_si256(all, _mm256_set1_epi32(0xffff)),
                                    _mm256_srli_epi32(all, 16)),
                0xd8);
            scale = _mm256_cvtph_ps(_mm256_castsi256_si128(apart));
            least = -_mm256_cvtph_ps(_mm256_extracti128_si256(apart, 1));
        }
    };

    // Eight columns of a block: a transpose of 8 x 8 groups of four weights
    static void transpose(__m256i * columns) {
        __m256i a[8], b[8];
        for (int i = 0; i < 8; i += 2) {
            a[i]     = _mm256_unpacklo_epi32(columns[i], columns[i + 1]);
            a[i + 1] = _mm256_unpackhi_epi32(columns[i], columns[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            for (int j = 0; j < 2; j++) {
                b[i + 2 * j]     = _mm256_unpacklo_epi64(a[i + j], a[i + j + 2]);
                b[i + 2 * j + 1] = _mm256_unpackhi_epi64(a[i + j], a[i + j + 2]);
            }
        }
        for (int i = 0; i < 4; i++) {
            columns[i]     = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
            columns[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
        }
    }

    void read(StripOf<Plain> & to, int64_t column, int64_t at, int blocks) const {
        for (int b = 0; b < blocks; b++) {
            for (int side = 0; side < 2; side++) {
                const Block * from = first + (column + 8 * side) * ld + at + b;
                __m256i columns[8];
                for (int c = 0; c < 8; c++) {
                    const Block & one = from[c * ld];
                    columns[c] = Kind::weights(one);
                    __builtin_prefetch(&one + BLOCKS, 0, 2);
                }
                transpose(columns);
                for (int i = 0; i < STEPS; i++) {
                    to.put(b, side, i, Bits<BITS>::kept(columns[i]));
                }
                const Scales scales(from, ld);
                _mm256_store_ps(to.scale[b] + 8 * side, scales.scale);
                if (LEAST) {
                    _mm256_store_ps(to.least[b] + 8 * side, scales.least);
                }
            }
        }
    }

    // Sums of eight columns
    static __m256i joined(const __m256i * parts) {
        __m256i fours[2];
        for (int i = 0; i < 2; i++) {
            fours[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(parts[4 * i], parts[4 * i + 1]),
                                         _mm256_hadd_epi32(parts[4 * i + 2], parts[4 * i + 3]));
        }
        return _mm256_add_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                                _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
    }

    // c[R][8] = rows[R] times eight columns
    template <int R>
    void few(float * c, int64_t ldc, const typename Rows::Block * rows, int64_t ldr, int64_t k,
             int64_t column, const Scaled<Plain> & scaled, int64_t row) const {
        const Block * from = first + column * ld;
        __m256 total[R];
        for (int r = 0; r < R; r++) {
            total[r] = _mm256_setzero_ps();
        }
        for (int64_t b = 0; b < k; b++) {
            __m256i parts[R][8];
            for (int i = 0; i < 8; i++) {
                const Block & one = from[i * ld + b];
                const __m256i weights = Bits<BITS>::kept(Kind::weights(one));
                __builtin_prefetch(&one + 8 * ld, 0, 2);
                for (int r = 0; r < R; r++) {
                    const auto * values = (const __m256i *) rows[r * ldr + b].qs;
                    parts[r][i] = Bits<BITS>::in_32_bits(Bits<BITS>::added(
                        _mm256_setzero_si256(), weights, _mm256_loadu_si256(values)));
                }
            }
            const Scales scales(from + b, ld);
            for (int r = 0; r < R; r++) {
                const int64_t at = (row + r) * k + b;
                const __m256i all =
                    _mm256_add_epi32(joined(parts[r]), Bits<BITS>::begin(scaled.start[at]));
                const __m256 both = _mm256_mul_ps(scales.scale, _mm256_set1_ps(scaled.scale[at]));
                total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(all), both, total[r]);
                if (LEAST) {
                    total[r] = _mm256_fnmadd_ps(scales.least, _mm256_set1_ps(scaled.sum[at]),
                                                total[r]);
                }
            }
        }
        for (int r = 0; r < R; r++) {
            _mm256_storeu_ps(c + r * ldc + column, total[r]);
        }
    }
};

// Eight bytes of each of eight columns, two weights a byte, to two steps of both halves:
// put(step, half, weights)
template <typename Codes, typename Put>
static inline void unpack_halves(const void * bytes, const Put & put) {
    const __m256i turned = _mm256_set1_epi8((char) Codes::TURNED);
    const auto read = [&](int at) {
        const __m256i some = _mm256_loadu_si256((const __m256i *) bytes + at);
        return _mm256_castsi256_ps(_mm256_xor_si256(some, turned));
    };
    const __m256 x = read(0), y = read(1);
    const __m256 steps[2] = {_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd)};
    for (int i = 0; i < 2; i++) {
        const __m256i in_order = _mm256_permute4x64_epi64(_mm256_castps_si256(steps[i]), 0xd8);
        put(i, 0, Codes::weights(half_bytes(in_order)));
        put(i, 1, Codes::weights(higher_halves(in_order)));
    }
}

// Sums of eight columns, of each of which two lanes have one half
static inline __m256i halves_joined(__m256i one, __m256i two) {
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(one, two), 0xd8);
}

// Eight values of a row, for four columns
static inline __m256i eight(const int8_t * values) {
    int64_t all;
    memcpy(&all, values, sizeof(all));
    return _mm256_set1_epi64x(all);
}

// Weights of four bits as llama.cpp repacks them: blocks of eight columns, `ld` of a column, with
// eight bytes of each column in turn, each byte two weights 16 apart
template <typename Block, typename Codes>
struct Halves {
    typedef Eights Rows;
    static constexpr int OFFSET = Codes::OFFSET, BITS = Codes::BITS, FEW = 4;
    static constexpr bool LEAST = false;

    const Block * first;
    int64_t ld;

    void read(StripOf<Halves> & to, int64_t column, int64_t at, int blocks) const {
        for (int b = 0; b < blocks; b++) {
            for (int side = 0; side < 2; side++) {
                const Block * one = first + (column / 8 + side) * ld + at + b;
                ask(one + BLOCKS, sizeof(Block));
                for (int i = 0; i < 2; i++) {
                    unpack_halves<Codes>(one->qs + 64 * i, [&](int step, int half, __m256i four) {
                        to.put(b, side, 2 * i + step + half * STEPS / 2, Bits<BITS>::kept(four));
                    });
                }
                _mm256_store_ps(to.scale[b] + 8 * side, Codes::scales_of(one));
            }
        }
    }

    template <int R>
    void few(float * c, int64_t ldc, const block_q8_0 * rows, int64_t ldr, int64_t k,
             int64_t column, const Scaled<Halves> & scaled, int64_t row) const {
        const Block * from = first + column / 8 * ld;
        const __m256i turned = _mm256_set1_epi8((char) Codes::TURNED);
        __m256 total[R];
        for (int r = 0; r < R; r++) {
            total[r] = _mm256_setzero_ps();
        }
        for (int64_t b = 0; b < k; b++) {
            const Block * block = from + b;
            ask(block + ld, sizeof(Block)); // of the next columns
            __m256i sides[2][R];
            for (int side = 0; side < 2; side++) {
                __m256i * sums = sides[side];
                std::fill(sums, sums + R, _mm256_setzero_si256());
                for (int i = 0; i < 2; i++) {
                    const auto * bytes = (const __m256i *) (block->qs + 64 * i + 32 * side);
                    const __m256i both = _mm256_xor_si256(_mm256_loadu_si256(bytes), turned);
                    const __m256i lower  = Bits<BITS>::kept(Codes::weights(half_bytes(both)));
                    const __m256i higher = Bits<BITS>::kept(Codes::weights(higher_halves(both)));
                    for (int r = 0; r < R; r++) {
                        const int8_t * values = rows[r * ldr + b].qs + 8 * i;
                        sums[r] = Bits<BITS>::added(sums[r], lower, eight(values));
                        sums[r] = Bits<BITS>::added(sums[r], higher, eight(values + BLOCK / 2));
                    }
                }
                for (int r = 0; r < R; r++) {
                    sums[r] = Bits<BITS>::in_32_bits(sums[r]);
                }
            }
            const __m256 of_weights = Codes::scales_of(block);
            for (int r = 0; r < R; r++) {
                const int64_t at = (row + r) * k + b;
                const __m256i all = _mm256_add_epi32(halves_joined(sides[0][r], sides[1][r]),
                                                     Bits<BITS>::begin(scaled.start[at]));
                const __m256 both = _mm256_mul_ps(of_weights, _mm256_set1_ps(scaled.scale[at]));
                total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(all), both, total[r]);
            }
        }
        for (int r = 0; r < R; r++) {
            _mm256_storeu_ps(c + r * ldc + column, total[r]);
        }
    }
};

template <typename Block>
using Fours = Halves<Block, Centered>;
template <typename Block>
using UnevenFours = Halves<Block, Uneven>;
template <typename Block>
using FloatingFours = Halves<Block, Floating>;

// Weights in Q4_K as llama.cpp repacks them: 256 weights of eight columns, with eight bytes of
// each column in turn, each byte two weights 32 apart; twelve bytes hold a block's scales and
// least weights of eight columns, six bits each
template <typename Block>
struct FoursOfK {
    typedef Larger Rows;
    static constexpr int OFFSET = 0, BITS = 4, FEW = 2;
    static constexpr bool LEAST = true;

    const Block * first;
    int64_t ld;

    // What eight columns have
    struct Small {
        const Block * of;
        __m256 d, dmin;

        explicit Small(const Block * of) : of(of), d(scales(of->d)), dmin(scales(of->dmin)) {}

        static __m256 times(__m256 factor, uint64_t eight) {
            const __m128i bytes = _mm_cvtsi64_si128(eight);
            return _mm256_mul_ps(factor, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
        }

        __m256 scale_of(int j) const { return times(d, six_bits(of->scales + 12 * j, 0)); }
        __m256 least_of(int j) const { return times(dmin, six_bits(of->scales + 12 * j, 1)); }
    };

    void read(StripOf<FoursOfK> & to, int64_t column, int64_t at, int blocks) const {
        for (int side = 0; side < 2; side++) {
            for (int b = 0; b < blocks; b += Rows::OF_BLOCK) {
                const Block * one = first + (column / 8 + side) * ld + (at + b) / Rows::OF_BLOCK;
                const Small small(one);
                for (int j = 0; j < Rows::OF_BLOCK; j++) {
                    ask(one->qs + sizeof(Block) * (BLOCKS / Rows::OF_BLOCK) + 128 * j, 128);
                    _mm256_store_ps(to.scale[b + j] + 8 * side, small.scale_of(j));
                    _mm256_store_ps(to.least[b + j] + 8 * side, small.least_of(j));
                }
                for (int i = 0; i < QK_K / 16; i++) { // four times eight bytes of a pair of blocks
                    const auto put = [&](int step, int half, __m256i four) {
                        to.put(b + i / 4 * 2 + half, side, i % 4 * 2 + step, four);
                    };
                    unpack_halves<Straight>(one->qs + 64 * i, put);
                }
            }
        }
    }

    template <int R>
    void few(float * c, int64_t ldc, const block_q8_K * rows, int64_t ldr, int64_t k,
             int64_t column, const Scaled<FoursOfK> & scaled, int64_t row) const {
        const Block * from = first + column / 8 * ld;
        __m256 total[R];
        for (int r = 0; r < R; r++) {
            total[r] = _mm256_setzero_ps();
        }
        for (int64_t large = 0; large < k / Rows::OF_BLOCK; large++) {
            const Block * block = from + large;
            const Small small(block);
            for (int pair = 0; pair < Rows::OF_BLOCK; pair += 2) { // the halves of the same bytes
                const int64_t b = large * Rows::OF_BLOCK + pair;
                const uint8_t * bytes = block->qs + 128 * pair;
                ask(bytes + ld * sizeof(Block), 4 * 64); // of the next columns
                __m256i sides[2][2][R];
                for (int side = 0; side < 2; side++) {
                    __m256i sums[2][R];
                    for (int r = 0; r < R; r++) {
                        sums[0][r] = sums[1][r] = _mm256_setzero_si256();
                    }
                    for (int i = 0; i < 4; i++) {
                        const __m256i both = _mm256_loadu_si256(
                            (const __m256i *) (bytes + 64 * i + 32 * side));
                        const __m256i lower = half_bytes(both), higher = higher_halves(both);
                        for (int r = 0; r < R; r++) {
                            const int8_t * values = Rows::values(rows + r * ldr, b) + 8 * i;
                            sums[0][r] = Bits<BITS>::added(sums[0][r], lower, eight(values));
                            sums[1][r] =
                                Bits<BITS>::added(sums[1][r], higher, eight(values + BLOCK));
                        }
                    }
                    for (int r = 0; r < R; r++) {
                        sides[0][side][r] = Bits<BITS>::in_32_bits(sums[0][r]);
                        sides[1][side][r] = Bits<BITS>::in_32_bits(sums[1][r]);
                    }
                }
                for (int j = 0; j < 2; j++) {
                    const __m256 scale = small.scale_of(pair + j), least = small.least_of(pair + j);
                    for (int r = 0; r < R; r++) {
                        const int64_t at = (row + r) * k + b + j;
                        const __m256i all = halves_joined(sides[j][0][r], sides[j][1][r]);
                        const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(scaled.scale[at]));
                        total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(all), both, total[r]);
                        total[r] =
                            _mm256_fnmadd_ps(least, _mm256_set1_ps(scaled.sum[at]), total[r]);
                    }
                }
            }
        }
        for (int r = 0; r < R; r++) {
            _mm256_storeu_ps(c + r * ldc + column, total[r]);
        }
    }
};

// c[R][COLUMNS] += rows[R] times the strip's blocks, which are those from `at` on; = for the first
template <int R, typename Weights>
static inline void multiply(float * c, int64_t ldc, const typename Weights::Rows::Block * rows,
                            int64_t ld, const Scaled<Weights> & scaled, int64_t first, int64_t k,
                            const StripOf<Weights> & strip, int64_t at, int blocks) {
    typedef Bits<Weights::BITS> Way;
    __m256 total[R][2];
    for (int r = 0; r < R; r++) {
        for (int v = 0; v < 2; v++) {
            total[r][v] = at == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(c + r * ldc + 8 * v);
        }
    }
    const float * scale   = scaled.scale.data() + first * k + at;
    const float * sum     = Weights::LEAST ? scaled.sum.data() + first * k + at : nullptr;
    const int32_t * start = scaled.start.data() + first * k + at;
    for (int b = 0; b < blocks; b++) {
        const int8_t * values = Weights::Rows::values(rows, at + b);
        __m256i sums[R][2];
        for (int r = 0; r < R; r++) {
            sums[r][0] = sums[r][1] = Way::begin(Weights::OFFSET ? start[r * k + b] : 0);
        }
        for (int begin = 0; begin < STEPS; begin += Way::KEPT) {
            __m256i small[R][2];
            for (int r = 0; r < R; r++) {
                small[r][0] = small[r][1] = _mm256_setzero_si256();
            }
            _Pragma("GCC unroll 2") // else compilers keep all products, and sum them at the end
            for (int i = begin; i < begin + Way::KEPT; i++) {
                const auto * both = (const __m256i *) strip.weights[b][i];
                const __m256i early = _mm256_load_si256(both), late = _mm256_load_si256(both + 1);
                for (int r = 0; r < R; r++) {
                    int32_t four;
                    memcpy(&four, values + r * ld * sizeof(*rows) + 4 * i, 4);
                    const __m256i all = _mm256_set1_epi32(four);
                    small[r][0] = Way::added(small[r][0], early, all);
                    small[r][1] = Way::added(small[r][1], late, all);
                }
            }
            for (int r = 0; r < R; r++) {
                for (int v = 0; v < 2; v++) {
                    sums[r][v] = _mm256_add_epi32(sums[r][v], Way::in_32_bits(small[r][v]));
                }
            }
        }
        for (int v = 0; v < 2; v++) {
            const __m256 of_weights = _mm256_load_ps(strip.scale[b] + 8 * v);
            for (int r = 0; r < R; r++) {
                const __m256 both = _mm256_mul_ps(of_weights, _mm256_set1_ps(scale[r * k + b]));
                total[r][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r][v]), both, total[r][v]);
                if (Weights::LEAST) {
                    total[r][v] = _mm256_fnmadd_ps(_mm256_load_ps(strip.least[b] + 8 * v),
                                                   _mm256_set1_ps(sum[r * k + b]), total[r][v]);
                }
            }
        }
    }
    for (int r = 0; r < R; r++) {
        for (int v = 0; v < 2; v++) {
            _mm256_storeu_ps(c + r * ldc + 8 * v, total[r][v]);
        }
    }
}

} // namespace ingot
