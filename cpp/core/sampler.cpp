#include "sampler.hpp"

#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace llamaserve {

namespace {

bool better(const llama_token_data& a, const llama_token_data& b) {
    return a.logit > b.logit;
}

} // namespace

Sampler::Sampler(const Model& model, common_params_sampling& params)
    : model_(&model), common_(common_sampler_init(model.model(), params)) {
    const bool budget = !params.reasoning_budget_start.empty() && !params.reasoning_budget_end.empty();
    constrained_ = !params.grammar.empty() || budget;
    n_shortlist_ = constrained_ ? 0 : shortlist_size(params);
}

// How many of the best tokens the chain keeps before it does anything else; 0 if it starts otherwise.
size_t Sampler::shortlist_size(const common_params_sampling& p) const {
    int32_t n_suppressed = 0;
    llama_vocab_get_suppress_tokens(model_->vocab(), &n_suppressed);
    if (p.mirostat != 0 || !p.logit_bias.empty() || n_suppressed > 0) {
        return 0;
    }
    const bool penalties =
        p.penalty_last_n != 0 && (p.penalty_repeat != 1.0f || p.penalty_freq != 0.0f || p.penalty_present != 0.0f);
    const bool dry = p.dry_multiplier != 0.0f && p.dry_penalty_last_n != 0;
    for (const common_sampler_type type : p.samplers) {
        switch (type) {
        case COMMON_SAMPLER_TYPE_PENALTIES:
            if (penalties) {
                return 0;
            }
            break;
        case COMMON_SAMPLER_TYPE_DRY:
            if (dry) {
                return 0;
            }
            break;
        case COMMON_SAMPLER_TYPE_TOP_N_SIGMA:
            if (p.top_n_sigma > 0.0f) {
                return 0;
            }
            break;
        case COMMON_SAMPLER_TYPE_TOP_K: {
            // Beyond this, gathering costs as much as handing over everything.
            constexpr int32_t worthwhile = 512;
            return p.top_k > 0 && p.top_k <= worthwhile ? static_cast<size_t>(p.top_k) : 0;
        }
        default:
            return 0;
        }
    }
    return 0;
}

// The best tokens, best first. One pass: a token is looked at again only if it beats the worst of those kept.
void Sampler::shortlist(const float* logits) {
    const auto n_vocab = static_cast<size_t>(model_->n_vocab());
    const size_t k = std::min(n_shortlist_, n_vocab);
    candidates_.clear();
    for (size_t i = 0; i < k; ++i) {
        candidates_.push_back({static_cast<llama_token>(i), logits[i], 0.0f});
    }
    std::make_heap(candidates_.begin(), candidates_.end(), better);
    float worst = candidates_.front().logit;
    for (size_t i = k; i < n_vocab; ++i) {
        if (logits[i] > worst) {
            std::pop_heap(candidates_.begin(), candidates_.end(), better);
            candidates_.back() = {static_cast<llama_token>(i), logits[i], 0.0f};
            std::push_heap(candidates_.begin(), candidates_.end(), better);
            worst = candidates_.front().logit;
        }
    }
    std::sort_heap(candidates_.begin(), candidates_.end(), better);
    array_ = {candidates_.data(), candidates_.size(), -1, true};
}

llama_token Sampler::sample(llama_context* ctx, int32_t i_batch, const float* logits) {
    llama_token token = LLAMA_TOKEN_NULL;
    float logit = 0.0f;
    if (constrained_) {
        token = common_sampler_sample(common_.get(), ctx, i_batch);
        const llama_token_data_array* chosen = common_sampler_get_candidates(common_.get(), false);
        logit = chosen->selected >= 0 ? chosen->data[chosen->selected].logit : -INFINITY;
    } else {
        if (n_shortlist_ > 0) {
            shortlist(logits);
        } else {
            const int32_t n = model_->n_vocab();
            candidates_.resize(static_cast<size_t>(n));
            for (llama_token i = 0; i < n; ++i) {
                candidates_[static_cast<size_t>(i)] = {i, logits[i], 0.0f};
            }
            array_ = {candidates_.data(), candidates_.size(), -1, false};
        }
        llama_sampler_apply(common_sampler_get(common_.get()), &array_);
        if (array_.selected >= 0 && static_cast<size_t>(array_.selected) < array_.size) {
            token = array_.data[array_.selected].id;
            logit = array_.data[array_.selected].logit;
        }
    }
    if (!model_->is_token(token)) {
        throw std::runtime_error("the model's output could not be sampled (no valid token)");
    }
    // A token at minus infinity is one that a ban, a bias or the grammar excludes: nothing was left to choose from.
    if (logit == -INFINITY) {
        throw std::runtime_error("no token is allowed here: the grammar and the banned tokens exclude all of them");
    }
    common_sampler_accept(common_.get(), token, true);
    return token;
}

std::span<const llama_token_data> Sampler::candidates() {
    if (constrained_) {
        const llama_token_data_array* array = common_sampler_get_candidates(common_.get(), true);
        return {array->data, array->size};
    }
    std::sort(array_.data, array_.data + array_.size,
              [](const llama_token_data& a, const llama_token_data& b) { return a.p > b.p; });
    return {array_.data, array_.size};
}

} // namespace llamaserve
