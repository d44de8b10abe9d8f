centroid_test(store_test LABEL unit
  SOURCES unit/store_test.cc unit/snapshot_test.cc unit/fingerprint_test.cc
  DEPS centroid::store centroid::checkpoint centroid::optim centroid::tensor)
centroid_test(journal_test LABEL unit SOURCES unit/journal_test.cc DEPS centroid::store centroid::checkpoint)
centroid_test(shards_test LABEL unit SOURCES unit/shards_test.cc DEPS centroid::checkpoint nlohmann_json::nlohmann_json)
centroid_test(rows_test LABEL unit
  SOURCES unit/rows_test.cc unit/record_map_test.cc unit/push_windows_test.cc
  DEPS centroid::rows)
