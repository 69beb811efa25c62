#include "grammar_limits.hpp"

#include "error.hpp"
#include "json.h"
#include "llama-grammar.h" // internal to llama.cpp: nothing else tells what a grammar expands to
#include "log.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

namespace llamaserve {

namespace {

constexpr size_t max_grammar_bytes = 512 * 1024;
constexpr int max_nesting = 128;
constexpr size_t max_rules = 10'000;
constexpr size_t max_alternatives = 10'000; // of all rules together
constexpr size_t max_ways = 5'000;          // to go on at one place
constexpr size_t max_optional_run = 128;    // optional parts in a row: each multiplies the ways of those after it

constexpr size_t max_schema_bytes = 1024 * 1024;
constexpr size_t max_references = 1'000;
constexpr size_t max_enum = 5'000;
constexpr size_t max_optional_properties = 400;
constexpr size_t max_nodes = 50'000;

[[noreturn]] void refuse(const std::string& what) {
    throw InvalidRequest(what);
}

// {m,n} with m > n: llama.cpp would subtract them.
void check_repetition(const std::string& text, size_t& i) {
    const size_t end = text.find('}', i);
    const size_t comma = text.find(',', i);
    if (end == std::string::npos || comma == std::string::npos || comma > end) {
        return;
    }
    auto number = [&](size_t from, size_t to, uint64_t missing) {
        while (from < to && text[from] == ' ') {
            ++from;
        }
        uint64_t value = missing;
        std::from_chars(text.data() + from, text.data() + to, value);
        return value;
    };
    const uint64_t low = number(i + 1, comma, 0);
    const uint64_t high = number(comma + 1, end, UINT64_MAX);
    if (low > high) {
        refuse("the grammar repeats something at least " + std::to_string(low) + " and at most " +
               std::to_string(high) + " times");
    }
    i = end;
}

// Walks over the text, outside of literals, character classes and comments.
void scan(const std::string& text) {
    int depth = 0;
    size_t alternatives = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '"' || c == '[') {
            const char close = c == '"' ? '"' : ']';
            for (++i; i < text.size() && text[i] != close; ++i) {
                i += text[i] == '\\' ? 1 : 0;
            }
        } else if (c == '#') {
            i = std::min(text.find('\n', i), text.size());
        } else if (c == '(') {
            if (++depth > max_nesting) {
                refuse("the grammar is nested more than " + std::to_string(max_nesting) + " levels deep");
            }
        } else if (c == ')') {
            --depth;
        } else if (c == '|') {
            if (++alternatives > max_alternatives) {
                refuse("the grammar has more than " + std::to_string(max_alternatives) + " alternatives");
            }
        } else if (c == '{') {
            check_repetition(text, i);
        }
    }
}

// Of a rule: whether it matches nothing, and in how many ways it can begin.
struct Start {
    bool known = false;
    bool empty = false;
    size_t ways = 0;
};

bool is_terminal(llama_gretype type) {
    return type == LLAMA_GRETYPE_CHAR || type == LLAMA_GRETYPE_CHAR_NOT || type == LLAMA_GRETYPE_CHAR_ANY ||
           type == LLAMA_GRETYPE_TOKEN || type == LLAMA_GRETYPE_TOKEN_NOT;
}

bool ends_alternative(const llama_grammar_element& e) {
    return e.type == LLAMA_GRETYPE_ALT || e.type == LLAMA_GRETYPE_END;
}

// The starts of rule `i`, from those of the rules it refers to. Those not known yet count as nothing.
Start start_of(const llama_grammar_rules& rules, size_t i, const std::vector<Start>& starts) {
    const llama_grammar_rule& rule = rules[i];
    Start out;
    out.known = true;
    bool open = true; // everything so far in this alternative may be empty
    size_t run = 0;
    for (size_t k = 0; k < rule.size(); ++k) {
        const llama_grammar_element& e = rule[k];
        if (ends_alternative(e)) {
            out.empty = out.empty || open;
            open = true;
            run = 0;
        } else if (e.type == LLAMA_GRETYPE_RULE_REF) {
            const Start& ref = starts[e.value];
            run = ref.empty ? run + 1 : 0;
            if (run > max_optional_run) {
                refuse("the grammar has more than " + std::to_string(max_optional_run) + " optional parts in a row");
            }
            if (open) {
                // A repetition refers to itself at its end. After nothing that is where it was before.
                const bool again = e.value == i && k + 1 < rule.size() && ends_alternative(rule[k + 1]);
                out.ways += again ? 0 : ref.ways;
                open = ref.empty;
            }
        } else if (is_terminal(e.type)) {
            out.ways += open ? 1 : 0;
            open = false;
            run = 0;
        }
        if (out.ways > max_ways) {
            refuse("the grammar can go on in more than " + std::to_string(max_ways) + " ways at one place");
        }
    }
    return out;
}

