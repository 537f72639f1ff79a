// Times of `expertplex bench gemm`, copied from results/h200/gemm.txt (commit, machine and command
// are there), in us: the median back to back, and the lowest and highest burst. Launch included.
#pragma once

#include <cstdint>
#include <optional>

#include "apk/policy.h"

namespace expertplex::cuda {

struct MeasuredTime {
  double back_to_back, burst_low, burst_high;
};

struct MeasuredGemm {
  uint32_t columns, k, experts, rows;
  apk::Phase phase;
  apk::PipelineRole pipeline;
  MeasuredTime with_resident;
  std::optional<MeasuredTime> main_only;  // the configuration without the resident pipeline
};

inline constexpr apk::Phase kP = apk::Phase::kPrefill, kD = apk::Phase::kDecode;
inline constexpr apk::PipelineRole kMain = apk::PipelineRole::kMain;
inline constexpr apk::PipelineRole kResident = apk::PipelineRole::kResident;

// clang-format off
inline constexpr MeasuredGemm kMeasuredGemms[] = {
    // minimax_gate_up
    {3072, 3072, 8, 128, kP, kMain, {41.7, 69.1, 80}, {{42.5, 67.9, 121.9}}},
    {3072, 3072, 8, 1024, kP, kMain, {124.1, 161.7, 169.2}, {{121, 160, 164.5}}},
    {3072, 3072, 8, 8192, kP, kMain, {953.7, 978.8, 989.4}, {{930, 958.8, 967.2}}},
    {3072, 3072, 8, 16384, kP, kMain, {1898.2, 1895, 1934.9}, {{1867.4, 1882.8, 1922}}},
    {3072, 3072, 8, 16, kD, kMain, {28.4, 57.8, 110}, {{32.9, 67.2, 88.6}}},
    {3072, 3072, 8, 16, kD, kResident, {26, 55.4, 66.4}, std::nullopt},
    {3072, 3072, 8, 128, kD, kMain, {33.6, 43.6, 68.2}, {{34.1, 61.4, 129}}},
    {3072, 3072, 32, 16, kD, kMain, {82, 110.5, 122.2}, {{83.1, 111.5, 143.5}}},
    {3072, 3072, 32, 16, kD, kResident, {77.8, 104.5, 113.8}, std::nullopt},
    {3072, 3072, 32, 128, kD, kMain, {95.7, 124, 165.2}, {{96.6, 125.3, 134.9}}},
    // minimax_down
    {3072, 1536, 8, 128, kP, kMain, {26.1, 55.2, 63.4}, {{24.3, 50.1, 107.4}}},
    {3072, 1536, 8, 1024, kP, kMain, {70.6, 100.5, 109.5}, {{68.5, 98.2, 110.8}}},
    {3072, 1536, 8, 8192, kP, kMain, {520.7, 547.7, 572.4}, {{504.4, 531.2, 548}}},
    {3072, 1536, 8, 16384, kP, kMain, {1036.5, 1068, 1077.9}, {{1005.7, 1035.3, 1046.5}}},
    {3072, 1536, 8, 16, kD, kMain, {20, 55, 62}, {{18, 47.2, 57}}},
    {3072, 1536, 8, 16, kD, kResident, {17.6, 30.3, 52.7}, std::nullopt},
    {3072, 1536, 8, 128, kD, kMain, {21.1, 38.3, 60.4}, {{22, 33.3, 54.2}}},
    {3072, 1536, 32, 16, kD, kMain, {45.9, 63.6, 77.5}, {{45.4, 59.6, 80.4}}},
    {3072, 1536, 32, 16, kD, kResident, {42.3, 63.8, 79}, std::nullopt},
    {3072, 1536, 32, 128, kD, kMain, {54.5, 65.3, 90.8}, {{56, 86.4, 98.2}}},
    // glm_gate_up
    {4096, 6144, 8, 128, kP, kMain, {82.1, 112.1, 124.1}, {{79.3, 105.1, 110.6}}},
    {4096, 6144, 8, 1024, kP, kMain, {311.2, 338.4, 350.4}, {{304.3, 330.8, 345.4}}},
    {4096, 6144, 8, 8192, kP, kMain, {2454.9, 2464.3, 2474.9}, {{2426.8, 2429.5, 2443.2}}},
    {4096, 6144, 8, 16384, kP, kMain, {5398.7, 4902.7, 4940.6}, {{5224.3, 4821.4, 4859.6}}},
    {4096, 6144, 8, 16, kD, kMain, {61.5, 88.6, 115.9}, {{57.4, 82.9, 94}}},
    {4096, 6144, 8, 16, kD, kResident, {54.3, 79, 90.4}, std::nullopt},
    {4096, 6144, 8, 128, kD, kMain, {63.2, 83.4, 102.1}, {{62.3, 89.8, 101.5}}},
    {4096, 6144, 32, 16, kD, kMain, {198.8, 226.9, 236}, {{197.4, 222.8, 298.1}}},
    {4096, 6144, 32, 16, kD, kResident, {195.3, 222, 229.7}, std::nullopt},
    {4096, 6144, 32, 128, kD, kMain, {222.4, 247.8, 255.8}, {{219.9, 247.4, 255.8}}},
    // glm_down
    {6144, 2048, 8, 128, kP, kMain, {45.5, 73.9, 97.3}, {{43.9, 70.8, 81.4}}},
    {6144, 2048, 8, 1024, kP, kMain, {171, 209.4, 215.5}, {{166.4, 197.8, 214.9}}},
    {6144, 2048, 8, 8192, kP, kMain, {1324.2, 1344, 1375.5}, {{1287.9, 1306.9, 1314.8}}},
    {6144, 2048, 8, 16384, kP, kMain, {2657.3, 2657, 2668.9}, {{2583.9, 2590.3, 2621.2}}},
    {6144, 2048, 8, 16, kD, kMain, {40.4, 68.2, 84.4}, {{40.5, 72, 99.8}}},
    {6144, 2048, 8, 16, kD, kResident, {30.4, 63.4, 124.8}, std::nullopt},
    {6144, 2048, 8, 128, kD, kMain, {43, 73.7, 94.7}, {{42.9, 75.2, 81.4}}},
    {6144, 2048, 32, 16, kD, kMain, {106.8, 139.6, 187.5}, {{106.4, 140.7, 151}}},
    {6144, 2048, 32, 16, kD, kResident, {102.1, 130.5, 184.4}, std::nullopt},
    {6144, 2048, 32, 128, kD, kMain, {126.5, 154.8, 163.9}, {{125, 151.1, 163.8}}},
};
// clang-format on

}  // namespace expertplex::cuda
