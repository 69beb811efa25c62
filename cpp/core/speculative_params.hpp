// How tokens are drafted. Names are those of llama-server's flags.
#pragma once

#include "common.h"

#include <string>
#include <vector>

namespace llamaserve {

struct SpeculativeParams {
    std::vector<std::string> spec_type; // empty: draft-simple where there is a draft model, else none
    bool spec_default = false;

    std::string spec_draft_model; // path of a GGUF file
    int32_t spec_draft_n_max = 3;
    int32_t spec_draft_n_min = 0;
    float spec_draft_p_split = 0.1f;
    float spec_draft_p_min = 0.0f;
    bool spec_draft_backend_sampling = true;
    std::string spec_draft_type_k = "f16";
    std::string spec_draft_type_v = "f16";
    std::string spec_draft_ngl = "auto";
    std::string spec_draft_device;
    std::string spec_draft_override_tensor;
    bool spec_draft_cpu_moe = false;
    int32_t spec_draft_n_cpu_moe = 0;
    int32_t spec_draft_threads = -1;
    int32_t spec_draft_threads_batch = -1;

    int32_t spec_ngram_mod_n_min = 48;
    int32_t spec_ngram_mod_n_max = 64;
    int32_t spec_ngram_mod_n_match = 24;
    int32_t spec_ngram_simple_size_n = 12;
    int32_t spec_ngram_simple_size_m = 48;
    int32_t spec_ngram_simple_min_hits = 1;
    int32_t spec_ngram_map_k_size_n = 12;
    int32_t spec_ngram_map_k_size_m = 48;
    int32_t spec_ngram_map_k_min_hits = 1;
    int32_t spec_ngram_map_k4v_size_n = 12;
    int32_t spec_ngram_map_k4v_size_m = 48;
    int32_t spec_ngram_map_k4v_min_hits = 1;
    std::string lookup_cache_static;
    std::string lookup_cache_dynamic;

    float spec_synth_len = -1.0f; // -1: off
    std::string spec_synth_rates;
};

// Sets what concerns drafting in `out`, whose batch and slots are set already. Throws LoadError naming the option whose
// value can't be used.
void set_speculative(const SpeculativeParams& in, common_params& out);

} // namespace llamaserve
