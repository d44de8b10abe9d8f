# The kernels for processors (support/simt.h), and a GPU whose streams run late: compiled once for all tests of them.
if(CENTROID_SANITIZE MATCHES "thread" OR NOT CENTROID_TESTS)  # simt.cc has fibers
  return()
endif()
set(kernels ${PROJECT_SOURCE_DIR}/worker/model/cuda/kernels.cu ${PROJECT_SOURCE_DIR}/common/optim/cuda/kernels.cu
            ${PROJECT_SOURCE_DIR}/common/codec/cuda/kernels.cu)
set_source_files_properties(${kernels} PROPERTIES
  LANGUAGE CXX
  COMPILE_OPTIONS "-include;${PROJECT_SOURCE_DIR}/tests/support/simt.h")
add_library(centroid_simulated_gpu OBJECT EXCLUDE_FROM_ALL support/simt.cc support/late_device.cc support/late_cublas_lt.cc ${kernels}
  ${PROJECT_SOURCE_DIR}/common/codec/cuda/device_codec.cc ${PROJECT_SOURCE_DIR}/common/codec/cuda/device_residual.cc)
target_link_libraries(centroid_simulated_gpu PUBLIC centroid::node centroid::codec centroid::device)

# Tests load this instead of NCCL.
add_library(nccl_stand_in MODULE EXCLUDE_FROM_ALL support/nccl_stand_in.cc)
target_link_libraries(nccl_stand_in PRIVATE centroid_flags Threads::Threads)
function(centroid_nccl_stand_in test)
  target_compile_definitions(${test} PRIVATE NCCL_STAND_IN="$<TARGET_FILE:nccl_stand_in>")
  target_link_libraries(${test} PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(${test} nccl_stand_in)
endfunction()
