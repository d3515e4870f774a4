// Attention on the processor for any number of query rows: decode, short turns and long prompts.
//
// Included by ggml-cpu's ops.cpp, whose own kernels take passes of fewer than 64 tokens one query
// row at a time, and keys and values anew for each head. Here all query heads that share a head of
// keys and values, of up to MOST_ROWS rows, go through these in blocks of KV positions: a block is
// widened to floats once, keys transposed, and both products (scores, and their sums of values)
// are one loop that multiplies a scalar of a row with a vector of the block. The softmax is the
// online one of arXiv:2112.05682 and arXiv:2205.14135; the split over positions with a merge of
// (maximum, sum, values) is that of flash decoding.
//
// A row's result depends on nothing but the row: blocks and chunks begin at fixed positions, and
// chunks are merged in their order, whether one thread computes them or several.
//
// Keys and values of bfloat16 are multiplied as such where the processor can (AVX512-BF16: two
// products a lane), and queries and weights are rounded to it; sums are floats.

#pragma once

#if defined(__GNUC__) && ((defined(__AVX2__) && defined(__F16C__)) || defined(__ARM_NEON))
#define INGOT_ATTENTION
#endif

extern "C" size_t ingot_attention_work_size(const struct ggml_tensor * dst, int n_tasks);

#ifndef INGOT_ATTENTION

extern "C" size_t ingot_attention_work_size(const struct ggml_tensor *, int) { return 0; }
static bool ingot_attention(const ggml_compute_params *, ggml_tensor *) { return false; }

#else

namespace ingot {

#define INGOT_UNROLL _Pragma("GCC unroll 8")

// Compilers read a vector from memory as often as it is multiplied, where an instruction can
#if !defined(__ARM_NEON)
#define INGOT_KEEP(vector) asm("" : "+v"(vector))
#else
#define INGOT_KEEP(vector) asm("" : "+w"(vector))
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int VECTORS = 4; // of a tile of registers, which has four rows
#elif defined(__AVX2__)
constexpr int LANES = 8;
constexpr int VECTORS = 2;
#else
constexpr int LANES = 4;
constexpr int VECTORS = 4;
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef double Doubles __attribute__((vector_size(LANES * sizeof(double)), aligned(4), may_alias));
typedef uint32_t Integers __attribute__((vector_size(LANES * sizeof(uint32_t))));

constexpr int KV = 128;        // positions of a block
constexpr int STRIP = 8;       // of them, whose keys are transposed together
constexpr int FEW_ROWS = 8;    // of values, which are then widened as they are multiplied
constexpr int AHEAD = 64;      // rows of memory that are asked for before they are needed
constexpr int CHUNK = 512;     // positions of a chunk, a multiple of KV
constexpr int MOST_ROWS = 128; // of a tile of query rows
constexpr size_t LINE = 16;    // floats of a line of the processor's cache
constexpr size_t MOST_PARTIALS = size_t(32) << 20; // bytes

static_assert(CHUNK % KV == 0 && KV % LANES == 0, "blocks are whole vectors");

// How the work is cut; the same for the plan and for every thread of the step.
struct Cut {
    int64_t DK, DV, group, rows, row_tiles, chunks, units, partial;
    bool split;          // chunks are computed by different threads
    bool pairs;          // keys and values are multiplied as bfloat16
    size_t scratch;      // floats of a thread
    size_t partials;     // floats of all chunks' results

