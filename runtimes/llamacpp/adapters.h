// Rows of one pass that have LoRA adapters of their own.
//
// llama.cpp adds its adapters to every row of a pass. Here those of a model are stacked: for each
// of its matrices one tensor of all A [in, rank, 1 + adapters], and one of all B, transposed: [out,
// rank, 1 + adapters]. A row takes from both the adapter that its sequence has; the first is zero.

#pragma once

#include "llama-adapter.h"
#include "llama-graph.h"
#include "llama-model.h"

#if defined(__GNUC__)
#define INGOT_ADAPTERS

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ingot {

// The adapters of a stack that a pass takes: for its tokens, and for those with logits, which alone
// go through the end of the model's last layer.
class AdaptersOfRows : public llm_graph_input_i {
public:
    AdaptersOfRows(const llama_adapter_lora * stack, int64_t tokens, int64_t outputs)
        : stack(stack), tokens(tokens), outputs(outputs) {}

    // The one of a graph that is being built.
    static AdaptersOfRows & of(
            llm_graph_result * graph, const llama_adapter_lora * stack, int64_t tokens,
            int64_t outputs) {
        for (auto & input : graph->inputs) {
            if (auto * found = dynamic_cast<AdaptersOfRows *>(input.get())) {
                return *found;
            }
        }
        auto made = std::make_unique<AdaptersOfRows>(stack, tokens, outputs);
        return *static_cast<AdaptersOfRows *>(graph->add_input(std::move(made)));
    }

    // I32 [rows]
    ggml_tensor * ids(ggml_context * ctx, int64_t rows) {
        GGML_ASSERT(rows == tokens || rows == outputs);
        ggml_tensor *& found = rows == tokens ? of_tokens : of_outputs;
        if (!found) {
            found = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, rows);
            ggml_set_input(found);
        }
        return found;
    }

    void set_input(const llama_ubatch * batch) override {
        std::vector<int32_t> all, some;
        for (uint32_t i = 0; i < batch->n_tokens; ++i) {
            all.push_back(stack->ingot_adapters[batch->seq_id[i][0]]);
            if (of_outputs && batch->output[i]) {
                some.push_back(all.back());
            }
        }
        if (of_tokens) {
            ggml_backend_tensor_set(of_tokens, all.data(), 0, ggml_nbytes(of_tokens));
        }
        if (of_outputs) {
            ggml_backend_tensor_set(of_outputs, some.data(), 0, ggml_nbytes(of_outputs));
        }
    }

    // Whoever asks has compared the tokens and the adapters.
    bool can_reuse(const llm_graph_params & params) override {
        return params.n_outputs == outputs;
    }

private:
    const llama_adapter_lora * stack;
    const int64_t tokens, outputs;
    ggml_tensor * of_tokens = nullptr;
    ggml_tensor * of_outputs = nullptr;
};

#if defined(__x86_64__) && defined(__GLIBC__)
// libllama is compiled for any processor: the fitting one of three is chosen when it is loaded.
#define INGOT_CLONES                                                                               \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define INGOT_CLONES
#endif

constexpr int LANES = 16;
typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

// `to`[r][i] = `matrix`[i] . `rows`[r] for each of M lines of the matrix and R rows, of n numbers.
template <int M, int R>
__attribute__((always_inline)) inline void multiply(
        const float * const * matrix, const float * const * rows, float * const * to, int64_t n) {
    Vector sums[M][R] = {};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
            const Vector line = *(const Vector *) (matrix[m] + i);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                sums[m][r] += line * *(const Vector *) (rows[r] + i);
            }
        }
    }
    for (int m = 0; m < M; ++m) {
        for (int r = 0; r < R; ++r) {
            float sum = 0.0f;
            for (int lane = 0; lane < LANES; ++lane) {
                sum += sums[m][r][lane];
            }
            for (int64_t k = i; k < n; ++k) {
                sum += matrix[m][k] * rows[r][k];
            }
            to[r][m] = sum;
        }
    }
}

// `to`[r][i] += the sum of `factors`[r][k] `lines`[k][i] over k, for R rows, `begin` <= i < `end`.
template <int R>
__attribute__((always_inline)) inline void add(
        const float * lines, int64_t stride, const float * const * factors, int64_t rank,
        float * const * to, int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + LANES <= end; i += LANES) {
        Vector sums[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            sums[r] = *(const Vector *) (to[r] + i);
        }
        for (int64_t k = 0; k < rank; ++k) {
            const Vector line = *(const Vector *) (lines + k * stride + i);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                sums[r] += factors[r][k] * line;
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            *(Vector *) (to[r] + i) = sums[r];
        }
    }
    for (; i < end; ++i) {
        for (int r = 0; r < R; ++r) {
            for (int64_t k = 0; k < rank; ++k) {
                to[r][i] += factors[r][k] * lines[k * stride + i];
            }
        }
    }
}

