centroid_test(collective_reduce_test LABEL conformance
  SOURCES conformance/collective_reduce_test.cc
  DEPS centroid::collective)
