// One loaded model, with the thread that owns its context. Everyone else posts commands to it and reads events.
#pragma once

#include "chat.hpp"
#include "event.hpp"
#include "model.hpp"
#include "request.hpp"
#include "scheduler.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

namespace llamaserve {

// What came of saving or restoring a slot.
struct SlotTransfer {
    int32_t n_tokens = 0;
    size_t n_bytes = 0;
    double ms = 0.0;
};

// All functions are thread-safe.
class Engine {
public:
    // Loads the model; throws LoadError.
    explicit Engine(const EngineParams& params);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    const Model& model() const { return *model_; }
    const ChatTemplates& chat() const { return *chat_; }

    // A request's parameters with the engine's and the model's defaults in them.
    RequestParams new_params() const;

    // Takes the request in and returns its id. Its events go to `sink`; all that is wrong with it, it learns from
    // there. Throws EngineClosed.
    uint64_t submit(std::vector<PromptPart> prompt, RequestParams params, std::shared_ptr<EventSink> sink);

    // Takes in inputs to embed, or, if `kind` says so, documents to score against the query in `embedding`. Returns the
    // id of the first one; the others follow it. A queue that is full refuses all of them. Throws EngineClosed.
    uint64_t embed(RequestKind kind, std::vector<std::vector<PromptPart>> inputs, const EmbeddingParams& embedding,
                   const RequestParams& params, std::shared_ptr<EventSink> sink);

    // Ends the request within a step. No events of it are sent from then on.
    void cancel(uint64_t request);

    // Wait for the step that is running. Throw EngineClosed.
    std::vector<SlotSnapshot> slots();
    Metrics metrics(bool reset_window);

    // Saves an idle slot's tokens and cells to a file, fills a slot from one, empties one. Throw Refused, EngineClosed.
    SlotTransfer save_slot(int32_t id, const std::string& path);
    SlotTransfer restore_slot(int32_t id, const std::string& path);
    int32_t erase_slot(int32_t id);

    // The loaded LoRA adapters' scales, for requests that don't choose. Set throws InvalidRequest.
    AdapterScales lora_scales();
    void set_lora(const AdapterChoice& choice);

    // Ends all requests and stops the threads. The model is freed with the object.
    void close();

private:
    using Command = std::function<void(Scheduler&)>;

    void run();
    void prepare_requests();
    void take_in(std::vector<std::unique_ptr<Request>> requests);
    void make_ready(std::unique_ptr<Request> request);
    std::optional<Failure> check(Request& request) const;
    void fail(const Request& request, Failure failure);
    void post(Command command);
    void require_slots() const;
    template <typename T>
    T ask(std::function<T(Scheduler&)> question);

    EngineParams params_;
    std::unique_ptr<Model> model_;
    std::unique_ptr<ChatTemplates> chat_;
    std::unique_ptr<Scheduler> scheduler_;

    std::atomic<uint64_t> next_id_{1};
    std::atomic<bool> closing_{false};
    std::atomic<int32_t> n_submitted_{0}; // prepared, but not yet seen by the scheduler
    int32_t queue_limit_ = 0;

    std::mutex mutex_; // guards all below
    std::condition_variable commands_arrived_, intake_arrived_;
    std::deque<Command> commands_;
    std::deque<std::unique_ptr<Request>> intake_;
    std::unordered_set<uint64_t> preparing_, cancelled_;
    bool engine_done_ = false;
    AdapterScales lora_scales_;

    std::mutex close_mutex_;
    std::vector<std::thread> intake_threads_;
    std::thread engine_thread_;
};

} // namespace llamaserve
