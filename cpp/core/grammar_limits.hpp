// Refuses grammars and schemas that llama.cpp would take too long over, or recurse too deeply into.
#pragma once

#include "llama.h"

#include <string>

namespace llamaserve {

// llama.cpp parses a grammar by recursion, and follows all ways of matching at once. A few kilobytes of grammar are
// enough to overflow the stack, to take all memory, or to stop every request that is being served. Checks a GBNF
// grammar for its size, nesting, repetitions, and the number of ways it can go on at one place. Throws InvalidRequest
// naming the limit.
void check_grammar(const std::string& grammar, const llama_vocab* vocab);

// The same for JSON that holds JSON schemas (a schema, or a list of tools), before it is made into a grammar. `what`
// names it in messages.
void check_schema(const std::string& what, const std::string& json);

} // namespace llamaserve
