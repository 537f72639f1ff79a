# Real threads under the thread sanitizer: the core is header-only, so the test needs no library that
# would have to be built with it, except base's check.
add_executable(apk_scheduler_stress_tsan_test
               ${CMAKE_CURRENT_SOURCE_DIR}/apk/scheduler_stress_tsan_test.cc
               ${CMAKE_SOURCE_DIR}/src/base/check.cc)
target_include_directories(apk_scheduler_stress_tsan_test PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(apk_scheduler_stress_tsan_test PRIVATE FMT_HEADER_ONLY)
target_compile_options(apk_scheduler_stress_tsan_test PRIVATE -fsanitize=thread -g -O1 -Wall -Wextra)
target_link_options(apk_scheduler_stress_tsan_test PRIVATE -fsanitize=thread)
target_link_libraries(apk_scheduler_stress_tsan_test PRIVATE Threads::Threads)
add_test(NAME apk_tsan COMMAND apk_scheduler_stress_tsan_test)
set_tests_properties(apk_tsan PROPERTIES TIMEOUT 300 ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1")
# The sanitizer's exit code is 66; the canary must end with a report.
add_test(NAME apk_tsan_canary COMMAND apk_scheduler_stress_tsan_test lost_release)
set_tests_properties(apk_tsan_canary PROPERTIES TIMEOUT 300 ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1"
                                                WILL_FAIL TRUE)
