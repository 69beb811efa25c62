// JSON schemas in the form that llama-common's grammars enforce in full. docs/json-schema.md says what that is.
#pragma once

#include "json.h"

#include <string>

namespace llamaserve {

// What happens to a keyword that a grammar can't enforce.
enum class Unenforceable { refuse, drop };

// Rewrites `schema` so that every value that llama-common's grammar for the result allows is valid by `schema`. Throws
// InvalidRequest with the keyword's place for what can't be enforced, or leaves that out. `what` names the schema in
// messages.
common_json enforceable_schema(const std::string& what, const common_json& schema, Unenforceable policy);

// The grammar for a schema, checked. Throws InvalidRequest.
std::string schema_grammar(const std::string& what, const common_json& schema);

// Corrects a grammar that llama-common has made of schemas: in strings and keys, all escapes are right ones, and a
// character counts once.
std::string corrected_schema_grammar(std::string grammar);

} // namespace llamaserve
