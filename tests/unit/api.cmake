centroid_test(api_test LABEL component
  SOURCES component/api_test.cc component/api_limits_test.cc component/api_access_test.cc component/api_callers_test.cc component/api_events_test.cc component/api_files_test.cc component/api_framing_test.cc component/api_openapi_test.cc component/api_rates_test.cc support/http_client.cc
  DEPS centroid::api centroid_test_certificates nlohmann_json::nlohmann_json)
