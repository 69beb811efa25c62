// Looks into adapter files before llama.cpp does.
#include "adapters.hpp"

#include "error.hpp"
#include "ggml-cpp.h"
#include "gguf.h"
#include "log.hpp"
#include "model.hpp"

#include <array>
#include <cmath>
#include <map>
#include <set>

namespace llamaserve {

namespace {

using Shape = std::array<int64_t, GGML_MAX_DIMS>;

struct TensorInfo {
    Shape shape;
    ggml_type type;
};

struct GgufFile {
    std::string path;
    gguf_context_ptr gguf;
    ggml_context_ptr tensors;
};

GgufFile open_gguf(const std::string& path) {
    check_file(path);
    const LogCapture capture(true);
    ggml_context* tensors = nullptr;
    const gguf_init_params params{true, &tensors};
    gguf_context_ptr gguf(gguf_init_from_file(path.c_str(), params));
    if (!gguf) {
        const std::string errors = capture.errors();
        throw LoadError(path + ": is damaged" + (errors.empty() ? "" : " (" + errors + ")"));
    }
    return {path, std::move(gguf), ggml_context_ptr(tensors)};
}

void add_tensors(const GgufFile& file, std::map<std::string, TensorInfo>& out) {
    for (ggml_tensor* t = ggml_get_first_tensor(file.tensors.get()); t != nullptr;
         t = ggml_get_next_tensor(file.tensors.get(), t)) {
        out[t->name] = {{t->ne[0], t->ne[1], t->ne[2], t->ne[3]}, t->type};
    }
}

// The text under `key`, empty if there is none.
std::string text_of(const GgufFile& file, const char* key) {
    const int64_t id = gguf_find_key(file.gguf.get(), key);
    if (id < 0) {
        return {};
    }
    if (gguf_get_kv_type(file.gguf.get(), id) != GGUF_TYPE_STRING) {
        throw LoadError(file.path + ": is damaged (" + key + " is no text)");
    }
    return gguf_get_val_str(file.gguf.get(), id);
}

// All tensors of a model, which may be in several files.
std::map<std::string, TensorInfo> model_tensors(const std::string& path) {
    std::map<std::string, TensorInfo> out;
    const GgufFile first = open_gguf(path);
    add_tensors(first, out);
    const int64_t id = gguf_find_key(first.gguf.get(), "split.count");
    if (id >= 0 && gguf_get_kv_type(first.gguf.get(), id) == GGUF_TYPE_UINT16) {
        const int32_t n = gguf_get_val_u16(first.gguf.get(), id);
        std::array<char, 4096> prefix{}, part{};
        if (n > 1 && llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, n) > 0) {
            for (int32_t i = 1; i < n; ++i) {
                llama_split_path(part.data(), part.size(), prefix.data(), i, n);
                add_tensors(open_gguf(part.data()), out);
            }
        }
    }
    return out;
}

std::string shape_text(const Shape& s) {
    return std::to_string(s[0]) + "x" + std::to_string(s[1]) + (s[2] > 1 ? "x" + std::to_string(s[2]) : "");
}

void check_pair(const std::string& path, const std::string& name, const TensorInfo& a, const TensorInfo& b,
                const TensorInfo& w) {
    static const std::set<ggml_type> usable = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                               GGML_TYPE_Q5_1, GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0};
    if (usable.count(a.type) == 0 || usable.count(b.type) == 0) {
        throw LoadError(path + ": can't be used: the tensors of " + name + " are of a type that isn't supported");
    }
    // The embeddings are looked up, not multiplied, so theirs is the other way round.
    const bool embeddings = name.ends_with("token_embd.weight");
    const bool fits = embeddings ? b.shape[1] == w.shape[0] && a.shape[1] == w.shape[1]
                                 : a.shape[0] == w.shape[0] && b.shape[1] == w.shape[1];
    const bool rank = embeddings ? a.shape[0] == b.shape[0] : a.shape[1] == b.shape[0];
    const bool deep = a.shape[2] == w.shape[2] && b.shape[2] == w.shape[2] && a.shape[3] == 1 && b.shape[3] == 1;
    if (!fits || !rank || !deep) {
        throw LoadError(path + ": is made for another model: its tensors for " + name + " are " + shape_text(a.shape) +
                        " and " + shape_text(b.shape) + ", the model's tensor is " + shape_text(w.shape));
    }
}

} // namespace

void check_lora_file(const std::string& path, const std::string& model_path) {
    const GgufFile file = open_gguf(path);
    const std::string type = text_of(file, "general.type"), kind = text_of(file, "adapter.type");
    if (type != "adapter" || kind != "lora") {
        throw LoadError(path + ": is not a LoRA adapter");
    }
    text_of(file, "general.architecture");
    if (const int64_t id = gguf_find_key(file.gguf.get(), "adapter.lora.alpha"); id >= 0) {
        if (gguf_get_kv_type(file.gguf.get(), id) != GGUF_TYPE_FLOAT32 ||
            !std::isfinite(gguf_get_val_f32(file.gguf.get(), id))) {
            throw LoadError(path + ": is damaged (adapter.lora.alpha is no number)");
        }
    }
    const auto weights = model_tensors(model_path);
    std::map<std::string, TensorInfo> own;
    add_tensors(file, own);
    for (const auto& [name, a] : own) {
        if (!name.ends_with(".lora_a")) {
            continue; // llama.cpp names those that have no business here
        }
        const std::string base = name.substr(0, name.size() - 7);
        const auto b = own.find(base + ".lora_b");
        const auto w = weights.find(base);
        if (b == own.end() || w == weights.end()) {
            throw LoadError(path + ": is made for another model: " +
                            (b == own.end() ? "it has only a half of " + base : base + " is not in the model"));
        }
        check_pair(path, base, a, b->second, w->second);
        if (base == "token_embd.weight" && weights.count("output.weight") == 0) {
            throw LoadError(path + ": can't be used: it changes the token embeddings, and the model uses those for its "
                                   "output, too");
        }
    }
}

int32_t check_control_vector_file(const std::string& path) {
    const GgufFile file = open_gguf(path);
    std::map<std::string, TensorInfo> directions;
    add_tensors(file, directions);
    int64_t length = 0;
    for (const auto& [name, tensor] : directions) {
        const std::string number = name.starts_with("direction.") ? name.substr(10) : "";
        const bool named =
            !number.empty() && number.size() < 5 && number.find_first_not_of("0123456789") == number.npos;
        if (!named || std::stoi(number) == 0) {
            throw LoadError(path + ": is not a control vector: it has a tensor " + name +
                            ", not direction.1 and so on");
        }
        const Shape& s = tensor.shape;
        if (tensor.type != GGML_TYPE_F32 || s[1] != 1 || s[2] != 1 || s[3] != 1 || (length != 0 && s[0] != length)) {
            throw LoadError(path + ": can't be used: " + name +
                            " is not a vector of 32-bit numbers as long as the others");
        }
        length = s[0];
    }
    if (length == 0) {
        throw LoadError(path + ": is not a control vector: it has no directions");
    }
    return static_cast<int32_t>(length);
}

} // namespace llamaserve
