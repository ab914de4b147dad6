rdmatx_test(reduction LAYER collectives TIMEOUT 180 SOURCES collectives/reduction_test.cpp)
rdmatx_test(schedule LAYER collectives TIMEOUT 300 SOURCES collectives/schedule_test.cpp)
rdmatx_test(group LAYER collectives TIMEOUT 300 SOURCES collectives/group_test.cpp)
rdmatx_test(call LAYER collectives SOURCES collectives/call_test.cpp)
