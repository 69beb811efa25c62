#include "run.hpp"

#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace llamaserve {

Run::Run(std::unique_ptr<Request> request, const Model& model)
    : request_(std::move(request)), model_(&model),
      out_(request_->params.stop.empty() ? model.params().antiprompt : request_->params.stop) {
    t_start_us_ = t_first_us_ = t_last_us_ = ggml_time_us();
}

void Run::preempt(const std::vector<llama_token>& cells) {
    ++n_preempted_;
    // It may be on its way back, with part of its cells: then it has more to go back to than it has now.
    if (n_generated_ > 0 && cells.size() > resumed_.size()) {
        resumed_ = cells;
    }
}

void Run::shift(std::vector<llama_token> rest) {
    truncated_ = true;
    resumed_ = std::move(rest);
}

void Run::begin_prompt(int32_t id_slot, int32_t n_cached) {
    id_slot_ = id_slot;
    if (!begun_) {
        begun_ = true;
        n_cached_ = n_cached;
        t_start_us_ = t_first_us_ = t_last_us_ = ggml_time_us();
    }
}

void Run::count_prompt(int32_t n_tokens) {
    // What a preempted request computes again is not its prompt.
    if (n_generated_ == 0) {
        n_processed_ = std::min(n_processed_ + n_tokens, request_->n_tokens() - n_cached_);
        t_last_us_ = ggml_time_us();
    }
}

int32_t Run::n_predict() const {
    return request_->params.n_predict >= 0 ? request_->params.n_predict : model_->params().n_predict;
}

void Run::sample(llama_context* ctx, int32_t i_batch, const float* logits, int32_t n_cells) noexcept {
    try {
        const llama_token token = request_->sampler->sample(ctx, i_batch, logits);
        if (request_->params.sampling.n_probs > 0) {
            pending_probs_.push_back(probabilities(token, logits));
        }
        accept(token, n_cells);
    } catch (const std::exception& e) {
        error_ = e.what();
        has_next_ = false;
    }
}

int32_t Run::verify(llama_context* ctx, int32_t i_batch, std::span<const float* const> logits, int32_t n_cells,
                    std::span<const llama_token> draft, std::span<const double> synthetic) noexcept {
    const auto n = static_cast<int32_t>(draft.size());
    int32_t i = 0;
    for (;; ++i) {
        const bool drafted = i < n;
        const auto at = static_cast<size_t>(i);
        if (drafted && !synthetic.empty() && pretend(draft[at], synthetic[at], n_cells + i)) {
            if (!has_next_) {
                ++i;
                break;
            }
            continue;
        }
        sample(ctx, i_batch + i, logits[at], n_cells + i);
        if (!drafted || !error_.empty() || sampled_ != draft[at] || !synthetic.empty()) {
            break;
        }
        if (!has_next_) {
            ++i;
            break;
        }
    }
    n_drafted_ += n;
    n_draft_accepted_ += i;
    return i;
}

// Takes a drafted token as if it had been sampled. What constrains the output doesn't see it.
bool Run::pretend(llama_token token, double chance, int32_t n_cells) noexcept {
    try {
        if (!synthetic_) {
            const uint32_t seed = request_->params.sampling.seed;
            synthetic_.emplace(seed == LLAMA_DEFAULT_SEED ? std::random_device{}() : seed);
        }
        const bool taken = std::uniform_real_distribution<double>(0.0, 1.0)(*synthetic_) < chance;
        if (!taken || llama_vocab_is_eog(model_->vocab(), token)) {
            return false;
        }
        request_->sampler->accept_prompt(token);
        accept(token, n_cells);
    } catch (const std::exception& e) {
        error_ = e.what();
        has_next_ = false;
    }
    return true;
}

void Run::accept(llama_token token, int32_t n_cells) {
    t_last_us_ = ggml_time_us();
    if (n_generated_ == 0) {
        t_first_us_ = t_last_us_;
    }
    ++n_generated_;
    sampled_ = token;
    const bool end = llama_vocab_is_eog(model_->vocab(), token);
    const bool special = model_->params().special || request_->params.sampling.preserved_tokens.count(token) > 0;
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
    check_limits(line_break, n_cells);
    if (end) {
        stop_ = StopType::eos;
        has_next_ = false;
    }
}

void Run::check_limits(bool new_text_has_line_break, int32_t n_cells) {
    const int32_t limit = n_predict();
    // The cell of the token just sampled is the next one.
    if (!model_->context_shift() && n_cells + 1 >= model_->n_ctx_slot()) {
        truncated_ = true;
        stop_ = has_next_ ? StopType::limit : stop_;
        has_next_ = false;
    }
    if (has_next_ && limit >= 0 && n_generated_ >= limit) {
        stop_ = StopType::limit;
        has_next_ = false;
    }
    if (has_next_ && has_new_line_ && request_->params.n_indent > 0 && indent_ended()) {
        stop_ = StopType::limit;
        has_next_ = false;
    }
    if (new_text_has_line_break) {
        has_new_line_ = true;
        if (line_start_ == 0) {
            line_start_ = out_.text().find('\n') + 1;
        }
        const int64_t limit_ms = request_->params.t_max_predict_ms;
        if (has_next_ && limit_ms > 0 && (t_last_us_ - t_first_us_) / 1000 > limit_ms) {
            stop_ = StopType::limit;
            has_next_ = false;
        }
    }
}

