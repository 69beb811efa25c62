#include "bindings.hpp"

#include "engine_params.hpp"
#include "request.hpp"

#include <algorithm>

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

using namespace llamaserve;

namespace {

// Binds a field of RequestParams (or one that it holds) under the HTTP API's name.
#define FIELD(name, member)                                                                                            \
    def_prop_rw(                                                                                                       \
        name, [](const RequestParams& p) { return p.member; },                                                         \
        [](RequestParams& p, decltype(RequestParams{}.member) v) { p.member = v; })

void bind_request(nb::module_& m) {
    nb::class_<RequestParams>(m, "RequestParams")
        .def_prop_rw(
            "seed", [](const RequestParams& p) { return p.sampling.seed; },
            [](RequestParams& p, int64_t v) { p.sampling.seed = static_cast<uint32_t>(v); })
        .FIELD("temperature", sampling.temp)
        .FIELD("dynatemp_range", sampling.dynatemp_range)
        .FIELD("dynatemp_exponent", sampling.dynatemp_exponent)
        .FIELD("top_k", sampling.top_k)
        .FIELD("top_p", sampling.top_p)
        .FIELD("min_p", sampling.min_p)
        .FIELD("top_n_sigma", sampling.top_n_sigma)
        .FIELD("xtc_probability", sampling.xtc_probability)
        .FIELD("xtc_threshold", sampling.xtc_threshold)
        .FIELD("typical_p", sampling.typ_p)
        .FIELD("repeat_last_n", sampling.penalty_last_n)
        .FIELD("repeat_penalty", sampling.penalty_repeat)
        .FIELD("frequency_penalty", sampling.penalty_freq)
        .FIELD("presence_penalty", sampling.penalty_present)
        .FIELD("dry_multiplier", sampling.dry_multiplier)
        .FIELD("dry_base", sampling.dry_base)
        .FIELD("dry_allowed_length", sampling.dry_allowed_length)
        .FIELD("dry_penalty_last_n", sampling.dry_penalty_last_n)
        .FIELD("dry_sequence_breakers", sampling.dry_sequence_breakers)
        .FIELD("mirostat", sampling.mirostat)
        .FIELD("mirostat_tau", sampling.mirostat_tau)
        .FIELD("mirostat_eta", sampling.mirostat_eta)
        .FIELD("adaptive_target", sampling.adaptive_target)
        .FIELD("adaptive_decay", sampling.adaptive_decay)
        .FIELD("min_keep", sampling.min_keep)
        .FIELD("n_probs", sampling.n_probs)
        .FIELD("ignore_eos", sampling.ignore_eos)
        .FIELD("grammar_lazy", sampling.grammar_lazy)
        .FIELD("generation_prompt", sampling.generation_prompt)
        .FIELD("reasoning_budget", sampling.reasoning_budget_tokens)
        .FIELD("reasoning_budget_message", sampling.reasoning_budget_message)
        .FIELD("post_sampling_probs", post_sampling_probs)
        .FIELD("n_predict", n_predict)
        .FIELD("n_indent", n_indent)
        .FIELD("n_keep", n_keep)
        .FIELD("n_discard", n_discard)
        .FIELD("n_cache_reuse", n_cache_reuse)
        .FIELD("speculative_n_max", speculative_n_max)
        .FIELD("speculative_n_min", speculative_n_min)
        .FIELD("t_max_predict_ms", t_max_predict_ms)
        .FIELD("stop", stop)
        .FIELD("cache_prompt", cache_prompt)
        .FIELD("id_slot", id_slot)
        .FIELD("lora", lora)
        .FIELD("priority", priority)
        .FIELD("t_max_ms", t_max_ms)
        .FIELD("stream", stream)
        .FIELD("return_tokens", return_tokens)
        .FIELD("return_progress", return_progress)
        .FIELD("timings_per_token", timings_per_token)
        .FIELD("grammar", grammar)
        .FIELD("json_schema", json_schema)
        .FIELD("grammar_is_tool_calls", grammar_is_tool_calls)
        .FIELD("preserved_tokens", preserved_tokens)
        .FIELD("reasoning_start_tag", reasoning_start_tag)
        .FIELD("reasoning_end_tags", reasoning_end_tags)
        .def_prop_rw(
            "grammar_triggers",
            [](const RequestParams& p) {
                std::vector<std::tuple<int, std::string, llama_token>> out;
                for (const common_grammar_trigger& t : p.grammar_triggers) {
                    out.emplace_back(t.type, t.value, t.token);
                }
                return out;
            },
            [](RequestParams& p, const std::vector<std::tuple<int, std::string, llama_token>>& triggers) {
                p.grammar_triggers.clear();
                for (const auto& [type, value, token] : triggers) {
                    p.grammar_triggers.push_back({static_cast<common_grammar_trigger_type>(type), value, token});
                }
            })
        .def("set_samplers_by_names",
             [](RequestParams& p, const std::vector<std::string>& names) { p.set_samplers(names); })
        .def("set_samplers_by_chars", [](RequestParams& p, const std::string& chars) { p.set_samplers(chars); })
        .def("clear_logit_bias",
             [](RequestParams& p) {
                 p.sampling.logit_bias.clear();
                 p.logit_bias_texts.clear();
             })
        .def("add_logit_bias",
             [](RequestParams& p, llama_token token, float bias) { p.sampling.logit_bias.push_back({token, bias}); })
        .def("add_logit_bias_text",
             [](RequestParams& p, const std::string& text, float bias) { p.logit_bias_texts.emplace_back(text, bias); })
        .def("as_dict", &params_dict, nb::sig("def as_dict(self) -> dict[str, typing.Any]"));
}

#undef FIELD

void bind_engine(nb::module_& m) {
    nb::class_<EngineParams> engine(m, "EngineParams");
    bind_speculative(engine);
    engine.def(nb::init<>())
        .def_rw("model", &EngineParams::model)
        .def_rw("threads", &EngineParams::threads)
        .def_rw("threads_batch", &EngineParams::threads_batch)
        .def_rw("ctx_size", &EngineParams::ctx_size)
        .def_rw("n_predict", &EngineParams::n_predict)
        .def_rw("batch_size", &EngineParams::batch_size)
        .def_rw("ubatch_size", &EngineParams::ubatch_size)
        .def_rw("keep", &EngineParams::keep)
        .def_rw("context_shift", &EngineParams::context_shift)
        .def_rw("swa_full", &EngineParams::swa_full)
        .def_rw("flash_attn", &EngineParams::flash_attn)
        .def_rw("rope_scaling", &EngineParams::rope_scaling)
        .def_rw("rope_scale", &EngineParams::rope_scale)
        .def_rw("rope_freq_base", &EngineParams::rope_freq_base)
        .def_rw("rope_freq_scale", &EngineParams::rope_freq_scale)
        .def_rw("yarn_orig_ctx", &EngineParams::yarn_orig_ctx)
        .def_rw("yarn_ext_factor", &EngineParams::yarn_ext_factor)
        .def_rw("yarn_attn_factor", &EngineParams::yarn_attn_factor)
        .def_rw("yarn_beta_slow", &EngineParams::yarn_beta_slow)
        .def_rw("yarn_beta_fast", &EngineParams::yarn_beta_fast)
        .def_rw("kv_offload", &EngineParams::kv_offload)
        .def_rw("repack", &EngineParams::repack)
        .def_rw("no_host", &EngineParams::no_host)
        .def_rw("cache_type_k", &EngineParams::cache_type_k)
        .def_rw("cache_type_v", &EngineParams::cache_type_v)
        .def_rw("load_mode", &EngineParams::load_mode)
        .def_rw("lazy_mode", &EngineParams::lazy_mode)
        .def_rw("numa", &EngineParams::numa)
        .def_rw("cpu_mask", &EngineParams::cpu_mask)
        .def_rw("cpu_range", &EngineParams::cpu_range)
        .def_rw("cpu_strict", &EngineParams::cpu_strict)
        .def_rw("prio", &EngineParams::prio)
        .def_rw("poll", &EngineParams::poll)
        .def_rw("cpu_mask_batch", &EngineParams::cpu_mask_batch)
        .def_rw("cpu_range_batch", &EngineParams::cpu_range_batch)
        .def_rw("cpu_strict_batch", &EngineParams::cpu_strict_batch)
        .def_rw("prio_batch", &EngineParams::prio_batch)
        .def_rw("poll_batch", &EngineParams::poll_batch)
        .def_rw("device", &EngineParams::device)
        .def_rw("override_tensor", &EngineParams::override_tensor)
        .def_rw("cpu_moe", &EngineParams::cpu_moe)
        .def_rw("n_cpu_moe", &EngineParams::n_cpu_moe)
        .def_rw("n_cpu_ffn", &EngineParams::n_cpu_ffn)
        .def_rw("n_gpu_layers", &EngineParams::n_gpu_layers)
        .def_rw("split_mode", &EngineParams::split_mode)
        .def_rw("tensor_split", &EngineParams::tensor_split)
        .def_rw("main_gpu", &EngineParams::main_gpu)
        .def_rw("fit", &EngineParams::fit)
        .def_rw("fit_target", &EngineParams::fit_target)
        .def_rw("fit_ctx", &EngineParams::fit_ctx)
        .def_rw("check_tensors", &EngineParams::check_tensors)
        .def_rw("override_kv", &EngineParams::override_kv)
        .def_rw("op_offload", &EngineParams::op_offload)
        .def_rw("parallel", &EngineParams::parallel)
        .def_rw("kv_unified", &EngineParams::kv_unified)
        .def_rw("kv_unified_per_slot", &EngineParams::kv_unified_per_slot)
        .def_rw("cont_batching", &EngineParams::cont_batching)
        .def_rw("special", &EngineParams::special)
        .def_rw("warmup", &EngineParams::warmup)
        .def_rw("cache_prompt", &EngineParams::cache_prompt)
        .def_rw("reverse_prompt", &EngineParams::reverse_prompt)
        .def_rw("embedding", &EngineParams::embedding)
        .def_rw("reranking", &EngineParams::reranking)
        .def_rw("pooling", &EngineParams::pooling)
        .def_rw("embd_normalize", &EngineParams::embd_normalize)
        .def_rw("lora", &EngineParams::lora)
        .def_rw("lora_init_without_apply", &EngineParams::lora_init_without_apply)
        .def_rw("control_vector", &EngineParams::control_vector)
        .def_rw("control_vector_layer_range", &EngineParams::control_vector_layer_range)
        .def_rw("chat_template", &EngineParams::chat_template)
        .def_rw("jinja", &EngineParams::jinja)
        .def_rw("reasoning_format", &EngineParams::reasoning_format)
        .def_rw("reasoning", &EngineParams::reasoning)
        .def_rw("reasoning_effort", &EngineParams::reasoning_effort)
        .def_rw("reasoning_budget", &EngineParams::reasoning_budget)
        .def_rw("reasoning_budget_message", &EngineParams::reasoning_budget_message)
        .def_rw("chat_template_kwargs", &EngineParams::chat_template_kwargs)
        .def_rw("skip_chat_parsing", &EngineParams::skip_chat_parsing)
        .def_rw("prefill_assistant", &EngineParams::prefill_assistant)
        .def_rw("reasoning_preserve", &EngineParams::reasoning_preserve)
        .def_rw("cache_ram", &EngineParams::cache_ram)
        .def_rw("cache_reuse", &EngineParams::cache_reuse)
        .def_rw("cache_idle_slots", &EngineParams::cache_idle_slots)
        .def_rw("ctx_checkpoints", &EngineParams::ctx_checkpoints)
        .def_rw("step_target_ms", &EngineParams::step_target_ms)
        .def_rw("cpu_attention", &EngineParams::cpu_attention)
        .def_rw("queue_size", &EngineParams::queue_size);
}

} // namespace

