# The MoE server's worker pool under the thread sanitizer: sources compiled directly.
include(${CMAKE_SOURCE_DIR}/cmake/instruction_sets.cmake)
file(GLOB tsan_cpu_sources CONFIGURE_DEPENDS
     ${CMAKE_SOURCE_DIR}/src/cpu/moe/*.cc ${CMAKE_SOURCE_DIR}/src/cpu/kernels/*.cc
     ${CMAKE_SOURCE_DIR}/src/transport/*.cc ${CMAKE_SOURCE_DIR}/src/base/*.cc)
add_executable(cpu_tsan_tests ${CMAKE_CURRENT_LIST_DIR}/moe_tsan_test.cc ${tsan_cpu_sources})
target_include_directories(cpu_tsan_tests PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(cpu_tsan_tests PRIVATE FMT_HEADER_ONLY SPDLOG_FMT_EXTERNAL)
target_compile_options(cpu_tsan_tests PRIVATE -fsanitize=thread -g -O1 -ffp-contract=off)
target_link_options(cpu_tsan_tests PRIVATE -fsanitize=thread)
target_link_libraries(cpu_tsan_tests PRIVATE Threads::Threads rt)
add_test(NAME cpu_tsan COMMAND cpu_tsan_tests)
set_tests_properties(cpu_tsan PROPERTIES TIMEOUT 240)
