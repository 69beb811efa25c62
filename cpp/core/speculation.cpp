#include "speculation.hpp"

#include "error.hpp"
#include "log.hpp"

#include <algorithm>
#include <utility>

namespace llamaserve {

std::unique_ptr<Speculation> Speculation::make(const Model& model, const std::vector<Slot>& slots) {
    const auto& types = model.params().speculative.types;
    if (std::all_of(types.begin(), types.end(), [](auto type) { return type == COMMON_SPECULATIVE_TYPE_NONE; })) {
        return nullptr;
    }
    if (!model.can_cut()) {
        throw LoadError(
            "spec_type: speculative decoding needs a model that can take tokens back; this one (recurrent or "
            "hybrid) can't");
    }
    return std::unique_ptr<Speculation>(new Speculation(model, slots));
}

Speculation::Speculation(const Model& model, const std::vector<Slot>& slots)
    : model_(model), params_(model.params().speculative), seen_(slots.size()) {
    const std::string& path = params_.draft.mparams.path;
    LogCapture capture;
    auto why = [&](const std::string& what) {
        const std::string errors = capture.errors();
        return what + (errors.empty() ? "" : " (" + errors + ")");
    };
    if (params_.has_dft()) {
        common_params params = common_base_params_to_speculative(model.params());
        try {
            loaded_ = common_speculative_init_from_params(params, model.model(), model.context());
        } catch (const std::exception& e) {
            throw LoadError(why(path + ": the draft model can't be loaded: " + e.what()));
        }
        if (loaded_->model() == nullptr || loaded_->context() == nullptr) {
            throw LoadError(why(path + ": the draft model can't be loaded"));
        }
        const llama_model* draft = loaded_->model();
        if (llama_model_is_recurrent(draft) || llama_model_is_hybrid(draft) || !llama_model_has_decoder(draft) ||
            llama_model_has_encoder(draft) || llama_get_memory(loaded_->context()) == nullptr) {
            throw LoadError(path + ": this kind of model can't draft for others");
        }
        params_.draft.ctx_tgt = model.context();
        params_.draft.ctx_dft = loaded_->context();
        context_ = std::make_unique<DraftContext>(loaded_->context(), slots);
    }
    try {
        spec_.reset(common_speculative_init(params_, static_cast<uint32_t>(slots.size())));
    } catch (const std::exception& e) {
        throw LoadError(why((path.empty() ? std::string("spec_type") : path) + ": can't draft for " +
                            model.info().path + ": " + e.what()));
    }
    if (!spec_) {
        throw LoadError(why("spec_type: speculative decoding could not be set up"));
    }
}

// How many tokens may be drafted for the slot: after them comes one more that is sampled, and has a place.
int32_t Speculation::most(const Slot& slot) const {
    const Run& run = *slot.run;
    int32_t n = model_.n_ctx_slot() - slot.n_cells() - 2;
    if (run.n_predict() >= 0) {
        n = std::min(n, run.n_predict() - run.n_generated() - 1);
    }
    const int32_t asked = run.request().params.speculative_n_max;
    return asked >= 0 ? std::min(n, asked) : n;
}

void Speculation::draft(std::vector<Slot>& slots, int32_t n_ahead) {
    if (context_) {
        context_->catch_up(slots, n_ahead);
    }
    std::vector<Slot*> drafting;
    for (Slot& slot : slots) {
        common_speculative_draft_params& p = common_speculative_get_draft_params(spec_.get(), slot.id);
        p.drafting = false;
        if (slot.state != SlotState::generating) {
            continue;
        }
        slot.draft.clear();
        const int32_t n_max = most(slot);
        if (n_max <= 0 || (context_ && !context_->ready(slot))) {
            continue;
        }
        Seen& seen = seen_[static_cast<size_t>(slot.id)];
        if (seen.run != slot.run->id() || seen.n_cells > slot.n_cells()) {
            // An empty text first: what llama-common has of another one would be taken for a part of this one.
            common_speculative_begin(spec_.get(), slot.id, {});
            common_speculative_begin(spec_.get(), slot.id, slot.cells);
        }
        seen = {slot.run->id(), slot.n_cells()};
        p = {true, n_max, slot.n_cells(), slot.run->sampled(), &slot.cells, &slot.draft};
        drafting.push_back(&slot);
    }
    if (drafting.empty()) {
        return;
    }
    {
        const LogCapture no_room_is_no_error(true);
        common_speculative_draft(spec_.get());
    }
    for (Slot* slot : drafting) {
        if (context_) {
            context_->drafted(slots, *slot);
        }
        // The draft model may have tokens of its own at the end of its vocabulary.
        const auto end = std::find_if_not(slot->draft.begin(), slot->draft.end(),
                                          [&](llama_token token) { return model_.is_token(token); });
        slot->draft.erase(end, slot->draft.end());
        if (static_cast<int32_t>(slot->draft.size()) < slot->run->request().params.speculative_n_min) {
            slot->draft.clear();
        }
    }
}

void Speculation::accepted(const Slot& slot, int32_t n) {
    common_speculative_accept(spec_.get(), slot.id, static_cast<uint16_t>(n));
}

} // namespace llamaserve
