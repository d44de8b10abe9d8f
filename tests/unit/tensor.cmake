centroid_test(tensor_test LABEL unit
  SOURCES unit/tensor_test.cc unit/chunk_plan_test.cc unit/buffer_test.cc
  DEPS centroid::tensor)
