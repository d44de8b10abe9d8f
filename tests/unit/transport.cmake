centroid_test(transport_test LABEL unit
  SOURCES unit/frame_test.cc
  DEPS centroid::transport)
centroid_test(transport_conformance LABEL conformance
  SOURCES conformance/transport_test.cc conformance/transport_faults_test.cc
  DEPS centroid::transport)
