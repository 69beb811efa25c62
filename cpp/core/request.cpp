#include "request.hpp"

#include "error.hpp"
#include "grammar_limits.hpp"
#include "model.hpp"
#include "schema.hpp"
#include "text.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace llamaserve {

namespace {

void require_finite(const char* name, float value) {
    if (!std::isfinite(value)) {
        throw InvalidRequest(std::string(name) + " must be a finite number");
    }
}

// Each sampler goes through the candidates for every token, on the thread that serves everybody; DRY also goes through
// the whole vocabulary for each of its breakers.
void check_sampler_counts(const common_params_sampling& s) {
    constexpr size_t max_samplers = 64;
    constexpr size_t max_breakers = 256;
    if (s.samplers.size() > max_samplers) {
        throw InvalidRequest("samplers must hold at most " + std::to_string(max_samplers) + " samplers");
    }
    const auto n_dry = std::count(s.samplers.begin(), s.samplers.end(), COMMON_SAMPLER_TYPE_DRY);
    if (n_dry > 1 && s.dry_multiplier != 0.0f) {
        throw InvalidRequest("samplers must hold dry at most once");
    }
    if (s.dry_sequence_breakers.size() > max_breakers) {
        throw InvalidRequest("dry_sequence_breakers must hold at most " + std::to_string(max_breakers) + " texts");
    }
}

// Ranges as llama-server has them: what it clamps is clamped here, what it refuses is refused.
void check_sampling(common_params_sampling& s, const Model& model) {
    const std::pair<const char*, float*> floats[] = {
        {"temperature", &s.temp},
        {"dynatemp_range", &s.dynatemp_range},
        {"dynatemp_exponent", &s.dynatemp_exponent},
        {"top_p", &s.top_p},
        {"min_p", &s.min_p},
        {"top_n_sigma", &s.top_n_sigma},
        {"xtc_probability", &s.xtc_probability},
        {"xtc_threshold", &s.xtc_threshold},
        {"typical_p", &s.typ_p},
        {"repeat_penalty", &s.penalty_repeat},
        {"frequency_penalty", &s.penalty_freq},
        {"presence_penalty", &s.penalty_present},
        {"dry_multiplier", &s.dry_multiplier},
        {"dry_base", &s.dry_base},
        {"mirostat_tau", &s.mirostat_tau},
        {"mirostat_eta", &s.mirostat_eta},
        {"adaptive_target", &s.adaptive_target},
        {"adaptive_decay", &s.adaptive_decay},
    };
    for (const auto& [name, value] : floats) {
        require_finite(name, *value);
    }
    if (s.penalty_repeat <= 0.0f || !std::isfinite(1.0f / s.penalty_repeat)) {
        throw InvalidRequest("repeat_penalty must be greater than 0");
    }
    if (s.adaptive_decay < 0.0f || s.adaptive_decay > 0.99f) {
        throw InvalidRequest("adaptive_decay must be between 0 and 0.99");
    }
    s.temp = std::max(s.temp, 0.0f);
    s.top_k = std::max(s.top_k, 0);
    s.top_p = std::clamp(s.top_p, 0.0f, 1.0f);
    s.min_p = std::clamp(s.min_p, 0.0f, 1.0f);
    s.xtc_probability = std::clamp(s.xtc_probability, 0.0f, 1.0f);
    s.xtc_threshold = std::clamp(s.xtc_threshold, 0.0f, 1.0f);
    s.adaptive_target = std::min(s.adaptive_target, 1.0f);
    s.mirostat = std::clamp(s.mirostat, 0, 2);
    if (s.dry_base < 1.0f) {
        s.dry_base = model.params().sampling.dry_base;
    }
    // The samplers allocate this many entries, and no request is longer than its context.
    s.penalty_last_n = std::clamp(s.penalty_last_n, 0, model.n_ctx_slot());
    s.dry_penalty_last_n = std::clamp(s.dry_penalty_last_n, 0, model.n_ctx_slot());
    s.min_keep = std::clamp(s.min_keep, 0, model.n_vocab());
    s.n_probs = std::clamp(s.n_probs, 0, model.n_vocab());
    if (s.dry_sequence_breakers.empty() && !model.params().sampling.dry_sequence_breakers.empty()) {
        throw InvalidRequest("dry_sequence_breakers must hold at least one text");
    }
    check_sampler_counts(s);
    for (const std::string& breaker : s.dry_sequence_breakers) {
        if (breaker.empty()) {
            throw InvalidRequest("dry_sequence_breakers must not hold an empty text");
        }
    }
}

void add_biases(RequestParams& p, const Model& model) {
    auto& biases = p.sampling.logit_bias;
    for (const auto& [text, bias] : p.logit_bias_texts) {
        for (const llama_token token : model.tokenize(text, false, false)) {
            biases.push_back({token, bias});
        }
    }
    p.logit_bias_texts.clear();
    std::erase_if(biases, [&](const llama_logit_bias& b) { return !model.is_token(b.token); });
    for (llama_logit_bias& b : biases) {
        if (std::isnan(b.bias)) {
            throw InvalidRequest("logit_bias must hold numbers");
        }
        // Minus infinity bans a token. A sum with plus infinity would be no number.
        b.bias = std::min(b.bias, 1e9f);
    }
    if (p.sampling.ignore_eos) {
        const auto& eog = p.sampling.logit_bias_eog;
        biases.insert(biases.end(), eog.begin(), eog.end());
    }
}

void resolve_grammar(RequestParams& p, const Model& model) {
    auto& s = p.sampling;
    if (!p.json_schema.empty()) {
        try {
            check_schema("json_schema", p.json_schema);
            common_json schema = common_json::parse(p.json_schema);
            if (schema.is_object() && schema.empty()) {
                schema["type"] = "object";
            }
            s.grammar = {COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT, schema_grammar("json_schema", schema)};
        } catch (const InvalidRequest&) {
            throw;
        } catch (const std::exception& e) {
            throw InvalidRequest(std::string("json_schema: ") + e.what());
        }
    } else if (!p.grammar.empty()) {
        s.grammar = {p.grammar_is_tool_calls ? COMMON_GRAMMAR_TYPE_TOOL_CALLS : COMMON_GRAMMAR_TYPE_USER, p.grammar};
    } else {
        s.grammar = {};
    }
    if (!s.grammar.empty()) {
        check_grammar(s.grammar.grammar, model.vocab());
    }
    for (const std::string& text : p.preserved_tokens) {
        const auto ids = model.tokenize(text, false, true);
        if (ids.size() == 1) {
            s.preserved_tokens.insert(ids[0]);
        }
    }
    s.grammar_triggers.clear();
    for (common_grammar_trigger trigger : p.grammar_triggers) {
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
            const auto ids = model.tokenize(trigger.value, false, true);
            if (ids.size() == 1 && s.preserved_tokens.count(ids[0]) > 0) {
                trigger.type = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN;
                trigger.token = ids[0];
            }
        }
        s.grammar_triggers.push_back(std::move(trigger));
    }
    if (s.grammar_lazy && s.grammar_triggers.empty()) {
        throw InvalidRequest("a lazy grammar needs at least one trigger");
    }
}

