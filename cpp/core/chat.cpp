#include "chat.hpp"

#include "chat_parser.hpp"
#include "error.hpp"
#include "grammar_limits.hpp"
#include "json-schema-to-grammar.h"
#include "log.hpp"
#include "model.hpp"
#include "schema.hpp"
#include "tool_protocol.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace llamaserve {

namespace {

common_json parse_json(const std::string& name, const std::string& text) {
    try {
        return common_json::parse(text);
    } catch (const std::exception& e) {
        throw InvalidRequest(name + ": " + e.what());
    }
}

// Content of another kind than text needs a multimodal projector.
void check_content(const common_json& content) {
    if (content.is_string() || content.is_null()) {
        return;
    }
    if (!content.is_array()) {
        throw InvalidRequest("messages: 'content' must be a text or an array of parts");
    }
    for (const auto& part : content) {
        const std::string type = part.is_object() && part.contains("type") && part.at("type").is_string()
                                     ? part.at("type").get<std::string>()
                                     : "";
        if (type == "image_url" || type == "input_audio" || type == "input_video" || type == "video_url") {
            throw InvalidRequest("messages: content of type '" + type + "' is not supported by this server");
        }
        if (type != "text" && type != "media_marker") {
            throw InvalidRequest("messages: unsupported content type '" + type + "'");
        }
        if (!part.contains("text") || !part.at("text").is_string()) {
            throw InvalidRequest("messages: a content part of type 'text' needs a 'text'");
        }
    }
}

void check_messages(const common_json& messages) {
    if (!messages.is_array()) {
        throw InvalidRequest("'messages' must be an array");
    }
    for (const auto& message : messages) {
        if (!message.is_object()) {
            throw InvalidRequest("messages: each message must be an object");
        }
        const bool assistant = message.contains("role") && message.at("role").is_string() &&
                               message.at("role").get<std::string>() == "assistant";
        if (!message.contains("content")) {
            if (!assistant) {
                throw InvalidRequest("messages: every message but an assistant's must have 'content'");
            }
            if (!message.contains("tool_calls")) {
                throw InvalidRequest("messages: an assistant message must have 'content' or 'tool_calls'");
            }
            continue;
        }
        check_content(message.at("content"));
    }
}

bool has_tool_turns(const std::vector<common_chat_msg>& messages) {
    return std::any_of(messages.begin(), messages.end(), [](const common_chat_msg& message) {
        return !message.tool_calls.empty() || message.role == "tool" || message.role == "function";
    });
}

// The tools with their parameters in the form that a grammar enforces.
std::vector<common_chat_tool> callable_tools(const ChatInputs& in, const common_chat_templates_inputs& inputs) {
    const common_json given = common_json::parse(in.tools);
    std::vector<common_chat_tool> out = inputs.tools;
    std::set<std::string> names;
    for (size_t i = 0; i < out.size(); ++i) {
        const std::string where = "tools[" + std::to_string(i) + "].function";
        const std::string& name = out[i].name;
        if (name.empty() || std::any_of(name.begin(), name.end(), [](unsigned char c) {
                return c < 0x21 || c == '"' || c == '\\' || c == '<' || c == '>' || c == 0x7F;
            })) {
            throw InvalidRequest(where + ".name: a name is made of letters, digits, '_' and '-'");
        }
        if (!names.insert(name).second) {
            throw InvalidRequest(where + ".name: there is another tool named '" + name + "'");
        }
        // A call that is demanded, or one that is "strict", is valid by the whole schema.
        const common_json& function = given.at(i).at("function");
        bool strict = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        if (function.contains("strict") && function.at("strict").is_boolean()) {
            strict = function.at("strict").get<bool>();
        }
        common_json parameters = common_json::parse(out[i].parameters);
        if (parameters.is_null() || (parameters.is_object() && parameters.empty())) {
            continue;
        }
        if (parameters.is_object() && !parameters.contains("type") && !parameters.contains("$ref")) {
            parameters["type"] = "object";
        }
        try {
            out[i].parameters = enforceable_schema(where + ".parameters", parameters,
                                                   strict ? Unenforceable::refuse : Unenforceable::drop)
                                    .dump();
        } catch (const InvalidRequest& e) {
            const bool may_relax = strict && !function.contains("strict");
            throw InvalidRequest(
                e.what() + std::string(may_relax ? "; with \"strict\": false in the function it is ignored" : ""));
        }
    }
    return out;
}

// Whether llama-common makes the same grammar of both schemas.
bool same_grammar(const std::string& a, const std::string& b) {
    if (a == b) {
        return true;
    }
    if (a.find("\"pattern\"") != std::string::npos) {
        return false; // it warns on the console of those it can't take
    }
    try {
        return json_schema_to_grammar(common_json::parse(a)) == json_schema_to_grammar(common_json::parse(b));
    } catch (const std::exception&) {
        return false;
    }
}

} // namespace

