centroid_test(session_test LABEL conformance
  SOURCES conformance/session_test.cc conformance/session_protocol_test.cc conformance/handshake_test.cc
  DEPS centroid_test_certificates centroid_test_transports)