using Lines = const float * const *;

INGOT_CLONES inline void multiply_4_by_1(Lines matrix, Lines rows, float * const * to, int64_t n) {
    multiply<4, 1>(matrix, rows, to, n);
}

INGOT_CLONES inline void multiply_2_by_4(Lines matrix, Lines rows, float * const * to, int64_t n) {
    multiply<2, 4>(matrix, rows, to, n);
}

INGOT_CLONES inline void add_to_1(
        const float * lines, int64_t stride, Lines factors, int64_t rank, float * const * to,
        int64_t begin, int64_t end) {
    add<1>(lines, stride, factors, rank, to, begin, end);
}

INGOT_CLONES inline void add_to_4(
        const float * lines, int64_t stride, Lines factors, int64_t rank, float * const * to,
        int64_t begin, int64_t end) {
    add<4>(lines, stride, factors, rank, to, begin, end);
}

inline float * line_of(const ggml_tensor * tensor, int64_t line, int64_t adapter = 0) {
    return (float *) ((char *) tensor->data + adapter * tensor->nb[2] + line * tensor->nb[1]);
}

// Call `each` with an adapter of `stacked` and 4 rows that have it, or 1, for all rows with any.
template <typename Each>
void by_adapter(const ggml_tensor * ids, const ggml_tensor * stacked, const Each & each) {
    const int32_t * adapters = (const int32_t *) ids->data;
    for (int64_t adapter = 1; adapter < stacked->ne[2]; ++adapter) {
        int64_t rows[4];
        int count = 0;
        for (int64_t row = 0; row < ids->ne[0]; ++row) {
            if (adapters[row] == adapter) {
                rows[count++] = row;
            }
            if (count == 4) {
                each(adapter, rows, 4);
                count = 0;
            }
        }
        for (int i = 0; i < count; ++i) {
            each(adapter, rows + i, 1);
        }
    }
}

// [rank, rows] = A `cur` [in, rows]: each thread for a part of the rank
inline void lower(ggml_tensor * dst, int ith, int nth, void * /*unused*/) {
    const ggml_tensor *cur = dst->src[0], *a = dst->src[1], *ids = dst->src[2];
    const int64_t begin = a->ne[1] * ith / nth, end = a->ne[1] * (ith + 1) / nth;
    by_adapter(ids, a, [&](int64_t adapter, const int64_t * which, int count) {
        const float * rows[4];
        for (int r = 0; r < count; ++r) {
            rows[r] = line_of(cur, which[r]);
        }
        const int step = count == 4 ? 2 : 4;
        for (int64_t at = begin; at < end; at += step) {
            const float * lines[4];
            float found[4][4], *to[4] = {found[0], found[1], found[2], found[3]};
            for (int m = 0; m < step; ++m) {
                lines[m] = line_of(a, std::min(at + m, end - 1), adapter);
            }
            (count == 4 ? multiply_2_by_4 : multiply_4_by_1)(lines, rows, to, a->ne[0]);
            for (int r = 0; r < count; ++r) {
                std::copy_n(
                    found[r], std::min<int64_t>(step, end - at), line_of(dst, which[r]) + at);
            }
        }
    });
}

// [out, rows] += B `lowered` [rank, rows]: each thread for a part of the columns
inline void raise(ggml_tensor * dst, int ith, int nth, void * /*unused*/) {
    const ggml_tensor *lowered = dst->src[1], *b = dst->src[2], *ids = dst->src[3];
    const int64_t parts = (b->ne[0] + LANES - 1) / LANES;
    const int64_t begin = parts * ith / nth * LANES;
    const int64_t end = std::min(parts * (ith + 1) / nth * LANES, b->ne[0]);
    by_adapter(ids, b, [&](int64_t adapter, const int64_t * which, int count) {
        const float * factors[4];
        float * to[4];
        for (int r = 0; r < count; ++r) {
            factors[r] = line_of(lowered, which[r]);
            to[r] = line_of(dst, which[r]);
        }
        const float * lines = line_of(b, 0, adapter);
        const auto added = count == 4 ? add_to_4 : add_to_1;
        added(lines, b->nb[1] / sizeof(float), factors, b->ne[1], to, begin, end);
    });
}

// `res` with what the adapters of its rows add to it: B A `cur`.
inline ggml_tensor * with_adapters_of_rows(
        ggml_context * ctx, AdaptersOfRows & rows, const llama_adapter_lora_weight & stacked,
        ggml_tensor * res, ggml_tensor * cur) {
    const int64_t count = ggml_nrows(cur);
    ggml_tensor * ids = rows.ids(ctx, count);
    cur = ggml_is_contiguous(cur) ? cur : ggml_cont(ctx, cur);
    ggml_tensor * given[] = {ggml_reshape_2d(ctx, cur, cur->ne[0], count), stacked.a, ids};
    ggml_tensor * lowered = ggml_custom_4d(
        ctx, GGML_TYPE_F32, stacked.a->ne[1], count, 1, 1, given, 3, lower, GGML_N_TASKS_MAX,
        nullptr);
    ggml_tensor * factors[] = {lowered, stacked.b, ids};
    ggml_tensor * flat = ggml_reshape_2d(ctx, res, res->ne[0], count);
    flat = ggml_custom_inplace(ctx, flat, factors, 3, raise, GGML_N_TASKS_MAX, nullptr);
    return ggml_reshape(ctx, flat, res);
}

