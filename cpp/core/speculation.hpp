// Drafts the tokens that requests may sample next, with llama-common's means: a draft model, or n-grams of the text so
// far. The scheduler verifies them.
#pragma once

#include "draft_context.hpp"
#include "model.hpp"
#include "slot.hpp"
#include "speculative.h"

#include <memory>
#include <span>
#include <vector>

namespace llamaserve {

// Belongs to the engine thread.
class Speculation {
public:
    // Null if the model's parameters ask for none. Loads the draft model; throws LoadError.
    static std::unique_ptr<Speculation> make(const Model& model, const std::vector<Slot>& slots);

    // Lets the draft model compute at most `n_ahead` tokens that slots have and it hasn't. Then drafts for every
    // generating slot that it has caught up with: its `draft` is what may come after the token sampled last.
    void draft(std::vector<Slot>& slots, int32_t n_ahead);

    // `n` tokens of the slot's draft were sampled.
    void accepted(const Slot& slot, int32_t n);

    // Chances to pretend that a drafted token was sampled, by its place in the draft; empty: no pretending.
    std::span<const double> synthetic() const { return common_speculative_get_synth_probs(spec_.get()); }

private:
    // The run that a sequence of llama-common's state is about, and how long it was.
    struct Seen {
        uint64_t run = 0;
        int32_t n_cells = 0;
    };

    Speculation(const Model& model, const std::vector<Slot>& slots);
    int32_t most(const Slot& slot) const;

    const Model& model_;
    common_params_speculative params_;
    common_speculative_init_result_ptr loaded_;
    std::unique_ptr<DraftContext> context_;
    common_speculative_ptr spec_;
    std::vector<Seen> seen_;
};

} // namespace llamaserve
