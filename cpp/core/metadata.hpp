// What llama.cpp takes for granted in a model's metadata, and would end the process over.
#pragma once

#include "ggml-cpp.h"
#include "llama.h"

#include <string>
#include <vector>

namespace llamaserve {

// The metadata of a GGUF file, without its tensors' data. Null if it can't be read: loading the model says why.
gguf_context_ptr open_metadata(const std::string& path);

// Throws LoadError if something is wrong with the metadata of the file, with these overrides (KEY=TYPE:VALUE) on top.
void check_counts(const gguf_context* gguf, const std::string& path, const std::vector<std::string>& overrides);

// What a loaded model's metadata says under `key`, as text; empty if nothing.
std::string meta_or_empty(const llama_model* model, const char* key);

} // namespace llamaserve
