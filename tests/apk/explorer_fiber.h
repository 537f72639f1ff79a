// The explorer's fibers; for explorer.cc and explorer_order.cc.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <memory>

#include "apk/explorer.h"

namespace expertplex::apk {

constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kMaxWords = 256;

// A stack of its own. Switching is setjmp/longjmp: ucontext would cost system calls.
struct Explorer::Fiber {
  struct Live {  // copied with a snapshot
    jmp_buf at;  // where it gave control back
    char* stack_low = nullptr;
    const void* about_to_write = nullptr;
    bool finished = false;
    uint64_t history = 0;
    Knowledge known;
  };
  int id = 0;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  ucontext_t context;
  Live live;
};

}  // namespace expertplex::apk
