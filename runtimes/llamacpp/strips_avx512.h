// Unpacked weights, and products of rows with them, on processors with AVX512-VNNI.
//
// A lane is a column of the result. `read` unpacks a strip of columns, four weights of a column
// beside each other as VNNI wants them, for `multiply`; `few` goes through the weights of NARROW
// columns as they lie, with up to FEWER rows.

#pragma once

#include "ingot-weights.h"

namespace ingot {

constexpr int COLUMNS = 32; // two vectors
constexpr int NARROW  = 16; // of few rows
constexpr int ROWS    = 6;  // whose sums stay in registers

// Weights of COLUMNS columns in up to BLOCKS blocks: (weights - OFFSET) * scale - least
struct Strip { // 16 KB
    alignas(64) uint8_t weights[BLOCKS][STEPS][COLUMNS][4];
    alignas(64) float scale[BLOCKS][COLUMNS];
    alignas(64) float least[BLOCKS][COLUMNS];
};

template <typename>
using StripOf = Strip;

// Weights column after column, `ld` blocks apart
template <typename Kind>
struct Plain {
    typedef typename Kind::Rows Rows;
    typedef typename Kind::Block Block;
    static constexpr int OFFSET = Kind::OFFSET;
    static constexpr int FEW = Kind::BITS == 8 ? 8 : 4; // rows that gain nothing from strips
    static constexpr bool LEAST = Kind::LEAST;

    const Block * first;
    int64_t ld;

    // 16 columns of a block: a transpose of 16 x 8 groups of four weights
    void unpack(uint8_t (* to)[COLUMNS][4], int column, const Block * at) const {
        __m512i a[8], b[8];
        for (int i = 0; i < 8; i++) {
            a[i] = Kind::two(*at, at[4 * ld]);
            at += i == 3 ? 5 * ld : ld;
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
        for (int i = 0; i < 4; i++) {
            _mm512_store_si512(to[i][column], _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88));
            _mm512_store_si512(to[i + 4][column], _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd));
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
    void few(float * c, int64_t ldc, const typename Rows::Block * rows, int64_t ldr, int64_t k,
             int64_t column, const Scaled<Plain> & scaled, int64_t row) const;

    void read(Strip & to, int64_t column, int64_t at, int blocks) const {
        for (int b = 0; b < blocks; b++) {
            const Block * from = first + column * ld + at + b;
            for (int c = 0; c < COLUMNS; c += 16) {
                unpack(to.weights[b], c, from + c * ld);
            }
            alignas(64) ggml_half halves[COLUMNS], least[COLUMNS];
            for (int c = 0; c < COLUMNS; c++) {
                halves[c] = half_of(from + c * ld);
                if (LEAST) {
                    least[c] = Kind::least(from[c * ld]);
                }
                __builtin_prefetch(from + c * ld + BLOCKS, 0, 2);
            }
            for (int c = 0; c < COLUMNS; c += 16) {
                _mm512_store_ps(to.scale[b] + c, floats(halves + c));
                if (LEAST) {
                    _mm512_store_ps(to.least[b] + c, floats(least + c));
                }
            }
        }
    }

    static __m512 floats(const ggml_half * halves) {
        return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) halves));
    }
};

// Eight bytes of each of 2 x 8 columns, two weights a byte (the lower BLOCK of them apart from the
// higher one by `apart` places), to two steps of 16 columns
template <typename Codes>
static inline void unpack_halves(uint8_t (* to)[COLUMNS][4], int column, int apart,
                                 const void * one, const void * two) {
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14,
                                            16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const __m512i half = _mm512_set1_epi8(0x0f), turned = _mm512_set1_epi8((char) Codes::TURNED);
    const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(one), turned);
    const __m512i y = _mm512_xor_si512(_mm512_loadu_si512(two), turned);
    for (int i = 0; i < 2; i++) {
        const __m512i bytes  = _mm512_permutex2var_epi32(x, i ? odds : evens, y);
        const __m512i higher = _mm512_srli_epi16(bytes, 4);
        _mm512_store_si512(to[i][column], Codes::weights(_mm512_and_si512(bytes, half)));
        _mm512_store_si512(to[i + apart][column], Codes::weights(_mm512_and_si512(higher, half)));
    }
}

