add_library(centroid_test_cluster STATIC EXCLUDE_FROM_ALL support/cluster.cc)
target_link_libraries(centroid_test_cluster PUBLIC centroid::service centroid::node)
centroid_test(cluster_test LABEL component SOURCES component/cluster_test.cc component/contract_test.cc component/restore_contract_test.cc
  component/auto_test.cc component/local_steps_test.cc component/ring_test.cc component/staleness_test.cc DEPS centroid_test_cluster TIMEOUT 900)
if(TEST component.cluster_test)
  set_tests_properties(component.cluster_test PROPERTIES COST 60)  # the longest begins first
endif()
centroid_test(worker_contract_test LABEL component SOURCES component/worker_contract_test.cc component/feedback_contract_test.cc DEPS centroid::exchange TIMEOUT 300)
centroid_test(coordinator_test LABEL component SOURCES component/coordinator_test.cc component/epochs_test.cc component/repeated_runs_test.cc component/replica_numbers_test.cc
  DEPS centroid_test_cluster TIMEOUT 900)
centroid_test(buffers_test LABEL component SOURCES component/buffers_test.cc component/buffers_codecs_test.cc DEPS centroid_test_cluster centroid::shard TIMEOUT 900)
centroid_test(server_steps_test LABEL component SOURCES component/server_steps_test.cc DEPS centroid_test_cluster centroid::trainer TIMEOUT 300)
centroid_test(kept_test LABEL component SOURCES component/kept_test.cc component/load_ahead_test.cc DEPS centroid_test_cluster TIMEOUT 900)
centroid_test(drift_test LABEL component SOURCES component/drift_test.cc DEPS centroid_test_cluster TIMEOUT 300)
centroid_test(busy_test LABEL component SOURCES component/busy_test.cc DEPS centroid_test_cluster TIMEOUT 300)
centroid_test(many_tensors_test LABEL component SOURCES component/many_tensors_test.cc
  DEPS centroid_test_cluster centroid::shard TIMEOUT 900)
centroid_test(servers_test LABEL component SOURCES component/servers_test.cc component/servers_deposed_test.cc component/servers_lease_test.cc component/servers_room_test.cc component/servers_waits_test.cc component/transient_test.cc
  DEPS centroid_test_cluster centroid::shard TIMEOUT 900)
centroid_test(rows_service_test LABEL component SOURCES component/rows_test.cc component/rows_checkpoint_test.cc component/rows_journal_test.cc component/rows_tls_test.cc component/room_test.cc
  DEPS centroid_test_cluster centroid_test_certificates centroid::rows_client centroid::pull)
if(NOT CENTROID_SANITIZE MATCHES "thread")  # fibers
  centroid_test(gpu_local_steps_test LABEL component TIMEOUT 900
    SOURCES component/gpu_local_steps_test.cc support/late_device.cc support/late_cublas_lt.cc support/simt.cc
            ${PROJECT_SOURCE_DIR}/worker/model/cuda/kernels.cu ${PROJECT_SOURCE_DIR}/common/optim/cuda/kernels.cu
    DEPS centroid_test_cluster)
  set(codec_kernels ${PROJECT_SOURCE_DIR}/common/codec/cuda)
  centroid_test(one_gpu_test LABEL component TIMEOUT 900
    SOURCES gpu/one_gpu_test.cc support/late_device.cc support/late_cublas_lt.cc support/simt.cc
            ${PROJECT_SOURCE_DIR}/worker/model/cuda/kernels.cu ${PROJECT_SOURCE_DIR}/common/optim/cuda/kernels.cu
            ${codec_kernels}/kernels.cu ${codec_kernels}/device_codec.cc ${codec_kernels}/device_residual.cc
    DEPS centroid_test_cluster)
  centroid_test(gpu_cluster_test LABEL component TIMEOUT 900
    SOURCES component/gpu_cluster_test.cc support/late_device.cc support/late_cublas_lt.cc support/simt.cc
            ${PROJECT_SOURCE_DIR}/worker/model/cuda/kernels.cu ${PROJECT_SOURCE_DIR}/common/optim/cuda/kernels.cu
            ${PROJECT_SOURCE_DIR}/common/codec/cuda/kernels.cu ${PROJECT_SOURCE_DIR}/common/codec/cuda/device_codec.cc
            ${PROJECT_SOURCE_DIR}/common/codec/cuda/device_residual.cc
    DEPS centroid_test_cluster)
  if(TARGET gpu_cluster_test)
    target_compile_definitions(gpu_cluster_test PRIVATE NCCL_STAND_IN="$<TARGET_FILE:nccl_stand_in>")
    target_link_libraries(gpu_cluster_test PRIVATE ${CMAKE_DL_LIBS})
    add_dependencies(gpu_cluster_test nccl_stand_in)
  endif()
endif()
centroid_test(sharded_replica_test LABEL component SOURCES component/sharded_replica_test.cc DEPS centroid::node)
centroid_test(job_plan_test LABEL component SOURCES component/job_plan_test.cc component/layer_costs_test.cc component/step_time_test.cc DEPS centroid::node)
centroid_test(pipeline_replica_test LABEL component SOURCES component/pipeline_replica_test.cc DEPS centroid::node TIMEOUT 300)
centroid_test(trainer_test LABEL component SOURCES component/trainer_test.cc DEPS centroid_test_cluster centroid::trainer TIMEOUT 300)
centroid_test(rows_moves_test LABEL component SOURCES component/rows_moves_test.cc
  DEPS centroid_test_cluster centroid::shard centroid::rows_client TIMEOUT 900)
centroid_test(rows_servers_test LABEL component SOURCES component/rows_servers_test.cc component/rows_servers_lost_test.cc
  DEPS centroid_test_cluster centroid::shard centroid::rows_client TIMEOUT 900)
