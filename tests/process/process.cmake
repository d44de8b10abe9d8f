# The real programs, with fault points, on loopback: every way to start, train, fail and end. Each file is one test, so that they run side by side.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
set(process_timeout 900)  # ends what hangs; a busy machine may be slow
set(process_environment "")
if(CENTROID_SANITIZE)
  set(process_environment CENTROID_TEST_PATIENCE=4)
endif()
# Folders of tests are in memory, where there is some: they kill programs, not machines, and would wait for the disk of each other.
execute_process(COMMAND df --output=avail /dev/shm OUTPUT_VARIABLE memory ERROR_QUIET)
execute_process(COMMAND grep -c " /dev/shm .*noexec" /proc/mounts OUTPUT_VARIABLE forbids_programs)
if(forbids_programs EQUAL 0 AND memory MATCHES "([0-9]+)[ \n]*$" AND CMAKE_MATCH_1 GREATER 4000000)
  list(APPEND process_environment TMPDIR=/dev/shm)
endif()
foreach(area IN ITEMS access auto beginning budgets buffers cadence client codec ctl durability examples feedback fetch flood golden groups kill local local_steps membership metrics mistakes models old_files places plan policy rates recovery refusals rest rest_contract restore ring robust rows rows_client rows_moves rows_servers rows_waits run servers servers_guards servers_journal servers_refusals sharded sharded_ends sharded_model sharded_stages sharded_view small_files standby start stop strangers tls torch torch_hooks torch_loader torch_parallel trace training upgrade waits)
  add_test(NAME process.${area} COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/${area}_test.py
    $<TARGET_FILE_DIR:centroid-server-test>)
  set_tests_properties(process.${area} PROPERTIES LABELS process TIMEOUT ${process_timeout}
    ENVIRONMENT "${process_environment}")
endforeach()
add_test(NAME process.fault_points COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/fault_points_test.py
  $<TARGET_FILE_DIR:centroid-server> $<TARGET_FILE_DIR:centroid-server-test>)
set_tests_properties(process.fault_points PROPERTIES LABELS process TIMEOUT ${process_timeout} ENVIRONMENT "${process_environment}")
add_test(NAME process.abi COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/abi_test.py $<TARGET_FILE:centroid_shared>)
set_tests_properties(process.abi PROPERTIES LABELS process TIMEOUT 300 SKIP_RETURN_CODE 77)
add_test(NAME conformance.wire_page COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/conformance/wire_page_test.py
  $<TARGET_FILE_DIR:centroid-server-test>)
set_tests_properties(conformance.wire_page PROPERTIES LABELS process TIMEOUT ${process_timeout} ENVIRONMENT "${process_environment}")
set_tests_properties(process.servers_journal process.restore PROPERTIES TIMEOUT 1800)  # a job for each write point
# The longest begin first, so that none runs alone at the end. COST is of the first run; then ctest knows the times.
set_tests_properties(process.budgets process.client process.ctl process.durability process.examples process.run process.servers process.servers_journal
  process.sharded process.small_files process.standby process.torch process.torch_hooks process.torch_loader process.torch_parallel PROPERTIES COST 60)
set_tests_properties(process.codec process.groups process.local_steps process.membership process.policy process.rates process.ring process.robust process.rows
  process.rows_client process.rows_servers process.servers_refusals process.strangers process.tls PROPERTIES COST 30)
add_test(NAME slow.large_tensor COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/large_tensor_test.py $<TARGET_FILE_DIR:centroid-server-test>)
set_tests_properties(slow.large_tensor PROPERTIES LABELS slow TIMEOUT 1800)
if(NOT CENTROID_SANITIZE)  # which reserves all address space
  add_test(NAME slow.sharded_large COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/sharded_large_test.py $<TARGET_FILE_DIR:centroid-server-test>)
  set_tests_properties(slow.sharded_large PROPERTIES LABELS slow TIMEOUT 1800)
endif()
add_test(NAME slow.sharded_kills COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/sharded_kills_test.py $<TARGET_FILE_DIR:centroid-server-test>)
set_tests_properties(slow.sharded_kills PROPERTIES LABELS slow TIMEOUT 1800)
add_test(NAME slow.chaos COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/chaos/chaos.py $<TARGET_FILE_DIR:centroid-server-test>
  --seconds 60 --every 6 --longest 6 --seed 7 --modes star tables)
set_tests_properties(slow.chaos PROPERTIES LABELS slow TIMEOUT 1800 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
# Python loads libcentroid.so late: what it was built with must be there before. What Python itself does not give back is not ours.
if(CENTROID_SANITIZE MATCHES "address")
  set(first "")
  foreach(library IN ITEMS libasan.so libstdc++.so)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${library} OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(APPEND first "${found} ")
  endforeach()
  set_tests_properties(process.buffers process.client process.examples process.golden process.groups process.metrics process.old_files process.robust process.rows_client process.rows_waits process.run process.standby process.trace process.upgrade PROPERTIES ENVIRONMENT_MODIFICATION
    "LD_PRELOAD=set:${first};ASAN_OPTIONS=string_append::detect_leaks=0")
endif()
