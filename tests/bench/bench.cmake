centroid_bench(centroid-bench-store SOURCES bench/store_bench.cc
  DEPS centroid::store centroid::optim centroid::tensor)
centroid_bench(centroid-bench-pingpong SOURCES bench/pingpong_bench.cc
  DEPS centroid::transport)
