// Chats: from messages to a prompt with the model's template, and from generated text back to a message. Thread-safe.
#pragma once

#include "chat.h"

#include <map>
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

    // The answer is plain content: there is nothing to parse in it.
    bool plain() const;
};

class ChatTemplates {
public:
    explicit ChatTemplates(const Model& model);

    // Renders the chat. Throws InvalidRequest where the input or the template says no.
    ChatPrompt apply(const ChatInputs& inputs) const;

private:
    const Model& model_;
    bool enable_thinking_;
};

// Parses one answer as it grows.
class ChatParser {
public:
    explicit ChatParser(const ChatPrompt& prompt);

    // Adds text; returns what the message grew by. `final`: no more comes. Throws InvalidRequest if the whole answer
    // can't be parsed.
    std::vector<common_chat_msg_diff> feed(const std::string& text, bool final);

    const common_chat_msg& message() const { return message_; }

private:
    common_chat_parser_params params_;
    bool plain_;
    std::string text_;
    common_chat_msg message_;
    std::vector<std::string> call_ids_;
};

} // namespace llamaserve
