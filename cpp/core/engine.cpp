#include "engine.hpp"

#include "embedding.hpp"
#include "error.hpp"
#include "log.hpp"
#include "speculative.h"

#include <algorithm>
#include <future>
#include <utility>

namespace llamaserve {

namespace {

// Two, so that one enormous prompt or grammar doesn't keep everybody else from being taken in.
constexpr int n_intake_threads = 2;

const Failure closed_failure{"closed", "the engine is closed", 0, 0};

} // namespace

Engine::Engine(const EngineParams& params) : params_(params) {
    // Loading computes a little to warm up, and OpenMP would keep a team of threads for the caller's thread as long as
    // that lives. With more threads in teams than the machine has cores it has all of them wait in the kernel between
    // two operations (libgomp), which costs generation a tenth. So the team goes with a thread that ends.
    model_ = std::async(std::launch::async, [&] { return std::make_unique<Model>(params); }).get();
    chat_ = std::make_unique<ChatTemplates>(*model_);
    for (const common_adapter_lora_info& adapter : model_->params().lora_adapters) {
        lora_scales_.push_back(adapter.scale);
    }
    queue_limit_ = params.queue_size > 0 ? params.queue_size : std::max(1024, 16 * model_->info().n_slots);
    // A step that runs when the engine closes is given up (where the backend can).
    llama_set_abort_callback(
        model_->context(),
        [](void* closing) { return static_cast<std::atomic<bool>*>(closing)->load(std::memory_order_relaxed); },
        &closing_);
    if (model_->cannot_complete().empty() || model_->cannot_embed().empty() || model_->cannot_rerank().empty()) {
        scheduler_ = std::make_unique<Scheduler>(*model_, params_);
    }
    engine_thread_ = std::thread([this] { run(); });
    for (int i = 0; i < n_intake_threads; ++i) {
        intake_threads_.emplace_back([this] { prepare_requests(); });
    }
}

Engine::~Engine() {
    close();
}

RequestParams Engine::new_params() const {
    RequestParams p;
    p.sampling = model_->params().sampling;
    p.n_keep = model_->params().n_keep;
    p.n_cache_reuse = model_->params().n_cache_reuse;
    p.cache_prompt = model_->params().cache_prompt;
    p.speculative_types = common_speculative_type_name_str(model_->params().speculative.types);
    return p;
}

uint64_t Engine::submit(std::vector<PromptPart> prompt, RequestParams params, std::shared_ptr<EventSink> sink) {
    auto request = std::make_unique<Request>();
    request->id = next_id_.fetch_add(1);
    request->prompt = std::move(prompt);
    request->params = std::move(params);
    request->sink = std::move(sink);
    request->t_arrival_us = ggml_time_us();
    const uint64_t id = request->id;
    if (!model_->cannot_complete().empty()) {
        fail(*request, {"not_supported", model_->cannot_complete(), 0, 0});
        return id;
    }
    std::vector<std::unique_ptr<Request>> requests;
    requests.push_back(std::move(request));
    take_in(std::move(requests));
    return id;
}

uint64_t Engine::embed(RequestKind kind, std::vector<std::vector<PromptPart>> inputs, const EmbeddingParams& embedding,
                       const RequestParams& params, std::shared_ptr<EventSink> sink) {
    const std::string& cannot = kind == RequestKind::rerank ? model_->cannot_rerank() : model_->cannot_embed();
    const uint64_t first = next_id_.fetch_add(inputs.size());
    std::vector<std::unique_ptr<Request>> requests;
    requests.reserve(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
        auto request = std::make_unique<Request>();
        request->id = first + i;
        request->kind = kind;
        request->embedding = embedding;
        request->prompt = std::move(inputs[i]);
        request->params = params;
        request->params.stream = false;
        request->params.cache_prompt = false; // an input is computed whole, and nobody goes on from its end
        request->sink = sink;
        request->t_arrival_us = ggml_time_us();
        if (!cannot.empty()) {
            fail(*request, {"not_supported", cannot, 0, 0});
        } else {
            requests.push_back(std::move(request));
        }
    }
    take_in(std::move(requests));
    return first;
}

void Engine::take_in(std::vector<std::unique_ptr<Request>> requests) {
    const bool quick = requests.size() == 1 && prepares_quickly(*requests.front());
    bool full = false;
    {
        std::lock_guard lock(mutex_);
        if (closing_) {
            throw EngineClosed();
        }
        full = static_cast<int64_t>(preparing_.size()) + n_submitted_ + scheduler_->n_waiting() >= queue_limit_;
        if (!full) {
            for (auto& request : requests) {
                request->default_scales = lora_scales_;
                preparing_.insert(request->id);
                if (!quick) {
                    intake_.push_back(std::move(request));
                }
            }
        }
    }
    if (!full && quick) {
        make_ready(std::move(requests.front()));
        return;
    }
    if (!full) {
        requests.size() > 1 ? intake_arrived_.notify_all() : intake_arrived_.notify_one();
        return;
    }
    for (const auto& request : requests) {
        fail(*request, {"unavailable",
                        "too many requests are waiting (" + std::to_string(queue_limit_) + "); try again later", 0, 0});
    }
}

// Readies a request for the scheduler. Returns why it can't be served, if so; throws InvalidRequest.
std::optional<Failure> Engine::check(Request& request) const {
    if (request.kind != RequestKind::completion) {
        return prepare_embedding(request, *model_);
    }
    prepare(request, *model_);
    const int32_t n_ctx = model_->n_ctx_slot();
    if (request.n_tokens() >= n_ctx) {
        return Failure{"context_size",
                       "the prompt has " + std::to_string(request.n_tokens()) +
                           " tokens, which exceeds the available context size of " + std::to_string(n_ctx) +
                           " tokens; shorten it or start with a larger ctx_size",
                       request.n_tokens(), n_ctx};
    }
    return std::nullopt;
}

void Engine::cancel(uint64_t request) {
    {
        std::lock_guard lock(mutex_);
        if (closing_) {
            return;
        }
        if (preparing_.count(request) > 0) {
            cancelled_.insert(request);
            return;
        }
    }
    post([request](Scheduler& scheduler) { scheduler.cancel(request); });
}

void Engine::prepare_requests() {
    for (;;) {
        std::unique_ptr<Request> request;
        {
            std::unique_lock lock(mutex_);
            intake_arrived_.wait(lock, [&] { return !intake_.empty() || closing_; });
            if (closing_) {
                return;
            }
            request = std::move(intake_.front());
            intake_.pop_front();
            if (cancelled_.erase(request->id) > 0) {
                preparing_.erase(request->id);
                continue;
            }
        }
        make_ready(std::move(request));
    }
}

void Engine::make_ready(std::unique_ptr<Request> request) {
    std::optional<Failure> failure;
    try {
        failure = check(*request);
    } catch (const std::bad_alloc&) {
        failure = Failure{"internal", "not enough memory to take the request in", 0, 0};
    } catch (const std::exception& e) {
        failure = Failure{"invalid_request", e.what(), 0, 0};
    }
    {
        std::lock_guard lock(mutex_);
        preparing_.erase(request->id);
        if (cancelled_.erase(request->id) > 0) {
            return;
        }
        if (!failure && closing_) {
            failure = closed_failure;
        }
        if (!failure) {
            // std::function needs something that can be copied.
            auto shared = std::make_shared<std::unique_ptr<Request>>(std::move(request));
            ++n_submitted_;
            commands_.push_back([this, shared](Scheduler& scheduler) {
                scheduler.submit(std::move(*shared));
                --n_submitted_;
            });
        }
    }
    if (failure) {
        fail(*request, *failure);
    } else {
        commands_arrived_.notify_one();
    }
}

void Engine::fail(const Request& request, Failure failure) {
    Event e;
    e.request = request.id;
    e.kind = EventKind::error;
    e.n_prompt_tokens = failure.n_prompt_tokens;
    e.failure = std::move(failure);
    std::vector<Event> events;
    events.push_back(std::move(e));
    request.sink->push(std::move(events));
}

void Engine::post(Command command) {
    {
        std::lock_guard lock(mutex_);
        commands_.push_back(std::move(command));
    }
    commands_arrived_.notify_one();
}

template <typename T>
T Engine::ask(std::function<T(Scheduler&)> question) {
    if (!scheduler_) {
        return T{};
    }
    auto answer = std::make_shared<std::promise<T>>();
    std::future<T> result = answer->get_future();
    {
        std::lock_guard lock(mutex_);
        if (closing_ || engine_done_) {
            throw EngineClosed();
        }
        commands_.push_back([answer, question = std::move(question)](Scheduler& scheduler) {
            try {
                answer->set_value(question(scheduler));
            } catch (...) {
                answer->set_exception(std::current_exception());
            }
        });
    }
    commands_arrived_.notify_one();
    try {
        return result.get();
    } catch (const std::future_error&) { // the engine closed before it came to the question
        throw EngineClosed();
    }
}

std::vector<SlotSnapshot> Engine::slots() {
    return ask<std::vector<SlotSnapshot>>([](Scheduler& s) { return s.slots(); });
}

Metrics Engine::metrics(bool reset_window) {
    return ask<Metrics>([reset_window](Scheduler& s) { return s.metrics(reset_window); });
}

SlotTransfer Engine::save_slot(int32_t id, const std::string& path) {
    const int64_t t0 = ggml_time_us();
    require_slots();
    // Only the copy is made by the engine's thread; the disk may take its time.
    const auto state = ask<SavedSlot>([id](Scheduler& s) { return s.save_slot(id); });
    const size_t n_bytes = write_slot_file(path, state);
    return {static_cast<int32_t>(state.tokens.size()), n_bytes, static_cast<double>(ggml_time_us() - t0) / 1000.0};
}

SlotTransfer Engine::restore_slot(int32_t id, const std::string& path) {
    const int64_t t0 = ggml_time_us();
    require_slots();
    auto state = std::make_shared<const SavedSlot>(read_slot_file(path, static_cast<size_t>(model_->n_ctx_slot())));
    // A file doesn't say with which adapters it was computed, so it goes for those in force.
    Adapters adapters = resolve_adapters(lora_scales(), state->tokens, *model_);
    ask<bool>([id, state, adapters = std::move(adapters)](Scheduler& s) {
        s.restore_slot(id, *state, adapters);
        return true;
    });
    return {static_cast<int32_t>(state->tokens.size()), state->n_bytes,
            static_cast<double>(ggml_time_us() - t0) / 1000.0};
}

AdapterScales Engine::lora_scales() {
    std::lock_guard lock(mutex_);
    return lora_scales_;
}

void Engine::set_lora(const AdapterChoice& choice) {
    AdapterScales scales = to_scales(choice, model_->params().lora_adapters.size());
    std::lock_guard lock(mutex_);
    lora_scales_ = std::move(scales);
}

int32_t Engine::erase_slot(int32_t id) {
    require_slots();
    return ask<int32_t>([id](Scheduler& s) { return s.erase_slot(id); });
}

void Engine::require_slots() const {
    if (!scheduler_) {
        throw Refused("not_supported", model_->cannot_complete());
    }
}

void Engine::run() {
    if (!scheduler_) {
        return;
    }
    Outbox outbox;
    std::deque<Command> commands;
    bool more = false;
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            if (!more) {
                commands_arrived_.wait(lock, [&] { return !commands_.empty() || closing_; });
            }
            if (closing_) {
                break;
            }
            commands.swap(commands_);
        }
        try {
            for (Command& command : commands) {
                command(*scheduler_);
            }
            commands.clear();
            more = scheduler_->step(outbox);
        } catch (const std::exception& e) {
            log_write(1, std::string("a step failed: ") + e.what());
            scheduler_->fail_all({"internal", e.what(), 0, 0}, outbox);
            commands.clear();
            more = false;
        }
        outbox.publish();
    }
    // Requests on their way here end with the others; questions see their promise broken.
    {
        std::lock_guard lock(mutex_);
        commands.swap(commands_);
        engine_done_ = true;
    }
    for (Command& command : commands) {
        command(*scheduler_);
    }
    commands.clear();
    scheduler_->fail_all(closed_failure, outbox);
    outbox.publish();
}

void Engine::close() {
    std::lock_guard closing(close_mutex_);
    {
        std::lock_guard lock(mutex_);
        closing_ = true;
    }
    commands_arrived_.notify_all();
    intake_arrived_.notify_all();
    for (std::thread& thread : intake_threads_) {
        thread.join();
    }
    intake_threads_.clear();
    if (engine_thread_.joinable()) {
        engine_thread_.join();
    }
    std::deque<std::unique_ptr<Request>> rest;
    {
        std::lock_guard lock(mutex_);
        rest.swap(intake_);
        preparing_.clear();
    }
    for (const auto& request : rest) {
        fail(*request, closed_failure);
    }
}

} // namespace llamaserve
