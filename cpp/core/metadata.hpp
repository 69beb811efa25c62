// What llama.cpp takes for granted in a model's metadata, and would end the process over.
#pragma once

#include "gguf.h"

#include <string>
#include <vector>

namespace llamaserve {

// Throws LoadError if something is wrong with the metadata of the file, with these overrides (KEY=TYPE:VALUE) on top.
void check_counts(const gguf_context* gguf, const std::string& path, const std::vector<std::string>& overrides);

} // namespace llamaserve
