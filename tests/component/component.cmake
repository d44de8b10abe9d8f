add_library(centroid_test_cluster STATIC EXCLUDE_FROM_ALL support/cluster.cc)
target_link_libraries(centroid_test_cluster PUBLIC centroid::service centroid::loop centroid::model)
centroid_test(cluster_test LABEL component SOURCES component/cluster_test.cc component/contract_test.cc
  component/local_steps_test.cc component/ring_test.cc component/worker_contract_test.cc DEPS centroid_test_cluster TIMEOUT 300)
centroid_test(coordinator_test LABEL component SOURCES component/coordinator_test.cc component/repeated_runs_test.cc
  DEPS centroid_test_cluster TIMEOUT 300)
centroid_test(servers_test LABEL component SOURCES component/servers_test.cc
  DEPS centroid_test_cluster centroid::shard TIMEOUT 300)
centroid_test(rows_service_test LABEL component SOURCES component/rows_test.cc component/rows_journal_test.cc component/rows_tls_test.cc
  DEPS centroid_test_cluster centroid_test_certificates centroid::rows_client)