// Weights of four bits as llama.cpp repacks them: blocks of eight columns, `ld` of a column, with
// eight bytes of each column in turn, each byte two weights 16 apart
template <typename Block, typename Codes>
struct Halves {
    typedef Eights Rows;
    static constexpr int OFFSET = Codes::OFFSET, FEW = 8;
    static constexpr bool LEAST = false;

    const Block * first;
    int64_t ld;

    template <int R>
    void few(float * c, int64_t ldc, const block_q8_0 * rows, int64_t ldr, int64_t k,
             int64_t column, const Scaled<Halves> & scaled, int64_t row) const;

    void read(Strip & to, int64_t column, int64_t at, int blocks) const {
        for (int b = 0; b < blocks; b++) {
            for (int c = 0; c < COLUMNS; c += 16) {
                const Block * one = first + (column + c) / 8 * ld + at + b;
                const Block * two = one + ld;
                ask(one + BLOCKS, sizeof(Block));
                ask(two + BLOCKS, sizeof(Block));
                for (int i = 0; i < 2; i++) {
                    unpack_halves<Codes>(to.weights[b] + 2 * i, c, STEPS / 2, one->qs + 64 * i,
                                         two->qs + 64 * i);
                }
                _mm512_store_ps(to.scale[b] + c, Codes::scales_of(one, two));
            }
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
    static constexpr int OFFSET = 0, FEW = 8;
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
                    unpack_halves<Straight>(to.weights[b + i / 4 * 2] + i % 4 * 2, c, STEPS,
                                            one->qs + 64 * i, two->qs + 64 * i);
                }
            }
        }
    }
};

// c[R][16] = rows[R] times 16 columns
template <typename Kind>
template <int R>
void Plain<Kind>::few(float * c, int64_t ldc, const typename Rows::Block * rows, int64_t ldr,
                      int64_t k, int64_t column, const Scaled<Plain> & scaled,
                      int64_t row) const {
    const Block * from = first + column * ld;
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
        alignas(32) ggml_half halves[16], least[16];
        const Block * at = from + b;
        for (int i = 0; i < 8; i++) { // columns i and i + 4, from the fourth on 4 further
            const Block * other = at + 4 * ld;
            const __m512i both = Kind::two(*at, *other);
            const int place = i + i / 4 * 4;
            halves[place] = half_of(at);
            halves[place + 4] = half_of(other);
            if (LEAST) {
                least[place] = Kind::least(*at);
                least[place + 4] = Kind::least(*other);
            }
            __builtin_prefetch(at + 16 * ld, 0, 2);
            __builtin_prefetch(other + 16 * ld, 0, 2);
            for (int r = 0; r < R; r++) {
                parts[r][i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), both, values[r]);
            }
            at += i == 3 ? 5 * ld : ld;
        }
        const __m512 of_weights = floats(halves);
        for (int r = 0; r < R; r++) {
            const int64_t at_block = (row + r) * k + b;
            const __m512i sums =
                _mm512_add_epi32(joined(parts[r]), _mm512_set1_epi32(scaled.start[at_block]));
            const __m512 both =
                _mm512_mul_ps(of_weights, _mm512_set1_ps(scaled.scale[at_block]));
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), both, total[r]);
            if (LEAST) {
                total[r] = _mm512_fnmadd_ps(floats(least), _mm512_set1_ps(scaled.sum[at_block]),
                                            total[r]);
            }
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

template <typename Block, typename Codes>
template <int R>
void Halves<Block, Codes>::few(float * c, int64_t ldc, const block_q8_0 * rows, int64_t ldr,
                               int64_t k, int64_t column, const Scaled<Halves> & scaled,
                               int64_t row) const {
    const Block * from = first + column / 8 * ld;
    const __m512i half = _mm512_set1_epi8(0x0f), turned = _mm512_set1_epi8((char) Codes::TURNED);
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
                const __m512i lower  = Codes::weights(_mm512_and_si512(bytes, half));
                const __m512i higher =
                    Codes::weights(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), half));
                for (int r = 0; r < R; r++) {
                    const int8_t * values = rows[r * ldr + b].qs + 8 * i;
                    sums[r][side] = _mm512_dpbusd_epi32(sums[r][side], lower, eight(values));
                    sums[r][side] =
                        _mm512_dpbusd_epi32(sums[r][side], higher, eight(values + BLOCK / 2));
                }
            }
        }
        const __m512 of_weights = Codes::scales_of(sides[0], sides[1]);
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

} // namespace ingot
