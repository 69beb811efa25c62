#include "embedding.hpp"

#include "error.hpp"
#include "model.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace llamaserve {

namespace {

void append(std::vector<llama_token>& out, const std::vector<llama_token>& tokens) {
    out.insert(out.end(), tokens.begin(), tokens.end());
}

// `text` with the two names replaced, in one pass: a query that holds "{document}" must not be filled in again.
std::string fill_in(const std::string& text, const std::string& query, const std::string& document) {
    const std::pair<std::string, const std::string*> names[] = {{"{query}", &query}, {"{document}", &document}};
    std::string out;
    for (size_t i = 0; i < text.size();) {
        bool found = false;
        for (const auto& [name, value] : names) {
            if (text.compare(i, name.size(), name) == 0) {
                out += *value;
                i += name.size();
                found = true;
                break;
            }
        }
        if (!found) {
            out += text[i++];
        }
    }
    return out;
}

// A query and a document as the model was trained to see them: by its own template, else as BOS query EOS SEP document
// EOS, of which each is there only if the model wants it.
std::vector<llama_token> rerank_tokens(const Model& model, const std::string& query, const std::string& document) {
    if (const char* form = llama_model_chat_template(model.model(), "rerank")) {
        return model.tokenize(fill_in(form, query, document), false, true);
    }
    const llama_vocab* vocab = model.vocab();
    const llama_token eos =
        llama_vocab_eos(vocab) == LLAMA_TOKEN_NULL ? llama_vocab_sep(vocab) : llama_vocab_eos(vocab);
    std::vector<llama_token> out;
    auto add = [&](bool wanted, llama_token token) {
        if (wanted && token != LLAMA_TOKEN_NULL) {
            out.push_back(token);
        }
    };
    add(llama_vocab_get_add_bos(vocab), llama_vocab_bos(vocab));
    append(out, model.tokenize(query, false, false));
    add(llama_vocab_get_add_eos(vocab), eos);
    add(llama_vocab_get_add_sep(vocab), llama_vocab_sep(vocab));
    append(out, model.tokenize(document, false, false));
    add(llama_vocab_get_add_eos(vocab), eos);
    return out;
}

} // namespace

std::optional<Failure> prepare_embedding(Request& request, const Model& model) {
    if (request.kind == RequestKind::rerank) {
        std::string document;
        for (const PromptPart& part : request.prompt) {
            const auto* text = std::get_if<std::string>(&part);
            if (text == nullptr) {
                throw InvalidRequest("a document to rank must be text");
            }
            document += *text;
        }
        request.prompt.clear();
        request.tokens = rerank_tokens(model, request.embedding.query, document);
    } else {
        tokenize_prompt(request, model);
    }
    if (request.tokens.empty()) {
        throw InvalidRequest("Input content cannot be empty");
    }
    const int32_t n = request.n_tokens();
    const int32_t n_ubatch = model.info().n_ubatch, n_ctx = model.n_ctx_slot();
    if (!model.can_split_embeddings() && n > n_ubatch) {
        return Failure{"context_size",
                       "input (" + std::to_string(n) +
                           " tokens) is too large to process. increase the physical batch size (current batch size: " +
                           std::to_string(n_ubatch) + ", ubatch_size)",
                       n, n_ubatch};
    }
    if (n > n_ctx) {
        return Failure{"context_size",
                       "input (" + std::to_string(n) +
                           " tokens) is too large to process. The available context size is " + std::to_string(n_ctx) +
                           " tokens",
                       n, n_ctx};
    }
    return std::nullopt;
}

std::vector<float> normalized(std::span<const float> in, const EmbeddingParams& params) {
    if (params.n_dims > 0) {
        in = in.first(std::min(in.size(), static_cast<size_t>(params.n_dims)));
    }
    double length = 1.0;
    const int32_t norm = params.normalize;
    if (norm == 0) { // the largest value becomes 32760
        length = 0.0;
        for (const float x : in) {
            length = std::max(length, static_cast<double>(std::abs(x)));
        }
        length /= 32760.0;
    } else if (norm > 0) {
        // Scaled by the largest, or high powers would leave the range of numbers.
        double largest = 0.0, sum = 0.0;
        for (const float x : in) {
            largest = std::max(largest, static_cast<double>(std::abs(x)));
        }
        for (const float x : in) {
            sum += largest > 0.0 ? std::pow(std::abs(static_cast<double>(x)) / largest, norm) : 0.0;
        }
        length = largest * std::pow(sum, 1.0 / norm);
    }
    const double factor = length > 0.0 ? 1.0 / length : 0.0;
    std::vector<float> out;
    out.reserve(in.size());
    for (const float x : in) {
        out.push_back(static_cast<float>(x * factor));
    }
    return out;
}

std::string floats_json(std::span<const float> values, size_t n_columns) {
    std::string out;
    out.reserve(values.size() * 14 + 16);
    std::array<char, 32> digits{};
    const bool rows = n_columns > 0;
    out += rows ? "[[" : "[";
    for (size_t i = 0; i < values.size(); ++i) {
        if (i > 0) {
            out += rows && i % n_columns == 0 ? "],[" : ",";
        }
        if (!std::isfinite(values[i])) {
            out += "null";
            continue;
        }
        const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), values[i]).ptr;
        out.append(digits.data(), end);
    }
    out += rows ? "]]" : "]";
    return out;
}

} // namespace llamaserve
