#include "chat_parser.hpp"

#include "chat-peg-parser.h"
#include "chat.hpp"
#include "log.hpp"

#include <algorithm>
#include <cctype>
#include <memory>
#include <random>
#include <utility>

namespace llamaserve {

namespace {

// The parser may read this many bytes for each of the text, and some more.
constexpr size_t budget_factor = 64;
constexpr size_t budget_extra = 256 * 1024;

std::string random_id() {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    thread_local std::mt19937_64 random{std::random_device{}()};
    std::string out(32, ' ');
    for (char& c : out) {
        c = letters[std::uniform_int_distribution<size_t>(0, sizeof(letters) - 2)(random)];
    }
    return out;
}

bool is_space(char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0;
}

std::string as_json_string(std::string_view text) {
    const std::string quoted = common_json::make(std::string(text)).dump();
    return quoted.substr(1, quoted.size() - 2);
}

std::unique_ptr<common_chat_peg_mapper> mapper_for(common_chat_format format, common_chat_msg& msg) {
    switch (format) {
    case COMMON_CHAT_FORMAT_PEG_GEMMA4:
        return std::make_unique<common_chat_peg_gemma4_mapper>(msg);
    case COMMON_CHAT_FORMAT_PEG_MINIMAX_M3:
        return std::make_unique<common_chat_peg_minimax_m3_mapper>(msg);
    default:
        return std::make_unique<common_chat_peg_mapper>(msg);
    }
}

// The tagged node that the text ends in, if it is still open.
const common_peg_ast_node* open_node(const common_peg_parse_context& context, const common_peg_parse_result& result) {
    const common_peg_ast_node* last = nullptr;
    const std::vector<common_peg_ast_id>* nodes = &result.nodes;
    while (!nodes->empty()) {
        const common_peg_ast_node& node = context.ast.get(nodes->back());
        if (!node.tag.empty()) {
            last = &node;
        }
        nodes = &node.children;
    }
    return last != nullptr && last->is_partial && last->end == context.input.size() ? last : nullptr;
}

} // namespace

bool is_plain_format(const common_chat_params& params, const common_peg_arena& parser) {
    if (parser.empty()) {
        return params.format == COMMON_CHAT_FORMAT_CONTENT_ONLY;
    }
    size_t n_content = 0;
    for (size_t id = 0; id < parser.size(); ++id) {
        const auto& part = parser.get(id);
        if (const auto* tag = std::get_if<common_peg_tag_parser>(&part)) {
            const auto* until = std::get_if<common_peg_until_parser>(&parser.get(tag->child));
            if (tag->tag != common_chat_peg_builder::CONTENT || until == nullptr || !until->delimiters.empty()) {
                return false;
            }
            ++n_content;
        } else if (const auto* literal = std::get_if<common_peg_literal_parser>(&part)) {
            if (literal->literal != params.generation_prompt) {
                return false;
            }
        } else if (!std::holds_alternative<common_peg_sequence_parser>(part) &&
                   !std::holds_alternative<common_peg_until_parser>(part) &&
                   !std::holds_alternative<common_peg_end_parser>(part) &&
                   !std::holds_alternative<common_peg_epsilon_parser>(part)) {
            return false;
        }
    }
    return n_content == 1;
}

JsonScanner::State JsonScanner::read(std::string_view text, size_t& n) {
    for (n = 0; n < text.size(); ++n) {
        const State state = read(text[n]);
        if (state == State::wrong) {
            return state;
        }
        uncertain_ = escape_ == 0 ? 0 : uncertain_ + 1;
        if (state == State::done) {
            ++n;
            return state;
        }
    }
    return State::open;
}

JsonScanner::State JsonScanner::read(char c) {
    if (escape_ < 0) {
        escape_ = c == 'u' ? 4 : 0;
        return std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos ? State::wrong : State::open;
    }
    if (escape_ > 0) {
        --escape_;
        return std::isxdigit(static_cast<unsigned char>(c)) == 0 ? State::wrong : State::open;
    }
    if (quoted_) {
        escape_ = c == '\\' ? -1 : 0;
        quoted_ = c != '"';
        return State::open;
    }
    if (c == '"') {
        quoted_ = true;
    } else if (c == '{' || c == '[') {
        ++depth_;
    } else if (c == '}' || c == ']') {
        --depth_;
    } else if (!is_space(c) && std::string_view(",:+-.0123456789eEtrufalsn").find(c) == std::string_view::npos) {
        return State::wrong;
    }
    return depth_ > 0 ? State::open : c == '}' || c == ']' ? State::done : State::wrong;
}

ChatParser::ChatParser(const ChatPrompt& prompt) : params_(prompt.parser), plain_(prompt.plain()) {
    message_.role = "assistant";
    learn_format();
    if (!plain_ && params_.is_continuation && !params_.echo) {
        // What was already there isn't part of the growth.
        message_ = parse_last();
        mode_ = Mode::parse;
    }
}

void ChatParser::learn_format() {
    const common_peg_arena& arena = params_.parser;
    for (size_t id = 0; id < arena.size(); ++id) {
        const auto& part = arena.get(id);
        if (const auto* until = std::get_if<common_peg_until_parser>(&part)) {
            delimiters_.insert(delimiters_.end(), until->delimiters.begin(), until->delimiters.end());
        } else if (const auto* tag = std::get_if<common_peg_tag_parser>(&part)) {
            const common_peg_parser_variant* body = &arena.get(tag->child);
            while (const auto* rule = std::get_if<common_peg_rule_parser>(body)) {
                body = &arena.get(rule->child);
            }
            const Body kind = std::holds_alternative<common_peg_until_parser>(*body)    ? Body::until
                              : std::holds_alternative<common_peg_schema_parser>(*body) ? Body::json
                                                                                        : Body::other;
            const auto [known, added] = bodies_.emplace(tag->tag, kind);
            if (!added && known->second != kind) {
                known->second = Body::other;
            }
        }
    }
    std::sort(delimiters_.begin(), delimiters_.end());
    delimiters_.erase(std::unique(delimiters_.begin(), delimiters_.end()), delimiters_.end());
    std::erase(delimiters_, "");
}

bool ChatParser::within_budget() const {
    const size_t once = params_.generation_prompt.size() + text_.size();
    return parsed_bytes_ + once <= budget_factor * once + budget_extra;
}

std::vector<common_chat_msg_diff> ChatParser::feed(const std::string& text, bool final) {
    std::vector<common_chat_msg_diff> out = push(text);
    if (final || wants_parse()) {
        for (common_chat_msg_diff& diff : parse(final)) {
            out.push_back(std::move(diff));
        }
    }
    return out;
}

std::vector<common_chat_msg_diff> ChatParser::push(const std::string& text) {
    std::vector<common_chat_msg_diff> out;
    if (text.empty()) {
        return out;
    }
    if (plain_) {
        message_.content += text;
        out.emplace_back().content_delta = text;
        return out;
    }
    text_ += text;
    switch (mode_) {
    case Mode::parse:
        break;
    case Mode::content:
    case Mode::thoughts:
    case Mode::argument:
        push_until(text, out);
        break;
    case Mode::json:
    case Mode::call_json:
        push_json(text, out);
        break;
    }
    return out;
}

// Hands on what comes before a delimiter, and before what may become one.
void ChatParser::push_until(std::string text, std::vector<common_chat_msg_diff>& out) {
    text.insert(0, held_);
    held_.clear();
    size_t end = std::string::npos;
    for (const std::string& delimiter : delimiters_) {
        end = std::min(end, text.find(delimiter));
    }
    if (end != std::string::npos) {
        text.resize(end);
        grow(std::exchange(mode_, Mode::parse), std::move(text), out);
        return;
    }
    size_t n_held = 0;
    for (const std::string& delimiter : delimiters_) {
        for (size_t n = std::min(delimiter.size() - 1, text.size()); n > n_held; --n) {
            if (text.compare(text.size() - n, n, delimiter, 0, n) == 0) {
                n_held = n;
            }
        }
    }
    held_ = text.substr(text.size() - n_held);
    text.resize(text.size() - n_held);
    grow(mode_, std::move(text), out);
}

void ChatParser::push_json(const std::string& text, std::vector<common_chat_msg_diff>& out) {
    const Mode target = mode_;
    size_t n_read = 0;
    const JsonScanner::State state = json_.read(text, n_read);
    if (state != JsonScanner::State::open) {
        mode_ = Mode::parse;
    }
    if (state == JsonScanner::State::wrong) {
        held_.clear();
        return;
    }
    held_.append(text, 0, n_read);
    size_t n = held_.size() - json_.uncertain();
    while (trims_ && n > 0 && is_space(held_[n - 1])) {
        --n;
    }
    std::string grown = held_.substr(0, n);
    held_.erase(0, n);
    grow(target, std::move(grown), out);
    if (state == JsonScanner::State::done) {
        held_.clear();
    }
}

void ChatParser::grow(Mode mode, std::string text, std::vector<common_chat_msg_diff>& out) {
    if (text.empty()) {
        return;
    }
    common_chat_msg_diff& diff = out.emplace_back();
    if (mode == Mode::content || mode == Mode::json) {
        message_.content += text;
        diff.content_delta = std::move(text);
    } else if (mode == Mode::thoughts) {
        message_.reasoning_content += text;
        diff.reasoning_content_delta = std::move(text);
    } else {
        if (mode == Mode::argument) {
            text = as_json_string(text);
        }
        message_.tool_calls.back().arguments += text;
        diff.tool_call_index = message_.tool_calls.size() - 1;
        diff.tool_call_delta.arguments = std::move(text);
    }
}

std::vector<common_chat_msg_diff> ChatParser::parse(bool final) {
    std::vector<common_chat_msg_diff> out;
    if (plain_) {
        return out;
    }
    try {
        common_chat_msg next = final ? parse_last() : parse_all(text_);
        if (final && next.empty()) {
            next.content = text_; // a mark without anything in it: rather that than an answer without a word
        }
        if (!next.empty()) {
            next.set_tool_call_ids(call_ids_, random_id);
            out = common_chat_msg_diff::compute_diffs(message_, next);
            message_ = std::move(next);
        }
    } catch (const std::exception& e) {
        // What doesn't parse yet may do so later. In the end, what was handed on can't be taken back.
        mode_ = Mode::parse;
        if (final) {
            log_write(2, std::string("the end of a chat answer is not in the template's format: ") + e.what());
        }
    }
    return out;
}

// The whole text. Where it isn't in the format that the template asks for, it is taken as far as it is; a text that
// calls nothing is content.
common_chat_msg ChatParser::parse_last() {
    try {
        return parse_all(text_);
    } catch (const std::exception&) {
        size_t good = 0;
        common_chat_msg msg;
        msg.role = "assistant";
        for (size_t bad = text_.size(); bad - good > 1;) {
            const size_t n = good + (bad - good) / 2;
            try {
                msg = parse_all(text_.substr(0, n));
                good = n;
            } catch (const std::exception&) {
                bad = n;
            }
        }
        if (msg.tool_calls.empty() && !msg.reasoning_content.empty()) {
            msg.content += text_.substr(good);
        } else if (msg.tool_calls.empty()) {
            const size_t start = text_.starts_with(msg.content) ? 0 : text_.find_first_not_of(" \t\r\n");
            msg.content = text_.substr(std::min(start, text_.size()));
        }
        return msg;
    }
}

common_chat_msg ChatParser::parse_all(const std::string& text) {
    mode_ = Mode::parse;
    held_.clear();
    common_peg_parse_context context(params_.generation_prompt + text, COMMON_PEG_PARSE_FLAG_LENIENT);
    parsed_bytes_ += context.input.size();
    common_chat_msg msg;
    msg.role = "assistant";
    const common_peg_parse_result result = params_.parser.parse(context);
    if (result.fail()) {
        throw std::runtime_error(std::string("the answer is not in the ") + common_chat_format_name(params_.format) +
                                 " format that the chat template asks for");
    }
    mapper_for(params_.format, msg)->from_ast(context.ast, result);
    if (const common_peg_ast_node* node = open_node(context, result)) {
        find_mode(*node, msg);
    }
    return msg;
}

// Says how the message grows from here on, where that can be told from the parser's tree.
void ChatParser::find_mode(const common_peg_ast_node& node, const common_chat_msg& msg) {
    const std::string text(node.text);
    const auto body = bodies_.find(node.tag);
    if (body == bodies_.end() || body->second == Body::other || text.empty() || !node.invalid_utf8.empty()) {
        return;
    }
    const bool until = body->second == Body::until;
    if (node.tag == common_chat_peg_builder::CONTENT) {
        if (msg.content.ends_with(text) && (until || begin_json(text, false))) {
            mode_ = until ? Mode::content : Mode::json;
        }
        return;
    }
    if (node.tag == common_chat_peg_builder::REASONING) {
        // Nothing but white space counts as no thoughts at all.
        if (until && msg.reasoning_content.ends_with(text) && !std::all_of(text.begin(), text.end(), is_space)) {
            mode_ = Mode::thoughts;
        }
        return;
    }
    if (params_.format != COMMON_CHAT_FORMAT_PEG_NATIVE || msg.tool_calls.empty()) {
        return;
    }
    const std::string& arguments = msg.tool_calls.back().arguments;
    if (node.tag == common_chat_peg_builder::TOOL_ARG_STRING_VALUE) {
        if (until && arguments.ends_with(as_json_string(text))) {
            mode_ = Mode::argument;
        }
    } else if (node.tag == common_chat_peg_builder::TOOL_ARGS) {
        if (!until && text[0] == '{' && begin_json(text, true) && arguments + held_ == text) {
            mode_ = Mode::call_json;
        }
    } else if (node.tag == common_chat_peg_builder::TOOL_ARG_VALUE) {
        if (!until && arguments.ends_with(text) && begin_json(text, false)) {
            mode_ = Mode::call_json;
        }
    }
}

// Reads what is there of a JSON text. `trims`: the message has it without the white space at its end.
bool ChatParser::begin_json(const std::string& text, bool trims) {
    json_ = JsonScanner();
    trims_ = trims;
    size_t n_read = 0;
    if (json_.read(text, n_read) != JsonScanner::State::open || json_.uncertain() > 0) {
        return false;
    }
    size_t n = text.size();
    while (trims && n > 0 && is_space(text[n - 1])) {
        --n;
    }
    held_ = text.substr(n);
    return true;
}

} // namespace llamaserve