    Cut(const ggml_tensor * dst, int n_threads) {
        const ggml_tensor * q = dst->src[0];
        const ggml_tensor * k = dst->src[1];
        const ggml_tensor * v = dst->src[2];
        DK        = k->ne[0];
        DV        = v->ne[0];
        group     = q->ne[2] / k->ne[2];
        rows      = group * q->ne[1];
        row_tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
        chunks    = (k->ne[1] + CHUNK - 1) / CHUNK;
        units     = q->ne[3] * k->ne[2] * row_tiles;
        partial   = DV + 2;
#if defined(__AVX512BF16__)
        pairs = k->type == GGML_TYPE_BF16 && v->type == GGML_TYPE_BF16 && DK % 16 == 0 &&
                k->nb[1] % sizeof(float) == 0;
#else
        pairs = false;
#endif
        partials  = size_t(q->ne[3]) * k->ne[2] * rows * chunks * partial;
        split     = n_threads > 1 && chunks > 1 && units < 4 * n_threads &&
                    partials * sizeof(float) <= MOST_PARTIALS;
        if (split) {
            units *= chunks;
        } else {
            partials = 0;
        }
        const int64_t most = std::min<int64_t>(rows, MOST_ROWS);
        // queries, scores, values so far of the chunk and of all; keys of a strip, transposed keys
        // and values of a block; each row's maximum and sum, of the chunk and of all
        const int64_t of_row = DK + KV + 2 * DV + 3 + 2 * LANES;
        scratch = size_t(most * of_row + (KV + STRIP) * DK + KV * DV);
        scratch = (scratch + LINE - 1) / LINE * LINE;
    }
};

static bool takes(const ggml_tensor * dst) {
    const ggml_tensor * q    = dst->src[0];
    const ggml_tensor * k    = dst->src[1];
    const ggml_tensor * v    = dst->src[2];
    const ggml_tensor * mask = dst->src[3];
    const auto widens = [](const ggml_tensor * t) {
        return t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float != nullptr;
    };
    return q->type == GGML_TYPE_F32 && widens(k) && widens(v) &&
           k->ne[0] % 8 == 0 && v->ne[0] % LANES == 0 && k->ne[1] > 0 &&
           k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] && q->ne[2] % k->ne[2] == 0 &&
           q->ne[3] % k->ne[3] == 0 && (!mask || mask->type == GGML_TYPE_F16);
}

static inline Vector load(const float * from) { return *(const Vector *) from; }

static inline void add_product(Vector & sum, float one, Vector columns) { sum += one * columns; }

#if defined(__AVX512BF16__)
// Two bfloat16 beside each other: of one column, from two rows of a matrix whose rows are summed.
struct __attribute__((may_alias)) Pair {
    uint32_t bits;
};

static inline Vector load(const Pair * from) { return (Vector) _mm512_loadu_ps(from); }

static inline void add_product(Vector & sum, Pair one, Vector columns) {
    sum = (Vector) _mm512_dpbf16_ps((__m512) sum, (__m512bh) _mm512_set1_epi32(one.bits),
                                    (__m512bh) columns);
}

static inline void pair(Pair * to, Vector from) {
    _mm256_storeu_si256((__m256i *) to, (__m256i) _mm512_cvtneps_pbh((__m512) from));
}

// to[n / 2] = n floats; n is a multiple of 16, and both may be the same memory
static inline void pair(Pair * to, const float * from, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        pair(to + i / 2, load(from + i));
    }
}

// to[n] = the values of two rows beside each other; n is a multiple of 16
static inline void pair(Pair * to, const ggml_bf16_t * first, const ggml_bf16_t * second,
                        int64_t n) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t i = 0; i < n; i += 16) {
        const __m512i both = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) (first + i))),
            _mm256_loadu_si256((const __m256i *) (second + i)), 1);
        _mm512_storeu_si512(to + i, _mm512_permutexvar_epi16(order, both));
    }
}
#endif

static inline Vector load(const ggml_fp16_t * from) {
#if defined(__AVX512F__)
    return (Vector) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from));
#elif defined(__AVX2__)
    return (Vector) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from));
#else
    return (Vector) vcvt_f32_f16(vld1_f16((const __fp16 *) from));
#endif
}

static inline float greatest(Vector x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512) x);
#elif defined(__ARM_NEON)
    return vmaxvq_f32((float32x4_t) x);
#else
    float most = x[0];
    for (int i = 1; i < LANES; i++) {
        most = std::max(most, x[i]);
    }
    return most;
#endif
}

// e^x of x <= 0, to two units in the last place; 0 where that is below 1e-37, NaN of NaN. Cody and
// Waite's reduction to |x| <= ln 2 / 2 and the polynomial of Cephes' expf.
//
// ROUGH: to 1e-4, of which a bfloat16 keeps nothing.
template <bool ROUGH>
static inline Vector exponential(Vector x) {
    constexpr float shift = 12582912.0f; // 1.5 * 2^23: a sum with it ends in the nearest integer
    const Vector shifted = x * 1.44269504f + shift;
    const Vector power = shifted - shift;
    Vector y;
    if (ROUGH) { // 2^rest, by the least of the largest errors
        const Vector rest = x * 1.44269504f - power;
        y = rest * 0.05500895f + 0.24221101f;
        y = y * rest + 0.69328293f;
        y = y * rest + 1.0f;
    } else {
        const Vector rest = x - power * 0.693359375f + power * 2.12194440e-4f;
        y = rest * 1.9875691500e-4f + 1.3981999507e-3f;
        y = y * rest + 8.3334519073e-3f;
        y = y * rest + 4.1665795894e-2f;
        y = y * rest + 1.6666665459e-1f;
        y = y * rest + 5.0000001201e-1f;
        y = y * rest * rest + rest + 1.0f;
    }
    return (Vector) (((Integers) y + ((Integers) shifted << 23)) & (Integers) ~(x <= -85.0f));
}

