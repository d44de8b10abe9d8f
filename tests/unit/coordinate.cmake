centroid_test(coordinate_test COMPUTES LABEL unit
  SOURCES unit/cadence_test.cc unit/coordinator_test.cc unit/curves_test.cc unit/drift_test.cc unit/exchange_choice_test.cc unit/job_machine_test.cc
          unit/job_state_test.cc unit/election_test.cc unit/fence_test.cc unit/etcd_answers_test.cc
  DEPS centroid::coordinate centroid::state centroid::election nlohmann_json::nlohmann_json)
