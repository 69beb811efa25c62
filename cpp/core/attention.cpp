#include "attention.hpp"

#include "llama-context.h" // internal to llama.cpp: nothing else lets a context change its way
#include "metadata.hpp"
#include "model.hpp"

#include <algorithm>
#include <optional>

namespace llamaserve {

namespace {

constexpr uint32_t small_head = 32;
constexpr int64_t max_scores = 16 << 20; // numbers
constexpr int32_t fast_queries = 64;
constexpr int32_t worthwhile_queries = 8; // fewer don't pay for turning the values around
constexpr int32_t many_cells = 256;

bool on_cpu_alone(const common_params& params) {
    if (params.n_gpu_layers == 0) {
        return true;
    }
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        const auto type = ggml_backend_dev_type(ggml_backend_dev_get(i));
        if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) {
            return false;
        }
    }
    return true;
}

} // namespace

bool plain_attention_is_faster(const std::string& path, const common_params& params) {
    if (params.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_AUTO || params.kv_unified || !on_cpu_alone(params) ||
        ggml_is_quantized(params.cache_type_v)) {
        return false;
    }
    const gguf_context_ptr gguf = open_metadata(path);
    if (!gguf) {
        return false; // loading it will say why
    }
    auto number = [&](const std::string& key) -> std::optional<uint32_t> {
        const int64_t id = gguf_find_key(gguf.get(), key.c_str());
        if (id < 0 || gguf_get_kv_type(gguf.get(), id) != GGUF_TYPE_UINT32) {
            return std::nullopt;
        }
        return gguf_get_val_u32(gguf.get(), id);
    };
    const int64_t id = gguf_find_key(gguf.get(), "general.architecture");
    if (id < 0 || gguf_get_kv_type(gguf.get(), id) != GGUF_TYPE_STRING) {
        return false;
    }
    const std::string arch = gguf_get_val_str(gguf.get(), id);
    const uint32_t n_head = number(arch + ".attention.head_count").value_or(0);
    const uint32_t n_embd = number(arch + ".embedding_length").value_or(0);
    const uint32_t n_ctx_train = number(arch + ".context_length").value_or(0);
    if (n_head == 0 || n_embd == 0) {
        return false;
    }
    const uint32_t head = number(arch + ".attention.key_length").value_or(n_embd / n_head);
    const int64_t n_ctx = params.n_ctx > 0 ? params.n_ctx / std::max(params.n_parallel, 1) : n_ctx_train;
    return head < small_head && n_ctx * n_head * params.n_ubatch <= max_scores;
}

ChunkAttention::ChunkAttention(const Model& model) : n_head_(llama_model_n_head(model.model())) {
    const common_params& params = model.params();
    apart_ = !model.info().kv_unified && model.info().n_slots > 1 && on_cpu_alone(params);
    auto is_float = [](ggml_type type) { return type == GGML_TYPE_F16 || type == GGML_TYPE_F32; };
    // Compressed keys and values (MLA) have ways of their own.
    const std::string arch = meta_or_empty(model.model(), "general.architecture");
    const std::string mla = meta_or_empty(model.model(), (arch + ".attention.kv_lora_rank").c_str());
    can_be_plain_ = apart_ && params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_AUTO &&
                    model.context()->get_cparams().flash_attn && is_float(params.cache_type_k) &&
                    is_float(params.cache_type_v) && mla.empty();
}

bool ChunkAttention::plain(int32_t n_least, int32_t n_most, int32_t n_tokens, int32_t n_cells) const {
    return can_be_plain_ && n_least >= worthwhile_queries && n_most < fast_queries && n_cells >= many_cells &&
           n_head_ * n_tokens * n_cells <= max_scores;
}

namespace {

// A context's parameters can be read, not changed; the context itself is no constant, so that changing them is sound.
// Graphs are built anew from this value, and the layout of the cache (values not turned around) suits both ways.
bool& flash_attention(llama_context* ctx) {
    return const_cast<llama_cparams&>(ctx->get_cparams()).flash_attn;
}

} // namespace

PlainAttention::PlainAttention(llama_context* ctx) : ctx_(ctx) {
    flash_attention(ctx_) = false;
}

PlainAttention::~PlainAttention() {
    flash_attention(ctx_) = true;
}

} // namespace llamaserve
