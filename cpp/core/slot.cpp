#include "slot.hpp"

#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace llamaserve {

const char* slot_state_name(SlotState state) {
    switch (state) {
    case SlotState::started:
        return "started";
    case SlotState::processing_prompt:
        return "processing_prompt";
    case SlotState::generating:
        return "generating";
    default:
        return "idle";
    }
}

void Slot::assign(std::unique_ptr<Request> next) {
    request = std::move(next);
    state = SlotState::started;
    out_ = TextOut(request->params.stop.empty() ? model_->params().antiprompt : request->params.stop);
    sampled_ = LLAMA_TOKEN_NULL;
    has_next_ = true;
    has_new_line_ = has_output_ = truncated_ = false;
    stop_ = StopType::none;
    line_start_ = 0;
    n_generated_ = n_cached_ = n_processed_ = 0;
    t_start_us_ = t_first_us_ = t_last_us_ = ggml_time_us();
    pending_text_.clear();
    pending_tokens_.clear();
    tokens_.clear();
    pending_probs_.clear();
    probs_.clear();
}

void Slot::begin_prompt(int32_t n_cached) {
    state = SlotState::processing_prompt;
    n_cached_ = n_cached;
    t_start_us_ = t_first_us_ = t_last_us_ = ggml_time_us();
}

int32_t Slot::n_predict() const {
    return request->params.n_predict >= 0 ? request->params.n_predict : model_->params().n_predict;
}

bool Slot::sample() {
    common_sampler* sampler = request->sampler.get();
    const llama_token token = common_sampler_sample(sampler, model_->context(), i_batch);
    if (!model_->is_token(token)) {
        throw std::runtime_error("the model's output could not be sampled (no valid token)");
    }
    // A token at minus infinity is one that a ban, a bias or the grammar excludes: nothing was left to choose from.
    const llama_token_data_array* candidates = common_sampler_get_candidates(sampler, false);
    if (candidates->selected >= 0 && candidates->data[candidates->selected].logit == -INFINITY) {
        throw std::runtime_error("no token is allowed here: the grammar and the banned tokens exclude all of them");
    }
    common_sampler_accept(sampler, token, true);
    if (request->params.sampling.n_probs > 0) {
        pending_probs_.push_back(probabilities(token));
    }
    accept(token);
    return has_next_;
}

void Slot::accept(llama_token token) {
    t_last_us_ = ggml_time_us();
    if (n_generated_ == 0) {
        state = SlotState::generating;
        t_first_us_ = t_last_us_;
    }
    ++n_generated_;
    sampled_ = token;
    const bool end = llama_vocab_is_eog(model_->vocab(), token);
    const bool special = model_->params().special || request->params.sampling.preserved_tokens.count(token) > 0;
    const std::string piece = common_token_to_piece(model_->vocab(), token, special);
    pending_tokens_.push_back(token);
    std::string text = out_.push(piece);
    if (!out_.incomplete()) {
        has_output_ = true;
    }
    if (out_.stopped()) {
        stop_ = StopType::word;
        has_next_ = false;
    }
    const bool line_break = text.find('\n') != std::string::npos;
    pending_text_ += text;
    check_limits(line_break);
    if (end) {
        stop_ = StopType::eos;
        has_next_ = false;
    }
}

void Slot::check_limits(bool new_text_has_line_break) {
    const int32_t limit = n_predict();
    // The cell of the token just sampled is the next one.
    if (n_cells() + 1 >= model_->n_ctx_slot()) {
        truncated_ = true;
        stop_ = has_next_ ? StopType::limit : stop_;
        has_next_ = false;
    }
    if (has_next_ && limit >= 0 && n_generated_ >= limit) {
        stop_ = StopType::limit;
        has_next_ = false;
    }
    if (has_next_ && has_new_line_ && request->params.n_indent > 0 && indent_ended()) {
        stop_ = StopType::limit;
        has_next_ = false;
    }
    if (new_text_has_line_break) {
        has_new_line_ = true;
        if (line_start_ == 0) {
            line_start_ = out_.text().find('\n') + 1;
        }
        const int64_t limit_ms = request->params.t_max_predict_ms;
        if (has_next_ && limit_ms > 0 && (t_last_us_ - t_first_us_) / 1000 > limit_ms) {
            stop_ = StopType::limit;
            has_next_ = false;
        }
    }
}

// Whether the current line is indented by less than n_indent blanks; the line is then cut off.
bool Slot::indent_ended() {
    const std::string& text = out_.text();
    while (line_start_ > 0 && line_start_ < text.size()) {
        const size_t end = text.find_first_not_of(" \t", line_start_);
        if (end == std::string::npos) {
            return false;
        }
        if (end - line_start_ < static_cast<size_t>(request->params.n_indent)) {
            out_.truncate(end);
            return true;
        }
        const size_t next = text.find('\n', line_start_);
        if (next == std::string::npos) {
            return false;
        }
        line_start_ = next + 1;
    }
    return false;
}

void Slot::stop(StopType type, bool truncated) {
    stop_ = type;
    truncated_ = truncated;
    has_next_ = false;
}

std::unique_ptr<Request> Slot::release() {
    last_id_ = static_cast<int64_t>(request->id);
    last_params_ = request->params;
    last_prompt_.clear();
    last_text_ = out_.text();
    state = SlotState::idle;
    i_batch = -1;
    has_next_ = false;
    t_last_used_us = ggml_time_us();
    return std::move(request);
}

