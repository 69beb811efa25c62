#include "speculative_params.hpp"

#include "error.hpp"
#include "log.hpp"
#include "ngram-cache.h"
#include "option_values.hpp"
#include "speculative.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace llamaserve {

namespace {

const std::vector<std::pair<std::string, common_speculative_type>> known_types = {
    {"none", COMMON_SPECULATIVE_TYPE_NONE},
    {"draft-simple", COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE},
    {"ngram-simple", COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE},
    {"ngram-map-k", COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K},
    {"ngram-map-k4v", COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K4V},
    {"ngram-mod", COMMON_SPECULATIVE_TYPE_NGRAM_MOD},
    {"ngram-cache", COMMON_SPECULATIVE_TYPE_NGRAM_CACHE},
};

// As llama-server reads them: in order, and "none" anywhere switches all off.
std::vector<common_speculative_type> types(const SpeculativeParams& in) {
    std::vector<common_speculative_type> out;
    for (const std::string& name : in.spec_type) {
        if (name.starts_with("draft-") && name != "draft-simple" &&
            common_speculative_type_from_name(name) != COMMON_SPECULATIVE_TYPE_COUNT) {
            throw LoadError("spec_type: " + name +
                            " is not supported yet; a draft model of its own can be used with "
                            "draft-simple");
        }
        const auto type = choice<common_speculative_type>("spec_type", name, known_types);
        if (type == COMMON_SPECULATIVE_TYPE_NONE) {
            return {};
        }
        out.push_back(type);
    }
    if (in.spec_default) {
        out.push_back(COMMON_SPECULATIVE_TYPE_NGRAM_MOD);
    }
    if (out.empty() && !in.spec_draft_model.empty()) {
        out.push_back(COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE);
    }
    return out;
}

// llama.cpp ends the process where such a file isn't what it expects: n-grams, each with tokens and their counts.
void check_lookup_cache(const std::string& option, const std::string& path) {
    if (path.empty()) {
        return;
    }
    std::ifstream in(std::filesystem::u8path(path), std::ios::binary);
    if (!in) {
        throw LoadError(option + ": " + path + " can't be opened");
    }
    bool good = true;
    auto number = [&] {
        int32_t n = 0;
        good = good && in.read(reinterpret_cast<char*>(&n), sizeof(n)).gcount() == sizeof(n);
        return n;
    };
    while (good && in.peek() != std::ifstream::traits_type::eof()) {
        for (int i = 0; i < LLAMA_NGRAM_MAX; ++i) {
            number();
        }
        const int32_t n_tokens = number();
        good = good && n_tokens > 0;
        for (int32_t i = 0; good && i < n_tokens; ++i) {
            number();
            good = number() > 0 && good;
        }
    }
    if (!good) {
        throw LoadError(option + ": " + path + " is no lookup cache, or is damaged");
    }
}

void set_draft_model(const SpeculativeParams& in, common_params& out) {
    common_params_speculative_draft& d = out.speculative.draft;
    d.mparams.path = in.spec_draft_model;
    d.cache_type_k = cache_type("spec_draft_type_k", in.spec_draft_type_k);
    d.cache_type_v = cache_type("spec_draft_type_v", in.spec_draft_type_v);
    d.n_gpu_layers = gpu_layers("spec_draft_ngl", in.spec_draft_ngl);
    d.devices = devices("spec_draft_device", in.spec_draft_device);
    d.backend_sampling = in.spec_draft_backend_sampling;
    in_range("spec_draft_threads", in.spec_draft_threads, -1, GGML_MAX_N_THREADS);
    in_range("spec_draft_threads_batch", in.spec_draft_threads_batch, -1, GGML_MAX_N_THREADS);
    d.cpuparams.n_threads = in.spec_draft_threads == 0 ? -1 : in.spec_draft_threads;
    d.cpuparams_batch.n_threads = in.spec_draft_threads_batch == 0 ? -1 : in.spec_draft_threads_batch;
    postprocess_cpu_params(d.cpuparams, &out.cpuparams);
    postprocess_cpu_params(d.cpuparams_batch, in.spec_draft_threads > 0 ? &d.cpuparams : &out.cpuparams_batch);
    if (!in.spec_draft_override_tensor.empty()) {
        tensor_overrides("spec_draft_override_tensor", in.spec_draft_override_tensor, d.tensor_buft_overrides);
    }
    if (in.spec_draft_cpu_moe) {
        d.tensor_buft_overrides.push_back(llm_ffn_exps_cpu_override());
    }
    in_range("spec_draft_n_cpu_moe", in.spec_draft_n_cpu_moe, 0, 1 << 16);
    llm_add_n_cpu_ffn_overrides(in.spec_draft_n_cpu_moe, LLM_FFN_EXPS_REGEX, d.tensor_buft_overrides);
    while (d.tensor_buft_overrides.size() < llama_max_tensor_buft_overrides()) {
        d.tensor_buft_overrides.push_back({nullptr, nullptr});
    }
}

common_params_speculative_ngram_map ngram_map(const std::string& option, int32_t size_n, int32_t size_m,
                                              int32_t min_hits) {
    in_range(option + "_size_n", size_n, 1, 1024);
    in_range(option + "_size_m", size_m, 1, 1024);
    in_range(option + "_min_hits", min_hits, 1, UINT16_MAX);
    return {static_cast<uint16_t>(size_n), static_cast<uint16_t>(size_m), static_cast<uint16_t>(min_hits)};
}

void set_ngrams(const SpeculativeParams& in, common_params_speculative& out) {
    in_range("spec_ngram_mod_n_min", in.spec_ngram_mod_n_min, 0, 1024);
    in_range("spec_ngram_mod_n_max", in.spec_ngram_mod_n_max, 0, 1024);
    in_range("spec_ngram_mod_n_match", in.spec_ngram_mod_n_match, 1, 1024);
    out.ngram_mod = {in.spec_ngram_mod_n_match, in.spec_ngram_mod_n_max, in.spec_ngram_mod_n_min};
    out.ngram_simple = ngram_map("spec_ngram_simple", in.spec_ngram_simple_size_n, in.spec_ngram_simple_size_m,
                                 in.spec_ngram_simple_min_hits);
    out.ngram_map_k = ngram_map("spec_ngram_map_k", in.spec_ngram_map_k_size_n, in.spec_ngram_map_k_size_m,
                                in.spec_ngram_map_k_min_hits);
    out.ngram_map_k4v = ngram_map("spec_ngram_map_k4v", in.spec_ngram_map_k4v_size_n, in.spec_ngram_map_k4v_size_m,
                                  in.spec_ngram_map_k4v_min_hits);
    check_lookup_cache("lookup_cache_static", in.lookup_cache_static);
    check_lookup_cache("lookup_cache_dynamic", in.lookup_cache_dynamic);
    out.ngram_cache = {in.lookup_cache_static, in.lookup_cache_dynamic};
}

void set_synthetic(const SpeculativeParams& in, common_params_speculative& out) {
    if (in.spec_synth_len != -1.0f) {
        out.synth_len = in.spec_synth_len;
    }
    for (const std::string& text : string_split<std::string>(in.spec_synth_rates, ',')) {
        double rate = 0.0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
        if (!text.empty() && (error != std::errc{} || end != text.data() + text.size())) {
            refuse("spec_synth_rates", text, "numbers from 0 to 1, comma-separated");
        }
        if (!text.empty()) {
            out.synth_rates.push_back(rate);
        }
    }
    if (!out.has_synth()) {
        return;
    }
    try {
        common_speculative_synth_rates_resolve(&out, common_speculative_n_max(&out));
    } catch (const std::exception& e) {
        throw LoadError(std::string("spec_synth_len, spec_synth_rates: ") + e.what());
    }
}

} // namespace

