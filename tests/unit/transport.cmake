add_library(centroid_test_certificates STATIC EXCLUDE_FROM_ALL support/certificates.cc)
target_link_libraries(centroid_test_certificates PUBLIC centroid::tls)
# Connections within one process, and connections that fail as a test plans.
add_library(centroid_test_transports STATIC EXCLUDE_FROM_ALL support/faulty_transport.cc support/in_process_pipe.cc support/in_process_transport.cc)
target_link_libraries(centroid_test_transports PRIVATE centroid_flags PUBLIC centroid::transport)
centroid_unity(centroid_test_transports)
centroid_test(transport_test LABEL unit
  SOURCES unit/frame_test.cc unit/handshake_turns_test.cc unit/port_holder_test.cc unit/server_list_test.cc unit/stranger_budget_test.cc
    unit/metrics_listener_test.cc unit/http_test.cc support/http_client.cc
  DEPS centroid::transport centroid::http centroid_test_certificates)
centroid_test(transport_conformance LABEL conformance AT_A_TIME 2
  SOURCES conformance/transport_test.cc conformance/transport_faults_test.cc conformance/tls_test.cc conformance/session_test.cc
    conformance/session_protocol_test.cc conformance/handshake_test.cc
  DEPS centroid_test_certificates centroid_test_transports)
