#include "engine_params.hpp"

#include "chat.h"
#include "option_values.hpp"

#include <algorithm>
#include <cmath>

namespace llamaserve {

namespace {

constexpr int32_t max_layers = 512; // no model that llama.cpp loads has more

std::string joined(const std::vector<int32_t>& numbers) {
    std::string out;
    for (const int32_t n : numbers) {
        out += (out.empty() ? "" : " ") + std::to_string(n);
    }
    return out;
}

void finite(const std::string& option, float value) {
    if (!std::isfinite(value)) {
        refuse(option, std::to_string(value), "a finite number");
    }
}

void at_least_0(const std::string& option, float value) {
    finite(option, value);
    if (value < 0.0f) {
        refuse(option, std::to_string(value), "a number above 0, or 0 for the model's own");
    }
}

// Slots of a shared cache cost next to nothing while they are idle. More of them than the machine can compute side by
// side would only make everybody slower: a GPU takes many, a processor about two for each core.
int32_t automatic_slots(const EngineParams& in) {
    const bool gpu = llama_supports_gpu_offload() && in.n_gpu_layers != "0" && in.device != "none";
    return gpu ? 16 : std::clamp(2 * common_cpu_get_num_physical_cores(), 4, 16);
}

void set_context(const EngineParams& in, common_params& out) {
    in_range("ctx_size", in.ctx_size, 0, INT32_MAX);
    if (in.ctx_size > 0 && in.ctx_size < 16) {
        refuse("ctx_size", std::to_string(in.ctx_size), "at least 16, or 0 for what the model was trained with");
    }
    in_range("batch_size", in.batch_size, 1, 1 << 20);
    in_range("ubatch_size", in.ubatch_size, 1, 1 << 20);
    in_range("parallel", in.parallel, -1, static_cast<int64_t>(llama_max_parallel_sequences()));
    if (in.parallel == 0) {
        refuse("parallel", "0", "at least 1, or -1 for automatic");
    }
    // With an automatic number of slots they share one cache, so that each may use all of it, as llama-server has it.
    out.n_parallel = in.parallel < 0 ? automatic_slots(in) : in.parallel;
    out.kv_unified = in.kv_unified.value_or(in.parallel < 0);
    out.n_ctx = in.ctx_size;
    in_range("kv_unified_per_slot", in.kv_unified_per_slot, 0, INT32_MAX);
    out.kv_unified_per_slot = in.kv_unified_per_slot;
    if (in.kv_unified_per_slot > 0 && out.kv_unified && in.ctx_size == 0) {
        out.n_ctx = out.n_parallel * in.kv_unified_per_slot;
    }
    out.n_batch = std::max(in.batch_size, out.n_parallel);
    out.n_ubatch = in.ubatch_size;
    // One row of logits for each slot is all that a step reads; room for more would be n_batch * vocabulary floats.
    out.n_outputs_max = out.n_parallel;
    out.n_outputs_max_per_seq = 1;
    out.n_predict = in.n_predict;
    out.n_keep = in.keep;
    out.ctx_shift = in.context_shift;
    out.swa_full = in.swa_full;
    out.cache_type_k = cache_type("cache_type_k", in.cache_type_k);
    out.cache_type_v = cache_type("cache_type_v", in.cache_type_v);
    out.no_kv_offload = !in.kv_offload;
    out.flash_attn_type = choice<llama_flash_attn_type>("flash_attn", in.flash_attn,
                                                        {{"auto", LLAMA_FLASH_ATTN_TYPE_AUTO},
                                                         {"on", LLAMA_FLASH_ATTN_TYPE_ENABLED},
                                                         {"off", LLAMA_FLASH_ATTN_TYPE_DISABLED}});
    if (in.flash_attn == "off" && ggml_is_quantized(out.cache_type_v)) {
        refuse("cache_type_v", in.cache_type_v,
               "f32, f16 or bf16 where flash_attn is off: others need flash attention");
    }
    if (!in.rope_scaling.empty()) {
        out.rope_scaling_type = choice<llama_rope_scaling_type>("rope_scaling", in.rope_scaling,
                                                                {{"none", LLAMA_ROPE_SCALING_TYPE_NONE},
                                                                 {"linear", LLAMA_ROPE_SCALING_TYPE_LINEAR},
                                                                 {"yarn", LLAMA_ROPE_SCALING_TYPE_YARN}});
    }
    at_least_0("rope_freq_base", in.rope_freq_base);
    at_least_0("rope_freq_scale", in.rope_freq_scale);
    at_least_0("rope_scale", in.rope_scale);
    finite("yarn_ext_factor", in.yarn_ext_factor);
    finite("yarn_attn_factor", in.yarn_attn_factor);
    finite("yarn_beta_slow", in.yarn_beta_slow);
    finite("yarn_beta_fast", in.yarn_beta_fast);
    in_range("yarn_orig_ctx", in.yarn_orig_ctx, 0, INT32_MAX);
    out.rope_freq_base = in.rope_freq_base;
    out.rope_freq_scale = in.rope_freq_scale;
    if (in.rope_scale != 0.0f) {
        out.rope_freq_scale = 1.0f / in.rope_scale;
    }
    out.yarn_orig_ctx = in.yarn_orig_ctx;
    out.yarn_ext_factor = in.yarn_ext_factor;
    out.yarn_attn_factor = in.yarn_attn_factor;
    out.yarn_beta_slow = in.yarn_beta_slow;
    out.yarn_beta_fast = in.yarn_beta_fast;
}

// After set_context: an input is pooled in one piece, so a step is no longer than what is computed at once, and every
// token of it is an output.
void set_embeddings(const EngineParams& in, common_params& out) {
    out.embedding = in.embedding || in.reranking;
    in_range("embd_normalize", in.embd_normalize, -1, INT32_MAX);
    out.embd_normalize = in.embd_normalize;
    if (!in.pooling.empty()) {
        out.pooling_type = choice<enum llama_pooling_type>("pooling", in.pooling,
                                                           {{"none", LLAMA_POOLING_TYPE_NONE},
                                                            {"mean", LLAMA_POOLING_TYPE_MEAN},
                                                            {"cls", LLAMA_POOLING_TYPE_CLS},
                                                            {"last", LLAMA_POOLING_TYPE_LAST},
                                                            {"rank", LLAMA_POOLING_TYPE_RANK}});
    }
    if (in.reranking) {
        out.pooling_type = LLAMA_POOLING_TYPE_RANK;
    }
    if (out.embedding) {
        out.n_batch = std::max(std::min(out.n_batch, out.n_ubatch), out.n_parallel);
        out.n_outputs_max = out.n_batch;
    }
}

void set_hardware(const EngineParams& in, common_params& out) {
    set_cpus(in, out);
    out.no_extra_bufts = !in.repack;
    out.no_host = in.no_host;
    out.no_op_offload = !in.op_offload;
    out.check_tensors = in.check_tensors;
    out.load_mode = choice<llama_load_mode>("load_mode", in.load_mode,
                                            {{"auto", LLAMA_LOAD_MODE_AUTO},
                                             {"none", LLAMA_LOAD_MODE_NONE},
                                             {"mmap", LLAMA_LOAD_MODE_MMAP},
                                             {"mlock", LLAMA_LOAD_MODE_MLOCK},
                                             {"mmap+mlock", LLAMA_LOAD_MODE_MMAP_MLOCK},
                                             {"dio", LLAMA_LOAD_MODE_DIRECT_IO}});
    out.lazy_mode = choice<llama_lazy_mode>(
        "lazy_mode", in.lazy_mode,
        {{"auto", LLAMA_LAZY_MODE_AUTO}, {"on", LLAMA_LAZY_MODE_ON}, {"off", LLAMA_LAZY_MODE_OFF}});
    if (!in.numa.empty()) {
        out.numa = choice<ggml_numa_strategy>("numa", in.numa,
                                              {{"distribute", GGML_NUMA_STRATEGY_DISTRIBUTE},
                                               {"isolate", GGML_NUMA_STRATEGY_ISOLATE},
                                               {"numactl", GGML_NUMA_STRATEGY_NUMACTL}});
    }
    out.devices = devices("device", in.device);
    out.n_gpu_layers = gpu_layers("n_gpu_layers", in.n_gpu_layers);
    out.split_mode = choice<llama_split_mode>("split_mode", in.split_mode,
                                              {{"none", LLAMA_SPLIT_MODE_NONE},
                                               {"layer", LLAMA_SPLIT_MODE_LAYER},
                                               {"row", LLAMA_SPLIT_MODE_ROW},
                                               {"tensor", LLAMA_SPLIT_MODE_TENSOR}});
    in_range("main_gpu", in.main_gpu, -1, static_cast<int64_t>(llama_max_devices()) - 1);
    out.main_gpu = in.main_gpu;
    if (!in.tensor_split.empty()) {
        const auto parts = string_split<std::string>(in.tensor_split, ',');
        if (parts.size() > llama_max_devices()) {
            refuse("tensor_split", in.tensor_split, "at most " + std::to_string(llama_max_devices()) + " numbers");
        }
        for (size_t i = 0; i < parts.size(); ++i) {
            char* end = nullptr;
            const float share = std::strtof(parts[i].c_str(), &end);
            if (parts[i].empty() || *end != 0 || !std::isfinite(share) || share < 0.0f) {
                refuse("tensor_split", in.tensor_split, "numbers of at least 0, separated by commas");
            }
            out.tensor_split[i] = share;
        }
    }
    out.fit_params = in.fit;
    in_range("fit_ctx", in.fit_ctx, 0, INT32_MAX);
    out.fit_params_min_ctx = in.fit_ctx;
    if (!in.fit_target.empty()) {
        const auto parts = string_split<std::string>(in.fit_target, ',');
        for (size_t i = 0; i < out.fit_params_target.size(); ++i) {
            const std::string& part = parts.size() == 1 ? parts[0] : i < parts.size() ? parts[i] : "1024";
            const int32_t mib = integer("fit_target", part);
            in_range("fit_target", mib, 0, INT32_MAX);
            out.fit_params_target[i] = static_cast<size_t>(mib) * 1024 * 1024;
        }
    }
}

void set_tensors(const EngineParams& in, common_params& out) {
    if (!in.override_tensor.empty()) {
        tensor_overrides("override_tensor", in.override_tensor, out.tensor_buft_overrides);
    }
    if (in.cpu_moe) {
        out.tensor_buft_overrides.push_back(llm_ffn_exps_cpu_override());
    }
    in_range("n_cpu_moe", in.n_cpu_moe, 0, 1 << 16);
    in_range("n_cpu_ffn", in.n_cpu_ffn, 0, 1 << 16);
    llm_add_n_cpu_ffn_overrides(std::min(in.n_cpu_moe, max_layers), LLM_FFN_EXPS_REGEX, out.tensor_buft_overrides);
    llm_add_n_cpu_ffn_overrides(std::min(in.n_cpu_ffn, max_layers), LLM_FFN_DENSE_REGEX, out.tensor_buft_overrides);
    if (out.tensor_buft_overrides.size() >= llama_max_tensor_buft_overrides()) {
        refuse("override_tensor", in.override_tensor.substr(0, 60),
               "fewer than " + std::to_string(llama_max_tensor_buft_overrides()) + " patterns");
    }
    // llama.cpp fits within this array and reads it up to the entry without a pattern.
    while (out.tensor_buft_overrides.size() < llama_max_tensor_buft_overrides()) {
        out.tensor_buft_overrides.push_back({nullptr, nullptr});
    }
    for (const std::string& item : in.override_kv) {
        for (const std::string& one : string_split<std::string>(item, ',')) {
            if (!string_parse_kv_override(one.c_str(), out.kv_overrides)) {
                refuse("override_kv", one, "KEY=TYPE:VALUE with TYPE one of int, float, bool, str");
            }
        }
    }
    if (!out.kv_overrides.empty()) {
        out.kv_overrides.emplace_back();
        out.kv_overrides.back().key[0] = 0;
    }
}

void set_adapters(const EngineParams& in, common_params& out) {
    auto check_scale = [](const char* option, const std::string& file, float scale) {
        if (!std::isfinite(scale)) {
            refuse(option, file, "a scale that is a finite number");
        }
    };
    for (const auto& [file, scale] : in.lora) {
        check_scale("lora", file, scale);
        // No -0: scales are compared bit by bit.
        const float start = in.lora_init_without_apply || scale == 0.0f ? 0.0f : scale;
        out.lora_adapters.push_back({file, start, "", "", nullptr});
    }
    for (const auto& [file, scale] : in.control_vector) {
        check_scale("control_vector", file, scale);
        out.control_vectors.push_back({scale, file});
    }
    const auto& range = in.control_vector_layer_range;
    if (!range.empty()) {
        if (range.size() != 2 || range[0] < 1 || range[1] < range[0]) {
            refuse("control_vector_layer_range", joined(range), "the first and the last layer, counted from 1");
        }
        out.control_vector_layer_start = range[0];
        out.control_vector_layer_end = range[1];
    }
}

void set_chat(const EngineParams& in, common_params& out) {
    out.chat_template = in.chat_template;
    out.use_jinja = in.jinja;
    try {
        out.reasoning_format = common_reasoning_format_from_name(in.reasoning_format);
    } catch (const std::exception&) {
        refuse("reasoning_format", in.reasoning_format, "one of none, auto, deepseek, deepseek-legacy");
    }
    out.enable_reasoning = choice<int>("reasoning", in.reasoning, {{"auto", -1}, {"on", 1}, {"off", 0}});
    in_range("reasoning_budget", in.reasoning_budget, -1, INT32_MAX);
    out.sampling.reasoning_budget_tokens = in.reasoning_budget;
    out.sampling.reasoning_budget_message = in.reasoning_budget_message;
    out.default_template_kwargs = in.chat_template_kwargs;
    out.default_template_kwargs.try_emplace("preserve_reasoning",
                                            in.reasoning_preserve.value_or(true) ? "true" : "false");
    if (!in.reasoning_effort.empty() && in.reasoning_effort != "default") {
        out.default_template_kwargs["reasoning_effort"] = common_json::make(in.reasoning_effort).dump();
    }
    out.preserve_reasoning_specified = in.reasoning_preserve.has_value();
    out.force_pure_content_parser = in.skip_chat_parsing;
    out.prefill_assistant = in.prefill_assistant;
}

} // namespace

common_params to_common(const EngineParams& in) {
    if (!std::isfinite(in.step_target_ms) || in.step_target_ms <= 0.0f) {
        refuse("step_target_ms", std::to_string(in.step_target_ms), "a number of milliseconds above 0");
    }
    if (in.cpu_attention != "auto" && in.cpu_attention != "ggml") {
        refuse("cpu_attention", in.cpu_attention, "auto or ggml");
    }
    in_range("queue_size", in.queue_size, 0, INT32_MAX);
    in_range("cache_ram", in.cache_ram, -1, INT32_MAX);
    in_range("cache_reuse", in.cache_reuse, 0, INT32_MAX);
    in_range("ctx_checkpoints", in.ctx_checkpoints, 0, INT32_MAX);
    common_params out;
    out.model.path = in.model;
    set_context(in, out);
    set_embeddings(in, out);
    set_hardware(in, out);
    set_tensors(in, out);
    set_adapters(in, out);
    set_chat(in, out);
    set_speculative(in, out);
    out.cont_batching = in.cont_batching;
    out.special = in.special;
    out.warmup = in.warmup;
    out.cache_prompt = in.cache_prompt;
    out.n_cache_reuse = in.cache_reuse;
    out.antiprompt = in.reverse_prompt;
    out.no_perf = true;
    out.sampling.no_perf = true;
    out.verbosity = 1;
    return out;
}

} // namespace llamaserve
