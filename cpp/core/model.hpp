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
    int32_t n_predict = -1; // limit for requests that set none
    bool embedding = false; // made for embeddings
    int32_t n_embd_out = 0; // values in an embedding
    std::string pooling;    // how token embeddings become one
    int32_t embd_normalize = 2;
    std::string bos_token, eos_token;
    llama_token bos_added = LLAMA_TOKEN_NULL; // what prompts start with; none for many models
    // For fill-in-the-middle; LLAMA_TOKEN_NULL where the model has no such token.
    llama_token fim_prefix = LLAMA_TOKEN_NULL, fim_suffix = LLAMA_TOKEN_NULL, fim_middle = LLAMA_TOKEN_NULL;
    llama_token fim_repo = LLAMA_TOKEN_NULL, fim_separator = LLAMA_TOKEN_NULL;
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

    // Cells can be moved to other positions.
    bool can_shift() const { return can_shift_; }

    // A request whose context is full drops its oldest tokens and goes on.
    bool context_shift() const { return params_.ctx_shift; }

    // Why this model can't complete text; empty if it can.
    const std::string& cannot_complete() const { return cannot_complete_; }

    // Why no embeddings, or no rerank scores, can be had; empty if they can.
    const std::string& cannot_embed() const { return cannot_embed_; }
    const std::string& cannot_rerank() const { return cannot_rerank_; }

    // An input to embed may be computed in several steps: what counts is at its end, and the beginning is in the cache.
    bool can_split_embeddings() const { return can_split_embeddings_; }

    // Tokens of embeddings that are best computed at once, where inputs are short.
    int32_t n_embedding_batch() const { return n_embedding_batch_; }

    // Inputs of one batch must have the same length, or the memory's layout would tear them apart before pooling.
    bool wants_equal_inputs() const { return wants_equal_inputs_; }

    // Text to tokens. `special` adds what the model wants around a text (BOS, EOS); `parse_special` turns texts of
    // special tokens into them. Thread-safe.
    std::vector<llama_token> tokenize(const std::string& text, bool special, bool parse_special) const;

    // Text of tokens, special ones included, as valid UTF-8. Throws InvalidRequest for ids outside the vocabulary.
    std::string detokenize(const std::vector<llama_token>& tokens) const;

    // The same as one text: without the blank that some vocabularies put in front of it.
    std::string prompt_text(const std::vector<llama_token>& tokens) const;

    // Bytes of one token. Throws InvalidRequest for an id outside the vocabulary.
    std::string token_bytes(llama_token token, bool special = true) const;

    bool is_token(llama_token token) const { return token >= 0 && token < info_.n_vocab; }

private:
    void describe(const EngineParams& params);
    void describe_embeddings();

    common_params params_;
    common_init_result_ptr loaded_;
    llama_model* model_ = nullptr;
    llama_context* context_ = nullptr;
    const llama_vocab* vocab_ = nullptr;
    common_chat_templates_ptr templates_;
    ModelInfo info_;
    int32_t n_swa_ = 0;
    bool can_cut_ = true;
    std::string cannot_complete_, cannot_embed_, cannot_rerank_;
    bool can_split_embeddings_ = false, wants_equal_inputs_ = false;
    int32_t n_embedding_batch_ = 0;
    bool can_shift_ = false;
};

} // namespace llamaserve
