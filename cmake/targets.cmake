# Targets of the project. One function each; nothing global but the standard.
include_guard()

add_library(centroid_flags INTERFACE)
target_compile_features(centroid_flags INTERFACE cxx_std_20)
target_include_directories(centroid_flags INTERFACE ${PROJECT_SOURCE_DIR})
# Asio's functions are compiled once (common/async/asio.cc), and no source reads Boost's calendar. A message passes through about 16
# coroutines: each thread keeps the memory of that many frames (of 2, without this) instead of freeing and allocating it again.
target_compile_definitions(centroid_flags INTERFACE BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_DISABLE_BOOST_DATE_TIME
  BOOST_ASIO_RECYCLING_ALLOCATOR_CACHE_SIZE=16)
target_compile_options(centroid_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>
  # Not where a name may be that of another source of the group.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:CENTROID_GROUPED_TEST>>>>:-Wshadow>
  $<$<COMPILE_LANGUAGE:CXX>:-Wconversion -Wno-sign-conversion>
  # Below -O3 g++ 12 sees only half of how coroutines allocate.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-mismatched-new-delete>
  # Collect the compiler's garbage at 1.5 GB, not at 30 MB: a tenth less time.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1500000>
  # Same bits on every path: no fused multiply-add behind our back.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${CENTROID_WERROR}>>:-Werror>
  # CMake 3.25 does not know how to ask a new nvcc for C++20. Functions that are constexpr run on both sides, and give the
  # same bits there: no fused multiply-add, no flushed subnormals, exact division.
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr --fmad=false --ftz=false --prec-div=true -Xcompiler=-Wall,-Wextra>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${CENTROID_WERROR}>>:--Werror=all-warnings>)
if(CENTROID_SANITIZE)
  target_compile_options(centroid_flags INTERFACE -fsanitize=${CENTROID_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(centroid_flags INTERFACE -fsanitize=${CENTROID_SANITIZE})
endif()

# Group the sources of a target (CMake calls that a unity build). Where coroutines are, headers and their templates take most of the time.
function(centroid_unity target)
  set(batch 6)
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/(server|transport)(/|$)")
    set(batch 24)
  elseif(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/(client|worker|tests)(/|$)")
    set(batch 12)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${CENTROID_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
  if(CENTROID_UNITY)  # g++ takes a source that a group includes for a header
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# centroid_library(name [KERNELS] SOURCES a.cc HEADERS a.h DEPS centroid::b PRIVATE_DEPS Threads::Threads)
# KERNELS: loops over tensors, and the way of a message, at -O3 (-O1 made 64 KiB among ranks 11 % slower). What else a release has is -O1,
# which builds in two thirds of the time and runs as fast.
function(centroid_library name)
  cmake_parse_arguments(ARG "KERNELS" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target centroid_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(centroid::${name} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  target_link_libraries(${target} PUBLIC centroid_flags ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(ARG_KERNELS)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
  endif()
  centroid_unity(${target})
endfunction()

# centroid_kernels(a.cc ...): sources of this folder's library that are such loops, where the library is not.
function(centroid_kernels)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
endfunction()

add_custom_target(programs)       # what a user runs
add_custom_target(wheel_programs) # the same, which need no library that a plain system lacks
add_custom_target(test_programs)  # the same with fault points, which process tests run
add_custom_target(tests)          # what ctest runs
add_custom_target(benchmarks)     # what benchmarks.txt of the build folder lists
add_dependencies(tests programs test_programs)

# centroid_program(name SOURCES main.cc DEPS ...): in bin, without fault points (common/checkpoint/fault_point.h). What a user runs is linked once
# more for the tests, of the same objects, with fault points: in test-bin.
function(centroid_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE centroid_flags ${ARG_DEPS} centroid_no_fault_points)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  if(CENTROID_TESTS AND NOT name MATCHES "^centroid-bench")
    add_executable(${name}-test $<TARGET_OBJECTS:${name}>)
    target_link_libraries(${name}-test PRIVATE centroid_flags ${ARG_DEPS} centroid_fault_points)
    set_target_properties(${name}-test PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test-bin)
    add_dependencies(test_programs ${name}-test)
  endif()
  if(name MATCHES "^centroid-bench")
    add_dependencies(benchmarks ${name})
    string(REPLACE "centroid-bench-" "" short_name ${name})
    set_property(GLOBAL APPEND PROPERTY CENTROID_BENCHMARKS "short\t${short_name}\t$<TARGET_FILE:${name}>")
  else()
    centroid_unity(${name})
    add_dependencies(programs ${name})
    add_executable(${name}-wheel EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${name}>)
    target_link_libraries(${name}-wheel PRIVATE centroid_flags ${ARG_DEPS} centroid_no_fault_points)
    target_link_options(${name}-wheel PRIVATE -Wl,--gc-sections)
    set_target_properties(${name}-wheel PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE CXX CENTROID_PLAIN ON BUILD_RPATH "$ORIGIN/../lib/centroid"
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/wheel-bin)
    add_dependencies(wheel_programs ${name}-wheel)
  endif()
endfunction()

# centroid_bench(centroid-bench-x SOURCES ... DEPS ...): a program that `./centroid bench` runs without arguments.
function(centroid_bench name)
  if(NOT name MATCHES "^centroid-bench")
    message(FATAL_ERROR "centroid_bench: ${name} must be named centroid-bench-...")
  endif()
  if(CENTROID_BENCH)
    centroid_program(${name} ${ARGN})
  endif()
endfunction()

# centroid_bench_script(x.py [NAMED] [ARGS ...]): tests/bench/x.py, which `./centroid bench` runs with these arguments; NAMED: only where it is asked
# for by name.
function(centroid_bench_script script)
  cmake_parse_arguments(ARG "NAMED" "" "ARGS" ${ARGN})
  if(NOT CENTROID_BENCH)
    return()
  endif()
  add_dependencies(benchmarks programs)  # they run these
  set(kind short)
  if(ARG_NAMED)
    set(kind named)
  endif()
  string(REPLACE ".py" "" name ${script})
  string(JOIN "\t" line ${kind} ${name} python3 ${PROJECT_SOURCE_DIR}/tests/bench/${script} ${ARG_ARGS})
  set_property(GLOBAL APPEND PROPERTY CENTROID_BENCHMARKS "${line}")
endfunction()

# centroid_test(name LABEL unit SOURCES a_test.cc DEPS ... [TIMEOUT seconds] [AT_A_TIME processes] [SLOW seconds] [COMPUTES]): one program, one
# ctest entry per label and program. AT_A_TIME: its tests wait more than they compute, so they are divided among so many processes. SLOW:
# suites whose name ends with Slow are an entry of their own, slow.name, with this timeout. COMPUTES: they compute for long, so they are
# optimised; the others are not, which compiles in three quarters of the time.
function(centroid_test name)
  cmake_parse_arguments(ARG "COMPUTES" "LABEL;TIMEOUT;AT_A_TIME;SLOW" "SOURCES;DEPS" ${ARGN})
  if(NOT CENTROID_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)  # ends what hangs; a busy machine may be slow
  endif()
  if(CENTROID_SANITIZE)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")  # the thread sanitizer slows programs by 5 to 15 times
  endif()
  if(CENTROID_SANITIZE AND ARG_SLOW)
    math(EXPR ARG_SLOW "3 * ${ARG_SLOW}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  add_dependencies(tests ${name})
  target_link_libraries(${name} PRIVATE centroid_flags ${ARG_DEPS} centroid_fault_points GTest::gmock GTest::gtest_main)
  if(NOT ARG_COMPUTES)
    target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O0>)
  endif()
  centroid_unity(${name})
  set_target_properties(${name} PROPERTIES CENTROID_GROUPED_TEST ${CENTROID_UNITY} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set(beside "")
  if(ARG_AT_A_TIME)
    find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
    set(beside Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/harness/side_by_side.py ${ARG_AT_A_TIME})
  endif()
  add_test(NAME ${ARG_LABEL}.${name} COMMAND ${beside} $<TARGET_FILE:${name}> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${ARG_LABEL}.${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(ARG_SLOW)
    set_tests_properties(${ARG_LABEL}.${name} PROPERTIES ENVIRONMENT GTEST_FILTER=-*Slow.*)
    add_test(NAME slow.${name} COMMAND ${name} --gtest_filter=*Slow.* WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(slow.${name} PROPERTIES LABELS slow TIMEOUT ${ARG_SLOW} SKIP_REGULAR_EXPRESSION "SKIPPED")
  endif()
endfunction()
