#include "model.hpp"

#include "adapters.hpp"
#include "backends.hpp"
#include "error.hpp"
#include "log.hpp"
#include "metadata.hpp"
#include "text.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>

namespace llamaserve {

// llama.cpp answers these cases with a message about its own parser; a user wants to hear which file and what is wrong
// with it.
void check_file(const std::string& path) {
    if (path.empty()) {
        throw LoadError("no model file was named");
    }
    std::error_code error;
    const std::filesystem::path file = std::filesystem::u8path(path);
    const auto status = std::filesystem::status(file, error);
    if (status.type() == std::filesystem::file_type::not_found) {
        throw LoadError(path + ": no such file");
    }
    if (status.type() == std::filesystem::file_type::directory) {
        throw LoadError(path + ": is a folder, not a GGUF file");
    }
    std::ifstream in(file, std::ios::binary);
    if (!in) {
        throw LoadError(path + ": can't be opened (permissions?)");
    }
    std::array<char, 8> head{};
    in.read(head.data(), head.size());
    if (in.gcount() < static_cast<std::streamsize>(head.size())) {
        throw LoadError(path + ": is too short to be a GGUF file (" + std::to_string(in.gcount()) + " bytes)");
    }
    if (std::string(head.data(), 4) != "GGUF") {
        throw LoadError(path + ": is not a GGUF file (it doesn't start with the letters GGUF)");
    }
}

namespace {

// What would make llama.cpp end the process: it takes these values for granted.
void check_metadata(const std::string& path, const std::vector<std::string>& overrides) {
    for (const std::string& item : overrides) {
        if (item.find(".block_count=") != std::string::npos || item.find("_epsilon=") != std::string::npos) {
            throw LoadError("override_kv: '" + item + "' can't be changed");
        }
    }
    const gguf_context_ptr gguf = open_metadata(path);
    if (!gguf) {
        return; // loading it will say why
    }
    check_counts(gguf.get(), path, overrides);
    for (int64_t i = 0; i < gguf_get_n_kv(gguf.get()); ++i) {
        const std::string key = gguf_get_key(gguf.get(), i);
        const gguf_type type = gguf_get_kv_type(gguf.get(), i);
        if (key.ends_with(".block_count") && type == GGUF_TYPE_UINT32) {
            const uint32_t n = gguf_get_val_u32(gguf.get(), i);
            if (n == 0 || n > 512) {
                throw LoadError(path + ": can't be loaded: it claims to have " + std::to_string(n) + " layers");
            }
        }
        if (key.ends_with("_epsilon") && type == GGUF_TYPE_FLOAT32 && !(gguf_get_val_f32(gguf.get(), i) >= 0.0f)) {
            throw LoadError(path + ": can't be loaded: " + key + " is below 0 or no number");
        }
    }
}

// Why a chat template can't be parsed: llama-common throws away the reason.
std::string template_error(const std::string& given, const llama_model* model) {
    const char* own = llama_model_chat_template(model, nullptr);
    try {
        const common_chat_template parsed(given.empty() && own != nullptr ? own : given, "", "");
    } catch (const std::exception& e) {
        return e.what();
    }
    return "";
}

// A name, or a mistyped one, is easily given where a template's text is expected, and the other way round.
void check_chat_template(const common_params& params) {
    const std::string& given = params.chat_template;
    if (given.empty()) {
        return;
    }
    if (!params.use_jinja && !common_chat_verify_template(given, false)) {
        throw LoadError("chat_template: without jinja it must be one of llama.cpp's own templates");
    }
    if (params.use_jinja && given != "chatml" && given.find('{') == std::string::npos) {
        log_write(2, "chat_template: every prompt is the text '" + given.substr(0, 60) +
                         "', without the messages; without jinja it may be the name of a template");
    }
}

// Whether the model has what turns an embedding into a score: without it, "rank" would give any numbers.
bool has_ranking_head(const std::string& path) {
    const gguf_context_ptr gguf = open_metadata(path);
    return !gguf || gguf_find_key(gguf.get(), "split.count") >= 0 || gguf_find_tensor(gguf.get(), "cls.weight") >= 0 ||
           gguf_find_tensor(gguf.get(), "cls.output.weight") >= 0;
}

// llama.cpp's graph that moves quantized keys takes for granted that they are rotated, and crashes where they are not:
// heads of other sizes than multiples of 64 aren't, nor is anything with LLAMA_ATTN_ROT_DISABLE.
bool keys_can_move(const llama_model* model, ggml_type type) {
    if (!ggml_is_quantized(type)) {
        return true;
    }
    const char* off = std::getenv("LLAMA_ATTN_ROT_DISABLE");
    const std::string arch = meta_or_empty(model, "general.architecture");
    const std::string length = meta_or_empty(model, (arch + ".attention.key_length").c_str());
    const int32_t head =
        length.empty() ? llama_model_n_embd(model) / llama_model_n_head(model) : std::atoi(length.c_str());
    return (off == nullptr || std::atoi(off) == 0) && head % 64 == 0;
}

} // namespace

Model::Model(const EngineParams& in) {
    init_backends();
    check_file(in.model);
    check_metadata(in.model, in.override_kv);
    for (const auto& [path, _] : in.lora) {
        check_lora_file(path, in.model);
    }
    int32_t n_control = 0;
    for (const auto& [path, _] : in.control_vector) {
        const int32_t n = check_control_vector_file(path);
        if (n_control != 0 && n != n_control) {
            throw LoadError(path + ": is made for another model than the other control vectors");
        }
        n_control = n;
    }
    params_ = to_common(in);
    if (params_.speculative.has_dft()) {
        check_file(params_.speculative.draft.mparams.path);
        check_metadata(params_.speculative.draft.mparams.path, {});
    }

    // common_fit_params changes the process-wide logger for a while, so two loads must not overlap.
    static std::mutex loading;
    std::lock_guard lock(loading);
    llama_numa_init(params_.numa);
    LogCapture capture;
    auto why = [&](const std::string& what) {
        const std::string errors = capture.errors();
        return in.model + ": " + what + (errors.empty() ? "" : " (" + errors + ")");
    };
    try {
        loaded_ = common_init_from_params(params_);
    } catch (const std::exception& e) {
        throw LoadError(why(std::string("can't be loaded: ") + e.what()));
    }
    model_ = loaded_->model();
    if (model_ == nullptr) {
        throw LoadError(why("can't be loaded; is the file complete and of a kind that this version knows?"));
    }
    for (const common_adapter_lora_info& adapter : params_.lora_adapters) {
        if (adapter.ptr == nullptr) {
            throw LoadError(adapter.path + ": can't be used with this model (" + capture.errors() + ")");
        }
    }
    if (n_control != 0 && n_control != llama_model_n_embd(model_)) {
        throw LoadError(in.control_vector.front().first + ": is made for another model: its directions have " +
                        std::to_string(n_control) + " numbers, the model's layers " +
                        std::to_string(llama_model_n_embd(model_)));
    }
    context_ = loaded_->context();
    if (context_ == nullptr) {
        throw LoadError(
            why("was read, but no context could be made for it; a smaller ctx_size or batch_size needs less memory"));
    }
    if (llama_pooling_type(context_) == LLAMA_POOLING_TYPE_RANK && !has_ranking_head(in.model)) {
        throw LoadError(in.model + ": has no head that gives scores; pooling \"rank\" (reranking) needs a reranker");
    }
    vocab_ = llama_model_get_vocab(model_);
    try {
        templates_ = common_chat_templates_init(model_, params_.chat_template);
    } catch (const std::exception& e) {
        const std::string reason = template_error(params_.chat_template, model_);
        throw LoadError(in.model + ": the chat template can't be parsed: " + (reason.empty() ? e.what() : reason) +
                        ". Another one can be given with chat_template");
    }
    check_chat_template(params_);
    for (const common_adapter_lora_info& adapter : params_.lora_adapters) {
        const llama_token* tokens = llama_adapter_get_alora_invocation_tokens(adapter.ptr);
        const auto n = static_cast<ptrdiff_t>(llama_adapter_get_alora_n_invocation_tokens(adapter.ptr));
        const int32_t n_vocab = llama_vocab_n_tokens(vocab_);
        if (std::any_of(tokens, tokens + n, [&](llama_token t) { return t < 0 || t >= n_vocab; })) {
            throw LoadError(adapter.path + ": is made for another model: its invocation is not in the vocabulary");
        }
    }
    describe(in);
    if (info_.n_ctx_slot < 2) {
        throw LoadError(in.model + ": a request could use only " + std::to_string(info_.n_ctx_slot) +
                        " tokens; the model's context length or ctx_size is too small for " +
                        std::to_string(info_.n_slots) + " slots");
    }
}

void Model::describe(const EngineParams& in) {
    info_.path = in.model;
    std::array<char, 256> text{};
    llama_model_desc(model_, text.data(), text.size());
    info_.description = text.data();
    info_.ftype = llama_ftype_name(llama_model_ftype(model_));
    info_.n_params = llama_model_n_params(model_);
    info_.size = llama_model_size(model_);
    info_.n_ctx_train = llama_model_n_ctx_train(model_);
    info_.n_embd = llama_model_n_embd_inp(model_);
    info_.n_vocab = llama_vocab_n_tokens(vocab_);
    info_.vocab_type = llama_vocab_type(vocab_);
    info_.n_ctx = static_cast<int32_t>(llama_n_ctx(context_));
    info_.n_slots = params_.n_parallel;
    info_.n_batch = static_cast<int32_t>(llama_n_batch(context_));
    info_.n_ubatch = static_cast<int32_t>(llama_n_ubatch(context_));
    info_.kv_unified = params_.kv_unified;
    info_.n_predict = params_.n_predict;
    info_.n_ctx_slot = std::min(static_cast<int32_t>(llama_n_ctx_seq(context_)), info_.n_ctx_train);
    if (params_.kv_unified_per_slot > 0) {
        info_.n_ctx_slot = std::min(info_.n_ctx_slot, params_.kv_unified_per_slot);
    }
    auto token_text = [&](llama_token t) {
        return t == LLAMA_TOKEN_NULL ? std::string() : sanitize_utf8(common_token_to_piece(vocab_, t));
    };
    info_.bos_token = token_text(llama_vocab_bos(vocab_));
    info_.eos_token = token_text(llama_vocab_eos(vocab_));
    if (llama_vocab_get_add_bos(vocab_)) {
        info_.bos_added = llama_vocab_bos(vocab_);
    }
    info_.fim_prefix = llama_vocab_fim_pre(vocab_);
    info_.fim_suffix = llama_vocab_fim_suf(vocab_);
    info_.fim_middle = llama_vocab_fim_mid(vocab_);
    info_.fim_repo = llama_vocab_fim_rep(vocab_);
    info_.fim_separator = llama_vocab_fim_sep(vocab_);
    info_.chat_template = common_chat_templates_source(templates_.get());
    info_.chat_template_tool_use = common_chat_templates_source(templates_.get(), "tool_use");
    info_.chat_template_caps = common_chat_templates_get_caps(templates_.get());
    try {
        info_.supports_thinking = params_.use_jinja && common_chat_templates_support_enable_thinking(templates_.get());
    } catch (const std::exception&) {
        info_.supports_thinking = false;
    }
    n_swa_ = params_.swa_full ? 0 : llama_model_n_swa(model_);

    can_cut_ = !llama_model_is_recurrent(model_) && !llama_model_is_hybrid(model_);
    llama_memory_t memory = llama_get_memory(context_);
    can_shift_ = can_cut_ && n_swa_ == 0 && memory != nullptr && llama_memory_can_shift(memory) &&
                 keys_can_move(model_, params_.cache_type_k);
    if (!can_shift_ && (in.context_shift || in.cache_reuse > 0)) {
        log_write(
            2, "this model's memory can't be shifted (with these cache types): context_shift and cache_reuse are off");
        params_.ctx_shift = false;
        params_.n_cache_reuse = 0;
    }

    describe_embeddings();
    if (llama_model_has_encoder(model_)) {
        cannot_complete_ = "models with an encoder are not supported yet";
    } else if (llama_get_memory(context_) == nullptr || !llama_model_has_decoder(model_)) {
        cannot_complete_ = "this model makes embeddings; it can't complete text";
    } else if (llama_model_is_diffusion(model_)) {
        cannot_complete_ = "diffusion models are not supported";
    } else if (info_.vocab_type == LLAMA_VOCAB_TYPE_NONE) {
        cannot_complete_ = "this model has no vocabulary";
    } else if (meta_or_empty(model_, "general.type") == "adapter") {
        cannot_complete_ = "this file is an adapter, not a model";
    }
}

void Model::describe_embeddings() {
    info_.embedding = params_.embedding;
    info_.embd_normalize = params_.embd_normalize;
    info_.n_embd_out = llama_model_n_embd_out(model_);
    const enum llama_pooling_type pooling = llama_pooling_type(context_);
    const bool rank = pooling == LLAMA_POOLING_TYPE_RANK;
    const bool memory = llama_get_memory(context_) != nullptr;
    const bool ends_count = pooling == LLAMA_POOLING_TYPE_LAST || (rank && llama_get_causal_attn(context_));
    info_.pooling = pooling == LLAMA_POOLING_TYPE_MEAN   ? "mean"
                    : pooling == LLAMA_POOLING_TYPE_CLS  ? "cls"
                    : pooling == LLAMA_POOLING_TYPE_LAST ? "last"
                    : rank                               ? "rank"
                                                         : "none";
    can_split_embeddings_ = memory && ends_count;
    // Attention runs over all tokens of a batch, whosever they are. A processor has no use for more of them than keep
    // the matrix products busy; a GPU has.
    constexpr int32_t cpu_batch = 128;
    const bool gpu = llama_supports_gpu_offload() && params_.n_gpu_layers != 0 &&
                     (params_.devices.empty() || params_.devices.front() != nullptr);
    n_embedding_batch_ = gpu ? info_.n_ubatch : std::min(cpu_batch, info_.n_ubatch);
    wants_equal_inputs_ = memory && can_cut_ && !info_.kv_unified && info_.n_slots > 1 && !ends_count &&
                          pooling != LLAMA_POOLING_TYPE_NONE;
    if (!memory) {
        // There is no cache that slots would have to share.
        info_.n_ctx_slot = std::min(info_.n_ctx, info_.n_ctx_train);
    }

    if (info_.vocab_type == LLAMA_VOCAB_TYPE_NONE) {
        cannot_embed_ = "this model has no vocabulary";
    } else if (llama_model_has_encoder(model_) && llama_model_has_decoder(model_)) {
        cannot_embed_ = "models with an encoder and a decoder are not supported yet";
    } else if (!params_.embedding) {
        cannot_embed_ = "This server does not support embeddings. Start it with `--embeddings`";
    } else if (rank) {
        cannot_rerank_ = "";
        cannot_embed_ = "This server ranks documents (pooling \"rank\"); it does not support embeddings";
        return;
    }
    cannot_rerank_ = params_.embedding && !cannot_embed_.empty()
                         ? cannot_embed_
                         : "This server does not support reranking. Start it with `--reranking`";
}

std::vector<llama_token> Model::tokenize(const std::string& text, bool special, bool parse_special) const {
    // llama_tokenize counts in int32.
    if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max() / 2)) {
        throw InvalidRequest("the text is too long to tokenize");
    }
    if (info_.vocab_type == LLAMA_VOCAB_TYPE_NONE) {
        throw InvalidRequest("this model has no vocabulary");
    }
    return common_tokenize(vocab_, text, special, parse_special);
}

std::string Model::detokenize(const std::vector<llama_token>& tokens) const {
    std::string out;
    for (const llama_token token : tokens) {
        out += token_bytes(token);
    }
    return sanitize_utf8(out);
}

std::string Model::prompt_text(const std::vector<llama_token>& tokens) const {
    return sanitize_utf8(common_detokenize(vocab_, tokens, true));
}

std::string Model::token_bytes(llama_token token, bool special) const {
    if (!is_token(token)) {
        throw InvalidRequest("token id " + std::to_string(token) + " is outside the vocabulary (0 to " +
                             std::to_string(info_.n_vocab - 1) + ")");
    }
    return common_token_to_piece(vocab_, token, special);
}

} // namespace llamaserve
