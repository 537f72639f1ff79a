#include "cpu/kernels/kernel_set.h"

#if defined(__AVX512BF16__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

// Every machine with AMX has AVX-512 and its BF16 instructions too.
#pragma GCC target("amx-tile,amx-bf16")
// GCC 12 warns about the deliberately undefined pass-through operands inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/kernels/linear_amx.h"

namespace expertplex::cpu {
namespace {

// What the processor says, and whether Linux lets this process use the tile registers.
bool machine_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

void amx_linear(const LinearInput& x, int rows, const LinearWeight& weight, int first_output,
                int output_count, float* y, int64_t y_stride, const LinearScratch& scratch) {
  if (AmxLinear::covers(weight)) {
    AmxLinear(x, weight, scratch).run(rows, first_output, output_count, y, y_stride);
  } else {
    avx512_kernels()->linear(x, rows, weight, first_output, output_count, y, y_stride, scratch);
  }
}

}  // namespace

const KernelSet* amx_kernels() {
  static const bool usable = avx512_kernels() && machine_has_amx();
  if (!usable) return nullptr;
  static const KernelSet kernels = [] {
    KernelSet set = *avx512_kernels();
    set.name = "amx";
    set.linear = amx_linear;
    return set;
  }();
  return &kernels;
}

}  // namespace expertplex::cpu

#else

const expertplex::cpu::KernelSet* expertplex::cpu::amx_kernels() { return nullptr; }

#endif