nb::dict params_dict(const RequestParams& p) {
    const common_params_sampling& s = p.sampling;
    std::vector<std::string> samplers;
    for (const common_sampler_type type : s.samplers) {
        samplers.push_back(common_sampler_type_to_str(type));
    }
    nb::list biases;
    for (const llama_logit_bias& b : s.logit_bias) {
        nb::dict bias;
        bias["bias"] = b.bias;
        bias["token"] = b.token;
        biases.append(bias);
    }
    if (s.ignore_eos) {
        const auto listed = [&](llama_token token) {
            return std::any_of(s.logit_bias.begin(), s.logit_bias.end(),
                               [&](const auto& b) { return b.token == token; });
        };
        for (const llama_logit_bias& b : s.logit_bias_eog) {
            if (!listed(b.token)) {
                nb::dict bias;
                bias["bias"] = b.bias;
                bias["token"] = b.token;
                biases.append(bias);
            }
        }
    }
    const std::string& resolved = common_grammar_value(s.grammar);
    nb::dict d;
    d["seed"] = s.seed;
    d["temperature"] = s.temp;
    d["dynatemp_range"] = s.dynatemp_range;
    d["dynatemp_exponent"] = s.dynatemp_exponent;
    d["top_k"] = s.top_k;
    d["top_p"] = s.top_p;
    d["min_p"] = s.min_p;
    d["top_n_sigma"] = s.top_n_sigma;
    d["xtc_probability"] = s.xtc_probability;
    d["xtc_threshold"] = s.xtc_threshold;
    d["typical_p"] = s.typ_p;
    d["repeat_last_n"] = s.penalty_last_n;
    d["repeat_penalty"] = s.penalty_repeat;
    d["presence_penalty"] = s.penalty_present;
    d["frequency_penalty"] = s.penalty_freq;
    d["dry_multiplier"] = s.dry_multiplier;
    d["dry_base"] = s.dry_base;
    d["dry_allowed_length"] = s.dry_allowed_length;
    d["dry_penalty_last_n"] = s.dry_penalty_last_n;
    d["dry_sequence_breakers"] = s.dry_sequence_breakers;
    d["mirostat"] = s.mirostat;
    d["mirostat_tau"] = s.mirostat_tau;
    d["mirostat_eta"] = s.mirostat_eta;
    d["adaptive_target"] = s.adaptive_target;
    d["adaptive_decay"] = s.adaptive_decay;
    d["stop"] = p.stop;
    d["max_tokens"] = p.n_predict;
    d["n_predict"] = p.n_predict;
    d["n_keep"] = p.n_keep;
    d["n_discard"] = p.n_discard;
    d["ignore_eos"] = s.ignore_eos;
    d["stream"] = p.stream;
    d["logit_bias"] = biases;
    d["n_probs"] = s.n_probs;
    d["min_keep"] = s.min_keep;
    d["grammar"] = resolved.empty() ? p.grammar : resolved;
    d["grammar_lazy"] = s.grammar_lazy;
    d["preserved_tokens"] = std::vector<llama_token>(s.preserved_tokens.begin(), s.preserved_tokens.end());
    d["generation_prompt"] = s.generation_prompt;
    d["samplers"] = samplers;
    d["timings_per_token"] = p.timings_per_token;
    d["post_sampling_probs"] = p.post_sampling_probs;
    d["priority"] = p.priority;
    d["speculative.types"] = p.speculative_types;
    nb::list lora;
    for (const auto& [id, scale] : p.lora) {
        nb::dict choice;
        choice["id"] = id;
        choice["scale"] = scale;
        lora.append(choice);
    }
    d["lora"] = lora;
    return d;
}

void init_params(nb::module_& m) {
    bind_engine(m);
    bind_request(m);
}
