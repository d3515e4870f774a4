// Products of rows with weights in Q8_0, in repacked Q4_0 and Q4_K, and of few rows in Q5_K and
// Q6_K, on processors with AVX512-VNNI.
//
// Included by ggml-cpu's llamafile/sgemm.cpp and repack.cpp, whose own kernels unpack weights anew
// for every four rows, or add within a vector, and by tiled/tiled.cpp, which is to leave few rows
// in Q5_K and Q6_K to these. Here a lane is a column of the result: the weights
// of COLUMNS columns are unpacked once for all rows, four of a column beside each other as VNNI
// wants them, and stay in the first cache while the rows go by.
//
// VNNI multiplies unsigned with signed bytes, so weights are kept as w + OFFSET, and sums begin at
// -OFFSET times the sum of the row's bytes. Few rows gain nothing from unpacked weights: they go
// through the weights as they lie, 16 columns at a time. Where the columns are no multiple of
// COLUMNS, llama.cpp's kernels take them. Blocks are added in their order: a row's result does not
// depend on how many there are. Few rows in Q5_K and Q6_K go through one column after the other, of
// any number; llama.cpp's tiles, which take more rows, add in another order.

#pragma once

#if defined(__GNUC__) && defined(__AVX512VNNI__) && defined(__AVX512VL__) && \
    defined(__AVX512BW__) && defined(__AVX512DQ__)
#define INGOT_PRODUCTS

#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "simd-mappings.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>
#include <vector>

namespace ingot {

constexpr int COLUMNS = 32;  // two vectors
constexpr int BLOCK   = 32;  // weights of a column, and values of a row, that share a scale
constexpr int BLOCKS  = 16;  // of a column's weights, unpacked together: 16 KB
constexpr int ROWS    = 6;   // whose sums stay in registers
constexpr int STEPS   = BLOCK / 4; // of four weights
constexpr int FEW     = 8;   // rows that gain nothing from unpacked weights
constexpr int FEWER   = 4;   // of them, that go through weights together

// Blocks of a row in Q8_0
struct Eights {
    typedef block_q8_0 Block;
    static constexpr ggml_type TYPE = GGML_TYPE_Q8_0;
    static constexpr int OF_BLOCK = 1;

    static const int8_t * values(const Block * row, int64_t b) { return row[b].qs; }
    static float scale(const Block * row, int64_t b) { return GGML_CPU_FP16_TO_FP32(row[b].d); }

    static int sum(const Block * row, int64_t b) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *) row[b].qs);
        const __m256i fours =
            _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours),
                                    _mm256_extracti128_si256(fours, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
    }
};

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

// Weights of COLUMNS columns in up to BLOCKS blocks: (weights - OFFSET) * scale - least
struct Strip {
    alignas(64) uint8_t weights[BLOCKS][STEPS][COLUMNS][4];
    alignas(64) float scale[BLOCKS][COLUMNS];
    alignas(64) float least[BLOCKS][COLUMNS];
};

template <typename Weights>
struct Scaled;

// Weights in Q8_0, column after column, `ld` blocks apart
struct Plain {
    typedef Eights Rows;
    static constexpr int OFFSET = 128;
    static constexpr bool LEAST = false;

    const block_q8_0 * first;
    int64_t ld;

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

    // Sums of one row's block with 16 columns, from the partial ones of two columns each
    static __m512i joined(const __m512i * parts) {
        __m512i pairs[4], fours[2];
        for (int i = 0; i < 4; i++) {
            pairs[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(parts[2 * i], parts[2 * i + 1]),
                                        _mm512_unpackhi_epi32(parts[2 * i], parts[2 * i + 1]));
        }
        for (int i = 0; i < 2; i++) {
            fours[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                                        _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
        }
        return _mm512_add_epi32(_mm512_shuffle_i32x4(fours[0], fours[1], 0x88),
                                _mm512_shuffle_i32x4(fours[0], fours[1], 0xdd));
    }

    template <int R>
    void few(float * c, int64_t ldc, const block_q8_0 * rows, int64_t ldr, int64_t k,
             int64_t column, const Scaled<Plain> & scaled, int64_t row) const;

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

// 16 floats from those of two blocks of eight columns
static inline __m512 scales(const ggml_half * one, const ggml_half * two) {
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_loadu_si128((const __m128i *) two),
                                            _mm_loadu_si128((const __m128i *) one)));
}

