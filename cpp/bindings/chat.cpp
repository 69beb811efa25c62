#include "bindings.hpp"

#include "chat.hpp"
#include "chat_parser.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

using namespace llamaserve;

namespace {

using Delta = std::tuple<std::string, std::string, int, std::string, std::string, std::string>;

std::vector<Delta> as_tuples(const std::vector<common_chat_msg_diff>& diffs) {
    std::vector<Delta> out;
    for (const common_chat_msg_diff& d : diffs) {
        const int index = d.tool_call_index == std::string::npos ? -1 : static_cast<int>(d.tool_call_index);
        out.emplace_back(d.content_delta, d.reasoning_content_delta, index, d.tool_call_delta.name,
                         d.tool_call_delta.arguments, d.tool_call_delta.id);
    }
    return out;
}

} // namespace

void init_chat(nb::module_& m) {
    nb::class_<ChatInputs>(m, "ChatInputs")
        .def(nb::init<>())
        .def_rw("messages", &ChatInputs::messages)
        .def_rw("tools", &ChatInputs::tools)
        .def_rw("tool_choice", &ChatInputs::tool_choice)
        .def_rw("parallel_tool_calls", &ChatInputs::parallel_tool_calls)
        .def_rw("json_schema", &ChatInputs::json_schema)
        .def_rw("grammar", &ChatInputs::grammar)
        .def_rw("add_generation_prompt", &ChatInputs::add_generation_prompt)
        .def_rw("continue_final_message", &ChatInputs::continue_final_message)
        .def_rw("reasoning_format", &ChatInputs::reasoning_format)
        .def_rw("reasoning_effort", &ChatInputs::reasoning_effort)
        .def_rw("reasoning_budget", &ChatInputs::reasoning_budget)
        .def_rw("reasoning_budget_message", &ChatInputs::reasoning_budget_message)
        .def_rw("chat_template_kwargs", &ChatInputs::chat_template_kwargs)
        .def_rw("stream", &ChatInputs::stream);

    nb::class_<ChatPrompt>(m, "ChatPrompt")
        .def_prop_ro("prompt", [](const ChatPrompt& p) { return p.params.prompt; })
        .def_prop_ro("format", [](const ChatPrompt& p) { return common_chat_format_name(p.params.format); })
        .def_prop_ro("reasoning_format",
                     [](const ChatPrompt& p) { return common_reasoning_format_name(p.parser.reasoning_format); })
        .def_prop_ro("plain", &ChatPrompt::plain)
        .def_prop_ro("grammar", [](const ChatPrompt& p) { return p.params.grammar; })
        .def_prop_ro("grammar_lazy", [](const ChatPrompt& p) { return p.params.grammar_lazy; })
        .def_prop_ro("grammar_triggers",
                     [](const ChatPrompt& p) {
                         std::vector<std::tuple<int, std::string, llama_token>> out;
                         for (const common_grammar_trigger& t : p.params.grammar_triggers) {
                             out.emplace_back(t.type, t.value, t.token);
                         }
                         return out;
                     })
        .def_prop_ro("preserved_tokens", [](const ChatPrompt& p) { return p.params.preserved_tokens; })
        .def_prop_ro("additional_stops", [](const ChatPrompt& p) { return p.params.additional_stops; })
        .def_prop_ro("generation_prompt", [](const ChatPrompt& p) { return p.params.generation_prompt; })
        .def_prop_ro("reasoning_budget", [](const ChatPrompt& p) { return p.reasoning_budget; })
        .def_prop_ro("reasoning_budget_message", [](const ChatPrompt& p) { return p.reasoning_budget_message; })
        .def_prop_ro("reasoning_start_tag", [](const ChatPrompt& p) { return p.params.thinking_start_tag; })
        .def_prop_ro("reasoning_end_tags", [](const ChatPrompt& p) { return p.params.thinking_end_tags; });

    nb::class_<ChatParser>(m, "ChatParser")
        .def(nb::init<const ChatPrompt&>())
        .def("push", [](ChatParser& parser, const std::string& text) { return as_tuples(parser.push(text)); })
        .def("parse",
             [](ChatParser& parser, bool final) {
                 std::vector<common_chat_msg_diff> diffs;
                 {
                     nb::gil_scoped_release released;
                     diffs = parser.parse(final);
                 }
                 return as_tuples(diffs);
             })
        .def_prop_ro("wants_parse", &ChatParser::wants_parse)
        .def_prop_ro("parsed_bytes", &ChatParser::parsed_bytes)
        .def("message", [](const ChatParser& parser) {
            const common_chat_msg& msg = parser.message();
            std::vector<std::tuple<std::string, std::string, std::string>> calls;
            for (const common_chat_tool_call& c : msg.tool_calls) {
                calls.emplace_back(c.name, c.arguments, c.id);
            }
            return std::make_tuple(msg.content, msg.reasoning_content, calls);
        });
}
