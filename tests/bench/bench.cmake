centroid_bench(centroid-bench-store SOURCES bench/store_bench.cc
  DEPS centroid::store centroid::optim centroid::tensor)
centroid_bench(centroid-bench-robust SOURCES bench/robust_bench.cc DEPS centroid::aggregate)
centroid_bench(centroid-bench-devices SOURCES bench/devices_bench.cc DEPS centroid::node)
centroid_bench(centroid-bench-pingpong SOURCES bench/pingpong_bench.cc
  DEPS centroid_test_certificates)
if(TARGET centroid_test_cluster)
  centroid_bench(centroid-bench-overlap SOURCES bench/overlap_bench.cc DEPS centroid_test_cluster)
endif()
if(CENTROID_BENCH)
  # What the benchmarks that run centroid-server share.
  add_library(centroid_bench_run STATIC EXCLUDE_FROM_ALL bench/bench_run.cc bench/star_process.cc bench/raw_star.cc)
  target_link_libraries(centroid_bench_run PUBLIC centroid_flags centroid::transport centroid::tensor nlohmann_json::nlohmann_json)
  add_library(centroid_bench_cluster STATIC EXCLUDE_FROM_ALL bench/star_cluster.cc)
  target_link_libraries(centroid_bench_cluster PUBLIC centroid_bench_run centroid::exchange centroid::optim)
endif()
centroid_bench(centroid-bench-sharded
  SOURCES bench/sharded_bench.cc bench/sharded_costs.cc bench/sharded_equality.cc bench/sharded_pipeline.cc bench/forked_ranks.cc
  DEPS centroid::node)
if(TARGET centroid-bench-sharded AND CENTROID_TESTS)
  add_test(NAME component.sharded_equality COMMAND centroid-bench-sharded --only equality --ranks 2,4 --steps 20)
  set_tests_properties(component.sharded_equality PROPERTIES LABELS component TIMEOUT 300)
endif()
foreach(bench IN ITEMS star exchange durability)
  centroid_bench(centroid-bench-${bench} SOURCES bench/${bench}_bench.cc DEPS centroid_bench_cluster)
endforeach()
centroid_bench(centroid-bench-push SOURCES bench/push_bench.cc DEPS centroid_bench_cluster centroid::rows_client)
centroid_bench(centroid-bench-rows SOURCES bench/rows_bench.cc bench/rows_checkpoints.cc DEPS centroid_bench_run centroid::rows_client)
centroid_bench(centroid-bench-memory SOURCES bench/memory_bench.cc support/http_client.cc DEPS centroid_bench_run centroid::proto)
centroid_bench(centroid-bench-scale SOURCES bench/scale_bench.cc bench/light_trainers.cc support/http_client.cc
  DEPS centroid_bench_run centroid::proto)
foreach(bench IN ITEMS star exchange durability push rows memory scale)
  if(TARGET centroid-bench-${bench})
    add_dependencies(centroid-bench-${bench} centroid-server)  # it runs that
  endif()
endforeach()

# Programs around the programs, in Python, with what makes each short.
set(bin ${CMAKE_BINARY_DIR}/bin)
centroid_bench_script(cadence.py ARGS ${bin} --seconds 4)
centroid_bench_script(floods.py NAMED ARGS ${bin} --seconds 2 --turns 1)
centroid_bench_script(overhead.py ARGS ${bin} --pairs 10)
centroid_bench_script(policies.py ARGS ${bin} --repeats 1)
centroid_bench_script(recovery.py ARGS ${bin} --kills 2)
centroid_bench_script(rest_load.py ARGS ${bin} --seconds 3)
centroid_bench_script(servers.py ARGS ${bin})
centroid_bench_script(shard_memory.py ARGS ${bin} --workers 2 --rounds 3)
centroid_bench_script(soak.py NAMED ARGS ${bin} --minutes 5 --churn 5 --every 1)
# Two builds in turns; one on both sides by default, which must find no difference.
centroid_bench_script(paired.py NAMED ARGS ${bin} ${bin})
# These make network namespaces; the last one needs a GPU.
centroid_bench_script(collectives_namespaces.py NAMED ARGS --program ${bin}/centroid-bench-collectives --ranks 2 --sizes 16777216 --rounds 1)
centroid_bench_script(exchange_namespaces.py NAMED ARGS --program ${bin}/centroid-bench-exchange --parameters 5000000)
centroid_bench_script(star_namespaces.py NAMED ARGS --bin ${bin} --parameters 5000000 --rounds 4)
centroid_bench_script(torch_backend.py NAMED ARGS ${CMAKE_BINARY_DIR}/lib/libcentroid.so --check)
centroid_bench_script(sharded_fsdp.py NAMED ARGS --program ${bin}/centroid-bench-sharded)
centroid_bench_script(torch_hooks.py NAMED ARGS ${CMAKE_BINARY_DIR}/lib/libcentroid.so --check)
centroid_bench_script(torch_newcomer.py NAMED ARGS ${CMAKE_BINARY_DIR}/bin ${CMAKE_BINARY_DIR}/lib/libcentroid.so --check)
centroid_bench_script(torch_compare.py NAMED ARGS --program ${bin}/centroid-bench-devices)
