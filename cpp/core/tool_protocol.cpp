#include "tool_protocol.hpp"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"

#include <utility>
#include <vector>

namespace llamaserve {

namespace {

constexpr const char* call_start = "<tool_call>";
constexpr const char* call_end = "</tool_call>";
constexpr const char* result_start = "<tool_response>";
constexpr const char* result_end = "</tool_response>";

bool is_system(const common_chat_msg& message) {
    return message.role == "system" || message.role == "developer";
}

bool is_result(const common_chat_msg& message) {
    return message.role == "tool" || message.role == "function";
}

// One text instead of parts.
void flatten(common_chat_msg& message) {
    message.content = message.render_content("\n");
    message.content_parts.clear();
}

std::string written_call(const common_chat_tool_call& call) {
    common_json arguments = common_json::parse_no_throw(call.arguments.empty() ? "{}" : call.arguments);
    if (arguments.is_discarded()) {
        arguments = call.arguments;
    }
    common_json out = common_json::object();
    out["name"] = call.name;
    out["arguments"] = std::move(arguments);
    return std::string(call_start) + "\n" + out.dump() + "\n" + call_end;
}

std::string descriptions(const std::vector<common_chat_tool>& tools) {
    std::string out = "You can call these functions:\n<tools>\n";
    for (const common_chat_tool& tool : tools) {
        common_json function = common_json::object();
        function["name"] = tool.name;
        if (!tool.description.empty()) {
            function["description"] = tool.description;
        }
        function["parameters"] = common_json::parse(tool.parameters);
        out += function.dump() + "\n";
    }
    return out + "</tools>";
}

std::string instructions(const common_chat_templates_inputs& inputs) {
    std::string out = descriptions(inputs.tools) + "\n\n";
    out += inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED
               ? "Answer with a function call, in this form:\n"
               : "When a function helps to answer, call it in this form; otherwise answer in plain text:\n";
    out += std::string(call_start) +
           "\n{\"name\": \"the function's name\", \"arguments\": {\"its\": \"arguments\"}}\n" + call_end + "\n";
    out += inputs.parallel_tool_calls ? "Several calls follow each other, each in a block of its own. "
                                      : "Make one call at a time. ";
    return out + "Results come back between " + result_start + " and " + result_end + ".";
}

// Adds to the system message, or makes one.
void tell(std::vector<common_chat_msg>& messages, const std::string& text) {
    if (!messages.empty() && is_system(messages.front())) {
        common_chat_msg& first = messages.front();
        flatten(first);
        first.content += (first.content.empty() ? "" : "\n\n") + text;
        return;
    }
    common_chat_msg system;
    system.role = "system";
    system.content = text;
    messages.insert(messages.begin(), system);
}

} // namespace

void write_tool_descriptions(common_chat_templates_inputs& inputs) {
    tell(inputs.messages, descriptions(inputs.tools));
}

void write_tool_protocol(common_chat_templates_inputs& inputs) {
    std::vector<common_chat_msg> out;
    bool after_result = false; // the last message holds results, under the user's name
    for (common_chat_msg message : inputs.messages) {
        flatten(message);
        if (is_result(message)) {
            const std::string text = std::string(result_start) + "\n" + message.content + "\n" + result_end;
            if (after_result) {
                out.back().content += "\n" + text;
            } else {
                common_chat_msg& result = out.emplace_back();
                result.role = "user";
                result.content = text;
            }
            after_result = true;
            continue;
        }
        if (after_result && message.role == "user") {
            // Many templates want the roles to alternate.
            out.back().content += "\n\n" + message.content;
            continue;
        }
        after_result = false;
        for (const common_chat_tool_call& call : message.tool_calls) {
            message.content += (message.content.empty() ? "" : "\n") + written_call(call);
        }
        message.tool_calls.clear();
        out.push_back(std::move(message));
    }
    inputs.messages = std::move(out);
    if (!inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE) {
        tell(inputs.messages, instructions(inputs));
    }
}

void use_tool_protocol(common_chat_params& params, const common_chat_templates_inputs& inputs,
                       const std::string& prefix) {
    const bool required = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const bool continued = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
    const common_peg_arena parser = build_chat_peg_parser([&](common_chat_peg_builder& p) {
        auto call = p.choice();
        size_t n = 0;
        for (const common_chat_tool& tool : inputs.tools) {
            const std::string id = "tool-" + std::to_string(n++);
            common_json function = common_json::object();
            function["parameters"] = common_json::parse(tool.parameters);
            const auto name = p.literal("\"name\"") + p.space() + p.literal(":") + p.space() +
                              p.atomic(p.literal("\"") + p.tool_name(p.literal(tool.name)) + p.literal("\""));
            const auto arguments =
                p.literal("\"arguments\"") + p.space() + p.literal(":") + p.space() +
                p.tool_args(p.schema(p.json(), id + "-arguments", common_chat_tool_parameters(function)));
            call |= p.rule(id, p.tool(p.tool_open(p.literal("{")) + p.space() + name + p.space() + p.literal(",") +
                                      p.space() + arguments + p.space() + p.tool_close(p.literal("}"))));
        }
        const auto block = p.literal(call_start) + p.space() + call + p.space() + p.literal(call_end);
        const auto calls = p.trigger_rule(
            "tool-calls", inputs.parallel_tool_calls ? block + p.zero_or_more(p.space() + block) : block);

        const bool thinks = !params.thinking_end_tags.empty();
        auto reasoning = p.eps();
        if (thinks && inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE) {
            const std::string& end = params.thinking_end_tags.front();
            auto thoughts = p.reasoning(p.until(end)) + p.literal(end) + p.space();
            reasoning = params.thinking_start_tag.empty()
                            ? p.optional(thoughts)
                            : p.optional(p.literal(params.thinking_start_tag) + p.space() + thoughts);
        }
        auto answer = reasoning;
        // A call that must come comes first: a model that may write before it might never get there.
        if (!required || continued || (thinks && inputs.reasoning_format == COMMON_REASONING_FORMAT_NONE)) {
            answer = answer + p.optional(p.content(p.until(call_start)));
        }
        if (!inputs.json_schema.empty()) {
            const auto json = p.content(p.schema(p.json(), "response", common_json::parse(inputs.json_schema)));
            answer = reasoning + p.space() + p.choice({calls, json}) + p.space() + p.end();
        } else {
            answer = answer + (required ? calls : p.optional(calls)) + p.end();
        }
        const auto start = p.prefix(prefix, params.thinking_start_tag);
        return thinks ? start << answer : start + answer;
    });
    params.format = COMMON_CHAT_FORMAT_PEG_NATIVE;
    params.parser = parser.save();
    params.grammar_lazy = !required && inputs.json_schema.empty();
    params.grammar = build_grammar(
        [&](const common_grammar_builder& builder) { parser.build_grammar(builder, params.grammar_lazy); });
    params.grammar_triggers.clear();
    if (params.grammar_lazy) {
        params.grammar_triggers.push_back({COMMON_GRAMMAR_TRIGGER_TYPE_WORD, call_start});
    }
}

void use_json_answer(common_chat_params& params, const std::string& schema, const std::string& prefix) {
    const common_peg_arena parser = build_chat_peg_parser([&](common_chat_peg_builder& p) {
        const auto json = p.content(p.schema(p.json(), "response", common_json::parse(schema)));
        return p.prefix(prefix) + p.space() + json + p.space() + p.end();
    });
    params.format = COMMON_CHAT_FORMAT_PEG_NATIVE;
    params.parser = parser.save();
    params.grammar_lazy = false;
    params.grammar =
        build_grammar([&](const common_grammar_builder& builder) { parser.build_grammar(builder, false); });
    params.grammar_triggers.clear();
}

} // namespace llamaserve
