rdmatx_test(ring LAYER soft SOURCES soft/ring_test.cpp)
rdmatx_test(memory_table LAYER soft SOURCES soft/memory_table_test.cpp)
rdmatx_test(soft_threads LAYER soft SOURCES soft/threads_test.cpp TIMEOUT 180)
rdmatx_test(soft_processes LAYER soft SOURCES soft/processes_test.cpp TIMEOUT 180)
# With shared memory alone a process's background thread puts a peer's bytes in place, and the peer's word over a
# pipe is what orders that before the check: the thread sanitizer cannot see through another process.
if(NOT RDMATX_SANITIZE MATCHES "thread")
  rdmatx_test(soft_no_attach LAYER soft SOURCES soft/processes_test.cpp TIMEOUT 180)
  set_tests_properties(soft_no_attach PROPERTIES ENVIRONMENT RDMATX_SOFT_WIRE=shm)
endif()
