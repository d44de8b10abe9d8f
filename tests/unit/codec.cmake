centroid_test(codec_topk_test LABEL unit
  SOURCES unit/codec_topk_test.cc
  DEPS centroid::codec)

centroid_test(codec_payload_test LABEL unit
  SOURCES unit/codec_payload_test.cc unit/codec_spec_test.cc
  DEPS centroid::codec)

centroid_test(codec_feedback_test LABEL unit
  SOURCES unit/codec_feedback_test.cc
  DEPS centroid::codec)

centroid_test(codec_topk_slow_test LABEL slow TIMEOUT 600
  SOURCES unit/codec_topk_slow_test.cc
  DEPS centroid::codec)
