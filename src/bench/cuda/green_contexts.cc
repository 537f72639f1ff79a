#include "bench/cuda/green_contexts.h"

#include <cuda.h>

#include <utility>

#include "cuda/host/cuda_result.h"

namespace expertplex::bench {
namespace {

// The driver is loaded at run time, so its functions are looked up.
template <typename Function>
Result<Function> driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  EXPERTPLEX_CUDA_TRY(
      cudaGetDriverEntryPointByVersion(name, &function, 12050, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return make_error(ErrorCode::kUnsupported, "{}: the driver does not have it; CUDA 12.5 needed",
                      name);
  }
  return reinterpret_cast<Function>(function);
}

Result<void> driver_result(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return {};
  return make_error(ErrorCode::kUnavailable, "{}: CUresult {}", what, static_cast<int>(result));
}

}  // namespace

#define EXPERTPLEX_DRIVER(function) \
  EXPERTPLEX_ASSIGN(const auto function##_, driver_function<decltype(&function)>(#function))

Result<GreenContexts> GreenContexts::make(uint32_t sms) {
  EXPERTPLEX_CUDA_TRY(cudaFree(nullptr));  // the primary context
  EXPERTPLEX_DRIVER(cuDeviceGetDevResource);
  EXPERTPLEX_DRIVER(cuDevSmResourceSplitByCount);
  EXPERTPLEX_DRIVER(cuDevResourceGenerateDesc);
  EXPERTPLEX_DRIVER(cuGreenCtxCreate);
  EXPERTPLEX_DRIVER(cuGreenCtxStreamCreate);
  CUdevResource all, parts[2];
  EXPERTPLEX_TRY(driver_result(cuDeviceGetDevResource_(0, &all, CU_DEV_RESOURCE_TYPE_SM),
                               "cuDeviceGetDevResource"));
  unsigned groups = 1;
  EXPERTPLEX_TRY(
      driver_result(cuDevSmResourceSplitByCount_(&parts[0], &groups, &all, &parts[1], 0, sms),
                    "cuDevSmResourceSplitByCount"));
  GreenContexts result;
  for (int i = 0; i < 2; ++i) {
    CUdevResourceDesc description;
    CUgreenCtx context;
    CUstream stream;
    EXPERTPLEX_TRY(driver_result(cuDevResourceGenerateDesc_(&description, &parts[i], 1),
                                 "cuDevResourceGenerateDesc"));
    EXPERTPLEX_TRY(
        driver_result(cuGreenCtxCreate_(&context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM),
                      "cuGreenCtxCreate"));
    result.contexts_[i] = context;
    EXPERTPLEX_TRY(
        driver_result(cuGreenCtxStreamCreate_(&stream, context, CU_STREAM_NON_BLOCKING, 0),
                      "cuGreenCtxStreamCreate"));
    result.streams_[i] = stream;
    result.sms_[i] = parts[i].sm.smCount;
  }
  return result;
}

#undef EXPERTPLEX_DRIVER

GreenContexts::GreenContexts(GreenContexts&& other) noexcept { *this = std::move(other); }

GreenContexts& GreenContexts::operator=(GreenContexts&& other) noexcept {
  for (int i = 0; i < 2; ++i) {
    std::swap(contexts_[i], other.contexts_[i]);
    std::swap(streams_[i], other.streams_[i]);
    std::swap(sms_[i], other.sms_[i]);
  }
  return *this;
}

GreenContexts::~GreenContexts() {
  const auto destroy = driver_function<decltype(&cuGreenCtxDestroy)>("cuGreenCtxDestroy");
  for (int i = 0; i < 2; ++i) {
    if (streams_[i] != nullptr) cudaStreamDestroy(streams_[i]);
    if (contexts_[i] != nullptr && destroy) {
      destroy.value()(static_cast<CUgreenCtx>(contexts_[i]));
    }
  }
}

}  // namespace expertplex::bench
