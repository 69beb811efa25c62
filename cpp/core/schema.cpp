#include "schema.hpp"

#include "error.hpp"
#include "json-schema-to-grammar.h"
#include "schema_rewriter.hpp"

#include <algorithm>

namespace llamaserve {

namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
        text.replace(at, from.size(), to);
    }
}

} // namespace

common_json enforceable_schema(const std::string& what, const common_json& schema, Unenforceable policy) {
    return SchemaRewriter(what, schema, policy).run();
}

std::string schema_grammar(const std::string& what, const common_json& schema) {
    try {
        return corrected_schema_grammar(
            json_schema_to_grammar(enforceable_schema(what, schema, Unenforceable::refuse)));
    } catch (const InvalidRequest&) {
        throw;
    } catch (const std::exception& e) {
        throw InvalidRequest(what + ": " + e.what());
    }
}

std::string corrected_schema_grammar(std::string grammar) {
    // Half of a surrogate pair is no text, and a pair is one character.
    const std::string code_unit = R"("u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} | )"
                                  R"([dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2}))";
    replace_all(grammar, R"("u" [0-9a-fA-F]{4}))", code_unit + ")");
    // The same in the rules that allow any JSON; control characters are not for strings, nor is "\ " an escape.
    replace_all(grammar, R"([^"\\] | "\\" ( ["\\/ bfnrt] | "u" [0-9a-fA-F]{4} ))",
                R"([^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | )" + code_unit + " )");
    // A key that isn't one of the known ones differs from them by a character that needs no escape.
    std::string out;
    for (size_t start = 0; start < grammar.size();) {
        const size_t end = std::min(grammar.find('\n', start), grammar.size() - 1) + 1;
        std::string rule = grammar.substr(start, end - start);
        if (rule.substr(0, rule.find(" ::=")).find("additional-k") != std::string::npos) {
            replace_all(rule, R"([^")", R"([^"\\\x7F\x00-\x1F)");
        }
        out += rule;
        start = end;
    }
    return out;
}

} // namespace llamaserve
