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
    int32_t n_cache_reuse = 0;
    int32_t speculative_n_max = -1; // most tokens to draft at a time; -1: as many as the engine does
    int32_t speculative_n_min = 0;
    std::string speculative_types = "none"; // shown, not read
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

enum class RequestKind { completion, embedding, rerank };

struct EmbeddingParams {
    int32_t normalize = 2; // -1 none, 0 the largest value becomes 32760, 1 taxicab, 2 euclidean, above that p-norm
    int32_t n_dims = 0;    // keep this many values; 0: all
    std::string query;     // what a document is ranked against
};

// One completion, or one input to embed or rank, on its way through the engine.
struct Request {
    uint64_t id = 0;
    RequestKind kind = RequestKind::completion;
    EmbeddingParams embedding;
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

// The part of it that turns the prompt into tokens.
void tokenize_prompt(Request& request, const Model& model);

// prepare() will take less time than waking another thread for it: the prompt is short, and nothing has to be parsed.
bool prepares_quickly(const Request& request);

} // namespace llamaserve
