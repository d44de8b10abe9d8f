centroid_test(collective_test LABEL conformance AT_A_TIME 4 SLOW 300
  SOURCES conformance/collective_reduce_test.cc conformance/collective_hierarchy_test.cc conformance/collective_move_test.cc
    conformance/collective_failure_test.cc conformance/collective_mesh_test.cc conformance/collective_connect_test.cc
    conformance/collective_exchange_test.cc conformance/collective_order_test.cc conformance/collective_large_test.cc conformance/coded_mean_test.cc
    conformance/peer_reducer_test.cc conformance/fork_under_tsan.cc
  DEPS centroid::exchange centroid::collective centroid_test_transports)
include(bench/collectives.cmake)
