#include "text.hpp"

#include <algorithm>

namespace llamaserve {

namespace {

// Bytes of the character that starts with `lead`, 0 if none does.
size_t utf8_length(unsigned char lead) {
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 2;
    }
    if ((lead & 0xF0) == 0xE0) {
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        return 4;
    }
    return 0;
}

bool is_continuation(unsigned char byte) {
    return (byte & 0xC0) == 0x80;
}

// The second byte excludes overlong forms, surrogates and what lies beyond U+10FFFF (Unicode standard, table 3-7).
bool second_byte_ok(unsigned char lead, unsigned char second) {
    switch (lead) {
    case 0xE0:
        return second >= 0xA0 && second <= 0xBF;
    case 0xED:
        return second >= 0x80 && second <= 0x9F;
    case 0xF0:
        return second >= 0x90 && second <= 0xBF;
    case 0xF4:
        return second >= 0x80 && second <= 0x8F;
    default:
        return is_continuation(second);
    }
}

struct Character {
    size_t length; // where it isn't valid: bytes that could have been the start of one, at least one
    bool valid;
    bool cut; // the text ends within it
};

Character character_at(std::string_view text, size_t i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t n = utf8_length(lead);
    if (n == 0) {
        return {1, false, false};
    }
    for (size_t k = 1; k < n; ++k) {
        if (i + k >= text.size()) {
            return {k, false, true};
        }
        const auto byte = static_cast<unsigned char>(text[i + k]);
        if (k == 1 ? !second_byte_ok(lead, byte) : !is_continuation(byte)) {
            return {k, false, false};
        }
    }
    return {n, true, false};
}

} // namespace

size_t complete_utf8(std::string_view text) {
    // A character has at most four bytes, so one that is cut off starts within the last three.
    for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
        const size_t i = text.size() - back;
        if (is_continuation(static_cast<unsigned char>(text[i]))) {
            continue;
        }
        return character_at(text, i).cut ? i : text.size();
    }
    return text.size();
}

std::string sanitize_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
        const Character c = character_at(text, i);
        if (c.valid) {
            out.append(text.substr(i, c.length));
        } else {
            out += "\xEF\xBF\xBD";
        }
        i += c.length;
    }
    return out;
}

std::string TextOut::push(std::string_view piece) {
    if (stopped()) {
        return {};
    }
    text_ += piece;
    const size_t whole = complete_utf8(text_);
    if (whole < text_.size()) {
        return {};
    }
    // A stop string can only end in what is new, and can only start in what was held back or is new.
    size_t stop_at = std::string::npos;
    for (const std::string& stop : stops_) {
        const size_t at = text_.find(stop, sent_);
        if (at < stop_at) {
            stop_at = at;
            stopping_word_ = stop;
        }
    }
    size_t until = text_.size();
    if (stop_at != std::string::npos) {
        text_.resize(stop_at);
        until = stop_at;
    } else {
        for (const std::string& stop : stops_) {
            for (size_t n = std::min(stop.size() - 1, text_.size() - sent_); n > 0; --n) {
                if (text_.compare(text_.size() - n, n, stop, 0, n) == 0) {
                    until = std::min(until, text_.size() - n);
                    break;
                }
            }
        }
    }
    // A stop string may start within a character's bytes only if it is no valid UTF-8 itself.
    std::string out = sanitize_utf8(std::string_view(text_).substr(sent_, until - sent_));
    sent_ = until;
    return out;
}

std::string TextOut::flush() {
    std::string out = sanitize_utf8(std::string_view(text_).substr(sent_));
    sent_ = text_.size();
    return out;
}

void TextOut::truncate(size_t size) {
    text_.resize(std::min(size, text_.size()));
    sent_ = std::min(sent_, text_.size());
}

} // namespace llamaserve
