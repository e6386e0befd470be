# What `cmake --install` lays down: both libraries, two headers, the command line, find_package(tessera CONFIG) with
# tessera::tessera (shared) and tessera::tessera_static, and tessera.pc for pkg-config.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

install(TARGETS tessera tessera_static EXPORT tessera_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
if(TARGET tessera_cli)
  install(TARGETS tessera_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(EXPORT tessera_targets NAMESPACE tessera:: DESTINATION ${package_dir})

configure_package_config_file(cmake/tessera-config.cmake.in ${CMAKE_BINARY_DIR}/tessera-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tessera-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tessera-config.cmake ${CMAKE_BINARY_DIR}/tessera-config-version.cmake
  DESTINATION ${package_dir})

# The prefix is told by where the .pc file lies, so an installed tree may be moved.
file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" pc_to_prefix ${pc_to_prefix})
configure_file(cmake/tessera.pc.in ${CMAKE_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# A Python wheel holds the library alone, inside the package; pyproject.toml installs only this component.
if(SKBUILD)
  install(FILES $<TARGET_FILE:tessera> DESTINATION tessera RENAME libtessera.so COMPONENT python)
endif()
