# A cluster of real servers, shard servers and clients in one process, with virtual time, a network and disks in memory.
include(simulation/storage.cmake)
if(CENTROID_TESTS AND NOT CENTROID_SANITIZE MATCHES "thread")  # fibers
  add_library(centroid_test_world STATIC EXCLUDE_FROM_ALL support/fiber.cc simulation/world.cc simulation/network.cc)
  target_link_libraries(centroid_test_world PUBLIC centroid::async centroid::storage centroid::transport)
  centroid_unity(centroid_test_world)
  centroid_test(world_test LABEL unit SOURCES unit/world_test.cc unit/connector_test.cc DEPS centroid_test_world)
  centroid_test(collective_time_test LABEL conformance SOURCES conformance/collective_time_test.cc DEPS centroid_test_world centroid::collective centroid_test_transports)
  centroid_test(simulation_test COMPUTES LABEL simulation TIMEOUT 600
    SOURCES simulation/simulation_test.cc simulation/job.cc simulation/ledger.cc simulation/plan.cc simulation/machine.cc simulation/programs.cc
            simulation/server_program.cc simulation/etcd.cc
    DEPS centroid_test_world centroid::memory_storage centroid::service centroid::election centroid::shard centroid::trainer centroid::rows_client)
  if(TEST simulation.simulation_test)
    set_tests_properties(simulation.simulation_test PROPERTIES COST 60)  # the longest begins first
  endif()
  centroid_test(strangers_test LABEL simulation SOURCES simulation/exchange_halt_test.cc simulation/strangers_test.cc
    DEPS centroid_test_world centroid::memory_storage centroid::service)
endif()
