#include "bench/cuda/cublaslt_peak.h"

#include "bench/cuda/gpu_timer.h"
#include "bench/statistics.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#include <vector>

#include "base/random.h"
#include "cuda/host/device_buffer.h"

namespace expertplex::bench {
namespace {

constexpr int64_t kSize = 8192;
constexpr size_t kWorkspaceBytes = size_t{64} << 20;

Result<void> lt_result(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return make_error(ErrorCode::kUnavailable, "{}: cublasStatus {}", what, static_cast<int>(status));
}
#define EXPERTPLEX_LT_TRY(...) EXPERTPLEX_TRY(lt_result((__VA_ARGS__), #__VA_ARGS__))

// The functions of cuBLASLt that a product needs.
struct Library {
  void* handle = nullptr;
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;

  // Stays loaded.
  static Result<Library> load() {
    Library library;
    const std::string names[] = {
        fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR),
        fmt::format("/usr/local/cuda/lib64/libcublasLt.so.{}", CUBLAS_VER_MAJOR)};
    for (const std::string& name : names) {
      if (library.handle == nullptr) library.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (library.handle == nullptr) {
      return make_error(ErrorCode::kUnsupported, "{}: not found on this machine", names[0]);
    }
    const bool found =
        library.find("cublasLtCreate", library.create) &&
        library.find("cublasLtDestroy", library.destroy) &&
        library.find("cublasLtMatmulDescCreate", library.desc_create) &&
        library.find("cublasLtMatmulDescSetAttribute", library.desc_set) &&
        library.find("cublasLtMatrixLayoutCreate", library.layout_create) &&
        library.find("cublasLtMatmulPreferenceCreate", library.preference_create) &&
        library.find("cublasLtMatmulPreferenceSetAttribute", library.preference_set) &&
        library.find("cublasLtMatmulAlgoGetHeuristic", library.heuristic) &&
        library.find("cublasLtMatmul", library.matmul);
    if (!found) return make_error(ErrorCode::kUnsupported, "{}: {}", names[0], dlerror());
    return library;
  }

 private:
  template <typename Function>
  bool find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }
};

// Two random e4m3 operands without NaN.
Result<cuda::DeviceBuffer<uint8_t>> random_operand(uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> bytes(kSize * kSize);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next() & 0xBF);  // |x| below 2
  return cuda::DeviceBuffer<uint8_t>::copy_of(bytes);
}

}  // namespace

Result<double> measure_cublaslt_tflops(int repetitions) {
  EXPERTPLEX_ASSIGN(const Library lt, Library::load());
  EXPERTPLEX_ASSIGN(const auto a, random_operand(1));
  EXPERTPLEX_ASSIGN(const auto b, random_operand(2));
  EXPERTPLEX_ASSIGN(const auto d, cuda::DeviceBuffer<uint16_t>::allocate(kSize * kSize));
  EXPERTPLEX_ASSIGN(const auto workspace, cuda::DeviceBuffer<uint8_t>::allocate(kWorkspaceBytes));
  EXPERTPLEX_ASSIGN(const auto scale, cuda::DeviceBuffer<float>::copy_of(std::vector<float>{1.0f}));
  cublasLtHandle_t handle = nullptr;
  EXPERTPLEX_LT_TRY(lt.create(&handle));
  cublasLtMatmulDesc_t desc = nullptr;
  EXPERTPLEX_LT_TRY(lt.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  // FP8 products want the first operand transposed.
  const cublasOperation_t transposed = CUBLAS_OP_T;
  EXPERTPLEX_LT_TRY(
      lt.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
  const float* scale_pointer = scale.data();
  EXPERTPLEX_LT_TRY(lt.desc_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale_pointer,
                                sizeof(scale_pointer)));
  EXPERTPLEX_LT_TRY(lt.desc_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale_pointer,
                                sizeof(scale_pointer)));
  cublasLtMatrixLayout_t input = nullptr, output = nullptr;
  EXPERTPLEX_LT_TRY(lt.layout_create(&input, CUDA_R_8F_E4M3, kSize, kSize, kSize));
  EXPERTPLEX_LT_TRY(lt.layout_create(&output, CUDA_R_16BF, kSize, kSize, kSize));
  cublasLtMatmulPreference_t preference = nullptr;
  EXPERTPLEX_LT_TRY(lt.preference_create(&preference));
  EXPERTPLEX_LT_TRY(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                      &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
  cublasLtMatmulHeuristicResult_t choice = {};
  int choices = 0;
  EXPERTPLEX_LT_TRY(
      lt.heuristic(handle, desc, input, input, output, output, preference, 1, &choice, &choices));
  if (choices == 0) return make_error(ErrorCode::kUnsupported, "cuBLASLt: no FP8 algorithm");
  const float one = 1.0f, zero = 0.0f;
  EXPERTPLEX_ASSIGN(
      const auto us, time_launches(repetitions, Regime::kBurst, [&](int) {
        return lt_result(
            lt.matmul(handle, desc, &one, a.data(), input, b.data(), input, &zero, d.data(), output,
                      d.data(), output, &choice.algo, workspace.data(), kWorkspaceBytes, nullptr),
            "cublasLtMatmul");
      }));
  EXPERTPLEX_LT_TRY(lt.destroy(handle));
  return 2.0 * kSize * kSize * kSize / quantile(us, 0.5) * 1e-6;
}

}  // namespace expertplex::bench

#else

namespace expertplex::bench {

Result<double> measure_cublaslt_tflops(int) {
  return make_error(ErrorCode::kUnsupported, "cuBLASLt: its header was not there at the build");
}

}  // namespace expertplex::bench

#endif
