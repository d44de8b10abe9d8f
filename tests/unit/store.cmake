centroid_test(store_test LABEL unit SLOW 1200
  SOURCES unit/statistics_test.cc unit/store_test.cc unit/past_steps_test.cc unit/snapshot_test.cc unit/fingerprint_test.cc unit/disk_watch_test.cc
          unit/journal_test.cc unit/journal_match_test.cc unit/large_models_test.cc
  DEPS centroid::store centroid::checkpoint centroid::optim centroid::tensor)
centroid_test(rows_test LABEL unit
  SOURCES unit/rows_test.cc unit/rows_journal_test.cc unit/record_map_test.cc unit/push_windows_test.cc
  DEPS centroid::rows centroid::store)
