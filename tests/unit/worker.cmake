centroid_test(model_test COMPUTES LABEL unit
  SOURCES unit/adapters_test.cc unit/layered_test.cc unit/mlp_test.cc unit/transformer_kernels_test.cc unit/transformer_part_test.cc
          unit/transformer_test.cc support/allocation_count.cc
  DEPS centroid::model centroid::checkpoint ZLIB::ZLIB)
centroid_test(worker_test LABEL unit
  SOURCES unit/data_test.cc unit/data_formats_test.cc unit/data_text_test.cc unit/batch_loader_test.cc unit/device_test.cc
    unit/epoch_order_test.cc unit/local_planes_test.cc unit/replica_group_test.cc unit/step_guard_test.cc
  DEPS centroid::data centroid::device centroid::exchange centroid::loop centroid::node ZLIB::ZLIB)

centroid_test(c_api_test LABEL unit SOURCES unit/c_api_test.cc DEPS centroid_shared nlohmann_json::nlohmann_json)
