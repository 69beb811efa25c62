#include "bindings.hpp"

#include "engine.hpp"
#include "text.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

using namespace llamaserve;

namespace {

nb::dict info_dict(const ModelInfo& i) {
    nb::dict d;
    d["path"] = i.path;
    d["description"] = i.description;
    d["ftype"] = i.ftype;
    d["n_params"] = i.n_params;
    d["size"] = i.size;
    d["n_ctx_train"] = i.n_ctx_train;
    d["n_embd"] = i.n_embd;
    d["n_vocab"] = i.n_vocab;
    d["vocab_type"] = i.vocab_type;
    d["n_ctx"] = i.n_ctx;
    d["n_ctx_slot"] = i.n_ctx_slot;
    d["n_slots"] = i.n_slots;
    d["n_batch"] = i.n_batch;
    d["n_ubatch"] = i.n_ubatch;
    d["kv_unified"] = i.kv_unified;
    d["n_predict"] = i.n_predict;
    d["embedding"] = i.embedding;
    d["n_embd_out"] = i.n_embd_out;
    d["pooling"] = i.pooling;
    d["embd_normalize"] = i.embd_normalize;
    d["bos_token"] = i.bos_token;
    d["eos_token"] = i.eos_token;
    d["bos_added"] = i.bos_added;
    d["fim_prefix"] = i.fim_prefix;
    d["fim_suffix"] = i.fim_suffix;
    d["fim_middle"] = i.fim_middle;
    d["fim_repo"] = i.fim_repo;
    d["fim_separator"] = i.fim_separator;
    d["chat_template"] = i.chat_template;
    d["chat_template_tool_use"] = i.chat_template_tool_use;
    d["chat_template_caps"] = i.chat_template_caps;
    d["supports_thinking"] = i.supports_thinking;
    return d;
}

nb::dict slot_dict(const SlotSnapshot& s) {
    nb::dict d;
    d["id"] = s.id;
    d["n_ctx"] = s.n_ctx;
    d["state"] = slot_state_name(s.state);
    d["is_processing"] = s.state != SlotState::idle;
    d["id_task"] = s.id_task;
    d["n_prompt_tokens"] = s.n_prompt_tokens;
    d["n_prompt_tokens_processed"] = s.n_prompt_processed;
    d["n_prompt_tokens_cache"] = s.n_prompt_cached;
    d["n_decoded"] = s.n_decoded;
    d["n_remain"] = s.n_remain;
    d["has_next_token"] = s.has_next_token;
    d["has_new_line"] = s.has_new_line;
    d["prompt"] = s.prompt;
    d["generated"] = s.generated;
    d["params"] = params_dict(s.params);
    d["speculative"] = s.speculative;
    return d;
}

nb::dict metrics_dict(const Metrics& m) {
    auto seconds = [](int64_t us) { return static_cast<double>(us) / 1e6; };
    nb::dict d;
    d["prompt_tokens_total"] = m.prompt_tokens_total;
    d["prompt_tokens_cached_total"] = m.prompt_tokens_cached_total;
    d["prompt_seconds_total"] = seconds(m.prompt_us_total);
    d["tokens_predicted_total"] = m.tokens_predicted_total;
    d["tokens_predicted_seconds_total"] = seconds(m.predicted_us_total);
    d["n_decode_total"] = m.n_decode_total;
    d["n_tokens_max"] = m.n_tokens_max;
    d["n_busy_slots_total"] = m.n_busy_slots_total;
    d["prompt_tokens_window"] = m.prompt_tokens_window;
    d["prompt_seconds_window"] = seconds(m.prompt_us_window);
    d["tokens_predicted_window"] = m.predicted_tokens_window;
    d["tokens_predicted_seconds_window"] = seconds(m.predicted_us_window);
    d["requests_processing"] = m.requests_processing;
    d["requests_deferred"] = m.requests_deferred;
    d["kv_cells_used"] = m.kv_cells_used;
    d["n_preempted_total"] = m.n_preempted_total;
    d["n_drafts_total"] = m.n_drafts;
    d["n_draft_tokens_total"] = m.n_draft_tokens;
    d["n_draft_accepted_total"] = m.n_draft_accepted;
    d["n_draft_accepted_by_place"] = m.n_draft_accepted_by_place;
    d["cache_ram_bytes"] = m.cache_ram_bytes;
    d["cache_ram_entries"] = m.cache_ram_entries;
    return d;
}

nb::dict adapter_dict(const Model& model, size_t i, float scale) {
    const common_adapter_lora_info& info = model.params().lora_adapters[i];
    const llama_token* tokens = llama_adapter_get_alora_invocation_tokens(info.ptr);
    const std::vector<llama_token> invocation(tokens, tokens + llama_adapter_get_alora_n_invocation_tokens(info.ptr));
    nb::dict d;
    d["id"] = i;
    d["path"] = info.path;
    d["scale"] = scale;
    d["task_name"] = sanitize_utf8(info.task_name);
    d["prompt_prefix"] = sanitize_utf8(info.prompt_prefix);
    d["alora_invocation_string"] = model.detokenize(invocation);
    d["alora_invocation_tokens"] = invocation;
    return d;
}

nb::tuple transfer_tuple(Engine& e, SlotTransfer (Engine::*call)(int32_t, const std::string&), int32_t id,
                         const std::string& path) {
    SlotTransfer t;
    {
        nb::gil_scoped_release released;
        t = (e.*call)(id, path);
    }
    return nb::make_tuple(t.n_tokens, t.n_bytes, t.ms);
}

} // namespace

