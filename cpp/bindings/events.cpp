#include "bindings.hpp"

#include "event.hpp"

#include <atomic>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

using namespace llamaserve;

namespace {

nb::bytes as_bytes(const std::string& s) {
    return nb::bytes(s.data(), s.size());
}

const char* stop_name(StopType type) {
    switch (type) {
    case StopType::eos:
        return "eos";
    case StopType::word:
        return "word";
    case StopType::limit:
        return "limit";
    default:
        return "none";
    }
}

nb::list probs_list(const Event& e) {
    nb::list out;
    for (const TokenProbs& t : e.probs) {
        nb::list top;
        for (const TokenCandidate& c : t.top) {
            top.append(nb::make_tuple(c.id, as_bytes(c.text), c.p));
        }
        out.append(nb::make_tuple(t.id, as_bytes(t.text), t.p, top));
    }
    return out;
}

nb::list event_list(std::vector<Event>&& events) {
    nb::list out;
    for (Event& e : events) {
        out.append(nb::cast(std::move(e)));
    }
    return out;
}

} // namespace

void init_events(nb::module_& m) {
    nb::enum_<EventKind>(m, "EventKind")
        .value("started", EventKind::started)
        .value("progress", EventKind::progress)
        .value("token", EventKind::token)
        .value("finished", EventKind::finished)
        .value("embedded", EventKind::embedded)
        .value("error", EventKind::error);

    nb::class_<Finish>(m, "Finish")
        .def_prop_ro(
            "stop_type", [](const Finish& f) { return stop_name(f.stop); },
            nb::sig("def stop_type(self) -> typing.Literal['none', 'eos', 'word', 'limit']"))
        .def_ro("stopping_word", &Finish::stopping_word)
        .def_ro("truncated", &Finish::truncated)
        .def_ro("has_new_line", &Finish::has_new_line)
        .def_ro("id_slot", &Finish::id_slot)
        .def_ro("tokens_cached", &Finish::tokens_cached)
        .def_ro("prompt_text", &Finish::prompt_text)
        .def_prop_ro(
            "params", [](const Finish& f) { return f.params ? params_dict(*f.params) : nb::dict(); },
            nb::sig("def params(self) -> dict[str, typing.Any]"))
        .def_ro("text", &Finish::text);

    nb::class_<Event>(m, "Event")
        .def_ro("request_id", &Event::request)
        .def_ro("kind", &Event::kind)
        .def_ro("id_slot", &Event::id_slot)
        .def_ro("text", &Event::text)
        .def_ro("tokens", &Event::tokens)
        .def_ro("n_predicted", &Event::n_predicted)
        .def_ro("n_prompt_tokens", &Event::n_prompt_tokens)
        .def_prop_ro("has_extras",
                     [](const Event& e) { return !e.probs.empty() || e.timings.has_value() || e.progress.has_value(); })
        .def_prop_ro("probs", &probs_list,
                     nb::sig("def probs(self) -> list[tuple[int, bytes, float, list[tuple[int, bytes, float]]]]"))
        .def_prop_ro(
            "progress",
            [](const Event& e) -> nb::object {
                return e.progress ? nb::object(nb::make_tuple(e.progress->total, e.progress->cache,
                                                              e.progress->processed, e.progress->time_ms))
                                  : nb::none();
            },
            nb::sig("def progress(self) -> tuple[int, int, int, int] | None"))
        .def_prop_ro(
            "timings",
            [](const Event& e) -> nb::object {
                return e.timings
                           ? nb::object(nb::make_tuple(e.timings->cache_n, e.timings->prompt_n, e.timings->prompt_ms,
                                                       e.timings->predicted_n, e.timings->predicted_ms,
                                                       e.timings->draft_n, e.timings->draft_n_accepted))
                           : nb::none();
            },
            nb::sig("def timings(self) -> tuple[int, int, float, int, float, int, int] | None"))
        .def_prop_ro("embedding",
                     [](const Event& e) { return nb::bytes(e.embedding.data(), e.embedding.size() * sizeof(float)); })
        .def_ro("n_rows", &Event::n_rows)
        .def_prop_ro("finish", [](const Event& e) { return e.finish; })
        .def_prop_ro(
            "error",
            [](const Event& e) {
                const Failure f = e.failure.value_or(Failure{"internal", "unknown error", 0, 0});
                return nb::make_tuple(f.kind, f.message, f.n_prompt_tokens, f.n_ctx);
            },
            nb::sig("def error(self) -> tuple[str, str, int, int]"));

    // Threads of Python that wait here: if the interpreter ends before they have the GIL back, the process aborts.
    static std::atomic<int> n_waiting{0};
    m.def("n_waiting", [] { return n_waiting.load(); });

    nb::class_<SinkHandle>(m, "EventSink")
        .def(
            "__init__",
            [](SinkHandle* handle, int64_t socket) { new (handle) SinkHandle{std::make_shared<EventSink>(socket)}; },
            nb::arg("notify_socket") = -1)
        .def(
            "drain", [](const SinkHandle& handle) { return event_list(handle.sink->drain()); },
            nb::sig("def drain(self) -> list[Event]"))
        .def(
            "wait",
            [](const SinkHandle& handle, double timeout) {
                std::vector<Event> events;
                ++n_waiting;
                {
                    nb::gil_scoped_release released;
                    events = handle.sink->wait(std::chrono::duration<double>(timeout));
                }
                --n_waiting;
                return event_list(std::move(events));
            },
            nb::arg("timeout"), nb::sig("def wait(self, timeout: float) -> list[Event]"))
        .def("close", [](const SinkHandle& handle) { handle.sink->close(); })
        .def_prop_ro("closed", [](const SinkHandle& handle) { return handle.sink->closed(); });
}
