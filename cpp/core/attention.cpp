#include "attention.hpp"

#include "metadata.hpp"

#include <algorithm>
#include <optional>

namespace llamaserve {

namespace {

constexpr uint32_t small_head = 32;
constexpr int64_t max_scores = 16 << 20; // numbers

} // namespace

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

} // namespace llamaserve
