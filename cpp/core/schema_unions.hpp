// What two schemas have in common, and whether they have anything.
#pragma once

#include "json.h"

#include <map>
#include <optional>
#include <string>

namespace llamaserve {

// One schema for what is valid by both `a` and `b`, where that can be told keyword by keyword; nothing otherwise.
// Neither has references or combinations at its top.
std::optional<common_json> merge_schemas(const common_json& a, const common_json& b);

// Whether no value made by one of `alternatives` is valid by another. They are schemas made by enforceable_schema,
// whose references point into `definitions`. False where that can't be told.
bool exclusive(const common_json& alternatives, const std::map<std::string, common_json>& definitions);

} // namespace llamaserve