// c[rows][N] = a[rows][K] b[K][N], or this is added to it, for R rows and V vectors of columns
template <bool ADD, int R, int V, typename A, typename B>
__attribute__((noinline))
static void multiply_tile(float * c, int64_t ldc, const A * a, int64_t lda,
                          const B * b, int64_t ldb, int64_t K) {
    Vector sums[R][V];
    INGOT_UNROLL
    for (int r = 0; r < R; r++) {
        INGOT_UNROLL
        for (int j = 0; j < V; j++) {
            sums[r][j] = ADD ? load(c + r * ldc + j * LANES) : Vector{};
        }
    }
    for (int64_t i = 0; i < K; i++) {
        Vector columns[V];
        INGOT_UNROLL
        for (int j = 0; j < V; j++) {
            columns[j] = load(b + i * ldb + j * LANES);
            INGOT_KEEP(columns[j]);
        }
        INGOT_UNROLL
        for (int r = 0; r < R; r++) {
            const A one = a[r * lda + i];
            INGOT_UNROLL
            for (int j = 0; j < V; j++) {
                add_product(sums[r][j], one, columns[j]);
            }
        }
    }
    INGOT_UNROLL
    for (int r = 0; r < R; r++) {
        INGOT_UNROLL
        for (int j = 0; j < V; j++) {
            *(Vector *) (c + r * ldc + j * LANES) = sums[r][j];
        }
    }
}

template <bool ADD, int R, typename A, typename B>
static inline void multiply_rows(float * c, int64_t ldc, const A * a, int64_t lda,
                                 const B * b, int64_t ldb, int64_t K, int64_t N) {
    int64_t n = 0;
    for (; n + VECTORS * LANES <= N; n += VECTORS * LANES) {
        multiply_tile<ADD, R, VECTORS>(c + n, ldc, a, lda, b + n, ldb, K);
    }
    for (; n < N; n += LANES) {
        multiply_tile<ADD, R, 1>(c + n, ldc, a, lda, b + n, ldb, K);
    }
}

template <bool ADD, typename A, typename B>
static void multiply(float * c, int64_t ldc, const A * a, int64_t lda, const B * b,
                     int64_t ldb, int64_t rows, int64_t K, int64_t N) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        multiply_rows<ADD, 4>(c + r * ldc, ldc, a + r * lda, lda, b, ldb, K, N);
    }
    c += r * ldc;
    a += r * lda;
    switch (rows - r) {
        case 3: multiply_rows<ADD, 3>(c, ldc, a, lda, b, ldb, K, N); break;
        case 2: multiply_rows<ADD, 2>(c, ldc, a, lda, b, ldb, K, N); break;
        case 1: multiply_rows<ADD, 1>(c, ldc, a, lda, b, ldb, K, N); break;
        default: break;
    }
}

// to[n][KV] = the transpose of STRIP rows of n, `ld` apart, in STRIP columns; n is a multiple of 8
static inline void transpose(float * to, const float * from, int64_t ld, int64_t n) {
#if defined(__AVX__)
    for (int64_t i = 0; i < n; i += 8) {
        const float * f = from + i;
        __m256 a[8], b[8];
        for (int x = 0; x < 4; x++) { // rows x and x + 4 side by side
            a[x]     = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(f + x * ld)),
                                            _mm_loadu_ps(f + (x + 4) * ld), 1);
            a[x + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(f + x * ld + 4)),
                                            _mm_loadu_ps(f + (x + 4) * ld + 4), 1);
        }
        for (int x = 0; x < 8; x += 4) { // four columns of each
            b[x]     = _mm256_unpacklo_ps(a[x], a[x + 1]);
            b[x + 1] = _mm256_unpackhi_ps(a[x], a[x + 1]);
            b[x + 2] = _mm256_unpacklo_ps(a[x + 2], a[x + 3]);
            b[x + 3] = _mm256_unpackhi_ps(a[x + 2], a[x + 3]);
            float * t = to + (i + x) * KV;
            _mm256_storeu_ps(t,          _mm256_shuffle_ps(b[x], b[x + 2], 0x44));
            _mm256_storeu_ps(t + KV,     _mm256_shuffle_ps(b[x], b[x + 2], 0xee));
            _mm256_storeu_ps(t + 2 * KV, _mm256_shuffle_ps(b[x + 1], b[x + 3], 0x44));
            _mm256_storeu_ps(t + 3 * KV, _mm256_shuffle_ps(b[x + 1], b[x + 3], 0xee));
        }
    }
