if(CENTROID_TESTS)
  # Loaded at run time, as libnccl.so.2 is.
  add_library(nccl_stand_in MODULE support/nccl_stand_in.cc)
  target_link_libraries(nccl_stand_in PRIVATE centroid_flags Threads::Threads)
  centroid_test(nccl_test LABEL unit SOURCES unit/nccl_test.cc DEPS centroid::node)
  target_compile_definitions(nccl_test PRIVATE NCCL_STAND_IN="$<TARGET_FILE:nccl_stand_in>")
  target_link_libraries(nccl_test PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(nccl_test nccl_stand_in)
endif()
