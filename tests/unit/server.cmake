centroid_test(scale_test LABEL unit SOURCES unit/scale_test.cc DEPS centroid::service)
centroid_test(memory_need_test LABEL unit SOURCES unit/memory_need_test.cc DEPS centroid::service)
centroid_test(operator_file_test LABEL unit SOURCES unit/operator_file_test.cc unit/duty_cycle_test.cc DEPS centroid::service)
centroid_test(fetched_versions_test LABEL unit SOURCES unit/fetched_versions_test.cc DEPS centroid::service)
centroid_test(chunk_fetcher_test LABEL unit SOURCES unit/chunk_fetcher_test.cc DEPS centroid::service)
centroid_test(placement_test LABEL unit SOURCES unit/placement_test.cc DEPS centroid::shard)
centroid_test(round_sums_test LABEL unit SOURCES unit/round_sums_test.cc DEPS centroid::shard)
centroid_test(leader_gate_test LABEL unit SOURCES unit/leader_gate_test.cc DEPS centroid::service)
centroid_test(waits_test LABEL unit SOURCES unit/waits_test.cc DEPS centroid::service)
centroid_test(server_test LABEL unit
  SOURCES unit/roster_test.cc unit/round_machine_test.cc unit/round_policy_test.cc unit/round_ledger_test.cc unit/contribution_stage_test.cc unit/aggregator_test.cc unit/control_numbers_test.cc unit/messages_test.cc unit/messages_tail_test.cc
          unit/reply_encoder_test.cc unit/robust_test.cc
  DEPS centroid::membership centroid::aggregate centroid::coordinate centroid::optim centroid::proto)
centroid_test(election_test LABEL unit SOURCES unit/election_test.cc unit/fence_test.cc unit/etcd_answers_test.cc
  DEPS centroid::election nlohmann_json::nlohmann_json)
