// How many prompt tokens a step may take on while someone is generating.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llamaserve {

// Keeps a step near a target time, by what prompt tokens were measured to cost. While a prompt is computed, streams get
// at most a sixth of the time, so it takes at most a fifth longer than alone.
class StepBudget {
public:
    // `target_ms`: how long a step may take; `max_tokens`: the most a batch can hold.
    StepBudget(double target_ms, int32_t max_tokens) : target_ms_(target_ms), max_tokens_(max_tokens) {}

    // Prompt tokens for the next step, where `decode_ms` is what the step takes without any (0 if unknown).
    int32_t tokens() const {
        if (ms_per_token_ <= 0.0) {
            return std::min(first_tokens, max_tokens_);
        }
        // Where generating alone takes most of the time, a longer step is better: a prompt mustn't starve.
        const double room = std::max(target_ms_ - decode_ms_, min_prompt_share * decode_ms_);
        return std::clamp(static_cast<int32_t>(room / ms_per_token_), std::min(min_tokens, max_tokens_), max_tokens_);
    }

    // Tells what a step took.
    void measured(int32_t n_prompt, int32_t n_decode, double ms) {
        if (n_prompt == 0) {
            decode_ms_ = decode_ms_ <= 0.0 ? ms : decode_ms_ + (ms - decode_ms_) * rate;
            return;
        }
        if (n_prompt < min_tokens) {
            return; // mostly overhead: says little about a token
        }
        const double own = std::max(ms - (n_decode > 0 ? decode_ms_ : 0.0), ms / 4);
        const double per_token = own / n_prompt;
        ms_per_token_ = ms_per_token_ <= 0.0 ? per_token : ms_per_token_ + (per_token - ms_per_token_) * rate;
    }

private:
    static constexpr int32_t first_tokens = 64; // before anything was measured
    static constexpr int32_t min_tokens = 16;   // fewer would starve the prompt
    static constexpr double rate = 0.25;
    static constexpr double min_prompt_share = 5.0; // of a step, in times of what generating takes

    double target_ms_;
    int32_t max_tokens_;
    double ms_per_token_ = 0.0;
    double decode_ms_ = 0.0;
};

} // namespace llamaserve
