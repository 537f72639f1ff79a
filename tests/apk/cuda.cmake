# The scheduling core, compiled for the device. Warnings are errors; ptxas prints the registers that
# each role needs, and tools/check_device_build.sh fails on spills.
add_library(apk_device_compile OBJECT ${CMAKE_CURRENT_SOURCE_DIR}/apk/device_compile_test.cu)
target_include_directories(apk_device_compile PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(apk_device_compile PRIVATE --Werror all-warnings -Xcompiler=-Wall,-Wextra
                                                  -lineinfo)
