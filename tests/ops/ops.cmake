# What operators use: dashboards and alerts against a real Prometheus, the console in Chromium, the OpenAPI document by redocly, manifests, the files of images, clusters in containers,
# the commands of the docs. Skips where the programs it needs are missing.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
foreach(area IN ITEMS compose console containers dashboards docs image_root kubernetes openapi packages sharded_console)
  add_test(NAME ops.${area} COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/${area}_test.py
    $<TARGET_FILE_DIR:centroid-server>)
  set_tests_properties(ops.${area} PROPERTIES LABELS ops TIMEOUT 900 SKIP_RETURN_CODE 77)
endforeach()
set_tests_properties(ops.containers PROPERTIES TIMEOUT 1800 COST 500)
add_test(NAME ops.images COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/images_test.py
  $<TARGET_FILE_DIR:centroid-server> --dockerfile)
set_tests_properties(ops.images PROPERTIES LABELS ops TIMEOUT 3600 SKIP_RETURN_CODE 77 COST 1000)  # compiles everything in a container
