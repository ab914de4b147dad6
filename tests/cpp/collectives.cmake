rdmatx_test(reduction LAYER collectives TIMEOUT 180 SOURCES collectives/reduction_test.cpp)
