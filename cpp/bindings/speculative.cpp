#include "bindings.hpp"

#include "engine_params.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

using namespace llamaserve;

void bind_speculative(nb::class_<EngineParams>& engine) {
    engine.def_rw("spec_type", &EngineParams::spec_type)
        .def_rw("spec_default", &EngineParams::spec_default)
        .def_rw("spec_draft_model", &EngineParams::spec_draft_model)
        .def_rw("spec_draft_n_max", &EngineParams::spec_draft_n_max)
        .def_rw("spec_draft_n_min", &EngineParams::spec_draft_n_min)
        .def_rw("spec_draft_p_split", &EngineParams::spec_draft_p_split)
        .def_rw("spec_draft_p_min", &EngineParams::spec_draft_p_min)
        .def_rw("spec_draft_backend_sampling", &EngineParams::spec_draft_backend_sampling)
        .def_rw("spec_draft_type_k", &EngineParams::spec_draft_type_k)
        .def_rw("spec_draft_type_v", &EngineParams::spec_draft_type_v)
        .def_rw("spec_draft_ngl", &EngineParams::spec_draft_ngl)
        .def_rw("spec_draft_device", &EngineParams::spec_draft_device)
        .def_rw("spec_draft_override_tensor", &EngineParams::spec_draft_override_tensor)
        .def_rw("spec_draft_cpu_moe", &EngineParams::spec_draft_cpu_moe)
        .def_rw("spec_draft_n_cpu_moe", &EngineParams::spec_draft_n_cpu_moe)
        .def_rw("spec_draft_threads", &EngineParams::spec_draft_threads)
        .def_rw("spec_draft_threads_batch", &EngineParams::spec_draft_threads_batch)
        .def_rw("spec_ngram_mod_n_min", &EngineParams::spec_ngram_mod_n_min)
        .def_rw("spec_ngram_mod_n_max", &EngineParams::spec_ngram_mod_n_max)
        .def_rw("spec_ngram_mod_n_match", &EngineParams::spec_ngram_mod_n_match)
        .def_rw("spec_ngram_simple_size_n", &EngineParams::spec_ngram_simple_size_n)
        .def_rw("spec_ngram_simple_size_m", &EngineParams::spec_ngram_simple_size_m)
        .def_rw("spec_ngram_simple_min_hits", &EngineParams::spec_ngram_simple_min_hits)
        .def_rw("spec_ngram_map_k_size_n", &EngineParams::spec_ngram_map_k_size_n)
        .def_rw("spec_ngram_map_k_size_m", &EngineParams::spec_ngram_map_k_size_m)
        .def_rw("spec_ngram_map_k_min_hits", &EngineParams::spec_ngram_map_k_min_hits)
        .def_rw("spec_ngram_map_k4v_size_n", &EngineParams::spec_ngram_map_k4v_size_n)
        .def_rw("spec_ngram_map_k4v_size_m", &EngineParams::spec_ngram_map_k4v_size_m)
        .def_rw("spec_ngram_map_k4v_min_hits", &EngineParams::spec_ngram_map_k4v_min_hits)
        .def_rw("lookup_cache_static", &EngineParams::lookup_cache_static)
        .def_rw("lookup_cache_dynamic", &EngineParams::lookup_cache_dynamic)
        .def_rw("spec_synth_len", &EngineParams::spec_synth_len)
        .def_rw("spec_synth_rates", &EngineParams::spec_synth_rates);
}
