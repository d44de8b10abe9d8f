centroid_test(base_test LABEL unit
  SOURCES unit/base_clock_watch_test.cc unit/base_config_test.cc unit/base_crc32c_test.cc unit/base_log_test.cc unit/base_metrics_test.cc unit/base_nearest_test.cc
          unit/base_service_manager_test.cc unit/base_values_test.cc unit/trace_report_test.cc unit/trace_test.cc unit/async_test.cc
  DEPS centroid::async centroid::base nlohmann_json::nlohmann_json)
