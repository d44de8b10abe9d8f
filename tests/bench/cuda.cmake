if(CENTROID_HAS_CUDA)
  centroid_bench(centroid-bench-cuda SOURCES bench/cuda_bench.cc bench/cuda_passes.cu
    DEPS centroid::codec_cuda centroid::optim_cuda centroid::optim)
endif()
