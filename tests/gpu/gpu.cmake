# What needs a GPU. Built wherever nvcc is; without a GPU the tests skip and say why.
if(NOT CENTROID_HAS_CUDA)
  return()
endif()

# centroid_gpu_test(name SOURCES ... DEPS ...)
function(centroid_gpu_test name)
  centroid_test(${name} LABEL gpu TIMEOUT 600 ${ARGN})
  if(CENTROID_TESTS)
    set_tests_properties(gpu.${name} PROPERTIES SKIP_REGULAR_EXPRESSION "no GPU here" RESOURCE_LOCK gpu)
  endif()
endfunction()

centroid_gpu_test(device_gpu_test
  SOURCES gpu/device_gpu_test.cc
  DEPS centroid::device)
centroid_gpu_test(codec_gpu_test
  SOURCES gpu/codec_gpu_test.cc support/device_codec_cases.cc
  DEPS centroid::codec_cuda)
centroid_gpu_test(transformer_gpu_test
  SOURCES unit/transformer_cuda_test.cc
  DEPS centroid::model_cuda centroid::model)
centroid_gpu_test(optimizer_gpu_test
  SOURCES unit/optimizer_cuda_test.cc
  DEPS centroid::optim_cuda centroid::optim centroid::device)
centroid_gpu_test(models_gpu_test
  SOURCES unit/models_cuda_test.cc
  DEPS centroid::node)
centroid_gpu_test(group_gpu_test
  SOURCES gpu/group_gpu_test.cc
  DEPS centroid::node)
if(CENTROID_TESTS)
  target_compile_definitions(transformer_gpu_test PRIVATE CENTROID_TEST_GPU)
  target_compile_definitions(optimizer_gpu_test PRIVATE CENTROID_TEST_GPU)
  target_compile_definitions(models_gpu_test PRIVATE CENTROID_TEST_GPU)
  # For cublas_v2.h, nccl.h and the runtime.
  foreach(test models_gpu_test group_gpu_test device_gpu_test)
    target_include_directories(${test} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endforeach()
  target_link_libraries(device_gpu_test PRIVATE CUDA::cudart_static)
endif()
