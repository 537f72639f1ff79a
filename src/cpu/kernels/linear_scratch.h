// LinearScratch: the working memory of linear(), one per thread, made when a thread first needs it.
// (Not thread_local arrays: those would come out of every thread's stack.)
#pragma once

namespace expertplex::cpu {

constexpr int kLinearPanelFloats = 131072;
constexpr int kLinearRowFloats = 65536;

struct LinearScratch {
  float* panel = nullptr;  // [kLinearPanelFloats] weights in the form that is multiplied
  float* rows = nullptr;   // [kLinearRowFloats] rows of x, scaled or rearranged
  float* tiles = nullptr;  // [kLinearRowFloats] rows of x as AMX tiles
};

// Of the calling thread.
LinearScratch linear_scratch();

}  // namespace expertplex::cpu
