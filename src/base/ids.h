// Ids as one-field structs, so that a request id is never passed where a layer was meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace expertplex {

template <typename Tag, typename Rep = uint32_t>
struct Id {
  Rep value = 0;
  auto operator<=>(const Id&) const = default;
};

using RequestId = Id<struct RequestTag, uint64_t>;

}  // namespace expertplex

template <typename Tag, typename Rep>
struct std::hash<expertplex::Id<Tag, Rep>> {
  size_t operator()(const expertplex::Id<Tag, Rep>& id) const { return std::hash<Rep>{}(id.value); }
};
