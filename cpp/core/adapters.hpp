// LoRA adapters: with which of them tokens are computed, and how the caches keep apart what was computed with which.
#pragma once

#include "prefix_tree.hpp"

#include "llama.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace llamaserve {

class Model;

// One for each loaded adapter; 0 switches it off.
using AdapterScales = std::vector<float>;

// (adapter, scale) pairs, as a request names them. Adapters that aren't named are off.
using AdapterChoice = std::vector<std::pair<int32_t, float>>;

// What a sequence is computed with. An activated LoRA (aLoRA) is off for the tokens before its invocation.
struct Adapters {
    AdapterScales scales; // empty: no adapters are loaded
    AdapterScales before; // for the first `activation` tokens
    int32_t activation = 0;

    // Those for the token after the first `n_tokens`.
    const AdapterScales& at(int32_t n_tokens) const { return n_tokens < activation ? before : scales; }
    bool operator==(const Adapters&) const = default;
};

// A sequence as the prefix trees know it. Cells computed with other adapters are another prefix: marks for the scales,
// which are no tokens, stand in front of the tokens that were computed with them.
class PrefixKey {
public:
    PrefixKey(PrefixTree::Tokens tokens, const Adapters& adapters);

    PrefixTree::Tokens tokens() const { return key_.empty() ? plain_ : PrefixTree::Tokens(key_); }
    // How many of the sequence's tokens another one shares, whose key shares `n` with this one.
    size_t length(size_t n) const;

private:
    PrefixTree::Tokens plain_; // is the key where no adapters are loaded
    std::vector<PrefixTree::Token> key_;
    size_t n_marks_ = 0, activation_ = 0;
};

// The scales that `choice` means. Throws InvalidRequest if it names an adapter that isn't there.
AdapterScales to_scales(const AdapterChoice& choice, size_t n_adapters);

// What a request with this prompt is computed with. Throws InvalidRequest for several aLoRAs at once.
Adapters resolve_adapters(AdapterScales scales, const std::vector<llama_token>& prompt, const Model& model);

// Throws LoadError unless the file is an adapter whose tensors fit those of the model in `model_path`; llama.cpp looks
// at only a part of that, and would end the process over the rest.
void check_lora_file(const std::string& path, const std::string& model_path);

// Throws LoadError unless the file is a control vector. Returns the length of its directions.
int32_t check_control_vector_file(const std::string& path);

} // namespace llamaserve