static inline void ask(const void * from, int bytes) {
    for (int line = 0; line < bytes; line += 64) {
        __builtin_prefetch((const char *) from + line, 0, 2);
    }
}

// Eight bytes of each of 2 x 8 columns, two weights a byte (the lower BLOCK of them apart from the
// higher one by `apart` places), to two steps of 16 columns
static inline void unpack_halves(uint8_t (* to)[COLUMNS][4], int column, int apart,
                                 const void * one, const void * two, __m512i turned) {
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14,
                                            16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const __m512i half = _mm512_set1_epi8(0x0f);
    const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(one), turned);
    const __m512i y = _mm512_xor_si512(_mm512_loadu_si512(two), turned);
    for (int i = 0; i < 2; i++) {
        const __m512i bytes  = _mm512_permutex2var_epi32(x, i ? odds : evens, y);
        const __m512i higher = _mm512_srli_epi16(bytes, 4);
        _mm512_store_si512(to[i][column],         _mm512_and_si512(bytes, half));
        _mm512_store_si512(to[i + apart][column], _mm512_and_si512(higher, half));
    }
}

// Weights in Q4_0 as llama.cpp repacks them: blocks of eight columns, `ld` of a column, with eight
// bytes of each column in turn, each byte two weights 16 apart, both with their highest bit turned
template <typename Block>
struct Fours {
    typedef Eights Rows;
    static constexpr int OFFSET = 8;
    static constexpr bool LEAST = false;

    const Block * first;
    int64_t ld;

    template <int R>
    void few(float * c, int64_t ldc, const block_q8_0 * rows, int64_t ldr, int64_t k,
             int64_t column, const Scaled<Fours> & scaled, int64_t row) const;

    void read(Strip & to, int64_t column, int64_t at, int blocks) const {
        const __m512i turned = _mm512_set1_epi8((char) 0x88);
        for (int b = 0; b < blocks; b++) {
            for (int c = 0; c < COLUMNS; c += 16) {
                const Block * one = first + (column + c) / 8 * ld + at + b;
                const Block * two = one + ld;
                ask(one + BLOCKS, sizeof(Block));
                ask(two + BLOCKS, sizeof(Block));
                for (int i = 0; i < 2; i++) {
                    unpack_halves(to.weights[b] + 2 * i, c, STEPS / 2, one->qs + 64 * i,
                                  two->qs + 64 * i, turned);
                }
                _mm512_store_ps(to.scale[b] + c, scales(one->d, two->d));
            }
        }
    }
};

// Weights in Q4_K as llama.cpp repacks them: 256 weights of eight columns, with eight bytes of
// each column in turn, each byte two weights 32 apart; twelve bytes hold a block's scales and
// least weights of eight columns, six bits each
template <typename Block>
struct FoursOfK {
    typedef Larger Rows;
    static constexpr int OFFSET = 0;
    static constexpr bool LEAST = true;

    const Block * first;
    int64_t ld;

    // What the columns of a block have, in blocks of BLOCK weights
    struct Small {
        alignas(64) uint8_t scale[Rows::OF_BLOCK][16];
        alignas(64) uint8_t least[Rows::OF_BLOCK][16];
        __m512 d, dmin;

        Small(const Block * one, const Block * two)
            : d(scales(one->d, two->d)), dmin(scales(one->dmin, two->dmin)) {
            __m512i words[3]; // of twelve bytes: eight of the first side, eight of the second
            for (int i = 0; i < 3; i++) {
                words[i] = _mm512_inserti64x4(_mm512_castsi256_si512(thirds(one->scales, i)),
                                              thirds(two->scales, i), 1);
            }
            put(scale, words[0], words[2]);
            put(least, words[1], _mm512_srli_epi32(words[2], 4));
        }

        static __m256i thirds(const uint8_t * from, int i) {
            const __m512i places = _mm512_add_epi32(
                _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 0, 0, 0, 0, 0, 0, 0, 0),
                _mm512_set1_epi32(i));
            const __m256i rest = _mm256_loadu_si256((const __m256i *) (from + 64));
            return _mm512_castsi512_si256(_mm512_permutex2var_epi32(
                _mm512_loadu_si512(from), places, _mm512_castsi256_si512(rest)));
        }