ChatTemplates::ChatTemplates(const Model& model)
    : model_(model), enable_thinking_(model.params().enable_reasoning != 0 && model.supports_thinking()) {}

ChatPrompt ChatTemplates::apply(const ChatInputs& in) const {
    const common_params& defaults = model_.params();
    common_chat_templates_inputs inputs;
    ChatPrompt out;
    try {
        const common_json messages = parse_json("messages", in.messages);
        check_messages(messages);
        inputs.messages = common_chat_msgs_parse_oaicompat(messages);
        inputs.use_jinja = defaults.use_jinja;
        inputs.force_pure_content = defaults.force_pure_content_parser;
        read_tools(in, inputs);
        std::vector<common_chat_tool> callable;
        if (!inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE) {
            callable = callable_tools(in, inputs);
        }
        inputs.grammar = in.grammar;
        if (!in.json_schema.empty()) {
            if (!in.grammar.empty()) {
                throw InvalidRequest("Cannot use both json_schema and grammar");
            }
            check_schema("json_schema", in.json_schema);
            common_json schema = parse_json("json_schema", in.json_schema);
            if (schema.is_object() && schema.empty()) {
                schema["type"] = "object";
            }
            schema = enforceable_schema("json_schema", schema, Unenforceable::refuse);
            // An answer that must be a call has no content that could have a form.
            if (callable.empty() || inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_REQUIRED) {
                inputs.json_schema = schema.dump();
            }
        }
        read_continuation(in, inputs);
        read_reasoning(in, inputs);

        out.params = render(inputs, callable);
        if (!inputs.json_schema.empty() && out.params.grammar.empty()) {
            use_json_answer(out.params, inputs.json_schema, out.params.generation_prompt);
        }
        if (in.grammar.empty()) {
            out.params.grammar = corrected_schema_grammar(out.params.grammar);
        }
        out.parser = common_chat_parser_params(out.params);
        out.parser.reasoning_format = inputs.reasoning_format;
        out.parser.reasoning_in_content =
            in.stream && inputs.reasoning_format == COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY;
        out.parser.is_continuation =
            inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE && !in.continue_final_message.empty();
        if (!out.params.parser.empty()) {
            out.parser.parser.load(out.params.parser);
        }
        out.is_plain = !out.parser.is_continuation && is_plain_format(out.params, out.parser.parser);
    } catch (const InvalidRequest&) {
        throw;
    } catch (const std::exception& e) {
        throw InvalidRequest(e.what());
    }
    if (!out.params.thinking_end_tags.empty()) {
        const auto& sampling = defaults.sampling;
        out.reasoning_budget = in.reasoning_budget >= 0 ? in.reasoning_budget : sampling.reasoning_budget_tokens;
        out.reasoning_budget_message =
            in.reasoning_budget_message.empty() ? sampling.reasoning_budget_message : in.reasoning_budget_message;
    }
    return out;
}

void ChatTemplates::read_tools(const ChatInputs& in, common_chat_templates_inputs& inputs) const {
    if (!in.tools.empty()) {
        if (!inputs.use_jinja) {
            throw InvalidRequest("tools param requires --jinja flag");
        }
        check_schema("tools", in.tools);
        inputs.tools = common_chat_tools_parse_oaicompat(parse_json("tools", in.tools));
    }
    if (!inputs.use_jinja && in.tool_choice != "auto") {
        throw InvalidRequest("tool_choice param requires --jinja flag");
    }
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(in.tool_choice);
    if (inputs.tools.empty() && inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED) {
        throw InvalidRequest("tool_choice: a call is required, but there are no tools");
    }
    if (!inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE && !in.grammar.empty()) {
        throw InvalidRequest("Cannot use custom grammar constraints with tools.");
    }
    if (in.parallel_tool_calls >= 0) {
        inputs.parallel_tool_calls = in.parallel_tool_calls > 0;
    } else {
        inputs.parallel_tool_calls = common_chat_templates_get_caps(model_.templates())["supports_parallel_tool_calls"];
    }
}

void ChatTemplates::read_continuation(const ChatInputs& in, common_chat_templates_inputs& inputs) const {
    inputs.add_generation_prompt = in.add_generation_prompt;
    if (in.continue_final_message == "true") {
        inputs.continue_final_message = common_chat_continuation_parse(common_json(true));
    } else if (!in.continue_final_message.empty()) {
        inputs.continue_final_message = common_chat_continuation_parse(common_json(in.continue_final_message));
    }
    const auto& list = inputs.messages;
    const bool ends_with_assistant = !list.empty() && list.back().role == "assistant";
    if (inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE && model_.params().prefill_assistant &&
        ends_with_assistant) {
        if (list.size() >= 2 && list[list.size() - 2].role == "assistant") {
            throw InvalidRequest("Cannot have 2 or more assistant messages at the end of the list.");
        }
        inputs.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
        inputs.add_generation_prompt = false;
    }
    const bool continues = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
    if (continues && inputs.add_generation_prompt) {
        throw InvalidRequest("Cannot set both add_generation_prompt and continue_final_message to true.");
    }
    if (continues && ends_with_assistant && !list.back().tool_calls.empty()) {
        throw InvalidRequest("Cannot continue an assistant message that contains tool calls.");
    }
}