TokenProbs Slot::probabilities(llama_token token) const {
    const RequestParams& p = request->params;
    TokenProbs out;
    out.id = token;
    out.text = common_token_to_piece(model_->vocab(), token, true);
    out.p = 0.0f;
    auto candidate = [&](llama_token t, float prob) {
        return TokenCandidate{t, common_token_to_piece(model_->vocab(), t, true), prob};
    };
    const auto n_top = static_cast<size_t>(p.sampling.n_probs);
    if (p.post_sampling_probs) {
        const llama_token_data_array* cur = common_sampler_get_candidates(request->sampler.get(), true);
        for (size_t i = 0; i < cur->size; ++i) {
            if (cur->data[i].id == token) {
                out.p = cur->data[i].p;
            }
        }
        for (size_t i = 0; i < std::min(n_top, cur->size) && cur->data[i].p > 0.0f; ++i) {
            out.top.push_back(candidate(cur->data[i].id, cur->data[i].p));
        }
        return out;
    }
    const float* logits = llama_get_logits_ith(model_->context(), i_batch);
    const int32_t n = model_->n_vocab();
    const float top = *std::max_element(logits, logits + n);
    double sum = 0.0;
    for (int32_t i = 0; i < n; ++i) {
        sum += std::exp(static_cast<double>(logits[i] - top));
    }
    auto probability = [&](llama_token t) {
        return static_cast<float>(std::exp(static_cast<double>(logits[t] - top)) / sum);
    };
    out.p = probability(token);
    std::vector<llama_token> order(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) {
        order[static_cast<size_t>(i)] = i;
    }
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_top), order.end(),
                      [&](llama_token a, llama_token b) { return logits[a] > logits[b]; });
    for (size_t i = 0; i < n_top; ++i) {
        out.top.push_back(candidate(order[i], probability(order[i])));
    }
    return out;
}

Timings Slot::timings() const {
    const double prompt_us = static_cast<double>((n_generated_ > 0 ? t_first_us_ : ggml_time_us()) - t_start_us_);
    const double predicted_us =
        n_generated_ > 0 ? static_cast<double>(std::max<int64_t>(1, t_last_us_ - t_first_us_)) : 0.0;
    return {n_cached_, n_processed_, prompt_us / 1000.0, n_generated_, predicted_us / 1000.0};
}

Event Slot::event(EventKind kind) const {
    Event e;
    e.request = request->id;
    e.kind = kind;
    e.n_predicted = n_generated_;
    e.n_prompt_tokens = request->n_tokens();
    return e;
}

Event Slot::started_event() const {
    Event e = event(EventKind::started);
    if (request->params.return_progress) {
        e.progress = progress_event().progress;
    }
    return e;
}

Event Slot::progress_event() const {
    Event e = event(EventKind::progress);
    e.progress =
        Progress{request->n_tokens(), n_cached_, n_cached_ + n_processed_, (ggml_time_us() - t_start_us_) / 1000};
    return e;
}

Event Slot::token_event() {
    Event e = event(EventKind::token);
    if (request->params.stream) {
        e.text = std::exchange(pending_text_, {});
        e.tokens = pending_tokens_;
        e.probs = pending_probs_;
    }
    tokens_.insert(tokens_.end(), pending_tokens_.begin(), pending_tokens_.end());
    probs_.insert(probs_.end(), std::make_move_iterator(pending_probs_.begin()),
                  std::make_move_iterator(pending_probs_.end()));
    pending_tokens_.clear();
    pending_probs_.clear();
    has_output_ = false;
    if (request->params.timings_per_token) {
        e.timings = timings();
    }
    return e;
}

Event Slot::finish_event() {
    const bool stream = request->params.stream;
    pending_text_ += out_.flush();
    Event last = token_event();
    Event e = event(EventKind::finished);
    if (stream) {
        e.text = std::move(last.text);
        e.tokens = std::move(last.tokens);
        e.probs = std::move(last.probs);
    } else {
        e.tokens = tokens_;
        e.probs = probs_;
    }
    e.timings = timings();
    Finish f;
    f.stop = stop_;
    f.stopping_word = out_.stopping_word();
    f.truncated = truncated_;
    f.has_new_line = has_new_line_;
    f.id_slot = id;
    f.tokens_cached = n_cells();
    f.prompt_text = model_->detokenize(request->tokens);
    f.text = sanitize_utf8(out_.text());
    e.finish = std::move(f);
    return e;
}

Event Slot::failure_event(Failure failure) const {
    Event e = event(EventKind::error);
    e.failure = std::move(failure);
    return e;
}

SlotSnapshot Slot::snapshot(bool with_text) const {
    SlotSnapshot s;
    s.id = id;
    s.n_ctx = model_->n_ctx_slot();
    s.state = state;
    s.id_task = request ? static_cast<int64_t>(request->id) : last_id_;
    s.n_prompt_tokens = n_cells();
    s.n_prompt_processed = n_processed_;
    s.n_prompt_cached = n_cached_;
    s.n_decoded = n_generated_;
    s.has_next_token = has_next_;
    s.has_new_line = has_new_line_;
    s.params = request ? request->params : last_params_;
    const int32_t limit = s.params.n_predict >= 0 ? s.params.n_predict : model_->params().n_predict;
    s.n_remain = limit >= 0 ? limit - n_generated_ : -1;
    if (with_text && request) {
        s.prompt = model_->detokenize(request->tokens);
        s.generated = sanitize_utf8(out_.text());
    }
    return s;
}

} // namespace llamaserve