        // Six bits of four columns from `first`; of four more its highest two, and four of `rest`
        static void put(uint8_t (* to)[16], __m512i first, __m512i rest) {
            const __m512i early = _mm512_and_si512(first, _mm512_set1_epi32(0x3f3f3f3f));
            const __m512i high =
                _mm512_and_si512(_mm512_srli_epi32(first, 2), _mm512_set1_epi32(0x30303030));
            const __m512i late = _mm512_or_si512(
                high, _mm512_and_si512(rest, _mm512_set1_epi32(0x0f0f0f0f)));
            const __m512i x = _mm512_unpacklo_epi32(early, late);
            const __m512i y = _mm512_unpackhi_epi32(early, late);
            const __m512i places = _mm512_setr_epi64(0, 4, 1, 5, 8, 12, 9, 13);
            const __m512i more   = _mm512_add_epi64(places, _mm512_set1_epi64(2));
            _mm512_store_si512(to[0], _mm512_permutex2var_epi64(x, places, y));
            _mm512_store_si512(to[4], _mm512_permutex2var_epi64(x, more, y));
        }

        static __m512 floats(const uint8_t * bytes) {
            const __m128i some = _mm_load_si128((const __m128i *) bytes);
            return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(some));
        }

        __m512 scale_of(int j) const { return _mm512_mul_ps(d, floats(scale[j])); }
        __m512 least_of(int j) const { return _mm512_mul_ps(dmin, floats(least[j])); }
    };

    template <int R>
    void few(float * c, int64_t ldc, const block_q8_K * rows, int64_t ldr, int64_t k,
             int64_t column, const Scaled<FoursOfK> & scaled, int64_t row) const;

    void read(Strip & to, int64_t column, int64_t at, int blocks) const {
        for (int c = 0; c < COLUMNS; c += 16) {
            for (int b = 0; b < blocks; b += Rows::OF_BLOCK) {
                const Block * one = first + (column + c) / 8 * ld + (at + b) / Rows::OF_BLOCK;
                const Block * two = one + ld;
                const Small small(one, two);
                for (int j = 0; j < Rows::OF_BLOCK; j++) {
                    ask(one->qs + sizeof(Block) * (BLOCKS / Rows::OF_BLOCK) + 128 * j, 128);
                    ask(two->qs + sizeof(Block) * (BLOCKS / Rows::OF_BLOCK) + 128 * j, 128);
                    _mm512_store_ps(to.scale[b + j] + c, small.scale_of(j));
                    _mm512_store_ps(to.least[b + j] + c, small.least_of(j));
                }
                for (int i = 0; i < QK_K / 16; i++) { // four times eight bytes of a pair of blocks
                    unpack_halves(to.weights[b + i / 4 * 2] + i % 4 * 2, c, STEPS, one->qs + 64 * i,
                                  two->qs + 64 * i, _mm512_setzero_si512());
                }
            }
        }
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

// c[R][16] = rows[R] times 16 columns
template <int R>
void Plain::few(float * c, int64_t ldc, const block_q8_0 * rows, int64_t ldr, int64_t k,
                int64_t column, const Scaled<Plain> & scaled, int64_t row) const {
    const block_q8_0 * from = first + column * ld;
    const size_t step = ld * sizeof(block_q8_0);
    const __m512i offset = _mm512_set1_epi8((char) OFFSET);
    __m512 total[R];
    for (int r = 0; r < R; r++) {
        total[r] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < k; b++) {
        __m512i parts[R][8];
        __m512i values[R];
        for (int r = 0; r < R; r++) {
            const __m256i one = _mm256_loadu_si256((const __m256i *) rows[r * ldr + b].qs);
            values[r] = _mm512_broadcast_i64x4(one);
        }
        alignas(32) ggml_half halves[16];
        const char * at = (const char *) (from + b);
        for (int i = 0; i < 8; i++) { // columns i and i + 4, from the fourth on 4 further
            const char * other = at + 4 * step;
            const __m256i one   = _mm256_loadu_si256((const __m256i *) (at + sizeof(ggml_half)));
            const __m256i fifth = _mm256_loadu_si256((const __m256i *) (other + sizeof(ggml_half)));
            __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(one), fifth, 1);
            both = _mm512_xor_si512(both, offset);
            memcpy(halves + i + i / 4 * 4, at, sizeof(ggml_half));
            memcpy(halves + i + i / 4 * 4 + 4, other, sizeof(ggml_half));
            __builtin_prefetch(at + 16 * step, 0, 2);
            __builtin_prefetch(other + 16 * step, 0, 2);
            for (int r = 0; r < R; r++) {
                parts[r][i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), both, values[r]);
            }
            at += i == 3 ? 5 * step : step;
        }
        const __m512 of_weights = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) halves));
        for (int r = 0; r < R; r++) {
            const int64_t at_block = (row + r) * k + b;
            const __m512i sums =
                _mm512_add_epi32(joined(parts[r]), _mm512_set1_epi32(scaled.start[at_block]));
            const __m512 both =
                _mm512_mul_ps(of_weights, _mm512_set1_ps(scaled.scale[at_block]));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), both, total[r]);
        }
    }
    for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(c + r * ldc + column, total[r]);
    }
}

