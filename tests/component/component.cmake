add_library(centroid_test_cluster STATIC EXCLUDE_FROM_ALL support/cluster.cc)
target_link_libraries(centroid_test_cluster PUBLIC centroid::service centroid::node centroid_test_transports)
centroid_test(cluster_test LABEL component AT_A_TIME 4 SOURCES component/cluster_test.cc component/contract_test.cc component/restore_contract_test.cc
  component/auto_test.cc component/local_steps_test.cc component/ring_test.cc component/staleness_test.cc DEPS centroid_test_cluster TIMEOUT 900)
if(TEST component.cluster_test)
  set_tests_properties(component.cluster_test PROPERTIES COST 60)  # the longest begins first
endif()
centroid_test(worker_contract_test LABEL component SOURCES component/worker_contract_test.cc component/feedback_contract_test.cc DEPS centroid::exchange TIMEOUT 300)
centroid_test(job_test LABEL component AT_A_TIME 3
  SOURCES component/buffers_codecs_test.cc component/buffers_test.cc component/busy_test.cc component/coordinator_test.cc component/drift_test.cc
          component/epochs_test.cc component/kept_test.cc component/load_ahead_test.cc component/many_tensors_test.cc component/repeated_runs_test.cc
          component/replica_numbers_test.cc
  DEPS centroid_test_cluster centroid::shard TIMEOUT 900)
centroid_test(trainer_test LABEL component AT_A_TIME 3 SOURCES component/trainer_test.cc component/server_steps_test.cc
  DEPS centroid_test_cluster centroid::trainer TIMEOUT 600)
centroid_test(servers_test LABEL component AT_A_TIME 4 SOURCES component/servers_test.cc component/servers_deposed_test.cc component/servers_lease_test.cc component/servers_room_test.cc component/servers_waits_test.cc component/transient_test.cc
  DEPS centroid_test_cluster centroid::shard TIMEOUT 900)
centroid_test(rows_service_test LABEL component AT_A_TIME 4 TIMEOUT 900
  SOURCES component/rows_test.cc component/rows_checkpoint_test.cc component/rows_journal_test.cc component/rows_tls_test.cc component/room_test.cc
    component/rows_moves_test.cc component/rows_servers_test.cc component/rows_servers_lost_test.cc
  DEPS centroid_test_cluster centroid_test_certificates centroid::rows_client centroid::pull centroid::shard)
if(TARGET centroid_simulated_gpu)
  centroid_test(gpu_cluster_test LABEL component TIMEOUT 900
    SOURCES component/gpu_cluster_test.cc component/gpu_local_steps_test.cc gpu/one_gpu_test.cc
    DEPS centroid_test_cluster centroid_simulated_gpu)
  centroid_nccl_stand_in(gpu_cluster_test)
endif()
centroid_test(sharded_replica_test COMPUTES LABEL component AT_A_TIME 2 TIMEOUT 600
  SOURCES component/sharded_replica_test.cc component/pipeline_replica_test.cc component/job_plan_test.cc component/layer_costs_test.cc
    component/step_time_test.cc
  DEPS centroid::node centroid_test_transports)
