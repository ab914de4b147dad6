# The driver of a GPU that is not there (tests/gpu/fake): a libcuda.so.1 for these tests and those of tests/gpu.
add_library(fake_cuda SHARED
  ${CMAKE_SOURCE_DIR}/tests/gpu/fake/driver.cpp
  ${CMAKE_SOURCE_DIR}/tests/gpu/fake/memory.cpp
  ${CMAKE_SOURCE_DIR}/tests/gpu/fake/streams.cpp)
target_link_libraries(fake_cuda PRIVATE Threads::Threads)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_gpu)
add_dependencies(cpp_tests fake_cuda)

function(rdmatx_gpu_test name)
  rdmatx_test(${name} ${ARGN})
  target_compile_definitions(test_${name} PRIVATE FAKE_CUDA_LIBRARY="$<TARGET_FILE:fake_cuda>")
  add_dependencies(test_${name} fake_cuda)
endfunction()

rdmatx_gpu_test(gpu_memory LAYER gpu SOURCES gpu/memory_test.cpp)
rdmatx_gpu_test(gpu_copies LAYER gpu SOURCES gpu/copies_test.cpp)
rdmatx_test(gpu_absent LAYER gpu SOURCES gpu/absent_test.cpp)
rdmatx_gpu_test(gpu_transfers LAYER messaging TIMEOUT 180 SOURCES gpu/transfers_test.cpp)
