#include "slot_file.hpp"

#include "error.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace llamaserve {

namespace {

namespace fs = std::filesystem;

// llama-server packs its tokens as: a word that is no token, a version, the tokens with their count in front, and the
// media among them with their count in front. In front of all that stand the state file's own magic, version and count
// of words.
constexpr uint32_t packed_version = 1;
constexpr size_t packed_head = 3; // words before the tokens
constexpr size_t file_head = 3;

[[noreturn]] void refuse(const std::string& what) {
    throw Refused("invalid_request", "Unable to restore slot: " + what);
}

template <typename T>
void put(std::ofstream& out, const T* data, size_t n) {
    out.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(n * sizeof(T)));
}

template <typename T>
void get(std::ifstream& in, T* data, size_t n) {
    in.read(reinterpret_cast<char*>(data), static_cast<std::streamsize>(n * sizeof(T)));
    if (!in) {
        refuse("the file ends early");
    }
}

fs::path part_of(const fs::path& file) {
    static std::atomic<uint64_t> next{0};
    return file.parent_path() / (".slot-" + std::to_string(llama_time_us()) + "-" + std::to_string(next++) + ".part");
}

std::vector<llama_token> unpack(std::vector<llama_token> words) {
    if (words.empty() || words[0] != LLAMA_TOKEN_NULL) {
        return words;
    }
    if (words.size() < packed_head + 1 || static_cast<uint32_t>(words[1]) != packed_version) {
        refuse("the file's tokens are of a version that isn't known");
    }
    const auto n = static_cast<uint32_t>(words[2]);
    if (n > words.size() - packed_head - 1) {
        refuse("the file is damaged: it claims more tokens than it has");
    }
    if (words[packed_head + n] != 0) {
        refuse("the file holds images or audio, which are not supported yet");
    }
    words.erase(words.begin(), words.begin() + packed_head);
    words.resize(n);
    return words;
}

} // namespace

size_t write_slot_file(const std::string& path, const SavedSlot& state) {
    const fs::path file = fs::u8path(path);
    const fs::path part = part_of(file);
    const auto n = static_cast<uint32_t>(state.tokens.size());
    const std::array<uint32_t, file_head + packed_head> head = {
        LLAMA_STATE_SEQ_MAGIC,
        LLAMA_STATE_SEQ_VERSION,
        static_cast<uint32_t>(packed_head + n + 1),
        static_cast<uint32_t>(LLAMA_TOKEN_NULL),
        packed_version,
        n,
    };
    const uint32_t n_media = 0;
    std::error_code error;
    {
        std::ofstream out(part, std::ios::binary);
        put(out, head.data(), head.size());
        put(out, state.tokens.data(), state.tokens.size());
        put(out, &n_media, 1);
        put(out, state.cells.data(), state.cells.size());
        out.close();
        if (!out) {
            fs::remove(part, error);
            throw Refused("internal", "Unable to save slot: " + path + " can't be written (permissions? disk full?)");
        }
    }
    fs::rename(part, file, error);
    if (error) {
        const std::string why = error.message();
        fs::remove(part, error);
        throw Refused("internal", "Unable to save slot: " + path + ": " + why);
    }
    return sizeof(head) + state.tokens.size() * sizeof(llama_token) + sizeof(n_media) + state.cells.size();
}

SavedSlot read_slot_file(const std::string& path, size_t max_tokens) {
    const fs::path file = fs::u8path(path);
    std::error_code error;
    if (!fs::is_regular_file(file, error)) {
        refuse("there is no such file");
    }
    const auto size = static_cast<size_t>(fs::file_size(file, error));
    std::ifstream in(file, std::ios::binary);
    if (error || !in) {
        refuse("the file can't be read");
    }
    std::array<uint32_t, file_head> head{};
    get(in, head.data(), head.size());
    if (head[0] != LLAMA_STATE_SEQ_MAGIC || head[1] != LLAMA_STATE_SEQ_VERSION) {
        refuse("the file is no saved slot, or of a version that isn't known");
    }
    const size_t n_words = head[2];
    const size_t before_cells = sizeof(head) + n_words * sizeof(llama_token);
    if (before_cells > size) {
        refuse("the file ends early");
    }
    std::vector<llama_token> words(n_words);
    get(in, words.data(), words.size());
    SavedSlot out;
    out.tokens = unpack(std::move(words));
    if (out.tokens.size() > max_tokens) {
        refuse("its " + std::to_string(out.tokens.size()) + " tokens do not fit in the slot, which has room for " +
               std::to_string(max_tokens));
    }
    out.n_bytes = size;
    out.cells.resize(size - before_cells);
    get(in, out.cells.data(), out.cells.size());
    return out;
}

} // namespace llamaserve