#else
    for (int64_t i = 0; i < n; i += 4) {
        for (int j = 0; j < STRIP; j += 4) {
            const float * f = from + j * ld + i;
            const float32x4x2_t a = vtrnq_f32(vld1q_f32(f), vld1q_f32(f + ld));
            const float32x4x2_t b = vtrnq_f32(vld1q_f32(f + 2 * ld), vld1q_f32(f + 3 * ld));
            float * t = to + i * KV + j;
            for (int x = 0; x < 2; x++) {
                vst1q_f32(t + x * KV,
                          vcombine_f32(vget_low_f32(a.val[x]), vget_low_f32(b.val[x])));
                vst1q_f32(t + (x + 2) * KV,
                          vcombine_f32(vget_high_f32(a.val[x]), vget_high_f32(b.val[x])));
            }
        }
    }
#endif
}

// One row of n values as floats, from memory of any type. The next rows lie a whole token of all
// heads apart, where no processor looks ahead by itself.
struct Widen {
    const char * from;
    size_t step, bytes;
    ggml_type type;
    int64_t n;
    ggml_to_float_t to_float;

    Widen(const ggml_tensor * t, const char * from)
        : from(from), step(t->nb[1]), bytes(ggml_row_size(t->type, t->ne[0])), type(t->type),
          n(t->ne[0]), to_float(ggml_get_type_traits(t->type)->to_float) {}

    const char * at(int64_t i) const { return from + i * step; }

    void ask(int64_t i) const {
        for (size_t line = 0; line < bytes; line += 64) {
            __builtin_prefetch(at(i) + line, 0, 2);
        }
    }

    void row(float * to, int64_t i) const {
        ask(i + AHEAD);
        if (type == GGML_TYPE_F16) {
            const ggml_fp16_t * halves = (const ggml_fp16_t *) at(i);
            int64_t j = 0;
            for (; j + LANES <= n; j += LANES) {
                *(Vector *) (to + j) = load(halves + j);
            }
            ggml_cpu_fp16_to_fp32(halves + j, to + j, n - j);
        } else if (type == GGML_TYPE_F32) {
            memcpy(to, at(i), n * sizeof(float));
        } else {
            to_float(at(i), to, n);
        }
    }
};

// Adds a chunk's values, of this maximum and sum, to those of the chunks before it
__attribute__((noinline))
static void merge(float * all, float & M, float & S, const float * values, float m, float s,
                  int64_t DV) {
    if (s == 0.0f) {
        return;
    }
    const float most = std::max(M, m);
    const float old_scale = expf(M - most), new_scale = expf(m - most);
    for (int64_t d = 0; d < DV; d++) {
        all[d] = all[d] * old_scale + values[d] * new_scale;
    }
    S = S * old_scale + s * new_scale;
    M = most;
}

struct Step {
    const ggml_compute_params * params;
    ggml_tensor * dst;
    const ggml_tensor *q, *k, *v, *mask, *sinks;
    Cut cut;
    float scale, softcap, bias, m0, m1;
    uint32_t heads_log2;

    // of this thread
    float *Q, *scores, *values, *all, *strip, *keys, *block, *m, *s, *M, *S;
    float * partials;

