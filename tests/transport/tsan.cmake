# The transport's words and bells under the thread sanitizer: sources compiled directly.
file(GLOB tsan_transport_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/transport/*.cc
                                                   ${CMAKE_SOURCE_DIR}/src/base/*.cc)
add_executable(transport_tsan_tests ${CMAKE_CURRENT_LIST_DIR}/window_tsan_test.cc
                                    ${tsan_transport_sources})
target_include_directories(transport_tsan_tests PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(transport_tsan_tests PRIVATE FMT_HEADER_ONLY SPDLOG_FMT_EXTERNAL)
target_compile_options(transport_tsan_tests PRIVATE -fsanitize=thread -g -O1)
target_link_options(transport_tsan_tests PRIVATE -fsanitize=thread)
target_link_libraries(transport_tsan_tests PRIVATE Threads::Threads rt)
add_test(NAME transport_tsan COMMAND transport_tsan_tests)
set_tests_properties(transport_tsan PROPERTIES TIMEOUT 120)
