// Strings as Python sees them: sequences of code points.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace expertplex::chat {

// The pieces of `text`, one per code point (a byte that is not valid UTF-8 is a piece of its own).
std::vector<std::string_view> code_points(std::string_view text);
size_t code_point_count(std::string_view text);

bool is_python_space(uint32_t code_point);  // str.isspace

// str.strip and its halves; empty `characters`: white space.
std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);        // every word
std::string to_capitalized(std::string_view text);  // the first letter only

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t limit);

// str.split; no separator (empty): runs of white space. limit < 0: all.
std::vector<std::string> split(std::string_view text, std::string_view separator, int64_t limit);
std::vector<std::string> split_lines(std::string_view text);

std::string python_float(double value);            // repr(float)
std::string python_string(std::string_view text);  // repr(str)
std::string json_string(std::string_view text, bool ensure_ascii);

}  // namespace expertplex::chat
