centroid_test(store_test LABEL unit
  SOURCES unit/statistics_test.cc unit/store_test.cc unit/past_steps_test.cc unit/snapshot_test.cc unit/fingerprint_test.cc unit/disk_watch_test.cc
          unit/journal_test.cc unit/journal_match_test.cc
  DEPS centroid::store centroid::checkpoint centroid::optim centroid::tensor)
centroid_test(rows_test LABEL unit
  SOURCES unit/rows_test.cc unit/rows_journal_test.cc unit/record_map_test.cc unit/push_windows_test.cc
  DEPS centroid::rows centroid::store)
centroid_test(large_models_test LABEL conformance SOURCES unit/large_models_test.cc DEPS centroid::store centroid::checkpoint)
if(TARGET large_models_test)
  set_tests_properties(conformance.large_models_test PROPERTIES ENVIRONMENT GTEST_FILTER=-*Slow*)
  add_test(NAME slow.large_models_test COMMAND large_models_test --gtest_filter=*Slow*)
  set_tests_properties(slow.large_models_test PROPERTIES LABELS slow TIMEOUT 1200 SKIP_REGULAR_EXPRESSION "SKIPPED")
endif()
