if(CENTROID_TESTS)
  centroid_test(nccl_test LABEL unit SOURCES unit/nccl_test.cc DEPS centroid::node)
  centroid_nccl_stand_in(nccl_test)
endif()
if(TARGET centroid_simulated_gpu)
  centroid_test(gpu_group_test LABEL unit TIMEOUT 900
    SOURCES unit/gpu_group_test.cc unit/gpu_memory_test.cc unit/gpu_trace_test.cc gpu/two_gpus_test.cc
    DEPS centroid_simulated_gpu)
  centroid_nccl_stand_in(gpu_group_test)
endif()
