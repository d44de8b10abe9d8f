centroid_test(parallel_test LABEL unit
  SOURCES unit/generations_test.cc unit/parallel_layout_test.cc unit/parallel_pipeline_test.cc unit/unit_buffers_test.cc DEPS centroid::parallel)
centroid_test(sharded_parameters_test LABEL component
  SOURCES component/sharded_parameters_test.cc component/pipeline_test.cc DEPS centroid::parallel centroid_test_transports TIMEOUT 600)
centroid_test(regroup_test LABEL component SOURCES component/regroup_test.cc DEPS centroid::parallel centroid_test_transports TIMEOUT 300)
centroid_test(sharded_checkpoint_test LABEL component SOURCES component/sharded_checkpoint_test.cc component/sharded_checkpoint_faults_test.cc component/staged_checkpoint_test.cc support/allocation_count.cc
  DEPS centroid::parallel centroid_test_transports TIMEOUT 300)
centroid_test(group_rendezvous_test LABEL component SOURCES component/group_rendezvous_test.cc DEPS centroid::group centroid_test_certificates)
if(NOT CENTROID_SANITIZE MATCHES "thread")  # fibers
  centroid_test(group_meeting_test LABEL component SOURCES component/group_meeting_test.cc component/group_callers_test.cc DEPS centroid::group centroid_test_world)
endif()
