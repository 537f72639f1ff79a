// Sizes as people write them: 512M, 2G, 1.5GiB, 65536.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace expertplex::cli {

// Suffixes K, M, G, T (with or without B or iB, any case) are powers of 1024.
Result<int64_t> parse_byte_size(std::string_view text);

}  // namespace expertplex::cli
