// What a caller asks for, and how it becomes something the scheduler can run.
#pragma once

#include "adapters.hpp"
#include "common.h"
#include "event.hpp"
#include "sampler.hpp"

#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace llamaserve {

class Model;

struct RequestParams {
    common_params_sampling sampling;
    bool post_sampling_probs = false;

    int32_t n_predict = -1;
    int32_t n_indent = 0;
    int32_t n_keep = 0;
    int32_t n_discard = 0;
    int64_t t_max_predict_ms = -1;
    std::vector<std::string> stop;
    bool cache_prompt = true;
    int32_t id_slot = -1;
    AdapterChoice lora; // empty: those in force when the request came
    int32_t priority = 0;
    int64_t t_max_ms = 0; // from arrival to the end; 0: no limit

    bool stream = true; // token events while it runs, not only the final one
    bool return_tokens = false;
    bool return_progress = false;
    bool timings_per_token = false;

    // Resolved when the request is taken in, off the caller's thread: they need the vocabulary or take time.
    std::string grammar;
    std::string json_schema;
    bool grammar_is_tool_calls = false;
    std::vector<std::pair<std::string, float>> logit_bias_texts;
    std::vector<std::string> preserved_tokens;
    std::vector<common_grammar_trigger> grammar_triggers;
    std::string reasoning_start_tag;
    std::vector<std::string> reasoning_end_tags;

    // Throws InvalidRequest for an unknown name or letter.
    void set_samplers(const std::vector<std::string>& names);
    void set_samplers(const std::string& chars);
};

// A prompt: texts and token ids, in order.
using PromptPart = std::variant<std::string, llama_token>;

// One completion on its way through the engine.
struct Request {
    uint64_t id = 0;
    std::vector<PromptPart> prompt;
    RequestParams params;
    std::shared_ptr<EventSink> sink;
    int64_t t_arrival_us = 0;
    AdapterScales default_scales; // in force when it came

    // Made by prepare().
    std::vector<llama_token> tokens;
    Adapters adapters;
    std::unique_ptr<Sampler> sampler;

    int32_t n_tokens() const { return static_cast<int32_t>(tokens.size()); }
};

// Tokenizes the prompt, resolves the parameters and builds the sampler. Thread-safe: reads the model, touches no
// context. Throws InvalidRequest saying which part can't be used.
void prepare(Request& request, const Model& model);

} // namespace llamaserve
