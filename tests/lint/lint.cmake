# Checks of the sources themselves; `./centroid lint` runs the same without a build.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

foreach(check IN ITEMS layers cycles coroutines habits sizes format python docs)
  add_test(NAME lint.${check} COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/check_${check}.py ${PROJECT_SOURCE_DIR})
  set_tests_properties(lint.${check} PROPERTIES LABELS lint TIMEOUT 300 SKIP_RETURN_CODE 77)
endforeach()
add_test(NAME lint.python_page COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/client/python/reference.py --check)
set_tests_properties(lint.python_page PROPERTIES LABELS lint TIMEOUT 300)
if(TARGET centroid-server AND TARGET centroid-worker AND TARGET centroidctl)  # what they print is a page
  add_test(NAME process.settings_page
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/docs/reference/make_settings.py --check ${CMAKE_BINARY_DIR}/bin)
  add_test(NAME process.rest_page
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/server/api/reference.py --check ${CMAKE_BINARY_DIR}/bin)
  set_tests_properties(process.settings_page process.rest_page PROPERTIES LABELS process TIMEOUT 300)
endif()
add_test(NAME lint.broken_rules COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/simulation/broken_rules.py --check)
set_tests_properties(lint.broken_rules PROPERTIES LABELS lint TIMEOUT 300)
add_test(NAME lint.self_test COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/lint_test.py)
set_tests_properties(lint.self_test PROPERTIES LABELS lint TIMEOUT 300)