void ChatTemplates::read_reasoning(const ChatInputs& in, common_chat_templates_inputs& inputs) const {
    const common_params& defaults = model_.params();
    inputs.reasoning_format = in.reasoning_format.empty() ? defaults.reasoning_format
                                                          : common_reasoning_format_from_name(in.reasoning_format);
    inputs.chat_template_kwargs = defaults.default_template_kwargs;
    for (const auto& [name, value] : in.chat_template_kwargs) {
        inputs.chat_template_kwargs[name] = value;
    }
    inputs.enable_thinking = enable_thinking_;
    if (const auto it = inputs.chat_template_kwargs.find("enable_thinking"); it != inputs.chat_template_kwargs.end()) {
        if (it->second == "true" || it->second == "false") {
            inputs.enable_thinking = it->second == "true";
        } else if (it->second.starts_with('"')) {
            throw InvalidRequest("invalid type for \"enable_thinking\" (expected boolean, got string)");
        }
    }
    if (in.reasoning_effort == "none") {
        inputs.enable_thinking = false;
        inputs.chat_template_kwargs.erase("reasoning_effort");
    } else if (!in.reasoning_effort.empty()) {
        inputs.chat_template_kwargs["reasoning_effort"] = common_json::make(in.reasoning_effort).dump();
    }
}

// Asks the template itself, with a tool that no other text can name.
const ChatTemplates::ToolSupport& ChatTemplates::tool_support() const {
    std::call_once(probed_, [this] {
        const std::string name = "probe_7f3c9d";
        common_chat_templates_inputs inputs;
        inputs.messages.emplace_back().role = "user";
        inputs.messages.back().content = "Hello";
        inputs.tools.push_back({name, "A tool", R"({"type": "object", "properties": {"text": {"type": "string"}}})"});
        inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        const auto caps = common_chat_templates_get_caps(model_.templates());
        const auto can = [&](const char* what) { return caps.count(what) > 0 && caps.at(what); };
        try {
            const common_chat_params params = common_chat_templates_apply(model_.templates(), inputs);
            tool_support_.describes = can("supports_tools") && params.prompt.find(name) != std::string::npos;
            tool_support_.calls = params.grammar.find(name) != std::string::npos &&
                                  (can("supports_tool_calls") || tool_support_.describes);
        } catch (const std::exception& e) {
            log_write(2, std::string("the chat template can't show tools: ") + e.what());
        }
    });
    return tool_support_;
}

common_chat_params ChatTemplates::render(const common_chat_templates_inputs& inputs,
                                         const std::vector<common_chat_tool>& callable) const {
    const common_chat_templates* templates = model_.templates();
    const bool concerns_tools = !callable.empty() || has_tool_turns(inputs.messages);
    if (!concerns_tools || !inputs.use_jinja || inputs.force_pure_content) {
        return common_chat_templates_apply(templates, inputs);
    }
    common_chat_templates_inputs written = inputs;
    if (!tool_support().calls) {
        write_tool_protocol(written);
        written.tools.clear();
        written.tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO;
        common_chat_params params = common_chat_templates_apply(templates, written);
        if (callable.empty()) {
            return params;
        }
        std::string prefix = params.generation_prompt;
        if (written.continue_final_message != COMMON_CHAT_CONTINUATION_NONE && !written.messages.empty()) {
            common_chat_templates_inputs fresh = written;
            fresh.messages.pop_back();
            fresh.continue_final_message = COMMON_CHAT_CONTINUATION_NONE;
            fresh.add_generation_prompt = true;
            prefix = common_chat_templates_apply(templates, fresh).generation_prompt;
        }
        written.tools = callable;
        written.tool_choice = inputs.tool_choice;
        use_tool_protocol(params, written, prefix);
        return params;
    }
    if (callable.empty()) {
        return common_chat_templates_apply(templates, inputs);
    }
    if (!tool_support().describes) {
        write_tool_descriptions(written);
    }
    written.tools = callable;
    common_chat_params params = common_chat_templates_apply(templates, written);
    for (size_t i = 0; i < callable.size(); ++i) {
        if (!same_grammar(inputs.tools[i].parameters, callable[i].parameters)) {
            // The model is to see the tools as they were given.
            common_chat_templates_inputs shown = written;
            shown.tools = inputs.tools;
            shown.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
            params.prompt = common_chat_templates_apply(templates, shown).prompt;
            break;
        }
    }
    return params;
}

} // namespace llamaserve
