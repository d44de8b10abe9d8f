# The demo driver against a stand-in cluster: needs no built program.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
add_test(NAME process.local_cluster COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/local_cluster_test.py)
set_tests_properties(process.local_cluster PROPERTIES LABELS process TIMEOUT 120)
