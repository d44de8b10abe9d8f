centroid_test(codec_topk_test LABEL unit
  SOURCES unit/codec_topk_test.cc
  DEPS centroid::codec)

centroid_test(codec_payload_test LABEL unit
  SOURCES unit/codec_payload_test.cc unit/codec_spec_test.cc unit/codec_machines_test.cc
  DEPS centroid::codec)

centroid_test(codec_feedback_test LABEL unit
  SOURCES unit/codec_feedback_test.cc unit/codec_buffers_test.cc
  DEPS centroid::codec)

centroid_test(codec_topk_slow_test LABEL slow TIMEOUT 600
  SOURCES unit/codec_topk_slow_test.cc
  DEPS centroid::codec)

# The kernels themselves, on the CPU: no CUDA toolkit is needed. The thread sanitizer does not follow their fibers; a build for
# another processor has no centroid::device.
if(NOT CENTROID_SANITIZE MATCHES "thread" AND TARGET centroid::device)
  set(kernels ${PROJECT_SOURCE_DIR}/common/codec/cuda)
  set_source_files_properties(${kernels}/kernels.cu PROPERTIES
    LANGUAGE CXX
    COMPILE_OPTIONS "-include;${PROJECT_SOURCE_DIR}/tests/support/simt.h")
  centroid_test(cuda_kernels_test LABEL unit TIMEOUT 900
    SOURCES unit/cuda_kernels_test.cc support/device_codec_cases.cc support/simt.cc
            ${kernels}/kernels.cu ${kernels}/device_codec.cc
    DEPS centroid::codec centroid::device)
endif()
