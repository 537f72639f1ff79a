// Probe: proves that the data plane moves, by generating one token.
//
// Thread rules: io thread only.
#pragma once

#include <memory>

#include "api/http_types.h"
#include "serving/engine.h"

namespace expertplex {

// Answers 200 with the time it took, or 503 with the reason: refused, failed, or no token within
// `limit`.
void probe_engine(Engine& engine, std::shared_ptr<IoLoop> loop, std::shared_ptr<Exchange> exchange,
                  Nanoseconds limit);

}  // namespace expertplex
