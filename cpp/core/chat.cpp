#include "chat.hpp"

#include "error.hpp"
#include "grammar_limits.hpp"
#include "model.hpp"

#include <random>
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

std::string random_id() {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    thread_local std::mt19937_64 random{std::random_device{}()};
    std::string out(32, ' ');
    for (char& c : out) {
        c = letters[std::uniform_int_distribution<size_t>(0, sizeof(letters) - 2)(random)];
    }
    return out;
}

} // namespace

bool ChatPrompt::plain() const {
    return parser.format == COMMON_CHAT_FORMAT_CONTENT_ONLY && parser.parser.empty();
}

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
        auto caps = common_chat_templates_get_caps(model_.templates());
        inputs.parallel_tool_calls =
            in.parallel_tool_calls >= 0 ? in.parallel_tool_calls > 0 : caps["supports_parallel_tool_calls"];
        if (!in.json_schema.empty()) {
            if (!in.grammar.empty()) {
                throw InvalidRequest("Cannot use both json_schema and grammar");
            }
            check_schema("json_schema", in.json_schema);
            common_json schema = parse_json("json_schema", in.json_schema);
            if (schema.is_object() && schema.empty()) {
                schema["type"] = "object";
            }
            inputs.json_schema = schema.dump();
        }
        inputs.grammar = in.grammar;
        if (!inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE && !in.grammar.empty()) {
            throw InvalidRequest("Cannot use custom grammar constraints with tools.");
        }

        inputs.add_generation_prompt = in.add_generation_prompt;
        if (in.continue_final_message == "true") {
            inputs.continue_final_message = common_chat_continuation_parse(common_json(true));
        } else if (!in.continue_final_message.empty()) {
            inputs.continue_final_message = common_chat_continuation_parse(common_json(in.continue_final_message));
        }
        const auto& list = inputs.messages;
        const bool ends_with_assistant = !list.empty() && list.back().role == "assistant";
        if (inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE && defaults.prefill_assistant &&
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

        inputs.reasoning_format = in.reasoning_format.empty() ? defaults.reasoning_format
                                                              : common_reasoning_format_from_name(in.reasoning_format);
        inputs.chat_template_kwargs = defaults.default_template_kwargs;
        for (const auto& [name, value] : in.chat_template_kwargs) {
            inputs.chat_template_kwargs[name] = value;
        }
        inputs.enable_thinking = enable_thinking_;
        if (const auto it = inputs.chat_template_kwargs.find("enable_thinking");
            it != inputs.chat_template_kwargs.end()) {
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
        inputs.force_pure_content = defaults.force_pure_content_parser;

        out.params = common_chat_templates_apply(model_.templates(), inputs);
        out.parser = common_chat_parser_params(out.params);
        out.parser.reasoning_format = inputs.reasoning_format;
        out.parser.reasoning_in_content =
            in.stream && inputs.reasoning_format == COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY;
        out.parser.is_continuation = continues && !in.continue_final_message.empty();
        if (!out.params.parser.empty()) {
            out.parser.parser.load(out.params.parser);
        }
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

ChatParser::ChatParser(const ChatPrompt& prompt) : params_(prompt.parser), plain_(prompt.plain()) {
    message_.role = "assistant";
    if (!plain_ && params_.is_continuation && !params_.echo) {
        // What was already there isn't part of the growth.
        message_ = common_chat_parse("", true, params_);
    }
}

std::vector<common_chat_msg_diff> ChatParser::feed(const std::string& text, bool final) {
    std::vector<common_chat_msg_diff> out;
    if (plain_) {
        message_.content += text;
        if (!text.empty()) {
            out.emplace_back().content_delta = text;
        }
        return out;
    }
    text_ += text;
    try {
        common_chat_msg next = common_chat_parse(text_, !final, params_);
        if (!next.empty()) {
            next.set_tool_call_ids(call_ids_, random_id);
            out = common_chat_msg_diff::compute_diffs(message_, next);
            message_ = std::move(next);
        }
    } catch (const std::exception& e) {
        throw InvalidRequest(e.what());
    }
    return out;
}

} // namespace llamaserve
