# What `cmake --install` puts where, and the Debian packages that CPack makes of it (./centroid package).
include_guard()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CENTROID_PYTHON_DIR lib/python3/dist-packages CACHE STRING "Where the Python package is installed, below the prefix")
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # needs the target `programs` only

# programs: what runs. dev: what compiles against the C interface. service: only in the Debian package.
install(TARGETS centroid-server centroid-worker centroidctl RUNTIME COMPONENT programs)
install(TARGETS centroid_shared EXPORT CentroidTargets
  LIBRARY COMPONENT programs NAMELINK_COMPONENT dev
  FILE_SET HEADERS COMPONENT dev)
install(DIRECTORY client/python/centroid DESTINATION ${CENTROID_PYTHON_DIR} COMPONENT programs PATTERN __pycache__ EXCLUDE)
install(PROGRAMS deploy/debian/centroid DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)

set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Centroid)
install(EXPORT CentroidTargets NAMESPACE Centroid:: FILE CentroidConfig.cmake DESTINATION ${cmake_folder} COMPONENT dev)
write_basic_package_version_file(CentroidConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# Of the library: wherever the folder is moved, it finds the header and the library beside itself.
file(RELATIVE_PATH CENTROID_PREFIX_OF_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/centroid.pc.in centroid.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/CentroidConfigVersion.cmake DESTINATION ${cmake_folder} COMPONENT dev)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/centroid.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

set(of_service COMPONENT service EXCLUDE_FROM_ALL)
install(FILES deploy/debian/centroid-server.service deploy/debian/centroid-worker@.service DESTINATION /usr/lib/systemd/system ${of_service})
install(FILES deploy/debian/server.json deploy/debian/worker.json DESTINATION /etc/centroid ${of_service})
foreach(package IN ITEMS centroid libcentroid-dev)
  install(FILES LICENSE DESTINATION /usr/share/doc/${package} RENAME copyright COMPONENT of-${package} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "Centroid developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "data-parallel training over ordinary TCP networks")
set(CPACK_PACKAGE_NAME centroid)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_SET_DESTDIR ON)  # some files are at the root, not below the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL programs service of-centroid dev of-libcentroid-dev)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
foreach(component IN ITEMS PROGRAMS SERVICE OF-CENTROID)
  set(CPACK_COMPONENT_${component}_GROUP centroid)
endforeach()
foreach(component IN ITEMS DEV OF-LIBCENTROID-DEV)
  set(CPACK_COMPONENT_${component}_GROUP dev)
endforeach()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_CENTROID_PACKAGE_NAME centroid)
set(CPACK_DEBIAN_CENTROID_DESCRIPTION
  "A parameter server and any number of workers that may come, fail and leave, for programs in PyTorch, NumPy and C.")
set(CPACK_DEBIAN_CENTROID_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CENTROID_PACKAGE_DEPENDS "python3 (>= 3.9), passwd")
set(CPACK_DEBIAN_CENTROID_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_CENTROID_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/conffiles ${PROJECT_SOURCE_DIR}/deploy/debian/postinst
  ${PROJECT_SOURCE_DIR}/deploy/debian/prerm ${PROJECT_SOURCE_DIR}/deploy/debian/postrm)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libcentroid-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_DESCRIPTION "The C interface: header, and files for CMake and pkg-config.")
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "centroid (= ${PROJECT_VERSION})")
include(CPack)