    Step(const ggml_compute_params * params, ggml_tensor * dst)
        : params(params), dst(dst), q(dst->src[0]), k(dst->src[1]), v(dst->src[2]),
          mask(dst->src[3]), sinks(dst->src[4]), cut(dst, params->nth) {
        memcpy(&scale,   (float *) dst->op_params + 0, sizeof(float));
        memcpy(&bias,    (float *) dst->op_params + 1, sizeof(float));
        memcpy(&softcap, (float *) dst->op_params + 2, sizeof(float));
        if (softcap != 0.0f) {
            scale /= softcap;
        }
        heads_log2 = 1u << (uint32_t) floor(log2(q->ne[2]));
        m0 = powf(2.0f, -bias / heads_log2);
        m1 = powf(2.0f, -(bias / 2.0f) / heads_log2);

        const int64_t most = std::min<int64_t>(cut.rows, MOST_ROWS);
        const size_t line = LINE * sizeof(float);
        float * base = (float *) (((uintptr_t) params->wdata + line - 1) / line * line);
        float * next = base + params->ith * cut.scratch;
        const auto take = [&next](int64_t count) { float * p = next; next += count; return p; };
        Q      = take(most * cut.DK);
        scores = take(most * KV);
        values = take(most * cut.DV);
        all    = take(most * cut.DV);
        strip  = take(STRIP * cut.DK);
        keys   = take(KV * cut.DK);
        block  = take(KV * cut.DV);
        m = take(most); s = take(most * 2 * LANES); M = take(most); S = take(most);
        partials = base + params->nth * cut.scratch;
    }

    float slope(int64_t head) const {
        if (bias <= 0.0f) {
            return 1.0f;
        }
        const uint32_t h = head;
        return h < heads_log2 ? powf(m0, h + 1) : powf(m1, 2 * (h - heads_log2) + 1);
    }

    const ggml_fp16_t * mask_row(int64_t token, int64_t head, int64_t stream) const {
        return (const ggml_fp16_t *) ((const char *) mask->data + token * mask->nb[1] +
               (head % mask->ne[2]) * mask->nb[2] + (stream % mask->ne[3]) * mask->nb[3]);
    }

    float * partial(int64_t stream, int64_t kv_head, int64_t row, int64_t chunk) const {
        const int64_t rows = (stream * k->ne[2] + kv_head) * cut.rows + row;
        return partials + (rows * cut.chunks + chunk) * cut.partial;
    }

    bool sees(int64_t token, int64_t kv_head, int64_t stream, int64_t at, int n) const {
        static const ggml_fp16_t hidden = GGML_CPU_FP32_TO_FP16(-INFINITY);
        const int64_t heads = mask->ne[2] > 1 ? cut.group : 1;
        for (int64_t g = 0; g < heads; g++) {
            const ggml_fp16_t * row = mask_row(token, kv_head * cut.group + g, stream) + at;
            int seen = 0;
            for (int i = 0; i < n; i++) {
                seen |= row[i] != hidden;
            }
            if (seen) {
                return true;
            }
        }
        return false;
    }

    // Of rows [row, row + rows), those from the first to the last token that sees any position of
    // a block: of a cache that many slots share, a block is mostly one slot's, and a long prompt's
    // first tokens do not see its last ones.
    void narrow(int64_t & row, int64_t & rows, int64_t kv_head, int64_t stream, int64_t at, int n) {
        if (!mask) {
            return;
        }
        int64_t first = row / cut.group, last = (row + rows - 1) / cut.group;
        while (first <= last && !sees(first, kv_head, stream, at, n)) {
            first++;
        }
        while (last > first && !sees(last, kv_head, stream, at, n)) {
            last--;
        }
        const int64_t end = std::min(row + rows, (last + 1) * cut.group);
        row  = std::max(row, first * cut.group);
        rows = std::max<int64_t>(0, end - row);
    }

    // Of a block's n positions from `at` on, those between the first and the last vector of which
    // any of these rows sees some: of a short row's one block, most lie behind its end.
    void shorten(int64_t row, int64_t rows, int64_t kv_head, int64_t stream, int64_t & at,
                 int & n) {
        if (!mask) {
            return;
        }
        const int64_t first = row / cut.group, last = (row + rows - 1) / cut.group;
        const auto seen = [&](int64_t from, int count) {
            for (int64_t token = last; token >= first; token--) {
                if (sees(token, kv_head, stream, from, count)) {
                    return true;
                }
            }
            return false;
        };
        while (n > LANES && !seen(at + (n - 1) / LANES * LANES, (n - 1) % LANES + 1)) {
            n = (n - 1) / LANES * LANES;
        }
        while (n > LANES && !seen(at, LANES)) {
            at += LANES;
            n -= LANES;
        }
    }

    // Whole vectors of n positions
    static int columns(int n) { return (n + LANES - 1) / LANES * LANES; }

