// Reading files that somebody else put there. A pipe, a device or a directory in a file's place is
// an error, never a wait; a file whose presence cannot be told is an error too, not an absent one.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace expertplex {

// A descriptor to read a regular file by; the caller closes it.
Result<int> open_regular_file(const std::string& path);

// The whole of a regular file of at most `max_bytes`.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

// Whether something is at `path`. Fails where that cannot be known: links in a circle, a directory
// that may not be searched.
Result<bool> file_exists(const std::string& path);

}  // namespace expertplex