// Sums of 2 x 8 columns, of each of which two lanes have one half
static inline __m512i halves_joined(__m512i one, __m512i two) {
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14,
                                            16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_permutex2var_epi32(one, evens, two),
                            _mm512_permutex2var_epi32(one, odds, two));
}

// Eight values of a row, for eight columns
static inline __m512i eight(const int8_t * values) {
    int64_t all;
    memcpy(&all, values, sizeof(all));
    return _mm512_set1_epi64(all);
}

template <typename Block>
template <int R>
void Fours<Block>::few(float * c, int64_t ldc, const block_q8_0 * rows, int64_t ldr, int64_t k,
                       int64_t column, const Scaled<Fours> & scaled, int64_t row) const {
    const Block * from = first + column / 8 * ld;
    const __m512i turned = _mm512_set1_epi8((char) 0x88), half = _mm512_set1_epi8(0x0f);
    __m512 total[R];
    for (int r = 0; r < R; r++) {
        total[r] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < k; b++) {
        const Block * sides[2] = {from + b, from + b + ld};
        __m512i sums[R][2];
        for (int r = 0; r < R; r++) {
            sums[r][0] = sums[r][1] = _mm512_setzero_si512();
        }
        for (int side = 0; side < 2; side++) {
            ask(sides[side] + 2 * ld, sizeof(Block)); // of the next columns
            for (int i = 0; i < 2; i++) {
                const __m512i bytes =
                    _mm512_xor_si512(_mm512_loadu_si512(sides[side]->qs + 64 * i), turned);
                const __m512i lower  = _mm512_and_si512(bytes, half);
                const __m512i higher = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), half);
                for (int r = 0; r < R; r++) {
                    const int8_t * values = rows[r * ldr + b].qs + 8 * i;
                    sums[r][side] = _mm512_dpbusd_epi32(sums[r][side], lower, eight(values));
                    sums[r][side] =
                        _mm512_dpbusd_epi32(sums[r][side], higher, eight(values + BLOCK / 2));
                }
            }
        }
        const __m512 of_weights = scales(sides[0]->d, sides[1]->d);
        for (int r = 0; r < R; r++) {
            const int64_t at_block = (row + r) * k + b;
            const __m512i all = _mm512_add_epi32(halves_joined(sums[r][0], sums[r][1]),
                                                 _mm512_set1_epi32(scaled.start[at_block]));
            const __m512 both = _mm512_mul_ps(of_weights, _mm512_set1_ps(scaled.scale[at_block]));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(all), both, total[r]);
        }
    }
    for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(c + r * ldc + column, total[r]);
    }
}