// A matrix as numbers, line after line
inline std::vector<float> numbers(const ggml_tensor * matrix) {
    std::vector<float> found(ggml_nelements(matrix));
    for (int64_t i = 0; i < matrix->ne[1]; ++i) {
        const char * line = (const char *) matrix->data + i * matrix->nb[1];
        float * to = found.data() + i * matrix->ne[0];
        if (matrix->type == GGML_TYPE_F32) {
            memcpy(to, line, matrix->ne[0] * sizeof(float));
        } else {
            ggml_get_type_traits(matrix->type)->to_float(line, to, matrix->ne[0]);
        }
    }
    return found;
}

} // namespace ingot

extern "C" {

// A stack of `count` adapters of a model, which frees it if `llama_adapter_lora_free` does not.
// Null where one changes what is no plain matrix in the processor's memory.
LLAMA_API llama_adapter_lora * ingot_stack_adapters(
        llama_model * model, llama_adapter_lora ** adapters, size_t count) {
    std::map<std::string, int64_t> ranks;
    ggml_backend_buffer_type_t memory = nullptr;
    for (size_t i = 0; i < count; ++i) {
        for (const auto & [name, weight] : adapters[i]->ab_map) {
            const ggml_tensor * base = model->get_tensor(name.c_str());
            memory = memory ? memory : ggml_backend_buffer_get_type(weight.a->buffer);
            if (!base || base->ne[2] != 1 || name == "token_embd.weight") {
                return nullptr;
            }
            for (const ggml_tensor * one : {weight.a, weight.b}) {
                const bool known =
                    one->type == GGML_TYPE_F32 || ggml_get_type_traits(one->type)->to_float;
                if (!known || ggml_n_dims(one) > 2 ||
                    memory != ggml_backend_buffer_get_type(one->buffer)) {
                    return nullptr;
                }
            }
            ranks[name] = std::max(ranks[name], weight.b->ne[0]);
        }
    }
    if (!memory || !ggml_backend_buft_is_host(memory)) {
        return nullptr;
    }
    auto stack = std::make_unique<llama_adapter_lora>(model);
    ggml_context * ctx = ggml_init({2 * ranks.size() * ggml_tensor_overhead(), nullptr, true});
    stack->ctxs.emplace_back(ctx);
    const int64_t places = count + 1;
    for (const auto & [name, rank] : ranks) {
        const ggml_tensor * base = model->get_tensor(name.c_str());
        stack->ab_map[name] = {
            ggml_new_tensor_3d(ctx, GGML_TYPE_F32, base->ne[0], rank, places),
            ggml_new_tensor_3d(ctx, GGML_TYPE_F32, base->ne[1], rank, places)};
    }
    ggml_backend_buffer_ptr buffer{ggml_backend_alloc_ctx_tensors_from_buft(ctx, memory)};
    if (!buffer) {
        return nullptr;
    }
    ggml_backend_buffer_clear(buffer.get(), 0);
    stack->bufs.emplace_back(std::move(buffer));
    for (size_t i = 0; i < count; ++i) {
        for (const auto & [name, weight] : adapters[i]->ab_map) {
            const auto & stacked = stack->ab_map[name];
            const std::vector<float> a = ingot::numbers(weight.a), b = ingot::numbers(weight.b);
            const float scale = weight.get_scale(adapters[i]->alpha, 1.0f);
            std::copy(a.begin(), a.end(), ingot::line_of(stacked.a, 0, i + 1));
            const int64_t rank = weight.b->ne[0];
            for (int64_t k = 0; k < rank; ++k) {
                float * line = ingot::line_of(stacked.b, k, i + 1);
                for (int64_t row = 0; row < weight.b->ne[1]; ++row) {
                    line[row] = scale * b[row * rank + k];
                }
            }
        }
    }
    stack->ingot_adapters.resize(LLAMA_MAX_SEQ);
    model->loras.insert(stack.get());
    return stack.release();
}

// Have the rows of sequence i use adapter `ids[i]` of a stack, from 1 on; 0 is none.
LLAMA_API void ingot_use_adapters(llama_adapter_lora * stack, const int32_t * ids, size_t count) {
    auto & own = stack->ingot_adapters;
    std::copy_n(ids, std::min(count, own.size()), own.begin());
}

}

#endif
