if(CENTROID_TESTS)
  # Loaded at run time, as libnccl.so.2 is.
  add_library(nccl_stand_in MODULE support/nccl_stand_in.cc)
  target_link_libraries(nccl_stand_in PRIVATE centroid_flags Threads::Threads)
  centroid_test(nccl_test LABEL unit SOURCES unit/nccl_test.cc DEPS centroid::node)
  target_compile_definitions(nccl_test PRIVATE NCCL_STAND_IN="$<TARGET_FILE:nccl_stand_in>")
  target_link_libraries(nccl_test PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(nccl_test nccl_stand_in)
  if(NOT CENTROID_SANITIZE MATCHES "thread")  # fibers
    set(model_kernels ${PROJECT_SOURCE_DIR}/worker/model/cuda/kernels.cu  # as in unit/worker.cmake
                      ${PROJECT_SOURCE_DIR}/common/optim/cuda/kernels.cu)
    centroid_test(gpu_group_test LABEL unit TIMEOUT 900
      SOURCES unit/gpu_group_test.cc unit/gpu_trace_test.cc support/late_device.cc support/late_cublas_lt.cc support/simt.cc ${model_kernels}
      DEPS centroid::node)
    target_compile_definitions(gpu_group_test PRIVATE NCCL_STAND_IN="$<TARGET_FILE:nccl_stand_in>")
    target_link_libraries(gpu_group_test PRIVATE ${CMAKE_DL_LIBS})
    add_dependencies(gpu_group_test nccl_stand_in)
    centroid_test(two_gpus_test LABEL unit TIMEOUT 900
      SOURCES gpu/two_gpus_test.cc support/late_device.cc support/late_cublas_lt.cc support/simt.cc ${model_kernels}
      DEPS centroid::node)
    target_compile_definitions(two_gpus_test PRIVATE NCCL_STAND_IN="$<TARGET_FILE:nccl_stand_in>")
    target_link_libraries(two_gpus_test PRIVATE ${CMAKE_DL_LIBS})
    add_dependencies(two_gpus_test nccl_stand_in)
    set(codec_kernels ${PROJECT_SOURCE_DIR}/common/codec/cuda)
    centroid_test(gpu_memory_test LABEL unit TIMEOUT 900
      SOURCES unit/gpu_memory_test.cc support/late_device.cc support/late_cublas_lt.cc support/simt.cc ${model_kernels}
              ${codec_kernels}/kernels.cu ${codec_kernels}/device_codec.cc ${codec_kernels}/device_residual.cc
      DEPS centroid::node centroid::codec)
    target_compile_definitions(gpu_memory_test PRIVATE NCCL_STAND_IN="$<TARGET_FILE:nccl_stand_in>")
    target_link_libraries(gpu_memory_test PRIVATE ${CMAKE_DL_LIBS})
    add_dependencies(gpu_memory_test nccl_stand_in)
  endif()
endif()
