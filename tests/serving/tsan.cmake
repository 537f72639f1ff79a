# The engine's threads under the thread sanitizer: serving and transport are compiled into it.
file(GLOB tsan_serving_sources CONFIGURE_DEPENDS
     ${CMAKE_SOURCE_DIR}/src/serving/*.cc ${CMAKE_SOURCE_DIR}/src/transport/*.cc
     ${CMAKE_SOURCE_DIR}/src/base/*.cc)
add_executable(serving_tsan_tests ${CMAKE_CURRENT_LIST_DIR}/engine_threads_test.cc
                                  ${CMAKE_CURRENT_LIST_DIR}/fake_backend.cc
                                  ${tsan_serving_sources})
target_include_directories(serving_tsan_tests PRIVATE ${CMAKE_SOURCE_DIR}/src
                                                      ${CMAKE_SOURCE_DIR}/tests)
target_compile_definitions(serving_tsan_tests PRIVATE
                           EXPERTPLEX_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
target_compile_options(serving_tsan_tests PRIVATE -fsanitize=thread -g -O1)
target_link_options(serving_tsan_tests PRIVATE -fsanitize=thread)
target_link_libraries(serving_tsan_tests PRIVATE expertplex_model GTest::gtest GTest::gtest_main)
add_test(NAME serving_tsan COMMAND serving_tsan_tests)
set_tests_properties(serving_tsan PROPERTIES TIMEOUT 300)