void init_engine(nb::module_& m) {
    nb::class_<Engine>(m, "Engine")
        .def(nb::init<const EngineParams&>(), nb::call_guard<nb::gil_scoped_release>())
        .def(
            "info", [](const Engine& e) { return info_dict(e.model().info()); },
            nb::sig("def info(self) -> dict[str, typing.Any]"))
        .def("new_params", &Engine::new_params)
        .def("submit",
             [](Engine& e, std::vector<PromptPart> prompt, const RequestParams& params, const SinkHandle& handle) {
                 nb::gil_scoped_release released;
                 return e.submit(std::move(prompt), params, handle.sink);
             })
        .def("embed",
             [](Engine& e, RequestKind kind, std::vector<std::vector<PromptPart>> inputs,
                const EmbeddingParams& embedding, const RequestParams& params, const SinkHandle& handle) {
                 nb::gil_scoped_release released;
                 return e.embed(kind, std::move(inputs), embedding, params, handle.sink);
             })
        .def("cancel", &Engine::cancel, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "slots",
            [](Engine& e) {
                std::vector<SlotSnapshot> slots;
                {
                    nb::gil_scoped_release released;
                    slots = e.slots();
                }
                nb::list out;
                for (const SlotSnapshot& s : slots) {
                    out.append(slot_dict(s));
                }
                return out;
            },
            nb::sig("def slots(self) -> list[dict[str, typing.Any]]"))
        .def(
            "metrics",
            [](Engine& e, bool reset_window) {
                Metrics metrics;
                {
                    nb::gil_scoped_release released;
                    metrics = e.metrics(reset_window);
                }
                return metrics_dict(metrics);
            },
            nb::arg("reset_window"), nb::sig("def metrics(self, reset_window: bool) -> dict[str, typing.Any]"))
        .def(
            "save_slot",
            [](Engine& e, int32_t id, const std::string& path) {
                return transfer_tuple(e, &Engine::save_slot, id, path);
            },
            nb::sig("def save_slot(self, id: int, path: str) -> tuple[int, int, float]"))
        .def(
            "restore_slot",
            [](Engine& e, int32_t id, const std::string& path) {
                return transfer_tuple(e, &Engine::restore_slot, id, path);
            },
            nb::sig("def restore_slot(self, id: int, path: str) -> tuple[int, int, float]"))
        .def(
            "lora_adapters",
            [](Engine& e) {
                nb::list out;
                const AdapterScales scales = e.lora_scales();
                for (size_t i = 0; i < scales.size(); ++i) {
                    out.append(adapter_dict(e.model(), i, scales[i]));
                }
                return out;
            },
            nb::sig("def lora_adapters(self) -> list[dict[str, typing.Any]]"))
        .def("set_lora", &Engine::set_lora, nb::arg("choice"), nb::call_guard<nb::gil_scoped_release>())
        .def("erase_slot", &Engine::erase_slot, nb::arg("id"), nb::call_guard<nb::gil_scoped_release>())
        .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "tokenize",
            [](const Engine& e, const std::string& text, bool special, bool parse_special) {
                return e.model().tokenize(text, special, parse_special);
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "detokenize",
            [](const Engine& e, const std::vector<llama_token>& tokens) { return e.model().detokenize(tokens); },
            nb::call_guard<nb::gil_scoped_release>())
        .def("token_bytes",
             [](const Engine& e, llama_token token) {
                 const std::string text = e.model().token_bytes(token);
                 return nb::bytes(text.data(), text.size());
             })
        .def(
            "apply_template", [](const Engine& e, const ChatInputs& inputs) { return e.chat().apply(inputs); },
            nb::call_guard<nb::gil_scoped_release>());
}