// What the prompt begins the answer with may open the thoughts and go on: with white space, or with thoughts to
// continue. llama-common counts that, and where the budget runs out within it, it takes the rest for the end of the
// thoughts that it forces; then nothing ends them. So there the thoughts begin where the answer does.
void count_from_answer(RequestParams& p, const Model& model) {
    auto& s = p.sampling;
    const std::string& begun = s.generation_prompt;
    const size_t start = p.reasoning_start_tag.empty() ? std::string::npos : begun.rfind(p.reasoning_start_tag);
    if (s.reasoning_budget_tokens < 0 || s.reasoning_budget_end.empty() || start == std::string::npos) {
        return;
    }
    const std::vector<llama_token> opened = model.tokenize(begun.substr(start), false, true);
    if (opened.size() <= s.reasoning_budget_start.size() + static_cast<size_t>(s.reasoning_budget_tokens)) {
        return;
    }
    const size_t inside = start + p.reasoning_start_tag.size();
    const bool closed =
        std::any_of(p.reasoning_end_tags.begin(), p.reasoning_end_tags.end(), [&](const std::string& tag) {
            return !tag.empty() && begun.find(tag, inside) != std::string::npos;
        });
    if (closed) {
        s.reasoning_budget_tokens = -1;
    } else {
        s.reasoning_budget_start = opened;
        s.reasoning_budget_tokens = 0;
    }
}

