# What needs a GPU. Built wherever nvcc is; without a GPU the tests skip and say why.
if(NOT CENTROID_HAS_CUDA)
  return()
endif()

# centroid_gpu_test(name SOURCES ... DEPS ... [APART entry=filter ...])
#
# What skips for a reason of its own, as for lack of NCCL, stands APART: an entry of ctest, gpu.name.entry, with the tests of the
# filter. A skipped test makes its whole entry "Skipped"; beside others in one entry it would hide whether they passed.
function(centroid_gpu_test name)
  cmake_parse_arguments(GPU "" "" "APART" ${ARGN})
  centroid_test(${name} LABEL gpu TIMEOUT 600 ${GPU_UNPARSED_ARGUMENTS})
  if(NOT CENTROID_TESTS)
    return()
  endif()
  target_compile_definitions(${name} PRIVATE CENTROID_TEST_GPU)
  set(entries gpu.${name})
  set(others "")
  foreach(apart ${GPU_APART})
    string(REGEX MATCH "^([^=]+)=(.*)$" unused "${apart}")
    set(entry gpu.${name}.${CMAKE_MATCH_1})
    list(APPEND others ${CMAKE_MATCH_2})
    list(APPEND entries ${entry})
    add_test(NAME ${entry} COMMAND ${name} --gtest_filter=${CMAKE_MATCH_2} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${entry} PROPERTIES LABELS gpu TIMEOUT 600)
  endforeach()
  if(others)
    list(JOIN others ":" others)
    set_tests_properties(gpu.${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=-${others}")
  endif()
  set_tests_properties(${entries} PROPERTIES SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]" RESOURCE_LOCK gpu)
endfunction()

centroid_gpu_test(device_gpu_test
  SOURCES gpu/device_gpu_test.cc
  DEPS centroid::device)
centroid_gpu_test(codec_gpu_test
  SOURCES gpu/codec_gpu_test.cc support/device_codec_cases.cc
  DEPS centroid::codec_cuda
  APART large=GpuCodec.SelectsFromMoreThan*)
centroid_gpu_test(models_gpu_test
  SOURCES unit/transformer_cuda_test.cc unit/optimizer_cuda_test.cc unit/models_cuda_test.cc unit/device_residual_test.cc
  DEPS centroid::node centroid::codec_cuda)
centroid_gpu_test(group_gpu_test
  SOURCES gpu/group_gpu_test.cc
  DEPS centroid::node
  APART nccl=RealNccl.*)
centroid_gpu_test(two_gpus_gpu_test
  SOURCES gpu/two_gpus_test.cc
  DEPS centroid::node)
centroid_gpu_test(one_gpu_gpu_test
  SOURCES gpu/one_gpu_test.cc
  DEPS centroid_test_cluster centroid::codec_cuda)
if(CENTROID_TESTS)
  # For cublas_v2.h, nccl.h and the runtime.
  foreach(test models_gpu_test group_gpu_test device_gpu_test)
    target_include_directories(${test} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endforeach()
  target_link_libraries(device_gpu_test PRIVATE CUDA::cudart_static)
endif()