    // Row r of a group is head r % group of token r / group.
    void read_queries(int64_t stream, int64_t kv_head, int64_t row, int64_t rows) {
        for (int64_t i = 0; i < rows; i++) {
            const int64_t token = (row + i) / cut.group;
            const int64_t head  = kv_head * cut.group + (row + i) % cut.group;
            const float * from = (const float *) ((const char *) q->data + token * q->nb[1] +
                                                  head * q->nb[2] + stream * q->nb[3]);
            memcpy(Q + i * cut.DK, from, cut.DK * sizeof(float));
            round_row(Q + i * cut.DK, cut.DK);
        }
    }

    // A row of one side of a product, where it is of pairs: these, at its beginning
    void round_row([[maybe_unused]] float * row, [[maybe_unused]] int64_t n) const {
#if defined(__AVX512BF16__)
        if (cut.pairs) {
            pair((Pair *) row, row, n);
        }
#endif
    }

#if defined(__AVX512BF16__)
    // Scores of a block's n positions, all of bfloat16: pairs of a head's columns
    void multiply_keys(const Widen & from, int64_t at, int n, int64_t skip, int64_t count) {
        const int64_t half = cut.DK / 2;
        for (int i = 0; i < columns(n); i += STRIP) {
            for (int j = i; j < i + STRIP; j++) {
                from.ask(at + j + AHEAD);
            }
            if (i + STRIP <= n) {
                transpose(keys + i, (const float *) from.at(at + i), from.step / 4, half);
                continue;
            }
            memset(strip, 0, STRIP * half * sizeof(float));
            for (int j = i; j < n; j++) {
                memcpy(strip + (j - i) * half, from.at(at + j), half * sizeof(float));
            }
            transpose(keys + i, strip, half, half);
        }
        multiply<false>(scores, KV, (const Pair *) Q + skip * cut.DK, cut.DK, (const Pair *) keys,
                        KV, count, half, columns(n));
    }

    // Adds a block's n values, all of bfloat16, by their weights: pairs of positions
    void multiply_values(const Widen & from, int64_t at, int n, int64_t skip, int64_t count) {
        const int64_t DV = cut.DV;
        float * none = block + KV / 2 * DV;
        memset(none, 0, DV * sizeof(float));
        const auto row = [&](int j) {
            return (const ggml_bf16_t *) (j < n ? from.at(at + j) : (const char *) none);
        };
        for (int j = 0; j < n; j += 2) {
            from.ask(at + j + AHEAD);
            from.ask(at + j + 1 + AHEAD);
            pair((Pair *) block + j / 2 * DV, row(j), row(j + 1), DV);
        }
        multiply<true>(values + skip * DV, DV, (const Pair *) scores, KV, (const Pair *) block, DV,
                       count, (n + 1) / 2, DV);
    }
#endif

    // m, s and values of rows over one chunk
    void compute(int64_t stream, int64_t kv_head, int64_t row, int64_t rows, int64_t chunk) {
        const int64_t DK = cut.DK, DV = cut.DV;
        const int64_t kv_stream = stream / (q->ne[3] / k->ne[3]);
        const Widen keys_of(
            k, (const char *) k->data + kv_head * k->nb[2] + kv_stream * k->nb[3]);
        const Widen values_of(
            v, (const char *) v->data + kv_head * v->nb[2] + kv_stream * v->nb[3]);
        std::fill(m, m + rows, -INFINITY);
        std::fill(s, s + rows * 2 * LANES, 0.0f);
        memset(values, 0, rows * DV * sizeof(float));
        const int64_t end = std::min<int64_t>((chunk + 1) * CHUNK, k->ne[1]);
        for (int64_t begin = chunk * CHUNK; begin < end; begin += KV) {
            int64_t from = row, count = rows, at = begin;
            int n = std::min<int64_t>(KV, end - at);
            narrow(from, count, kv_head, stream, at, n);
            if (count == 0) {
                continue;
            }
            shorten(from, count, kv_head, stream, at, n);
            const int64_t skip = from - row;
#if defined(__AVX512BF16__)
            if (cut.pairs) {
                multiply_keys(keys_of, at, n, skip, count);
                soften(stream, kv_head, row, skip, count, at, n);
                multiply_values(values_of, at, n, skip, count);
                continue;
            }
#endif
            for (int i = 0; i < columns(n); i += STRIP) {
                for (int j = i; j < i + STRIP; j++) {
                    if (j < n) {
                        keys_of.row(strip + (j - i) * DK, at + j);
                    } else {
                        memset(strip + (j - i) * DK, 0, DK * sizeof(float));
                    }
                }
                transpose(keys + i, strip, DK, DK);
            }
            multiply<false>(scores, KV, Q + skip * DK, DK, keys, KV, count, DK, columns(n));
            soften(stream, kv_head, row, skip, count, at, n);
            if (v->type == GGML_TYPE_F16 && count <= FEW_ROWS) { // the same floats, not kept
                const ggml_fp16_t * halves = (const ggml_fp16_t *) values_of.at(at);
                for (int j = 0; j < n; j++) {
                    values_of.ask(at + j + AHEAD);
                }
                multiply<true>(values + skip * DV, DV, scores, KV, halves, v->nb[1] / 2, count, n,
                               DV);
                continue;
            }
            for (int j = 0; j < n; j++) {
                values_of.row(block + j * DV, at + j);
            }
            multiply<true>(values + skip * DV, DV, scores, KV, block, DV, count, n, DV);
        }
    }

