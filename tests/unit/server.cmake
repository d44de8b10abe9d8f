centroid_test(service_test LABEL unit
  SOURCES unit/chunk_fetcher_test.cc unit/duty_cycle_test.cc unit/fetched_versions_test.cc unit/leader_gate_test.cc unit/memory_need_test.cc
          unit/operator_file_test.cc unit/row_files_test.cc unit/rows_snapshot_test.cc unit/scale_test.cc unit/waits_test.cc
  DEPS centroid::service)
centroid_test(shard_test LABEL unit SOURCES unit/hosted_model_test.cc unit/placement_test.cc unit/round_sums_test.cc DEPS centroid::shard centroid_test_transports)
centroid_test(server_test COMPUTES LABEL unit
  SOURCES unit/roster_test.cc unit/round_machine_test.cc unit/round_policy_test.cc unit/round_ledger_test.cc unit/contribution_stage_test.cc unit/aggregator_test.cc unit/control_numbers_test.cc unit/messages_test.cc unit/messages_tail_test.cc
          unit/reply_encoder_test.cc unit/robust_bound_test.cc unit/robust_test.cc
  DEPS centroid::membership centroid::aggregate centroid::coordinate centroid::optim centroid::proto)
