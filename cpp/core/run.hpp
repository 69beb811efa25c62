// One request on its way through the scheduler: what it has generated, what of it goes out, and when it ends.
#pragma once

#include "event.hpp"
#include "request.hpp"
#include "text.hpp"

#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace llamaserve {

// What /slots shows of a request.
struct RunSnapshot {
    int64_t id_task = -1;
    int32_t n_prompt_processed = 0, n_prompt_cached = 0;
    int32_t n_decoded = 0, n_remain = -1;
    bool has_next_token = false, has_new_line = false;
    std::string prompt, generated;
    RequestParams params;
};

// It may run, be preempted and run again, on any slot.
class Run {
public:
    Run(std::unique_ptr<Request> request, const Model& model);

    const Request& request() const { return *request_; }
    uint64_t id() const { return request_->id; }

    const Adapters& adapters() const { return request_->adapters; }

    // The tokens whose cells must be there before the next token can be computed: the prompt, or for a request that was
    // preempted while it generated, the prompt and what it has generated.
    const std::vector<llama_token>& target() const { return resumed_.empty() ? request_->tokens : resumed_; }
    int32_t n_target() const { return static_cast<int32_t>(target().size()); }

    // After the target come logits to sample from; a preempted request has sampled already.
    bool wants_logits() const { return resumed_.empty(); }

    // The request leaves its slot, where it had these cells, to go on later.
    void preempt(const std::vector<llama_token>& cells);
    bool was_preempted() const { return n_preempted_ > 0; }

    // Tokens were dropped from its context. `rest`: what must be computed anew before it goes on; empty if nothing.
    void shift(std::vector<llama_token> rest);

    // The state of shifted cells, which can't be computed again, for a request that leaves its slot.
    struct Shifted {
        std::vector<uint8_t> state;
        int32_t n_plain = 0; // see Slot
    };
    void keep(Shifted shifted) { shifted_ = std::move(shifted); }
    std::optional<Shifted> take_shifted() { return std::exchange(shifted_, std::nullopt); }

    // The target's first `n_cached` tokens are in the cache. Computing starts now.
    void begin_prompt(int32_t id_slot, int32_t n_cached);
    void count_prompt(int32_t n_tokens);

    // Samples the next token and adds it to the output. `n_cells`: tokens in the sequence, without the one sampled now.
    // Touches nothing but this object (and the context, if the sampler is constrained). An exception is kept in
    // error().
    void sample(llama_context* ctx, int32_t i_batch, const float* logits, int32_t n_cells) noexcept;

    // Samples from the outputs at `i_batch` and after it, as long as what it samples is what was drafted, and it goes
    // on. `synthetic`: chances to take a drafted token without sampling. Returns how many were sampled as drafted.
    int32_t verify(llama_context* ctx, int32_t i_batch, std::span<const float* const> logits, int32_t n_cells,
                   std::span<const llama_token> draft, std::span<const double> synthetic) noexcept;
    bool constrained() const { return request_->sampler->constrained(); }
    bool has_next() const { return has_next_; }
    const std::string& error() const { return error_; }
    llama_token sampled() const { return sampled_; }
    int32_t n_generated() const { return n_generated_; }

    // Ends the request without sampling (n_predict = 0, or out of context).
    void stop(StopType type, bool truncated);

    Event started_event() const;
    Event progress_event() const;
    // What was sampled since the last event; there is nothing while a character isn't whole.
    bool has_output() const { return has_output_; }
    Event token_event();
    Event finish_event(int32_t id_slot, int32_t n_cells);
    Event embedding_event(std::vector<float> values, int32_t n_rows) const;
    Event failure_event(Failure failure) const;

    Timings timings() const;
    int32_t n_predict() const; // the request's limit or the engine's; -1: none
    RunSnapshot snapshot(bool with_text) const;

private:
    void accept(llama_token token, int32_t n_cells);
    bool pretend(llama_token token, double chance, int32_t n_cells) noexcept;
    void check_limits(bool new_text_has_line_break, int32_t n_cells);
    bool indent_ended();
    TokenProbs probabilities(llama_token token, const float* logits) const;
    Event event(EventKind kind) const;

    std::unique_ptr<Request> request_;
    const Model* model_;
    TextOut out_;
    llama_token sampled_ = LLAMA_TOKEN_NULL;
    bool has_next_ = true;
    bool has_new_line_ = false;
    bool has_output_ = false;
    StopType stop_ = StopType::none;
    bool truncated_ = false;
    std::string error_;
    size_t line_start_ = 0; // where the line after the last line break starts, 0 before the first one

    int32_t id_slot_ = -1; // where it runs, or last ran
    std::vector<llama_token> resumed_;
    std::optional<Shifted> shifted_;
    int32_t n_preempted_ = 0;
    bool begun_ = false;
    int32_t n_generated_ = 0, n_cached_ = 0, n_processed_ = 0;
    int32_t n_drafted_ = 0, n_draft_accepted_ = 0;
    std::optional<std::mt19937> synthetic_;
    int64_t t_start_us_ = 0, t_first_us_ = 0, t_last_us_ = 0;

    std::string pending_text_; // may be sent, not in an event yet
    std::vector<llama_token> pending_tokens_, tokens_;
    std::vector<TokenProbs> pending_probs_, probs_;
};

} // namespace llamaserve
