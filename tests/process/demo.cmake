# The demo: its driver against a stand-in cluster, then with the real programs.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
add_test(NAME process.local_cluster COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/local_cluster_test.py)
set_tests_properties(process.local_cluster PROPERTIES LABELS process TIMEOUT 600)
add_test(NAME process.demo COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/demo_test.py
  $<TARGET_FILE_DIR:centroid-server> ${PROJECT_SOURCE_DIR}/.cache/data)
set_tests_properties(process.demo PROPERTIES LABELS process TIMEOUT 900 SKIP_RETURN_CODE 77)
add_test(NAME process.convergence COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/convergence_test.py
  $<TARGET_FILE_DIR:centroid-server> ${PROJECT_SOURCE_DIR}/.cache/data)
set_tests_properties(process.convergence PROPERTIES LABELS slow TIMEOUT 600 SKIP_RETURN_CODE 77)
