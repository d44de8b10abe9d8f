centroid_bench(centroid-bench-codecs
  SOURCES bench/codec_bench.cc bench/codec_bench_select.cc bench/codec_bench_bytes.cc
  DEPS centroid::codec)