void set_speculative(const SpeculativeParams& in, common_params& out) {
    common_params_speculative& s = out.speculative;
    in_range("spec_draft_n_max", in.spec_draft_n_max, 0, 1024);
    in_range("spec_draft_n_min", in.spec_draft_n_min, 0, 1024);
    if (!std::isfinite(in.spec_draft_p_min) || !std::isfinite(in.spec_draft_p_split)) {
        refuse("spec_draft_p_min, spec_draft_p_split", "nan", "numbers from 0 to 1");
    }
    s.draft.n_max = in.spec_draft_n_max;
    s.draft.n_min = in.spec_draft_n_min;
    s.draft.p_min = in.spec_draft_p_min;
    s.draft.p_split = in.spec_draft_p_split;
    set_ngrams(in, s);
    const auto wanted = types(in);
    const bool with_model =
        std::find(wanted.begin(), wanted.end(), COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE) != wanted.end();
    if (with_model && in.spec_draft_model.empty()) {
        throw LoadError("spec_type: draft-simple needs a draft model; name one with spec_draft_model");
    }
    if (with_model) {
        set_draft_model(in, out);
    } else if (!in.spec_draft_model.empty()) {
        log_write(2, "the draft model is not used: spec_type does not name draft-simple");
    }
    if (!wanted.empty()) {
        s.types = wanted;
    }
    set_synthetic(in, s);
    // Each drafted token's logits are read, too.
    const auto outputs =
        common_speculative_get_output_limits(out.n_batch, out.n_parallel, common_speculative_n_max(&s));
    out.n_outputs_max = std::max(out.n_outputs_max, outputs.total);
    out.n_outputs_max_per_seq = std::max(out.n_outputs_max_per_seq, outputs.per_seq);
}

} // namespace llamaserve