    // Scores of a block become weights, and what was summed before is scaled to the new maximum;
    // of the tile's rows [skip, skip + count)
    void soften(int64_t stream, int64_t kv_head, int64_t row, int64_t skip, int64_t count,
                int64_t at, int n) {
        const float factor = softcap != 0.0f ? softcap : scale;
        ggml_fp16_t padded[KV] = {}; // of positions that are none: their scores are 0
        std::fill(padded + n, padded + KV, GGML_CPU_FP32_TO_FP16(-INFINITY));
        int64_t token = (row + skip) / cut.group, among = (row + skip) % cut.group;
        for (int64_t i = skip; i < skip + count; i++) {
            float * one = scores + (i - skip) * KV;
            std::fill(one + columns(n), one + KV, 0.0f);
            if (softcap != 0.0f) {
                ggml_vec_scale_f32(KV, one, scale);
                ggml_vec_tanh_f32(KV, one, one);
            }
            const ggml_fp16_t * hidden = padded;
            float steep = 1.0f;
            if (mask) {
                const int64_t head = kv_head * cut.group + among;
                hidden = mask_row(token, head, stream) + at;
                steep  = slope(head);
                if (++among == cut.group) {
                    among = 0;
                    token++;
                }
                if (n < KV) {
                    hidden = (const ggml_fp16_t *) memcpy(padded, hidden, n * sizeof(*hidden));
                }
            }
            const float highest = highest_of(one, hidden, factor, steep, m[i]);
            const auto masked = [](float x) { return x == -INFINITY; };
            if (highest == -INFINITY && std::all_of(one, one + KV, masked)) { // none is NaN
                memset(one, 0, KV * sizeof(float));
                continue;
            }
            Doubles & sum = ((Doubles *) s)[i];
            if (highest > m[i]) {
                const float before = expf(m[i] - highest);
                ggml_vec_scale_f32(cut.DV, values + i * cut.DV, before);
                sum *= double(before);
                m[i] = highest;
            }
            cut.pairs ? weigh<true>(one, highest, sum) : weigh<false>(one, highest, sum);
        }
    }

    // The scaled and masked scores of a block, which are kept, and their maximum if it is above m,
    // else m
    static float highest_of(float * one, const ggml_fp16_t * hidden, float factor, float steep,
                            float m) {
        Vector most = {};
        most += m;
        INGOT_UNROLL
        for (int j = 0; j < KV; j += LANES) {
            const Vector x = load(one + j) * factor + load(hidden + j) * steep;
            most = x > most ? x : most;
            *(Vector *) (one + j) = x;
        }
        return greatest(most);
    }

    // Scores become weights, which are added to sum lane by lane: where they are floats as doubles,
    // so that a sum hardly depends on where in a cache that slots share its positions lie
    template <bool PAIRS>
    static void weigh(float * one, float highest, Doubles & sum) {
        Vector of_block = {};
        INGOT_UNROLL
        for (int j = 0; j < KV; j += LANES) {
            const Vector x = exponential<PAIRS>(load(one + j) - highest);
#if defined(__AVX512BF16__)
            if constexpr (PAIRS) {
                of_block += x;
                pair((Pair *) (one + j / 2), x);
                continue;
            }
#endif
            sum += __builtin_convertvector(x, Doubles);
            *(Vector *) (one + j) = x;
        }
        if constexpr (PAIRS) {
            sum += __builtin_convertvector(of_block, Doubles);
        }
    }

