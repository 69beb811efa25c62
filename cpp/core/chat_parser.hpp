// Parses one chat answer as it grows, without reading it again for every piece.
#pragma once

#include "chat.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llamaserve {

struct ChatPrompt;

// Whether there is nothing to parse: whatever the model writes is the message's content.
bool is_plain_format(const common_chat_params& params, const common_peg_arena& parser);

// Follows a JSON object or array that is being written.
class JsonScanner {
public:
    enum class State { open, done, wrong };

    // Reads on. Stops after the closing bracket, or where the text can't be JSON; `n` is how much was read.
    State read(std::string_view text, size_t& n);

    // How much at the end of what was read belongs to an escape that isn't complete.
    size_t uncertain() const { return uncertain_; }

private:
    State read(char c);

    int depth_ = 0;
    int escape_ = 0; // characters that the escape still needs; -1: its letter
    size_t uncertain_ = 0;
    bool quoted_ = false;
};

// llama-common's parser starts over with the whole text each time. Here most pieces pass without it: while the text is
// within content, thoughts, or the arguments of a call, it is handed on until something comes that could end them.
// Where the parser is needed, its work stays within a fixed multiple of the text's length; pieces may have to wait.
class ChatParser {
public:
    explicit ChatParser(const ChatPrompt& prompt);

    // Adds text; returns what the message grew by, as far as that can be told without the parser.
    std::vector<common_chat_msg_diff> push(const std::string& text);

    // Whether parsing now would bring more.
    bool wants_parse() const { return mode_ == Mode::parse && !plain_ && within_budget(); }

    // Parses all of the text; returns what the message grew by. `final`: no more comes.
    std::vector<common_chat_msg_diff> parse(bool final);

    // Both of these.
    std::vector<common_chat_msg_diff> feed(const std::string& text, bool final);

    const common_chat_msg& message() const { return message_; }

    // Bytes that the parser has read so far.
    size_t parsed_bytes() const { return parsed_bytes_; }

private:
    enum class Mode {
        parse,   // only the parser can tell what comes
        content, // within text that ends at a delimiter
        thoughts,
        argument, // the same, within an argument that becomes a JSON string
        json,     // within JSON that is content
        call_json // within JSON that is an argument, or all of them
    };

    bool within_budget() const;
    void learn_format();
    common_chat_msg parse_all(const std::string& text);
    common_chat_msg parse_last();
    void find_mode(const common_peg_ast_node& node, const common_chat_msg& msg);
    bool begin_json(const std::string& text, bool trims);
    void push_until(std::string text, std::vector<common_chat_msg_diff>& out);
    void push_json(const std::string& text, std::vector<common_chat_msg_diff>& out);
    void grow(Mode mode, std::string text, std::vector<common_chat_msg_diff>& out);

    common_chat_parser_params params_;
    bool plain_;
    std::string text_;
    common_chat_msg message_;
    std::vector<std::string> call_ids_;
    size_t parsed_bytes_ = 0;

    Mode mode_ = Mode::parse;
    enum class Body { until, json, other }; // what is within a tag
    std::map<std::string, Body> bodies_;    // by tag
    std::vector<std::string> delimiters_;   // of everything that ends at one
    std::string held_;                      // read, but not handed on yet
    JsonScanner json_;
    bool trims_ = false; // white space at the end doesn't count
};

} // namespace llamaserve
