// A loaded model with its context, vocabulary and chat templates.
#pragma once

#include "chat.h"
#include "common.h"
#include "engine_params.hpp"

#include <string>
#include <vector>

namespace llamaserve {

// Facts about a model that callers may want to show.
struct ModelInfo {
    std::string path, description, ftype;
    uint64_t n_params = 0, size = 0;
    int32_t n_ctx_train = 0, n_embd = 0, n_vocab = 0, vocab_type = 0;
    int32_t n_ctx = 0, n_ctx_slot = 0, n_slots = 0, n_batch = 0, n_ubatch = 0;
    bool kv_unified = false;
    std::string bos_token, eos_token;
    std::string chat_template, chat_template_tool_use;
    std::map<std::string, bool> chat_template_caps;
    bool supports_thinking = false;
};

// Throws LoadError unless the file is there and starts as a GGUF file does.
void check_file(const std::string& path);

class Model {
public:
    // Loads the file. Throws LoadError saying which file and why. Slow; one load at a time in a process.
    explicit Model(const EngineParams& params);

    const common_params& params() const { return params_; }
    llama_model* model() const { return model_; }
    llama_context* context() const { return context_; }
    const llama_vocab* vocab() const { return vocab_; }
    const common_chat_templates* templates() const { return templates_.get(); }
    bool supports_thinking() const { return info_.supports_thinking; }
    const ModelInfo& info() const { return info_; }

    int32_t n_vocab() const { return info_.n_vocab; }
    int32_t n_ctx_slot() const { return info_.n_ctx_slot; }
    int32_t n_swa() const { return n_swa_; }

    // A sequence can be cut at any token (apart from what a sliding window has dropped); recurrent states can't.
    bool can_cut() const { return can_cut_; }

    // Why this model can't complete text; empty if it can.
    const std::string& cannot_complete() const { return cannot_complete_; }

    // Text to tokens. `special` adds what the model wants around a text (BOS, EOS); `parse_special` turns texts of
    // special tokens into them. Thread-safe.
    std::vector<llama_token> tokenize(const std::string& text, bool special, bool parse_special) const;

    // Text of tokens, special ones included, as valid UTF-8. Throws InvalidRequest for ids outside the vocabulary.
    std::string detokenize(const std::vector<llama_token>& tokens) const;

    // Bytes of one token. Throws InvalidRequest for an id outside the vocabulary.
    std::string token_bytes(llama_token token, bool special = true) const;

    bool is_token(llama_token token) const { return token >= 0 && token < info_.n_vocab; }

private:
    void describe(const EngineParams& params);

    common_params params_;
    common_init_result_ptr loaded_;
    llama_model* model_ = nullptr;
    llama_context* context_ = nullptr;
    const llama_vocab* vocab_ = nullptr;
    common_chat_templates_ptr templates_;
    ModelInfo info_;
    int32_t n_swa_ = 0;
    bool can_cut_ = true;
    std::string cannot_complete_;
};

} // namespace llamaserve