// Whether the current line is indented by less than n_indent blanks; the line is then cut off.
bool Run::indent_ended() {
    const std::string& text = out_.text();
    while (line_start_ > 0 && line_start_ < text.size()) {
        const size_t end = text.find_first_not_of(" \t", line_start_);
        if (end == std::string::npos) {
            return false;
        }
        if (end - line_start_ < static_cast<size_t>(request_->params.n_indent)) {
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

void Run::stop(StopType type, bool truncated) {
    stop_ = type;
    truncated_ = truncated_ || truncated;
    has_next_ = false;
}

TokenProbs Run::probabilities(llama_token token, const float* logits) const {
    const RequestParams& p = request_->params;
    TokenProbs out;
    out.id = token;
    out.text = common_token_to_piece(model_->vocab(), token, true);
    out.p = 0.0f;
    auto candidate = [&](llama_token t, float prob) {
        return TokenCandidate{t, common_token_to_piece(model_->vocab(), t, true), prob};
    };
    const auto n_top = static_cast<size_t>(p.sampling.n_probs);
    if (p.post_sampling_probs) {
        const auto chosen_from = request_->sampler->candidates();
        for (const llama_token_data& c : chosen_from) {
            if (c.id == token) {
                out.p = c.p;
            }
        }
        for (size_t i = 0; i < std::min(n_top, chosen_from.size()) && chosen_from[i].p > 0.0f; ++i) {
            out.top.push_back(candidate(chosen_from[i].id, chosen_from[i].p));
        }
        return out;
    }
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

Timings Run::timings() const {
    // Before the first token, up to the last step that computed some of the prompt: nothing if there was none.
    const double prompt_us = static_cast<double>((n_generated_ > 0 ? t_first_us_ : t_last_us_) - t_start_us_);
    const double predicted_us =
        n_generated_ > 0 ? static_cast<double>(std::max<int64_t>(1, t_last_us_ - t_first_us_)) : 0.0;
    return {n_cached_,  n_processed_,     prompt_us / 1000.0, n_generated_, predicted_us / 1000.0,
            n_drafted_, n_draft_accepted_};
}

Event Run::event(EventKind kind) const {
    Event e;
    e.request = request_->id;
    e.id_slot = id_slot_;
    e.kind = kind;
    e.n_predicted = n_generated_;
    e.n_prompt_tokens = request_->n_tokens();
    return e;
}

Event Run::started_event() const {
    Event e = event(EventKind::started);
    if (request_->params.timings_per_token) {
        e.timings = timings();
    }
    if (request_->params.return_progress) {
        e.progress = progress_event().progress;
    }
    return e;
}

Event Run::progress_event() const {
    Event e = event(EventKind::progress);
    if (request_->params.timings_per_token) {
        e.timings = timings();
    }
    e.progress =
        Progress{request_->n_tokens(), n_cached_, n_cached_ + n_processed_, (ggml_time_us() - t_start_us_) / 1000};
    return e;
}

Event Run::token_event() {
    Event e = event(EventKind::token);
    if (request_->params.stream) {
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
    if (request_->params.timings_per_token) {
        e.timings = timings();
    }
    return e;
}

Event Run::finish_event(int32_t id_slot, int32_t n_cells) {
    const bool stream = request_->params.stream;
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
    f.id_slot = id_slot;
    f.tokens_cached = n_cells;
    f.prompt_text = model_->prompt_text(request_->tokens);
    f.text = sanitize_utf8(out_.text());
    f.params = std::make_shared<const RequestParams>(request_->params);
    e.finish = std::move(f);
    return e;
}

Event Run::embedding_event(std::vector<float> values, int32_t n_rows) const {
    Event e = event(EventKind::embedded);
    e.embedding = std::move(values);
    e.n_rows = n_rows;
    return e;
}

Event Run::failure_event(Failure failure) const {
    Event e = event(EventKind::error);
    e.failure = std::move(failure);
    return e;
}

RunSnapshot Run::snapshot(bool with_text) const {
    RunSnapshot s;
    s.id_task = static_cast<int64_t>(request_->id);
    s.n_prompt_processed = n_processed_;
    s.n_prompt_cached = n_cached_;
    s.n_decoded = n_generated_;
    s.has_next_token = has_next_;
    s.has_new_line = has_new_line_;
    s.params = request_->params;
    s.n_remain = n_predict() >= 0 ? n_predict() - n_generated_ : -1;
    if (with_text) {
        s.prompt = model_->prompt_text(request_->tokens);
        s.generated = sanitize_utf8(out_.text());
    }
    return s;
}

} // namespace llamaserve
