centroid_test(checkpoint_test LABEL unit
  SOURCES unit/tensor_test.cc unit/chunk_plan_test.cc unit/fragments_test.cc unit/buffer_test.cc unit/safetensors_test.cc unit/checkpoint_test.cc unit/known_problems_test.cc unit/pieces_test.cc unit/replace_file_test.cc
          unit/restore_mark_test.cc unit/shards_test.cc
  DEPS centroid::checkpoint centroid::tensor nlohmann_json::nlohmann_json)
