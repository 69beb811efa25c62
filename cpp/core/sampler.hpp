// Chooses the next token of one request from its logits.
#pragma once

#include "common.h"
#include "sampling.h"

#include <span>
#include <vector>

namespace llamaserve {

class Model;

// llama-common's sampler chain, with a shorter way to it: where the chain starts by keeping the K best tokens, only
// these are handed to it. The result is the same, token for token.
class Sampler {
public:
    // Throws std::exception if the parameters (a grammar, say) can't be used. Thread-safe.
    Sampler(const Model& model, common_params_sampling& params);

    // Tells the chain of a prompt token, for the penalties that look back.
    void accept_prompt(llama_token token) { common_sampler_accept(common_.get(), token, false); }

    // Something but the chain decides what may come next: a grammar, or a reasoning budget. Such a sampler reads the
    // logits from the context, so only one at a time may run.
    bool constrained() const { return constrained_; }

    // The next token, from the logits at output `i_batch` of the context. Unconstrained samplers may run at the same
    // time, given `logits`. Throws std::runtime_error if no token is allowed.
    llama_token sample(llama_context* ctx, int32_t i_batch, const float* logits);

    // What the last token was chosen from, after the chain; sorted by probability.
    std::span<const llama_token_data> candidates();

private:
    size_t shortlist_size(const common_params_sampling& params) const;
    void shortlist(const float* logits);

    const Model* model_;
    common_sampler_ptr common_;
    bool constrained_;
    size_t n_shortlist_; // 0: the chain wants all of the vocabulary
    std::vector<llama_token_data> candidates_;
    llama_token_data_array array_{};
};

} // namespace llamaserve
