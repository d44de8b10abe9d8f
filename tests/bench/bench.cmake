centroid_bench(centroid-bench-store SOURCES bench/store_bench.cc
  DEPS centroid::store centroid::optim centroid::tensor)
centroid_bench(centroid-bench-devices SOURCES bench/devices_bench.cc DEPS centroid::node)
centroid_bench(centroid-bench-pingpong SOURCES bench/pingpong_bench.cc
  DEPS centroid::transport)
centroid_bench(centroid-bench-star SOURCES bench/star_bench.cc bench/star_cluster.cc bench/star_process.cc bench/raw_star.cc
  DEPS centroid::exchange centroid::transport centroid::optim nlohmann_json::nlohmann_json)
centroid_bench(centroid-bench-exchange
  SOURCES bench/exchange_bench.cc bench/star_cluster.cc bench/star_process.cc
  DEPS centroid::exchange centroid::transport centroid::optim nlohmann_json::nlohmann_json)
centroid_bench(centroid-bench-rows SOURCES bench/rows_bench.cc bench/star_process.cc
  DEPS centroid::rows_client nlohmann_json::nlohmann_json)
centroid_bench(centroid-bench-durability
  SOURCES bench/durability_bench.cc bench/star_cluster.cc bench/star_process.cc
  DEPS centroid::exchange centroid::transport centroid::optim nlohmann_json::nlohmann_json)
centroid_bench(centroid-bench-memory SOURCES bench/memory_bench.cc bench/star_process.cc
  DEPS centroid::proto centroid::transport nlohmann_json::nlohmann_json)
if(TARGET centroid_test_cluster)
  centroid_bench(centroid-bench-overlap SOURCES bench/overlap_bench.cc DEPS centroid_test_cluster)
endif()
if(TARGET centroid-bench-star)
  add_dependencies(centroid-bench-star centroid-server)  # the benchmarks run it
  add_dependencies(centroid-bench-exchange centroid-server)
  add_dependencies(centroid-bench-rows centroid-server)
  add_dependencies(centroid-bench-durability centroid-server)
  add_dependencies(centroid-bench-memory centroid-server)
endif()
