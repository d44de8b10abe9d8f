centroid_test(coordinate_test LABEL unit
  SOURCES unit/cadence_test.cc unit/coordinator_test.cc unit/curves_test.cc unit/drift_test.cc unit/exchange_choice_test.cc unit/job_machine_test.cc
          unit/job_state_test.cc
  DEPS centroid::coordinate centroid::state)