void resolve_reasoning(RequestParams& p, const Model& model) {
    auto& s = p.sampling;
    s.reasoning_budget_start.clear();
    s.reasoning_budget_end.clear();
    s.reasoning_budget_forced.clear();
    if (!p.reasoning_start_tag.empty()) {
        s.reasoning_budget_start = model.tokenize(p.reasoning_start_tag, false, true);
    }
    for (const std::string& tag : p.reasoning_end_tags) {
        if (!tag.empty()) {
            s.reasoning_budget_end.push_back(model.tokenize(tag, false, true));
        }
    }
    if (!s.reasoning_budget_end.empty()) {
        s.reasoning_budget_forced = model.tokenize(s.reasoning_budget_message, false, true);
        const auto& end = s.reasoning_budget_end.front();
        s.reasoning_budget_forced.insert(s.reasoning_budget_forced.end(), end.begin(), end.end());
    }
    count_from_answer(p, model);
}

} // namespace

void RequestParams::set_samplers(const std::vector<std::string>& names) {
    // Names that nobody knows are skipped by llama-common, as llama-server does.
    sampling.samplers = common_sampler_types_from_names(names);
}

void RequestParams::set_samplers(const std::string& chars) {
    sampling.samplers = common_sampler_types_from_chars(chars);
}

void tokenize_prompt(Request& r, const Model& model) {
    bool first = true;
    for (const PromptPart& part : r.prompt) {
        if (const auto* text = std::get_if<std::string>(&part)) {
            const auto tokens = model.tokenize(*text, first, true);
            r.tokens.insert(r.tokens.end(), tokens.begin(), tokens.end());
        } else {
            const llama_token token = std::get<llama_token>(part);
            if (!model.is_token(token)) {
                throw InvalidRequest("Prompt contains invalid tokens: " + std::to_string(token) +
                                     " is outside the vocabulary");
            }
            r.tokens.push_back(token);
        }
        first = false;
    }
    r.prompt.clear();
}

bool prepares_quickly(const Request& r) {
    constexpr size_t limit = 512; // bytes of text, and tokens
    size_t size = 0;
    for (const PromptPart& part : r.prompt) {
        const auto* text = std::get_if<std::string>(&part);
        size += text != nullptr ? text->size() : 1;
        if (size > limit) {
            return false;
        }
    }
    const RequestParams& p = r.params;
    // DRY looks through the whole vocabulary for its sequence breakers.
    return p.grammar.empty() && p.json_schema.empty() && p.logit_bias_texts.empty() && p.preserved_tokens.empty() &&
           p.grammar_triggers.empty() && p.reasoning_end_tags.empty() && p.sampling.dry_multiplier == 0.0f &&
           p.sampling.logit_bias.size() <= limit;
}

void prepare(Request& r, const Model& model) {
    RequestParams& p = r.params;
    check_sampling(p.sampling, model);
    add_biases(p, model);
    resolve_grammar(p, model);
    resolve_reasoning(p, model);
    std::erase_if(p.stop, [](const std::string& s) { return s.empty(); });
    if (p.id_slot >= model.info().n_slots) {
        throw InvalidRequest("id_slot " + std::to_string(p.id_slot) + " does not exist; there are slots 0 to " +
                             std::to_string(model.info().n_slots - 1));
    }
    tokenize_prompt(r, model);
    AdapterScales scales = p.lora.empty() ? r.default_scales : to_scales(p.lora, model.params().lora_adapters.size());
    r.adapters = resolve_adapters(std::move(scales), r.tokens, model);
    try {
        r.sampler = std::make_unique<Sampler>(model, p.sampling);
    } catch (const std::exception& e) {
        const std::string& begun = p.sampling.generation_prompt;
        if (!begun.empty() && !p.sampling.grammar_lazy && common_grammar_needs_prefill(p.sampling.grammar)) {
            throw InvalidRequest("Failed to initialize samplers: the prompt begins the answer with \"" + begun +
                                 "\", which doesn't fit the grammar, the schema or the tools");
        }
        throw InvalidRequest(std::string("Failed to initialize samplers: ") + e.what());
    }
    // The penalties look back into the prompt, no further than this.
    const int32_t back = std::max({p.sampling.n_prev, p.sampling.penalty_last_n, p.sampling.dry_penalty_last_n});
    for (size_t i = r.tokens.size() - std::min(r.tokens.size(), static_cast<size_t>(back)); i < r.tokens.size(); ++i) {
        r.sampler->accept_prompt(r.tokens[i]);
    }
}

} // namespace llamaserve
