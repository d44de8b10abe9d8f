centroid_test(codec_test LABEL unit
  SOURCES unit/codec_machines_test.cc unit/codec_payload_test.cc unit/codec_spec_test.cc unit/codec_test.cc unit/codec_topk_test.cc
          unit/optimizer_test.cc unit/schedule_test.cc
  DEPS centroid::codec centroid::optim centroid::tensor)

centroid_test(codec_feedback_test LABEL unit
  SOURCES unit/codec_feedback_test.cc unit/codec_buffers_test.cc
  DEPS centroid::codec)

centroid_test(codec_topk_slow_test LABEL slow TIMEOUT 600
  SOURCES unit/codec_topk_slow_test.cc
  DEPS centroid::codec)

# The kernels themselves, on the CPU: no CUDA toolkit is needed.
if(TARGET centroid_simulated_gpu)
  centroid_test(cuda_kernels_test LABEL unit TIMEOUT 900 SOURCES unit/cuda_kernels_test.cc support/device_codec_cases.cc
    DEPS centroid_simulated_gpu)
endif()
