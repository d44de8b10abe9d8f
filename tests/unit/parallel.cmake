centroid_test(parallel_test LABEL unit
  SOURCES unit/generations_test.cc unit/parallel_layout_test.cc unit/parallel_pipeline_test.cc unit/unit_buffers_test.cc DEPS centroid::parallel)
centroid_test(sharded_test LABEL component AT_A_TIME 3 TIMEOUT 600
  SOURCES component/sharded_parameters_test.cc component/pipeline_test.cc component/regroup_test.cc component/sharded_checkpoint_test.cc
    component/sharded_checkpoint_faults_test.cc component/staged_checkpoint_test.cc support/allocation_count.cc
  DEPS centroid::parallel centroid_test_transports)
set(sources component/group_rendezvous_test.cc)
set(world "")
if(NOT CENTROID_SANITIZE MATCHES "thread")  # fibers
  list(APPEND sources component/group_meeting_test.cc component/group_callers_test.cc)
  set(world centroid_test_world)
endif()
centroid_test(group_test LABEL component SOURCES ${sources} DEPS centroid::group centroid_test_certificates ${world})
