# A build for another processor: the libraries that need nothing but headers from outside, and the tests of what is written for
# that processor by hand (codecs, CRC-32C). The programs are built on machines of that kind.
include_guard()

# Boost, nlohmann-json and the headers of prometheus-cpp are the same on every machine. Behind the cross compiler's own: those
# of this machine's C library are in the same folder.
target_compile_options(centroid_flags INTERFACE "SHELL:-idirafter /usr/include")
foreach(headers Boost::headers nlohmann_json::nlohmann_json prometheus-cpp::core)
  add_library(${headers} INTERFACE IMPORTED)
endforeach()
find_package(Threads REQUIRED)

foreach(module base storage tensor async codec optim proto checkpoint)
  add_subdirectory(common/${module})
endforeach()
add_subdirectory(transport)

if(CENTROID_TESTS)
  find_path(CENTROID_GTEST_SOURCE googletest/CMakeLists.txt PATHS /usr/src/googletest NO_DEFAULT_PATH REQUIRED)
  set(INSTALL_GTEST OFF)
  add_subdirectory(${CENTROID_GTEST_SOURCE} googletest EXCLUDE_FROM_ALL SYSTEM)
  enable_testing()
  add_subdirectory(tests)
endif()
