// How a model is loaded and served. Names are those of llama-server's flags.
#pragma once

#include "common.h"
#include "cpu_params.hpp"
#include "speculative_params.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace llamaserve {

struct EngineParams : SpeculativeParams, CpuParams {
    std::string model; // path of a GGUF file

    int32_t ctx_size = 0; // 0: what the model was trained with
    int32_t n_predict = -1;
    int32_t batch_size = 2048;
    int32_t ubatch_size = 512;
    int32_t keep = 0;
    bool context_shift = false;
    bool swa_full = false;
    std::string flash_attn = "auto";
    std::string rope_scaling;
    float rope_scale = 0.0f;
    float rope_freq_base = 0.0f;
    float rope_freq_scale = 0.0f;
    int32_t yarn_orig_ctx = 0;
    float yarn_ext_factor = -1.0f;
    float yarn_attn_factor = -1.0f;
    float yarn_beta_slow = -1.0f;
    float yarn_beta_fast = -1.0f;
    bool kv_offload = true;
    bool repack = true;
    bool no_host = false;
    std::string cache_type_k = "f16";
    std::string cache_type_v = "f16";
    std::string load_mode = "auto";
    std::string lazy_mode = "auto";
    std::string numa;
    std::string device;          // names, comma-separated; "none" for the CPU alone
    std::string override_tensor; // pattern=buffer type, comma-separated
    bool cpu_moe = false;
    int32_t n_cpu_moe = 0;
    int32_t n_cpu_ffn = 0;
    std::string n_gpu_layers = "auto"; // a number, "auto" or "all"
    std::string split_mode = "layer";
    std::string tensor_split;
    int32_t main_gpu = 0;
    bool fit = true;
    std::string fit_target; // MiB a device, comma-separated
    int32_t fit_ctx = 4096;
    bool check_tensors = false;
    std::vector<std::string> override_kv;
    bool op_offload = true;

    int32_t parallel = -1; // slots; -1: automatic
    std::optional<bool> kv_unified;
    int32_t kv_unified_per_slot = 0;
    bool cont_batching = true;
    bool special = false;
    bool warmup = true;
    bool cache_prompt = true;
    std::vector<std::string> reverse_prompt;

    bool embedding = false; // make embeddings
    bool reranking = false; // and rerank scores: pooling "rank"
    std::string pooling;    // none, mean, cls, last or rank; empty: as the model says
    int32_t embd_normalize = 2;
    // Files and their scales.
    std::vector<std::pair<std::string, float>> lora, control_vector;
    bool lora_init_without_apply = false;
    std::vector<int32_t> control_vector_layer_range; // first and last one; empty: all layers

    std::string chat_template;
    bool jinja = true;
    std::string reasoning_format = "deepseek";
    std::string reasoning = "auto";
    std::string reasoning_effort;
    int32_t reasoning_budget = -1;
    std::string reasoning_budget_message;
    std::map<std::string, std::string> chat_template_kwargs; // values are JSON
    bool skip_chat_parsing = false;
    bool prefill_assistant = true;
    std::optional<bool> reasoning_preserve;

    int32_t cache_ram = 8192;     // MiB of host memory for saved prefixes; -1: no limit, 0: none
    int32_t cache_reuse = 0;      // shortest chunk of a prompt to reuse at another position; 0: off
    bool cache_idle_slots = true; // where slots share one cache: idle ones give up their cells when a request comes
    int32_t ctx_checkpoints = 32; // for each slot of a model that can't cut its sequences anywhere

    float step_target_ms = 100.0f;      // how long a step may take while someone is generating
    std::string cpu_attention = "auto"; // who computes flash attention on a CPU: auto, ggml
    int32_t queue_size = 0;             // most requests that may wait; 0: automatic
};

// llama-common's form of `params`. Throws LoadError naming the option whose value can't be used.
common_params to_common(const EngineParams& params);

} // namespace llamaserve
