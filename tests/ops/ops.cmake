# What operators use: dashboards and alerts against a real Prometheus. Skips where the programs it needs are missing.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
add_test(NAME ops.dashboards COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/dashboards_test.py
  $<TARGET_FILE_DIR:centroid-server>)
set_tests_properties(ops.dashboards PROPERTIES LABELS ops TIMEOUT 300 SKIP_RETURN_CODE 77)
