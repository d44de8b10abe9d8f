centroid_test(codec_test COMPUTES LABEL unit SLOW 600
  SOURCES unit/codec_machines_test.cc unit/codec_payload_test.cc unit/codec_spec_test.cc unit/codec_test.cc unit/codec_topk_test.cc
          unit/codec_feedback_test.cc unit/codec_buffers_test.cc unit/codec_topk_slow_test.cc unit/optimizer_test.cc unit/schedule_test.cc
  DEPS centroid::codec centroid::optim centroid::tensor)
