// The machine's FP8 rate by cuBLASLt, to which the pipelines' rates are compared: clocks differ
// between machines and minutes, so the ratio of one run says more than TFLOP/s.
#pragma once

#include "base/result.h"

namespace expertplex::bench {

// TFLOP/s of an 8192 x 8192 x 8192 product, FP8 e4m3 by e4m3 to BF16, fp32 accumulation, one scale
// per tensor: median of `repetitions` launches with 30 ms of idle time before each. cuBLASLt is
// loaded at run time; kUnsupported where the machine has none. Random data.
Result<double> measure_cublaslt_tflops(int repetitions);

}  // namespace expertplex::bench
