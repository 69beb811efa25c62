// Chats: from messages to a prompt with the model's template, and from generated text back to a message. Thread-safe.
#pragma once

#include "chat.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace llamaserve {

class Model;

// A chat as OpenAI's API has it. Empty fields take the engine's defaults; what is JSON comes as text.
struct ChatInputs {
    std::string messages;
    std::string tools;
    std::string tool_choice = "auto";
    int parallel_tool_calls = -1; // -1: as the template can
    std::string json_schema;
    std::string grammar;
    bool add_generation_prompt = true;
    std::string continue_final_message; // "", "true", "content", "reasoning_content"
    std::string reasoning_format;
    std::string reasoning_effort;
    int32_t reasoning_budget = -1;
    std::string reasoning_budget_message;
    std::map<std::string, std::string> chat_template_kwargs;
    bool stream = false;
};

// A rendered chat, with what sampling and parsing the answer need.
struct ChatPrompt {
    common_chat_params params;
    common_chat_parser_params parser;
    int32_t reasoning_budget = -1;
    std::string reasoning_budget_message;

    bool is_plain = false;

    // The answer is plain content: there is nothing to parse in it.
    bool plain() const { return is_plain; }
};

class ChatTemplates {
public:
    explicit ChatTemplates(const Model& model);

    // Renders the chat. Throws InvalidRequest where the input or the template says no.
    ChatPrompt apply(const ChatInputs& inputs) const;

private:
    // What the template does with tools.
    struct ToolSupport {
        bool describes = false; // shows them to the model
        bool calls = false;     // has a form for calls that can be demanded
    };

    const ToolSupport& tool_support() const;
    void read_tools(const ChatInputs& in, common_chat_templates_inputs& inputs) const;
    void read_continuation(const ChatInputs& in, common_chat_templates_inputs& inputs) const;
    void read_reasoning(const ChatInputs& in, common_chat_templates_inputs& inputs) const;
    common_chat_params render(const common_chat_templates_inputs& inputs,
                              const std::vector<common_chat_tool>& callable) const;

    const Model& model_;
    bool enable_thinking_;
    mutable std::once_flag probed_;
    mutable ToolSupport tool_support_;
};

} // namespace llamaserve
