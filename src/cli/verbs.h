// The verbs of `expertplex`, one file each. A verb adds its subcommand and flags to the
// application, and a callback that does the work and leaves its exit code.
//
// Exit codes: 0 done; 1 something failed; 2 the command line or the input is wrong. Every failure
// is one line on stderr, `expertplex: error: ...`.
#pragma once

#include <CLI/App.hpp>
#include <string_view>

#include "base/result.h"

namespace expertplex::cli {

constexpr int kExitFailed = 1;
constexpr int kExitBadInput = 2;

// Prints the error's line and says which exit code it deserves.
int report(const Error& error);
// 0, or report(error).
int exit_code_of(const Result<void>& result);

// Writes to stdout at once; an error if that cannot be done (a full disk).
Result<void> write_stdout(std::string_view text);

void add_serve(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);

}  // namespace expertplex::cli