    float sum_of(int64_t row) const {
        double lanes[LANES], sum = 0.0;
        memcpy(lanes, s + row * 2 * LANES, sizeof(lanes));
        for (int i = 0; i < LANES; i++) {
            sum += lanes[i];
        }
        return sum;
    }

    // Of merged values: the sink's part, the division by the sum, and where they belong
    void finish(float * sums, float M, float S, int64_t stream, int64_t kv_head, int64_t row) {
        const int64_t token = row / cut.group, head = kv_head * cut.group + row % cut.group;
        if (sinks) {
            const float sink = ((const float *) sinks->data)[head];
            if (sink > M) {
                const float before = expf(M - sink);
                ggml_vec_scale_f32(cut.DV, sums, before);
                S = S * before + 1.0f;
            } else {
                S += expf(sink - M);
            }
        }
        ggml_vec_scale_f32(cut.DV, sums, S == 0.0f ? 0.0f : 1.0f / S);
        const int64_t place = (stream * dst->ne[2] + token) * dst->ne[1] + head;
        memcpy((char *) dst->data + place * dst->nb[1], sums, cut.DV * sizeof(float));
    }

    void unit(int64_t number) {
        const int64_t chunk = cut.split ? number % cut.chunks : -1;
        if (cut.split) {
            number /= cut.chunks;
        }
        const int64_t row     = number % cut.row_tiles * MOST_ROWS;
        const int64_t kv_head = number / cut.row_tiles % k->ne[2];
        const int64_t stream  = number / cut.row_tiles / k->ne[2];
        const int64_t rows    = std::min<int64_t>(MOST_ROWS, cut.rows - row);
        read_queries(stream, kv_head, row, rows);
        if (cut.split) {
            compute(stream, kv_head, row, rows, chunk);
            for (int64_t i = 0; i < rows; i++) {
                float * to = partial(stream, kv_head, row + i, chunk);
                to[0] = m[i];
                to[1] = sum_of(i);
                memcpy(to + 2, values + i * cut.DV, cut.DV * sizeof(float));
            }
            return;
        }
        std::fill(M, M + rows, -INFINITY);
        std::fill(S, S + rows, 0.0f);
        memset(all, 0, rows * cut.DV * sizeof(float));
        for (int64_t c = 0; c < cut.chunks; c++) {
            compute(stream, kv_head, row, rows, c);
            for (int64_t i = 0; i < rows; i++) {
                merge(all + i * cut.DV, M[i], S[i], values + i * cut.DV, m[i], sum_of(i),
                      cut.DV);
            }
        }
        for (int64_t i = 0; i < rows; i++) {
            finish(all + i * cut.DV, M[i], S[i], stream, kv_head, row + i);
        }
    }

    // The chunks of one row
    void join(int64_t number) {
        const int64_t row     = number % cut.rows;
        const int64_t kv_head = number / cut.rows % k->ne[2];
        const int64_t stream  = number / cut.rows / k->ne[2];
        float M = -INFINITY, S = 0.0f;
        memset(all, 0, cut.DV * sizeof(float));
        for (int64_t c = 0; c < cut.chunks; c++) {
            const float * from = partial(stream, kv_head, row, c);
            merge(all, M, S, from + 2, from[0], from[1], cut.DV);
        }
        finish(all, M, S, stream, kv_head, row);
    }

    void run() {
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }
        ggml_barrier(params->threadpool);
        for (int64_t at = params->ith; at < cut.units;
             at = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            unit(at);
        }
        if (cut.split) {
            ggml_barrier(params->threadpool);
            const int64_t rows = q->ne[3] * k->ne[2] * cut.rows;
            for (int64_t at = params->ith; at < rows; at += params->nth) {
                join(at);
            }
        }
    }
};

} // namespace ingot

extern "C" size_t ingot_attention_work_size(const struct ggml_tensor * dst, int n_tasks) {
    if (!ingot::takes(dst)) {
        return 0;
    }
    const ingot::Cut cut(dst, n_tasks);
    return sizeof(float) * (n_tasks * cut.scratch + cut.partials + ingot::LINE);
}

static bool ingot_attention(const ggml_compute_params * params, ggml_tensor * dst) {
    if (params->use_ref || !ingot::takes(dst)) {
        return false;
    }
    ingot::Step(params, dst).run();
    return true;
}

#endif
