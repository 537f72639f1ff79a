// expertplex: the command line. Picks the verb; src/cli/verbs.h lists them.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <system_error>

#include "cli/verbs.h"

namespace {

using namespace expertplex;

constexpr const char* kDescription =
    "ExpertPlex serves mixture-of-experts language models: prefill and decode attention on servers "
    "of\n"
    "their own, the experts once, in a pool that both share.";

constexpr const char* kFooter =
    "Examples:\n"
    "  expertplex serve                              the bundled model on http://127.0.0.1:8000\n"
    "  expertplex serve --model DIR --port 9000      a Hugging Face directory\n"
    "  expertplex generate \"The history of\"          text on stdout, without a server\n"
    "  expertplex info --model DIR                   what a model is and what it needs\n"
    "  expertplex bench cpu                          how fast it is here\n"
    "\n"
    "'expertplex VERB --help' lists a verb's options.";

// CLI11 explains itself in exceptions; this is where they end.
int run(CLI::App& app, int argc, char** argv, const int& exit_code) {
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::Success& success) {  // --help and --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::string verb;
    for (const CLI::App* chosen : app.get_subcommands()) verb = " " + chosen->get_name();
    return cli::report(make_error(ErrorCode::kInvalidArgument, "{} (see 'expertplex{} --help')",
                                  error.what(), verb));
  }
}

Error explain(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again) {
    return make_error(ErrorCode::kInternal, "internal error: {}", error.what());
  }
  return make_error(ErrorCode::kResourceExhausted,
                    "cannot start another thread: {}; allow more threads (ulimit -u, the "
                    "container's limit on processes) or more memory (ulimit -v)",
                    error.code().message());
}

constexpr const char* kOutOfMemory =
    "out of memory; give the process more (ulimit -v, the container's limit), or ask for less";

const std::terminate_handler default_terminate = std::get_terminate();

// Where memory ends in a thread other than main's.
[[noreturn]] void on_terminate() {
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    static std::atomic_flag told;
    if (told.test_and_set()) pause();  // another thread says it, and exits
    std::fprintf(stderr, "expertplex: error: %s\n", kOutOfMemory);
    std::_Exit(1);
  } catch (...) {
  }
  default_terminate();
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(on_terminate);
  CLI::App app(kDescription, "expertplex");
  app.footer(kFooter);
  app.set_version_flag("--version", "expertplex " EXPERTPLEX_VERSION);
  app.require_subcommand(0, 1);
  int exit_code = 0;
  cli::add_serve(app, exit_code);
  cli::add_generate(app, exit_code);
  cli::add_info(app, exit_code);
  cli::add_bench(app, exit_code);
  try {
    const int code = run(app, argc, argv, exit_code);
    if (argc == 1) std::cout << app.help();
    return code;
  } catch (const std::bad_alloc&) {
    return cli::report(make_error(ErrorCode::kResourceExhausted, "{}", kOutOfMemory));
  } catch (const std::system_error& e) {
    return cli::report(explain(e));
  } catch (const std::exception& e) {
    return cli::report(make_error(ErrorCode::kInternal, "internal error: {}", e.what()));
  }
}
