// A load generator for OpenAI-compatible servers: sends streaming /v1/completions requests with
// token-id prompts and notes when each piece of the answer arrives. One thread drives all streams,
// so that the client takes as little of the machine as it can.
//
// Times are taken where a client sees them: `sent` before the connect, `chunk_at` when a content
// event has been read from the socket.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace expertplex::bench {

struct StreamRequest {
  std::vector<int32_t> prompt;
  int max_tokens = 16;
  // Sent when this much time has passed since run() began.
  Nanoseconds start_after = 0;
};

struct StreamResult {
  std::string error;  // empty: finished with [DONE] and a usage
  Nanoseconds sent = 0, done = 0;
  std::vector<Nanoseconds> chunk_at;
  int completion_tokens = 0;
  std::string text;

  bool ok() const { return error.empty(); }
  Nanoseconds ttft() const { return chunk_at.empty() ? 0 : chunk_at.front() - sent; }
};

// Runs all requests to their ends (each at most `limit`) and returns their results in order.
Result<std::vector<StreamResult>> run_streams(const std::string& host, int port,
                                              const std::vector<StreamRequest>& requests,
                                              Nanoseconds limit);

// GET `path`; the body of a 200 answer.
Result<std::string> http_get(const std::string& host, int port, const std::string& path,
                             Nanoseconds limit);

}  // namespace expertplex::bench
