centroid_test(store_test LABEL unit
  SOURCES unit/store_test.cc unit/snapshot_test.cc unit/fingerprint_test.cc
  DEPS centroid::store centroid::checkpoint centroid::optim centroid::tensor)
