rdmatx_test(ring LAYER soft SOURCES soft/ring_test.cpp)
rdmatx_test(write_ways LAYER soft SOURCES soft/write_ways_test.cpp)
rdmatx_test(memory_table LAYER soft SOURCES soft/memory_table_test.cpp)
rdmatx_test(soft_dma_buf LAYER soft SOURCES soft/dma_buf_test.cpp)
rdmatx_test(soft_threads LAYER soft SOURCES soft/threads_test.cpp TIMEOUT 180)
rdmatx_test(soft_processes LAYER soft SOURCES soft/processes_test.cpp TIMEOUT 180)
# Through the ring, and over TCP, a process's background thread puts a peer's bytes in place, and the peer's
# word over a pipe is what orders that before the check: the thread sanitizer cannot see through another process.
if(RDMATX_SANITIZE MATCHES "thread")
  set_tests_properties(soft_processes PROPERTIES ENVIRONMENT RDMATX_SOFT_WIRE=cma)
else()
  rdmatx_test(soft_no_attach LAYER soft SOURCES soft/processes_test.cpp TIMEOUT 180)
  set_tests_properties(soft_no_attach PROPERTIES ENVIRONMENT RDMATX_SOFT_WIRE=shm)
endif()
rdmatx_test(soft_tcp LAYER soft SOURCES soft/tcp_test.cpp TIMEOUT 180)
rdmatx_test(tcp_messages LAYER soft SOURCES soft/tcp_messages_test.cpp)
rdmatx_fuzz(tcp_messages LAYER soft SOURCES soft/tcp_messages_fuzz.cpp)
# The same between any two queue pairs over TCP.
set(RDMATX_OVER_TCP soft_threads soft_processes soft_dma_buf)
if(RDMATX_SANITIZE MATCHES "thread")
  list(REMOVE_ITEM RDMATX_OVER_TCP soft_processes)
endif()
foreach(program ${RDMATX_OVER_TCP})
  add_test(NAME ${program}_tcp
           COMMAND ${CMAKE_COMMAND} -E env RDMATX_SOFT_WIRE=tcp $<TARGET_FILE:test_${program}>)
  set_tests_properties(${program}_tcp PROPERTIES TIMEOUT 180)
endforeach()
# No test: what bench/p2p_tcp.py runs.
add_executable(bench_soft_tcp EXCLUDE_FROM_ALL soft/tcp_bench.cpp)
target_include_directories(bench_soft_tcp PRIVATE ${CMAKE_SOURCE_DIR}/csrc ${CMAKE_SOURCE_DIR}/tests/cpp)
target_include_directories(bench_soft_tcp SYSTEM PRIVATE ${RDMA_CORE_INCLUDE})
target_link_libraries(bench_soft_tcp PRIVATE
  -Wl,--start-group ${RDMATX_TEST_LAYERS_soft} -Wl,--end-group Threads::Threads ${CMAKE_DL_LIBS})
