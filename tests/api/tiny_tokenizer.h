// A byte-level tokenizer without merges: one id per byte, then <|im_start|> = 256 and <|im_end|> =
// 257. With a chat template that writes each message as <|im_start|>role\ncontent<|im_end|>\n.
#pragma once

#include <memory>

#include "api/served_model.h"

namespace expertplex::testing {

// Written to a temporary directory and loaded by the real loader.
std::shared_ptr<const Tokenizer> tiny_tokenizer();
// Served as "tiny" and "tiny-alias"; with a chat template.
ServedModel tiny_model(int max_model_len = 128);

}  // namespace expertplex::testing
