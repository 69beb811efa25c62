// A slot's tokens and cells in a file, in the form that llama-server reads and writes.
#pragma once

#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

namespace llamaserve {

struct SavedSlot {
    std::vector<llama_token> tokens;
    std::vector<uint8_t> cells; // as llama.cpp's state API gives them, without that API's own head
    size_t n_bytes = 0;         // of the file it was read from
};

// Replaces the file in one go, so that nobody ever reads half of one. Returns its size. Throws Refused ("internal").
size_t write_slot_file(const std::string& path, const SavedSlot& state);

// Takes llama-server's files, and those of older versions, whose tokens are a plain list. Throws Refused
// ("invalid_request") for anything else, and for more than `max_tokens`.
SavedSlot read_slot_file(const std::string& path, size_t max_tokens);

} // namespace llamaserve