template <typename Block>
template <int R>
void FoursOfK<Block>::few(float * c, int64_t ldc, const block_q8_K * rows, int64_t ldr, int64_t k,
                          int64_t column, const Scaled<FoursOfK> & scaled, int64_t row) const {
    const Block * from = first + column / 8 * ld;
    const __m512i half = _mm512_set1_epi8(0x0f);
    __m512 total[R];
    for (int r = 0; r < R; r++) {
        total[r] = _mm512_setzero_ps();
    }
    for (int64_t large = 0; large < k / Rows::OF_BLOCK; large++) {
        const Block * sides[2] = {from + large, from + large + ld};
        const Small small(sides[0], sides[1]);
        for (int pair = 0; pair < Rows::OF_BLOCK; pair += 2) { // the halves of the same bytes
            const int64_t b = large * Rows::OF_BLOCK + pair;
            __m512i sums[2][R][2];
            for (int r = 0; r < R; r++) {
                for (int side = 0; side < 2; side++) {
                    sums[0][r][side] = sums[1][r][side] = _mm512_setzero_si512();
                }
            }
            for (int side = 0; side < 2; side++) {
                const uint8_t * from_here = sides[side]->qs + 128 * pair;
                ask(from_here + 2 * ld * sizeof(Block), 4 * 64); // of the next columns
                for (int i = 0; i < 4; i++) {
                    const __m512i bytes  = _mm512_loadu_si512(from_here + 64 * i);
                    const __m512i lower  = _mm512_and_si512(bytes, half);
                    const __m512i higher = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), half);
                    for (int r = 0; r < R; r++) {
                        const int8_t * values = Rows::values(rows + r * ldr, b) + 8 * i;
                        sums[0][r][side] =
                            _mm512_dpbusd_epi32(sums[0][r][side], lower, eight(values));
                        sums[1][r][side] =
                            _mm512_dpbusd_epi32(sums[1][r][side], higher, eight(values + BLOCK));
                    }
                }
            }
            for (int j = 0; j < 2; j++) {
                const __m512 scale = small.scale_of(pair + j), least = small.least_of(pair + j);
                for (int r = 0; r < R; r++) {
                    const int64_t at = (row + r) * k + b + j;
                    const __m512i all = halves_joined(sums[j][r][0], sums[j][r][1]);
                    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(scaled.scale[at]));
                    total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(all), both, total[r]);
                    total[r] = _mm512_fnmadd_ps(least, _mm512_set1_ps(scaled.sum[at]), total[r]);
                }
            }
        }
    }
    for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(c + r * ldc + column, total[r]);
    }
}

// c[R][COLUMNS] += rows[R] times the strip's blocks, which are those from `at` on; = for the first
template <int R, typename Weights>
static inline void multiply(float * c, int64_t ldc, const typename Weights::Rows::Block * rows,
                            int64_t ld, const Scaled<Weights> & scaled, int64_t first, int64_t k,
                            const Strip & strip, int64_t at, int blocks) {
    __m512 total[R][2];
    for (int r = 0; r < R; r++) {
        for (int v = 0; v < 2; v++) {
            total[r][v] = at == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * ldc + 16 * v);
        }
    }
    const float * scale   = scaled.scale.data() + first * k + at;
    const float * sum     = Weights::LEAST ? scaled.sum.data() + first * k + at : nullptr;
    const int32_t * start = scaled.start.data() + first * k + at;
    for (int b = 0; b < blocks; b++) {
        const int8_t * values = Weights::Rows::values(rows, at + b);
        __m512i sums[R][2];
        for (int r = 0; r < R; r++) {
            sums[r][0] = sums[r][1] =
                Weights::OFFSET ? _mm512_set1_epi32(start[r * k + b]) : _mm512_setzero_si512();
        }
        for (int i = 0; i < STEPS; i++) {
            const __m512i early = _mm512_load_si512(strip.weights[b][i][0]);
            const __m512i late  = _mm512_load_si512(strip.weights[b][i][16]);
            for (int r = 0; r < R; r++) {
                int32_t four;
                memcpy(&four, values + r * ld * sizeof(*rows) + 4 * i, 4);
                const __m512i all = _mm512_set1_epi32(four);
                sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], early, all);
                sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], late, all);
            }
        }
        for (int v = 0; v < 2; v++) {
            const __m512 of_weights = _mm512_load_ps(strip.scale[b] + 16 * v);
            for (int r = 0; r < R; r++) {
                const __m512 both = _mm512_mul_ps(of_weights, _mm512_set1_ps(scale[r * k + b]));
                total[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][v]), both, total[r][v]);
                if (Weights::LEAST) {
                    total[r][v] = _mm512_fnmadd_ps(_mm512_load_ps(strip.least[b] + 16 * v),
                                                   _mm512_set1_ps(sum[r * k + b]), total[r][v]);
                }
            }
        }
    }
    for (int r = 0; r < R; r++) {
        for (int v = 0; v < 2; v++) {
            _mm512_storeu_ps(c + r * ldc + 16 * v, total[r][v]);
        }
    }
}

// A number of rows up to FEW as a constant
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

