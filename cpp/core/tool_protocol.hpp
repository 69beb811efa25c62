// Tools for chat templates that have no place for them: described in the system message, called in a form of our own,
// and parsed back by llama-common's parser.
#pragma once

#include "chat.h"

#include <string>

namespace llamaserve {

// Puts into plain messages what the template would drop: the tools' descriptions, and the calls and results of earlier
// turns.
void write_tool_protocol(common_chat_templates_inputs& inputs);

// Puts only the tools' descriptions there, for templates that write calls in a form of their own.
void write_tool_descriptions(common_chat_templates_inputs& inputs);

// Gives `params` (of the rendered chat, made without tools) the grammar and the parser of the form that
// `write_tool_protocol` asks for. `prefix` is what the answer's text starts with in the parser's eyes: the generation
// prompt without a continued message. Tool schemas must be convertible.
void use_tool_protocol(common_chat_params& params, const common_chat_templates_inputs& inputs,
                       const std::string& prefix);

// Gives `params` the grammar and the parser of an answer that is JSON by `schema`, for templates without such a form.
void use_json_answer(common_chat_params& params, const std::string& schema, const std::string& prefix);

} // namespace llamaserve
