// What llama.cpp takes for granted in a model's metadata, and would end the process over.
#pragma once

#include "ggml-cpp.h"

#include <string>
#include <vector>

namespace llamaserve {

// The metadata of a GGUF file, without its tensors' data. Null if it can't be read: loading the model says why.
gguf_context_ptr open_metadata(const std::string& path);

// Throws LoadError if something is wrong with the metadata of the file, with these overrides (KEY=TYPE:VALUE) on top.
void check_counts(const gguf_context* gguf, const std::string& path, const std::vector<std::string>& overrides);

} // namespace llamaserve
