if(CENTROID_TESTS)
  centroid_test(nccl_test LABEL unit SOURCES unit/nccl_test.cc DEPS centroid::node)
  centroid_nccl_stand_in(nccl_test)
endif()
# The kernels themselves, on the CPU: no CUDA toolkit is needed.
if(TARGET centroid_simulated_gpu)
  centroid_test(simulated_gpu_test LABEL unit AT_A_TIME 2 TIMEOUT 900
    SOURCES unit/gpu_group_test.cc unit/gpu_memory_test.cc unit/gpu_trace_test.cc unit/cuda_kernels_test.cc unit/transformer_cuda_test.cc
      unit/optimizer_cuda_test.cc unit/models_cuda_test.cc unit/device_residual_test.cc gpu/two_gpus_test.cc support/device_codec_cases.cc
    DEPS centroid_simulated_gpu)
  centroid_nccl_stand_in(simulated_gpu_test)
endif()