// C[n][m] = B[n][k] A[m][k], k in blocks of BLOCK; this thread's part.
template <typename Weights>
static void products(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k,
                     const Weights & A, const typename Weights::Rows::Block * B, int64_t ldb,
                     float * C, int64_t ldc) {
    if (params->ith * COLUMNS >= m) {
        return;
    }
    static thread_local Scaled<Weights> scaled;
    Strip strip;
    scaled.read(B, ldb, n, k);
    const int64_t tiles = (n + ROWS - 1) / ROWS;
    for (int64_t column = params->ith * COLUMNS; column < m; column += params->nth * COLUMNS) {
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
    const int64_t tiles = (n + FEWER - 1) / FEWER, strips = m / 16;
    const int64_t begin = params->ith * strips / params->nth;
    const int64_t end = (params->ith + 1) * strips / params->nth;
    if (begin == end) {
        return;
    }
    static thread_local Scaled<Weights> scaled;
    scaled.read(B, ldb, n, k);
    for (int64_t strip = begin; strip < end; strip++) {
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t row = tile * n / tiles;
            with((tile + 1) * n / tiles - row, [&](auto count) {
                A.template few<decltype(count)::value>(C + row * ldc, ldc, B + row * ldb, ldb, k,
                                                       16 * strip, scaled, row);
            });
        }
    }
}

// Whether so many rows go through weights of this type column after column: more of them are
// faster by llama.cpp's own tiles. runtimes/llamacpp/shapes.py tries passes of so many.
static inline bool by_columns(int type, int64_t rows) {
    return (type == GGML_TYPE_Q5_K && rows <= 12) || (type == GGML_TYPE_Q6_K && rows <= 32);
}

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
        uint32_t word[3];
        memcpy(word, block.scales, sizeof(word));
        const auto both = [](uint32_t first, uint32_t rest) {
            return (first & 0x3f3f3f3f) | uint64_t(rest | (first >> 2 & 0x30303030)) << 32;
        };
        const uint64_t of_scale = both(word[0], word[2] & 0x0f0f0f0f);
        const uint64_t of_least = both(word[1], word[2] >> 4 & 0x0f0f0f0f);
        const __m128i once = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(of_least));
        scales = _mm256_castsi128_si256(_mm_cvtepu8_epi16(_mm_cvtsi64_si128(of_scale)));
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

// C[n][m] = B[n][k] A[m][k], column after column; this thread's part
template <typename Weights>
static void columns(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k,
                    const void * A, int64_t lda, const void * B, int64_t ldb, float * C,
                    int64_t ldc) {
    const auto * weights = (const typename Weights::Block *) A;
    const auto * rows    = (const block_q8_K *) B;
    const int64_t tiles = (n + FEW - 1) / FEW;
    const int64_t end = (params->ith + 1) * m / params->nth;
    for (int64_t column = params->ith * m / params->nth; column < end; column++) {
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t row = tile * n / tiles;
            with((tile + 1) * n / tiles - row, [&](auto count) {
                one_column<Weights, decltype(count)::value>(
                    C + row * ldc + column, ldc, rows + row * ldb, ldb, k, weights + column * lda);
            });
        }
    }
}

// The same as llamafile_sgemm has it: of any number of rows with weights in Q8_0, of few in Q5_K
// and Q6_K; false for others
static inline bool plain_products(const ggml_compute_params * params, int64_t m, int64_t n,
                                  int64_t k, const void * A, int64_t lda, const void * B,
                                  int64_t ldb, void * C, int64_t ldc, int of_a, int of_b) {
    if (of_b == GGML_TYPE_Q8_K && by_columns(of_a, n)) {
        const auto go = of_a == GGML_TYPE_Q5_K ? columns<Fives> : columns<Sixes>;
        go(params, m, n, k, A, lda, B, ldb, (float *) C, ldc);
        return true;
    }
    if (of_a != GGML_TYPE_Q8_0 || of_b != GGML_TYPE_Q8_0 || m % COLUMNS != 0 || k == 0) {
        return false;
    }
    const Plain weights{(const block_q8_0 *) A, lda};
    const block_q8_0 * rows = (const block_q8_0 *) B;
    if (n > FEW) {
        products(params, m, n, k, weights, rows, ldb, (float *) C, ldc);
        return true;
    }
    few_products(params, m, n, k, weights, rows, ldb, (float *) C, ldc);
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
        const auto go = n <= FEW ? few_products<Weights<Block>> : products<Weights<Block>>;
        go(params, m, n, k, Weights<Block>{(const Block *) first, ld}, rows + plane * n * ld, ld,
           to, dst->nb[1] / sizeof(float));
    }
    return true;
}

} // namespace ingot

#endif
