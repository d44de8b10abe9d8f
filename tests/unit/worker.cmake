centroid_test(device_test LABEL unit SOURCES unit/device_test.cc DEPS centroid::device)
centroid_test(data_test LABEL unit SOURCES unit/data_test.cc unit/data_formats_test.cc unit/data_text_test.cc unit/batch_loader_test.cc
  DEPS centroid::data ZLIB::ZLIB)
centroid_test(server_list_test LABEL unit SOURCES unit/server_list_test.cc DEPS centroid::transport)
centroid_test(mlp_test LABEL unit SOURCES unit/mlp_test.cc DEPS centroid::model)
centroid_test(layered_test LABEL unit SOURCES unit/layered_test.cc DEPS centroid::model)
centroid_test(transformer_part_test LABEL unit SOURCES unit/transformer_part_test.cc DEPS centroid::model)
centroid_test(transformer_test LABEL unit SOURCES unit/transformer_test.cc unit/transformer_kernels_test.cc support/allocation_count.cc
  DEPS centroid::model)
centroid_test(adapters_test LABEL unit SOURCES unit/adapters_test.cc
  DEPS centroid::model centroid::checkpoint ZLIB::ZLIB)
centroid_test(replica_group_test LABEL unit SOURCES unit/replica_group_test.cc DEPS centroid::node)

centroid_test(epoch_order_test LABEL unit SOURCES unit/epoch_order_test.cc DEPS centroid::loop centroid::data)
centroid_test(local_planes_test LABEL unit SOURCES unit/local_planes_test.cc DEPS centroid::loop)
# The transformer's CUDA kernels, on the CPU (tests/unit/codec.cmake does so with the codecs').
if(NOT CENTROID_SANITIZE MATCHES "thread")
  set(model_kernels ${PROJECT_SOURCE_DIR}/worker/model/cuda/kernels.cu ${PROJECT_SOURCE_DIR}/common/optim/cuda/kernels.cu)
  set_source_files_properties(${model_kernels} PROPERTIES
    LANGUAGE CXX
    COMPILE_OPTIONS "-include;${PROJECT_SOURCE_DIR}/tests/support/simt.h")
  centroid_test(transformer_cuda_test LABEL unit SOURCES unit/transformer_cuda_test.cc support/simt.cc ${model_kernels}
    DEPS centroid::model centroid::device)
  centroid_test(optimizer_cuda_test LABEL unit SOURCES unit/optimizer_cuda_test.cc support/simt.cc
    ${PROJECT_SOURCE_DIR}/common/optim/cuda/kernels.cu DEPS centroid::optim centroid::device)
  # Models and groups of GPUs, on devices whose streams run late.
  centroid_test(models_cuda_test LABEL unit TIMEOUT 900
    SOURCES unit/models_cuda_test.cc support/late_device.cc support/late_cublas_lt.cc support/simt.cc ${model_kernels}
    DEPS centroid::node)
  set(codec_kernels ${PROJECT_SOURCE_DIR}/common/codec/cuda)
  centroid_test(device_residual_test LABEL unit
    SOURCES unit/device_residual_test.cc support/late_device.cc support/late_cublas_lt.cc support/simt.cc ${model_kernels}
            ${codec_kernels}/kernels.cu ${codec_kernels}/device_codec.cc ${codec_kernels}/device_residual.cc
    DEPS centroid::node centroid::codec)
endif()

if(CENTROID_FUZZ)
  foreach(part idx digits)
    add_executable(${part}_fuzz fuzz/${part}_fuzz.cc)
    target_link_libraries(${part}_fuzz PRIVATE centroid_flags centroid::data centroid_no_fault_points)
    target_link_options(${part}_fuzz PRIVATE -fsanitize=fuzzer)
    set_target_properties(${part}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  endforeach()
endif()
centroid_test(c_api_test LABEL unit SOURCES unit/c_api_test.cc DEPS centroid_shared nlohmann_json::nlohmann_json)
