centroid_test(device_test LABEL unit SOURCES unit/device_test.cc DEPS centroid::device)
centroid_test(data_test LABEL unit SOURCES unit/data_test.cc unit/data_formats_test.cc unit/data_text_test.cc unit/batch_loader_test.cc
  DEPS centroid::data ZLIB::ZLIB)
centroid_test(model_test LABEL unit
  SOURCES unit/adapters_test.cc unit/layered_test.cc unit/mlp_test.cc unit/transformer_kernels_test.cc unit/transformer_part_test.cc
          unit/transformer_test.cc support/allocation_count.cc
  DEPS centroid::model centroid::checkpoint ZLIB::ZLIB)
centroid_test(replica_group_test LABEL unit SOURCES unit/replica_group_test.cc DEPS centroid::node)

centroid_test(loop_test LABEL unit
  SOURCES unit/epoch_order_test.cc unit/local_planes_test.cc unit/step_guard_test.cc DEPS centroid::exchange centroid::loop centroid::data)
# The transformer's CUDA kernels, on the CPU (tests/unit/codec.cmake does so with the codecs').
if(TARGET centroid_simulated_gpu)
  centroid_test(models_cuda_test LABEL unit TIMEOUT 900
    SOURCES unit/transformer_cuda_test.cc unit/optimizer_cuda_test.cc unit/models_cuda_test.cc unit/device_residual_test.cc
    DEPS centroid_simulated_gpu)
endif()

centroid_test(c_api_test LABEL unit SOURCES unit/c_api_test.cc DEPS centroid_shared nlohmann_json::nlohmann_json)
