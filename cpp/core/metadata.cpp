#include "metadata.hpp"

#include "error.hpp"
#include "log.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <set>

namespace llamaserve {

namespace {

constexpr uint32_t max_experts = 1024; // llama.cpp's

class Metadata {
public:
    Metadata(const gguf_context* gguf, const std::vector<std::string>& overrides) : gguf_(gguf), overrides_(overrides) {
        architecture_ = text("general.architecture").value_or("");
    }

    // The override's value, or the file's, of a key that the architecture's name stands in front of.
    uint32_t count(const std::string& name) const {
        const std::string key = architecture_ + "." + name;
        if (const auto given = overridden(key, "int")) {
            int64_t value = 0;
            std::from_chars(given->data(), given->data() + given->size(), value);
            return static_cast<uint32_t>(value);
        }
        const int64_t id = gguf_find_key(gguf_, key.c_str());
        if (id < 0) {
            return 0;
        }
        if (gguf_get_kv_type(gguf_, id) == GGUF_TYPE_UINT32) {
            return gguf_get_val_u32(gguf_, id);
        }
        uint32_t most = 0; // some models have a count for each layer
        if (gguf_get_kv_type(gguf_, id) == GGUF_TYPE_ARRAY && gguf_get_arr_type(gguf_, id) == GGUF_TYPE_UINT32) {
            const auto* values = static_cast<const uint32_t*>(gguf_get_arr_data(gguf_, id));
            most = gguf_get_arr_n(gguf_, id) > 0 ? *std::max_element(values, values + gguf_get_arr_n(gguf_, id)) : 0;
        }
        return most;
    }

    std::optional<std::string> text_of(const std::string& name) const { return text(architecture_ + "." + name); }

    std::optional<std::string> text(const std::string& key) const {
        const auto given = overridden(key, "str");
        return given ? given : own_text(key);
    }

    std::optional<std::string> own_text(const std::string& key) const {
        const int64_t id = gguf_find_key(gguf_, key.c_str());
        if (id < 0 || gguf_get_kv_type(gguf_, id) != GGUF_TYPE_STRING) {
            return std::nullopt;
        }
        return gguf_get_val_str(gguf_, id);
    }

private:
    std::optional<std::string> overridden(const std::string& key, const std::string& type) const {
        const std::string start = key + "=" + type + ":";
        for (const std::string& item : overrides_) {
            if (item.starts_with(start)) {
                return item.substr(start.size());
            }
        }
        return std::nullopt;
    }

    const gguf_context* gguf_;
    const std::vector<std::string>& overrides_;
    std::string architecture_;
};

} // namespace

gguf_context_ptr open_metadata(const std::string& path) {
    const LogCapture quiet(true);
    return gguf_context_ptr(gguf_init_from_file(path.c_str(), {true, nullptr}));
}

void check_counts(const gguf_context* gguf, const std::string& path, const std::vector<std::string>& overrides) {
    const Metadata meta(gguf, overrides);
    const auto refuse = [&](const std::string& what) {
        throw LoadError(path + ": can't be loaded: " + what + (overrides.empty() ? "" : " (see override_kv)"));
    };
    const uint32_t experts = meta.count("expert_count"), used = meta.count("expert_used_count");
    if (experts > max_experts || used > experts || (experts > 0 && used == 0)) {
        refuse("it claims to use " + std::to_string(used) + " of " + std::to_string(experts) + " experts");
    }
    const uint32_t groups = meta.count("expert_group_count"), used_groups = meta.count("expert_group_used_count");
    const bool grouped = groups > 1 && experts > 0;
    if (groups > (experts > 0 ? experts - 1 : 0) ||
        (grouped && (experts % groups != 0 || used_groups == 0 || used_groups >= groups))) {
        refuse("it claims to use " + std::to_string(used_groups) + " of " + std::to_string(groups) +
               " groups of experts");
    }
    for (const char* layers : {"nextn_predict_layers", "posnet.block_count", "convnext.block_count"}) {
        if (meta.count(layers) > meta.count("block_count")) {
            refuse(std::string(layers) + " is more than it has layers");
        }
    }
    static const std::set<std::string> scalings = {"none", "linear", "yarn", "longrope"};
    const std::string scaling = meta.text_of("rope.scaling.type").value_or("none");
    if (scalings.count(scaling) == 0) {
        refuse("'" + scaling + "' is no way to scale RoPE");
    }
    const auto own = meta.own_text("tokenizer.ggml.model");
    if (own != meta.text("tokenizer.ggml.model")) {
        throw LoadError("override_kv: tokenizer.ggml.model can't be changed: the vocabulary is of another kind");
    }
}

std::string meta_or_empty(const llama_model* model, const char* key) {
    std::array<char, 256> buffer{};
    const int32_t n = llama_model_meta_val_str(model, key, buffer.data(), buffer.size());
    return n < 0 ? std::string() : std::string(buffer.data());
}

} // namespace llamaserve
