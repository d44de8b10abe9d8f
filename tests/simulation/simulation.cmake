# A cluster of real servers, shard servers and clients in one process, with virtual time.
if(NOT CENTROID_SANITIZE MATCHES "thread")  # fibers
  add_library(centroid_test_world STATIC EXCLUDE_FROM_ALL support/fiber.cc simulation/world.cc simulation/network.cc)
  target_link_libraries(centroid_test_world PUBLIC centroid::async centroid::transport)
  centroid_test(world_test LABEL unit SOURCES unit/world_test.cc DEPS centroid_test_world)
  centroid_test(simulation_test LABEL simulation SOURCES simulation/simulation_test.cc simulation/job.cc simulation/ledger.cc
    DEPS centroid_test_world centroid::service centroid::shard centroid::trainer TIMEOUT 600)
endif()
