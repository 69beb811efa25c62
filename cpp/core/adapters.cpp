#include "adapters.hpp"

#include "error.hpp"
#include "model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace llamaserve {

namespace {

void add_marks(std::vector<PrefixTree::Token>& key, const AdapterScales& scales) {
    for (const float scale : scales) {
        const auto bits = std::bit_cast<uint32_t>(scale);
        // Tokens are never negative, and LLAMA_TOKEN_NULL is -1.
        key.push_back(-2 - static_cast<PrefixTree::Token>(bits >> 16));
        key.push_back(-2 - static_cast<PrefixTree::Token>(bits & 0xffff));
    }
}

} // namespace

PrefixKey::PrefixKey(PrefixTree::Tokens tokens, const Adapters& adapters) : plain_(tokens) {
    if (adapters.scales.empty()) {
        return;
    }
    n_marks_ = 2 * adapters.scales.size();
    activation_ = static_cast<size_t>(adapters.activation);
    const size_t n_before = std::min(tokens.size(), activation_);
    key_.reserve(tokens.size() + 2 * n_marks_);
    if (activation_ > 0) {
        add_marks(key_, adapters.before);
        key_.insert(key_.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n_before));
    }
    if (activation_ == 0 || tokens.size() > n_before) {
        add_marks(key_, adapters.scales);
        key_.insert(key_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(n_before), tokens.end());
    }
}

size_t PrefixKey::length(size_t n) const {
    if (key_.empty()) {
        return n;
    }
    if (n <= n_marks_) {
        return 0;
    }
    n -= n_marks_;
    if (activation_ == 0 || n <= activation_) {
        return n;
    }
    return std::max(activation_, n - std::min(n, n_marks_));
}

// Far larger ones overflow the half floats of the KV cache. What is then no number stays in cells that others get, and
// without flash attention spoils their answers, too.
constexpr float max_scale = 100.0f;

AdapterScales to_scales(const AdapterChoice& choice, size_t n_adapters) {
    AdapterScales scales(n_adapters, 0.0f);
    for (const auto& [id, scale] : choice) {
        if (id < 0 || static_cast<size_t>(id) >= n_adapters) {
            throw InvalidRequest(
                "lora: there is no adapter " + std::to_string(id) +
                (n_adapters == 0 ? "; none is loaded" : "; there are 0 to " + std::to_string(n_adapters - 1)));
        }
        if (!(std::abs(scale) <= max_scale)) {
            throw InvalidRequest("lora: the scale of adapter " + std::to_string(id) + " must be between -100 and 100");
        }
        scales[static_cast<size_t>(id)] = scale == 0.0f ? 0.0f : scale; // no -0
    }
    return scales;
}

Adapters resolve_adapters(AdapterScales scales, const std::vector<llama_token>& prompt, const Model& model) {
    const auto& loaded = model.params().lora_adapters;
    const common_adapter_lora_info* invoked = nullptr;
    float* invoked_scale = nullptr;
    int32_t n_on = 0, n_activated = 0;
    for (size_t i = 0; i < scales.size(); ++i) {
        if (scales[i] != 0.0f) {
            ++n_on;
            if (llama_adapter_get_alora_n_invocation_tokens(loaded[i].ptr) > 0) {
                ++n_activated;
                invoked = &loaded[i];
                invoked_scale = &scales[i];
            }
        }
    }
    Adapters out;
    // Together with a plain LoRA an activated one is on from the start, as llama-server has it.
    if (n_activated > 0 && n_activated == n_on) {
        if (n_activated > 1) {
            throw InvalidRequest("Cannot run multiple aLoRAs in a single request");
        }
        const llama_token* tokens = llama_adapter_get_alora_invocation_tokens(invoked->ptr);
        const auto n = static_cast<std::ptrdiff_t>(llama_adapter_get_alora_n_invocation_tokens(invoked->ptr));
        const auto found = std::find_end(prompt.begin(), prompt.end(), tokens, tokens + n);
        if (found == prompt.end()) {
            *invoked_scale = 0.0f;
        } else {
            // llama-server switches it on one token ahead of the invocation.
            out.activation = static_cast<int32_t>(std::max<std::ptrdiff_t>(0, found - prompt.begin() - 1));
            out.before.assign(out.activation > 0 ? scales.size() : 0, 0.0f);
        }
    }
    out.scales = std::move(scales);
    return out;
}

} // namespace llamaserve