void check_ways(const llama_grammar_rules& rules) {
    std::vector<Start> starts(rules.size());
    // Until nothing changes. What is recursive without an end grows in each round until it passes the limit.
    for (size_t round = 0; round <= max_nesting; ++round) {
        bool changed = false;
        for (size_t i = rules.size(); i-- > 0;) {
            const Start next = start_of(rules, i, starts);
            changed = changed || next.empty != starts[i].empty || next.ways != starts[i].ways;
            starts[i] = next;
        }
        if (!changed) {
            return;
        }
    }
    // A chain of rules longer than the rounds, in an unlucky order. llama.cpp follows such chains by recursion.
    refuse("the grammar's rules refer to each other in too long a chain, or in a circle");
}

size_t count_of(const std::string& text, const std::string& word) {
    size_t n = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) {
        ++n;
    }
    return n;
}

void check_json_nesting(const std::string& what, const std::string& text) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted) {
            i += c == '\\' ? 1 : 0;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > max_nesting) {
                refuse(what + ": nested more than " + std::to_string(max_nesting) + " levels deep");
            }
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
}

void check_bounds(const std::string& what, const common_json& node, const char* low, const char* high) {
    if (node.contains(low) && node.contains(high) && node.at(low).is_number() && node.at(high).is_number() &&
        node.at(low).get<double>() > node.at(high).get<double>()) {
        refuse(what + ": " + low + " is above " + high);
    }
}

void check_node(const std::string& what, const common_json& node) {
    for (const auto& [low, high] : {std::pair("minLength", "maxLength"),
                                    {"minItems", "maxItems"},
                                    {"minimum", "maximum"},
                                    {"minProperties", "maxProperties"}}) {
        check_bounds(what, node, low, high);
    }
    if (node.contains("enum") && node.at("enum").size() > max_enum) {
        refuse(what + ": more than " + std::to_string(max_enum) + " values in an enum");
    }
    if (node.contains("properties") && node.at("properties").is_object()) {
        const size_t required = node.contains("required") ? node.at("required").size() : 0;
        if (node.at("properties").size() > max_optional_properties + required) {
            refuse(what + ": more than " + std::to_string(max_optional_properties) + " optional properties");
        }
    }
}

} // namespace

void check_grammar(const std::string& grammar, const llama_vocab* vocab) {
    if (grammar.starts_with("%llguidance")) {
        return; // refused by llama-common, in builds without it
    }
    if (grammar.size() > max_grammar_bytes) {
        refuse("the grammar is longer than " + std::to_string(max_grammar_bytes / 1024) + " KiB");
    }
    if (grammar.find('\0') != std::string::npos) {
        refuse("the grammar has a zero byte in it");
    }
    scan(grammar);
    const LogCapture quiet(true);
    llama_grammar_parser parser(vocab);
    if (!parser.parse(grammar.c_str())) {
        refuse("failed to parse grammar" + (quiet.errors().empty() ? "" : ": " + quiet.errors()));
    }
    if (parser.rules.size() > max_rules) {
        refuse("the grammar has more than " + std::to_string(max_rules) + " rules, repetitions counted");
    }
    for (const auto& rule : parser.rules) {
        for (const auto& e : rule) {
            if (e.type == LLAMA_GRETYPE_RULE_REF && e.value >= parser.rules.size()) {
                refuse("the grammar refers to a rule that it doesn't define");
            }
        }
    }
    check_ways(parser.rules);
}

void check_schema(const std::string& what, const std::string& json) {
    if (json.size() > max_schema_bytes) {
        refuse(what + ": longer than " + std::to_string(max_schema_bytes / 1024) + " KiB");
    }
    check_json_nesting(what, json);
    if (count_of(json, "\"$ref\"") > max_references) {
        refuse(what + ": more than " + std::to_string(max_references) + " references");
    }
    const common_json root = common_json::parse(json);
    std::vector<const common_json*> todo{&root};
    size_t n = 0;
    while (!todo.empty()) {
        const common_json& node = *todo.back();
        todo.pop_back();
        if (++n > max_nodes) {
            refuse(what + ": more than " + std::to_string(max_nodes) + " parts");
        }
        if (node.is_object()) {
            check_node(what, node);
        }
        if (node.is_object() || node.is_array()) {
            for (common_json& child : node) {
                todo.push_back(&child);
            }
        }
    }
}

} // namespace llamaserve
