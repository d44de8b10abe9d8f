if(CENTROID_HAS_CUDA)
  centroid_bench(centroid-bench-cuda SOURCES bench/cuda_bench.cc bench/cuda_model_bench.cc bench/cuda_report.cc bench/cuda_passes.cu
    DEPS centroid::codec_cuda centroid::optim_cuda centroid::optim centroid::model nlohmann_json::nlohmann_json)
endif()
