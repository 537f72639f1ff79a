# The scheduling core, compiled for the device. Warnings are errors; the test prints the registers
# that each role needs.
find_package(CUDAToolkit REQUIRED)
add_library(apk_device_compile OBJECT ${CMAKE_CURRENT_SOURCE_DIR}/apk/device_compile_test.cu)
target_include_directories(apk_device_compile PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(apk_device_compile PRIVATE --Werror all-warnings -Xcompiler=-Wall,-Wextra
                                                  -lineinfo)
set_target_properties(apk_device_compile PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON)
find_program(CUOBJDUMP cuobjdump HINTS ${CUDAToolkit_BIN_DIR} REQUIRED)
add_test(NAME apk_device_registers
         COMMAND ${CUOBJDUMP} --dump-resource-usage $<TARGET_OBJECTS:apk_device_compile>)
# A role that needs local memory has lost control of its registers.
set_tests_properties(apk_device_registers PROPERTIES PASS_REGULAR_EXPRESSION "pipeline_leader")
