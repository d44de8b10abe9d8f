if(CENTROID_TESTS)
  centroid_library(memory_storage
    SOURCES simulation/disk_state.cc simulation/disk_crash.cc simulation/memory_storage.cc
    HEADERS simulation/disk_state.h simulation/memory_storage.h support/faulty_storage.h
    DEPS centroid::base centroid::storage)
endif()
centroid_test(storage_test LABEL conformance SOURCES conformance/storage_test.cc unit/memory_storage_test.cc
  DEPS centroid::memory_storage centroid::store centroid::checkpoint)
